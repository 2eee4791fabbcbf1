"""Build the documentation site in build/site/html: `make site`.

The site has the pages of the repository at their own places, so links between them work in both. Files that pages link
to, such as sources, examples and results, are published beside them. Mermaid charts become SVG (docs/drawing.py).
Zensical (mkdocs.yml) makes HTML of the pages, and fails at a link without a target. lightir indexes the pages in
passages and publishes the index in the site, so it is searched without a server: by meaning too if minilm and a program
that runs it are installed, else by words.
"""

from __future__ import annotations

import argparse
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import drawing

ROOT = Path(__file__).resolve().parents[1]
SITE = ROOT / "build" / "site"
PUBLISHED = (
    *(
        "*.md",
        "LICENSE",
        "pyproject.toml",
        "docs/**/*",
        "examples/**/*",
        "recipes/**/*",
        "bench/*.py",
        "requirements/*",
    ),
    *("packages/*/README.md", "src/lightir/**/*", "native/*", "tests/**/README.md", "tests/**/test_*.py"),
)
LEFT_OUT = {"__pycache__"}
PAGES = re.compile(r"^ +- .*: (\S+\.md)$", re.MULTILINE)
"""Pages in mkdocs.yml."""


def published() -> Iterator[Path]:
    """Yield the files of the repository that the site has, relative to its root."""
    files = {path for pattern in PUBLISHED for path in ROOT.glob(pattern) if path.is_file()}
    yield from sorted(path.relative_to(ROOT) for path in files if LEFT_OUT.isdisjoint(path.parts))


def copy_files(source: Path) -> None:
    """Copy the published files into a new folder."""
    shutil.rmtree(source, ignore_errors=True)
    for path in published():
        (source / path).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / path, source / path)


def draw_charts(source: Path) -> None:
    """Replace the Mermaid charts of copied pages by SVG, which needs no script and no network."""
    for page in source.rglob("*.md"):
        text = page.read_text(encoding="utf-8")
        drawn = drawing.CHART.sub(lambda chart: drawing.draw(chart[1]) + "\n", text)
        if drawn != text:
            page.write_text(drawn, encoding="utf-8")


def publish_search(lightir: str) -> None:
    """Index the pages, encode them if that is possible here, and publish the index in the site.

    Args:
        lightir: the command.
    """
    pages, index = SITE / "pages", SITE / "index"
    shutil.rmtree(pages, ignore_errors=True)
    for name in PAGES.findall((ROOT / "mkdocs.yml").read_text(encoding="utf-8")):
        (pages / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copyfile(ROOT / name, pages / name)

    def run(*arguments: str | Path, check: bool = True) -> int:
        return subprocess.run([lightir, *arguments], check=check, cwd=SITE).returncode

    by_meaning = ("index", "pages", "--out", index, "--overwrite", "--model", "minilm")
    is_encoded = run(*by_meaning, check=False) == 0 and run("worker", index, "--once", check=False) == 0
    if not is_encoded:
        print("the pages are searched by words alone: pip install 'lightir[encode]' lightir-minilm")
        run("index", "pages", "--out", index, "--overwrite")
    run("publish", index, "--out", SITE / "html" / "search", "--overwrite")


def main() -> None:
    """Copy the files, build the site, and publish its search."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lightir", default="lightir", metavar="COMMAND", help="the command that makes the search")
    args = parser.parse_args()
    copy_files(SITE / "source")
    draw_charts(SITE / "source")
    zensical = Path(sys.executable).with_name("zensical")
    subprocess.run([zensical, "build", "--clean", "--strict", "-f", ROOT / "mkdocs.yml"], check=True)
    publish_search(args.lightir)


if __name__ == "__main__":
    main()
