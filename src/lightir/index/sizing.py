"""The size of an index that does not exist yet: disk, memory, cores and hours, computed from measurements.

The bytes of vectors follow from their width. Bytes of words and texts are those of a given index, or of a straight line
through the collections that were measured (`bench/bench_size.py`). Milliseconds are linear in bytes or documents,
through the two sizes that `lightir bench engine` measured. measurements.json has the numbers and where they are from.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib import resources
from typing import Any, Literal

import numpy as np

from lightir.contract import Contract
from lightir.errors import InvalidInput
from lightir.index.index_options import SEGMENT_DOCUMENTS, DenseDtype
from lightir.index.passages.lengths import MEASURED_DOCUMENTS, counter
from lightir.index.segments.layout import CODED_ABOVE
from lightir.index.view import View
from lightir.text import TextTokenizer
from lightir.types import Branch

BYTES_PER_NUMBER: Mapping[DenseDtype, float] = {"fp16": 2, "int8": 1, "fp16+int8": 3}
SCALE_BYTES: Mapping[DenseDtype, float] = {"fp16": 0, "int8": 4, "fp16+int8": 8}
"""Bytes of a dense row beside its numbers: the scale of int8 numbers, and the error bound of copies."""

BUSY = 0.5
"""Share of a core's time that searches may take, so that bursts find it free."""

HOURS_PER_MONTH = 730.0
FAR = 10.0
"""Factor above the measured number of documents beyond which a figure is called extrapolated."""

Basis = Literal["computed", "measured", "extrapolated"]


@dataclass(frozen=True, slots=True)
class SizedRows:
    """Bytes per stored row of an index; a row is a document or a passage.

    Attributes:
        per_document: number of rows per document.
        tokens: number of tokens per row.
        n_bytes: bytes per row of "dense", "sparse", "tokens", "store" and "graph".
        scanned: bytes of a dense row that a scan without codes reads.
        measured_on: number of documents of the index, or of the largest collection, that the numbers are from.
        like: source of the numbers: an index folder, or the measured collections.
        codes: bytes per row of codes, which "dense" lacks and large segments have.
        coded: columns of a dense row that has codes in large segments.
    """

    per_document: float
    tokens: float
    n_bytes: Mapping[str, float]
    scanned: float
    measured_on: int
    like: str
    codes: float = 0.0
    coded: int = 0


@dataclass(frozen=True, slots=True)
class Wishes:
    """The number of documents, load and prices to compute figures for.

    Attributes:
        documents: number of documents.
        queries_per_s: number of queries per second to answer.
        branches: branches that a query searches.
        memory_gb: memory of a machine for arrays, which decides the number of shards; None for one machine.
        tokens_per_s: tokens that one unit of hardware encodes per second, by the name of the hardware.
        core_hour_price: price of an hour of one core that serves; None for no price.
        hardware_hour_price: price of an hour of one unit of hardware that encodes; None for no price.
        gb_month_price: price of a GB of disk for a month; None for no price.
    """

    documents: int
    queries_per_s: float = 10.0
    branches: Sequence[Branch] = ("dense", "tokens")
    memory_gb: float | None = None
    tokens_per_s: Mapping[str, float] = field(default_factory=dict)
    core_hour_price: float | None = None
    hardware_hour_price: float | None = None
    gb_month_price: float | None = None


@dataclass(frozen=True, slots=True)
class Figure:
    """One number of a sizing.

    Attributes:
        name: name of the quantity, with its unit as the suffix: "_bytes", "_ms", "_hours", "_per_month", or a count.
        value: the number.
        basis: "measured" on as many documents, or a tenth of them; "extrapolated" from fewer; "computed" from a width.
        how: numbers that it was computed from.
    """

    name: str
    value: float
    basis: Basis
    how: str


@cache
def measurements() -> dict[str, Any]:
    """Return the content of measurements.json."""
    text = resources.files("lightir.index").joinpath("measurements.json").read_text(encoding="utf-8")
    content: dict[str, Any] = json.loads(text)
    return content


