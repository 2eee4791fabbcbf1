"""A handful of documents with vectors, a tokenizer of whole words, and the folders they make."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import save_file
from tokenizers import Tokenizer, models, pre_tokenizers

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.files import write_json
from lightir.index import IndexInfo, IndexOptions, build_index
from lightir.shards import Shard
from lightir.text import QueryPolicy, TextTokenizer
from lightir.types import Document
from lightir.vectors import QueryVectors, Ragged, SparseVectors

WORDS = ("[UNK]", "cat", "dog", "fish", "runs", "sleeps", "the", "well")
VOCAB_SIZE, DIM = len(WORDS), 4


def word_tokenizer() -> TextTokenizer:
    """One term a word of WORDS; anything else is [UNK], term 0."""
    vocabulary = {word: index for index, word in enumerate(WORDS)}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    return TextTokenizer(tokenizer)


def word_contract(*, vocab_size: int = VOCAB_SIZE, dim: int = DIM, **changes: Any) -> Contract:
    """A contract for word_tokenizer that drops [UNK]; `changes` are its fields."""
    backbone = BackboneRecord("org/words", "causal", "w", "", word_tokenizer().hash, vocab_size, dim)
    policy = QueryPolicy("Find it", leading_blank=False, drop=(0,))
    contract = Contract("lightretriever", backbone, policy, DocumentPolicy(), DenseHead(), SparseHead(scale=1.0))
    return dataclasses.replace(contract, **changes)


def word_table(seed: int = 0, *, dtype: type = np.float16) -> np.ndarray:
    """A random table for WORDS."""
    return np.random.default_rng(seed).standard_normal((VOCAB_SIZE, DIM)).astype(dtype)


def write_folder(
    folder: Path,
    contract: Contract,
    tables: Mapping[str, Mapping[str, np.ndarray]],
    *,
    dtype: str = "fp16",
    term_weights: np.ndarray | None = None,
) -> Path:
    """A query-encoder folder written by hand: the tensors of each table by task, the default first."""
    folder.mkdir(parents=True)
    contract.save(folder)
    word_tokenizer().save(folder / "tokenizer.json")
    listed = []
    for i, (task, tensors) in enumerate(tables.items()):
        name = "model.safetensors" if i == 0 else f"table-{i:03d}.safetensors"
        save_file(dict(tensors), folder / name)
        listed.append({"task": task, "instruction": f"Find {task}", "file": name})
    write_json(folder / "tables.json", {"format_version": 1, "dtype": dtype, "tables": listed})
    if term_weights is not None:
        save_file({"term_weights": term_weights}, folder / "sparse.safetensors")
    return folder


def csr(rows: Sequence[Mapping[int, float]], *, vocab_size: int, dtype: type) -> SparseVectors:
    """Sparse vectors out of one dict a row."""
    ids = Ragged.from_lists([sorted(row) for row in rows])
    weights = np.array([row[term] for row in rows for term in sorted(row)], dtype=dtype)
    return SparseVectors(ids.indptr, ids.term_ids, weights, vocab_size)


@dataclasses.dataclass(frozen=True)
class GivenVectors:
    """A query encoder that knows its queries' vectors by heart."""

    contract: Contract
    dense: Mapping[str, np.ndarray]
    sparse: Mapping[str, Mapping[int, float]]

    @property
    def document_fingerprint(self) -> str:
        return self.contract.document_fingerprint

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        rows = [self.sparse[text] for text in texts]
        sparse = csr(rows, vocab_size=self.contract.backbone.vocab_size, dtype=np.float32)
        dense = np.array([self.dense[text] for text in texts], np.float32).reshape(len(rows), -1)
        return QueryVectors(Ragged.from_lists([sorted(row) for row in rows]), dense, sparse)


def animal_shard() -> Shard:
    """Three documents with title, metadata and vectors; "b" is about cats, "a" about dogs, "c" about nothing."""
    documents = [
        Document("b", "the cat sleeps at the well", "Cat", {"page": 2}),
        Document("a", "the dog runs and the cat runs", "", {"page": 1}),
        Document("c", "", "Nothing"),
    ]
    dense = np.array([[1, 0, 0, 0], [0, 1, 0, 0], [0, 0, 1, 0]], dtype=np.float16)
    sparse = csr([{1: 5, 5: 2}, {2: 4, 4: 3, 1: 1}, {}], vocab_size=VOCAB_SIZE, dtype=np.uint8)
    return Shard(documents, dense, sparse)


def build_flat(source: Any, out: Path, **given: Any) -> IndexInfo:
    """Call `build_index` with the fields of IndexOptions among its other arguments."""
    names = {field.name for field in dataclasses.fields(IndexOptions)}
    options = IndexOptions(**{name: given.pop(name) for name in names & given.keys()})
    return build_index(source, out, options=options, **given)
