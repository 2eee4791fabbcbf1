"""The folders that earlier releases wrote (tests/formats/VERSION), unpacked for tests."""

from __future__ import annotations

import json
import tarfile
from pathlib import Path
from typing import Any

FORMATS = Path(__file__).resolve().parent / "formats"
FUTURE = 999
"""A format version that no release has."""

RELEASES = sorted(path.name for path in FORMATS.iterdir() if (path / "expected.json").is_file())
FOLDERS = sorted({path.name.removesuffix(".tar.gz") for path in FORMATS.glob("*/*.tar.gz")})


def archive(release: str, name: str) -> Path:
    """Return the path of a packed folder."""
    return FORMATS / release / f"{name}.tar.gz"


def unpack(release: str, name: str, out: Path) -> Path:
    """Unpack a folder into `out`; return its path."""
    with tarfile.open(archive(release, name)) as tar:
        tar.extractall(out, filter="data")
    return out / name


def expected(release: str) -> dict[str, Any]:
    """Return what a release read and found in its folders, with the runs that a later release changed on purpose.

    `changed.json` lists these runs, each with its reason, in place of those of the same index and options.
    """
    content: dict[str, Any] = json.loads((FORMATS / release / "expected.json").read_text(encoding="utf-8"))
    path = FORMATS / release / "changed.json"
    changed = json.loads(path.read_text(encoding="utf-8")) if path.is_file() else []
    runs = {(search["index"], *search["options"]): search["run"] for search in changed}
    for search in content["searches"]:
        search["run"] = runs.get((search["index"], *search["options"]), search["run"])
    return content


def change_json(path: Path) -> None:
    """Raise the format version of a JSON file."""
    path.write_text(json.dumps({**json.loads(path.read_text()), "format_version": FUTURE}))


FIXTURES = [(release, name) for release in RELEASES for name in FOLDERS if archive(release, name).is_file()]
