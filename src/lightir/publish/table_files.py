"""The files of the query table: one record per term and per pair or longer run of terms, and the vocabulary."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.index.exchange.varints import encode_numbers
from lightir.publish.parts import PartWriter
from lightir.query import CachedQueryEncoder
from lightir.query.bigrams import LONGER, Bigrams
from lightir.query.tables import CachedTable

_NAMES = {"int8": "int8", "float16": "float16", "float32": "float32", "uint16": "bfloat16"}
_ADVICE = "Publish words alone: --mode tokens"

Bytes = npt.NDArray[np.uint8]


def write_table(writer: PartWriter, encoder: CachedQueryEncoder, dim: int, task: str | None) -> dict[str, Any]:
    """Write the files of a query table; return its settings for the manifest.

    Args:
        writer: writer of the publication.
        encoder: encoder with a dense table.
        dim: width of the index's dense rows.
        task: name of the table; None for the default one.

    Raises:
        InvalidInput: the page's script does not support the tokenizer.
        NotFound: unknown task.
    """
    encoder.text_encoder(task)  # raises the error of an unknown task
    tokenizer = wordpiece_settings(json.loads(encoder.tokenizer.backend.to_str()))
    table = next(iter(encoder.tables.values())) if task is None else encoder.tables[task]
    n_terms = len(table.embeddings)
    vocabulary = encoder.tokenizer.backend.get_vocab(with_added_tokens=True)
    terms = sorted(vocabulary, key=vocabulary.__getitem__)
    if [vocabulary[term] for term in terms] != list(range(n_terms)) or any("\n" in term for term in terms):
        raise InvalidInput(f"the tokenizer's term ids are not those of the {n_terms:,} rows of its table. {_ADVICE}")
    writer.write("vocabulary", "\n".join(terms).encode(), packed=True)
    gate, pairs = encoder.gate, encoder.bigrams
    records = _records(table, dim, None if gate is None else (gate.keys[:n_terms], gate.values[:n_terms]))
    if pairs is not None:
        own = None if gate is None else (gate.keys[n_terms:], gate.values[n_terms:])
        seconds, pointers = _pair_pointers(pairs.bigrams, n_terms)
        writer.write("seconds", seconds)
        records = np.concatenate([records, pointers[:n_terms]], axis=1)
        runs = np.concatenate([_records(pairs.table, dim, own), pointers[n_terms:]], axis=1)
        writer.write("pairs", np.ascontiguousarray(runs).data)
    writer.write("table", np.ascontiguousarray(records).data)
    policy = encoder.contract.query
    return {
        "dim": dim,
        "dtype": _NAMES[table.embeddings.dtype.name],
        "gate": None if gate is None else {"width": gate.keys.shape[1], "dtype": _NAMES[gate.keys.dtype.name]},
        "pairs": pairs is not None,
        "tokenizer": tokenizer,
        "lower_case": policy.lower_case,
        "leading_blank": policy.leading_blank,
        "max_tokens": policy.max_tokens,
        "drop": list(policy.drop),
    }


def wordpiece_settings(content: dict[str, Any]) -> dict[str, Any]:
    """Return the settings of a tokenizer.json that the page's script supports: WordPiece with BERT's normalization.

    Raises:
        InvalidInput: it is another tokenizer; the message has its parts.
    """
    parts = {name: content.get(name) or {} for name in ("normalizer", "pre_tokenizer", "model")}
    types = [part.get("type") for part in parts.values()]
    added = [token["content"] for token in content.get("added_tokens") or [] if not token.get("special")]
    if types != ["BertNormalizer", "BertPreTokenizer", "WordPiece"] or added:
        shown = ", ".join(f"{name} {kind}" for name, kind in zip(parts, types, strict=True))
        raise InvalidInput(
            f"the page's script tokenizes by WordPiece with BERT's normalization, without added words; the model's "
            f"tokenizer has {shown}{f', added words {added[:3]}' if added else ''}. {_ADVICE}"
        )
    normalizer, model = parts["normalizer"], parts["model"]
    accents = normalizer["strip_accents"]
    return {
        "unknown": model["unk_token"],
        "prefix": model["continuing_subword_prefix"],
        "longest": model["max_input_chars_per_word"],
        "cleans": normalizer["clean_text"],
        "isolates_chinese": normalizer["handle_chinese_chars"],
        "strips_accents": normalizer["lowercase"] if accents is None else accents,
        "lower_case": normalizer["lowercase"],
    }


def _records(table: CachedTable, dim: int, gate: tuple[npt.NDArray[Any], npt.NDArray[Any]] | None) -> Bytes:
    """Return (n, width) bytes: each row, its scale, and its key and value of the gate."""
    columns = [_bytes(table.embeddings[:, :dim])]
    if table.scales is not None:
        columns.append(_bytes(table.scales[:, None]))
    columns += [] if gate is None else [_bytes(part) for part in gate]
    return np.concatenate(columns, axis=1)


def _bytes(rows: npt.NDArray[Any]) -> Bytes:
    little = np.ascontiguousarray(rows.astype(rows.dtype.newbyteorder("<")))
    return little.view(np.uint8).reshape(len(rows), -1)


def _pair_pointers(bigrams: Bigrams, n_terms: int) -> tuple[bytes, Bytes]:
    """Return the last terms of all pairs and longer runs, as distances, and where those of each first item are.

    Returns:
        The bytes, and for each term, then for each pair or run, 12 bytes: number of the first one that begins with it,
        first byte, number of bytes; each of 4 bytes, little-endian.
    """
    firsts, seconds = bigrams.pairs[:, 0].astype(np.int64), bigrams.pairs[:, 1].astype(np.int64)
    begins = np.append(True, firsts[1:] != firsts[:-1])[: len(firsts)]
    before = np.append(-1, seconds[:-1])[: len(seconds)]
    content, lengths = encode_numbers(seconds - np.where(begins, -1, before) - 1)
    ends = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    items = np.concatenate([np.arange(n_terms), LONGER + np.arange(len(firsts))])
    low, high = np.searchsorted(firsts, items), np.searchsorted(firsts, items, side="right")
    return content, _bytes(np.stack([low, ends[low], ends[high] - ends[low]], axis=1).astype(np.uint32))
