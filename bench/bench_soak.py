"""Readers, writers, workers, kills and failing calls on one index, beside an oracle; exits 1 if a promise breaks.

A writer, a compactor, workers, openers, searchers in processes and threads, and a copier share an index. At random,
file-system calls fail (EIO, ENOSPC, EDQUOT, EMFILE, ENFILE; once or for good), files cannot grow, and processes are
killed with SIGKILL. The writer notes every change before it begins and when its outcome is known. So each view, each
ranking and each snapshot is compared with the states that the index may have had at that time; rankings are computed
from their definition.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from array import array
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

import soak_plants
from lightir.index import Index, IndexOptions, IndexWriter
from lightir.pending import WorkOptions, work
from lightir.provenance import provenance
from lightir.search import Searcher, SearchOptions
from soak_faults import Faults, compiled, is_loaded
from soak_oracle import Journal, bm25, difference, journal_file, ranking_problem, shows
from soak_record import ALIVE, END, MEMORY, PROMISES, Recorder
from soak_roles import (
    ALL,
    CONTRACT,
    HashEncoder,
    HashQueries,
    Setting,
    document_of,
    first_documents,
    observe,
    start,
    vectors_of,
)

EXAMPLES = """
examples:
  lightir bench soak --minutes 30 --seed 7         half an hour; prints what was checked, exits 1 if a promise breaks
  lightir bench soak --minutes 30 --json >soak.json
  lightir bench soak --minutes 1 --keep soak       keep the index, the journal and each process's record in soak/
  lightir bench soak --minutes 1 --plant torn      break the library first, to see that the soak notices
