"""Write an index as collections that Anserini and Pyserini index: learned sparse vectors, or dense vectors.

A JsonVectorCollection has one JSON object per line and document: `{"id": ..., "contents": ..., "vector": {TERM:
IMPACT}}`. A JsonDenseVectorCollection has "docid" in place of "id", and an array of numbers as "vector". Topics are
lines `QUERY_ID TAB TERMS`, in which a term stands as often as it weighs.
"""

from __future__ import annotations

import contextlib
import itertools
import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.files import atomic_file, atomic_folder
from lightir.index.exchange.live_postings import PIECE_DOCUMENTS, model_terms, term_names
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.view import View
from lightir.progress import Progress
from lightir.query import CachedQueryEncoder
from lightir.types import Query
from lightir.vectors import row_entries

VectorBranch: TypeAlias = Literal["sparse", "dense"]
FILE_DOCUMENTS = 1_000_000
"""Maximum number of documents of a file; Anserini reads several files in parallel."""

TOPICS_BATCH = 256
WEIGHT_STEPS = 100
"""Number of repetitions that stand for the weight 1, where queries have weights that are no counts."""


@dataclass(frozen=True, slots=True)
class AnseriniReport:
    """Numbers of an export.

    Attributes:
        branch: branch that was written.
        documents: number of documents; each passage is one.
        files: number of files.
        pending: number of pending documents, which are left out.
    """

    branch: VectorBranch
    documents: int
    files: int
    pending: int


@dataclass(frozen=True, slots=True)
class TopicsReport:
    """Numbers of a file of topics.

    Attributes:
        queries: number of queries.
        empty: number of queries without a term, which are left out.
        steps: repetitions that stand for a weight of 1.
    """

    queries: int
    empty: int
    steps: int


def export_anserini(
    view: View,
    out: Path | str,
    *,
    branch: VectorBranch | None = None,
    texts: bool = False,
    overwrite: bool = False,
) -> AnseriniReport:
    """Write the encoded documents of a view as a folder of JSON lines, vectors-00000.jsonl and so on.

    Terms are the model's tokens, see `lightir.index.exchange.live_postings.term_names`.

    Args:
        view: state of an index.
        out: folder to write.
        branch: "sparse" for a JsonVectorCollection, "dense" for a JsonDenseVectorCollection; None for sparse if the
            index has it.
        texts: write titles and texts as "contents"; otherwise they are empty.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: the index lacks the branch.
        AlreadyExists: the folder exists and overwrite is off.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    chosen: VectorBranch = branch or ("sparse" if "sparse" in view.branches else "dense")
    view.require(chosen)
    names = model_terms(view) if chosen == "sparse" else []
    n_documents, written = len(view) - view.n_pending, 0
    with (
        atomic_folder(Path(out), overwrite=overwrite) as folder,
        Progress("export", unit="document", total=n_documents) as progress,
        contextlib.ExitStack() as files,
    ):
        for live, places in _pieces(view):
            if written % FILE_DOCUMENTS == 0:
                files.close()
                path = folder / f"vectors-{written // FILE_DOCUMENTS:05d}.jsonl"
                file = files.enter_context(path.open("wb"))
            doc_ords = (live.first_ord + places).astype(np.uint32)
            doc_ids = view.doc_ids(doc_ords)
            contents = [doc.full_text() for doc in view.documents_at(doc_ords)] if texts else [""] * len(doc_ids)
            id_field = "id" if chosen == "sparse" else "docid"
            vectors = _impacts(live, places, names) if chosen == "sparse" else _dense(live, places)
            for doc_id, text, vector in zip(doc_ids, contents, vectors, strict=True):
                record = {id_field: doc_id, "contents": text, "vector": vector}
                file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
            written += len(places)
            progress.update(len(places))
        files.close()
    return AnseriniReport(chosen, written, -(-written // FILE_DOCUMENTS), view.n_pending)


def _pieces(view: View) -> Iterator[tuple[LiveSegment, npt.NDArray[np.int64]]]:
    """Yield a segment and rows of encoded documents; no piece crosses the end of a file."""
    n_before = 0
    for live in view.segments:
        places = np.flatnonzero(live.live & ~live.segment.pending)
        while len(places):
            size = min(PIECE_DOCUMENTS, FILE_DOCUMENTS - n_before % FILE_DOCUMENTS)
            yield live, places[:size]
            n_before += len(places[:size])
            places = places[size:]


def _impacts(live: LiveSegment, places: npt.NDArray[np.int64], names: Sequence[str]) -> Iterator[dict[str, int]]:
    stored = live.segment.sparse
    assert stored is not None
    with live.segment.naming_damage():
        indptr, entries = row_entries(stored.indptr, places)
        terms, impacts = stored.term_ids[entries].tolist(), stored.weights[entries].astype(np.int64).tolist()
    for start, end in itertools.pairwise(indptr.tolist()):
        yield {names[term]: impact for term, impact in zip(terms[start:end], impacts[start:end], strict=True)}


def _dense(live: LiveSegment, places: npt.NDArray[np.int64]) -> list[list[float]]:
    assert live.segment.dense is not None
    rows, scales = live.segment.dense
    values = rows[places].astype(np.float32)
    vectors: list[list[float]] = (values if scales is None else values * scales[places][:, None]).tolist()
    return vectors


def write_topics(
    encoder: CachedQueryEncoder, queries: Iterable[Query], out: Path | str, *, task: str | None = None
) -> TopicsReport:
    """Write queries as topics of terms for Anserini (TsvInt or TsvString topics, with -pretokenized), atomically.

    Counts are repetitions. Other weights are rounded to multiples of 1 / WEIGHT_STEPS. Lucene's sum of a term's impact
    over its repetitions is then the product of weight and impact.

    Args:
        encoder: query encoder with a sparse branch.
        queries: queries; their ids must not have tabs.
        out: file to write.
        task: name of the query table.

    Raises:
        InvalidInput: the encoder has no sparse branch, or an id has a tab or a line break.
    """
    if encoder.contract.sparse is None:
        raise InvalidInput("topics of terms require a model with a sparse branch")
    steps = WEIGHT_STEPS if encoder.contract.query.weights_terms else 1
    names = term_names(encoder.tokenizer, encoder.contract.backbone.vocab_size)
    n_queries = empty = 0
    with atomic_file(out) as file:
        for batch in _batches(queries):
            vectors = encoder.encode([query.text for query in batch], task=task).sparse
            assert vectors is not None
            for row, query in enumerate(batch):
                if not query.query_id or any(char in query.query_id for char in "\t\r\n"):
                    raise InvalidInput(f"query id {query.query_id!r} is empty or has a tab, which a topic cannot have")
                term_ids, weights = vectors.row(row)
                repeats = np.rint(weights.astype(np.float64) * steps).astype(np.int64)
                terms = [names[term] for term in np.repeat(term_ids, repeats).tolist()]
                n_queries, empty = n_queries + 1, empty + (not terms)
                if terms:
                    file.write(f"{query.query_id}\t{' '.join(terms)}\n".encode())
    return TopicsReport(n_queries, empty, steps)


def _batches(queries: Iterable[Query]) -> Iterator[list[Query]]:
    remaining = iter(queries)
    while batch := list(itertools.islice(remaining, TOPICS_BATCH)):
        yield batch
