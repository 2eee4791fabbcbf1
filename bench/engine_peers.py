"""The engines of bench_engine.py: lightir's kernel and other people's, behind one interface."""

from __future__ import annotations

import gc
import os
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from engine_data import DenseTask, Documents, Floats, Query, SparseTask
from lightir import kernel
from lightir.kernel.candidates import BoundBranch, CandidateSearch, Request
from lightir.kernel.segments import SparseRows, SparseSegments
from optional import is_installed

Found = tuple[npt.NDArray[np.int64], npt.NDArray[np.float32]]
"""Documents, best first, and their scores."""

TRAINED_ON = 20_000
HNSW_NEIGHBOURS, HNSW_BUILD, HNSW_SEARCH = 32, 100, 64
SEISMIC_POSTINGS, SEISMIC_HEAP = 3500, 0.8


@dataclass(slots=True)
class Engine:
    """An engine to measure.

    Attributes:
        name: the engine's name in the tables.
        search: function from (query, k) to documents and scores.
        batch: (queries, k, threads), for engines that take many queries at once; the others get a pool of threads.
        n_bytes: size of the searched data in bytes; 0 if unknown.
        build_s: seconds of CPU.
        exact: whether its scores must be lightir's.
        own_scores: scores that mean something else (other field norms), so that nothing is compared.
        add: (first, last) puts copies of these documents in as new ones, and makes them findable.
    """

    name: str
    search: Callable[[Any, int], Found]
    batch: Callable[[Sequence[Any], int, int], object] | None = None
    n_bytes: int = 0
    build_s: float = 0.0
    exact: bool = True
    own_scores: bool = False
    add: Callable[[int, int], None] | None = None

    def search_all(self, queries: Sequence[Any], k: int, threads: int) -> None:
        """All queries, as fast as it can."""
        if self.batch is not None:
            self.batch(queries, k, threads)
        elif threads == 1:
            for query in queries:
                self.search(query, k)
        else:
            with ThreadPoolExecutor(threads) as pool:
                list(pool.map(lambda query: self.search(query, k), queries))


Maker = Callable[[], Engine]


def installed(makers: Sequence[tuple[str, Maker]]) -> Iterator[Engine]:
    """One engine after the other, each gone before the next is made; says which packages are not installed.

    Args:
        makers: required packages, separated by spaces, and function.
    """
    for package, make in makers:
        if not is_installed(*package.split()):
            continue
        gc.collect()
        yield make()


@contextmanager
def quiet() -> Iterator[None]:
    """Discard everything that is written to standard output inside the block, also by native code."""
    sys.stdout.flush()
    kept = os.dup(1)
    with Path(os.devnull).open("w") as nothing:
        os.dup2(nothing.fileno(), 1)
        try:
            yield
        finally:
            os.dup2(kept, 1)
            os.close(kept)


def cpu_s(work: Callable[[], Any]) -> tuple[Any, float]:
    """Return the result of `work` and the CPU seconds that this process took for it."""
    start = time.process_time()
    made = work()
    return made, time.process_time() - start


# Sparse


def lightir_sparse(task: SparseTask, name: str = "lightir") -> Engine:
    """The kernel over postings."""
    postings, seconds = cpu_s(task.documents.invert)

    def search(query: Query, k: int) -> Found:
        doc_ords, scores = kernel.sparse_top_k(postings, *query, k=k)
        return doc_ords.astype(np.int64), scores

    def batch(queries: Sequence[Query], k: int, threads: int) -> object:
        indptr = np.cumsum([0, *(len(terms) for terms, _ in queries)])
        terms, weights = (np.concatenate(parts) for parts in zip(*queries, strict=True))
        return kernel.sparse_top_k_batch(postings, indptr, terms, weights, k=k, threads=threads)

    n_bytes = sum(array.nbytes for array in postings.arrays().values())
    return Engine(name, search, batch, n_bytes, seconds)


