"""The query-encoder folder: tables of token vectors, and of token expansions, looked up and averaged (Eq. 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.contract import Contract
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.files import read_json
from lightir.kernel import mean_rows
from lightir.kernel.query import TextEncoder
from lightir.query.bigrams import Bigrams
from lightir.query.expansions import CachedExpansions
from lightir.text import TextTokenizer, query_library, query_text_policy
from lightir.vectors import Floats, QueryVectors, Ragged

TABLES_FILE = "tables.json"
TOKENIZER_FILE = "tokenizer.json"
TABLES_VERSION = 1
TERM_WEIGHTS_FILE = "sparse.safetensors"
EXPANSIONS_FILE = "expansions.safetensors"
BIGRAMS_FILE = "bigrams.safetensors"
PAIRS_KEY = "pairs"
SCALES_KEY = "weights"  # model2vec's name: it and sentence-transformers then multiply int8 rows by their scales

# numpy has no bfloat16: its bits come as uint16.
_DTYPES: Mapping[str, Any] = MappingProxyType(
    {"F16": np.float16, "BF16": np.uint16, "F32": np.float32, "I8": np.int8, "U32": np.uint32}
)
_DTYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {"float16": "fp16", "uint16": "bf16", "float32": "fp32", "int8": "int8"}
)


@dataclass(frozen=True, slots=True)
class CachedTable:
    """One instruction's token vectors.

    Attributes:
        embeddings: (n_terms, dim) float16, float32, int8, or uint16 for the bits of bfloat16; a row a term id.
        scales: (n_terms,) float32 for int8: row t stands for scales[t] * embeddings[t]; else None.
        instruction: the instruction that the rows were made with.
    """

    embeddings: npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.int8] | npt.NDArray[np.uint16]
    scales: Floats | None = None
    instruction: str = ""

    def __post_init__(self) -> None:
        rows = self.embeddings
        if rows.ndim != 2 or rows.dtype not in (np.float16, np.float32, np.int8, np.uint16):
            raise InvalidInput(
                f"embeddings are {rows.dtype} of shape {rows.shape}; "
                "expected float16, float32, int8 or uint16 (bfloat16) of 2 dimensions"
            )
        if (rows.dtype == np.int8) != (self.scales is not None):
            raise InvalidInput(f"{rows.dtype} embeddings {'with' if self.scales is not None else 'without'} scales")
        if self.scales is not None and (self.scales.shape != (len(rows),) or self.scales.dtype != np.float32):
            raise InvalidInput(
                f"scales are {self.scales.dtype} of shape {self.scales.shape}; expected float32 of ({len(rows)},)"
            )

    @property
    def dim(self) -> int:
        """Width of a row."""
        return int(self.embeddings.shape[1])


@dataclass(frozen=True, slots=True)
class CachedBigrams:
    """Rows of pairs of terms: a dense query is the mean of its terms' rows and of its known pairs' rows.

    Attributes:
        bigrams: the pairs.
        table: a row a pair.
    """

    bigrams: Bigrams
    table: CachedTable

    def __post_init__(self) -> None:
        if len(self.bigrams) != len(self.table.embeddings):
            raise InvalidInput(f"there are {len(self.bigrams)} bigrams, but {len(self.table.embeddings)} rows for them")

    def means(self, queries: Ragged, table: CachedTable, *, dim: int | None, threads: int) -> Floats:
        """(n, dim) float32 rows of length 1; zeros for a query without terms.

        Args:
            queries: term ids.
            table: the terms' rows.
            dim: width of the prefix that is taken.
            threads: at most so many.
        """
        pairs, _ = self.bigrams.find(queries)
        sums = _sums(table, queries, dim=dim, threads=threads) + _sums(self.table, pairs, dim=dim, threads=threads)
        lengths = np.sqrt((sums * sums).sum(axis=1, keepdims=True))
        return np.asarray(sums / np.where(lengths > 0, lengths, 1), dtype=np.float32)


def _sums(table: CachedTable, rows: Ragged, *, dim: int | None, threads: int) -> Floats:
    means = mean_rows(
        table.embeddings, rows.term_ids, rows.indptr, normalize=False, scales=table.scales, dim=dim, threads=threads
    )
    return np.asarray(means * rows.lengths[:, None], dtype=np.float32)


class CachedQueryEncoder:
    """Queries become vectors by looking terms up: dense is the mean of rows, sparse counts or a mean of expansions."""

    def __init__(
        self,
        contract: Contract,
        tokenizer: TextTokenizer,
        *,
        tables: Mapping[str, CachedTable] = MappingProxyType({}),
        term_weights: Floats | None = None,
        expansions: CachedExpansions | None = None,
        bigrams: CachedBigrams | None = None,
        dim: int | None = None,
        threads: int = 1,
    ) -> None:
        """Put an encoder together from arrays.

        Args:
            contract: its query policy, and the document side that the tables were made for.
            tokenizer: must have the tokenizer hash of the contract: the query policy's, or else the backbone's.
            tables: task name -> table, the default first; wanted exactly when the contract has a dense branch.
            term_weights: (vocab_size,) float32 over the contract's vocabulary, wanted exactly when the policy's
                term_weights are "idf".
            expansions: a row for each of the tokenizer's terms, wanted exactly when the policy's weighting is
                "expansion".
            bigrams: wanted exactly when the policy names their hash; there is one table then.
            dim: width of the dense vectors, a Matryoshka prefix of the tables'; None for their own width.
            threads: for a batch; queries of a small one are not divided.

        Raises:
            ContractMismatch: tokenizer, vocabulary or width are not the contract's; both values are named.
            InvalidInput: a table or weight that is missing or too many.
        """
        self.contract = contract
        self.tokenizer = tokenizer
        self.tables = dict(tables)
        self.term_weights = term_weights
        self.expansions = expansions
        self.bigrams = bigrams
        self.threads = threads
        _check_tokenizer(contract, tokenizer)
        _check_tables(contract, tokenizer, self.tables)
        _check_term_weights(contract, term_weights)
        _check_expansions(contract, tokenizer, expansions)
        _check_bigrams(contract, tokenizer, self.tables, bigrams)
        self.dim = self._checked_dim(dim)
        self._encoders: dict[str | None, TextEncoder] = {
            name: self._text_encoder(None if bigrams else table) for name, table in self.tables.items()
        }
        self._encoders[None] = next(iter(self._encoders.values()), None) or self._text_encoder(None)

    @classmethod
    def load(cls, folder: Path | str, *, dim: int | None = None, threads: int = 1) -> CachedQueryEncoder:
        """Open a query-encoder folder; tables are memory-mapped.

        Args:
            folder: lightir.json, tokenizer.json, tables.json and the tables that it names, and what the policy needs
                of term weights, expansions or bigrams.
            dim: see `__init__`.
            threads: see `__init__`.

        Raises:
            NotFound: a file is missing.
            FormatError: a file is damaged or is not what tables.json says.
            ContractMismatch: the files are not of one model.
        """
        folder = Path(folder)
        contract = Contract.load(folder)
        tokenizer = TextTokenizer.from_file(folder / TOKENIZER_FILE)
        tables = _load_tables(folder)
        idf = contract.query.term_weights == "idf"
        weights = _tensor(folder / TERM_WEIGHTS_FILE, "term_weights") if idf else None
        expanding = contract.query.weighting == "expansion"
        try:
            expansions = _load_expansions(folder / EXPANSIONS_FILE) if expanding else None
            bigrams = _load_bigrams(folder / BIGRAMS_FILE) if contract.query.bigrams else None
            return cls(
                contract,
                tokenizer,
                tables=tables,
                term_weights=weights,
                expansions=expansions,
                bigrams=bigrams,
                dim=dim,
                threads=threads,
            )
        except (InvalidInput, ContractMismatch) as error:
            raise type(error)(f"{folder}: {error}") from error

    @property
    def document_fingerprint(self) -> str:
        """The fingerprint of the document side that the vectors are made for."""
        return self.contract.document_fingerprint

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tables; the first is the default."""
        return tuple(self.tables)

    def encode(self, texts: Sequence[str], *, task: str | None = None, out: Floats | None = None) -> QueryVectors:
        """The queries' vectors; a branch that the contract lacks is None.

        Args:
            texts: n queries. One without terms gets a zero dense row and an empty sparse row.
            task: one of `tasks`; None for the default table.
            out: (n, dim) float32, C-contiguous, that the dense vectors are written to and returned as; None for a new
                array. Whoever encodes chunk after chunk and is done with each can pass the same one again: to fill a
                fresh array can take as long as the encoding.

        Raises:
            NotFound: no table has that name.
            InvalidInput: a text is no str, or not representable in UTF-8, or `out` does not fit.
        """
        encoder = self._encoders.get(task)
        if encoder is None:
            raise NotFound(f"no query table for task {task!r}; there are {list(self.tables)}")
        found = encoder.encode(texts, threads=self.threads, out=out)
        if self.bigrams is not None:
            found = replace(found, dense=self._dense_with_bigrams(found.term_ids, self.bigrams, out))
        if self.expansions is None:
            return found
        vocab_size = self.contract.backbone.vocab_size
        return replace(found, sparse=self.expansions.means(found.term_ids, vocab_size=vocab_size, threads=self.threads))

    def _dense_with_bigrams(self, queries: Ragged, bigrams: CachedBigrams, out: Floats | None) -> Floats:
        (table,) = self.tables.values()
        dense = bigrams.means(queries, table, dim=self.dim, threads=self.threads)
        if out is None:
            return dense
        if out.shape != dense.shape or out.dtype != np.float32:
            raise InvalidInput(f"out must be a writable C-contiguous float32 array of {dense.shape}")
        out[:] = dense
        return out

    def _text_encoder(self, table: CachedTable | None) -> TextEncoder:
        return TextEncoder(
            self.tokenizer.path.native,
            query_text_policy(self.contract.query),
            query_library(self.tokenizer, self.contract.query),
            table=None if table is None else table.embeddings,
            scales=None if table is None else table.scales,
            dim=self.dim,
            vocab_size=self.contract.backbone.vocab_size if self._counts_terms else None,
            binary=self.contract.query.weighting == "binary",
            term_weights=self.term_weights,
        )

    @property
    def _counts_terms(self) -> bool:
        return self.contract.sparse is not None and self.expansions is None

    def _checked_dim(self, dim: int | None) -> int | None:
        if not self.tables:
            if dim is not None:
                raise InvalidInput(f"dim is {dim}, but the encoder has no dense branch")
            return None
        width = next(iter(self.tables.values())).dim
        if dim is not None and not 1 <= dim <= width:
            raise InvalidInput(f"dim is {dim}; the tables hold 1 to {width} columns")
        return width if dim is None else dim


