"""Files are whole or not there."""

from __future__ import annotations

import errno
import fcntl
import os
import threading
from pathlib import Path
from types import SimpleNamespace

import pytest

from lightir import files
from lightir.errors import AlreadyExists, FormatError, NotFound, WriteFailed, storage_errors
from lightir.files import (
    atomic_file,
    atomic_folder,
    check_new_folder,
    check_writable,
    fsync_path,
    read_json,
    write_bytes,
    write_json,
)


def fill_and_fail(path: Path) -> None:
    with atomic_folder(path, overwrite=True) as folder:
        (folder / "x").write_text("half")
        raise RuntimeError


def test_a_block_that_fails_leaves_nothing_behind(tmp_path: Path) -> None:
    with pytest.raises(RuntimeError):
        fill_and_fail(tmp_path / "f")
    assert list(tmp_path.iterdir()) == []


def test_a_failed_replacement_keeps_the_old_folder(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("old")
    with pytest.raises(RuntimeError):
        fill_and_fail(tmp_path / "f")
    assert (tmp_path / "f" / "x").read_text() == "old"
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


def test_an_existing_folder_is_replaced_only_when_asked(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("old")
    with pytest.raises(AlreadyExists), atomic_folder(tmp_path / "f"):
        pass
    with atomic_folder(tmp_path / "f", overwrite=True) as folder:
        (folder / "y").write_text("new")
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["y"]


def test_an_empty_folder_is_no_obstacle(tmp_path: Path) -> None:
    (tmp_path / "f").mkdir()
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "x").write_text("x")
    assert (tmp_path / "f" / "x").exists()


def test_what_is_something_else_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").write_text("years of work")
    with (
        pytest.raises(AlreadyExists, match=r"thesis has no store\.sqlite"),
        atomic_folder(tmp_path / "thesis", overwrite=True, replaces="store.sqlite"),
    ):
        pass
    (tmp_path / "thesis" / "store.sqlite").touch()
    with atomic_folder(tmp_path / "thesis", overwrite=True, replaces="store.sqlite"):
        pass
    assert list((tmp_path / "thesis").iterdir()) == []


def test_what_a_killed_writer_left_is_removed_and_what_a_living_one_writes_stays(tmp_path: Path) -> None:
    for killed in (".f[1].new-0123", ".f1.new-0123"):
        (tmp_path / killed).mkdir()
        (tmp_path / killed / "x").write_text("half")
    with atomic_folder(tmp_path / "f[1]", overwrite=True) as first:
        with atomic_folder(tmp_path / "f[1]") as second:
            assert first.is_dir()
            assert {path.name for path in tmp_path.iterdir()} == {first.name, second.name, ".f1.new-0123"}
        (first / "x").touch()
    assert {path.name for path in tmp_path.iterdir()} == {"f[1]", ".f1.new-0123"}
    assert (tmp_path / "f[1]" / "x").exists()


def test_a_reader_finds_the_old_folder_or_the_new_one(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "f") as folder:
        (folder / "x").touch()
    looked, missed = 0, 0

    def replace() -> None:
        for _ in range(100):
            with atomic_folder(tmp_path / "f", overwrite=True) as folder:
                (folder / "x").touch()

    writer = threading.Thread(target=replace)
    writer.start()
    while writer.is_alive():
        looked += 1
        missed += not (tmp_path / "f" / "x").exists()
    writer.join()
    assert looked
    assert missed == 0
    assert [path.name for path in tmp_path.iterdir()] == ["f"]


@pytest.mark.parametrize("system", ["macOS", "neither"])
def test_folders_are_replaced_where_renameat2_is_missing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, system: str
) -> None:
    """macOS exchanges by renamex_np; without either call the old folder is moved aside first."""
    calls = []

    def renamex_np(one: bytes, other: bytes, flags: int) -> int:
        calls.append(flags)
        os.rename(one, one + b".aside")
        os.rename(other, one)
        os.rename(one + b".aside", other)
        return 0

    libc = SimpleNamespace(**({"renamex_np": renamex_np} if system == "macOS" else {}))
    monkeypatch.setattr(files.ctypes, "CDLL", lambda name: libc)
    for content in ("old", "new"):
        with files.atomic_folder(tmp_path / "folder", overwrite=True) as aside:
            (aside / "file").write_text(content)
    assert (tmp_path / "folder" / "file").read_text() == "new"
    assert [path.name for path in tmp_path.iterdir()] == ["folder"]
    assert calls == ([2] if system == "macOS" else [])