"""
SILENT_S = 120.0
"""Time after which a process without a sign of life is taken to hang."""

STEADY_GROWTH_MB = 16
FILES_TO_SPARE = 6
MOST_VIOLATIONS = 1000
KEPT_OF_A_KIND = 2
SAMPLE_S = 1.0


def parsed() -> argparse.Namespace:
    """Parse the options."""
    parser = argparse.ArgumentParser(
        "lightir bench soak", description=__doc__, epilog=EXAMPLES, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--minutes", type=float, default=1.0, help="running time (default 1)")
    parser.add_argument("--seed", type=int, default=0, help="seed of all random choices (default 0)")
    parser.add_argument("--openers", type=int, default=2, help="number of processes that open and close (default 2)")
    parser.add_argument("--searchers", type=int, default=2, help="number of processes that search (default 2)")
    parser.add_argument("--threads", type=int, default=2, help="number of threads of each searcher (default 2)")
    parser.add_argument("--workers", type=int, default=2, help="number of encoding workers (default 2)")
    parser.add_argument(
        "--fault-rate", type=float, default=0.15, help="share of the operations during which calls fail (default 0.15)"
    )
    parser.add_argument("--kill-every-s", type=float, default=2.0, help="mean time between two kills (default 2)")
    parser.add_argument("--keep", type=Path, help="folder for the index and all records (default: a temporary one)")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.add_argument("--stop-at-first", action="store_true", help="end at the first violation")
    parser.add_argument(
        "--plant", choices=soak_plants.PLANTS, help="break the library in this way first, to test the soak itself"
    )
    args = parser.parse_args()
    if args.keep is not None and args.keep.exists():
        parser.error(f"--keep {args.keep}: the folder exists; choose another name or remove it")
    return args


@dataclass(slots=True)
class Child:
    """A running process.

    Attributes:
        role: name of its role.
        number: number among the processes of the role; those with number 0 that read are never killed.
        pid: process id.
        heard: time.monotonic() of its last sign of life.
        position: number of bytes that were read of its record.
        samples: time since the start, MB in memory, open files and mapped files of segments.
    """

    role: str
    number: int
    pid: int
    heard: float
    position: int = 0
    samples: list[tuple[float, int, int, int]] = field(default_factory=list)

    @property
    def is_steady(self) -> bool:
        """Whether the process is never killed, so that its memory can be compared over time."""
        return self.number == 0 and self.role in ("opener", "searcher")

    def record(self, setting: Setting) -> Path:
        """Return the file that the process appends to."""
        return setting.root / "log" / f"{self.role}-{self.number}-{self.pid}.jsonl"


class Soak:
    """Starts, kills, watches and restarts the processes, and adds up what they tell."""

    def __init__(self, setting: Setting, args: argparse.Namespace) -> None:
        """Take the settings of a prepared soak."""
        self.setting = setting
        self.args = args
        self.rng = random.Random(f"{args.seed} soak")
        self.began = time.monotonic()
        self.origin = provenance()
        self.children: list[Child] = []
        self.ended: list[Child] = []
        self.n_starts = 0
        self.is_ending = False
        self.latencies: dict[str, array[float]] = defaultdict(lambda: array("f"))
        self.sums: dict[str, Counter[str]] = {name: Counter() for name in ("checks", "errors", "counts")}
        self.violations: list[dict[str, Any]] = []
        self.broken: Counter[str] = Counter()
        self.kinds: Counter[str] = Counter()
        self.index_samples: list[tuple[float, float, int]] = []

    def run(self) -> None:
        """Run until the end, or the first violation if that is asked for."""
        counts = {
            "writer": 1,
            "compactor": 1,
            "worker": self.args.workers,
            "opener": self.args.openers,
            "searcher": self.args.searchers,
            "copier": 1,
        }
        for role, n in counts.items():
            for number in range(n):
                self._start(role, number)
        kill_at = sample_at = time.monotonic()
        while time.monotonic() < self.setting.end and not self._is_enough():
            time.sleep(0.05)
            self._reap()
            self._listen()
            if time.monotonic() >= sample_at:
                sample_at = time.monotonic() + SAMPLE_S
                self._sample()
                self._show()
            if time.monotonic() >= kill_at:
                kill_at = time.monotonic() + self.rng.expovariate(1 / self.args.kill_every_s)
                self._kill_one()
        self._end()

    def _is_enough(self) -> bool:
        return self.broken.total() >= (1 if self.args.stop_at_first else MOST_VIOLATIONS)

    def violation(self, promise: str, what: str, **details: Any) -> None:
        """Add a violation that this process has found."""
        self._add_violation({"promise": promise, "what": what, "role": "soak", "pid": os.getpid(), "details": details})

    def _add_violation(self, violation: dict[str, Any]) -> None:
        """Count a violation, and keep it unless there are enough of its kind."""
        self.broken[violation["promise"]] += 1
        kind = re.sub(r"[\d.]+|/\S+", "*", violation["promise"] + violation["what"])
        self.kinds[kind] += 1
        if self.kinds[kind] <= KEPT_OF_A_KIND:
            self.violations.append({**violation, "at_s": round(time.monotonic() - self.began, 1)})

    def _start(self, role: str, number: int) -> None:
        pid = start(self.setting, role, number, self.n_starts)
        self.n_starts += 1
        self.children.append(Child(role, number, pid, time.monotonic()))

    def _reap(self) -> None:
        """Restart the processes that have ended."""
        for child in list(self.children):
            pid, status = os.waitpid(child.pid, os.WNOHANG)
            if pid:
                self._finish(child, os.waitstatus_to_exitcode(status))
                if not self.is_ending and time.monotonic() < self.setting.end:
                    self._start(child.role, child.number)

    def _finish(self, child: Child, code: int) -> None:
        self._read(child)
        self.children.remove(child)
        self.ended.append(child)
        if code == -signal.SIGKILL:
            self.sums["counts"]["processes killed"] += 1
        elif code:
            trace = child.record(self.setting).with_suffix(".trace").read_text()
            self.violation(ALIVE, f"{child.role} ended with code {code}", trace=trace)

    def _listen(self) -> None:
        for child in self.children:
            self._read(child)
            if time.monotonic() - child.heard > SILENT_S:
                os.kill(child.pid, signal.SIGUSR1)  # faulthandler writes where its threads are
                time.sleep(1)
                trace = child.record(self.setting).with_suffix(".trace").read_text()
                self.violation(ALIVE, f"{child.role} {child.number} has been silent for {SILENT_S} s", trace=trace)
                os.kill(child.pid, signal.SIGKILL)
                child.heard = time.monotonic()

    def _read(self, child: Child) -> None:
        path = child.record(self.setting)
        if not path.exists():
            return
        with path.open("rb") as file:
            file.seek(child.position)
            content = file.read()
        whole = content[: content.rfind(b"\n") + 1]
        child.position += len(whole)
        if whole:
            child.heard = time.monotonic()
        for line in whole.splitlines():
            self._add(json.loads(line), child)

    def _add(self, told: Mapping[str, Any], child: Child) -> None:
        if "violation" in told:
            self._add_violation({**told["violation"], "pid": child.pid})
            return
        for name, sums in self.sums.items():
            sums.update(told[name])
        for operation, values in told["latencies"].items():
            self.latencies[operation].extend(values)

    def _kill_one(self) -> None:
        mortal = [child for child in self.children if not child.is_steady]
        if mortal:
            os.kill(self.rng.choice(mortal).pid, signal.SIGKILL)

    def _sample(self) -> None:
        now = round(time.monotonic() - self.began, 1)
        for child in self.children:
            if (held := _held(child.pid)) is not None:
                child.samples.append((now, *held))
        files = [Path(folder, name) for folder, _, names in os.walk(self.setting.index) for name in names]
        self.index_samples.append((now, round(sum(map(_size, files)) / 2**20, 1), len(files)))

    def _show(self) -> None:
        left = max(0, round(self.setting.end - time.monotonic()))
        counts = self.sums["counts"]
        line = (
            f"{left // 60}:{left % 60:02d} left  {counts['changes acknowledged']:,} changes  "
            f"{sum(self.sums['checks'].values()):,} checks  {self.n_starts:,} processes started  "
            f"{self.broken.total()} violations"
        )
        if sys.stderr.isatty():
            print(f"\r{line}  ", end="", file=sys.stderr, flush=True)
        elif left % 60 == 0:
            print(line, file=sys.stderr, flush=True)

    def _end(self) -> None:
        """Wait for all processes; those that do not end hang."""
        self.is_ending = True
        if time.monotonic() < self.setting.end:  # a violation ended the soak early
            for child in self.children:
                os.kill(child.pid, signal.SIGKILL)
        until = time.monotonic() + SILENT_S
        while self.children and time.monotonic() < until:
            time.sleep(0.05)
            self._reap()
            self._listen()
        for child in list(self.children):
            self.violation(ALIVE, f"{child.role} {child.number} does not end")
            os.kill(child.pid, signal.SIGKILL)
            self._finish(child, os.waitstatus_to_exitcode(os.waitpid(child.pid, 0)[1]))
        self.sums["checks"][ALIVE] += self.n_starts
        if sys.stderr.isatty():
            print(file=sys.stderr)

    def check_growth(self) -> None:
        """Compare the holdings of the processes that were never killed in the second and in the last quarter."""
        for child in self.ended:
            n = len(child.samples)
            if not child.is_steady or n < 8:
                continue
            early, late = child.samples[n // 4 : n // 2], child.samples[-(n // 4) :]
            self.sums["checks"][MEMORY] += 1
            # A leak raises the smallest numbers of files, too: the largest depend on the view at that time.
            mb = max(sample[1] for sample in late) - max(sample[1] for sample in early)
            files, maps = (min(sample[i] for sample in late) - min(sample[i] for sample in early) for i in (2, 3))
            if mb > STEADY_GROWTH_MB or max(files, maps) > FILES_TO_SPARE:
                told = f"{child.role} has grown by {mb} MB, {files} open files and {maps} mapped files"
                self.violation(MEMORY, told, samples=child.samples[:: max(1, n // 10)])


def _held(pid: int) -> tuple[int, int, int] | None:
    """Return a process's memory in MB, its open files and its mapped files of segments; None if it has ended."""
    try:
        resident = int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * resource.getpagesize() // 2**20
        maps = Path(f"/proc/{pid}/maps").read_text().splitlines()
        names = {line.split(maxsplit=5)[5] for line in maps if "/segments/" in line}
        return resident, len(os.listdir(f"/proc/{pid}/fd")), len(names)
    except (FileNotFoundError, ProcessLookupError, PermissionError):
        return None


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except FileNotFoundError:
        return 0


