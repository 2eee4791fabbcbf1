"""Documentation pages: every link has a target, and every command that is shown parses."""

from __future__ import annotations

import argparse
import re
import shlex
from collections.abc import Iterator
from pathlib import Path

import pytest

from lightir.cli.app import COMMANDS, build_parser, command_parsers

ROOT = Path(__file__).resolve().parents[1]
PAGES = sorted([*ROOT.glob("*.md"), *(ROOT / "docs").rglob("*.md"), *(ROOT / "recipes").glob("*.md")])
SCRIPT = re.compile(r"python ((?:bench|recipes|docs|examples)/\w+\.py)([^`\n#]*)")


def shell_lines(page: Path) -> Iterator[str]:
    """Yield the lines of a page's code blocks except Python's, with continued lines joined."""
    for language, block in re.findall(
        r"^```(\w*)\n(.*?)^```", page.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    ):
        if language != "python":
            yield from (line.strip() for line in re.split(r"\n|&&| \| ", re.sub(r"\\\n\s*", "", block)))


def inline_code(page: Path) -> list[str]:
    """Return the code spans of a page's text."""
    text = re.sub(r"^```.*?^```", "", page.read_text(encoding="utf-8"), flags=re.MULTILINE | re.DOTALL)
    return [" ".join(code.split()) for code in re.findall(r"`([^`]+)`", text)]


def words_of(line: str) -> list[str]:
    """Return a command's words, without the explanation after two blanks or a "#"."""
    return shlex.split(re.split(r"\s{2,}", line)[0], comments=True)


def options_of(words: list[str]) -> list[str]:
    """Return the long options among a command's words, without those after "--"."""
    own = words[: words.index("--")] if "--" in words else words
    return [word.partition("=")[0] for word in own if re.match(r"--\w", word)]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_link_leads_to_a_file_or_heading(page: Path) -> None:
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8")):
        if re.match(r"\w+:", target):
            continue
        path, _, anchor = target.partition("#")
        linked = page.parent / path if path else page
        assert linked.exists(), target
        if anchor:
            assert anchor in headings(linked), target


def headings(page: Path) -> set[str]:
    """Return the anchors of a page's headings."""
    titles = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).strip().replace(" ", "-") for title in titles}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_command_shown_parses(page: Path, capsys: pytest.CaptureFixture[str]) -> None:
    parser = build_parser()
    for line in shell_lines(page):
        if line.startswith("lightir "):
            words = words_of(line)[1:]
            assert parser.parse_args(words).command == words[0], line
    for code in inline_code(page):
        if code.startswith("lightir ") and " import " not in code:
            check_options(shlex.split(code)[1:], parser)


def check_options(words: list[str], parser: argparse.ArgumentParser) -> None:
    """Require that a command has the options that a code span names; the command may be incomplete."""
    if not re.fullmatch(r"[a-z]+", words[0]) or words[0] == "bench":
        return
    known = {option for action in command_parsers(parser)[words[0]]._actions for option in action.option_strings}
    assert set(options_of(words)) <= known, words


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.relative_to(ROOT).as_posix())
def test_every_script_shown_exists_and_has_the_options_shown(page: Path) -> None:
    shown = "\n".join([*shell_lines(page), *inline_code(page)])
    named = [(ROOT / path, options) for path, options in SCRIPT.findall(shown)]
    named += [
        (ROOT / "bench" / f"bench_{name}.py", options)
        for name, options in re.findall(r"lightir bench (\w+)([^`\n#]*)", shown)
    ]
    for script, options in named:
        source = script.read_text(encoding="utf-8")
        for option in set(re.findall(r"--(\w[\w-]*)", options)) - {"help"}:
            declared = [f'"--{option}"', f'"{option}"']
            if option.startswith("no-"):
                declared.append(f'"--{option.removeprefix("no-")}", action=argparse.BooleanOptionalAction')
            assert any(text in source for text in declared), f"{script.name} has no --{option}"


def test_the_readme_names_every_step() -> None:
    shown = {words_of(line)[1] for line in shell_lines(ROOT / "README.md") if line.startswith("lightir ")}
    assert {"demo", "encode", "index", "search", "add", "worker", "evaluate", "distill", "train", "cache"} <= shown
    assert shown <= set(COMMANDS)


def test_the_site_has_every_page_once() -> None:
    listed = re.findall(r"^ +- .*: (\S+\.md)$", (ROOT / "mkdocs.yml").read_text(encoding="utf-8"), re.MULTILINE)
    adapters = {"packages/langchain-lightir", "packages/llama-index-retrievers-lightir", "packages/lightir-haystack"}
    pages = {page.relative_to(ROOT).as_posix() for page in [*PAGES, *ROOT.glob("packages/*/README.md")]}
    left_out = {"docs/results", *adapters}
    assert sorted(listed) == sorted(page for page in pages if page.rpartition("/")[0] not in left_out)