@pytest.mark.parametrize("can_exchange", [True, False])
def test_a_link_to_a_folder_is_replaced_and_what_it_leads_to_stays(tmp_path: Path, monkeypatch, can_exchange) -> None:
    if not can_exchange:
        monkeypatch.setattr(files, "_exchange", lambda one, other: False)
    (tmp_path / "there").mkdir()
    (tmp_path / "there" / "x").touch()
    (tmp_path / "f").symlink_to(tmp_path / "there")
    with atomic_folder(tmp_path / "f", overwrite=True) as folder:
        (folder / "y").touch()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["f", "there"]
    assert [path.name for path in (tmp_path / "f").iterdir()] == ["y"]
    assert (tmp_path / "there" / "x").exists()


def test_a_write_that_fails_keeps_the_old_file(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")
    with pytest.raises(TypeError):
        write_bytes(tmp_path / "a", "no bytes")  # type: ignore[arg-type]
    assert (tmp_path / "a").read_bytes() == b"old"
    assert [path.name for path in tmp_path.iterdir()] == ["a"]


@pytest.mark.parametrize("name", ["taken", "nowhere/a"])
def test_a_write_that_the_system_refuses_names_the_file_that_was_asked_for(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one depends on the reason
        write_bytes(tmp_path / name, b"x")
    assert caught.value.filename == str(tmp_path / name)
    assert [path.name for path in tmp_path.iterdir()] == ["taken"]


@pytest.mark.parametrize("name", ["taken", "nowhere/a"])
def test_what_cannot_be_written_can_be_asked_before(tmp_path: Path, name: str) -> None:
    (tmp_path / "taken" / "inside").mkdir(parents=True)
    with pytest.raises(OSError) as caught:  # noqa: PT011 - which one depends on the reason
        check_writable(tmp_path / name)
    assert caught.value.filename == str(tmp_path / name)
    (tmp_path / "old").write_text("old")
    for writable in ("old", "new"):
        check_writable(tmp_path / writable)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["old", "taken"]
    assert (tmp_path / "old").read_text() == "old"


def test_a_link_stays_and_what_it_points_to_is_replaced(tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "link").symlink_to(tmp_path / "elsewhere" / "file")
    for content in (b"first", b"second"):
        write_bytes(tmp_path / "link", content)
        assert (tmp_path / "elsewhere" / "file").read_bytes() == content
        assert [path.name for path in (tmp_path / "elsewhere").iterdir()] == ["file"]
    assert (tmp_path / "link").is_symlink()


def test_a_pipe_is_written_to_and_stays_a_pipe(tmp_path: Path) -> None:
    """Devices such as /dev/null are written directly; a rename would replace them by a file."""
    os.mkfifo(tmp_path / "pipe")
    check_writable(tmp_path / "pipe")
    read: list[bytes] = []
    reader = threading.Thread(target=lambda: read.append((tmp_path / "pipe").read_bytes()))
    reader.start()
    write_bytes(tmp_path / "pipe", b"through")
    reader.join(timeout=10)
    assert read == [b"through"]
    assert (tmp_path / "pipe").is_fifo()


def test_a_new_file_that_fails_leaves_the_old_one(tmp_path: Path) -> None:
    write_bytes(tmp_path / "a", b"old")

    def fill_and_fail_file() -> None:
        with atomic_file(tmp_path / "a") as file:
            file.write(b"half")
            assert (tmp_path / "a").read_bytes() == b"old"
            raise RuntimeError

    with pytest.raises(RuntimeError):
        fill_and_fail_file()
    assert [(path.name, path.read_bytes()) for path in tmp_path.iterdir()] == [("a", b"old")]


def test_json_errors_name_the_file(tmp_path: Path) -> None:
    write_json(tmp_path / "a.json", {"ü": 1})
    assert read_json(tmp_path / "a.json") == {"ü": 1}
    for content in ("{", "[" * 100_000):
        (tmp_path / "b.json").write_text(content)
        with pytest.raises(FormatError, match=r"b\.json"):
            read_json(tmp_path / "b.json")
    with pytest.raises(NotFound, match=r"c\.json"):
        read_json(tmp_path / "c.json")


@pytest.mark.parametrize(("umask", "file_mode", "folder_mode"), [(0o022, 0o644, 0o755), (0o027, 0o640, 0o750)])
def test_a_new_folder_is_as_readable_as_the_umask_says(tmp_path, umask, file_mode, folder_mode):
    before = os.umask(umask)
    try:
        with atomic_folder(tmp_path / "model") as folder:
            (folder / "inner").mkdir()
            for name in ("head.safetensors", "inner/weights"):
                (folder / name).touch(mode=0o600)
            write_bytes(folder / "record", b"whole")
    finally:
        os.umask(before)
    paths = sorted((tmp_path / "model").rglob("*"))
    assert {path.stat().st_mode & 0o777 for path in paths if path.is_file()} == {file_mode}
    assert {path.stat().st_mode & 0o777 for path in (tmp_path / "model", tmp_path / "model" / "inner")} == {folder_mode}


@pytest.mark.parametrize("overwrite", [False, True])
@pytest.mark.parametrize("path", ["new", "a/b/new", "empty", "full", "file", "file/new"])
def test_a_check_of_a_new_folder_refuses_what_writing_it_refuses(path: str, overwrite: bool, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "a").write_text("x")
    (tmp_path / "file").write_text("x")
    before = sorted(tmp_path.rglob("*"))
    errors: list[type[Exception] | None] = []
    for attempt in (check_new_folder, try_to_write):
        try:
            attempt(tmp_path / path, overwrite=overwrite)
            errors.append(None)
        except (AlreadyExists, WriteFailed) as error:
            errors.append(type(error))
        if attempt is check_new_folder:
            assert sorted(tmp_path.rglob("*")) == before
    assert errors[0] == errors[1]


def try_to_write(path: Path, *, overwrite: bool) -> None:
    """Replace a folder by an empty one."""
    with atomic_folder(path, overwrite=overwrite):
        pass


def test_a_read_only_folder_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: mode != os.W_OK)  # root may write whatever the mode says
    message = rf"cannot write {tmp_path}/a/b: the folder {tmp_path} is read-only \(Permission denied\)"
    with pytest.raises(WriteFailed, match=message):
        check_new_folder(tmp_path / "a" / "b")


def test_a_refusal_in_a_writable_folder_keeps_the_words_of_the_system(tmp_path: Path) -> None:
    refusal = PermissionError(errno.EACCES, "Permission denied", str(tmp_path / "a"))
    message = r"cannot write a: Permission denied \(.*/a\); check the permissions"
    with pytest.raises(WriteFailed, match=message), storage_errors("cannot write a", kind=WriteFailed):
        raise refusal


class Flushes:
    """The calls that flush, in place of the system's; F_FULLFSYNC fails with `refusal`, if given."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, refusal: int | None = None) -> None:
        self.made: list[str] = []

        def full(_descriptor: int, command: int) -> int:
            self.made.append("full")
            assert command == 51
            if refusal is not None:
                raise OSError(refusal, os.strerror(refusal))
            return 0

        monkeypatch.setattr(fcntl, "F_FULLFSYNC", 51, raising=False)  # as on macOS
        monkeypatch.setattr(fcntl, "fcntl", full)
        monkeypatch.setattr(os, "fsync", lambda _descriptor: self.made.append("fsync"))


def test_files_leave_the_cache_of_the_drive_on_macos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = Flushes(monkeypatch)
    write_json(tmp_path / "a.json", {})
    assert set(flushes.made) == {"full"}


def test_file_systems_without_a_full_flush_get_fsync(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = Flushes(monkeypatch, errno.ENOTSUP)
    fsync_path(tmp_path)
    assert flushes.made == ["full", "fsync"]


def test_a_failed_full_flush_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushes = Flushes(monkeypatch, errno.EIO)
    with pytest.raises(OSError, match=os.strerror(errno.EIO)):
        fsync_path(tmp_path)
    assert flushes.made == ["full"]
