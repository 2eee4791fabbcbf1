"""Ctrl-C and SIGTERM at many moments of many commands: the exit code, one line, nothing half-written, no child left."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from lightir.addresses import shipped_models
from lightir.errors import WriteFailed
from lightir.files import atomic_file, atomic_folder, remove_temporary, temporary_folder
from lightir.index import Index, IndexWriter
from lightir.types import Document

HOOKS = Path(__file__).parent / "signal_at"
CODES = {signal.SIGTERM: 143, signal.SIGINT: 130}
LINES = {signal.SIGTERM: "lightir: terminated", signal.SIGINT: "lightir: interrupted"}


def environment(**more: str) -> dict[str, str]:
    return {**os.environ, "PYTHONPATH": str(HOOKS), "TMPDIR": str(Path.cwd()), **more}


def heed() -> None:
    """Restore the default handling of Ctrl-C, which a shell may have turned off, in a child process."""
    signal.signal(signal.SIGINT, signal.default_int_handler)


def call(arguments: list[str], **more: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightir", *arguments]
    return subprocess.run(
        command, env=environment(**more), preexec_fn=heed, capture_output=True, text=True, timeout=120
    )


COMMANDS = {
    "search": ["search", "index", "river"],
    "index": ["index", "notes", "--out", "new"],
    "add": ["add", "index", "more.jsonl"],
    "verify": ["verify", "index"],
    "evaluate": ["evaluate", "index", "--dataset", "data"],
    "encode": ["encode", "minilm", "more.jsonl", "--out", "new"],
}
POINTS = [
    ("search", "import:numpy"),
    ("search", "open:manifest.json"),
    ("search", "sqlite3.connect:"),
    ("index", "open:b.txt"),
    ("index", "sqlite3.connect:"),
    ("index", "os.mkdir:new.new-"),
    ("index", "os.mkdir:segment-000001"),
    ("index", "os.rename:segment-000001"),
    ("index", "os.rename:.new.new-"),
    ("add", "os.mkdir:segment-000002"),
    ("add", "os.rename:segment-000002"),
    ("add", "open:more.jsonl"),
    ("verify", "open:documents.bin"),
    ("verify", "import:lightir.index"),
    ("evaluate", "import:lightir.search"),
    ("evaluate", "open:queries.jsonl"),
    ("encode", "import:torch"),
    *((name, str(position)) for name in ("search", "index", "verify") for position in (0, 90, 310)),
]


@pytest.fixture
def home(bm25_index: Path, dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with an index, its data set, and documents that are not indexed yet."""
    shutil.copytree(bm25_index, tmp_path / "index")
    shutil.copytree(dataset, tmp_path / "data")
    (tmp_path / "notes").mkdir()
    for name in "abc":
        (tmp_path / "notes" / f"{name}.txt").write_text(f"river {name}")
    (tmp_path / "more.jsonl").write_text('{"_id": "new", "text": "a new river"}\n')
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(("name", "point"), POINTS, ids=[f"{name}-{point}" for name, point in POINTS])
def test_a_signal_ends_a_command_cleanly(name: str, point: str, home: Path) -> None:
    if point == "import:torch":
        pytest.importorskip("torch", reason="without torch it is not imported")
        if "minilm" not in shipped_models():
            pytest.skip("the package lightir-minilm is not installed")
    number = (signal.SIGTERM, signal.SIGINT)[POINTS.index((name, point)) % 2]
    before = {path.name for path in home.iterdir()}
    done = call(COMMANDS[name], SIGNAL_AT=f"{number.value}:{point}")
    assert done.returncode == CODES[number], done.stderr
    assert re.fullmatch(rf"{LINES[number]}(; [^\n]*)?\n", done.stderr), done.stderr
    left = {path.name for path in home.iterdir()} - before
    assert left <= {"new"}, left
    if "new" in left:  # the signal came when the index was complete
        assert (name, point) == ("index", "os.rename:.new.new-")
        with Index.open("new") as index:
            index.verify()
    assert not list((home / "index").rglob("*.new-*"))
    with IndexWriter.open("index") as writer, Index.open("index") as index:
        index.verify()
        writer.upsert([Document("new", "a new river")])


