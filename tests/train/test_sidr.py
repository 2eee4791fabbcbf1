"""SiDR's stage: its vectors and losses compared with plain versions, in-training retrieval, and whole runs."""

from __future__ import annotations

import dataclasses
import json
import math
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
import torch
from torch import Tensor

from interrupted import cut
from lightir.contract import Contract, SparseHead
from lightir.data import Dataset, TrainingBatch, TrainingExample, TrainingSet
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.query_encoder import QueryEncoderArrays, write_query_encoder
from lightir.encode.vocabulary import cache_vocabulary
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.models.own_weights import all_weights
from lightir.pending import WorkOptions
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.model_encoder import encode_pending
from lightir.search import Searcher, SearchOptions
from lightir.text import QueryPolicy, query_term_ids
from lightir.train.mining.answers import holds_answer
from lightir.train.mining.bag_search import DeviceSearch, KernelSearch
from lightir.train.recipes.settings import DataRecipe, DevSet, DocumentRecipe, ModelRecipe, Optimisation
from lightir.train.recipes.sidr_recipe import (
    RetrievalRecipe,
    SidrEvaluation,
    SidrHeadRecipe,
    SidrLossWeights,
    SidrRecipe,
)
from lightir.train.stages.head_fitting import fit_heads, sample_documents
from lightir.train.stages.losses import two_way_loss
from lightir.train.stages.sidr import (
    bag_of_tokens,
    batch_losses,
    light_queries,
    parametric,
    pruned,
    retrieval_indexes,
    train,
    with_norm,
)
from lightir.train.stages.sidr_retrieval import BagOfTokens
from lightir.train.stages.stage_data import make_mixture, open_sets
from lightir.train.stages.stage_model import build_model
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors
from processes import assert_same, first_of, gradients_of
from small_collections import GivenVectors
from tiny_models import save_tiny


@pytest.fixture
def sidr(model_folder: Path, datasets: tuple[Path, Path]) -> SidrRecipe:
    return SidrRecipe(
        model=ModelRecipe(str(model_folder), dtype="float32", lora_rank=4, lora_alpha=8, lora_dropout=0.0),
        data=tuple(DataRecipe(str(folder)) for folder in datasets),
        optimisation=Optimisation(steps=5, batch_size=4, negatives=1, learning_rate=1e-2, warmup_steps=1),
        losses=SidrLossWeights(temperature=2.0),
        heads=SidrHeadRecipe(calibrate=0.5, calibration_documents=12, top_k=40),
        retrieval=RetrievalRecipe(top_m=4),
        documents=DocumentRecipe(max_tokens=48, train_tokens=32),
        evaluation=SidrEvaluation(sets=(DevSet(str(datasets[0]), queries=6, documents=10),)),
        checkpoint_every=2,
    )


RELEASED = SidrHeadRecipe(
    calibrate=0.5,
    calibration_documents=12,
    top_k=40,
    projection="embeddings",
    layer_norm=True,
    first_term=40,
    own_terms=True,
)
"""The encoder of SiDR's released code for a vocabulary of bytes, of which the first 40 (space, "!", …) are left out."""


def prepared(recipe: SidrRecipe) -> tuple[LightRetriever, list[TrainingSet], TrainingBatch]:
    sets, _ = open_sets(recipe, negatives=[None] * len(recipe.data))
    retriever = with_norm(build_model(recipe, device="cpu"), recipe)
    generator = torch.Generator().manual_seed(5)
    for array in (retriever.heads.norm_weight, retriever.heads.norm_bias):
        if array is not None:  # a fresh LayerNorm has weight 1 and bias 0, with which half of its work is invisible
            array.data += torch.randn(array.shape, generator=generator) * 0.3
    with torch.no_grad():  # LoRA starts at B = 0, where half the gradients vanish
        for name, parameter in retriever.trunk.named_parameters():
            if "lora_B" in name:
                parameter.copy_(torch.randn(parameter.shape, generator=torch.Generator().manual_seed(len(name))) * 0.1)
    fit_heads(retriever, recipe, sets)
    return retriever, sets, make_mixture(recipe, sets).batch(0)


def in_double(retriever: LightRetriever) -> None:
    """Convert a model and its heads to double precision, in place."""
    retriever.trunk.double()
    head = retriever.backbone.head
    assert head is not None
    retriever.backbone = dataclasses.replace(
        retriever.backbone, head=dataclasses.replace(head, weight=head.weight.double())
    )
    arrays = {name: array.detach().double() for name, array in retriever.heads.arrays().items()}
    arrays |= {name: torch.nn.Parameter(array) for name, array in arrays.items() if name.startswith("norm")}
    retriever.heads = dataclasses.replace(retriever.heads, **arrays)


