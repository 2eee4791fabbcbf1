"""Links that replace a file or folder after the listing of a folder are not followed."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.data.file_documents import listed_files, readable_documents
from lightir.data.folders import open_without_links
from lightir.data.readers import is_empty_folder
from lightir.errors import StorageError
from lightir.lines import ReadOptions, SkippedFiles

STRICT = ReadOptions(strict=True)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A folder outside the one that is read, whose files have the same names."""
    folder = tmp_path / "secret"
    folder.mkdir()
    (folder / "dog.txt").write_text("a secret")
    return folder


@pytest.fixture
def notes(tmp_path: Path) -> Path:
    folder = tmp_path / "notes"
    (folder / "deep").mkdir(parents=True)
    (folder / "deep" / "dog.txt").write_text("The dog runs.")
    return folder


def file_becomes_a_link(notes: Path, secret: Path) -> None:
    (notes / "deep" / "dog.txt").unlink()
    (notes / "deep" / "dog.txt").symlink_to(secret / "dog.txt")


def folder_becomes_a_link(notes: Path, secret: Path) -> None:
    shutil.rmtree(notes / "deep")
    (notes / "deep").symlink_to(secret)


def file_becomes_a_pipe(notes: Path, secret: Path) -> None:
    (notes / "deep" / "dog.txt").unlink()
    os.mkfifo(notes / "deep" / "dog.txt")


def file_becomes_a_folder(notes: Path, secret: Path) -> None:
    (notes / "deep" / "dog.txt").unlink()
    (notes / "deep" / "dog.txt").mkdir()


@pytest.mark.parametrize(
    "change", [file_becomes_a_link, folder_becomes_a_link, file_becomes_a_pipe, file_becomes_a_folder]
)
def test_what_is_no_file_any_more_is_not_read(
    notes: Path, secret: Path, change: Callable[[Path, Path], None], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(notes.parent)
    for folder in (notes, Path("notes")):
        files = [(path, doc_id) for doc_id, path in listed_files([folder], STRICT).items()]
        assert [document.text for _, document in readable_documents(files, STRICT, SkippedFiles())] == ["The dog runs."]
    n_open = len(os.listdir("/proc/self/fd"))
    change(notes, secret)
    with pytest.raises(StorageError, match=r"dog\.txt"):
        list(readable_documents(files, STRICT, SkippedFiles()))
    skipped = SkippedFiles()
    assert list(readable_documents(files, ReadOptions(), skipped)) == []
    assert [*skipped.unreadable] == ["notes/deep/dog.txt"]
    assert len(os.listdir("/proc/self/fd")) == n_open


def test_links_are_followed_if_that_is_asked_for_or_they_are_named(notes: Path, secret: Path, tmp_path: Path) -> None:
    file_becomes_a_link(notes, secret)
    following = ReadOptions(strict=True, follow_links=True)
    (tmp_path / "link").symlink_to(notes)
    for source, options in ((notes, following), (notes / "deep" / "dog.txt", STRICT)):
        files = [(path, doc_id) for doc_id, path in listed_files([source], options).items()]
        assert [document.text for _, document in readable_documents(files, options, SkippedFiles())] == ["a secret"]
    (notes / "cat.txt").write_text("The cat sleeps.")
    files = [(path, doc_id) for doc_id, path in listed_files([tmp_path / "link"], STRICT).items()]
    assert [document.text for _, document in readable_documents(files, STRICT, SkippedFiles())] == ["The cat sleeps."]


@given(depth=st.integers(1, 6), data=st.data())
def test_exactly_the_last_names_may_be_no_links(
    tmp_path_factory: pytest.TempPathFactory, depth: int, data: st.DataObject
) -> None:
    """A path of `depth` names, of which any are links."""
    top = tmp_path_factory.mktemp("top")
    links = data.draw(st.lists(st.booleans(), min_size=depth, max_size=depth))
    path = top
    for i, is_link in enumerate(links):
        target = path.resolve() / (f"real{i}" if is_link else f"n{i}")
        if i + 1 < depth:
            target.mkdir()
        else:
            target.write_text("x")
        if is_link:
            (path / f"n{i}").symlink_to(target)
        path = path / f"n{i}"
    for n_names in range(1, depth + 1):
        if any(links[-n_names:]):
            with pytest.raises(OSError, match="symbolic link"):
                open_without_links(str(path), os.O_RDONLY, n_names=n_names)
        else:
            with open(open_without_links(str(path), os.O_RDONLY, n_names=n_names)) as file:
                assert file.read() == "x"


def test_a_folder_is_empty_without_files_to_read(tmp_path: Path, notes: Path) -> None:
    assert is_empty_folder(tmp_path / "notes" / "deep" / "..") is False
    for name, content, empty in (
        (None, "", True),
        ("a.bin", "x", True),
        (".hidden.txt", "x", True),
        ("a.md", "x", False),
    ):
        folder = tmp_path / f"{name}"
        folder.mkdir()
        if name is not None:
            (folder / name).write_text(content)
        assert is_empty_folder(folder) is empty
    assert not is_empty_folder(tmp_path / "none")
