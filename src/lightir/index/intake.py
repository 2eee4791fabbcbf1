"""Turning documents and their vectors into rows as an index stores them: checked, truncated, quantized, counted."""

from __future__ import annotations

import copy
import dataclasses
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence

import numpy as np
import numpy.typing as npt

from lightir.analysis import AUTO, BAG, OF_A_MODEL, Analyzer
from lightir.contract import Contract, DocumentPolicy
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index.index_options import IndexOptions
from lightir.index.passages.splitter import Splitter
from lightir.index.segments.rows import (
    DenseMatrix,
    DocumentRows,
    TokenRows,
    bags_of_term_ids,
    count_term_ids,
    count_terms,
    count_weighted_terms,
)
from lightir.index.text_fields import counted_fields, field_text
from lightir.index.word_vectors import with_word_vectors
from lightir.query import CachedQueryEncoder
from lightir.shards import Shard
from lightir.text import QueryPolicy, TextTokenizer, check_text, query_term_ids
from lightir.types import Document, require_list
from lightir.vectors import Ragged, SparseVectors, normalized
from lightir.words.languages import languages_of

GATHERED_DOCUMENTS = 65_536
"""Maximum number of documents gathered in memory and written at once, by a build or a change."""

WHOLE_TEXT_TOKENS = 2**31 - 1


