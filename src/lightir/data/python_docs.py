"""The documentation of the running Python: thousands of real documents that are available on every machine."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from lightir.errors import LightirError
from lightir.files import temporary_folder
from lightir.types import Document

COLLECTOR = Path(__file__).with_name("_collect_python_docs.py")


def python_documents(*, timeout_s: float = 120.0) -> list[Document]:
    """Return the docstrings of the standard library's modules, functions, classes and methods, and the help topics.

    Ids are dotted names ("threading.Timer") or "topic:NAME". Titles are the ids, with names of several words spelled
    out (`tempfile.TemporaryDirectory: temporary directory`), or a topic's headline. Metadata holds `kind` and, if
    known, `signature`. Texts are cut after whole paragraphs to at most 900 characters. The same Python build
    gives the same documents in the same order. A separate process imports the modules, so that they cannot hang this
    one or print.

    Args:
        timeout_s: time limit of the process, in seconds.

    Raises:
        LightirError: the process failed or exceeded the time limit.
    """
    command = [sys.executable, "-S", "-s", "-P", str(COLLECTOR)]  # the standard library alone
    # Some signatures show sets, whose order depends on the hash seed.
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment["PYTHONHASHSEED"] = "0"
    with temporary_folder() as folder:  # modules that write on import write there
        try:
            done = subprocess.run(
                command,
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=timeout_s,
                cwd=folder,
                env=environment,
                check=True,
            )
        except subprocess.TimeoutExpired:
            raise LightirError(f"collecting Python's documentation took longer than {timeout_s:g} s") from None
        except subprocess.CalledProcessError as error:
            reason = error.stderr.decode(errors="replace").strip().splitlines()[-1:]
            raise LightirError(f"collecting Python's documentation failed: {' '.join(reason)}") from error
    return [Document(**json.loads(line)) for line in done.stdout.splitlines()]