def plain_parametric(retriever: LightRetriever, framed: Framed) -> Tensor:
    """Return elu1p of the largest logit plus bias, one text and one term at a time, in double precision.

    With a LayerNorm the states are normalized first: (h - mean) / sqrt(variance + 1e-5) * weight + bias.
    """
    ids, start, stop = framed
    batch = retriever.batch([framed])
    states = retriever.states(batch)[0, : len(ids)].double()
    assert retriever.backbone.head is not None
    assert retriever.heads.term_bias is not None
    assert retriever.contract.sparse is not None
    matrix = retriever.backbone.head.weight
    if retriever.contract.sparse.projection == "embeddings":
        matrix = retriever.backbone.model.get_input_embeddings().weight
    if retriever.heads.norm_weight is not None and retriever.heads.norm_bias is not None:
        centered = states - states.mean(dim=1, keepdim=True)
        deviation = (centered.square().mean(dim=1, keepdim=True) + 1e-5).sqrt()
        states = centered / deviation * retriever.heads.norm_weight.double() + retriever.heads.norm_bias.double()
    logits = states @ matrix.double().T
    largest = logits[start:stop].max(dim=0).values + retriever.heads.term_bias.double()
    weights = torch.where(largest >= 0, largest + 1, torch.exp(largest))
    kept = torch.arange(len(weights)) >= retriever.contract.sparse.first_term
    return torch.where(kept, weights, 0.0)


def test_the_loss_of_two_queries_by_hand() -> None:
    scores = torch.tensor([[2.0, 0.0, 1.0], [0.5, 1.0, 0.0]])
    result = two_way_loss(scores, torch.tensor([0, 1]))
    to_documents = [-math.log(math.e**2 / (math.e**2 + 1 + math.e)), -math.log(math.e / (math.e**0.5 + math.e + 1))]
    to_queries = [-math.log(math.e**2 / (math.e**2 + math.e**0.5)), -math.log(math.e / (1 + math.e))]
    assert float(result) == pytest.approx(sum(to_documents) / 2 + sum(to_queries) / 2)
    excluded = torch.tensor([[False, True, False], [False, False, False]])
    result = two_way_loss(scores, torch.tensor([0, 1]), excluded=excluded)
    to_documents[0] = -math.log(math.e**2 / (math.e**2 + math.e))
    assert float(result) == pytest.approx(sum(to_documents) / 2 + to_queries[0] / 2)


def test_vocabulary_vectors_equal_a_plain_version_whatever_the_batch(sidr: SidrRecipe) -> None:
    retriever, _, batch = prepared(sidr)
    framed = retriever.frame_documents(batch.documents)
    together = parametric(retriever, framed, pad_to=16)
    for row, item in enumerate(framed):
        torch.testing.assert_close(together[row].double(), plain_parametric(retriever, item), rtol=1e-5, atol=1e-5)
        torch.testing.assert_close(together[row], parametric(retriever, [item])[0])
    assert bool((together > 0).all())


def test_a_bag_holds_the_texts_own_tokens_once_and_no_frame(sidr: SidrRecipe) -> None:
    bags = bag_of_tokens([([0, 7, 9, 7, 1], 1, 4), ([0, 1], 1, 1)], vocab_size=12, device=torch.device("cpu"))
    assert bags.nonzero().tolist() == [[0, 7], [0, 9]]
    assert bags.max() == 1


def test_top_k_keeps_the_largest_and_own_terms_where_asked() -> None:
    weights, bags = torch.tensor([[4.0, 1.0, 3.0, 2.0]]), torch.tensor([[0.0, 1.0, 0.0, 0.0]])
    assert pruned(weights, bags, SidrHeadRecipe(top_k=2)).tolist() == [[4, 0, 3, 0]]
    assert pruned(weights, bags, SidrHeadRecipe(top_k=2, own_terms=True)).tolist() == [[4, 1, 3, 0]]


@pytest.mark.parametrize(
    "heads",
    [
        SidrHeadRecipe(calibrate=0.5, calibration_documents=12, top_k=40),
        RELEASED,
        dataclasses.replace(RELEASED, lexical_documents=True),
    ],
    ids=["paper", "released", "lexical"],
)
def test_the_loss_and_its_gradient_equal_a_plain_double_version(sidr: SidrRecipe, heads: SidrHeadRecipe) -> None:
    sidr = dataclasses.replace(sidr, heads=heads)
    retriever, _, batch = prepared(sidr)
    in_double(retriever)
    trained = {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad}
    arrays = {"weight": retriever.heads.norm_weight, "bias": retriever.heads.norm_bias}
    trained |= {name: array for name, array in arrays.items() if isinstance(array, torch.nn.Parameter)}
    assert ("bias" in trained) == heads.layer_norm

    def gradients(parts: dict[str, Tensor]) -> dict[str, Tensor]:
        result = torch.autograd.grad(torch.stack(list(parts.values())).sum(), list(trained.values()))
        return dict(zip(trained, result, strict=True))

    parts, _ = batch_losses(retriever, batch, sidr, generator=np.random.default_rng(0))
    framed_queries = retriever.frame_queries(batch.queries, instruction=batch.instructions[0])
    framed_documents = retriever.frame_documents(batch.documents)
    queries = torch.stack([plain_parametric(retriever, framed_query) for framed_query in framed_queries])
    documents = torch.stack([plain_parametric(retriever, framed_document) for framed_document in framed_documents])

    def bags(framed: list[Framed]) -> Tensor:
        first = heads.first_term
        return torch.tensor(
            [[float(t >= first and t in ids[a:b]) for t in range(258)] for ids, a, b in framed]
        ).double()

    def strongest(rows: Tensor, own: Tensor) -> Tensor:
        kept = rows >= rows.topk(40, dim=1).values[:, -1:]
        return torch.where(kept | (own > 0) if heads.own_terms else kept, rows, 0.0)

    def loss(a: Tensor, b: Tensor) -> Tensor:
        scores, total = a @ b.T / 2.0, torch.zeros((), dtype=torch.float64)
        n = len(a)
        for i in range(n):
            kept = [j for j in range(len(b)) if not batch.false_negatives[i, j]]
            total = total - torch.log(torch.exp(scores[i, i] - torch.logsumexp(scores[i, kept], 0)))
            kept = [j for j in range(n) if not batch.false_negatives[j, i]]
            total = total - (scores[i, i] - torch.logsumexp(scores[kept, i], 0))
        return total / n

    q_bags, d_bags = bags(framed_queries), bags(framed_documents)
    if heads.lexical_documents:  # V_lex(d) = V_BoT(d) ∘ V_θ(d), Appendix D
        documents = documents * d_bags
    expected = {
        "parametric": (loss(strongest(queries, q_bags), documents) + loss(queries, strongest(documents, d_bags))) / 2,
        "bag_documents": 0.5 * loss(queries, d_bags),
        "bag_queries": 0.5 * loss(q_bags, documents),
    }
    assert parts.keys() == expected.keys()
    for name, value in expected.items():
        assert float(parts[name].detach()) == pytest.approx(float(value.detach()), rel=1e-10)
    result, wanted = gradients(parts), gradients(expected)
    for name, gradient in wanted.items():
        assert float((result[name] - gradient).norm() / gradient.norm()) < 1e-9, name


