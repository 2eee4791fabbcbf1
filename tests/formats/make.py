"""Write one small folder of every format with the installed release: `python tests/formats/make.py [OUT]`.

OUT is tests/formats/VERSION by default, where the tests open the folders with every later release. Run the script once
for a release and never again: a fixture is worth something because that release wrote it. The folders are packed as
NAME.tar.gz; `expected.json` records what the release read and found in them.
"""

from __future__ import annotations

import dataclasses
import gzip
import io
import json
import os
import sys
import tarfile
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np
import torch
from transformers import LlamaConfig, LlamaForCausalLM, PreTrainedTokenizerFast

import lightir
from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy, Fusion, SparseHead
from lightir.encode.query_encoder import BigramTable, QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.index import Index
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import HeadArrays, backbone_record
from lightir.models.own_weights import train_all
from lightir.pending import Queue, WorkOptions, failures_of, work
from lightir.query.bigrams import Bigrams
from lightir.runtime.model_encoder import ModelEncoder
from lightir.shards import Shard
from lightir.text import QueryPolicy
from lightir.types import Document
from lightir.vectors import QueryVectors

FORMATS = Path(__file__).resolve().parent
sys.path.insert(0, str(FORMATS.parent))
from tiny_models import BOS, EOS, VOCAB_SIZE, tiny_tokenizer  # noqa: E402

WIDTH = 8
UNREADABLE = "unreadable"
TEXTS = (
    ("a river runs to the sea", "river", {"page": 1, "kind": "water"}),
    ("the bridge over the river is old", "bridge", {"page": 2, "kind": "stone", "tags": ["old", "long"]}),
    ("bread is baked in the morning", "", {"page": 3, "kind": "food"}),
    ("an old piano in the forest", "piano", {"page": 4}),
    ("copper wires and copper coins", "copper", {"page": 5, "kind": "metal", "rare": True}),
    ("winter on the island", "winter", {}),
    ("the sea in winter", "sea", {"page": 7, "kind": "water"}),
    ("stones under the old bridge", "", {"page": 8, "kind": "stone"}),
    ("a loaf of bread and a coin", "bread", {"page": 9, "kind": "food", "price": 2.5}),
    ("trees of the forest", "forest", {"page": 10}),
    ("rivers, bridges and islands", "", {"page": 11, "kind": "water"}),
    ("", "only a title", {"page": 12}),
)
QUERIES = {"q1": "old bridge", "q2": "river to the sea", "q3": "bread", "q4": "winter forest", "q5": "zebra"}


def documents() -> list[Document]:
    """Return the twelve documents of every folder."""
    return [Document(f"d{i:02d}", text, title, metadata) for i, (text, title, metadata) in enumerate(TEXTS)]


def write_corpus(path: Path, listed: Sequence[Document]) -> Path:
    """Write documents as JSON lines."""
    rows = [{"_id": doc.doc_id, "title": doc.title, "text": doc.text, **doc.metadata} for doc in listed]
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return path


def write_queries(path: Path) -> Path:
    """Write the queries as JSON lines."""
    path.write_text("".join(json.dumps({"_id": query_id, "text": text}) + "\n" for query_id, text in QUERIES.items()))
    return path


def call(*arguments: object) -> None:
    """Run a command; raises where it fails."""
    if status := main([str(argument) for argument in arguments]):
        raise SystemExit(f"lightir {' '.join(map(str, arguments))}: exit status {status}")


def make_model(folder: Path, *, weighting: str = "count") -> None:
    """Write a model folder with its own backbone, arrays and query encoder."""
    torch.manual_seed(0)
    shape = {"hidden_size": WIDTH, "intermediate_size": 12, "num_hidden_layers": 1, "num_attention_heads": 2}
    config = LlamaConfig(
        **shape, vocab_size=VOCAB_SIZE, num_key_value_heads=1, head_dim=4, bos_token_id=BOS, eos_token_id=EOS,
        max_position_embeddings=128, pad_token_id=None, tie_word_embeddings=True,
    )  # fmt: skip
    model = LlamaForCausalLM(config).eval()
    for parameter in model.parameters():
        if parameter.dim() > 1:
            torch.nn.init.normal_(parameter, std=0.5)
    source = folder.with_name(f"{folder.name}-source")
    model.save_pretrained(source)
    tokens = {"bos_token": "<s>", "eos_token": "</s>"}
    PreTrainedTokenizerFast(tokenizer_object=tiny_tokenizer().backend, **tokens).save_pretrained(source)
    backbone = dataclasses.replace(train_all(load_backbone(str(source), dtype=torch.float32)), address="org/tiny")
    generator = torch.Generator().manual_seed(1)
    dense, policy = DenseHead(dims=(WIDTH, 4)), QueryPolicy("find it", term_weights="idf")
    heads = HeadArrays(
        mean=torch.randn(WIDTH, generator=generator),
        deviation=torch.rand(WIDTH, generator=generator) + 0.5,
        term_bias=torch.randn(VOCAB_SIZE, generator=generator) - 1.0,
        term_weights=torch.rand(VOCAB_SIZE, generator=generator),
    )
    if weighting == "expansion":
        policy, dense = QueryPolicy("find it", weighting="expansion", expansion_terms=4), None
        heads = HeadArrays(term_bias=heads.term_bias)
    contract = Contract(
        "lightretriever",
        backbone_record(backbone),
        policy,
        DocumentPolicy(max_tokens=64),
        dense,
        SparseHead(top_k=16),
        fusion=Fusion(weights={"dense": 0.6, "sparse": 0.4}),
    )
    LightRetriever(backbone, contract, heads).save(folder)
    call("cache", folder)


