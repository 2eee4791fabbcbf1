"""Build the documentation site in build/site/html: `make site`.

The site has the pages of the repository at their own places, so links between them work in both. Files that pages link
to, such as sources, examples and results, are published beside them. Zensical (mkdocs.yml) makes HTML of the pages, and
fails at a link without a target.
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

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


def main() -> int:
    """Copy the files, and build the site; return Zensical's exit code."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    copy_files(SITE / "source")
    zensical = Path(sys.executable).with_name("zensical")
    return subprocess.call([zensical, "build", "--clean", "--strict", "-f", ROOT / "mkdocs.yml"])


if __name__ == "__main__":
    sys.exit(main())