def test_light_queries_are_means_of_rows_that_depend_on_the_token_alone(sidr: SidrRecipe) -> None:
    retriever, _, batch = prepared(sidr)
    query = dataclasses.replace(retriever.contract.query, expansion_terms=5)
    retriever.contract = dataclasses.replace(retriever.contract, query=query)
    queries = [*batch.queries, "", "aab"]
    result = light_queries(retriever, queries, instruction="find it").detach()
    assert not result[-2].any()
    prompt = retriever.frame_queries([""], instruction="find it")[0]
    for row, text in enumerate(queries):
        ids = query_term_ids(retriever.backbone.tokenizer, retriever.contract.query, [text]).row(0).tolist()
        expected = torch.zeros(258, dtype=torch.float64)
        for token in ids:
            frame = prompt[0][: prompt[1]]
            weights = plain_parametric(retriever, ([*frame, token], len(frame), len(frame) + 1)).detach()
            others = weights.clone()
            others[token] = -1  # the token itself is kept whatever its weight
            kept = others >= others.topk(4).values[-1]
            kept[token] = True
            expected += torch.where(kept, weights, 0.0) / len(ids)
        torch.testing.assert_close(result[row].double(), expected, rtol=1e-4, atol=1e-5)


def test_light_queries_are_not_rounded_under_autocast(sidr: SidrRecipe, monkeypatch: pytest.MonkeyPatch) -> None:
    retriever, _, batch = prepared(sidr)
    expected, states = light_queries(retriever, batch.queries), Backbone.states

    def exact(*given: Any, **named: Any) -> Tensor:
        with torch.autocast("cpu", enabled=False):
            return states(*given, **named)

    monkeypatch.setattr(Backbone, "states", exact)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        torch.testing.assert_close(light_queries(retriever, batch.queries), expected)


def test_light_losses_reach_the_adapter(sidr: SidrRecipe) -> None:
    recipe = dataclasses.replace(
        sidr, losses=SidrLossWeights(0.0, 0.0, light=1.0), query=QueryPolicy(weighting="expansion")
    )
    retriever, _, batch = prepared(recipe)
    parts, _ = batch_losses(retriever, batch, recipe, generator=np.random.default_rng(0))
    assert parts.keys() == {"light_bags", "light_documents"}
    parts["light_bags"].backward()
    assert any(p.grad is not None and bool(p.grad.any()) for p in retriever.trunk.parameters())


@pytest.mark.parametrize(
    "documents", [DocumentRecipe(max_tokens=2000), DocumentRecipe(max_tokens=48, train_tokens=32, bag_tokens=20)]
)
def test_an_index_of_bags_ranks_as_in_training_where_no_text_or_every_bag_is_cut(
    sidr: SidrRecipe, tmp_path: Path, documents: DocumentRecipe
) -> None:
    recipe = dataclasses.replace(sidr, documents=documents)
    retriever, sets, batch = prepared(recipe)
    trained = BagOfTokens(sets[0], retriever)
    weights = parametric(retriever, retriever.frame_queries(batch.queries)).detach()
    write_query_encoder(tmp_path / "q", retriever.contract, retriever.backbone.tokenizer, QueryEncoderArrays())
    build_index(
        document_shards(sets[0].documents[doc_id] for doc_id in trained.doc_ids),
        tmp_path / "bags",
        query_encoder=tmp_path / "q",
        options=IndexOptions(analyzer="bag"),
        progress=False,
    )
    sparse = {text: dict(enumerate(row.tolist())) for text, row in zip(batch.queries, weights, strict=True)}
    encoder = GivenVectors(retriever.contract, {text: np.zeros(0) for text in batch.queries}, sparse)
    with Index.open(tmp_path / "bags") as index:
        run = Searcher(index, encoder).search(batch.queries, 7, SearchOptions(mode="tokens"))
    assert [list(run[str(i)].doc_ids) for i in range(len(batch.queries))] == trained.search(weights, m=7)