def _check_tokenizer(contract: Contract, tokenizer: TextTokenizer) -> None:
    expected = contract.query.tokenizer or contract.backbone.tokenizer_hash
    if tokenizer.hash != expected:
        raise ContractMismatch(
            f"the tokenizer has hash {tokenizer.hash!r}, but the contract says {expected!r}; "
            "put the tokenizer.json beside it that the model was trained with"
        )


def _check_tables(contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable]) -> None:
    if (contract.dense is None) != (not tables):
        raise InvalidInput(
            f"the contract has {'no' if contract.dense is None else 'a'} dense branch, but {len(tables)} tables came"
        )
    if contract.dense is None:
        return
    widest = contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size
    first = next(iter(tables.values())).dim
    for name, table in tables.items():
        if len(table.embeddings) < tokenizer.vocab_size:
            raise ContractMismatch(
                f"table {name!r} has {len(table.embeddings)} rows, but the tokenizer has {tokenizer.vocab_size} terms"
            )
        if table.dim > widest:
            raise ContractMismatch(f"table {name!r} is {table.dim} wide, but the contract's vectors are {widest}")
        if table.dim != first:
            raise InvalidInput(f"table {name!r} is {table.dim} wide, but another is {first}; all must be the same")


def _check_term_weights(contract: Contract, weights: Floats | None) -> None:
    wanted = contract.query.term_weights == "idf"
    if wanted != (weights is not None):
        raise InvalidInput(
            f"the contract wants {'stored' if wanted else 'no'} term weights, "
            f"but they were {'not ' if weights is None else ''}given"
        )
    if weights is None:
        return
    vocab_size = contract.backbone.vocab_size
    if weights.shape != (vocab_size,) or weights.dtype != np.float32:
        raise ContractMismatch(
            f"term weights are {weights.dtype} of shape {weights.shape}, "
            f"but the contract's vocabulary wants float32 of ({vocab_size},)"
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InvalidInput("term weights must be finite and not negative")


def _check_expansions(contract: Contract, tokenizer: TextTokenizer, expansions: CachedExpansions | None) -> None:
    wanted = contract.query.weighting == "expansion"
    if wanted != (expansions is not None):
        raise InvalidInput(
            f"the contract's query weighting is {contract.query.weighting!r}, "
            f"but expansions were {'not ' if expansions is None else ''}given"
        )
    if expansions is None:
        return
    if contract.sparse is None:
        raise InvalidInput("the query weighting is 'expansion', but the contract has no sparse branch")
    if len(expansions) < tokenizer.vocab_size:
        raise ContractMismatch(
            f"there are {len(expansions)} expansions, but the tokenizer has {tokenizer.vocab_size} terms"
        )
    vocab_size = contract.backbone.vocab_size
    if (largest := int(expansions.term_ids.max(initial=0))) >= vocab_size:
        raise ContractMismatch(f"an expansion names term {largest}, but the contract's vocabulary has {vocab_size}")


def _check_bigrams(
    contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable], bigrams: CachedBigrams | None
) -> None:
    found = "" if bigrams is None else bigrams.bigrams.hash
    if found != contract.query.bigrams:
        raise ContractMismatch(
            f"the bigrams have hash {found!r}, but the contract's query policy says {contract.query.bigrams!r}"
        )
    if bigrams is None:
        return
    if len(tables) != 1:
        raise InvalidInput(f"bigrams belong to one table, but there are {len(tables)}")
    (table,) = tables.values()
    if bigrams.table.dim != table.dim:
        raise InvalidInput(f"the bigrams' rows are {bigrams.table.dim} wide, the terms' {table.dim}")
    if (largest := int(bigrams.bigrams.pairs.max(initial=0))) >= tokenizer.vocab_size:
        raise ContractMismatch(f"a bigram names term {largest}, but the tokenizer has {tokenizer.vocab_size} terms")