# The end


def check_end(soak: Soak) -> None:
    """Require that the index has exactly the acknowledged changes and that nothing is left of what was interrupted."""
    setting = soak.setting
    faults = Faults(setting.root / "work", 0.0, soak.rng)
    recorder = Recorder(setting.root / "log" / "end.jsonl", "end", faults)
    journal = Journal(setting.journal)
    journal.read()
    end = recorder.attempt("the end", lambda: _end_problems(setting, journal))
    recorder.flush(now=True)
    for problem in end.value or []:
        soak.violation(END, problem)
    soak.sums["checks"][END] += 1
    soak._read(Child("end", 0, 0, 0.0))
    for line in (setting.root / "log" / "end.jsonl").read_text().splitlines():
        soak._add(json.loads(line), Child("end", 0, os.getpid(), 0.0))


def _end_problems(setting: Setting, journal: Journal) -> list[str]:
    problems = []
    with IndexWriter.open(setting.index) as writer:  # settles the last change, removes what was interrupted
        observed = observe(writer.view)
        allowed = dict(journal.states_since(journal.mark()))
        if not any(shows(observed, state) for state in allowed.values()):
            problems.append(f"the index shows no acknowledged state: {difference(observed, journal.state)}")
    work(setting.index, HashEncoder(), WorkOptions(once=True, retry_failed=True), progress=False)
    with IndexWriter.open(setting.index) as writer:
        writer.compact(progress=False)
    with Index.open(setting.index) as index:
        index.verify()
        info, last = index.info(), observe(index.view)
        if (info.pending, info.deleted, info.outdated) != (0, 0, 0):
            problems.append(f"after encoding and compacting there are {info}")
        if last.keys() != observed.keys():
            problems.append(f"encoding and compacting changed the documents: {difference(last, observed)}")
        searcher = Searcher(index, HashQueries())
        for query in ("all", "ant owl", "jay hen gnu"):
            ranking = searcher.search([query], ALL, SearchOptions(mode="tokens"))["0"]
            if problem := ranking_problem(bm25(last, query), ranking.doc_ids, ranking.scores.tolist(), ALL):
                problems.append(f"query {query!r}: {problem}")
        for copy in setting.index.parent.glob("copy-*"):
            index.snapshot(copy, overwrite=True)
        listed = {live.segment.folder.name for live in index.view.segments}
    return [*problems, *_left_behind(setting, listed)]