class Intake:
    """Maker of rows from shards. The row of a document does not depend on the other documents."""

    def __init__(
        self,
        contract: Contract | None,
        analyzer: Analyzer | None,
        encoder: CachedQueryEncoder | None,
        options: IndexOptions,
    ) -> None:
        """Set up.

        Args:
            contract: contract of the model; required for vectors.
            analyzer: analyzer of title and text for the tokens branch; None for no such branch.
            encoder: query encoder, whose tokenizer the analyzers "model" and "bag" use, and passages of an index with
                a contract; required by a weight of words (`IndexOptions.word_weight`).
            options: options of the index. A word_weight of None is 0.
        """
        if analyzer is not None and analyzer.name in OF_A_MODEL and encoder is None:
            raise InvalidInput(f"the {analyzer.name!r} analyzer requires a query encoder, whose tokenizer it uses")
        if analyzer is not None and analyzer.name == BAG and encoder is not None and encoder.contract.sparse is None:
            raise InvalidInput("the 'bag' analyzer requires a model with a sparse branch, which weights the queries")
        self.contract = contract
        self.analyzer = analyzer
        self.options = options
        self._encoder = encoder
        self._splitter = None
        if options.passages is not None:
            tokenizer = None if encoder is None else encoder.tokenizer
            self._splitter = Splitter(options.passages, contract, tokenizer)

    def prepared(self, shard: Shard) -> Shard:
        """Return a shard as it is stored: its documents have the types of the schema, and long ones are passages.

        Documents with vectors stay whole.

        Raises:
            InvalidInput: a value of another type; the message names document and field. Or the id or a field of a
                document is one of passages.
        """
        schema = self.options.schema
        documents = shard.documents if schema is None else [schema.typed(document) for document in shard.documents]
        if self._splitter is not None and shard.dense is None and shard.sparse is None:
            documents = self._splitter.split(documents)
        return dataclasses.replace(shard, documents=documents)

    def detect_languages(self, documents: Sequence[Document]) -> None:
        """Replace the analyzer "auto" by the one for the languages of some documents."""
        if self.analyzer is not None and self.analyzer.name == AUTO:
            languages = languages_of(document.full_text() for document in documents)
            self.analyzer = Analyzer(f"{AUTO}-{'+'.join(languages)}")

    def detecting(self, documents: Sequence[Document]) -> Intake:
        """Return an intake with the analyzer for the languages of some documents, if its analyzer is "auto"."""
        own = copy.copy(self)
        own.detect_languages(documents)
        return own

    def rows(self, shard: Shard) -> DocumentRows:
        """Return the rows of a shard. Documents without vectors are pending if the index has a contract.

        Raises:
            InvalidInput: the contract has no branch for the vectors, or impacts are not uint8.
            ContractMismatch: vectors have another width or vocabulary than the contract.
        """
        tokens = None if self.analyzer is None else self._tokens(self.analyzer, shard.documents)
        return dataclasses.replace(self.vectors(shard), tokens=tokens)

    def vectors(self, shard: Shard) -> DocumentRows:
        """Return the rows of a shard without the tokens branch. Errors are those of `rows`."""
        has_vectors = shard.dense is not None or shard.sparse is not None
        return DocumentRows(
            [document.doc_id for document in shard.documents],
            np.zeros(0, np.int64),
            np.full(len(shard.documents), not has_vectors and self.contract is not None),
            None if shard.dense is None else self._dense(shard.dense, shard.documents),
            None if shard.sparse is None else _strongest(self._checked_sparse(shard.sparse), self.options.sparse_top_k),
            None,
        )

    def _tokens(self, analyzer: Analyzer, documents: Sequence[Document]) -> TokenRows:
        if self._encoder is not None and analyzer.name == BAG:
            return bags_of_term_ids(bag_term_ids(self._encoder.tokenizer, self._encoder.contract.document, documents))
        if self.options.boosts:
            boosts = counted_fields(self.options.boosts)
            fields = [field_text(document, name) for name in boosts for document in documents]
            return count_weighted_terms(*analyzer.distinct_terms(fields), list(boosts.values()))
        texts = [document.full_text() for document in documents]
        if self._encoder is None or analyzer.name not in OF_A_MODEL:
            return count_terms(*analyzer.distinct_terms(texts))
        # Text is normalized as a query is, but never truncated.
        policy = dataclasses.replace(self._encoder.contract.query, max_tokens=WHOLE_TEXT_TOKENS)
        return count_term_ids(query_term_ids(self._encoder.tokenizer, policy, texts))

    def _dense(self, rows: npt.NDArray[np.float16], documents: Sequence[Document]) -> DenseMatrix:
        if self.contract is None or self.contract.dense is None:
            raise InvalidInput(
                f"there are dense vectors, but the contract {'is missing' if self.contract is None else 'is sparse'}"
            )
        width = (self.contract.dense.dims or (self.contract.backbone.hidden_size,))[0]
        if rows.ndim != 2 or rows.shape[1] != width:
            raise ContractMismatch(f"dense vectors have shape {rows.shape}, but the contract has width {width}")
        if self.options.dense_dim is not None and self.options.dense_dim > width:
            raise InvalidInput(f"dense_dim is {self.options.dense_dim}; the vectors have 1 to {width} columns")
        if self.contract.dense.similarity == "dot" and self.options.dense_dim not in (None, width):
            raise InvalidInput("dense_dim shortens vectors of length 1, and this model's are compared by dot product")
        if self.options.word_weight:
            assert self._encoder is not None  # with_word_weight and IndexWriter see to it: rows never lack their words
            rows = with_word_vectors(rows, documents, self._encoder, self.options.word_weight)
        narrow = _narrow(rows, self.options.dense_dim)
        return _int8(narrow) if self.options.dense_dtype == "int8" else DenseMatrix(narrow, None)

    def _checked_sparse(self, rows: SparseVectors) -> SparseVectors:
        if self.contract is None or self.contract.sparse is None:
            raise InvalidInput(
                f"there are sparse vectors, but the contract {'is missing' if self.contract is None else 'is dense'}"
            )
        if rows.vocab_size != self.contract.backbone.vocab_size:
            raise ContractMismatch(
                f"sparse vectors have vocabulary {rows.vocab_size}, "
                f"but the contract has {self.contract.backbone.vocab_size}"
            )
        if rows.weights.dtype != np.uint8:
            raise InvalidInput(f"sparse impacts are {rows.weights.dtype}; expected uint8")
        return rows


def bag_term_ids(tokenizer: TextTokenizer, policy: DocumentPolicy, documents: Sequence[Document]) -> Ragged:
    """Return the term ids of which documents' bags are made, in text order, with repetitions.

    Texts are normalized as for the model, without its frame, and truncated to the policy's bag_tokens.
    """
    texts = [document.full_text(policy.title_joiner) for document in documents]
    reading = QueryPolicy(
        lower_case=policy.lower_case,
        leading_blank=policy.leading_blank,
        max_tokens=policy.bag_tokens or WHOLE_TEXT_TOKENS,
    )
    return query_term_ids(tokenizer, reading, texts)