def make_query_encoder(folder: Path, model: Path) -> None:
    """Write a folder with two int8 tables and pairs of terms."""
    contract = Contract.load(model)
    tokenizer = tiny_tokenizer()
    pairs = Bigrams(np.array([tokenizer.backend.encode(text).ids for text in ("ri", "th")], dtype=np.uint32))
    policy = dataclasses.replace(contract.query, bigrams=pairs.hash, term_weights="none")
    generator = np.random.default_rng(2)
    tables = [
        QueryTable(task, f"Find {task}", generator.standard_normal((VOCAB_SIZE, WIDTH)).astype(np.float32))
        for task in ("answers", "duplicates")
    ]
    rows = generator.standard_normal((len(pairs), WIDTH)).astype(np.float32)
    bigrams = BigramTable(pairs, rows)
    contract = dataclasses.replace(contract, query=policy)
    write_query_encoder(folder, contract, tokenizer, QueryEncoderArrays(tables[:1], bigrams=bigrams), dtype="int8")


class FailingEncoder:
    """A model's encoder that refuses one document."""

    def __init__(self, encoder: ModelEncoder) -> None:
        self.encoder = encoder
        self.contract = encoder.contract

    def encode(self, listed: Sequence[Document]) -> Shard:
        """Encode documents; raises for the text UNREADABLE."""
        if any(document.text == UNREADABLE for document in listed):
            raise ValueError("this text is not readable")
        return self.encoder.encode(listed)


def make_pending(folder: Path, model: Path, corpus: Path) -> None:
    """Write an index whose documents are encoded, failed, parked, claimed by a killed worker, asked for, or pending."""
    first, rest = documents()[:5], documents()[5:]
    write_corpus(corpus, [*first, Document("failing", UNREADABLE)])
    call("index", corpus, "--out", folder, "--model", model)
    encoder = FailingEncoder(ModelEncoder(LightRetriever.load(model)))
    work(folder, encoder, WorkOptions(once=True), progress=False)
    call("add", folder, write_corpus(corpus, rest))
    with Index.open(folder) as index, Queue.open(folder) as queue:
        claim = queue.claim(index, 2)
        documents_claimed = claim.view.store.documents.of(claim.keys)
        queue.park(claim.keys, encoder.contract, encoder.encode(list(documents_claimed.values())))
    if not (child := os.fork()):
        with Index.open(folder) as index:
            Queue.open(folder).claim(index, 2)
            os._exit(0)  # as a killed worker ends: the claim stays
    os.waitpid(child, 0)
    call("search", folder, "winter on the island")  # which notes demand


def make_all(top: Path) -> dict[str, Any]:
    """Write every folder below `top`; return what the release finds in them."""
    model, corpus = top / "model", top / "corpus.jsonl"
    write_corpus(corpus, documents())
    make_model(model)
    make_model(top / "expansion-model", weighting="expansion")
    (top / "expansion-model" / "query-encoder").rename(top / "query-encoder-expansions")
    make_query_encoder(top / "query-encoder-bigrams", model)
    call("encode", model, corpus, "--out", top / "vectors", "--dtype", "fp32", "--device", "cpu")
    # The second segment is smaller than the first, so that they stay apart; then one document of each is deleted.
    later = [Document("late1", "a late river", "", {"page": 20, "kind": "water"}), Document("late2", "a late bridge")]
    call("encode", model, write_corpus(top / "later.jsonl", later), "--out", top / "later", "--device", "cpu")
    call("index", top / "vectors", "--out", top / "index-hybrid")
    call("add", top / "index-hybrid", top / "later")
    call("delete", top / "index-hybrid", "d03", "late2")
    small = ("--dense-dtype", "fp16+int8", "--dense-dim", 4, "--sparse-top-k", 3, "--analyzer", "model")
    call("index", top / "vectors", "--out", top / "index-small", *small)
    with patch("lightir.index.segments.segment_writer.LEAST_DOCUMENTS", 1):  # otherwise a small segment gets no graph
        call("index", top / "vectors", "--out", top / "index-graph", "--dense-dtype", "int8", "--dense-graph")
    call("index", corpus, "--out", top / "index-bags", "--analyzer", "bag", "--query-encoder", model)
    call("index", corpus, "--out", top / "index-words", "--analyzer", "words")
    make_pending(top / "index-pending", model, top / "part.jsonl")
    return expectations(top)