def lightir_bags(task: SparseTask) -> Engine:
    """A tokens branch of bags as an index has it."""
    documents = task.documents
    postings, seconds = cpu_s(documents.invert)
    parts = SparseRows(documents.indptr, documents.term_ids, documents.weights, postings, binary=True)
    segments = SparseSegments([parts], [len(documents)])

    bags = CandidateSearch([BoundBranch("tokens", segments)], scale="none")

    def search(query: Query, k: int) -> Found:
        (best,) = bags.search([segments.queries(np.array([0, len(query[0])]), *query)], Request(k, k, columns=False))
        return best.doc_ords.astype(np.int64), best.scores.astype(np.float32)

    def batch(queries: Sequence[Query], k: int, threads: int) -> object:
        indptr = np.cumsum([0, *(len(terms) for terms, _ in queries)])
        terms, weights = (np.concatenate(parts) for parts in zip(*queries, strict=True))
        return bags.search([segments.queries(indptr, terms, weights)], Request(k, k, threads, columns=False))

    arrays = [documents.indptr, documents.term_ids, documents.weights, *postings.arrays().values()]
    return Engine("lightir", search, batch, sum(array.nbytes for array in arrays), seconds)


def scipy_columns(task: SparseTask) -> Engine:
    """A CSC matrix, the query's columns summed."""
    columns = _columns(task.documents, task.documents.weights.astype(np.float32))

    def search(query: Query, k: int) -> Found:
        terms, weights = query
        scores = columns[:, terms.astype(np.int64)] @ weights
        top = best(scores, k)
        top = top[scores[top] > 0]
        return top, scores[top]

    return Engine("scipy CSC", search, n_bytes=_matrix_bytes(columns))


def bm25s_numba(task: SparseTask) -> Engine:
    """Its numba search. It has no query weights but takes repeats, so the terms' weights are in the documents'."""
    import bm25s

    weights = task.documents.weights * task.term_weights[task.documents.term_ids]
    columns = _columns(task.documents, weights)
    engine = bm25s.BM25(backend="numba")
    engine.scores = {
        "data": columns.data,
        "indices": columns.indices,
        "indptr": columns.indptr,
        "num_docs": len(task.documents),
    }
    engine.nonoccurrence_array = None
    engine.vocab_dict = {str(i): i for i in range(task.documents.vocab_size)}
    engine.unique_token_ids_set = set(range(task.documents.vocab_size))

    def batch(queries: Sequence[Query], k: int, threads: int) -> Any:
        tokens = [np.repeat(terms, counts.astype(np.int64)).tolist() for terms, counts in queries]
        k = min(k, len(task.documents))
        return engine.retrieve(tokens, k=k, n_threads=threads, show_progress=False, backend_selection="numba")

    def search(query: Query, k: int) -> Found:
        results = batch([query], k, 1)
        some = results.scores[0] > 0
        return results.documents[0][some].astype(np.int64), results.scores[0][some]

    return Engine("bm25s (numba)", search, batch, _matrix_bytes(columns))


def seismic(task: SparseTask) -> Engine:
    """Approximate; its default number of postings a list, every query term used."""
    import seismic as package

    text = package.get_seismic_string()
    names = np.array([str(i) for i in range(task.documents.vocab_size)], dtype=text)

    def build() -> Any:
        dataset = package.SeismicDataset()
        for doc in range(len(task.documents)):
            terms, weights = task.documents.row(doc)
            dataset.add_document(str(doc), names[terms], weights.astype(np.float32))
        return package.SeismicIndex.build_from_dataset(dataset, n_postings=SEISMIC_POSTINGS, num_threads=1)

    with quiet(), tempfile.TemporaryDirectory() as folder:
        index, seconds = cpu_s(build)
        index.save(str(Path(folder, "saved")))
        n_bytes = folder_bytes(folder)
    settings = {"query_cut": 10_000, "heap_factor": SEISMIC_HEAP}

    def search(query: Query, k: int) -> Found:
        terms, weights = query
        hits = index.search("", names[terms], weights, k=k, **settings)
        return np.array([int(doc) for _, _, doc in hits]), np.array([score for _, score, _ in hits], np.float32)

    def batch(queries: Sequence[Query], k: int, threads: int) -> object:
        ids = np.array([str(i) for i in range(len(queries))], dtype=text)
        terms, weights = [names[terms] for terms, _ in queries], [weights for _, weights in queries]
        return index.batch_search(ids, terms, weights, k=k, num_threads=threads, **settings)

    return Engine("seismic", search, batch, n_bytes, seconds, exact=False)


