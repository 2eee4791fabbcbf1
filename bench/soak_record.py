"""The record of one process of the soak: checks, latencies, errors and violations, in a file of its own."""

from __future__ import annotations

import json
import threading
import time
import traceback
from collections import Counter, defaultdict
from collections.abc import Callable
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Generic, TypeVar

from lightir.errors import IndexLocked, LightirError
from soak_faults import NO_FAULT, Fault, Faults

Value = TypeVar("Value")
FLUSH_S = 0.5

VIEWS = "every view is one committed state: no acknowledged change is missing, none shows partly"
RANKINGS = "every ranking is the k best of one committed state, by definition"
WITHDRAWN = "a change that a reader has seen is never withdrawn"
OUTCOMES = "a change that was acknowledged is there, one that was refused is not, an interrupted one is whole or absent"
VECTORS = "a document keeps its vectors until its text changes"
ERRORS = "every error is one of lightir's, and has a cause"
SNAPSHOTS = "a snapshot equals its view; a failed one leaves a whole index"
CHECKSUMS = "verify finds no damage"
HOLDINGS = "a closed index leaves no file open and none mapped"
MEMORY = "memory, open files and mapped files of a process do not grow"
ALIVE = "no process hangs or crashes"
END = "in the end nothing is lost and nothing is left behind"
PROMISES = (
    VIEWS, RANKINGS, WITHDRAWN, OUTCOMES, VECTORS, ERRORS, SNAPSHOTS, CHECKSUMS, HOLDINGS, MEMORY, ALIVE, END,
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Outcome(Generic[Value]):
    """A returned value, or an error of lightir."""

    value: Value | None
    error: LightirError | None


class Recorder:
    """Counts what a process does. Threads may share it."""

    def __init__(self, path: Path, role: str, faults: Faults) -> None:
        """Create the file.

        Args:
            path: file to append to.
            role: name of the process in descriptions of violations.
            faults: source of the faults of operations.
        """
        self.role = role
        self.faults = faults
        self.n_faults = 0
        """Number of faults so far; it grows before and after each one."""
        self._file = path.open("ab", buffering=0)
        self._lock = threading.RLock()
        self._clear()
        self._due = 0.0

    def _clear(self) -> None:
        self._latencies: dict[str, list[float]] = defaultdict(list)
        self._counts: dict[str, Counter[str]] = {name: Counter() for name in ("checks", "errors", "counts")}

    def check(self, promise: str, n: int = 1) -> None:
        """Count checks of a promise."""
        with self._lock:
            self._counts["checks"][promise] += n

    def count(self, name: str, n: int = 1) -> None:
        """Count something that is neither a check nor an error."""
        with self._lock:
            self._counts["counts"][name] += n

    def violation(self, promise: str, what: str, **details: Any) -> None:
        """Write a violation at once."""
        record = {"promise": promise, "what": what, "role": self.role, "details": details}
        with self._lock:
            self._write({"violation": record})

    def attempt(
        self,
        operation: str,
        act: Callable[[], Value],
        fault: Fault = NO_FAULT,
        *,
        excused: Callable[[], bool] | None = None,
    ) -> Outcome[Value]:
        """Run and time an operation while something may fail; an error that is not lightir's is a violation.

        Args:
            operation: name of the operation.
            act: the operation.
            fault: failure of calls during the operation.
            excused: whether a fault of another thread may have caused an error.
        """
        if not fault.is_none:
            self.count(f"operations with the fault {fault.kind} {fault.error}")
            self.flush(now=fault.kind == "kill")
        self.n_faults += not fault.is_none
        start = time.perf_counter()
        try:
            with self.faults.during(operation, fault):
                value = act()
        except LightirError as error:
            self._note_error(operation, error, fault, excused)
            return Outcome(None, error)
        except Exception as error:  # noqa: BLE001 - the report counts the other errors
            self.check(ERRORS)
            with self._lock:
                self._counts["errors"][type(error).__name__] += 1
            self.violation(ERRORS, f"{operation} raised {_name(error)}", fault=asdict(fault), trace=trace_of(error))
            return Outcome(None, LightirError(str(error)))
        finally:
            self.n_faults += not fault.is_none
        if fault.is_none:
            with self._lock:
                self._latencies[operation].append((time.perf_counter() - start) * 1000)
        else:
            self.count("operations that succeeded although calls failed")
        return Outcome(value, None)

    def _note_error(
        self, operation: str, error: LightirError, fault: Fault, excused: Callable[[], bool] | None
    ) -> None:
        self.check(ERRORS)
        with self._lock:
            self._counts["errors"][type(error).__name__] += 1
        if fault.is_none and not isinstance(error, IndexLocked) and not (excused is not None and excused()):
            self.violation(ERRORS, f"{operation} failed without a fault: {_name(error)}", trace=trace_of(error))

    def flush(self, *, now: bool = False) -> None:
        """Write the counts, every FLUSH_S seconds or now."""
        with self._lock:
            if not now and time.monotonic() < self._due:
                return
            self._due = time.monotonic() + FLUSH_S
            rounded = {name: [round(value, 3) for value in values] for name, values in self._latencies.items()}
            self._write({"latencies": rounded, **self._counts})
            self._clear()

    def _write(self, line: dict[str, Any]) -> None:
        self._file.write(json.dumps(line).encode() + b"\n")


def _name(error: Exception) -> str:
    return f"{type(error).__name__}: {str(error)[:500]}"


def trace_of(error: Exception) -> list[str]:
    """Return the calls that led to an error, the innermost last."""
    frames = traceback.extract_tb(error.__traceback__)
    return [f"{Path(frame.filename).name}:{frame.lineno} {frame.name}: {frame.line}" for frame in frames]
