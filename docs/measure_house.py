"""Count what makes a codebase hard to read: `python docs/measure_house.py [FOLDER ...] [--list]`.

Prints lines, functions over 60 lines, functions with more than seven parameters, file and type names that mean two
things, sentences of more than 40 words in Markdown pages, and phrases that the style guide bans (CONTRIBUTING.md,
"Words"). With --list it prints each finding as FILE:LINE. `tests/test_prose.py` holds the counts at zero.
"""

from __future__ import annotations

import argparse
import ast
import re
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
SOURCE = ROOT / "src" / "lightir"
NATIVE = ROOT / "native"
QUOTING = (Path(__file__).resolve(), ROOT / "tests" / "test_prose.py")
"""Files that quote banned phrases."""

MAX_LINES = 60
MAX_PARAMETERS = 7
MAX_WORDS = 40

BAD_SUMMARY = re.compile(
    r"(What|See|The same|Likewise|How|Who|Whom|Whose|Where|Why|Which|So|As|Of|For|In|From|To|By|With|At|On)\b"
)
"""First words that make a summary neither an imperative nor a noun phrase."""

THIRD_PERSON = re.compile(
    r"(?!This|Its)[A-Z][a-z]*[a-rt-z]s (a(?! second| call)|an|the|its|each|every|all|some|one|whether|which|how)\b"
)
"""A verb in the third person, which begins a function's summary where the imperative should."""

BAD_ENTRY = re.compile(
    r"(see|likewise|as|of|for|in|from|to|by|with|at|on|whose|where|what|who|that|those|the same|so)\b", re.IGNORECASE
)
"""First words of an Args or Attributes entry that do not say what the value is."""

BAD_LOCALS = frozenset({"each", "found", "place", "those", "many", "said", "so", "them"})
"""Names of local variables that do not name their content."""

BAD_PHRASES = {
    "leading zero": re.compile(r"(?<![\w.:\]\)\}/\\%-])\.\d+(?![\w.]*[(/])"),
    "such as have": re.compile(r"\bsuch as (have|are|lack)\b"),
    "for there is": re.compile(r"\bfor there (is|are)\b"),
    "be it that": re.compile(r"\bbe it\b"),
    "what is left of": re.compile(r"\bwhat is left of\b"),
    "as good as absent": re.compile(r"\bas good as absent\b"),
    "meets no model": re.compile(r"\bmeets? (no|none|a language) ?(model|one)?\b"),
    "talk": re.compile(r"\btalk (on|goes)\b"),
    "the first so many": re.compile(r"\b(the first )?so many\b"),
    "come and go": re.compile(r"\bcome(s)?(, change)? and (go|change)\b"),
    "stood already": re.compile(r"\bstood already\b"),
    "bury": re.compile(r"\b_?bury\b"),
    "must not be met": re.compile(r"\bmust not be met\b"),
    "likewise": re.compile(r"\b[Ll]ikewise\b"),
    "who reads": re.compile(r"(^|[.;:] )Who(ever)? \w+s\b(?![^.]*\?)"),
    "whom": re.compile(r"\b[Ww]hom else\b"),
    "relevance labels": re.compile(r"\bjudgement"),
    "wants": re.compile(r"\bas (queries|branches|it|they) wants?\b"),
    "stands in": re.compile(r"\b(stands|lies) (beside|behind|in|at|once|there)\b"),
    "as long as wanted": re.compile(r"\bAs (large|long) as wanted\b"),
}
"""Phrases that a reader has to translate, by the name under which they are counted."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One violation of the rules.

    Attributes:
        kind: name of the rule.
        path: file, relative to the project's root.
        line: line number, from 1.
        text: offending text.
    """

    kind: str
    path: str
    line: int
    text: str


def python_files(folders: Iterable[Path]) -> Iterator[Path]:
    """Yield the Python files of some folders, sorted; a file is yielded unchanged."""
    for folder in folders:
        yield from [folder] if folder.is_file() else sorted(folder.rglob("*.py"))


