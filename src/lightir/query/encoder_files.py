"""Memory-map the files of a query-encoder folder."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import FormatError, InvalidInput, NotFound, storage_errors
from lightir.files import child_path, read_json
from lightir.query.bigrams import Bigrams
from lightir.query.expansions import CachedExpansions
from lightir.query.gate import CachedGate
from lightir.query.tables import CachedBigrams, CachedTable

TABLES_FILE = "tables.json"
DEFAULT_TABLE_FILE = "model.safetensors"
TOKENIZER_FILE = "tokenizer.json"
TABLES_VERSION = 1
TERM_WEIGHTS_FILE = "sparse.safetensors"
EXPANSIONS_FILE = "expansions.safetensors"
BIGRAMS_FILE = "bigrams.safetensors"
GATE_FILE = "gate.safetensors"
PAIRS_KEY = "pairs"
SCALES_KEY = "weights"  # model2vec's name, so that model2vec and sentence-transformers multiply int8 rows by it

# numpy has no bfloat16; its bits are read as uint16.
_DTYPES: Mapping[str, Any] = MappingProxyType(
    {"F16": np.float16, "BF16": np.uint16, "F32": np.float32, "I8": np.int8, "U32": np.uint32}
)

_DTYPE_NAMES: Mapping[str, str] = MappingProxyType(
    {"float16": "fp16", "uint16": "bf16", "float32": "fp32", "int8": "int8"}
)


def load_bigrams(path: Path) -> CachedBigrams:
    """Load the pairs of terms and their rows."""
    tensors = map_safetensors(path)
    if not {PAIRS_KEY, "embeddings"} <= tensors.keys():
        raise FormatError(f"{path} holds {sorted(tensors)}; expected the keys {PAIRS_KEY!r} and 'embeddings'")
    try:
        table = CachedTable(tensors["embeddings"], tensors.get(SCALES_KEY))
        return CachedBigrams(Bigrams(tensors[PAIRS_KEY]), table)
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error


def load_gate(path: Path) -> CachedGate:
    """Load the keys and values of the gate."""
    tensors = map_safetensors(path)
    if not {"keys", "values"} <= tensors.keys():
        raise FormatError(f"{path} holds {sorted(tensors)}; expected the keys 'keys' and 'values'")
    try:
        return CachedGate(tensors["keys"], tensors["values"])
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error


def load_expansions(path: Path) -> CachedExpansions:
    """Load each term's expansion terms with their weights."""
    return CachedExpansions(load_tensor(path, "term_ids"), load_tensor(path, "weights"))


def load_tables(folder: Path) -> dict[str, CachedTable]:
    """Load the tables by task, the default first."""
    path = folder / TABLES_FILE
    content = read_json(path)
    try:
        if content["format_version"] != TABLES_VERSION:
            raise FormatError(f"{path} has version {content['format_version']!r}; this release reads {TABLES_VERSION}")
        dtype, records = str(content["dtype"]), list(content["tables"])
        named = [
            (str(record["task"]), str(record["instruction"]), child_path(folder, record["file"])) for record in records
        ]
    except (KeyError, TypeError) as error:
        raise FormatError(f"{path}: {error!r}; expected format_version, dtype and tables") from error
    return {task: _load_table(file, instruction, dtype) for task, instruction, file in named}


def _load_table(path: Path, instruction: str, dtype: str) -> CachedTable:
    tensors = map_safetensors(path)
    if "embeddings" not in tensors:
        raise FormatError(f"{path} holds {sorted(tensors)}; expected the key 'embeddings'")
    try:
        table = CachedTable(tensors["embeddings"], tensors.get(SCALES_KEY), instruction)
    except InvalidInput as error:
        raise FormatError(f"{path}: {error}") from error
    if (stored := _DTYPE_NAMES[table.embeddings.dtype.name]) != dtype:
        raise FormatError(f"{path} holds {stored} rows, but {TABLES_FILE} requires {dtype}")
    return table


def load_tensor(path: Path, key: str) -> npt.NDArray[Any]:
    """Load one tensor of a safetensors file.

    Raises:
        NotFound: the file does not exist.
        FormatError: the file lacks the tensor, or is damaged.
    """
    tensors = map_safetensors(path)
    if key not in tensors:
        raise FormatError(f"{path} holds {sorted(tensors)}; expected the key {key!r}")
    return tensors[key]


def map_safetensors(path: Path) -> dict[str, npt.NDArray[Any]]:
    """Map a safetensors file's tensors as read-only arrays (safetensors' own numpy reader copies them).

    Raises:
        NotFound: the file does not exist.
        FormatError: not a safetensors file, a truncated one, or a dtype other than F16, BF16, F32, I8, U32.
        StorageError: the system refuses to open or map the file.
    """
    if not path.is_file():
        raise NotFound(f"{path} does not exist")
    try:
        with storage_errors(f"cannot map {path}"):
            content = np.memmap(path, dtype=np.uint8, mode="r")
        start = 8 + int.from_bytes(content[:8].tobytes(), "little")
        header = json.loads(content[8:start].tobytes())
        header.pop("__metadata__", None)
        return {name: _map_tensor(content, start, entry) for name, entry in header.items()}
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise FormatError(
            f"{path} is not a complete safetensors file of {', '.join(_DTYPES)} tensors: {error}"
        ) from error


def _map_tensor(content: npt.NDArray[np.uint8], start: int, entry: Mapping[str, Any]) -> npt.NDArray[Any]:
    begin, end = entry["data_offsets"]
    if start + end > len(content):
        raise ValueError(f"it has {len(content)} bytes, but a tensor ends at byte {start + end}")
    flat = np.asarray(content[start + begin : start + end]).view(_DTYPES[entry["dtype"]])
    tensor: npt.NDArray[Any] = flat.reshape(entry["shape"])
    return tensor