def tantivy(counts: Documents) -> Engine:
    """Its BM25 over words, with its own parameters and field norms: speed only."""
    import tantivy as package

    folder = tempfile.TemporaryDirectory()
    builder = package.SchemaBuilder()
    builder.add_text_field("body", stored=False, tokenizer_name="whitespace", index_option="freq")
    index = package.Index(builder.build(), folder.name)

    def add(first: int, last: int) -> None:
        writer = index.writer(heap_size=200_000_000, num_threads=1)
        for doc in range(first, last):
            terms, tf = counts.row(doc)
            words = " ".join(f"t{term}" for term in np.repeat(terms, tf).tolist())
            writer.add_document(package.Document(body=words))
        writer.commit()
        writer.wait_merging_threads()
        index.reload()

    _, seconds = cpu_s(lambda: add(0, len(counts)))

    def search(query: Query, k: int, keep: object = folder) -> Found:
        words = " ".join(f"t{term}" for term, n in zip(query[0].tolist(), query[1], strict=True) for _ in range(int(n)))
        hits = index.searcher().search(index.parse_query(words, ["body"]), k, count=False).hits
        documents = [address.doc for _, address in hits]
        return np.array(documents, dtype=np.int64), np.array([score for score, _ in hits], np.float32)

    return Engine("tantivy", search, None, folder_bytes(folder.name), seconds, own_scores=True, add=add)


# Dense


def lightir_int8(task: DenseTask) -> Engine:
    """int8 rows, a scale each."""
    (rows, scales), seconds = cpu_s(lambda: quantised(task.vectors))
    return _lightir_dense("lightir int8", rows, scales, seconds)


def lightir_float16(task: DenseTask) -> Engine:
    """float16 rows."""
    half, seconds = cpu_s(lambda: task.vectors.astype(np.float16))
    return _lightir_dense("lightir float16", half, None, seconds)


def lightir_copies(task: DenseTask) -> Engine:
    """float16 rows with int8 copies that are read first."""
    half = task.vectors.astype(np.float16)
    copies, seconds = cpu_s(lambda: kernel.copy_rows(half))
    return _lightir_dense("lightir float16+int8", half, None, seconds, copies)


def _lightir_dense(
    name: str, rows: Any, scales: Floats | None, build_s: float, copies: kernel.Copies | None = None
) -> Engine:
    def batch(queries: Sequence[Floats], k: int, threads: int) -> Any:
        return kernel.dense_top_k(rows, np.stack(queries), k=k, scales=scales, threads=threads, copies=copies)

    def search(query: Floats, k: int) -> Found:
        doc_ords, scores = kernel.dense_top_k(rows, query[None], k=k, scales=scales, copies=copies)
        return doc_ords[0].astype(np.int64), scores[0]

    n_bytes = rows.nbytes + (0 if scales is None else scales.nbytes)
    if copies is not None:
        n_bytes += copies.rows.nbytes + copies.scales.nbytes + copies.errors.nbytes
    return Engine(name, search, batch, n_bytes, build_s, exact=False)


def faiss_flat(task: DenseTask) -> Engine:
    """float32 rows."""
    import faiss

    return _faiss("faiss Flat", faiss.IndexFlatIP(task.vectors.shape[1]), task, 4)