@pytest.mark.parametrize("cut", [5, 60])
def test_the_losses_bags_are_those_of_an_index(sidr: SidrRecipe, cut: int) -> None:
    recipe = dataclasses.replace(sidr, documents=DocumentRecipe(max_tokens=48, train_tokens=32, bag_tokens=cut))
    retriever, _, batch = prepared(recipe)
    documents = [dataclasses.replace(document, text=document.text * 4) for document in batch.documents]
    batch = dataclasses.replace(batch, documents=tuple(documents))
    bags = torch.zeros(len(documents), 258)
    for row, document in enumerate(documents):
        text = f"{document.title} {document.text}" if document.title else document.text
        bags[row, retriever.backbone.tokenizer.term_ids([text.lower()]).row(0)[:cut].astype(np.int64)] = 1.0
    queries = parametric(retriever, retriever.frame_queries(batch.queries, instruction=batch.instructions[0]))
    positives, excluded = torch.arange(len(queries)), torch.from_numpy(batch.false_negatives)
    expected = 0.5 * two_way_loss(queries @ bags.T / 2.0, positives, excluded=excluded)
    parts, _ = batch_losses(retriever, batch, recipe, generator=np.random.default_rng(0))
    torch.testing.assert_close(parts["bag_documents"], expected, rtol=1e-5, atol=1e-6)


def test_the_scale_is_fitted_to_the_trained_models_weights(sidr: SidrRecipe, tmp_path: Path) -> None:
    recipe = dataclasses.replace(
        sidr,
        optimisation=dataclasses.replace(sidr.optimisation, steps=2),
        heads=dataclasses.replace(sidr.heads, scale=0.0),
        evaluation=SidrEvaluation(),
    )
    retriever = LightRetriever.load(train(recipe, tmp_path / "model", device="cpu"))
    assert retriever.contract.sparse is not None
    scale = retriever.contract.sparse.scale
    sets, _ = open_sets(recipe, negatives=[None] * len(recipe.data))
    documents = sample_documents(sets, recipe.heads.calibration_documents, seed=recipe.optimisation.seed)
    with torch.no_grad():
        framed = retriever.frame_documents(documents)
        largest = max(float(plain_parametric(retriever, item).max()) for item in framed)
    assert 255 / scale == pytest.approx(largest, rel=0.02)
    with pytest.raises(InvalidInput, match="sparse scale is -1"):
        _ = dataclasses.replace(sidr, heads=dataclasses.replace(sidr.heads, scale=-1.0)).contract


def test_beta_search_equals_brute_force_and_an_index_of_n_is_that_of_each(sidr: SidrRecipe) -> None:
    retriever, sets, batch = prepared(sidr)
    index = BagOfTokens(sets[0], retriever)
    framed = retriever.frame_documents([sets[0].documents[doc_id] for doc_id in index.doc_ids])
    bags = bag_of_tokens(framed, vocab_size=258, device=torch.device("cpu"))
    alone = [bag_of_tokens([item], vocab_size=258, device=torch.device("cpu")) for item in framed]
    assert torch.equal(bags, torch.cat(alone))
    weights = parametric(retriever, retriever.frame_queries(batch.queries)).detach()
    scores = (weights.double() @ bags.double().T).numpy()
    for row, doc_ids in enumerate(index.search(weights, m=7)):
        result = [scores[row, index.doc_ids.index(doc_id)] for doc_id in doc_ids]
        assert len(result) == 7
        np.testing.assert_allclose(result, np.sort(scores[row])[::-1][:7], rtol=1e-5)
    on_device = BagOfTokens(sets[0], retriever, on_device=True)
    assert on_device.search(weights, m=7) == index.search(weights, m=7)


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("k", [1, 3, 20, 500])
def test_a_product_on_the_device_finds_what_the_kernel_finds_to_the_bit(seed: int, k: int) -> None:
    rng = np.random.default_rng(seed)
    n_docs, n_terms = [1, 40, 300][seed % 3], [5, 60][seed % 2]
    rows = [rng.integers(0, n_terms, rng.integers(0, 12)).tolist() for _ in range(n_docs)]
    bags = SparseVectors.count(Ragged.from_lists(rows), vocab_size=n_terms)
    bags = bags.with_weights(np.ones(len(bags.term_ids), dtype=np.uint8))
    values = (
        rng.integers(0, 3, (5, n_terms)) / 4 if seed < 3 else rng.random((5, n_terms)) * (rng.random(n_terms) < 0.4)
    )
    weights = torch.from_numpy(values.astype(np.float32))
    weights[2] = 0.0
    expected = KernelSearch(bags).top(weights, k=k)
    for tile_bytes in (1, 16 * 5 * 7, 1 << 20):
        result = DeviceSearch(bags, torch.device("cpu"), tile_bytes=tile_bytes).top(weights, k=k)
        for one, other in zip(result, expected, strict=True):
            np.testing.assert_array_equal(one, other)
            assert one.dtype == other.dtype
    assert result[0][3] == result[0][2]
    none = DeviceSearch(SparseVectors.empty(0, vocab_size=n_terms), torch.device("cpu")).top(weights, k=k)
    assert [len(item) for item in none] == [6, 0, 0]