def _left_behind(setting: Setting, listed: set[str]) -> Iterator[str]:
    segments = {path.name for path in (setting.index / "segments").iterdir()}
    if segments != listed:
        yield f"segments/ holds {sorted(segments - listed)} besides the live segments, or lacks some"
    expected = {"store.sqlite", "segments", "writer.lock", "queue"}
    if unexpected := {path.name for path in setting.index.iterdir()} - expected:
        yield f"the index folder holds {sorted(unexpected)}"
    if unexpected := [path.name for path in setting.index.parent.iterdir() if path.name.startswith(".")]:
        yield f"temporary folders are left: {unexpected}"
    for name in ("workers", "parked"):
        folder = setting.index / "queue" / name
        if folder.is_dir() and (unexpected := [path.name for path in folder.iterdir()]):
            yield f"queue/{name} holds {unexpected}"


# The report


def report_of(soak: Soak) -> dict[str, Any]:
    """Return everything that was counted, as JSON values."""
    promises = {
        promise: {"checks": soak.sums["checks"][promise], "violations": soak.broken[promise]} for promise in PROMISES
    }
    return {
        "provenance": soak.origin,
        "minutes": round((time.monotonic() - soak.began) / 60, 2),
        "seed": soak.args.seed,
        "failing calls": is_loaded(),
        "promises": promises,
        "counts": dict(sorted(soak.sums["counts"].items())),
        "errors": dict(soak.sums["errors"].most_common()),
        "latency_ms": {name: _percentiles(values) for name, values in sorted(soak.latencies.items())},
        "processes": {f"{child.role} {child.number}": _history(child) for child in soak.ended if child.is_steady},
        "peaks": _peaks(soak),
        "index": {"samples": _thinned(soak.index_samples)},
        "violations": soak.violations,
    }


def _percentiles(values: array[float]) -> dict[str, float]:
    p50, p90, p99, most = np.quantile(np.array(values), (0.5, 0.9, 0.99, 1.0)).round(2).tolist()
    return {"n": len(values), "p50": p50, "p90": p90, "p99": p99, "max": most}


