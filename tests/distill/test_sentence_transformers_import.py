"""Imported models have the vectors of sentence-transformers and Model2Vec."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tokenizers import Tokenizer, models, pre_tokenizers

from lightir.cli import main
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.models.encoder import LightRetriever
from lightir.query import CachedQueryEncoder
from lightir.train.distill.sentence_transformers_import import import_sentence_transformer
from tiny_models import HIDDEN, VOCAB_SIZE, tiny_tokenizer, write_sentence_transformer

st = pytest.importorskip("sentence_transformers")
modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")

DOCUMENTS = ["The well is IN the garden.", "a", "long " * 60, "水 ünïcode"]
QUERIES = ["Where is the well?", "the cat the cat", "水"]


def random_rows(n_terms: int = VOCAB_SIZE, width: int = HIDDEN) -> np.ndarray:
    return np.random.default_rng(0).normal(size=(n_terms, width)).astype(np.float32)


def write_router(folder: Path, *, prompts: dict[str, str] | None = None, width: int = HIDDEN) -> Any:
    """Write a Router by sentence-transformers itself, and return it as loaded."""
    plain = write_sentence_transformer(folder.with_name("plain"))
    query = modules.StaticEmbedding(tiny_tokenizer().backend, embedding_weights=random_rows(width=width))
    document = [modules.Transformer(str(plain)), modules.Pooling(HIDDEN, "mean")]
    router = modules.Router.for_query_document([query], document)
    written = st.SentenceTransformer(modules=[router, modules.Normalize()], device="cpu", prompts=prompts)
    written.save(str(folder))
    return st.SentenceTransformer(str(folder), device="cpu")


def document_vectors(model: Path) -> np.ndarray:
    retriever = LightRetriever.load(model)
    with torch.no_grad():
        dense, _ = retriever.encode_batch(retriever.batch(retriever.frame_documents(DOCUMENTS)))
    assert dense is not None
    return dense.numpy()


def test_a_router_that_sentence_transformers_writes(tmp_path: Path) -> None:
    theirs = write_router(tmp_path / "router", prompts={"query": "", "document": "doc: "})
    model = import_sentence_transformer(tmp_path / "router", tmp_path / "model")
    np.testing.assert_allclose(document_vectors(model), theirs.encode_document(DOCUMENTS), atol=1e-5)
    ours = CachedQueryEncoder.load(model).encode(QUERIES).dense
    np.testing.assert_allclose(ours, theirs.encode_query(QUERIES), atol=1e-5)


def test_an_exported_model_is_imported_again(tmp_path: Path) -> None:
    write_router(tmp_path / "router")
    model = import_sentence_transformer(tmp_path / "router", tmp_path / "model")
    assert main(["export", str(model), "--to", "sentence-transformers", "-o", str(tmp_path / "out")]) == 0
    assert main(["convert", "sentence-transformers", str(tmp_path / "out"), "-o", str(tmp_path / "again")]) == 0
    np.testing.assert_allclose(document_vectors(tmp_path / "again"), document_vectors(model), atol=1e-5)
    again, first = (CachedQueryEncoder.load(path).encode(QUERIES).dense for path in (tmp_path / "again", model))
    np.testing.assert_allclose(again, first, atol=1e-5)


@pytest.mark.parametrize("mapped", [False, True])
def test_a_table_of_model2vec_with_a_tokenizer_of_its_own(mapped: bool, tmp_path: Path) -> None:
    model2vec = pytest.importorskip("model2vec")
    words = {word: number for number, word in enumerate(["[UNK]", "where", "is", "the", "well", "cat"])}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    rows = random_rows(4 if mapped else len(words))
    kept: dict[str, Any] = {"weights": np.linspace(1, 2, len(words)).astype(np.float32)}
    if mapped:
        kept["token_mapping"] = np.array([0, 1, 1, 2, 3, 2])
    static = model2vec.StaticModel(rows, tokenizer, normalize=True, **kept)
    static.save_pretrained(tmp_path / "static")
    write_sentence_transformer(tmp_path / "plain")
    model = import_sentence_transformer(tmp_path / "plain", tmp_path / "model", table=tmp_path / "static")
    queries = ["where is the well", "the unknown cat", "unknown"]
    ours = CachedQueryEncoder.load(model).encode(queries).dense
    np.testing.assert_allclose(ours, static.encode(queries), atol=1e-5)
    encoder = CachedQueryEncoder.load(model)
    assert encoder.contract.query.tokenizer == encoder.tokenizer.hash


def test_what_has_no_table_or_another_space_is_refused(tmp_path: Path) -> None:
    write_router(tmp_path / "router", width=16)
    with pytest.raises(InvalidInput, match=r"16 columns, but the document vectors .* have 32"):
        import_sentence_transformer(tmp_path / "router", tmp_path / "model")
    with pytest.raises(InvalidInput, match="lightir distill"):
        import_sentence_transformer(tmp_path / "plain", tmp_path / "model")
    with pytest.raises(NotFound, match="StaticEmbedding or Model2Vec"):
        import_sentence_transformer(tmp_path / "plain", tmp_path / "model", table=tmp_path)
    with pytest.raises(NotFound, match=r"modules\.json"):
        import_sentence_transformer(tmp_path, tmp_path / "model")
    config = tmp_path / "router" / "config_sentence_transformers.json"
    config.write_text(json.dumps({"prompts": {"query": "find: "}}))
    with pytest.raises(InvalidInput, match="averages the query prompt 'find: '"):
        import_sentence_transformer(tmp_path / "router", tmp_path / "model")
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize("content", [{}, {"types": {"../x": "a.StaticEmbedding"}, "structure": {"query": ["../x"]}}])
def test_a_damaged_router_is_refused(content: dict[str, Any], tmp_path: Path) -> None:
    write_router(tmp_path / "router")
    (tmp_path / "router" / "router_config.json").write_text(json.dumps(content))
    with pytest.raises(FormatError):
        import_sentence_transformer(tmp_path / "router", tmp_path / "model")
    path = tmp_path / "router" / "query_0_StaticEmbedding" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-5])
    with pytest.raises(FormatError, match="no table of StaticEmbedding"):
        import_sentence_transformer(tmp_path / "plain", tmp_path / "model", table=path.parent)