def test_where_bags_are_searched_changes_no_draw(sidr: SidrRecipe) -> None:
    retriever, sets, batch = prepared(sidr)
    training = next(item for item in sets if item.name == batch.dataset)
    weights = parametric(retriever, retriever.frame_queries(batch.queries)).detach()
    drawn = [
        BagOfTokens(training, retriever, on_device=way).draw(
            batch, weights, RetrievalRecipe(5), np.random.default_rng(3)
        )
        for way in (False, True)
    ]
    assert drawn[0] == drawn[1]


def test_in_training_queries_search_with_as_many_terms_as_asked_and_light_ones_have_a_temperature(
    sidr: SidrRecipe, monkeypatch: pytest.MonkeyPatch
) -> None:
    query = QueryPolicy(weighting="expansion", expansion_terms=5)
    losses = SidrLossWeights(light=1.0, temperature=2.0, light_temperature=0.25)
    recipe = dataclasses.replace(sidr, query=query, losses=losses, retrieval=RetrievalRecipe(4, query_terms=3))
    retriever, sets, batch = prepared(recipe)
    index = BagOfTokens(next(item for item in sets if item.name == batch.dataset), retriever)
    seen = []
    search = index.search
    monkeypatch.setattr(index, "search", lambda weights, m: seen.append(weights) or search(weights, m=m))
    batch_losses(retriever, batch, recipe, index=index, generator=np.random.default_rng(0))
    assert [(row > 0).sum().item() for row in seen[0]] == [3] * len(batch.queries)
    parts, _ = batch_losses(retriever, batch, recipe, generator=np.random.default_rng(0))
    light = light_queries(retriever, batch.queries, instruction=batch.instructions[0])
    framed = retriever.frame_documents(batch.documents)
    bags = bag_of_tokens(framed, vocab_size=258, device=torch.device("cpu"))
    few = pruned(parametric(retriever, framed), bags, recipe.heads)
    positives, excluded = torch.arange(len(batch.queries)), torch.from_numpy(batch.false_negatives)
    for name, rows in (("light_bags", bags), ("light_documents", few)):
        expected = two_way_loss(light @ rows.T / 0.25, positives, excluded=excluded)
        torch.testing.assert_close(parts[name], expected, rtol=1e-5, atol=1e-6)
    for wrong in (RetrievalRecipe(query_terms=-1), RetrievalRecipe(-1)):
        with pytest.raises(InvalidInput, match=r"query_terms|top_m"):
            dataclasses.replace(recipe, retrieval=wrong)
    with pytest.raises(InvalidInput, match="light_temperature"):
        dataclasses.replace(recipe, losses=SidrLossWeights(light_temperature=-1.0))


def test_what_is_relevant_a_copy_or_an_answer_is_never_drawn(sidr: SidrRecipe) -> None:
    retriever, _, _ = prepared(sidr)
    texts = {"p": "red stone", "copy": "red stone", "also": "red river", "answer": "a red Planet.", "good": "red cloud"}
    documents = {doc_id: Document(doc_id, text) for doc_id, text in texts.items()}
    example = TrainingExample("q", "red", ("p", "also"), (), "s", answers=("planet",))
    training = TrainingSet("s", (example,), documents, ("",))
    index = BagOfTokens(training, retriever)
    batch = TrainingBatch("s", ("",), ("q",), ("red",), (documents["p"],), np.zeros((1, 1), dtype=np.bool_))
    weights = torch.zeros(1, 258)
    weights[0, retriever.backbone.tokenizer.term_ids([" red"]).row(0).astype(np.int64)] = 1.0
    for seed in range(20):
        generator = np.random.default_rng(seed)
        drawn, result = index.draw(batch, weights, RetrievalRecipe(top_m=5), generator)
        assert [item.doc_id for item in drawn] == ["good"]
        assert result == 1
    seen = {
        index.draw(batch, weights, RetrievalRecipe(5, False), np.random.default_rng(s))[0][0].doc_id for s in range(20)
    }
    assert seen == {"good", "answer"}
    drawn, result = index.draw(batch, torch.zeros(1, 258), RetrievalRecipe(5), np.random.default_rng(0))
    assert result == 0  # nothing matched: one is drawn from the corpus
    assert drawn[0].doc_id not in {"p", "also"}


def test_negatives_of_another_corpus_are_told_from_relevant_ones_by_their_text(sidr: SidrRecipe) -> None:
    retriever, _, _ = prepared(sidr)
    own = {"p": Document("p", "red stone"), "also": Document("also", "red river")}
    example = TrainingExample("q", "red", ("p", "also"), (), "s", answers=("planet",))
    training = TrainingSet("s", (example,), own, ("",))
    # "p" is the id of a relevant document of the training set, and of another text here.
    texts = {"p": "red cloud", "a": "red stone", "b": "red river", "c": "a red planet", "d": "red bread"}
    other = {doc_id: Document(doc_id, text) for doc_id, text in texts.items()}
    index = BagOfTokens(training, retriever, corpus=other)
    batch = TrainingBatch("s", ("",), ("q",), ("red",), (own["p"],), np.zeros((1, 1), dtype=np.bool_))
    weights = torch.zeros(1, 258)
    weights[0, retriever.backbone.tokenizer.term_ids(["red"]).row(0).astype(np.int64)] = 1.0
    drawn = [index.draw(batch, weights, RetrievalRecipe(5), np.random.default_rng(seed))[0][0] for seed in range(20)]
    assert {document.text for document in drawn} == {"red cloud", "red bread"}
    extended = index.extended(batch, [other["p"]])
    assert not extended.false_negatives.any()
    assert index.extended(batch, [other["a"]]).false_negatives.tolist() == [[False, True]]


