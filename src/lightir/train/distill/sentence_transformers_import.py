"""Import of sentence-transformers folders: a transformer encodes documents, a table queries."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import Any

import numpy as np
from safetensors import SafetensorError
from safetensors.numpy import load_file

from lightir.addresses import QUERY_ENCODER, resolve_local, stored_address
from lightir.contract import FILE_NAME
from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, TableDtype, write_query_encoder
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.files import atomic_folder, read_json
from lightir.text import MAX_TOKENS, QueryPolicy, TextTokenizer
from lightir.train.distill.teacher import PROMPTS_FILE, load_teacher, route_modules
from lightir.vectors import Floats

STATIC_EMBEDDING = "StaticEmbedding"


@dataclasses.dataclass(frozen=True, slots=True)
class StaticTable:
    """A table of StaticEmbedding or Model2Vec.

    Attributes:
        tokenizer: tokenizer of the queries.
        rows: (V, dim) float32; row t is the vector of term t.
        drop: ids of terms that are left out: Model2Vec leaves out unknown words, StaticEmbedding does not.
    """

    tokenizer: TextTokenizer
    rows: Floats
    drop: tuple[int, ...]


def import_sentence_transformer(
    address: str | os.PathLike[str],
    out: Path | str,
    *,
    table: Path | str | None = None,
    dtype: TableDtype = "fp32",
    overwrite: bool = False,
) -> Path:
    """Write a lightir model whose documents are encoded by a sentence-transformers folder, and queries by a table.

    The model stays where it is; the written folder names it and its hashes.

    Args:
        address: folder, `pypi:PACKAGE`: Transformer, Pooling and optionally Normalize, or a Router of them and a
            StaticEmbedding for queries.
        out: model folder to write.
        table: folder of a StaticEmbedding or Model2Vec, whose rows are vectors of the documents' space; None for the
            query route of the folder's Router.
        dtype: number format of the written table.
        overwrite: replace an existing model folder.

    Raises:
        NotFound: there is no such folder.
        InvalidInput: there is no table; it has another width than the documents; its queries have a prompt; or the
            document side has modules that a contract does not support (see `load_teacher`).
        FormatError: damaged files.
        AlreadyExists: `out` exists and overwrite is off.
    """
    static = read_static_table(_table_folder(address) if table is None else Path(table), of_router=table is None)
    model = load_teacher(address)
    if static.rows.shape[1] != model.backbone.hidden_size:
        raise InvalidInput(
            f"the query table has {static.rows.shape[1]} columns, but the document vectors of {os.fspath(address)} "
            f"have {model.backbone.hidden_size}; a table must hold vectors of the documents' space"
        )
    own = model.backbone.tokenizer.hash == static.tokenizer.hash
    query = QueryPolicy(
        lower_case=False,
        leading_blank=False,
        drop=static.drop,
        max_tokens=MAX_TOKENS,
        tokenizer="" if own else static.tokenizer.hash,
    )
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as aside:
        base = dataclasses.replace(model.contract.backbone, address=stored_address(model.backbone.address, Path(out)))
        contract = dataclasses.replace(model.contract, backbone=base, query=query)
        model.backbone.tokenizer.save(aside / "tokenizer.json")
        contract.save(aside)
        arrays = QueryEncoderArrays([QueryTable("", "", static.rows)])
        write_query_encoder(aside / QUERY_ENCODER, contract, static.tokenizer, arrays, dtype=dtype)
    return Path(out)


def _table_folder(address: str | os.PathLike[str]) -> Path:
    """Return the folder of the StaticEmbedding on the query route.

    Raises:
        NotFound: there is no such folder.
        InvalidInput: queries are encoded by something else.
    """
    folder = resolve_local(address)
    if folder is None or not (folder / "modules.json").is_file():
        raise NotFound(f"{os.fspath(address)} is not a local sentence-transformers folder (no modules.json)")
    modules = route_modules(folder, "query")
    kinds = [kind for kind, _ in modules]
    if kinds not in ([STATIC_EMBEDDING], [STATIC_EMBEDDING, "Normalize"]):
        raise InvalidInput(
            f"{folder} encodes queries by {kinds}, not by a {STATIC_EMBEDDING} of a Router. Fit a table to it with "
            f"`lightir distill {os.fspath(address)}`, or name one with --table"
        )
    prompts = read_json(folder / PROMPTS_FILE).get("prompts") or {} if (folder / PROMPTS_FILE).is_file() else {}
    if prompts.get("query"):
        raise InvalidInput(
            f"{folder} averages the query prompt {prompts['query']!r} into every query, which a contract does not "
            "support"
        )
    return modules[0][1]


def read_static_table(folder: Path, *, of_router: bool = False) -> StaticTable:
    """Read a table that StaticEmbedding or Model2Vec wrote.

    Args:
        folder: folder with model.safetensors and tokenizer.json.
        of_router: whether StaticEmbedding reads the folder, whichever of both wrote it.

    Raises:
        NotFound: a file does not exist.
        FormatError: damaged files, or fewer rows than terms.
    """
    path = folder / "model.safetensors"
    if not path.is_file():
        raise NotFound(f"{path} does not exist; expected a folder of StaticEmbedding or Model2Vec")
    tokenizer = TextTokenizer.from_file(folder / "tokenizer.json")
    try:
        arrays = load_file(str(path))
        rows = _folded(arrays)
    except (SafetensorError, KeyError, IndexError, ValueError) as error:
        raise FormatError(f"{path} is no table of StaticEmbedding or Model2Vec: {error}") from error
    if rows.ndim != 2 or len(rows) < tokenizer.vocab_size:
        raise FormatError(f"{path} has rows of shape {rows.shape}, but the tokenizer has {tokenizer.vocab_size} terms")
    unknown = None if of_router or "embedding.weight" in arrays else tokenizer.unknown_id
    return StaticTable(tokenizer, rows, () if unknown is None else (unknown,))


def _folded(arrays: dict[str, Any]) -> Floats:
    """Return one float32 row per term id: Model2Vec may map several ids to a row, and weight each id."""
    rows = arrays["embedding.weight"] if "embedding.weight" in arrays else arrays["embeddings"]
    if "mapping" in arrays:
        rows = rows[arrays["mapping"].astype(np.int64)]
    rows = rows.astype(np.float32)
    if "weights" in arrays:
        rows = rows * arrays["weights"].astype(np.float32)[:, None]
    return np.ascontiguousarray(rows, dtype=np.float32)
