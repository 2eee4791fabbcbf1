"""Writing of query-encoder/ folders, which encode queries without a model.

    lightir.json         contract of the model, with the default table's instruction
    tokenizer.json
    tables.json          format version, dtype, and task, instruction and file of each table, the default first
    model.safetensors    default table
    table-001.safetensors ...  other tables
    sparse.safetensors   term_weights (V,) float32, if the query policy's term_weights is "idf"
    bigrams.safetensors  if the policy names bigrams: pairs (n, 2) uint32, ascending, and their rows like a table's; a
                         pair whose first item is 2^31 + j continues pair j by one more term
    gate.safetensors     if the policy names a gate: keys and values (V + n, G) of terms, then pairs, float16 or float32
    expansions.safetensors   term_ids (V, width) uint32 and weights (V, width), if its weighting is "expansion"
    config.json          lets model2vec read the default table

A table file holds `embeddings` (V, dim), float16, float32 or int8; with int8 also `weights` (V,) float32, the scales of
the rows. These are model2vec's names, so model2vec and sentence-transformers' StaticEmbedding read the folder too. They
ignore the query policy and, as config.json says, bigrams and the gate.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError
from safetensors.numpy import save_file

from lightir.contract import Contract
from lightir.errors import InvalidInput, WriteFailed, storage_errors
from lightir.files import atomic_folder, write_json
from lightir.query import CachedExpansions, CachedGate
from lightir.query.bigrams import Bigrams
from lightir.query.encoder_files import (
    BIGRAMS_FILE,
    DEFAULT_TABLE_FILE,
    EXPANSIONS_FILE,
    GATE_FILE,
    PAIRS_KEY,
    SCALES_KEY,
    TABLES_FILE,
    TABLES_VERSION,
    TERM_WEIGHTS_FILE,
    TOKENIZER_FILE,
)
from lightir.text import TextTokenizer
from lightir.vectors import Floats

TableDtype = Literal["fp16", "fp32", "int8"]


@dataclass(frozen=True, slots=True)
class QueryTable:
    """The query table of one instruction.

    Attributes:
        task: name of the table in the folder; "" for a single table.
        instruction: text of the instruction, "" for none.
        rows: (V, dim) float32; row t is the vector of term t.
    """

    task: str
    instruction: str
    rows: Floats


@dataclass(frozen=True, slots=True)
class BigramTable:
    """Pairs of terms and their rows.

    Attributes:
        bigrams: n pairs of terms.
        rows: (n, dim) float32; row i is the vector of pair i.
    """

    bigrams: Bigrams
    rows: Floats


@dataclass(frozen=True, slots=True)
class QueryEncoderArrays:
    """The arrays of a query encoder.

    Attributes:
        tables: query tables of one shape, the default first; empty for a model without a dense branch.
        term_weights: (V,) float32 IDF weights; required if the policy's term_weights is "idf", else None.
        expansions: strongest terms of each term; required if the policy's weighting is "expansion", else None.
        bigrams: bigrams and their rows; required if the policy names their hash, else None.
        gate: gate over the rows of the one table and of the bigrams, stored in the dtype that it has; required if the
            policy names its hash, else None.
    """

    tables: Sequence[QueryTable] = ()
    term_weights: Floats | None = None
    expansions: CachedExpansions | None = None
    bigrams: BigramTable | None = None
    gate: CachedGate | None = None


def write_query_encoder(
    folder: Path | str,
    contract: Contract,
    tokenizer: TextTokenizer,
    arrays: QueryEncoderArrays,
    *,
    dtype: TableDtype = "fp16",
    overwrite: bool = False,
) -> None:
    """Write a query-encoder/ folder, whole or not at all.

    Args:
        folder: query-encoder/ folder to write.
        contract: contract of the model.
        tokenizer: tokenizer of the model, or the one that the query policy names.
        arrays: tables and the other arrays that the query policy asks for.
        dtype: dtype of the stored rows; each int8 row has a scale, its largest magnitude / 127.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: tables of different shapes, two tables of one task, NaN or infinity, or arrays that the query
            policy does not ask for.
        AlreadyExists: the folder exists and overwrite is off.
        WriteFailed: the disk is full or broken; an existing folder is unchanged.
    """
    tables, bigrams = arrays.tables, arrays.bigrams
    _require_agreement(contract, tokenizer, arrays)
    _require_alike(tables)
    files = [DEFAULT_TABLE_FILE, *(f"table-{i:03d}.safetensors" for i in range(1, len(tables)))]
    with (
        atomic_folder(Path(folder), overwrite=overwrite, replaces=TABLES_FILE) as aside,
        storage_errors(f"cannot write {folder}", kind=WriteFailed, also=(SafetensorError,)),
    ):
        if tables:
            query = dataclasses.replace(contract.query, instruction=tables[0].instruction)
            contract = dataclasses.replace(contract, query=query)
        contract.save(aside)
        tokenizer.save(aside / TOKENIZER_FILE)
        for name, table in zip(files, tables, strict=False):
            save_file(stored_rows(table.rows, dtype=dtype), str(aside / name))
        listed = [
            {"task": table.task, "instruction": table.instruction, "file": name}
            for name, table in zip(files, tables, strict=False)
        ]
        write_json(aside / TABLES_FILE, {"format_version": TABLES_VERSION, "dtype": dtype, "tables": listed})
        if arrays.term_weights is not None:
            weights = np.ascontiguousarray(arrays.term_weights, dtype=np.float32)
            save_file({"term_weights": weights}, str(aside / TERM_WEIGHTS_FILE))
        if (expansions := arrays.expansions) is not None:
            stored = {"term_ids": expansions.term_ids, "weights": expansions.weights}
            save_file(stored, str(aside / EXPANSIONS_FILE))
        if bigrams is not None:
            pairs = np.ascontiguousarray(bigrams.bigrams.pairs)
            save_file({PAIRS_KEY: pairs, **stored_rows(bigrams.rows, dtype=dtype)}, str(aside / BIGRAMS_FILE))
        if (gate := arrays.gate) is not None:
            vectors = {"keys": np.ascontiguousarray(gate.keys), "values": np.ascontiguousarray(gate.values)}
            save_file(vectors, str(aside / GATE_FILE))
        write_json(aside / "config.json", {"model_type": "model2vec", "normalize": True, **_left_out(arrays)})


def _left_out(arrays: QueryEncoderArrays) -> dict[str, str]:
    """Return what readers of config.json leave out, if anything."""
    parts = [] if arrays.bigrams is None else [f"{BIGRAMS_FILE}: {len(arrays.bigrams.bigrams)} rows of bigrams"]
    parts += [] if arrays.gate is None else [f"{GATE_FILE}: weights of {len(arrays.gate)} rows"]
    return {"left_out": "; ".join(parts)} if parts else {}


def _require_agreement(contract: Contract, tokenizer: TextTokenizer, arrays: QueryEncoderArrays) -> None:
    """Refuse arrays that the query policy does not ask for, and missing ones."""
    query, bigrams = contract.query, arrays.bigrams
    if (query.term_weights == "idf") != (arrays.term_weights is not None):
        given = "were" if arrays.term_weights is not None else "were not"
        raise InvalidInput(f"the query policy has term_weights={query.term_weights!r}, but weights {given} given")
    if (query.weighting == "expansion") != (arrays.expansions is not None):
        given = "were" if arrays.expansions is not None else "were not"
        raise InvalidInput(f"the query policy has weighting={query.weighting!r}, but expansions {given} given")
    if query.tokenizer not in ("", tokenizer.hash):
        raise InvalidInput(
            "the contract's queries use another tokenizer than the model; their table is fitted, not computed"
        )
    if query.bigrams != ("" if bigrams is None else bigrams.bigrams.hash):
        given = "none were" if bigrams is None else f"those of {bigrams.bigrams.hash!r} were"
        raise InvalidInput(f"the query policy has bigrams={query.bigrams!r}, but {given} given")
    _require_gate(contract, arrays)


def _require_gate(contract: Contract, arrays: QueryEncoderArrays) -> None:
    """Refuse a gate that the query policy does not name or that does not fit the rows, and a missing one."""
    gate, named = arrays.gate, contract.query.gate
    if named != ("" if gate is None else gate.hash):
        given = "none was" if gate is None else f"that of {gate.hash!r} was"
        raise InvalidInput(f"the query policy has gate={named!r}, but {given} given")
    if gate is None:
        return
    n_rows = [len(table.rows) for table in arrays.tables]
    n_bigrams = 0 if arrays.bigrams is None else len(arrays.bigrams.rows)
    if len(n_rows) != 1 or len(gate) != n_rows[0] + n_bigrams:
        raise InvalidInput(
            f"the gate has {len(gate)} rows, but there are tables of {n_rows} rows and {n_bigrams} rows of bigrams; "
            "a gate has a row for each row of one table and of its bigrams"
        )


def _require_alike(tables: Sequence[QueryTable]) -> None:
    tasks = [table.task for table in tables]
    if repeated := {task for task in tasks if tasks.count(task) > 1}:
        raise InvalidInput(f"two tables have the task {min(repeated)!r}")
    if len({table.rows.shape for table in tables}) > 1:
        raise InvalidInput(f"tables of different shapes: {[table.rows.shape for table in tables]}")


def stored_rows(rows: Floats, *, dtype: TableDtype) -> dict[str, npt.NDArray[Any]]:
    """Return the arrays of a table's file.

    Raises:
        InvalidInput: NaN or infinity, also after rounding to float16, or an unknown dtype.
    """
    if not np.all(np.isfinite(rows)):
        raise InvalidInput("the table holds NaN or infinity; check the model and its precision")
    if dtype == "int8":
        scales = (np.abs(rows).max(axis=1, initial=0) / 127).astype(np.float32)
        safe = np.where(scales > 0, scales, 1).astype(np.float32)
        return {"embeddings": np.rint(rows / safe[:, None]).astype(np.int8), SCALES_KEY: scales}
    if dtype == "fp32":
        return {"embeddings": np.ascontiguousarray(rows, dtype=np.float32)}
    if dtype != "fp16":
        raise InvalidInput(f"table dtype {dtype!r}: expected 'fp16', 'fp32' or 'int8'")
    if np.abs(rows).max(initial=0) > np.finfo(np.float16).max:
        raise InvalidInput("a row is too large for float16; store the table as int8, or standardize the model")
    return {"embeddings": np.ascontiguousarray(rows, dtype=np.float16)}
