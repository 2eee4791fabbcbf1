"""The live documents of a view with the terms of a branch, in the order of documents and in that of terms."""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Literal, NamedTuple, TypeAlias

import numpy as np
import numpy.typing as npt

from lightir.addresses import QUERY_ENCODER
from lightir.errors import InvalidInput
from lightir.index.exchange.posting_spill import PostingRecords, PostingSpill, make_postings
from lightir.index.segments.live_segment import LiveSegment
from lightir.index.view import View
from lightir.text import TextTokenizer
from lightir.vectors import row_entries

TermBranch: TypeAlias = Literal["tokens", "sparse"]
"""A branch of terms: counted words, or impacts of a model."""

PIECE_DOCUMENTS = 16_384
LIST_POSTINGS = 1 << 22
"""Number of postings that are sorted into lists at once; the list of one term may have more."""


class LivePiece(NamedTuple):
    """The terms of some documents.

    Attributes:
        doc_ids: ids of n documents.
        indptr: (n + 1,) start of each document's terms.
        terms: (nnz,) numbers of the terms, in no order within a document.
        weights: (nnz,) counts or impacts, at least 1.
        lengths: (n,) number of terms of each document with repetitions; for impacts their sum.
    """

    doc_ids: list[str]
    indptr: npt.NDArray[np.int64]
    terms: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]
    lengths: npt.NDArray[np.int64]


class PostingList(NamedTuple):
    """The documents of a term.

    Attributes:
        term: the term.
        documents: (n,) ascending numbers of documents.
        weights: (n,) counts or impacts.
    """

    term: str
    documents: npt.NDArray[np.int64]
    weights: npt.NDArray[np.int64]


