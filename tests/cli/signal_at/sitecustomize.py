"""Send a signal to this process at a chosen event of Python's audit hooks: an import, an opened file, a new folder.

SIGNAL_AT is "NUMBER:EVENT": the signal, and the event's position after the first event of lightir, or "NAME:ARGUMENT"
for the first event with a name and an argument that contains a text. Without SIGNAL_AT the events are written to
SIGNAL_LOG. With SIGNAL_NATIVE another process sends the signal during a call of compiled code that takes hours, and a
child of this process, whose id is written to the file that SIGNAL_NATIVE names, waits for ever.
"""

import os
import sys

EVENTS = ("import", "open", "os.mkdir", "os.rename", "sqlite3.connect", "subprocess.Popen", "mmap.__new__")


def install(wanted: str, log: str) -> None:
    """Count the events from the first one of lightir."""
    number, _, where = wanted.partition(":")
    state = {"events": -1, "process": os.getpid()}
    file = os.open(log, os.O_WRONLY | os.O_CREAT | os.O_APPEND)

    def hook(event: str, args: tuple[object, ...]) -> None:
        if event not in EVENTS or os.getpid() != state["process"]:
            return
        argument = str(args[0]) if args else ""
        if state["events"] < 0 and not (event == "import" and argument == "lightir.cli.app"):
            return
        state["events"] += 1
        if not wanted:
            os.write(file, f"{event}:{argument}\n".encode())
        elif where == str(state["events"]) or (":" in where and _matches(where, event, argument)):
            state["process"] = -1
            if "SIGNAL_NATIVE" in os.environ:
                _compute_for_hours(number)
            os.kill(os.getpid(), int(number))

    sys.addaudithook(hook)


def _compute_for_hours(number: str) -> None:
    import hashlib

    import lightir.cli.interruption

    lightir.cli.interruption.GRACE_S = 0.2
    child = os.posix_spawn("/bin/sleep", ["sleep", "1000"], os.environ)
    with open(os.environ["SIGNAL_NATIVE"], "w") as file:
        file.write(str(child))
    os.posix_spawn("/bin/sh", ["sh", "-c", f"sleep 0.3; kill -{number} {os.getpid()}"], os.environ)
    hashlib.pbkdf2_hmac("sha256", b"", b"", 2**31 - 1)


def _matches(where: str, event: str, argument: str) -> bool:
    name, _, text = where.partition(":")
    return name == event and text in argument


if "SIGNAL_AT" in os.environ or "SIGNAL_LOG" in os.environ:
    install(os.environ.get("SIGNAL_AT", ""), os.environ.get("SIGNAL_LOG", os.devnull))
