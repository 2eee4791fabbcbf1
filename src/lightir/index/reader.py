"""Index: one snapshot of an index folder, opened for searching."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir import kernel
from lightir.analysis import MODEL, Analyzer
from lightir.contract import Contract, from_json
from lightir.errors import FormatError, InvalidInput
from lightir.index.segment import Segment, SparseBranch
from lightir.index.store import STORE_FILE, StoreReader
from lightir.index.strings import SortedStrings
from lightir.query import CachedQueryEncoder
from lightir.types import BRANCHES, Branch, Document
from lightir.vectors import Ragged, SparseVectors

INDEX_VERSION = 1
SEGMENTS_FOLDER = "segments"
ENCODER_FOLDER = "query-encoder"


@dataclass(frozen=True, slots=True)
class IndexInfo:
    """What an index holds.

    Attributes:
        documents: number of documents.
        pending: documents without vectors yet.
        deleted: documents that are gone but not compacted away.
        segments: number of segments.
        branches: what can be searched.
        bytes: on the disk: dense, sparse, tokens, store.
        contract: fingerprint, document_fingerprint, method and backbone; None in an index without a model.
        analyzer: of the tokens branch; None without one.
        dense_dim: width of the dense rows; None without them.
    """

    documents: int
    pending: int
    deleted: int
    segments: int
    branches: tuple[Branch, ...]
    bytes: Mapping[str, int]
    contract: Mapping[str, str] | None
    analyzer: str | None
    dense_dim: int | None


class Index:
    """An index folder, read-only; arrays are memory-mapped, so opening is quick whatever the size."""

    def __init__(self, folder: Path, store: StoreReader, segment: Segment, record: Mapping[str, Any]) -> None:
        """For `open`."""
        self.folder = folder
        self.store = store
        self._segment = segment
        where = str(folder / STORE_FILE)
        contract, analyzer = record["contract"], record["analyzer"]
        self.contract: Contract | None = None if contract is None else from_json(Contract, contract, where)
        self.analyzer: Analyzer | None = None if analyzer is None else from_json(Analyzer, analyzer, where)
        self._doc_ids = SortedStrings(segment.array("doc_ids.text"), segment.array("doc_ids.indptr"))

    @classmethod
    def open(cls, folder: Path | str) -> Index:
        """Open an index and check versions and file sizes; `verify` checks every byte.

        Raises:
            NotFound: the folder is no index.
            FormatError: a file is missing, damaged or of another version; the file is named.
        """
        folder = Path(folder)
        store = StoreReader(folder / STORE_FILE)
        try:
            record = store.record()
            if record.get("format_version") != INDEX_VERSION:
                raise FormatError(
                    f"{folder} has index format {record.get('format_version')!r}, written by lightir "
                    f"{record.get('written_by')!r}; this release reads {INDEX_VERSION}; build it again"
                )
            segments = store.segments()
            if len(segments) != 1:
                raise FormatError(f"{store.path} lists {len(segments)} segments; expected one")
            name, _, checksum = segments[0]
            return cls(folder, store, Segment(folder / SEGMENTS_FOLDER / name, checksum), record)
        except BaseException:
            store.close()
            raise

    def close(self) -> None:
        """Close the store; arrays go when nothing uses them any more."""
        self.store.close()

    def __enter__(self) -> Index:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def __len__(self) -> int:
        """Number of documents."""
        return len(self._segment)

    @cached_property
    def branches(self) -> tuple[Branch, ...]:
        """The branches that can be searched."""
        return tuple(branch for branch in BRANCHES if self._segment.has(branch))

    @cached_property
    def dense(self) -> tuple[kernel.Rows, npt.NDArray[np.float32] | None]:
        """The dense rows (n_docs, dim), and their scales where they are int8."""
        self._require("dense")
        rows = self._segment.array("dense.rows")
        return rows, self._segment.array("dense.scales") if rows.dtype == np.int8 else None

    @cached_property
    def sparse(self) -> SparseBranch:
        """The learned sparse branch."""
        self._require("sparse")
        return self._segment.sparse_branch("sparse")

    @cached_property
    def tokens(self) -> SparseBranch:
        """The BM25 branch; a weight holds all of BM25 but the count in the query."""
        self._require("tokens")
        return self._segment.sparse_branch("tokens")

    @cached_property
    def _terms(self) -> SortedStrings:
        return SortedStrings(self._segment.array("tokens.terms.text"), self._segment.array("tokens.terms.indptr"))

    def query_encoder(self, *, threads: int = 1) -> CachedQueryEncoder | None:
        """The query encoder that the index carries, or None."""
        folder = self.folder / ENCODER_FOLDER
        return CachedQueryEncoder.load(folder, threads=threads) if folder.is_dir() else None

    def token_queries(self, texts: Sequence[str]) -> SparseVectors:
        """The texts' term counts over the dictionary of the tokens branch; unknown terms are left out.

        Raises:
            InvalidInput: the index has no tokens branch, or its terms are the model's: then count those.
        """
        self._require("tokens")
        assert self.analyzer is not None  # the branch is there
        rows = [[self._terms.find(term) for term in row] for row in self.analyzer.terms(texts)]
        known = Ragged.from_lists([[term_id for term_id in row if term_id is not None] for row in rows])
        return SparseVectors.count(known, vocab_size=self.tokens.postings.vocab_size)

    def token(self, term_id: int) -> str:
        """A term of the tokens branch's dictionary (not of a model's: its tokenizer has them)."""
        return self._terms[term_id]

    def doc_ids(self, doc_ords: npt.NDArray[np.uint32]) -> list[str]:
        """The ids of documents; doc_ords follow doc_ids, so ascending ords are ascending ids."""
        return [self._doc_ids[doc_ord] for doc_ord in doc_ords.tolist()]

    def doc_ord(self, doc_id: str) -> int | None:
        """A document's place in the arrays, or None."""
        return self._doc_ids.find(doc_id)

    def documents(self, doc_ids: Sequence[str]) -> list[Document]:
        """The documents with the given ids, in the order of the ids.

        Raises:
            NotFound: there is no such document.
        """
        return self.store.documents(doc_ids)

    def info(self) -> IndexInfo:
        """Counts, sizes and the contract."""
        contract = None
        if self.contract is not None:
            contract = {
                "fingerprint": self.contract.fingerprint,
                "document_fingerprint": self.contract.document_fingerprint,
                "method": self.contract.method,
                "backbone": self.contract.backbone.address,
            }
        n_bytes: dict[str, int] = {branch: self._segment.n_bytes(branch) for branch in BRANCHES}
        return IndexInfo(
            documents=len(self),
            pending=0,
            deleted=0,
            segments=1,
            branches=self.branches,
            bytes={**n_bytes, "store": self.store.path.stat().st_size + self._segment.n_bytes("doc_ids")},
            contract=contract,
            analyzer=self.analyzer.name if self.analyzer else None,
            dense_dim=int(self.dense[0].shape[1]) if "dense" in self.branches else None,
        )

    def verify(self) -> None:
        """Read every byte against its checksum.

        Raises:
            FormatError: names what is damaged.
        """
        self._segment.verify()
        self.store.verify(len(self))

    @property
    def counts_model_terms(self) -> bool:
        """Whether the tokens branch counts the model's term ids."""
        return self.analyzer is not None and self.analyzer.name == MODEL

    def _require(self, branch: Branch) -> None:
        if branch not in self.branches:
            raise InvalidInput(f"{self.folder} has no {branch} branch; it has {', '.join(self.branches)}")