def _load_bigrams(path: Path) -> CachedBigrams:
    tensors = map_safetensors(path)
    if not {PAIRS_KEY, "embeddings"} <= tensors.keys():
        raise FormatError(f"{path} holds {sorted(tensors)}; the keys {PAIRS_KEY!r} and 'embeddings' are needed")
    try:
        table = CachedTable(tensors["embeddings"], tensors.get(SCALES_KEY))
        return CachedBigrams(Bigrams(tensors[PAIRS_KEY]), table)
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error


def _load_expansions(path: Path) -> CachedExpansions:
    return CachedExpansions(_tensor(path, "term_ids"), _tensor(path, "weights"))


def _load_tables(folder: Path) -> dict[str, CachedTable]:
    path = folder / TABLES_FILE
    content = read_json(path)
    try:
        if content["format_version"] != TABLES_VERSION:
            raise FormatError(f"{path} has version {content['format_version']!r}; this release reads {TABLES_VERSION}")
        dtype, records = str(content["dtype"]), list(content["tables"])
        named = [(str(record["task"]), str(record["instruction"]), folder / str(record["file"])) for record in records]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path}: {error!r}; expected format_version, dtype and tables") from error
    return {task: _load_table(file, instruction, dtype) for task, instruction, file in named}


def _load_table(path: Path, instruction: str, dtype: str) -> CachedTable:
    tensors = map_safetensors(path)
    if "embeddings" not in tensors:
        raise FormatError(f"{path} holds {sorted(tensors)}; the key 'embeddings' is needed")
    try:
        table = CachedTable(tensors["embeddings"], tensors.get(SCALES_KEY), instruction)
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error
    if (found := _DTYPE_NAMES[table.embeddings.dtype.name]) != dtype:
        raise FormatError(f"{path} holds {found} rows, but {TABLES_FILE} says {dtype}")
    return table


def _tensor(path: Path, key: str) -> npt.NDArray[Any]:
    tensors = map_safetensors(path)
    if key not in tensors:
        raise FormatError(f"{path} holds {sorted(tensors)}; the key {key!r} is needed")
    return tensors[key]


def map_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """The file's tensors as read-only, memory-mapped arrays (safetensors' own numpy reader copies them).

    Raises:
        NotFound: there is no such file.
        FormatError: it is no safetensors file, is cut off, or holds a dtype other than F16, BF16, F32, I8, U32.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist")
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _map_tensor(content, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(f"{path} is no whole safetensors file of {', '.join(_DTYPES)} tensors: {error}") from error


def _map_tensor(content: npt.NDArray[np.uint8], start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    begin, end = entry["data_offsets"]
    if start + end > len(content):
        raise ValueError(f"it ends at byte {len(content)}, but a tensor reaches to {start + end}")
    flat = np.asarray(content[start + begin : start + end]).view(_DTYPES[entry["dtype"]])
    tensor: npt.NDArray[Any] = flat.reshape(entry["shape"])
    return tensor