class LivePostings:
    """The terms of the live documents of a view.

    Documents are numbered in the order of the segments; pending ones are left out of the sparse branch. Memory holds
    the terms, and PIECE_DOCUMENTS documents or LIST_POSTINGS postings at a time.

    Attributes:
        branch: the branch.
        terms: texts of the terms that live documents have, ascending.
        df: (n_terms,) number of documents with each term.
        n_documents: number of documents.
        total_length: sum of the documents' lengths.
        pending: number of pending documents that are left out.
    """

    def __init__(self, view: View, branch: TermBranch | None = None) -> None:
        """Count the documents of each term.

        Args:
            view: the view.
            branch: the branch; None for the tokens if the index counts words, else the sparse branch.

        Raises:
            InvalidInput: the index lacks the branch, or two of the model's terms have the same text.
            NotFound: terms of a model have no texts without the index's query encoder.
        """
        self._view = view
        self.branch: TermBranch = branch or ("tokens" if "tokens" in view.branches else "sparse")
        view.require(self.branch)
        self.pending = view.n_pending if self.branch == "sparse" else 0
        names = _names(view, self.branch)
        order = sorted(range(len(names)), key=names.__getitem__)
        ranks = np.zeros(len(names), dtype=np.int64)
        ranks[order] = np.arange(len(names))
        self._numbers = [ranks[ids] for ids in _segment_ids(view, self.branch, names)]
        counts = np.zeros(len(names), dtype=np.int64)
        self.n_documents = self.total_length = 0
        for piece in self._pieces():
            counts += np.bincount(piece.terms, minlength=len(names))
            self.n_documents += len(piece.doc_ids)
            self.total_length += int(piece.lengths.sum())
        kept = np.flatnonzero(counts)
        self.terms = [names[order[i]] for i in kept.tolist()]
        self.df = counts[kept]
        of_kept = np.cumsum(counts > 0) - 1
        self._numbers = [of_kept[numbers] for numbers in self._numbers]

    def pieces(self) -> Iterator[LivePiece]:
        """Yield all documents, a piece at a time; terms are positions in `terms`."""
        return self._pieces()

    def posting_lists(self, folder: Path) -> Iterator[PostingList]:
        """Yield the list of each term, in ascending order of the terms.

        Args:
            folder: existing folder for temporary files, of 12 bytes per posting if there are more than LIST_POSTINGS.

        Raises:
            WriteFailed: the disk is full or broken.
        """
        before = np.cumsum(self.df) - self.df
        ends = np.append(np.flatnonzero(np.diff(before // LIST_POSTINGS) > 0) + 1, len(self.df)).astype(np.int64)
        spill = PostingSpill(folder, "term", ends, held=LIST_POSTINGS)
        first = 0
        for piece in self._pieces():
            documents = np.repeat(np.arange(first, first + len(piece.doc_ids)), np.diff(piece.indptr))
            spill.add(make_postings(piece.terms, documents, piece.weights))
            first += len(piece.doc_ids)
        begin = 0
        for bucket, end in enumerate(ends.tolist()):
            yield from self._lists(spill.read(bucket), begin, end)
            begin = end

    def _lists(self, postings: PostingRecords, begin: int, end: int) -> Iterator[PostingList]:
        """Yield the lists of the terms from `begin` to `end`; documents ascend already."""
        postings = postings[np.argsort(postings["term"], kind="stable")]
        starts = np.searchsorted(postings["term"], np.arange(begin, end + 1)).tolist()
        for term, (start, stop) in enumerate(itertools.pairwise(starts), begin):
            part = postings[start:stop]
            documents, weights = part["document"].astype(np.int64), part["weight"].astype(np.int64)
            yield PostingList(self.terms[term], documents, weights)

    def _pieces(self) -> Iterator[LivePiece]:
        for live, numbers in zip(self._view.segments, self._numbers, strict=True):
            places = live.places if self.branch == "tokens" else np.flatnonzero(live.live & ~live.segment.pending)
            for first in range(0, len(places), PIECE_DOCUMENTS):
                yield self._piece(live, numbers, places[first : first + PIECE_DOCUMENTS])

    def _piece(self, live: LiveSegment, numbers: npt.NDArray[np.int64], places: npt.NDArray[np.int64]) -> LivePiece:
        segment = live.segment
        doc_ids = self._view.doc_ids((live.first_ord + places).astype(np.uint32))
        stored = segment.tokens if self.branch == "tokens" else segment.sparse
        if stored is None:
            nothing = np.zeros(0, np.int64)
            return LivePiece(doc_ids, np.zeros(len(places) + 1, np.int64), nothing, nothing, np.zeros_like(places))
        with segment.naming_damage():
            indptr, entries = row_entries(stored.indptr, places)
            weights = stored.weights[entries].astype(np.int64)
            sums = np.add.reduceat(np.append(weights, 0), indptr[:-1]) * (np.diff(indptr) > 0)
            counts_words = self.branch == "tokens" and not segment.holds_bags
            lengths = segment.lengths[places].astype(np.int64) if counts_words else sums
            return LivePiece(doc_ids, indptr, numbers[stored.term_ids[entries]], weights, lengths)


def _segment_ids(view: View, branch: TermBranch, names: list[str]) -> list[npt.NDArray[np.int64]]:
    """Return for each segment the position in `names` of each of its term ids."""
    if branch == "sparse":
        return [np.arange(len(names), dtype=np.int64)] * len(view.segments)
    position_of: dict[str | int, int] = {name: i for i, name in enumerate(names)}
    if view.counts_model_terms:
        position_of = {i: i for i in range(len(names))}
    return [np.array([position_of[term] for term in _terms(live)], dtype=np.int64) for live in view.segments]


def _terms(live: LiveSegment) -> list[str | int]:
    """Return the terms of a segment's tokens branch."""
    if not live.segment.has("tokens"):
        return []
    terms = live.segment.terms
    return [terms[i] for i in range(len(terms))]


def _names(view: View, branch: TermBranch) -> list[str]:
    """Return the words of the tokens branch, or the names of all term ids of the model."""
    if branch == "tokens" and not view.counts_model_terms:
        return sorted({str(term) for live in view.segments for term in _terms(live)})
    return model_terms(view)


def model_terms(view: View) -> list[str]:
    """Return the name of each term id of an index's model, see `term_names`."""
    assert view.contract is not None
    tokenizer = TextTokenizer.from_file(view.folder / QUERY_ENCODER / "tokenizer.json")
    return term_names(tokenizer, view.contract.backbone.vocab_size)


def term_names(tokenizer: TextTokenizer, vocab_size: int) -> list[str]:
    """Return the name of each term id: the tokenizer's token; "[ID]" for ids without one, and for tokens with blanks.

    Raises:
        InvalidInput: two term ids have the same name.
    """
    n_ids = max(vocab_size, tokenizer.vocab_size)
    tokens = [tokenizer.backend.id_to_token(i) for i in range(n_ids)]
    names = [token if token and len(token.split()) == 1 and token == token.strip() else "" for token in tokens]
    names = [name or f"[{i}]" for i, name in enumerate(names)]
    if len(set(names)) < n_ids:
        repeated = Counter(names).most_common(1)[0][0]
        raise InvalidInput(f"two terms of the model have the name {repeated!r}, so they cannot be written by name")
    return names