def faiss_sq8(task: DenseTask) -> Engine:
    """8 bits a number, a scale a column."""
    import faiss

    kind = faiss.ScalarQuantizer.QT_8bit
    return _faiss(
        "faiss SQ8", faiss.IndexScalarQuantizer(task.vectors.shape[1], kind, faiss.METRIC_INNER_PRODUCT), task, 1
    )


def faiss_hnsw(task: DenseTask) -> Engine:
    """Approximate, float32 rows."""
    import faiss

    index = faiss.IndexHNSWFlat(task.vectors.shape[1], HNSW_NEIGHBOURS, faiss.METRIC_INNER_PRODUCT)
    index.hnsw.efConstruction = HNSW_BUILD
    index.hnsw.efSearch = HNSW_SEARCH
    engine = _faiss("faiss HNSW", index, task, 4)
    engine.n_bytes += 8 * HNSW_NEIGHBOURS * len(task.vectors)
    return engine


def _faiss(name: str, index: Any, task: DenseTask, width: int) -> Engine:
    import faiss

    faiss.omp_set_num_threads(1)

    def build() -> None:
        index.train(task.vectors[:TRAINED_ON])
        index.add(task.vectors)

    _, seconds = cpu_s(build)

    def batch(queries: Sequence[Floats], k: int, threads: int) -> object:
        faiss.omp_set_num_threads(threads)
        results = index.search(np.stack(queries), k)
        faiss.omp_set_num_threads(1)
        return results

    def search(query: Floats, k: int) -> Found:
        scores, doc_ords = index.search(query[None], k)
        return doc_ords[0], scores[0]

    def add(first: int, last: int) -> None:
        index.add(task.vectors[first:last])

    return Engine(name, search, batch, task.vectors.size * width, seconds, exact=False, add=add)


def numpy_float32(task: DenseTask) -> Engine:
    """A product of matrix and vector."""

    def search(query: Floats, k: int) -> Found:
        scores = task.vectors @ query
        top = best(scores, k)
        return top, scores[top]

    return Engine("numpy float32", search, n_bytes=task.vectors.nbytes, exact=False)


# Qdrant Edge


def qdrant_sparse(task: SparseTask) -> Engine:
    """A shard in a temporary folder, exact sparse search."""
    shard = _Shard([(task.documents, None)], None, has_terms=True)
    return shard.engine("Qdrant Edge", shard.sparse_query)


def qdrant_dense(task: DenseTask) -> Engine:
    """A shard in a temporary folder, exact search of float32 rows."""
    shard = _Shard([(None, task.vectors)], task.vectors.shape[1])
    engine = shard.engine("Qdrant Edge", shard.dense_query)
    engine.exact = False
    return engine


def qdrant_hybrid(
    batches: Iterable[tuple[Documents, Floats]], dim: int, depth: int, rrf_k: int, folder: str | None = None
) -> Engine:
    """Both branches, exact, their lists of the best `depth` joined by reciprocal ranks, which count from 0."""
    import qdrant_edge as package

    shard = _Shard(batches, dim, has_terms=True, folder=folder)

    def request(query: tuple[Query, Floats], k: int) -> Any:
        terms, vector = query
        branches = [
            package.Prefetch(depth, query=shard.sparse(terms)),
            package.Prefetch(depth, query=shard.dense(vector), params=package.SearchParams(exact=True)),
        ]
        return package.QueryRequest(limit=k, prefetches=branches, query=package.Fusion.Rrf(k=rrf_k - 1))

    engine = shard.engine("Qdrant Edge, rrf", request)
    engine.own_scores = True
    return engine