def rows_like(view: View, tokenizer: TextTokenizer | None) -> SizedRows:
    """Return the rows of an index.

    Args:
        view: view of the index.
        tokenizer: tokenizer of its model; None to count no tokens.

    Raises:
        InvalidInput: the index is empty.
    """
    from lightir.index.reader import view_info

    info, n_rows = view_info(view), len(view)
    if not n_rows:
        raise InvalidInput(f"{view.folder} has no documents to measure")
    n_encoded = max(info.encoded, 1)
    vectors = ("dense", "sparse", "graph")
    per_row = {name: n / (n_encoded if name in vectors else n_rows) for name, n in info.bytes.items()}
    tokens = 0.0
    if tokenizer is not None and view.contract is not None:
        keys = np.sort(view.live_keys())[:: -(-n_rows // MEASURED_DOCUMENTS)]
        joiner = view.contract.document.title_joiner
        texts = [document.full_text(joiner) for document in view.store.documents.of(keys.tolist()).values()]
        tokens = sum(counter(view.contract, tokenizer)(texts)) / len(texts)
    width, dense_dtype = info.dense_dim or 0, view.options.dense_dtype
    has_codes = any(live.segment.dense_codes is not None for live in view.segments)
    codes = 0.0 if has_codes else _code_bytes(width)
    scanned = _scanned(width, dense_dtype)
    return SizedRows(n_rows / info.documents, tokens, per_row, scanned, info.documents, str(view.folder), codes, width)


def rows_of_model(
    contract: Contract | None,
    *,
    tokens_per_document: float,
    passages: bool = False,
    dense_dtype: DenseDtype = "fp16",
    sparse_terms: float | None = None,
    graph: bool = False,
) -> SizedRows:
    """Return the rows of documents that a model will encode.

    Args:
        contract: record of the model; None for words alone.
        tokens_per_document: mean number of tokens of a document's title and text.
        passages: whether documents that are longer than the model reads are split.
        dense_dtype: storage of dense vectors.
        sparse_terms: mean number of terms of a document's sparse vector; None for the model's maximum.
        graph: whether segments have graphs over their dense rows.

    Raises:
        InvalidInput: the sparse head keeps any number of terms and `sparse_terms` is None.
    """
    measured = measurements()
    per_document = _passages_per_document(tokens_per_document, contract) if passages else 1.0
    tokens = tokens_per_document / per_document
    n_bytes = {name: _line(name).at(tokens) for name in ("tokens", "store")}
    width = 0
    if contract is not None and contract.dense is not None:
        width = (contract.dense.dims or (contract.backbone.hidden_size,))[0]
        n_bytes["dense"] = width * BYTES_PER_NUMBER[dense_dtype] + SCALE_BYTES[dense_dtype]
        if graph:
            n_bytes["graph"] = measured["search"]["graph_bytes_per_row"]
    if contract is not None and contract.sparse is not None:
        terms = contract.sparse.top_k if sparse_terms is None else sparse_terms
        if not terms:
            raise InvalidInput("the model's sparse head keeps any number of terms; give their mean with --sparse-terms")
        n_bytes["sparse"] = terms * measured["search"]["sparse_bytes_per_term"]
    largest = max(row["documents"] for row in measured["disk"]["collections"])
    like = f"{len(measured['disk']['collections'])} measured collections"
    scanned, codes = _scanned(width, dense_dtype), _code_bytes(width)
    return SizedRows(per_document, tokens, n_bytes, scanned, largest, like, codes, width)


def _code_bytes(width: int) -> float:
    """Return the bytes of the codes of a row in a large segment: 2 bits per column, 4 bytes for scale and error."""
    return math.ceil(width / 4) + 4.0 if width else 0.0


def _scanned(width: int, dense_dtype: DenseDtype) -> float:
    """Return the bytes of a dense row that a scan reads: with copies the copies alone, but for a few rows."""
    return width * BYTES_PER_NUMBER["int8" if dense_dtype == "fp16+int8" else dense_dtype]


@dataclass(frozen=True, slots=True)
class _Line:
    """A straight line, which is never below 0."""

    start: float
    slope: float

    def at(self, x: float) -> float:
        return max(self.start + self.slope * x, 0.0)


def _line(part: str) -> _Line:
    """Return the line through the measured bytes per row of "tokens" or "store" over tokens per row."""
    collections = measurements()["disk"]["collections"]
    x = [row["tokens"] / row["documents"] for row in collections]
    y = [row["whole"][part] / row["whole"]["rows"] for row in collections]
    slope, start = np.polyfit(x, y, 1, w=1 / np.array(y))
    return _Line(float(start), float(slope))


def _passages_per_document(tokens: float, contract: Contract | None) -> float:
    """Return the number of rows per document, by the line through the measured collections."""
    collections = measurements()["disk"]["collections"]
    x = [row["tokens"] / row["documents"] for row in collections]
    y = [row["passages"]["rows"] / row["documents"] for row in collections]
    limit = measurements()["disk"]["tokens_read"]
    own = limit if contract is None else contract.document.max_tokens
    slope, start = np.polyfit(x, y, 1)
    return max(1.0, float(start + slope * tokens * limit / own))


def sizing(rows: SizedRows, wishes: Wishes) -> list[Figure]:
    """Return the figures of an index.

    Args:
        rows: bytes per row.
        wishes: number of documents, load and prices.

    Raises:
        InvalidInput: fewer than 1 document, or queries per second that are not above 0.
    """
    if wishes.documents < 1 or not math.isfinite(wishes.queries_per_s) or wishes.queries_per_s <= 0:
        raise InvalidInput("expected at least 1 document, and more than 0 queries per second")
    n_rows = wishes.documents * rows.per_document
    n_bytes = dict(rows.n_bytes)
    if "dense" in n_bytes and n_rows > CODED_ABOVE:
        n_bytes["dense"] += rows.codes
    basis: Basis = "extrapolated" if wishes.documents > FAR * rows.measured_on else "measured"
    from_rows = f"bytes per row of {rows.like} (at most {rows.measured_on:,} documents)"
    figures = [Figure("rows", n_rows, basis if rows.per_document > 1 else "computed", "documents and passages")]
    for part, n in n_bytes.items():
        known: Basis = "computed" if part == "dense" else basis
        how = "width and type of the vectors" if part == "dense" else from_rows
        figures.append(Figure(f"{part}_bytes", n * n_rows, known, how))
    disk = n_rows * sum(n_bytes.values())
    arrays = disk - n_rows * n_bytes.get("store", 0.0)
    figures += [
        Figure("disk_bytes", disk, basis, "the sum"),
        Figure("disk_while_merging_bytes", 2 * disk, basis, "merges write new segments before they remove old ones"),
        Figure("memory_bytes", arrays, basis, "the arrays that a search reads: all but the texts"),
    ]
    n_shards = 1 if wishes.memory_gb is None else max(1, math.ceil(arrays / (wishes.memory_gb * 1e9)))
    if wishes.memory_gb is not None:
        figures.append(Figure("shards", n_shards, basis, f"machines with {wishes.memory_gb:g} GB for arrays"))
    figures += _search_figures(rows, wishes, n_rows, n_shards)
    figures += _encoding_figures(rows, wishes, n_rows)
    if wishes.gb_month_price is not None:
        figures.append(Figure("disk_price_per_month", disk / 1e9 * wishes.gb_month_price, basis, "price per GB given"))
    return figures


def _search_figures(rows: SizedRows, wishes: Wishes, n_rows: float, n_shards: int) -> list[Figure]:
    search = measurements()["search"]
    basis: Basis = "extrapolated" if n_rows / n_shards > FAR * search["sizes"][-1]["documents"] else "measured"
    parts = [_branch_ms(branch, rows, n_rows / n_shards) for branch in wishes.branches]
    fusing = search["fusing_ms"] if len(parts) > 1 else 0.0
    shard_ms = sum(parts) + fusing
    cpu_ms = n_shards * shard_ms + search["request_ms"]
    sizes = " and ".join(f"{size['documents']:,}" for size in search["sizes"])
    where = f"one thread of {search['processor']}, measured on {sizes} documents"
    cores = wishes.queries_per_s * cpu_ms / 1000 / BUSY
    figures = [
        Figure("query_ms", shard_ms + search["request_ms"], basis, f"{where}; shards at the same time"),
        Figure("cpu_ms_per_query", cpu_ms, basis, "all shards, and the service's request"),
        Figure("serving_cores", cores, basis, f"{wishes.queries_per_s:g} queries per second, cores {BUSY:.0%} busy"),
    ]
    if wishes.core_hour_price is not None:
        price = cores * HOURS_PER_MONTH * wishes.core_hour_price
        figures.append(Figure("serving_price_per_month", price, basis, "price per core and hour given"))
    return figures


def _branch_ms(branch: Branch, rows: SizedRows, n_rows: float) -> float:
    """Return the milliseconds of a branch over one shard."""
    search = measurements()["search"]
    if branch == "dense" and rows.n_bytes.get("graph"):
        n_segments = max(1, math.ceil(n_rows / SEGMENT_DOCUMENTS))
        return float(n_segments * search["graph_ms_per_segment"])
    if branch == "dense":
        read = rows.coded * search["coded_share_of_int8"] if rows.coded and n_rows > CODED_ABOVE else rows.scanned
        return float(n_rows * read / (search["scanned_gb_per_s"] * 1e6))
    (x0, y0), (x1, y1) = ((size["documents"], size[f"{branch}_ms"]) for size in search["sizes"])
    slope = (y1 - y0) / (x1 - x0)
    return max(float(y0 + slope * (n_rows - x0)), 0.0)


def _encoding_figures(rows: SizedRows, wishes: Wishes, n_rows: float) -> list[Figure]:
    figures = []
    for name, speed in wishes.tokens_per_s.items():
        hours = n_rows * rows.tokens / speed / 3600
        figures.append(Figure(f"encoding_hours_{name}", hours, "extrapolated", f"{speed:,.0f} tokens/s on one {name}"))
        if wishes.hardware_hour_price is not None:
            price = hours * wishes.hardware_hour_price
            figures.append(Figure(f"encoding_price_{name}", price, "extrapolated", "price per hour given"))
    return figures


def encoding_speeds(contract: Contract | None) -> dict[str, float]:
    """Return the tokens per second that a model was measured to encode, by the name of one unit of hardware."""
    if contract is None:
        return {}
    speeds = measurements()["encoding"].get(contract.backbone.address, {})
    return {name: float(speed["tokens_per_s"]) for name, speed in speeds.items()}