def test_an_index_of_some_documents_is_a_sample_of_the_corpus(sidr: SidrRecipe, datasets: tuple[Path, Path]) -> None:
    retrieval = RetrievalRecipe(4, documents=7)
    retriever, sets, _ = prepared(sidr)
    indexes = retrieval_indexes(dataclasses.replace(sidr, retrieval=retrieval), retriever, sets)
    for training in sets:
        chosen = indexes[training.name].doc_ids
        assert len(chosen) == 7
        assert {*chosen} < {*training.documents}
    other = dataclasses.replace(retrieval, corpus=str(datasets[1]), documents=0)
    indexes = retrieval_indexes(dataclasses.replace(sidr, retrieval=other), retriever, sets)
    assert [index.doc_ids for index in indexes.values()] == [sorted(sets[1].documents)] * 2
    with pytest.raises(InvalidInput, match=r"set retrieval\.top_m"):
        dataclasses.replace(sidr, retrieval=RetrievalRecipe(0, corpus="x"))


@pytest.mark.parametrize("lexical", [False, True])
def test_the_released_encoder_is_saved_loaded_resumed_and_stores_what_training_compared(
    sidr: SidrRecipe, tmp_path: Path, lexical: bool
) -> None:
    recipe = dataclasses.replace(
        sidr, heads=dataclasses.replace(RELEASED, lexical_documents=lexical), documents=DocumentRecipe(max_tokens=48)
    )
    whole = train(recipe, tmp_path / "whole", device="cpu")
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"), at=3)
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    assert Contract.load(whole) == Contract.load(resumed)
    model = LightRetriever.load(whole)
    sparse = model.contract.sparse
    assert sparse is not None
    assert (sparse.first_term, sparse.lexical, sparse.own_terms) == (40, lexical, True)
    assert sparse.norm_hash
    assert model.heads.norm_weight is not None
    assert not torch.equal(model.heads.norm_weight, torch.ones_like(model.heads.norm_weight))  # it was trained
    framed = model.frame_documents(["the red river in winter", "copper, bread!"])
    with torch.no_grad():
        _, stored = model.encode_batch(model.batch(framed))
        assert stored is not None
        for row, (ids, start, stop) in enumerate(framed):
            weights = plain_parametric(model, (ids, start, stop)).detach()
            own = torch.tensor([term >= 40 and term in ids[start:stop] for term in range(258)])
            kept = weights >= (torch.where(own, weights, 0.0) if lexical else weights).topk(40).values[-1]
            expected = torch.where(own if lexical else own | kept, weights, 0.0)
            impacts = torch.from_numpy(stored.to_dense()[row].astype(np.float32)) / sparse.scale
            torch.testing.assert_close(impacts.double(), expected, rtol=0, atol=0.51 / sparse.scale)
    plain = dataclasses.replace(sidr.heads, projection="embeddings")
    again = dataclasses.replace(recipe, model=dataclasses.replace(recipe.model, address=str(whole)), heads=plain)
    with pytest.raises(InvalidInput, match=r"set heads\.layer_norm"):
        prepared(again)
    continued = with_norm(build_model(dataclasses.replace(again, heads=recipe.heads), device="cpu"), recipe)
    assert continued.heads.norm_weight is not None
    started = with_norm(continued, dataclasses.replace(again, heads=recipe.heads)).heads.norm_weight
    assert started is not None
    torch.testing.assert_close(started.detach(), model.heads.norm_weight)
    (whole / "head.safetensors").write_bytes((resumed / "head.safetensors").read_bytes()[:-4] + b"\x00\x00\x80?")
    with pytest.raises(ContractMismatch, match=r"norm_hash|bias_hash"):
        LightRetriever.load(whole)


def test_a_retrieved_negative_stands_behind_its_querys_others(sidr: SidrRecipe) -> None:
    retriever, sets, batch = prepared(sidr)
    index = BagOfTokens(next(item for item in sets if item.name == batch.dataset), retriever)
    new = [Document(f"new{i}", f"text {i}") for i in range(4)]
    index._documents = {**index._documents, **{item.doc_id: item for item in new}}
    extended = index.extended(batch, [new[0], batch.documents[0], new[2], new[3]])
    assert extended.documents[:4] == batch.documents[:4]
    for row in range(4):
        assert extended.documents[4 + 2 * row] == batch.documents[4 + row]
    assert extended.documents[5] == new[0]
    assert extended.false_negatives.shape == (4, 12)
    assert extended.false_negatives[0, 7]  # the first query's positive, retrieved by the second
    np.testing.assert_array_equal(extended.false_negatives[:, [0, 1, 2, 3, 4, 6, 8, 10]], batch.false_negatives)