class _Shard:
    """Documents with either kind of vectors, or both, in a temporary folder inside `folder`."""

    def __init__(
        self,
        batches: Iterable[tuple[Documents | None, Floats | None]],
        dim: int | None,
        *,
        has_terms: bool = False,
        folder: str | None = None,
    ) -> None:
        import qdrant_edge as package

        self.package, self.folder = package, tempfile.TemporaryDirectory(dir=folder)
        sparse = {"terms": package.EdgeSparseVectorParams(full_scan_threshold=1)} if has_terms else None
        dense = None
        if dim is not None:
            dense = {"rows": package.EdgeVectorParams(size=dim, distance=package.Distance.Dot)}
        config = package.EdgeConfig(vectors=dense, sparse_vectors=sparse)
        self.shard = package.EdgeShard.create(self.folder.name, config)
        self.n_points, self.build_s = 0, 0.0
        for self.documents, self.vectors in batches:
            n = len(self.documents if self.documents is not None else self.vectors)  # type: ignore[arg-type]
            self.build_s += cpu_s(lambda n=n: self.add(0, n))[1]
        self.build_s += cpu_s(self.shard.optimize)[1]

    def add(self, first: int, last: int) -> None:
        for start in range(first, last, 2000):
            points = []
            for doc in range(start, min(start + 2000, last)):
                points.append(self.package.Point(id=self.n_points, vector=self._vector(doc)))
                self.n_points += 1
            self.shard.update(self.package.UpdateOperation.upsert_points(points))

    def _vector(self, doc: int) -> dict[str, Any]:
        vector: dict[str, Any] = {}
        if self.documents is not None:
            terms, weights = self.documents.row(doc)
            values = weights.astype(float).tolist()
            vector["terms"] = self.package.SparseVector(indices=terms.tolist(), values=values)
        if self.vectors is not None:
            vector["rows"] = self.vectors[doc].tolist()
        return vector

    def sparse(self, query: Query) -> Any:
        vector = self.package.SparseVector(indices=query[0].tolist(), values=query[1].tolist())
        return self.package.Query.Nearest(vector, using="terms")

    def dense(self, query: Floats) -> Any:
        return self.package.Query.Nearest(query.tolist(), using="rows")

    def sparse_query(self, query: Query, k: int) -> Any:
        return self.package.QueryRequest(limit=k, query=self.sparse(query))

    def dense_query(self, query: Floats, k: int) -> Any:
        params = self.package.SearchParams(exact=True)
        return self.package.QueryRequest(limit=k, query=self.dense(query), params=params)

    def engine(self, name: str, request: Callable[[Any, int], Any]) -> Engine:
        def search(query: Any, k: int) -> Found:
            points = self.shard.query(request(query, k))
            return np.array([p.id for p in points], np.int64), np.array([p.score for p in points], np.float32)

        return Engine(name, search, None, folder_bytes(self.folder.name), self.build_s, add=self.add)


def quantised(vectors: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """int8 rows, one scale a row."""
    rows, scales = np.empty(vectors.shape, np.int8), np.empty(len(vectors), np.float32)
    for first in range(0, len(vectors), TRAINED_ON):
        part = vectors[first : first + TRAINED_ON]
        span = slice(first, first + len(part))
        scales[span] = np.abs(part).max(axis=1) / 127
        rows[span] = np.rint(part / scales[span, None])
    return rows, scales


def best(scores: Any, k: int) -> npt.NDArray[np.int64]:
    """Positions of the k largest, best first."""
    k = min(k, len(scores))
    top = np.argpartition(scores, -k)[-k:]
    return top[np.argsort(-scores[top], kind="stable")]


def folder_bytes(folder: str | Path) -> int:
    """Return the disk space of all files in a folder in bytes, without holes in sparse files."""
    return sum(path.stat().st_blocks * 512 for path in Path(folder).rglob("*") if path.is_file())


def _columns(documents: Documents, weights: Floats) -> Any:
    import scipy.sparse

    shape = (len(documents), documents.vocab_size)
    csr = (weights, documents.term_ids.view(np.int32), documents.indptr)
    return scipy.sparse.csr_matrix(csr, shape=shape).tocsc()


def _matrix_bytes(columns: Any) -> int:
    return int(columns.data.nbytes + columns.indices.nbytes + columns.indptr.nbytes)