@pytest.mark.parametrize("number", CODES, ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("wait_ms", [0, 5, 10, 40, 160])
def test_a_signal_in_the_first_moments_ends_the_process(number: signal.Signals, wait_ms: int, home: Path) -> None:
    """Until lightir handles the signals, Python does: SIGTERM ends it, Ctrl-C may show a traceback."""
    command = [sys.executable, "-m", "lightir", *COMMANDS["search"]]
    process = subprocess.Popen(
        command, env=environment(), preexec_fn=heed, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    time.sleep(wait_ms / 1000)
    process.send_signal(number)
    _, messages = process.communicate(timeout=120)
    if process.returncode in (CODES[number], 0):
        assert process.returncode == 0 or messages == f"{LINES[number]}\n"
    else:
        assert process.returncode in (-number, 1)
        assert not messages or number == signal.SIGINT


@pytest.mark.parametrize("number", CODES, ids=["SIGTERM", "SIGINT"])
def test_a_call_that_takes_hours_is_ended_with_its_child_and_its_unfinished_folder(
    number: signal.Signals, home: Path
) -> None:
    point = "os.mkdir:segment-000001"  # inside the unfinished folder of an index
    done = call(COMMANDS["index"], SIGNAL_AT=f"{number.value}:{point}", SIGNAL_NATIVE=str(home / "child"))
    assert done.returncode == CODES[number], done.stderr
    assert done.stderr == f"{LINES[number]}\n"
    assert not list(home.glob("*new*"))
    assert not list(home.glob(".*"))
    status = Path(f"/proc/{(home / 'child').read_text()}/status")
    until = time.monotonic() + 30
    while status.exists() and "State:\tZ" not in status.read_text():
        assert time.monotonic() < until, "the child process lives on"
        time.sleep(0.05)


LOST = {
    "a finalizer": """
class Lost:
    def __del__(self):
        signal()
def run(args):
    Lost()
    time.sleep(100)
""",
    "a bare except": """
def run(args):
    try:
        signal()
    except BaseException:
        return 0
""",
    "another error": """
def run(args):
    try:
        signal()
    except BaseException:
        raise OSError("something else")
""",
    "an import": """
def run(args):
    code = "try:\\n    import os; os.kill(os.getpid(), %d)\\nexcept BaseException: pass"
    open("package_that_swallows.py", "w").write(code)
    import package_that_swallows
    time.sleep(100)
""",
    "a second signal": """
def run(args):
    try:
        signal()
    finally:
        time.sleep(1.1)
        signal()
        time.sleep(100)
""",
    "a repeated signal": """
def run(args):
    try:
        signal()
    finally:
        signal()
        open("unwound", "w").close()
""",
    "the end of Python": """
def run(args):
    import atexit
    atexit.register(signal)
""",
}


@pytest.mark.parametrize("number", CODES, ids=["SIGTERM", "SIGINT"])
@pytest.mark.parametrize("lost", LOST)
def test_a_signal_is_not_lost(number: signal.Signals, lost: str, tmp_path: Path) -> None:
    body = LOST[lost].replace("%d", str(number.value))
    program = (
        "import os, sys, time\nsys.path.insert(0, '.')\n"
        f"def signal(): os.kill(os.getpid(), {number.value})\n{body}\n"
        "from lightir.cli.app import load_command\nload_command('doctor').run = run\n"
        "sys.argv[1:] = ['doctor']\nfrom lightir.cli import main\nraise SystemExit(main())\n"
    )
    command = [sys.executable, "-c", program]
    done = subprocess.run(command, preexec_fn=heed, cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert (done.returncode, done.stderr) == (CODES[number], f"{LINES[number]}\n")
    assert (tmp_path / "unwound").exists() == (lost == "a repeated signal")


def test_ignored_signals_stay_ignored(home: Path) -> None:
    def ignore() -> None:
        signal.signal(signal.SIGINT, signal.SIG_IGN)

    command = [sys.executable, "-m", "lightir", *COMMANDS["search"]]
    ignoring = environment(SIGNAL_AT=f"{signal.SIGINT.value}:import:numpy")
    done = subprocess.run(command, env=ignoring, preexec_fn=ignore, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    assert "river" in done.stdout


def test_what_is_unfinished_is_removed_and_what_is_complete_is_kept(tmp_path: Path) -> None:
    with atomic_folder(tmp_path / "complete") as folder:
        (folder / "a").touch()

    def folder_that_is_removed() -> None:
        with atomic_folder(tmp_path / "folder") as folder:
            (folder / "a").touch()
            remove_temporary()
            assert not folder.exists()

    def file_that_is_removed() -> None:
        with atomic_file(tmp_path / "file") as file:
            file.write(b"x")
            remove_temporary()

    for write in (folder_that_is_removed, file_that_is_removed):
        with pytest.raises((WriteFailed, FileNotFoundError)):
            write()
    with temporary_folder(tmp_path) as folder:
        (folder / "a").touch()
        remove_temporary()
        assert not folder.exists()
    assert sorted(path.name for path in tmp_path.rglob("*")) == ["a", "complete"]