def name_of(path: Path) -> str:
    """Return the path, relative to the project's root if it is inside."""
    return str(path.relative_to(ROOT)) if path.is_relative_to(ROOT) else str(path)


def docstring_findings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield summaries and Args entries that do not say what a thing is."""
    kinds = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
    for node in ast.walk(tree):
        if not isinstance(node, kinds) or (text := ast.get_docstring(node, clean=True)) is None:
            continue
        start = node.body[0].lineno
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        if BAD_SUMMARY.match(text) or (is_function and THIRD_PERSON.match(text)):
            yield Finding("summary", name_of(path), start, text.splitlines()[0])
        in_entries = False
        for offset, line in enumerate(text.splitlines()):
            if re.match(r"\w+:$", line):
                in_entries = line in ("Args:", "Attributes:")
            elif in_entries and (entry := re.match(r" {4}([\w*, `]+?): (.*)", line)) and BAD_ENTRY.match(entry[2]):
                yield Finding("entry", name_of(path), start + offset, line.strip())


def local_findings(path: Path, tree: ast.Module) -> Iterator[Finding]:
    """Yield local variables whose name does not say what they hold."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store) and node.id in BAD_LOCALS:
            yield Finding("local", name_of(path), node.lineno, node.id)
        elif isinstance(node, ast.arg) and node.arg in BAD_LOCALS:
            yield Finding("local", name_of(path), node.lineno, node.arg)