def _thinned(samples: list[Any]) -> list[Any]:
    """Return about ten of the samples, the last one among them."""
    step = max(1, len(samples) // 10)
    return samples[::-step][::-1]


def _history(child: Child) -> list[dict[str, float]]:
    return [dict(zip(("s", "mb", "files", "maps"), sample, strict=True)) for sample in _thinned(child.samples)]


def _peaks(soak: Soak) -> dict[str, dict[str, int]]:
    peaks: dict[str, dict[str, int]] = {}
    for child in soak.ended:
        for _, mb, files, maps in child.samples:
            peak = peaks.setdefault(child.role, {"mb": 0, "files": 0, "maps": 0})
            peak.update(mb=max(peak["mb"], mb), files=max(peak["files"], files), maps=max(peak["maps"], maps))
    return peaks


def print_report(report: Mapping[str, Any]) -> None:
    """Print the report as tables."""
    origin = report["provenance"]
    print(f"lightir {origin['lightir']} at {origin['commit']}, {origin['date']}, {origin['machine']}")
    print(f"{origin['command']}\n{report['minutes']} minutes, seed {report['seed']}\n")
    if not report["failing calls"]:
        print("no file-system call failed: that needs a C compiler named cc and a checkout\n")
    print(f"{'checks':>9} {'violations':>10}  promise")
    for promise, counts in report["promises"].items():
        print(f"{counts['checks']:9,} {counts['violations']:10,}  {promise}")
    print("\nerrors by type:", ", ".join(f"{name} {n:,}" for name, n in report["errors"].items()) or "none")
    for name, n in report["counts"].items():
        print(f"{n:9,}  {name}")
    print(f"\n{'operation':<24}{'n':>9}{'p50':>9}{'p90':>9}{'p99':>10}{'max':>10}  ms")
    for name, values in report["latency_ms"].items():
        figures = f"{values['p50']:9.2f}{values['p90']:9.2f}{values['p99']:10.2f}{values['max']:10.2f}"
        print(f"{name:<24}{values['n']:9,}{figures}")
    print("\nprocesses that were never killed: seconds, MB, open files, mapped files")
    for name, samples in report["processes"].items():
        print(f"  {name}:", "; ".join(" ".join(str(value) for value in sample.values()) for sample in samples))
    print("largest:", "; ".join(f"{name} {_listed(peak)}" for name, peak in report["peaks"].items()))
    sizes = "; ".join(f"{at:.0f} {mb:.1f} {n}" for at, mb, n in report["index"]["samples"])
    print(f"index: seconds, MB, files: {sizes}\n")
    for violation in report["violations"]:
        print("VIOLATION", json.dumps(violation, indent=1))
    n_broken = sum(counts["violations"] for counts in report["promises"].values())
    print(
        f"{n_broken:,} violations, the first {KEPT_OF_A_KIND} of each kind above" if n_broken else "every promise held"
    )


def _listed(values: Mapping[str, int]) -> str:
    return ", ".join(f"{value} {name}" for name, value in values.items())


# The whole


@contextmanager
def root_folder(keep: Path | None) -> Iterator[Path]:
    """Yield a folder, temporary unless one is given."""
    if keep is not None:
        keep.mkdir(parents=True)
        yield keep.resolve()
        return
    folder = Path(tempfile.mkdtemp(prefix="soak-"))
    try:
        yield folder.resolve()
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def load_injector() -> None:
    """Start this program anew with the library that lets file-system calls fail, if it can be compiled."""
    if is_loaded() or "SOAK_WITHOUT_INJECTOR" in os.environ:
        return
    folder = Path(tempfile.mkdtemp(prefix="soak-injector-"))
    library = compiled(folder)
    added = {"SOAK_WITHOUT_INJECTOR": "1"} if library is None else {"LD_PRELOAD": str(library)}
    os.execve(sys.executable, [sys.executable, *sys.argv], {**os.environ, **added, "SOAK_INJECTOR": str(folder)})


def prepared(root: Path, args: argparse.Namespace) -> Setting:
    """Create the index with its first documents, and the journal."""
    for name in ("work", "log"):
        (root / name).mkdir()
    setting = Setting(root, journal_file(root), args.seed, 0.0, args.fault_rate, args.threads)
    journal = Journal(setting.journal)
    options = IndexOptions(analyzer="words")
    with IndexWriter.create(setting.index, contract=CONTRACT, options=options) as writer:
        effect = first_documents()
        journal.begin(effect)
        documents = [document_of(doc_id, stored) for doc_id, stored in effect.items() if stored is not None]
        writer.add(documents, **vectors_of(documents))
        journal.end(True)
    return setting


def main() -> int:
    """Run the soak and print its report; return 1 if a promise was broken."""
    args = parsed()
    load_injector()
    if folder := os.environ.pop("SOAK_INJECTOR", None):
        shutil.rmtree(folder, ignore_errors=True)  # it is loaded
    with root_folder(args.keep) as root:
        setting = prepared(root, args)
        if args.plant is not None:
            soak_plants.plant(args.plant)
        setting = Setting(
            root, setting.journal, args.seed, time.monotonic() + 60 * args.minutes, args.fault_rate, args.threads
        )
        soak = Soak(setting, args)
        soak.run()
        soak.check_growth()
        if not soak._is_enough():
            check_end(soak)
        report = report_of(soak)
        if args.keep is not None:
            (root / "report.json").write_text(json.dumps(report, indent=1))
    if args.json:
        print(json.dumps(report))
    else:
        print_report(report)
    return 1 if report["violations"] else 0


if __name__ == "__main__":
    sys.exit(main())
