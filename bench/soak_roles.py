"""The soak's processes: a writer, a compactor, workers, openers, searchers and a copier, each a class with one step."""

from __future__ import annotations

import dataclasses
import faulthandler
import gc
import logging
import os
import random
import signal
import threading
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.errors import LightirError, OutcomeUnknown
from lightir.index import Index, IndexWriter, View
from lightir.pending import WorkOptions, work
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.text import QueryPolicy
from lightir.types import Document, Hit
from lightir.vectors import QueryVectors, Ragged, SparseVectors
from soak_faults import Fault, Faults
from soak_oracle import (
    DIM,
    EVERYWHERE,
    VOCAB_SIZE,
    WORDS,
    Effect,
    Journal,
    Mark,
    State,
    Stored,
    after,
    bm25,
    difference,
    impacts,
    inner_products,
    random_texts,
    ranking_problem,
    shows,
    vector,
)
from soak_record import (
    CHECKSUMS,
    ERRORS,
    HOLDINGS,
    OUTCOMES,
    RANKINGS,
    SNAPSHOTS,
    VECTORS,
    VIEWS,
    WITHDRAWN,
    Recorder,
    trace_of,
)

CONTRACT = Contract(
    "lightretriever",
    BackboneRecord("soak", "causal", "", "", "", VOCAB_SIZE, DIM),
    QueryPolicy("", leading_blank=False),
    DocumentPolicy(),
    DenseHead(),
    SparseHead(scale=1.0),
)
KEPT = tuple(f"k{i:03d}" for i in range(12))
"""Documents that are never deleted and always have vectors, so that every branch can be searched."""

CHANGING = tuple(f"d{i:03d}" for i in range(150))
MOST_PER_CHANGE = 6
ALL = 10_000


@dataclass(frozen=True, slots=True)
class Setting:
    """The folder, the end and the options that the processes of a soak share.

    Attributes:
        root: folder with the subfolders "work" (index and copies, where calls fail) and "log".
        journal: file of the journal.
        seed: seed of the soak.
        end: time.monotonic() at which the processes end.
        fault_rate: share of the operations during which something fails.
        threads: number of searching threads of a searcher.
    """

    root: Path
    journal: Path
    seed: int
    end: float
    fault_rate: float
    threads: int

    @property
    def index(self) -> Path:
        """Folder of the index."""
        return self.root / "work" / "index"


# Vectors


def vectors_of(documents: Sequence[Document]) -> dict[str, Any]:
    """Return the arguments `dense` and `sparse` for documents."""
    dense = np.array([vector(document.text) for document in documents], np.float16).reshape(-1, DIM)
    return {"dense": dense, "sparse": sparse_rows([impacts(document.text) for document in documents], np.uint8)}


def sparse_rows(rows: Sequence[Mapping[int, int]], dtype: type) -> SparseVectors:
    """Return sparse vectors of given weights."""
    ids = Ragged.from_lists([sorted(row) for row in rows])
    weights = np.array([row[term] for row in rows for term in sorted(row)], dtype)
    return SparseVectors(ids.indptr, ids.term_ids, weights, VOCAB_SIZE)


class HashEncoder:
    """An encoder of documents whose vectors are hashes of the texts."""

    contract = CONTRACT

    def encode(self, documents: Sequence[Document]) -> Shard:
        """Return the documents with their vectors."""
        return Shard(documents, **vectors_of(documents))