def texts_of(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """Yield the strings of a module with their line numbers, format specifications left out."""
    specs = {id(part) for node in ast.walk(tree) if isinstance(node, ast.FormattedValue) and node.format_spec
             for part in ast.walk(node.format_spec)}  # fmt: skip
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in specs:
            for offset, line in enumerate(node.value.splitlines()):
                yield node.lineno + offset, line


def prose_of(page: str) -> Iterator[tuple[int, str]]:
    """Yield the lines of a Markdown page outside code blocks, with CODE for code spans and without link targets."""
    in_code = False
    for number, line in enumerate(page.splitlines(), 1):
        if line.lstrip().startswith("```"):
            in_code = not in_code
            yield number, ""
        elif not in_code:
            yield number, re.sub(r"`[^`]*`", "CODE", re.sub(r"\]\([^)]*\)", "]", line))


def long_sentences(page: str) -> Iterator[tuple[int, str]]:
    """Yield the sentences of a Markdown page that have more than MAX_WORDS words, outside tables and code."""
    paragraph: list[str] = []
    start = 0
    for number, line in [*prose_of(page), (0, "")]:
        text = re.sub(r"^([-*>]|\d+\.) +", "", line.strip())
        begins_block = text != line.strip() or not text or text.startswith(("|", "#", "<"))
        if begins_block and paragraph:
            for sentence in re.split(r"(?<=[.!?])[\"*)]*\s+(?=[A-Z\[\"(*])", " ".join(paragraph)):
                if len(sentence.split()) > MAX_WORDS:
                    yield start, sentence
            paragraph = []
        if text and not text.startswith(("|", "#", "<")):
            start = start if paragraph else number
            paragraph.append(text)


def comments_of(text: str) -> Iterator[tuple[int, str]]:
    """Yield the comments of a C++ or Python file with their line numbers."""
    for number, line in enumerate(text.splitlines(), 1):
        if comment := re.search(r"(?://|(?:^|\s)#) (.*)", line):
            yield number, comment[1]


def phrase_findings(path: Path, lines: Iterable[tuple[int, str]]) -> Iterator[Finding]:
    """Yield phrases that a reader has to translate."""
    for number, line in lines:
        for kind, pattern in BAD_PHRASES.items():
            if pattern.search(line):
                yield Finding(kind, name_of(path), number, line.strip())


def findings(path: Path) -> list[Finding]:
    """Return every finding in the words of one file: Python, C++ or Markdown."""
    text = path.read_text(encoding="utf-8")
    if path.suffix == ".md":
        sentences = [Finding("long sentence", name_of(path), number, text) for number, text in long_sentences(text)]
        return [*phrase_findings(path, prose_of(text)), *sentences]
    if path.suffix != ".py":
        return list(phrase_findings(path, comments_of(text)))
    if path in QUOTING:
        return []
    tree = ast.parse(text)
    lines = {*texts_of(tree), *comments_of(text)}
    return [*docstring_findings(path, tree), *local_findings(path, tree), *phrase_findings(path, sorted(lines))]


def shape_findings(path: Path) -> Iterator[Finding]:
    """Yield functions that are too long or take too many parameters."""
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            continue
        if any(ast.unparse(decorator).startswith("triton.jit") for decorator in node.decorator_list):
            continue  # a kernel takes pointers, strides and sizes one by one
        length = (node.end_lineno or node.lineno) - node.lineno + 1
        arguments = node.args.posonlyargs + node.args.args + node.args.kwonlyargs
        n_parameters = len([a for a in arguments if a.arg not in ("self", "cls")])
        if length > MAX_LINES:
            yield Finding("long function", name_of(path), node.lineno, f"{node.name}: {length} lines")
        if n_parameters > MAX_PARAMETERS:
            yield Finding("many parameters", name_of(path), node.lineno, f"{node.name}: {n_parameters}")


def repeated_names(files: Iterable[Path]) -> dict[str, list[str]]:
    """Return the file and type names that several files define, with the paths of these files."""
    where: dict[str, list[str]] = defaultdict(list)
    for path in files:
        if path.stem not in ("__init__", "__main__"):
            where[f"file {path.name}"].append(name_of(path))
        for node in ast.parse(path.read_text(encoding="utf-8")).body:
            match node:
                case ast.ClassDef(name=name):
                    where[f"type {name}"].append(name_of(path))
                case ast.Assign(targets=[ast.Name(id=name)]) if re.match(r"[A-Z][a-z]\w*$", name):
                    where[f"type {name}"].append(name_of(path))
    return {name: places for name, places in sorted(where.items()) if len(places) > 1}


def pages() -> Iterator[Path]:
    """Yield every file of the project that people read: Python, C++ and Markdown, without build output."""
    for folder in ("src", "tests", "bench", "native", "docs", "examples", "recipes", "packages"):
        yield from (
            path for path in sorted((ROOT / folder).rglob("*")) if path.suffix in (".py", ".md", ".cpp", ".hpp")
        )
    yield from sorted(ROOT.glob("*.md"))


def main() -> None:
    """Print the counts, or with --list every finding."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("folders", nargs="*", type=Path, default=[SOURCE], help="default src/lightir")
    parser.add_argument("--list", action="store_true", help="print every finding, one a line")
    arguments = parser.parse_args()
    folders = [folder.resolve() for folder in arguments.folders]
    python = list(python_files(folders))
    others = [path for folder in folders if folder.is_dir() for path in sorted(folder.rglob("*"))
              if path.suffix in (".md", ".cpp", ".hpp")]  # fmt: skip
    others += [folder for folder in folders if folder.is_file() and folder.suffix != ".py"]
    python = [path for path in python if path.suffix == ".py"]
    every = [finding for path in [*python, *others] for finding in findings(path)]
    every += [finding for path in python for finding in shape_findings(path)]
    repeated = repeated_names(python)
    if arguments.list:
        for finding in every:
            print(f"{finding.path}:{finding.line}: {finding.kind}: {finding.text}")
        for name, places in repeated.items():
            print(f"name with two meanings: {name}: {', '.join(places)}")
    counts: dict[str, int] = defaultdict(int)
    counts["lines"] = sum(len(path.read_text(encoding="utf-8").splitlines()) for path in [*python, *others])
    for finding in every:
        counts[finding.kind] += 1
    counts["names with two meanings"] = len(repeated)
    for kind, count in counts.items():
        print(f"{count:>7}  {kind}")


if __name__ == "__main__":
    main()
