"""The query side of an exported model: tables and term weights in the files that sentence-transformers reads."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import numpy.typing as npt
from safetensors.numpy import save_file
from tokenizers import Tokenizer

from lightir.files import write_json
from lightir.query import CachedQueryEncoder
from lightir.query.bigrams import LONGER, TermPairs

STATIC_EMBEDDING = "sentence_transformers.models.StaticEmbedding"
QUERY_TABLE = "lightir_modules.TermTable"


def dense_query_type(queries: CachedQueryEncoder) -> str:
    """Return the module that encodes dense queries: StaticEmbedding, or lightir's for pairs of terms or a gate."""
    return STATIC_EMBEDDING if queries.bigrams is None and queries.gate is None else QUERY_TABLE


def write_dense_query(folder: Path, queries: CachedQueryEncoder, task: str | None, tokenizer: Tokenizer) -> None:
    """Write the folder of the module that encodes dense queries.

    Args:
        folder: folder to create.
        queries: query encoder with the tables.
        task: name of the table; None for the default one.
        tokenizer: tokenizer under the query policy.
    """
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    table = next(iter(queries.tables.values())) if task is None else queries.tables[task]
    rows, policy = table.float_rows(), queries.contract.query
    if dense_query_type(queries) == STATIC_EMBEDDING:
        rows[list(policy.drop)] = 0  # adds nothing to a mean that is then normalized
        save_file({"embedding.weight": rows}, str(folder / "model.safetensors"))
        return
    pairs, gate = queries.bigrams, queries.gate
    stored = [rows] if pairs is None else [rows, pairs.table.float_rows()]
    empty = np.zeros((0, 0), dtype=np.float32)
    # Half precision is kept where all rows have it: the sums are the same, and the file is half as large.
    dtypes = {part.embeddings.dtype for part in (table, *([] if pairs is None else [pairs.table]))}
    dtype = np.float16 if dtypes == {np.dtype(np.float16)} else np.float32
    arrays = {
        "embeddings": np.concatenate(stored).astype(dtype),
        "pairs": np.zeros(0, dtype=np.int64) if pairs is None else _pair_keys(pairs.bigrams.pairs, len(rows)),
        "keys": empty if gate is None else np.array(gate.keys),
        "values": empty if gate is None else np.array(gate.values),
    }
    save_file(arrays, str(folder / "model.safetensors"))
    write_json(folder / "config.json", {"max_tokens": policy.max_tokens, "drop": list(policy.drop)})


def write_sparse_query(folder: Path, queries: CachedQueryEncoder, tokenizer: Tokenizer) -> None:
    """Write the folder of the module that encodes sparse queries as counted terms."""
    folder.mkdir()
    tokenizer.save(str(folder / "tokenizer.json"))
    policy, width = queries.contract.query, queries.contract.backbone.vocab_size
    weights = np.ones(width, dtype=np.float32) if queries.term_weights is None else np.array(queries.term_weights)
    save_file({"weight": weights}, str(folder / "model.safetensors"))
    config = {"max_tokens": policy.max_tokens, "drop": list(policy.drop), "binary": policy.weighting == "binary"}
    write_json(folder / "config.json", config)


def _pair_keys(pairs: TermPairs, n_terms: int) -> npt.NDArray[np.int64]:
    """Return for each pair: row of its first item, a term or a shorter run, * 2^32 + its last term."""
    firsts = pairs[:, 0].astype(np.int64)
    rows = np.where(firsts >= LONGER, firsts - LONGER + n_terms, firsts)
    return (rows << 32) | pairs[:, 1].astype(np.int64)
