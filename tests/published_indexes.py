"""Small published indexes: documents of random words, and a WordPiece query table with pairs and a gate."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, normalizers, pre_tokenizers

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, Fusion
from lightir.files import write_json
from lightir.index import IndexOptions, build_index
from lightir.query import CachedGate
from lightir.query.bigrams import LONGER, Bigrams
from lightir.shards import Shard
from lightir.text import QueryPolicy, TextTokenizer
from lightir.types import Document

NODE = shutil.which("node") or ""
needs_node = pytest.mark.skipif(not NODE, reason="Node.js is not installed")
FOLDER = Path(__file__).parent / "publish"

WORDS = """the cats dogs run runs running sleeping sleep kettle kettles descaled well quickly What how who WHO are not
generously universities news café naïve straße Häuser Haus über 東京都 猫 кошки кошка σοφός 42 a I it's""".split()  # noqa: SIM905
PIECES = "[UNK] the cat dog run sleep kettle ##s ##ing ##ning what how who cafe".split()  # noqa: SIM905
PIECES += [*"abcdefghijklmnopqrstuvwxyz0123456789'", *(f"##{letter}" for letter in "abcdefghijklmnopqrtuvwxyz")]


def wordpiece() -> TextTokenizer:
    """A tokenizer like BERT's, of a few pieces; Han and Greek letters are unknown."""
    vocabulary = {piece: i for i, piece in enumerate(PIECES)}
    tokenizer = Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]", max_input_chars_per_word=100))
    tokenizer.normalizer = normalizers.BertNormalizer(lowercase=True)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    return TextTokenizer(tokenizer)


def rows_of(rng: np.random.Generator, n: int, dim: int, dtype: str) -> dict[str, np.ndarray]:
    """Random rows of a table as tensors of its file."""
    if dtype != "int8":
        return {"embeddings": rng.standard_normal((n, dim)).astype(np.float16 if dtype == "fp16" else np.float32)}
    scales = rng.uniform(0.001, 0.02, n).astype(np.float32)
    return {"embeddings": rng.integers(-127, 128, (n, dim)).astype(np.int8), "weights": scales}


def write_encoder(
    folder: Path, *, dim: int, dtype: str = "int8", pairs: bool = True, fusion: Fusion | None = None
) -> Contract:
    """Write a query encoder with random rows; `pairs` gives it rows of pairs, and a gate."""
    rng = np.random.default_rng(11)
    tokenizer, n = wordpiece(), len(PIECES)
    policy = QueryPolicy("", leading_blank=False, drop=(), max_tokens=12)
    folder.mkdir(parents=True)
    save_file(rows_of(rng, n, dim, dtype), folder / "model.safetensors")
    if pairs:
        known = sorted({(int(a), int(b)) for a, b in rng.integers(0, n, (600, 2))})
        for _ in range(2):  # runs of three terms, then of four
            longer = {(LONGER + int(a) % len(known), int(b)) for a, b in rng.integers(0, 10**6, (900, 2)) % [10**6, n]}
            known += sorted(pair for pair in longer if pair > known[-1])
        bigrams = Bigrams(np.array(known, dtype=np.uint32))
        save_file({"pairs": bigrams.pairs, **rows_of(rng, len(known), dim, dtype)}, folder / "bigrams.safetensors")
        keys, values = rng.standard_normal((2, n + len(known), 4)).astype(np.float16)
        save_file({"keys": keys, "values": values}, folder / "gate.safetensors")
        policy = dataclasses.replace(policy, bigrams=bigrams.hash, gate=CachedGate(keys, values).hash)
    backbone = BackboneRecord("org/pieces", "encoder", "w", "", tokenizer.hash, n, dim)
    contract = Contract("distilled", backbone, policy, DocumentPolicy(), DenseHead(dims=(dim,)), None)
    if fusion is not None:
        contract = dataclasses.replace(contract, fusion=fusion)
    contract.save(folder)
    tokenizer.save(folder / "tokenizer.json")
    tables = [{"task": "", "instruction": "", "file": "model.safetensors"}]
    write_json(folder / "tables.json", {"format_version": 1, "dtype": dtype, "tables": tables})
    return contract


def random_documents(n: int, *, seed: int = 0) -> list[Document]:
    """Documents of few words, so that many tie; some are empty."""
    rng = np.random.default_rng(seed)
    documents = []
    for i in range(n):
        words = [str(word) for word in rng.choice(WORDS, int(rng.integers(0, 60)))]
        title = " ".join(str(word) for word in rng.choice(WORDS, int(rng.integers(0, 3))))
        documents.append(Document(f"d{int(rng.integers(10**6))}-{i}", " ".join(words), title, {"n": i}))
    return documents


def make_index(
    folder: Path,
    documents: Sequence[Document],
    *,
    dim: int = 16,
    options: IndexOptions | None = None,
    **encoder: Any,
) -> Path:
    """Build an index of documents with random vectors."""
    contract = write_encoder(folder / "q", dim=dim, **encoder)
    dense = np.random.default_rng(3).standard_normal((len(documents), dim)).astype(np.float32)
    dense = (dense / np.linalg.norm(dense, axis=1, keepdims=True)).astype(np.float16)
    shard = Shard(list(documents), dense, None)
    assert contract.sparse is None
    given = options or IndexOptions(boosts={"title": 5})
    build_index([shard], folder / "index", query_encoder=folder / "q", options=given, progress=False)
    return folder / "index"


def ask(site: Path, requests: Sequence[tuple[str, Any]], *, host: str = "ranges") -> list[dict[str, Any]]:
    """Return what the page's script answers, with the bytes and requests that it took."""
    command = [NODE, str(FOLDER / "search_published.mjs"), str(site), host]
    done = subprocess.run(command, input=json.dumps(requests), capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    answers: list[dict[str, Any]] = json.loads(done.stdout)
    return answers