class HashQueries:
    """An encoder of queries whose vectors are hashes of the texts."""

    document_fingerprint = CONTRACT.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Return the vectors of queries."""
        rows = [impacts(text) for text in texts]
        dense = np.array([vector(text) for text in texts], np.float32).reshape(-1, DIM)
        return QueryVectors(Ragged.from_lists([sorted(row) for row in rows]), dense, sparse_rows(rows, np.float32))


# Documents of a view


def observe(view: View) -> State:
    """Return the documents of a view, with their texts and metadata from the store.

    Raises:
        ValueError: a document is there twice.
    """
    pending = set(view.pending())
    doc_ids = [live.segment.doc_ids[row] for live in view.segments for row in live.places.tolist()]
    if len(set(doc_ids)) != len(doc_ids):
        raise ValueError(f"{len(doc_ids)} documents have {len(set(doc_ids))} different ids")
    documents = view.documents(doc_ids)
    return {document.doc_id: stored(document, encoded=document.doc_id not in pending) for document in documents}


def stored(document: Document, *, encoded: bool) -> Stored:
    """Return a document as states hold it."""
    return Stored(document.title, document.text, dict(document.metadata), encoded)


def document_of(doc_id: str, document: Stored) -> Document:
    """Return a document as the writer takes it."""
    return Document(doc_id, document.text, document.title, document.metadata)


def holdings() -> dict[str, int]:
    """Return the numbers of open files and of mapped files of segments of this process."""
    gc.collect()
    maps = Path("/proc/self/maps").read_text().splitlines()
    n_maps = len({line.split(maxsplit=5)[5] for line in maps if "/segments/" in line})
    return {"files": len(os.listdir("/proc/self/fd")), "maps": n_maps}


# Processes


class Role:
    """A process that repeats a step."""

    pause_s = 0.02
    """Mean pause between two steps."""

    def __init__(self, setting: Setting, number: int, recorder: Recorder, rng: random.Random) -> None:
        """Start at the present end of the journal."""
        self.setting = setting
        self.number = number
        self.record = recorder
        self.rng = rng
        self.faults = recorder.faults
        self.journal = Journal(setting.journal)
        self._floor = 0
        self._claims: set[int] = set()
        self._encoded: dict[str, str] = {}

    def step(self) -> None:
        """Do one thing."""
        raise NotImplementedError

    def run(self) -> None:
        """Repeat the step until the soak ends."""
        while time.monotonic() < self.setting.end:
            self.step()
            self.record.flush()
            time.sleep(self.rng.expovariate(1 / self.pause_s))

    def check_view(self, view: View, mark: Mark, *, again: bool = True) -> State | None:
        """Require a view to show one of the states since a moment; return its documents.

        Args:
            view: opened view.
            mark: moment before it was opened.
            again: whether this process has seen no later state before, because it opens one view after the other.
        """
        outcome = self.record.attempt("read all documents", lambda: observe(view))
        if outcome.value is None:
            return None
        observed = outcome.value
        self._require_claims()
        candidates = list(self.journal.states_since(mark))
        if not candidates:
            self.record.count("views that were not checked, because the journal had moved on")
            return observed
        self.record.check(VIEWS)
        shown = [
            number for number, state in candidates if (number >= self._floor or not again) and shows(observed, state)
        ]
        if not shown:
            nearest = min(candidates, key=lambda pair: difference(observed, pair[1])["different"])
            self.record.violation(
                VIEWS,
                f"a view shows none of the states {candidates[0][0]} to {candidates[-1][0]}",
                not_before=self._floor,
                generation=view.generation,
                nearest=nearest[0],
                difference=difference(observed, nearest[1]),
            )
            return observed
        if again:
            self._floor = max(self._floor, shown[0])
        if self.journal.undecided is not None and shown == [self.journal.undecided[0]]:
            self._claims.add(shown[0])
        self._check_vectors(observed)
        return observed

    def _require_claims(self) -> None:
        """Require that no change that was seen while its outcome was unknown was withdrawn."""
        self.journal.read()
        self.record.check(WITHDRAWN)
        for number in self._claims & set(self.journal.refused):
            self.record.violation(WITHDRAWN, f"change {number} was visible, but was not made in the end")
        undecided = self.journal.undecided
        self._claims = {number for number in self._claims if undecided is not None and number == undecided[0]}

    def _check_vectors(self, observed: State) -> None:
        lost = [
            doc_id
            for doc_id, title in self._encoded.items()
            if doc_id in observed and observed[doc_id].title == title and not observed[doc_id].encoded
        ]
        self.record.check(VECTORS)
        if lost:
            self.record.violation(VECTORS, f"documents were encoded and are pending again: {sorted(lost)[:6]}")
        self._encoded = {doc_id: document.title for doc_id, document in observed.items() if document.encoded}

    def check_rankings(self, searcher: Searcher, observed: State) -> None:
        """Compare one ranking of each branch with the documents of the view."""
        query = random_query(self.rng)
        wanted = {"group": {"gte": self.rng.randrange(-1, 8)}} if self.rng.random() < 0.5 else None
        matching = {i for i, document in observed.items() if wanted is None or _matches(document, wanted)}
        dense, sparse = inner_products(observed, query)
        for mode, scores in (("tokens", bm25(observed, query)), ("dense", dense), ("sparse", sparse)):
            k = self.rng.choice((1, 3, 10, ALL))
            options = SearchOptions(mode=mode, filter=wanted)
            outcome = self.record.attempt(f"search {mode}", lambda: searcher.search([query], k, options)["0"])  # noqa: B023
            if outcome.value is None:
                continue
            expected = {doc_id: score for doc_id, score in scores.items() if doc_id in matching}
            self.record.check(RANKINGS)
            listed = outcome.value.doc_ids, outcome.value.scores.tolist()
            if problem := ranking_problem(expected, *listed, k):
                self.record.violation(
                    RANKINGS,
                    problem,
                    query=query,
                    mode=mode,
                    k=k,
                    filter=wanted,
                    generation=searcher.index.view.generation,
                )


def random_query(rng: random.Random) -> str:
    """Return a query of a few words."""
    return " ".join(rng.choices([EVERYWHERE, *WORDS], k=rng.randint(1, 3)))


def _matches(document: Stored, wanted: dict[str, Any]) -> bool:
    return bool(document.metadata["group"] >= wanted["group"]["gte"])


@dataclass(frozen=True, slots=True)
class Change:
    """A change that a writer makes in one transaction.

    Attributes:
        name: method of the writer and its variant.
        effect: documents that it writes or deletes.
        act: the call.
        returns: value that the call must return.
    """

    name: str
    effect: Effect
    act: Callable[[IndexWriter], Any]
    returns: Any


class Writer(Role):
    """Changes the index, and writes every change into the journal before it begins and when its outcome is known."""

    pause_s = 0.03

    def step(self) -> None:
        """Open a writer, make a few changes, close it."""
        brief = self.rng.random() < 0.5
        fault = self.faults.draw("open writer")
        opened = self.record.attempt("open writer", lambda: IndexWriter.open(self.setting.index, brief=brief), fault)
        writer = opened.value
        if writer is None:
            return
        try:
            self.settle(writer)
            for _ in range(1 if brief else self.rng.randint(1, 6)):
                if not self.change(writer):
                    break
                self.record.flush()
        finally:
            self.record.attempt("close writer", writer.close, self.faults.draw("close writer"))

    def settle(self, writer: IndexWriter) -> None:
        """Require the state after all acknowledged changes; find the outcome of a change that was interrupted."""
        self.journal.read()
        outcome = self.record.attempt("read all documents", lambda: observe(writer.view))
        if outcome.value is None:
            return
        observed, before = outcome.value, self.journal.state
        made, is_there = False, shows(observed, before)
        if self.journal.undecided is not None:
            later = after(before, self.journal.undecided[1])
            made = shows(observed, later)
            self.record.count(f"interrupted changes that were {'made' if made else 'not made'}")
            is_there = is_there or made
        self.record.check(OUTCOMES)
        if not is_there:
            self.record.violation(
                OUTCOMES,
                f"a new writer shows neither the state {self.journal.number} nor the one before",
                before=difference(observed, before),
                after=self.journal.undecided and difference(observed, after(before, self.journal.undecided[1])),
            )
        if self.journal.undecided is not None:
            self.journal.end(made)

    def change(self, writer: IndexWriter) -> bool:
        """Make a change; return whether the writer can make another one."""
        if self.journal.undecided is not None:
            return False
        change = random_change(self.rng, self.journal.state, self.journal.number + 1)
        fault = self.faults.draw(change.name)
        self.journal.begin(change.effect)
        outcome = self.record.attempt(change.name, lambda: change.act(writer), fault)
        if outcome.error is None:
            self.journal.end(True)
            self.record.count("changes acknowledged")
            self.record.check(OUTCOMES)
            if outcome.value != change.returns:
                self.record.violation(
                    OUTCOMES,
                    f"{change.name} returned {outcome.value!r} instead of {change.returns!r}",
                    change=_told(change),
                )
            return True
        if isinstance(outcome.error, OutcomeUnknown) or type(outcome.error) is LightirError:
            self.record.count("changes of unknown outcome")
            return False
        self.journal.end(False)
        self.record.count("changes refused")
        return self._is_unchanged(writer, change, fault)

    def _is_unchanged(self, writer: IndexWriter, change: Change, fault: Fault) -> bool:
        """Require that a refused change has changed nothing; return whether the documents could be read."""
        outcome = self.record.attempt("read all documents", lambda: observe(writer.view))
        if outcome.value is None:
            return False
        self.record.check(OUTCOMES)
        if not shows(outcome.value, self.journal.state):
            self.record.violation(
                OUTCOMES,
                f"a refused {change.name} has changed something",
                change=_told(change),
                fault=asdict(fault),
                difference=difference(outcome.value, self.journal.state),
            )
        return True


def _told(change: Change) -> dict[str, Any]:
    return {doc_id: given and asdict(given) for doc_id, given in change.effect.items()}


def random_change(rng: random.Random, state: State, number: int) -> Change:
    """Return a random change of a state; about two thirds of the changing documents are there in the long run."""
    present = [doc_id for doc_id in CHANGING if doc_id in state]
    absent = [doc_id for doc_id in CHANGING if doc_id not in state]
    names = ["update", "update", "describe", "set_vectors", "update_encoded", "mixed"]
    names += ["delete", "delete_where"] if len(present) > 2 * len(absent) else ["add", "add", "add_encoded", "delete"]
    name = rng.choice(names)
    n = rng.randint(1, MOST_PER_CHANGE)
    if name in ("add", "add_encoded"):
        return _put(rng, name, rng.sample(absent, min(n, len(absent))), number)
    if name == "mixed":
        return _put(rng, "update", rng.sample(CHANGING, n), number)
    if not present or name == "describe":
        return _describe(rng, rng.sample([*KEPT, *present], n), state, number)
    chosen = rng.sample(present, min(n, len(present)))
    if name == "delete":
        return Change(name, dict.fromkeys(chosen), lambda writer: writer.delete(chosen), len(chosen))
    if name == "delete_where":
        group = state[chosen[0]].metadata["group"]
        gone = [doc_id for doc_id, document in state.items() if document.metadata["group"] == group]
        return Change(name, dict.fromkeys(gone), lambda writer: writer.delete_where({"group": group}), len(gone))
    if name == "set_vectors":
        documents = [document_of(doc_id, state[doc_id]) for doc_id in chosen]
        effect: Effect = {doc_id: dataclasses.replace(state[doc_id], encoded=True) for doc_id in chosen}
        return Change(name, effect, lambda writer: writer.set_vectors(documents, **vectors_of(documents)), [])
    return _put(rng, name, chosen, number)


def _put(rng: random.Random, name: str, doc_ids: Sequence[str], number: int) -> Change:
    encoded = name.endswith("_encoded")
    effect = {
        i: Stored(*random_texts(rng, number), {"n": number, "group": rng.randrange(20)}, encoded) for i in doc_ids
    }
    documents = [document_of(doc_id, document) for doc_id, document in effect.items()]
    vectors = vectors_of(documents) if encoded else {}
    method = "add" if name.startswith("add") else "upsert"
    return Change(name, {**effect}, lambda writer: getattr(writer, method)(documents, **vectors), len(documents))


def _describe(rng: random.Random, doc_ids: Sequence[str], state: State, number: int) -> Change:
    """Return an upsert of unchanged texts with new metadata, which keeps vectors."""
    effect: Effect = {}
    for doc_id in doc_ids:
        group = -1 if doc_id in KEPT else rng.randrange(20)
        effect[doc_id] = dataclasses.replace(state[doc_id], metadata={"n": number, "group": group})
    documents = [document_of(doc_id, document) for doc_id, document in effect.items() if document is not None]
    return Change("describe", effect, lambda writer: writer.upsert(documents), len(documents))


def first_documents() -> Effect:
    """Return the documents that are always there, as change 1 writes them."""
    rng = random.Random(1)
    return {doc_id: Stored(*random_texts(rng, 1), {"n": 1, "group": -1}, encoded=True) for doc_id in KEPT}


class Compactor(Role):
    """Compacts the index."""

    pause_s = 0.3

    def step(self) -> None:
        """Open a writer, compact, close it."""
        fault = self.faults.draw("open writer")
        opened = self.record.attempt("open writer", lambda: IndexWriter.open(self.setting.index, brief=True), fault)
        if (writer := opened.value) is None:
            return
        try:
            fault = self.faults.draw("compact")
            self.record.attempt("compact", lambda: writer.compact(progress=False), fault)
        finally:
            self.record.attempt("close writer", writer.close, self.faults.draw("close writer"))


class Worker(Role):
    """Encodes pending documents."""

    pause_s = 0.1

    def step(self) -> None:
        """Encode what is pending."""
        options = WorkOptions(once=True, batch_size=8, retry_failed=self.rng.random() < 0.1)
        fault = self.faults.draw("work")
        encode = lambda: work(self.setting.index, HashEncoder(), options, progress=False)  # noqa: E731
        if (report := self.record.attempt("work", encode, fault).value) is not None:
            self.record.count("documents encoded by workers", report.committed)
            if report.failed:
                self.record.violation(ERRORS, f"documents could not be encoded: {report.failed}")


class Opener(Role):
    """Opens the index, compares everything with the journal, and closes it."""

    def __init__(self, *arguments: Any) -> None:
        """Note what the process holds."""
        super().__init__(*arguments)
        self._n_opened = 0
        self._before = holdings()

    def step(self) -> None:
        """Open, read, search and close."""
        mark = self.journal.mark()
        fault = self.faults.draw("open", reads=True)
        opened = self.record.attempt("open", lambda: Index.open(self.setting.index), fault)
        if (index := opened.value) is not None:
            with index:
                observed = self.check_view(index.view, mark)
                if observed is not None:
                    self.check_rankings(Searcher(index, HashQueries()), observed)
                if self._n_opened % 10 == 5:
                    self._verify(index)
        del opened, index
        self._n_opened += 1
        if self._n_opened % 5 == 0:
            self._require_nothing_held()

    def _verify(self, index: Index) -> None:
        if self.record.attempt("verify", index.verify).error is None:
            self.record.check(CHECKSUMS)

    def _require_nothing_held(self) -> None:
        held = holdings()
        self.record.check(HOLDINGS)
        if any(held[name] > self._before[name] for name in held):
            names = sorted(
                os.readlink(f"/proc/self/fd/{name}") for name in os.listdir("/proc/self/fd") if _is_link(name)
            )
            self.record.violation(HOLDINGS, f"{held} after closing, {self._before} at the start", files=names[:40])


def _is_link(name: str) -> bool:
    return os.path.islink(f"/proc/self/fd/{name}")


class SearcherProcess(Role):
    """Searches one index in several threads while it is refreshed."""

    pause_s = 0.05

    def run(self) -> None:
        """Open the index, start the threads, refresh."""
        mark = self.journal.mark()
        index = self.record.attempt("open", lambda: Index.open(self.setting.index)).value
        if index is None:
            return
        self.index, self.mark = index, mark
        self.is_failing = False
        rngs = [random.Random(self.rng.random()) for _ in range(self.setting.threads)]
        threads = [threading.Thread(target=self._search, args=(rng,), daemon=True) for rng in rngs]
        for thread in threads:
            thread.start()
        super().run()
        for thread in threads:
            thread.join()
        index.close()

    def step(self) -> None:
        """Refresh; now and then compare the whole view with the journal."""
        mark = self.journal.mark()
        fault = self.faults.draw("refresh", reads=True, alone=False)
        self.is_failing = not fault.is_none
        outcome = self.record.attempt("refresh", self.index.refresh, fault)
        self.is_failing = False
        if outcome.error is not None:
            return
        self.mark = mark
        if self.rng.random() < 0.2:
            self.check_view(self.index.view, mark)

    def _search(self, rng: random.Random) -> None:
        journal, searcher = Journal(self.setting.journal), Searcher(self.index, HashQueries())
        while time.monotonic() < self.setting.end:
            try:
                self._search_once(rng, journal, searcher)
            except Exception as error:  # noqa: BLE001 - a failing thread is reported
                self.record.violation(ERRORS, f"a searching thread ended with {error!r}")
                return
            time.sleep(rng.expovariate(1 / 0.02))

    def _search_once(self, rng: random.Random, journal: Journal, searcher: Searcher) -> None:
        """Search; require that the hits are the best of one state since the view's last refresh."""
        query, k = random_query(rng), rng.choice((1, 3, 10, 30))
        mode = "tokens" if rng.random() < 0.8 else "hybrid+tokens"
        mark, n_faults, was_failing = self.mark, self.record.n_faults, self.is_failing
        outcome = self.record.attempt(
            f"hits {mode}",
            lambda: searcher.hits(query, k, SearchOptions(mode=mode)),
            excused=lambda: was_failing or n_faults != self.record.n_faults,
        )
        if outcome.value is None:
            return
        problems = {}
        for number, state in journal.states_since(mark):
            problems[number] = hits_problem(outcome.value, state, query, k, mode)
            if problems[number] is None:
                break
        if not problems:
            self.record.count("views that were not checked, because the journal had moved on")
            return
        self.record.check(RANKINGS)
        if None not in problems.values():
            hits = [[hit.doc_id, hit.title, dict(hit.metadata), hit.score] for hit in outcome.value]
            self.record.violation(
                RANKINGS, "hits are of none of the states", query=query, k=k, mode=mode, states=problems, hits=hits[:10]
            )