@pytest.mark.parametrize(
    ("text", "answers", "expected"),
    [
        ("It is New  York, now.", ("new york",), True),
        ("It is New Yorkshire.", ("new york",), False),
        ("(42)", ("42",), True),
        ("forty", ("", "  "), False),
        ("anything", (), False),
        ("", ("x",), False),
    ],
)
def test_answers_are_found_word_for_word(text: str, answers: tuple[str, ...], expected: bool) -> None:
    assert holds_answer(text, answers) is expected


def test_a_run_leaves_a_model_and_a_resumed_one_is_the_same(sidr: SidrRecipe, tmp_path: Path) -> None:
    whole = train(sidr, tmp_path / "whole", device="cpu")
    cut(lambda: train(sidr, tmp_path / "cut", device="cpu"), at=3)
    resumed = train(sidr, tmp_path / "cut", resume=True, device="cpu")
    logs = [
        [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]
        for model in (whole, resumed)
    ]
    losses = [[item["loss"] for item in log if "loss" in item] for log in logs]
    assert losses[0] == losses[1]
    assert {"parametric", "bag_documents", "bag_queries", "retrieved"} <= logs[0][0].keys()
    assert logs[0][-1]["development"]["mean"].keys() == {"full", "beta", "overlap", "light_full", "light_beta"}
    contract = Contract.load(whole)
    assert contract == Contract.load(resumed)
    assert (contract.method, contract.dense) == ("sidr", None)
    assert contract.sparse is not None
    assert contract.sparse.activation == "elu1p"
    assert LightRetriever.load(whole).heads.term_bias is not None


def gradients(recipe: SidrRecipe) -> dict[str, Tensor]:
    retriever, sets, batch = prepared(recipe)
    index = BagOfTokens(next(item for item in sets if item.name == batch.dataset), retriever)
    parts, _ = batch_losses(retriever, batch, recipe, index=index, generator=np.random.default_rng(0))
    trained: dict[str, Tensor] = {name: p for name, p in retriever.trunk.named_parameters() if p.requires_grad}
    if retriever.heads.norm_weight is not None:
        trained["norm"] = retriever.heads.norm_weight
    return gradients_of(parts, trained)


@pytest.mark.parametrize(("world", "released"), [(2, False), (4, False), (2, True)])
def test_several_processes_have_the_gradient_of_one(
    world: int, released: bool, sidr: SidrRecipe, tmp_path: Path
) -> None:
    sidr = dataclasses.replace(sidr, heads=RELEASED) if released else sidr
    assert_same(first_of(world, lambda: gradients(sidr), tmp_path), gradients(sidr), rtol=1e-4)


def test_settings_that_make_no_sense_are_refused(sidr: SidrRecipe) -> None:
    with pytest.raises(InvalidInput, match="parametric"):
        dataclasses.replace(sidr, losses=SidrLossWeights(0.0, 0.0))
    with pytest.raises(InvalidInput, match="top_k"):
        dataclasses.replace(sidr, heads=SidrHeadRecipe(top_k=0))
    with pytest.raises(InvalidInput, match="lora_rank is -1"):
        dataclasses.replace(sidr, model=dataclasses.replace(sidr.model, lora_rank=-1))
    with pytest.raises(InvalidInput, match="first_layer must be 0"):
        dataclasses.replace(sidr, model=dataclasses.replace(sidr.model, lora_rank=0, first_layer=1))
    with pytest.raises(InvalidInput, match=r"query\.weighting"):
        dataclasses.replace(sidr, losses=SidrLossWeights(light=0.5))
    with pytest.raises(InvalidInput, match=r"layer_norm requires heads\.projection"):
        dataclasses.replace(sidr, heads=SidrHeadRecipe(layer_norm=True))
    with pytest.raises(InvalidInput, match="first_term is -1"):
        dataclasses.replace(sidr, heads=SidrHeadRecipe(first_term=-1))
    with pytest.raises(InvalidInput, match="mixed_batches"):
        dataclasses.replace(sidr, optimisation=dataclasses.replace(sidr.optimisation, mixed_batches=True))


@pytest.mark.parametrize(("plain", "projection"), [(False, "head"), (False, "embeddings"), (True, "embeddings")])
def test_all_weights_of_an_encoder_are_trained_kept_and_resumed(
    sidr: SidrRecipe, tmp_path: Path, plain: bool, projection: Literal["head", "embeddings"]
) -> None:
    save_tiny("bert", tmp_path / "bert", plain=plain)
    recipe = dataclasses.replace(
        sidr,
        model=ModelRecipe(str(tmp_path / "bert"), attention="bidirectional", lora_rank=0, lora_dropout=0.0),
        optimisation=dataclasses.replace(sidr.optimisation, steps=20, learning_rate=2e-3),
        heads=SidrHeadRecipe(top_k=40, projection=projection),
        evaluation=SidrEvaluation(),
    )
    whole = train(recipe, tmp_path / "whole", device="cpu")
    cut(lambda: train(recipe, tmp_path / "cut", device="cpu"), at=3)
    resumed = train(recipe, tmp_path / "cut", resume=True, device="cpu")
    logs = [(model / "training" / "log.jsonl").read_text().splitlines() for model in (whole, resumed)]
    losses = [[json.loads(line)["loss"] for line in log] for log in logs]
    assert losses[0] == losses[1]
    assert np.mean(losses[0][-6:]) < np.mean(losses[0][:6])
    assert Contract.load(whole) == Contract.load(resumed)
    before, after = all_weights(load_backbone(tmp_path / "bert")), LightRetriever.load(whole).backbone
    moved = {name for name, weight in all_weights(after).items() if not torch.equal(weight, before[name])}
    assert {"embeddings.word_embeddings.weight", "encoder.layer.0.attention.self.query.weight"} <= moved
    assert any(name.startswith("head.transform") for name in moved) == (projection == "head")