def listed(documents: Iterable[Document]) -> list[Document]:
    """Return the documents as a list, because they are read more than once and may come from a generator.

    Raises:
        InvalidInput: one document is given in place of several.
    """
    if isinstance(documents, Document):
        raise InvalidInput(f"documents is one Document, {documents.doc_id!r}; expected a list of documents")
    require_list(documents, "documents")
    return list(documents)


def checked_ids(doc_ids: Iterable[str]) -> frozenset[str]:
    """Return distinct ids.

    Raises:
        InvalidInput: an id is not a string in UTF-8, or one id is given in place of several.
    """
    require_list(doc_ids, "doc_ids")
    return frozenset(check_text(doc_id, "a doc_id") for doc_id in doc_ids)


def refuse_repeated(shard: Shard) -> None:
    """Raise InvalidInput if a doc_id is repeated in a batch, or an element is not a Document."""
    for document in shard.documents:
        if not isinstance(document, Document):
            raise InvalidInput(f"a document is {type(document).__name__}; expected Document(doc_id, text)")
    counts = Counter(document.doc_id for document in shard.documents)
    if repeated := [doc_id for doc_id, count in counts.items() if count > 1]:
        raise InvalidInput(f"document {repeated[0]!r} is repeated in one batch; doc_ids must be distinct")


def require_shard(shard: object) -> None:
    """Raise InvalidInput if an object is not a Shard."""
    if not isinstance(shard, Shard):
        raise InvalidInput(f"a shard is {type(shard).__name__}; for documents of text use document_shards(documents)")


def sliced(shard: Shard, size: int) -> Iterator[Shard]:
    """Yield a shard in pieces of at most `size` documents; one empty piece for an empty shard."""
    for start in range(0, max(len(shard.documents), 1), size):
        end = min(start + size, len(shard.documents))
        sparse = shard.sparse
        if sparse is not None:
            span = slice(sparse.indptr[start], sparse.indptr[end])
            indptr = sparse.indptr[start : end + 1] - sparse.indptr[start]
            sparse = SparseVectors(indptr, sparse.term_ids[span], sparse.weights[span], sparse.vocab_size)
        dense = None if shard.dense is None else shard.dense[start:end]
        yield Shard(shard.documents[start:end], dense, sparse)


def selected(shard: Shard, positions: Sequence[int]) -> Shard:
    """Return some documents of a shard with their vectors, in the given order."""
    numbers = np.array(positions, dtype=np.int64)
    dense = None if shard.dense is None else shard.dense[numbers]
    sparse = None if shard.sparse is None else shard.sparse.take(numbers)
    return Shard([shard.documents[i] for i in positions], dense, sparse)


def _narrow(rows: npt.NDArray[np.float16], dim: int | None) -> npt.NDArray[np.float16]:
    if dim is None or dim == rows.shape[1]:
        return rows.astype(np.float16, copy=False)
    return normalized(rows[:, :dim].astype(np.float32)).astype(np.float16)


def _int8(rows: npt.NDArray[np.float16]) -> DenseMatrix:
    values = rows.astype(np.float32)
    scales = np.abs(values).max(axis=1, initial=0.0).astype(np.float32) / np.float32(127)
    divisors = np.where(scales > 0, scales, np.float32(1))
    return DenseMatrix(np.rint(values / divisors[:, None]).astype(np.int8), scales)


def _strongest(vectors: SparseVectors, k: int | None) -> SparseVectors:
    vectors = vectors.without_zeros()
    lengths = np.diff(vectors.indptr)
    if k is None or not len(lengths) or lengths.max() <= k:
        return vectors
    row_of = np.repeat(np.arange(len(vectors)), lengths)
    order = np.lexsort((vectors.term_ids, -vectors.weights.astype(np.int64), row_of))
    rank = np.arange(len(order)) - np.repeat(vectors.indptr[:-1], lengths)
    kept = np.sort(order[rank < k])
    indptr = np.concatenate([[0], np.cumsum(np.minimum(lengths, k))]).astype(np.int64)
    return SparseVectors(indptr, vectors.term_ids[kept], vectors.weights[kept], vectors.vocab_size)