def hits_problem(hits: Sequence[Hit], state: State, query: str, k: int, mode: str) -> str | None:
    """Return why hits are not those of a state; None if they are. Of fused rankings only the documents are compared."""
    for hit in hits:
        document = state.get(hit.doc_id)
        if document is None:
            return f"there is no {hit.doc_id}"
        if (hit.title, hit.metadata) != (document.title, document.metadata) or hit.snippet not in document.text:
            return f"{hit.doc_id} is {document.title} with {document.metadata}"
        if document.encoded and hit.pending:
            return f"{hit.doc_id} is pending"
    if mode != "tokens":
        distinct = {hit.doc_id for hit in hits}
        return None if len(distinct) == len(hits) <= k else f"{len(hits)} hits are {len(distinct)} documents"
    return ranking_problem(bm25(state, query), [hit.doc_id for hit in hits], [hit.score for hit in hits], k)


class Copier(Role):
    """Writes snapshots, each over the last one, and compares them with the view."""

    pause_s = 0.5

    def __init__(self, *arguments: Any) -> None:
        """Read what a killed predecessor has left."""
        super().__init__(*arguments)
        self.copy = self.setting.index.with_name(f"copy-{self.number}")
        self.before = self._contents()

    def step(self) -> None:
        """Open the index, write a snapshot of it, and compare."""
        mark = self.journal.mark()
        if (index := self.record.attempt("open", lambda: Index.open(self.setting.index)).value) is None:
            return
        with index:
            observed = self.check_view(index.view, mark)
            fault = self.faults.draw("snapshot")
            done = self.record.attempt("snapshot", lambda: index.snapshot(self.copy, overwrite=True), fault)
        contents = self._contents()
        self.record.check(SNAPSHOTS)
        allowed = [observed] if done.error is None else [observed, self.before]
        if observed is not None and contents not in allowed:
            self.record.violation(
                SNAPSHOTS,
                f"the copy is not the view; the snapshot raised {done.error!r}",
                fault=asdict(fault),
                difference=None if contents is None else difference(contents, observed),
            )
        self.before = contents

    def _contents(self) -> State | None:
        """Return the documents of the copy, whose checksums must be right; None without a copy."""
        if not self.copy.exists():
            return None

        def read() -> State:
            with Index.open(self.copy) as index:
                index.verify()
                return observe(index.view)

        contents = self.record.attempt("open and verify a copy", read).value
        self.record.check(CHECKSUMS)
        return contents


