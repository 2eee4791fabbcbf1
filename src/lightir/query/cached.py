"""The query-encoder folder: one table of token vectors an instruction, looked up and averaged (Eq. 6)."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file

from lightir import kernel
from lightir.contract import Contract
from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.files import new_folder, read_json, write_json
from lightir.text import TextTokenizer, query_term_ids, sparse_queries
from lightir.vectors import Floats, QueryVectors, Ragged, SparseVectors

TABLES_FILE = "tables.json"
TOKENIZER_FILE = "tokenizer.json"
DEFAULT_TABLE_FILE = "model.safetensors"
TERM_WEIGHTS_FILE = "sparse.safetensors"

_DTYPES: Mapping[str, Any] = MappingProxyType({"F16": np.float16, "F32": np.float32, "I8": np.int8})
_DTYPE_NAMES = {"float16": "fp16", "int8": "int8"}


@dataclass(frozen=True, slots=True)
class QueryTable:
    """One instruction's token vectors.

    Attributes:
        embeddings: (vocab_size, dim) float16, float32 or int8.
        scales: (vocab_size,) float32 for int8: row t stands for scales[t] * embeddings[t]; else None.
        instruction: the instruction that the rows were made with.
    """

    embeddings: npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.int8]
    scales: Floats | None = None
    instruction: str = ""

    def __post_init__(self) -> None:
        rows = self.embeddings
        if rows.ndim != 2 or rows.dtype not in (np.float16, np.float32, np.int8):
            raise InvalidInput(
                f"embeddings are {rows.dtype} of shape {rows.shape}; expected float16, float32 or int8 of 2 dimensions"
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


class CachedQueryEncoder:
    """Queries become vectors by looking their terms up: dense is the mean of rows, sparse the counts."""

    def __init__(
        self,
        contract: Contract,
        tokenizer: TextTokenizer,
        *,
        tables: Mapping[str, QueryTable] = MappingProxyType({}),
        default: str | None = None,
        term_weights: Floats | None = None,
        dim: int | None = None,
        threads: int = 1,
    ) -> None:
        """Put an encoder together from arrays.

        Args:
            contract: its query policy, and the document side that the tables were made for.
            tokenizer: must have the contract's tokenizer hash.
            tables: task name -> table; wanted exactly when the contract has a dense branch.
            default: the table that is used without a task; None for the first.
            term_weights: (vocab_size,) float32, wanted exactly when the policy's term_weights are "idf".
            dim: width of the dense vectors, a Matryoshka prefix of the tables'; None for their own width.
            threads: for looking up a batch.

        Raises:
            ContractMismatch: tokenizer, vocabulary or width are not the contract's; both values are named.
            InvalidInput: a table or weight that is missing or too many.
        """
        self.contract = contract
        self.tokenizer = tokenizer
        self.tables = dict(tables)
        self.default = default if default is not None else next(iter(self.tables), None)
        self.term_weights = term_weights
        self.threads = threads
        _check_tokenizer(contract, tokenizer)
        _check_tables(contract, self.tables)
        _check_term_weights(contract, term_weights)
        if self.tables and self.default not in self.tables:
            raise InvalidInput(f"the default table {self.default!r} is not among {list(self.tables)}")
        self.dim = self._checked_dim(dim)

    @classmethod
    def load(cls, folder: Path | str, *, dim: int | None = None, threads: int = 1) -> CachedQueryEncoder:
        """Open a query-encoder folder; tables are memory-mapped.

        Args:
            folder: lightir.json, tokenizer.json, tables.json and the tables that it names.
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
        tables, default = _load_tables(folder) if contract.dense is not None else ({}, None)
        weights = None
        if contract.sparse is not None and contract.query.term_weights == "idf":
            weights = _tensor(folder / TERM_WEIGHTS_FILE, "term_weights")
        try:
            return cls(
                contract, tokenizer, tables=tables, default=default, term_weights=weights, dim=dim, threads=threads
            )
        except (InvalidInput, ContractMismatch) as error:
            raise type(error)(f"{folder}: {error}") from error

    def save(self, folder: Path | str, *, overwrite: bool = False) -> None:
        """Write the query-encoder folder that `load` reads, whole or not at all.

        Raises:
            AlreadyExists: the folder is there and overwrite is off.
            InvalidInput: a table is float32 (store it as float16), or a task's name can't be a file's.
        """
        with new_folder(Path(folder), overwrite=overwrite) as aside:
            self.contract.save(aside)
            self.tokenizer.save(aside / TOKENIZER_FILE)
            if self.tables:
                records = {name: self._save_table(aside, name, table) for name, table in self.tables.items()}
                write_json(aside / TABLES_FILE, {"default": self.default, "tables": records})
            if self.term_weights is not None:
                save_file({"term_weights": np.ascontiguousarray(self.term_weights)}, aside / TERM_WEIGHTS_FILE)

    def _save_table(self, folder: Path, name: str, table: QueryTable) -> dict[str, Any]:
        if table.embeddings.dtype.name not in _DTYPE_NAMES:
            raise InvalidInput(f"table {name!r} is {table.embeddings.dtype}; a stored table is float16 or int8")
        if not name or name.startswith(".") or "/" in name or "\0" in name:
            raise InvalidInput(f"task name {name!r} can't be a file's name")
        file = DEFAULT_TABLE_FILE if name == self.default else f"tables/{name}.safetensors"
        (folder / file).parent.mkdir(exist_ok=True)
        tensors: dict[str, npt.NDArray[Any]] = {"embeddings": np.ascontiguousarray(table.embeddings)}
        if table.scales is not None:
            tensors["scales"] = np.ascontiguousarray(table.scales)
        save_file(tensors, folder / file)
        dtype = _DTYPE_NAMES[table.embeddings.dtype.name]
        return {"file": file, "instruction": table.instruction, "dtype": dtype, "dim": table.dim}

    @property
    def document_fingerprint(self) -> str:
        """The fingerprint of the document side that the vectors are made for."""
        return self.contract.document_fingerprint

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tables."""
        return tuple(self.tables)

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """The queries' vectors; a branch that the contract lacks is None.

        Args:
            texts: n queries. One without terms gets a zero dense row and an empty sparse row.
            task: one of `tasks`; None for the default table.

        Raises:
            NotFound: no table has that name.
            InvalidInput: a text is no str, or not representable in UTF-8.
        """
        policy = self.contract.query
        term_ids = query_term_ids(self.tokenizer, policy, texts)
        return QueryVectors(term_ids, self._dense(term_ids, task), self._sparse(term_ids))

    def _dense(self, term_ids: Ragged, task: str | None) -> Floats | None:
        name = self.default if task is None else task
        if name not in self.tables:
            if task is None:
                return None
            raise NotFound(f"no query table for task {task!r}; there are {list(self.tables)}")
        table = self.tables[name]
        return kernel.mean_rows(
            table.embeddings,
            term_ids.term_ids,
            term_ids.indptr,
            normalize=True,
            scales=table.scales,
            dim=self.dim,
            threads=self.threads,
        )

    def _sparse(self, term_ids: Ragged) -> SparseVectors | None:
        if self.contract.sparse is None:
            return None
        vocab_size = self.contract.backbone.vocab_size
        return sparse_queries(term_ids, self.contract.query, vocab_size=vocab_size, term_weights=self.term_weights)

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
    if tokenizer.hash != contract.backbone.tokenizer_hash:
        raise ContractMismatch(
            f"the tokenizer has hash {tokenizer.hash!r}, but the contract says {contract.backbone.tokenizer_hash!r}; "
            "put the tokenizer.json beside it that the model was trained with"
        )


def _check_tables(contract: Contract, tables: Mapping[str, QueryTable]) -> None:
    if (contract.dense is None) != (not tables):
        raise InvalidInput(
            f"the contract has {'no' if contract.dense is None else 'a'} dense branch, but {len(tables)} tables came"
        )
    if contract.dense is None:
        return
    widest = contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size
    first = next(iter(tables.values())).dim
    for name, table in tables.items():
        if len(table.embeddings) != contract.backbone.vocab_size:
            raise ContractMismatch(
                f"table {name!r} has {len(table.embeddings)} rows, "
                f"but the contract's vocabulary has {contract.backbone.vocab_size}"
            )
        if table.dim > widest:
            raise ContractMismatch(f"table {name!r} is {table.dim} wide, but the contract's vectors are {widest}")
        if table.dim != first:
            raise InvalidInput(f"table {name!r} is {table.dim} wide, but another is {first}; all must be the same")


def _check_term_weights(contract: Contract, weights: Floats | None) -> None:
    wanted = contract.sparse is not None and contract.query.term_weights == "idf"
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


def _load_tables(folder: Path) -> tuple[dict[str, QueryTable], str]:
    path = folder / TABLES_FILE
    content = read_json(path)
    try:
        default, records = str(content["default"]), dict(content["tables"])
        tables = {name: _load_table(folder, name, record) for name, record in records.items()}
    except (KeyError, TypeError, ValueError) as error:
        if isinstance(error, InvalidInput):
            raise
        raise FormatError(f"{path} lacks or garbles {error}; expected default and tables") from error
    return tables, default


def _load_table(folder: Path, name: str, record: Mapping[str, Any]) -> QueryTable:
    path = folder / str(record["file"])
    tensors = map_safetensors(path)
    if "embeddings" not in tensors:
        raise FormatError(f"{path} holds {sorted(tensors)}; the key 'embeddings' is needed")
    try:
        table = QueryTable(tensors["embeddings"], tensors.get("scales"), str(record["instruction"]))
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error
    found = {"dtype": _DTYPE_NAMES.get(table.embeddings.dtype.name), "dim": table.dim}
    said = {key: record[key] for key in found}
    if found != said:
        raise FormatError(f"{path} holds {found}, but {TABLES_FILE} says {said} of table {name!r}")
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
        FormatError: it is no safetensors file, is cut off, or holds a dtype other than F16, F32, I8.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist")
    try:
        content = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _map_tensor(content, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise FormatError(f"{path} is no whole safetensors file of F16, F32 or I8 tensors: {error}") from error


def _map_tensor(content: npt.NDArray[np.uint8], start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    begin, end = entry["data_offsets"]
    if start + end > len(content):
        raise ValueError(f"it ends at byte {len(content)}, but a tensor reaches to {start + end}")
    flat = np.asarray(content[start + begin : start + end]).view(_DTYPES[entry["dtype"]])
    tensor: npt.NDArray[Any] = flat.reshape(entry["shape"])
    return tensor
