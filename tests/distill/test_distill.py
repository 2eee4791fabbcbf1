"""Distillation of a random tiny sentence-transformers encoder into a model folder, end to end."""

from __future__ import annotations

import dataclasses
import json
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.numpy import load_file
from tokenizers import Tokenizer, models, pre_tokenizers

from lightir.cli import main
from lightir.cli.distill import SET_HELP
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import read_documents
from lightir.encode import EncodeOptions, encode_corpus
from lightir.errors import AlreadyExists, ContractMismatch, InvalidInput, NotFound
from lightir.files import read_json
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.query import CachedQueryEncoder
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.distill.distillation import DistillationOptions, distill
from lightir.train.distill.fit_config import FitConfig
from lightir.train.distill.teacher import load_teacher
from lightir.types import Document
from lightir.vectors import Ragged
from tiny_models import BOS, EOS, full_queries, save_tiny, write_sentence_transformer

WORDS = ["river", "stone", "cloud", "engine", "violin", "harbor", "planet", "copper"]
FIT = FitConfig(steps=30, batch_size=16, candidates=20)


@pytest.fixture(scope="module")
def teacher(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_sentence_transformer(tmp_path_factory.mktemp("teacher"))


@pytest.fixture(scope="module")
def collection(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("data") / "tiny"
    (folder / "qrels").mkdir(parents=True)
    rng = np.random.default_rng(0)
    texts = [" ".join(rng.choice(WORDS, size=9)) for _ in range(40)]
    lines = [json.dumps({"_id": f"d{i}", "title": "", "text": text}) for i, text in enumerate(texts)]
    (folder / "corpus.jsonl").write_text("\n".join(lines))
    queries = [("q1", "violin harbor"), ("q2", "planet copper"), ("t1", "planet, copper?")]
    (folder / "queries.jsonl").write_text("\n".join(json.dumps({"_id": i, "text": text}) for i, text in queries))
    header = "query-id\tcorpus-id\tscore\n"
    (folder / "qrels" / "train.tsv").write_text(header + "q1\td1\t1\nq2\td2\t1\n")
    (folder / "qrels" / "test.tsv").write_text(header + "t1\td3\t1\n")
    return folder


def test_a_teacher_that_was_named_relatively_is_found_from_anywhere(
    teacher: Path, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(teacher, tmp_path / "project" / "teacher")
    monkeypatch.chdir(tmp_path / "project")
    options = DistillationOptions(spans=20, fit=FIT)
    first = distill("teacher", [collection], out="models/first", options=options)
    second = distill(first, [collection], out="deeper/models/second", options=options)
    monkeypatch.chdir(tmp_path)
    addresses = [LightRetriever.load("project" / folder).contract.backbone.address for folder in (first, second)]
    assert addresses == ["../../teacher", "../../../teacher"]


def test_the_table_comes_near_the_teachers_own_queries(teacher: Path, collection: Path, tmp_path: Path) -> None:
    out = distill(
        teacher, [collection], out=tmp_path / "m", options=DistillationOptions(spans=200, fit=FIT, table_dtype="fp32")
    )
    model = LightRetriever.load(out)
    texts = ["river stone cloud", "engine violin harbor planet copper", "stone stone"]
    table = load_file(out / "query-encoder" / "model.safetensors")["embeddings"]
    ids = query_term_ids(model.backbone.tokenizer, Contract.load(out / "query-encoder").query, texts)
    light = np.stack([table[ids.row(i)].mean(axis=0) for i in range(len(ids))])
    full = full_queries(model, texts).detach().numpy()
    cosine = (light * full).sum(1) / np.linalg.norm(light, axis=1) / np.linalg.norm(full, axis=1)
    assert cosine.min() > 0.9
    report = encode_corpus(out, [Document("a", "river")], tmp_path / "v", options=EncodeOptions(dtype="fp32"))
    assert report.documents == 1
    assert VectorsReader(tmp_path / "v").contract.document_fingerprint == model.contract.document_fingerprint
    assert (tmp_path / "v" / "query-encoder" / "model.safetensors").is_file()


def language_model(folder: Path, name: str) -> Path:
    """Return a random causal model in the form that training saves: our own folder without a query table."""
    save_tiny(name, folder / "base")
    backbone = load_backbone(str(folder / "base"), dtype=torch.float32)
    record, query = backbone_record(backbone), QueryPolicy("Find it")
    contract = Contract("lightretriever", record, query, DocumentPolicy(), DenseHead("mean"), None)
    LightRetriever(backbone, contract).save(folder / "model")
    return folder / "model"


@pytest.mark.parametrize("kind", ["sentence-transformers", "llama", "qwen3"])
def test_a_command_adapts_any_teacher_to_a_collection_without_labels(
    kind: str, teacher: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Only the corpus is given; later queries find the same documents as the teacher's own queries."""
    corpus, model = tmp_path / "corpus.jsonl", tmp_path / "m"
    shutil.copy(collection / "corpus.jsonl", corpus)
    address = teacher if kind == "sentence-transformers" else language_model(tmp_path, kind)
    options = ["--spans", "300", "--bigrams", "40", "--dtype", "fp16"]
    assert main(["distill", str(address), "--corpus", str(corpus), *options, "-o", str(model)]) == 0
    assert main(["encode", str(model), str(corpus), "--out", str(tmp_path / "v"), "--dtype", "fp32"]) == 0
    assert main(["index", str(tmp_path / "v"), "--out", str(tmp_path / "i")]) == 0
    facts = read_json(model / "distillation.json")
    assert facts["decontamination"] is None
    assert facts["bigrams"] == 40
    assert "bigrams" in read_json(model / "query-encoder" / "config.json")["left_out"]
    encoder = CachedQueryEncoder.load(model / "query-encoder")
    texts = ["river stone cloud", "engine violin harbor planet copper"]
    full = full_queries(load_teacher(model), texts).detach().numpy()
    cosine = (encoder.encode(texts).dense * full).sum(1) / np.linalg.norm(full, axis=1)
    assert cosine.min() > 0.9
    capsys.readouterr()
    assert main(["search", str(tmp_path / "i"), "violin harbor", "--mode", "dense", "-k", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 3


def test_a_fitted_causal_model_is_fitted_again_from_the_same_terms(collection: Path, tmp_path: Path) -> None:
    trained = language_model(tmp_path, "llama")
    options = DistillationOptions(spans=50, fit=FIT, table_dtype="fp16", start="terms")
    once = distill(trained, [collection], out=tmp_path / "once", options=options)
    again = distill(once, [collection], out=tmp_path / "again", options=options)
    first, second = (load_file(item / "query-encoder" / "model.safetensors") for item in (once, again))
    np.testing.assert_array_equal(first["embeddings"], second["embeddings"])


def test_a_fits_settings_are_changed_on_the_command_line(
    teacher: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = ["distill", str(teacher), "--corpus", str(collection), "-o", str(tmp_path / "m"), "--bigrams", "9"]
    assert main([*command, "--set", "temperature=3e-2", "--set", "steps=7"]) == 0
    fit = dataclasses.replace(FitConfig(), temperature=0.03, steps=7, bigrams=9)
    assert read_json(tmp_path / "m" / "distillation.json")["fit"] == dataclasses.asdict(fit)
    for wrong, named in (("warmth=1", "temperature"), ("steps=some", "steps is 'some'"), ("steps", "key=value")):
        assert main([*command, "--set", wrong]) != 0
        assert named in capsys.readouterr().err


def test_the_help_names_every_setting_of_a_fit() -> None:
    named = " ".join(f"{key}={value}" for key, value in dataclasses.asdict(FitConfig()).items())
    assert SET_HELP.endswith(f"(defaults: {named})")


def word_tokenizer(folder: Path) -> Path:
    """Write a tokenizer of lower-cased whole words, with a special token and a term that no query has."""
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(["[UNK]", "never", *WORDS])}, "[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.add_special_tokens(["[UNK]"])
    tokenizer.save(str(folder / "tokenizer.json"))
    return folder


def test_a_table_may_have_the_terms_of_another_tokenizer(
    teacher: Path, collection: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words, model = word_tokenizer(tmp_path), tmp_path / "m"
    corpus = str(collection / "corpus.jsonl")
    assert main(["distill", str(teacher), "--corpus", corpus, "--tokenizer", str(words), "-o", str(model)]) == 0
    assert main(["encode", str(model), corpus, "--out", str(tmp_path / "v"), "--dtype", "fp32"]) == 0
    assert main(["index", str(tmp_path / "v"), "--out", str(tmp_path / "i")]) == 0
    encoder = CachedQueryEncoder.load(model / "query-encoder")
    assert encoder.tokenizer.vocab_size == 2 + len(WORDS)
    assert encoder.contract.query.tokenizer == encoder.tokenizer.hash != encoder.contract.backbone.tokenizer_hash
    texts = ["River stone cloud", "engine violin harbor planet copper"]
    full = full_queries(load_teacher(teacher), [text.lower() for text in texts]).detach().numpy()
    cosine = (encoder.encode(texts).dense * full).sum(1) / np.linalg.norm(full, axis=1)
    assert cosine.min() > 0.9
    known, beside_unknown = encoder.encode(["river stone", "river unheard stone"]).dense
    assert (known == beside_unknown).all()
    capsys.readouterr()
    assert main(["search", str(tmp_path / "i"), "violin harbor", "--mode", "dense", "-k", "3", "--json"]) == 0
    assert len(json.loads(capsys.readouterr().out)["hits"]) == 3
    loaded = LightRetriever.load(model)
    with pytest.raises(InvalidInput, match="another tokenizer"):
        loaded.light_queries(Ragged.from_lists([[1]]))
    assert main(["cache", str(model), "--overwrite"]) == 1
    assert "another tokenizer" in capsys.readouterr().err
    shutil.copy(teacher / "tokenizer.json", model / "query-encoder" / "tokenizer.json")
    with pytest.raises(ContractMismatch, match="tokenizer has hash"):
        CachedQueryEncoder.load(model / "query-encoder")


def test_another_tokenizer_is_refused_beside_a_sparse_branch(collection: Path, tmp_path: Path) -> None:
    save_tiny("llama", tmp_path / "base")
    backbone = load_backbone(str(tmp_path / "base"), dtype=torch.float32)
    record = backbone_record(backbone)
    contract = Contract("lightretriever", record, QueryPolicy(), DocumentPolicy(), DenseHead("mean"), SparseHead())
    LightRetriever(backbone, contract).save(tmp_path / "model")
    with pytest.raises(InvalidInput, match="has a sparse branch"):
        distill(
            tmp_path / "model",
            [collection],
            out=tmp_path / "m",
            options=DistillationOptions(tokenizer=word_tokenizer(tmp_path)),
        )
    with pytest.raises(NotFound, match=r"expected a tokenizer\.json"):
        distill(tmp_path / "model", [collection], out=tmp_path / "m", options=DistillationOptions(tokenizer=collection))


def test_bigrams_bring_the_table_nearer_to_the_teacher(teacher: Path, collection: Path, tmp_path: Path) -> None:
    queries = [document.text for document in read_documents(collection)]
    (tmp_path / "q.txt").write_text("\n".join(queries))
    full = full_queries(load_teacher(teacher), queries).detach().numpy()
    full /= np.linalg.norm(full, axis=1, keepdims=True)
    near = []
    for n in (0, 500):
        out = tmp_path / str(n)
        config = dataclasses.replace(FIT, bigrams=n, steps=0)
        distill(
            teacher,
            [collection],
            out=out,
            options=DistillationOptions(queries=[tmp_path / "q.txt"], spans=0, fit=config),
        )
        encoder = CachedQueryEncoder.load(out / "query-encoder")
        near.append(float((encoder.encode(queries).dense * full).sum(1).mean()))
    assert near[0] < near[1] - 1e-4
    assert (tmp_path / "500" / "query-encoder" / "bigrams.safetensors").is_file()
    assert not (tmp_path / "0" / "query-encoder" / "bigrams.safetensors").exists()
    with pytest.raises(InvalidInput, match="rows for bigrams"):
        LightRetriever.load(tmp_path / "500").light_queries(Ragged.from_lists([[5]]))


def test_phrases_get_the_teachers_vectors(teacher: Path, collection: Path, tmp_path: Path) -> None:
    phrases = ["Copper", "river stone", "copper", "cloud"]
    (tmp_path / "phrases.txt").write_text("\n  ".join(["", *phrases, phrases[0], ""]))
    full = full_queries(load_teacher(teacher), phrases).detach().numpy()
    full /= np.linalg.norm(full, axis=1, keepdims=True)
    corpus, fit = ["--corpus", str(collection)], ["--set", "ridge_iterations=0", "--set", "steps=0", "--dtype", "fp16"]
    assert main(["distill", str(teacher), *corpus, *fit, "--bigrams", "20", "-o", str(tmp_path / "first")]) == 0
    own = ["--phrases", str(tmp_path / "phrases.txt")]
    assert main(["distill", str(tmp_path / "first"), *corpus, *fit, *own, "-o", str(tmp_path / "m")]) == 0
    encoder = CachedQueryEncoder.load(tmp_path / "m" / "query-encoder")
    assert encoder.bigrams is not None
    assert len(encoder.bigrams.bigrams) > encoder.bigrams.bigrams.n_pairs
    cosines = (encoder.encode(phrases).dense * full).sum(1)
    assert cosines.min() > 0.999


@pytest.mark.parametrize(
    ("content", "error"), [(b"\n \n", "holds no phrase"), (b"caf\xe9", "not UTF-8"), (None, "not exist")]
)
def test_files_without_phrases_are_refused_before_the_fit(
    content: bytes | None,
    error: str,
    teacher: Path,
    collection: Path,
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:
    if content is not None:
        (tmp_path / "p.txt").write_bytes(content)
    asked = ["distill", str(teacher), "--corpus", str(collection), "--phrases", str(tmp_path / "p.txt")]
    assert main([*asked, "-o", str(tmp_path / "m")]) == 1
    assert error in capsys.readouterr().err


def test_the_same_command_gives_the_same_bytes_with_and_without_kept_vectors(
    teacher: Path, collection: Path, tmp_path: Path
) -> None:
    for name in ("a", "b"):
        distill(
            teacher,
            [collection],
            out=tmp_path / name,
            options=DistillationOptions(spans=50, fit=FIT, work=tmp_path / "work"),
        )
    distill(teacher, [collection], out=tmp_path / "c", options=DistillationOptions(spans=50, fit=FIT))
    stored = [(tmp_path / name / "query-encoder" / "model.safetensors").read_bytes() for name in "abc"]
    assert stored[0] == stored[1]
    assert len(stored[2]) == len(stored[0])
    with pytest.raises(AlreadyExists):
        distill(teacher, [collection], out=tmp_path / "a", options=DistillationOptions(spans=50, fit=FIT))


def test_training_queries_close_to_test_queries_are_left_out_and_counted(
    teacher: Path, collection: Path, tmp_path: Path
) -> None:
    out = distill(
        teacher,
        [collection],
        out=tmp_path / "m",
        options=DistillationOptions(queries=[collection], held_out=[collection], spans=0, fit=FIT),
    )
    facts = read_json(out / "distillation.json")
    assert facts["queries"] == 1
    assert facts["decontamination"]["sets"]["tiny labeled"]["dropped"] == 1


def test_the_command_sets_what_counts_as_close(teacher: Path, collection: Path, tmp_path: Path) -> None:
    """The query shares one of four words with the held-out "planet, copper?": a Jaccard similarity of 0.25."""
    (tmp_path / "queries.txt").write_text("violin harbor planet\n")
    base = ["distill", str(teacher), "--corpus", str(collection), "--queries", str(tmp_path / "queries.txt")]
    for similar, dropped in (("min_jaccard=0.25", 1), ("min_jaccard=0.3", 0)):
        options = ["--test", str(collection), "--similar", similar, "--similar", "max_hamming=-1", "--set", "steps=1"]
        out = tmp_path / similar
        assert main([*base, *options, "--spans", "50", "-o", str(out)]) == 0
        report = read_json(out / "distillation.json")["decontamination"]
        assert report["rules"]["max_hamming"] == -1
        assert report["sets"]["queries.txt unlabelled"]["dropped"] == dropped
    assert main([*base, "--similar", "min_jaccard=2", "-o", str(tmp_path / "x")]) == 1


def test_documents_that_are_encoded_already_serve_as_they_are(
    teacher: Path, collection: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = distill(
        teacher,
        [collection],
        out=tmp_path / "first",
        options=DistillationOptions(spans=50, fit=FIT, table_dtype="fp32"),
    )
    vectors = tmp_path / "again" / collection.name
    encode_corpus(load_teacher(teacher), read_documents(collection), vectors)
    monkeypatch.setattr(LightRetriever, "frame_documents", None)  # encoding a document again would fail
    second = distill(
        teacher, [vectors], out=tmp_path / "second", options=DistillationOptions(spans=50, fit=FIT, table_dtype="fp32")
    )
    rows = [load_file(out / "query-encoder" / "model.safetensors")["embeddings"] for out in (first, second)]
    np.testing.assert_allclose(rows[0], rows[1], atol=2e-2)


def test_vectors_of_another_encoder_are_refused(teacher: Path, collection: Path, tmp_path: Path) -> None:
    model = load_teacher(teacher)
    policy = dataclasses.replace(model.contract.document, max_tokens=9)
    model.contract = dataclasses.replace(model.contract, document=policy)
    encode_corpus(model, read_documents(collection), tmp_path / "v")
    with pytest.raises(ContractMismatch, match="max_tokens is 9"):
        distill(teacher, [tmp_path / "v"], out=tmp_path / "m", options=DistillationOptions(spans=5, fit=FIT))


def test_what_cannot_teach_is_refused(teacher: Path, collection: Path, tmp_path: Path) -> None:
    with pytest.raises(InvalidInput, match="no corpus"):
        distill(teacher, [], out=tmp_path / "m")
    with pytest.raises(InvalidInput, match="no query has a term"):
        distill(teacher, [collection], out=tmp_path / "m", options=DistillationOptions(spans=0))
    with pytest.raises(NotFound, match="neither"):
        load_teacher(collection)
    assert not (tmp_path / "m").exists()


def test_the_frame_is_sentence_transformers_own(teacher: Path) -> None:
    model = load_teacher(teacher)
    (ids, start, stop), (long, _, _) = model.frame_documents([Document("a", "b", "T"), Document("c", "x" * 500)])
    assert (ids[0], ids[-1]) == (BOS, EOS)
    assert stop - start == len("T b")
    assert len(long) == 60


def test_a_table_is_fitted_to_queries_alone(teacher: Path, collection: Path, tmp_path: Path) -> None:
    fit = dataclasses.replace(FIT, candidates_from="queries", cosine=5.0, bigrams=20)
    texts = [document.text for document in read_documents(collection)] * 2
    pool = tmp_path / "pool.jsonl"
    pool.write_text("".join(json.dumps({"_id": str(i), "text": text}) + "\n" for i, text in enumerate(texts)))
    model = distill(teacher, [], out=tmp_path / "m", options=DistillationOptions(fit=fit, queries=[pool], held_out=[]))
    facts = read_json(model / "distillation.json")
    assert facts["corpora"] == {}
    assert facts["queries"] == len(texts)
    assert facts["bigrams"] > 0
    labels = DistillationOptions(fit=fit, queries=[collection])
    with pytest.raises(InvalidInput, match="labels need the documents"):
        distill(teacher, [collection], out=tmp_path / "labels", options=labels)