@pytest.mark.parametrize("plain", [False, True])
def test_states_may_meet_the_input_embeddings_also_of_a_model_without_a_head(
    sidr: SidrRecipe, tmp_path: Path, plain: bool
) -> None:
    save_tiny("bert", tmp_path / "bert", plain=plain)
    model = dataclasses.replace(sidr.model, address=str(tmp_path / "bert"), attention="bidirectional")
    recipe = dataclasses.replace(
        sidr, model=model, heads=SidrHeadRecipe(top_k=40, projection="embeddings"), evaluation=SidrEvaluation()
    )
    retriever, _, batch = prepared(recipe)
    result = parametric(retriever, retriever.frame_documents(batch.documents)).detach()
    embeddings = retriever.backbone.model.get_input_embeddings().weight.double()
    for row, (ids, start, stop) in enumerate(retriever.frame_documents(batch.documents)):
        states = retriever.states(retriever.batch([(ids, start, stop)]))[0, start:stop].double()
        largest = (states @ embeddings.T).max(dim=0).values
        expected = torch.where(largest >= 0, largest + 1, torch.exp(largest))
        torch.testing.assert_close(result[row].double(), expected.detach(), rtol=1e-4, atol=1e-5)
    folder = train(recipe, tmp_path / "model", device="cpu")
    assert Contract.load(folder).sparse == SparseHead("elu1p", "", 40, 32.0, "embeddings")
    if plain:
        head = dataclasses.replace(recipe, heads=SidrHeadRecipe(top_k=40))
        with pytest.raises(InvalidInput, match=r"heads\.projection"):
            prepared(head)


@pytest.mark.parametrize(("name", "projection"), [("llama", "head"), ("llama", "embeddings"), ("bert", "embeddings")])
def test_a_corpus_is_searched_before_it_is_encoded_and_then_encoded_by_the_model_that_was_trained(
    sidr: SidrRecipe, datasets: tuple[Path, Path], tmp_path: Path, name: str, projection: Literal["head", "embeddings"]
) -> None:
    save_tiny(name, tmp_path / "backbone")
    attention: Literal["causal", "bidirectional"] = "causal" if name == "llama" else "bidirectional"
    recipe = dataclasses.replace(
        sidr,
        model=dataclasses.replace(sidr.model, address=str(tmp_path / "backbone"), attention=attention),
        optimisation=dataclasses.replace(sidr.optimisation, steps=2),
        losses=SidrLossWeights(temperature=2.0, light=0.5),
        heads=dataclasses.replace(sidr.heads, projection=projection, own_terms=True),
        query=QueryPolicy(weighting="expansion", expansion_terms=5, leading_blank=False),
        evaluation=SidrEvaluation(),
    )
    model = train(recipe, tmp_path / "model", device="cpu")
    cached = cache_vocabulary(model, tmp_path / "query-encoder")
    contract = Contract.load(model)
    documents = list(Dataset.open(datasets[0]).corpus())
    index = tmp_path / "index"
    build_index(
        document_shards(documents),
        index,
        contract=contract,
        query_encoder=cached,
        options=IndexOptions(analyzer="bag"),
        progress=False,
    )
    retriever, texts = LightRetriever.load(model), ["the river", "copper and bread"]
    with torch.no_grad():
        light = light_queries(retriever, texts)
        full = FullQueryEncoder(retriever, sparse=True)
        bags = bag_of_tokens(retriever.frame_documents(documents), vocab_size=258, device=torch.device("cpu"))
        queries = full.encode(texts).sparse
        assert queries is not None
        expected = (torch.from_numpy(queries.to_dense()) @ bags.T, light @ bags.T)
    with Index.open(index) as reader:
        assert reader.info().pending == len(documents)
        for encoder, scores in zip((full, None), expected, strict=True):
            run = Searcher(reader, encoder).search(texts, 5, SearchOptions(mode="tokens"))
            for row in range(len(texts)):
                best = scores[row].sort(descending=True).values[:5]
                np.testing.assert_allclose(run[str(row)].scores, best, rtol=2e-3)
        assert encode_pending(
            index, model, options=WorkOptions(once=True), encoding=EncodeOptions(dtype="fp32"), progress=False
        ).committed == len(documents)
        reader.refresh()
        _, stored = retriever.encode_batch(retriever.batch(retriever.frame_documents(documents)))
        assert stored is not None
        run = Searcher(reader, full).search(texts, 5, SearchOptions(mode="sparse"))
        for row in range(len(texts)):
            scores = np.sort(queries.to_dense()[row] @ stored.to_dense().T.astype(np.float32))[::-1]
            np.testing.assert_allclose(run[str(row)].scores, scores[:5], rtol=2e-3)
