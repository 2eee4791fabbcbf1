"""Exported models have lightir's vectors in sentence-transformers, which reads nothing of lightir."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from factories import make_contract
from lightir.cli import main
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import QueryEncoderArrays, QueryTable, TableOptions, cache_vocabulary, write_query_encoder
from lightir.encode.exports.sentence_transformers_export import ExportedModel, export_sentence_transformer
from lightir.encode.query_encoder import BigramTable
from lightir.errors import AlreadyExists, InvalidInput, NotFound
from lightir.models.adapters import add_lora
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import HeadArrays, backbone_record, with_array_hashes
from lightir.query import CachedGate, CachedQueryEncoder
from lightir.query.bigrams import LONGER, Bigrams
from lightir.text import QueryPolicy
from lightir.vectors import SparseVectors
from tiny_models import CAUSAL, ENCODERS, save_tiny

sentence_transformers = pytest.importorskip("sentence_transformers")

DOCUMENTS = ["The well is IN the garden.", "a", "  ΟΔΟΣ der Straße ", "long " * 60, "水 ünïcode"]
QUERIES = ["Where is the well?", "", "the cat the cat", "ΟΔΟΣ 水", "long " * 200]


def save_model(
    folder: Path,
    name: str,
    *,
    rank: int = 0,
    dense: DenseHead | None = None,
    sparse: SparseHead | None = None,
    query: QueryPolicy | None = None,
    document: DocumentPolicy | None = None,
    standardized: bool = False,
) -> Path:
    """Save a random model with a query encoder, and return its folder."""
    save_tiny(name, folder / "base")
    backbone = load_backbone(folder / "base")
    record, generator = backbone_record(backbone), torch.Generator().manual_seed(5)

    def noise(*shape: int) -> torch.Tensor:
        return 0.3 * torch.randn(shape, generator=generator)

    if rank:
        backbone = add_lora(backbone, rank=rank, alpha=8)
        with torch.no_grad():
            for parameter in (p for p in backbone.trunk.parameters() if p.requires_grad):
                parameter += noise(*parameter.shape)
    query = query or QueryPolicy("Find it", max_tokens=100)
    contract = Contract("lightretriever", record, query, document or DocumentPolicy(max_tokens=40), dense, sparse)
    heads: dict[str, torch.Tensor] = {}
    if standardized:
        heads |= {"mean": noise(record.hidden_size), "deviation": noise(record.hidden_size).abs() + 0.5}
        if sparse is not None:
            heads["term_bias"] = noise(record.vocab_size)
    if query.term_weights == "idf":
        heads["term_weights"] = noise(record.vocab_size).abs()
    arrays = HeadArrays(**heads)
    LightRetriever(backbone, with_array_hashes(contract, arrays), arrays).save(folder / "model")
    cache_vocabulary(folder / "model")
    return folder / "model"


def our_vectors(model: Path | str) -> tuple[np.ndarray, np.ndarray]:
    """Return the query and document vectors of a model folder, computed by lightir."""
    retriever = LightRetriever.load(model)
    framed = retriever.frame_documents(DOCUMENTS)
    # One by one, as texts of a batch must not depend on their padding.
    documents = [retriever.encode_batch(retriever.batch([document]))[0] for document in framed]
    queries = CachedQueryEncoder.load(model).encode(QUERIES).dense
    assert queries is not None
    return queries, np.concatenate([vectors.numpy() for vectors in documents if vectors is not None])


def assert_same_dense(model: Path | str, out: Path, **options: Any) -> ExportedModel:
    exported = export_sentence_transformer(model, out, **options)
    theirs = sentence_transformers.SentenceTransformer(
        str(out), device="cpu", trust_remote_code=bool(exported.own_modules)
    )
    queries, documents = our_vectors(model)
    np.testing.assert_allclose(theirs.encode_query(QUERIES), queries, atol=1e-5)
    np.testing.assert_allclose(theirs.encode_document(DOCUMENTS), documents, atol=1e-5)
    assert theirs.similarity_fn_name == "cosine"
    return exported


@pytest.mark.parametrize("name", [*CAUSAL, *ENCODERS])
def test_dense_vectors_of_every_backbone_with_a_merged_adapter(name: str, tmp_path: Path) -> None:
    # MPNet in transformers takes id 1 for padding, which is the end token of the tiny model.
    document = DocumentPolicy(max_tokens=40, eos=name != "mpnet")
    model = save_model(tmp_path, name, rank=4, dense=DenseHead("eos"), document=document)
    exported = assert_same_dense(model, tmp_path / "out")
    # transformers changes Qwen2's tokenizer.json as it reads it.
    assert exported.own_modules == (("FramedTransformer",) if name.startswith("qwen2") else ())
    assert (tmp_path / "out" / "lightir_modules.py").exists() == bool(exported.own_modules)


@pytest.mark.parametrize(
    ("name", "pooling", "document", "own"),
    [
        ("llama", "mean", DocumentPolicy(max_tokens=40, bos=False, eos=False), ()),
        ("llama", "mean", DocumentPolicy(prompt="Passage: ", suffix=" end", max_tokens=40), ("OwnPositions",)),
        ("qwen3", "last", DocumentPolicy(lower_case=False, leading_blank=True, max_tokens=40), ("OwnPositions",)),
        ("bert", "mean_all", DocumentPolicy(prompt="Passage: ", max_tokens=40), ()),
        ("bert", "first", DocumentPolicy(leading_blank=True, max_tokens=200), ()),
    ],
)
def test_poolings_and_frames(
    name: str, pooling: Any, document: DocumentPolicy, own: tuple[str, ...], tmp_path: Path
) -> None:
    query = QueryPolicy("Find it", lower_case=document.lower_case, leading_blank=document.leading_blank, drop=(34,))
    model = save_model(tmp_path, name, dense=DenseHead(pooling), query=query, document=document)
    assert assert_same_dense(model, tmp_path / "out").own_modules == own


@pytest.mark.parametrize("dims", [(), (16, 8)])
def test_standardized_and_narrower_vectors(dims: tuple[int, ...], tmp_path: Path) -> None:
    model = save_model(tmp_path, "llama", dense=DenseHead("eos", dims=dims), standardized=True)
    assert assert_same_dense(model, tmp_path / "out").own_modules == ()


@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize("dtype", ["fp16", "int8"])
def test_pairs_and_gate(gated: bool, dtype: Any, tmp_path: Path) -> None:
    model = save_model(tmp_path, "bert", dense=DenseHead("mean_all"))
    retriever = LightRetriever.load(model)
    generator = np.random.default_rng(0)
    ids = CachedQueryEncoder.load(model).tokenizer.term_ids([" the cat the cat"]).row(0).astype(np.uint32)
    pairs = np.unique(np.stack([ids[:-1], ids[1:]], axis=1), axis=0)[::2]
    longer = [[LONGER + row, last] for row in range(len(pairs)) for last in np.unique(ids)]
    pairs = np.concatenate([pairs, np.array(longer, dtype=np.uint32)])
    n_terms, width = retriever.backbone.tokenizer.vocab_size, retriever.backbone.hidden_size
    rows = [generator.normal(size=(n, width)).astype(np.float32) for n in (n_terms, len(pairs))]
    keys, values = generator.normal(size=(2, n_terms + len(pairs), 3)).astype(np.float16)
    gate = CachedGate(keys, values) if gated else None
    bigrams = Bigrams(np.ascontiguousarray(pairs))
    query = dataclasses.replace(
        retriever.contract.query, bigrams=bigrams.hash, gate="" if gate is None else gate.hash, drop=(int(ids[2]),)
    )
    contract = dataclasses.replace(retriever.contract, query=query)
    contract.save(model)
    arrays = QueryEncoderArrays(
        [QueryTable("", query.instruction, rows[0])], bigrams=BigramTable(bigrams, rows[1]), gate=gate
    )
    write_query_encoder(
        model / "query-encoder", contract, retriever.backbone.tokenizer, arrays, dtype=dtype, overwrite=True
    )
    assert assert_same_dense(model, tmp_path / "out").own_modules == ("TermTable",)


def test_the_table_of_a_task(tmp_path: Path) -> None:
    model = save_model(tmp_path, "llama", dense=DenseHead("eos"))
    options = TableOptions(instructions=["Find it", "Answer it"])
    cache_vocabulary(model, options=options, overwrite=True)
    export_sentence_transformer(model, tmp_path / "out", task="Answer it")
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "out"), device="cpu")
    ours = CachedQueryEncoder.load(model).encode(QUERIES, task="Answer it").dense
    np.testing.assert_allclose(theirs.encode_query(QUERIES), ours, atol=1e-5)
    with pytest.raises(InvalidInput, match="no query table for task 'Other'"):
        export_sentence_transformer(model, tmp_path / "other", task="Other")


def as_rows(vectors: SparseVectors) -> np.ndarray:
    rows = np.zeros((len(vectors), vectors.vocab_size), dtype=np.float32)
    owners = np.repeat(np.arange(len(vectors)), np.diff(vectors.indptr))
    rows[owners, vectors.term_ids] = vectors.weights
    return rows


@pytest.mark.parametrize(
    ("name", "rank", "document", "query", "standardized"),
    [
        ("llama", 4, DocumentPolicy(max_tokens=40), QueryPolicy("Find it"), True),
        ("qwen2", 0, DocumentPolicy(max_tokens=40, bos=False, eos=False), QueryPolicy(weighting="binary"), False),
        ("gemma2", 0, DocumentPolicy(max_tokens=40), QueryPolicy(term_weights="idf"), True),
        ("bert", 0, DocumentPolicy(prompt="Passage: ", max_tokens=40), QueryPolicy(drop=(34,)), True),
        ("modernbert", 0, DocumentPolicy(max_tokens=40), QueryPolicy(), False),
    ],
)
def test_sparse_vectors(
    name: str, rank: int, document: DocumentPolicy, query: QueryPolicy, standardized: bool, tmp_path: Path
) -> None:
    head = SparseHead(top_k=50, first_term=7 if standardized else 0)
    model = save_model(
        tmp_path, name, rank=rank, dense=DenseHead("eos"), sparse=head, query=query, document=document,
        standardized=standardized,
    )  # fmt: skip
    exported = export_sentence_transformer(model, tmp_path / "out", kind="sparse-encoder")
    assert "TermCounts" in exported.own_modules
    theirs = sentence_transformers.SparseEncoder(str(tmp_path / "out"), device="cpu", trust_remote_code=True)
    queries = CachedQueryEncoder.load(model).encode(QUERIES).sparse
    assert queries is not None
    np.testing.assert_allclose(theirs.encode_query(QUERIES).to_dense().numpy(), as_rows(queries), rtol=1e-5)
    retriever, expected = LightRetriever.load(model), []
    with torch.no_grad():
        for framed in retriever.frame_documents(DOCUMENTS):
            batch = retriever.batch([framed])
            weights = retriever.sparse_from(retriever.states(batch), batch)
            expected.append(retriever.keep_strongest(weights, batch).numpy())
    assert 0 < (np.concatenate(expected) > 0).sum(axis=1).max() <= 50
    vectors = theirs.encode_document(DOCUMENTS).to_dense().numpy()
    np.testing.assert_allclose(vectors, np.concatenate(expected), atol=1e-5, rtol=1e-5)


def test_half_precision_is_half_as_large_and_nearly_the_same(tmp_path: Path) -> None:
    model = save_model(tmp_path, "llama", rank=4, dense=DenseHead("eos"))
    sizes = {}
    for dtype in ("float32", "bfloat16"):
        export_sentence_transformer(model, tmp_path / dtype, dtype=dtype)  # type: ignore[arg-type]
        sizes[dtype] = (tmp_path / dtype / "document_0_Transformer" / "model.safetensors").stat().st_size
    assert sizes["bfloat16"] < 0.6 * sizes["float32"]
    theirs = sentence_transformers.SentenceTransformer(str(tmp_path / "bfloat16"), device="cpu")
    assert theirs.encode_document(DOCUMENTS, convert_to_tensor=True).dtype == torch.bfloat16
    vectors = theirs.encode_document(DOCUMENTS, convert_to_tensor=True).float().numpy()
    assert (vectors * our_vectors(model)[1]).sum(axis=1).min() > 0.98


@pytest.mark.parametrize(
    ("changes", "kind", "reason"),
    [
        ({"sparse": None}, "sparse-encoder", "has no sparse branch to export"),
        ({"dense": None}, "sentence-transformers", "has no dense branch to export"),
        ({"attention": "echo"}, "sentence-transformers", "attention 'echo'"),
        ({"document": DocumentPolicy(light=True)}, "sentence-transformers", "light documents"),
        ({"document": DocumentPolicy(ends=2)}, "sentence-transformers", "several end tokens"),
        ({"dense": DenseHead(similarity="dot")}, "sentence-transformers", "dot products"),
        ({"sparse": SparseHead(activation="elu1p")}, "sparse-encoder", "activation 'elu1p'"),
        ({"sparse": SparseHead(lexical=True)}, "sparse-encoder", "own terms"),
        ({"sparse": SparseHead(projection="embeddings")}, "sparse-encoder", "projection by input embeddings"),
    ],
)
def test_what_the_format_cannot_express_is_refused_before_anything_is_loaded(
    changes: dict[str, Any], kind: Any, reason: str, tmp_path: Path
) -> None:
    record = dataclasses.replace(make_contract().backbone, address=str(tmp_path / "missing"))
    contract = Contract(
        "lightretriever", record, QueryPolicy(), DocumentPolicy(), DenseHead(), SparseHead(), attention="causal"
    )
    (tmp_path / "model").mkdir()
    dataclasses.replace(contract, **changes).save(tmp_path / "model")
    with pytest.raises(InvalidInput, match=reason):
        export_sentence_transformer(tmp_path / "model", tmp_path / "out", kind=kind)
    assert not (tmp_path / "out").exists()


def test_a_model_without_a_query_encoder_and_an_existing_folder_are_refused(tmp_path: Path) -> None:
    model = save_model(tmp_path, "bert", dense=DenseHead("mean_all"))
    (tmp_path / "taken").mkdir()
    (tmp_path / "taken" / "notes.txt").write_text("mine")
    with pytest.raises(AlreadyExists):
        export_sentence_transformer(model, tmp_path / "taken", overwrite=True)
    assert (tmp_path / "taken" / "notes.txt").read_text() == "mine"
    (model / "query-encoder").rename(tmp_path / "query-encoder")
    with pytest.raises(NotFound, match="lightir cache"):
        export_sentence_transformer(model, tmp_path / "out")


def test_the_command(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    model = save_model(tmp_path, "bert", dense=DenseHead("mean_all"), sparse=SparseHead())
    assert main(["export", str(model), "--to", "sparse-encoder", "-o", str(tmp_path / "a"), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert report == {"out": str(tmp_path / "a"), "own_modules": ["TermCounts", "OwnPositions"]}
    assert main(["export", str(model), "--to", "sentence-transformers", "-o", str(tmp_path / "b")]) == 0
    assert f"SentenceTransformer('{tmp_path / 'b'}')" in capsys.readouterr().err
    assert main(["export", str(model), "--to", "sentence-transformers", "-o", str(tmp_path / "b")]) == 1
    assert "--overwrite" in capsys.readouterr().err


@pytest.mark.slow_model
def test_minilm(tmp_path: Path) -> None:
    assert assert_same_dense("minilm", tmp_path / "out").own_modules == ("TermTable",)