SEARCHES: dict[str, list[list[str]]] = {
    "index-hybrid": [
        [],
        *(["--mode", mode] for mode in ("dense", "sparse", "tokens", "dense+sparse+tokens")),
        ["--fusion", "rrf"],
        ["--mode", "tokens", "--tokens", "dirichlet"],
        ["--filter", '{"kind": "water", "page": {"lt": 20}}'],
        ["--filter", '{"or": [{"rare": true}, {"tags": "old"}, {"price": {"gte": 2}}, {"kind": {"exists": false}}]}'],
    ],
    "index-small": [[], ["--mode", "dense"], ["--mode", "sparse"], ["--mode", "tokens"]],
    "index-graph": [["--mode", "dense", "--exact"], ["--mode", "dense"]],
    "index-bags": [[]],
    "index-words": [[], ["--filter", '{"page": {"in": [1, 2, 12]}}'], ["--tokens", "jelinek-mercer:0.2"]],
    "index-pending": [[], ["--mode", "dense"], ["--mode", "sparse"], ["--mode", "tokens"]],
}


def run_lines(index: Path, options: Sequence[str], queries: Path) -> list[str]:
    """Search an index with the command line; return the lines of the run without their tag."""
    out = queries.with_name("out.trec")
    call("search", index, "--queries", queries, "-k", 20, "--run", out, *options)
    return [line.rsplit(" ", 1)[0] for line in out.read_text().splitlines()]


def plain_rows(vectors: QueryVectors | Shard, n: int) -> list[dict[str, Any]]:
    """Return vectors as numbers: a row's dense vector, and its sparse weights by term id as text, which JSON has."""
    dense, sparse = vectors.dense, vectors.sparse
    weights = [{} if sparse is None else zip(*(part.tolist() for part in sparse.row(i)), strict=True) for i in range(n)]
    return [
        {
            "dense": None if dense is None else dense[i].tolist(),
            "sparse": {str(term_id): weight for term_id, weight in dict(weights[i]).items()},
        }
        for i in range(n)
    ]


def query_vectors(folder: Path, queries: Sequence[str]) -> list[dict[str, Any]]:
    """Return each query's vectors by a query-encoder folder."""
    return plain_rows(lightir.CachedQueryEncoder.load(folder).encode(queries), len(queries))


def document_vectors(folder: Path) -> list[dict[str, Any]]:
    """Return the documents of a vectors folder with their vectors."""
    return [
        {**dataclasses.asdict(document), **row}
        for shard in lightir.VectorsReader(folder)
        for document, row in zip(shard.documents, plain_rows(shard, len(shard.documents)), strict=True)
    ]


def expectations(top: Path) -> dict[str, Any]:
    """Return what the release reads in the folders below `top`."""
    queries = write_queries(top / "queries.jsonl")
    searches = [
        {"index": name, "options": options, "run": run_lines(top / name, options, queries)}
        for name, listed in SEARCHES.items()
        for options in listed
    ]
    encoders = ("model/query-encoder", "query-encoder-bigrams", "query-encoder-expansions")
    with Index.open(top / "index-pending") as index:
        failures = {failure.doc_id: failure.error for failure in failures_of(index.view)}
        info = dataclasses.asdict(index.info())
    pending = {name: info[name] for name in ("documents", "encoded", "pending")} | {"failed": len(failures)}
    return {
        "queries": QUERIES,
        "searches": searches,
        "vectors": document_vectors(top / "vectors"),
        "query_vectors": {name: query_vectors(top / name, list(QUERIES.values())) for name in encoders},
        "pending": {**pending, "failures": failures},
    }


def pack(folder: Path, path: Path) -> None:
    """Write a folder as a compressed archive whose bytes depend on its content alone."""
    archive = io.BytesIO()
    with tarfile.open(fileobj=archive, mode="w") as tar:
        for file in sorted(folder.rglob("*")):
            entry = tar.gettarinfo(str(file), str(file.relative_to(folder.parent)))
            entry.mtime, entry.uid, entry.gid, entry.uname, entry.gname = 0, 0, 0, "", ""
            if entry.isfile():
                with file.open("rb") as content:
                    tar.addfile(entry, content)
            else:
                tar.addfile(entry)
    path.write_bytes(gzip.compress(archive.getvalue(), 9, mtime=0))


FOLDERS = ("model", "vectors", "query-encoder-bigrams", "query-encoder-expansions", *SEARCHES)


def save_release(out: Path) -> None:
    """Write this release's fixtures into a new folder."""
    with tempfile.TemporaryDirectory() as top:
        expected = make_all(Path(top))
        out.mkdir()
        for name in FOLDERS:
            pack(Path(top) / name, out / f"{name}.tar.gz")
    (out / "expected.json").write_text(json.dumps(expected, indent=1) + "\n")


if __name__ == "__main__":
    save_release(Path(sys.argv[1]) if len(sys.argv) > 1 else FORMATS / lightir.__version__)