ROLES: dict[str, type[Role]] = {
    "writer": Writer,
    "compactor": Compactor,
    "worker": Worker,
    "opener": Opener,
    "searcher": SearcherProcess,
    "copier": Copier,
}


def start(setting: Setting, name: str, number: int, n_starts: int) -> int:
    """Start a process; return its process id.

    Args:
        setting: folder, end and options.
        name: name of the role.
        number: number of the process among those of its role.
        n_starts: number of processes that have been started before, for a seed of its own.
    """
    pid = os.fork()
    if pid:
        return pid
    try:
        signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent ends its children
        logging.getLogger("lightir").setLevel(logging.ERROR)  # warnings about failing calls
        title = f"{name}-{number}-{os.getpid()}"
        traces = (setting.root / "log" / f"{title}.trace").open("w")
        faulthandler.register(signal.SIGUSR1, file=traces, all_threads=True)
        faulthandler.enable(file=traces)
        rng = random.Random(f"{setting.seed} {name} {number} {n_starts}")
        faults = Faults(setting.root / "work", setting.fault_rate, rng)
        recorder = Recorder(setting.root / "log" / f"{title}.jsonl", f"{name} {number}", faults)
        try:
            ROLES[name](setting, number, recorder, rng).run()
        except Exception as error:  # noqa: BLE001 - a child reports its failure
            recorder.violation(ERRORS, f"the process ended with {error!r}", trace=trace_of(error))
        recorder.flush(now=True)
    finally:
        os._exit(0)
