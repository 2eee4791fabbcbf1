"""Write a branch of terms in the Common Index File Format (CIFF).

After Lin et al., "Supporting Interoperability Between Open-Source Search Engines with the Common Index File Format"
(SIGIR 2020). A file is a Header, then a PostingsList per term, then a DocRecord per document: protobuf messages, each
after its length. A posting has the distance to the document before it (the first one its number), and the frequency.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.files import atomic_file, temporary_folder
from lightir.index.exchange.live_postings import LivePostings, TermBranch
from lightir.index.exchange.varints import encode_number, encode_numbers, n_bytes
from lightir.index.view import View
from lightir.progress import Progress
from lightir.version import __version__

MAX_INT32 = 2**31 - 1
PIECE_POSTINGS = 1 << 18
"""Number of postings that are encoded at once."""

VARINT, FIXED64, BYTES, FIXED32 = 0, 1, 2, 5
"""Protobuf's wire types."""


@dataclass(frozen=True, slots=True)
class ExportReport:
    """Numbers of an export.

    Attributes:
        branch: branch that was written.
        documents: number of documents; each passage is one.
        terms: number of terms.
        postings: number of postings.
        pending: number of pending documents, which are left out.
    """

    branch: TermBranch
    documents: int
    terms: int
    postings: int
    pending: int


def export_ciff(view: View, out: Path | str, *, branch: TermBranch | None = None) -> ExportReport:
    """Write the live documents of a view as a CIFF file, atomically. The same view gives the same bytes.

    The frequency of a posting is the count of the word as BM25 counts it, or the impact. The length of a document is
    that of BM25, or the sum of its impacts. Texts and titles are no part of the format.

    Args:
        view: state of an index.
        out: file to write.
        branch: "tokens" or "sparse"; None for the tokens if the index has them.

    Raises:
        InvalidInput: the index lacks the branch, or a number does not fit into 32 bits.
        WriteFailed: the disk is full or broken; nothing is left behind.
    """
    live = LivePostings(view, branch)
    n_postings = int(live.df.sum())
    if live.n_documents > MAX_INT32 or (len(live.df) and int(live.df.max()) > MAX_INT32):
        raise InvalidInput(f"{live.n_documents} documents are more than CIFF can number ({MAX_INT32})")
    analyzer = "" if view.record["analyzer"] is None else view.record["analyzer"]["name"]
    with atomic_file(out) as file, temporary_folder(Path(out).absolute().parent) as folder:
        _write_message(file, _header(live, analyzer))
        with Progress("export", unit="posting", total=n_postings) as progress:
            for term, documents, weights in live.posting_lists(folder):
                for part in _postings_list(term, documents, weights):
                    file.write(part)
                progress.update(len(documents))
        for record in _document_records(live):
            _write_message(file, record)
    return ExportReport(live.branch, live.n_documents, len(live.terms), n_postings, live.pending)


def _header(live: LivePostings, analyzer: str) -> bytes:
    mean = live.total_length / live.n_documents if live.n_documents else 0.0
    described = f"; analyzer={analyzer}" * (live.branch == "tokens" and bool(analyzer))
    numbers = (1, len(live.terms), live.n_documents, len(live.terms), live.n_documents, live.total_length)
    fields = [_integer(number, value) for number, value in enumerate(numbers, 1)]
    average = encode_number(7 << 3 | FIXED64) + struct.pack("<d", mean)
    description = _text(8, f"lightir {__version__}; branch={live.branch}{described}")
    return b"".join([*fields, average if mean else b"", description])


def _postings_list(term: str, documents: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> Iterator[bytes]:
    """Yield the bytes of a PostingsList and of its length before it."""
    if int(weights.max(initial=0)) > MAX_INT32:
        raise InvalidInput(f"term {term!r} has a frequency of {int(weights.max())}; CIFF's maximum is {MAX_INT32}")
    gaps = np.diff(documents, prepend=0)
    parts = range(0, len(gaps), PIECE_POSTINGS)
    n_of = [_posting_bytes(gaps[i : i + PIECE_POSTINGS], weights[i : i + PIECE_POSTINGS]) for i in parts]
    head = _text(1, term) + _integer(2, len(documents)) + _integer(3, int(weights.sum()))
    yield encode_number(len(head) + sum(int((n + 2).sum()) for n in n_of)) + head
    for i, lengths in zip(parts, n_of, strict=True):
        yield _postings(gaps[i : i + PIECE_POSTINGS], weights[i : i + PIECE_POSTINGS], lengths)


def _posting_bytes(gaps: npt.NDArray[np.int64], weights: npt.NDArray[np.int64]) -> npt.NDArray[np.int64]:
    """Return the size of each Posting message; a gap of 0, as of document 0, is not written."""
    return np.where(gaps > 0, 1 + n_bytes(gaps), 0) + 1 + n_bytes(weights)


def _postings(gaps: npt.NDArray[np.int64], weights: npt.NDArray[np.int64], lengths: npt.NDArray[np.int64]) -> bytes:
    """Return Posting messages as field 4 of a PostingsList. Tags, lengths and values are all varints."""
    numbers = np.empty((len(gaps), 6), dtype=np.int64)
    numbers[:, 0], numbers[:, 2], numbers[:, 4] = 4 << 3 | BYTES, 1 << 3 | VARINT, 2 << 3 | VARINT
    numbers[:, 1], numbers[:, 3], numbers[:, 5] = lengths, gaps, weights
    written = np.ones(numbers.shape, dtype=np.bool_)
    written[:, 2:4] = (gaps > 0)[:, None]
    return encode_numbers(numbers[written])[0]


def _document_records(live: LivePostings) -> Iterator[bytes]:
    number = 0
    for piece in live.pieces():
        for doc_id, length in zip(piece.doc_ids, piece.lengths.tolist(), strict=True):
            if length > MAX_INT32:
                raise InvalidInput(f"document {doc_id!r} has the length {length}; CIFF's maximum is {MAX_INT32}")
            yield _integer(1, number) + _text(2, doc_id) + _integer(3, length)
            number += 1


def _integer(number: int, value: int) -> bytes:
    """Return a field of an integer; proto3 writes no zeros."""
    return encode_number(number << 3 | VARINT) + encode_number(value) if value else b""


def _text(number: int, text: str) -> bytes:
    raw = text.encode()
    return encode_number(number << 3 | BYTES) + encode_number(len(raw)) + raw if raw else b""


def _write_message(file: BinaryIO, message: bytes) -> None:
    file.write(encode_number(len(message)) + message)
