"""Bags of tokens (SiDR's V_BoT) searched with weighted queries: beta search."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Mapping
from pathlib import Path

import numpy as np
import pytest

from lightir.contract import Contract, DocumentPolicy
from lightir.errors import ContractMismatch, InvalidInput
from lightir.index import Index, IndexOptions, IndexWriter, build_index, document_shards
from lightir.search import Searcher, SearchOptions
from lightir.search.language_model import parse_smoothing
from lightir.text import QueryPolicy
from lightir.types import Document, Query
from small_collections import WORDS, GivenVectors, word_contract, word_tokenizer, write_folder

POLICY = DocumentPolicy(max_tokens=4, title_joiner=" the ")
CONTRACT = word_contract(dense=None, document=POLICY)


def random_documents(seed: int, n: int) -> list[Document]:
    rng = np.random.default_rng(seed)
    texts = [" ".join(rng.choice([*WORDS[1:], "Cat", "yak"], rng.integers(0, 7))) for _ in range(n)]
    return [Document(f"d{i}", text, "dog" if i % 5 == 4 else "") for i, text in enumerate(texts)]


def random_queries(seed: int, n: int) -> dict[str, dict[int, float]]:
    """Weights are multiples of 1/8, so sums are exact and ties are many."""
    rng = np.random.default_rng(seed)
    return {f"q{i}": {int(t): float(rng.integers(1, 9)) / 8 for t in rng.choice(8, i % 9, False)} for i in range(n)}


def bag(document: Document, cut: int | None = None) -> set[int]:
    """V_BoT: the terms of the document's first `cut` tokens, as the model's documents are prepared; None for all."""
    text = f"{document.title} the {document.text}" if document.title else document.text
    return set(word_tokenizer().term_ids([text.strip().lower()]).row(0).tolist()[:cut])


def beta(
    query: Mapping[int, float], documents: list[Document], k: int, cut: int | None = None
) -> list[tuple[str, float]]:
    """<V(q), V_BoT(d)> by loops: score down, then doc_id; documents without a common term are not found."""
    scores = {d.doc_id: sum(w for t, w in query.items() if t in bag(d, cut)) for d in documents}
    return sorted(((i, s) for i, s in scores.items() if s > 0), key=lambda pair: (-pair[1], pair[0]))[:k]


def encoder_folder(tmp_path: Path, contract: Contract = CONTRACT) -> Path:
    folder = tmp_path / "q"
    return folder if folder.exists() else write_folder(folder, contract, {})


def searched(
    index: Index, queries: Mapping[str, Mapping[int, float]], k: int, contract: Contract = CONTRACT
) -> dict[str, list[tuple[str, float]]]:
    searcher = Searcher(index, GivenVectors(contract, {q: np.zeros(0) for q in queries}, queries))
    run = searcher.search([Query(q, q) for q in queries], k, SearchOptions(mode="tokens"))
    return {q: list(zip(r.doc_ids, r.scores.tolist(), strict=True)) for q, r in run.items()}


@pytest.mark.parametrize(("n", "size"), [(0, 1), (1, 1), (23, 23), (23, 5)])
@pytest.mark.parametrize("k", [1, 4, 100])
def test_beta_search_is_what_brute_force_finds(tmp_path: Path, n: int, size: int, k: int) -> None:
    documents, queries = random_documents(n, n), random_queries(k, 12)
    build_index(
        document_shards(documents),
        tmp_path / "index",
        query_encoder=encoder_folder(tmp_path),
        options=IndexOptions(analyzer="bag", segment_documents=size),
        progress=False,
    )
    with Index.open(tmp_path / "index") as index:
        index.verify()
        assert searched(index, queries, k) == {q: beta(row, documents, k) for q, row in queries.items()}


def test_an_index_of_n_documents_is_the_union_of_n_indexes_of_one(tmp_path: Path) -> None:
    documents, queries = random_documents(3, 9), random_queries(5, 9)
    folder = encoder_folder(tmp_path)
    build_index(
        document_shards(documents),
        tmp_path / "all",
        query_encoder=folder,
        options=IndexOptions(analyzer="bag"),
        progress=False,
    )
    alone = []
    for document in documents:
        out = tmp_path / document.doc_id
        build_index(
            document_shards([document]), out, query_encoder=folder, options=IndexOptions(analyzer="bag"), progress=False
        )
        with Index.open(out) as index:
            alone.append(searched(index, queries, 9))
    with Index.open(tmp_path / "all") as index:
        for query, ranking in searched(index, queries, 9).items():
            single = itertools.chain.from_iterable(part[query] for part in alone)
            assert ranking == sorted(single, key=lambda pair: (-pair[1], pair[0]))


def test_bags_that_come_change_and_go_are_searched_as_if_built_at_once(tmp_path: Path) -> None:
    documents, queries = random_documents(11, 20), random_queries(2, 12)
    with IndexWriter.create(
        tmp_path / "index", query_encoder=encoder_folder(tmp_path), options=IndexOptions(analyzer="bag")
    ) as writer:
        writer.add(documents[:7])
        writer.add(documents[7:])
        writer.upsert([Document("d3", "cat cat yak")])
        writer.delete(["d0", "d9"])
    left = [Document("d3", "cat cat yak") if d.doc_id == "d3" else d for d in documents if d.doc_id not in ("d0", "d9")]
    expected = {q: beta(row, left, 5) for q, row in queries.items()}
    with Index.open(tmp_path / "index") as index:
        assert searched(index, queries, 5) == expected
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.compact(progress=False)
    with Index.open(tmp_path / "index") as index:
        assert searched(index, queries, 5) == expected


@pytest.mark.parametrize("cut", [1, 3, 5, 100])
def test_bags_hold_the_first_tokens_that_the_contract_says_however_they_are_written(tmp_path: Path, cut: int) -> None:
    contract = word_contract(dense=None, document=dataclasses.replace(POLICY, bag_tokens=cut))
    documents, queries = random_documents(7, 24), random_queries(4, 12)
    folder, options = encoder_folder(tmp_path, contract), IndexOptions(analyzer="bag")
    build_index(document_shards(documents[:9]), tmp_path / "index", query_encoder=folder, options=options)
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.add(documents[9:])
        writer.upsert([Document("d2", "cat dog yak the the runs")])
    documents[2] = Document("d2", "cat dog yak the the runs")
    expected = {q: beta(row, documents, 9, cut) for q, row in queries.items()}
    assert (expected == {q: beta(row, documents, 9) for q, row in queries.items()}) == (cut == 100)
    with Index.open(tmp_path / "index") as index:
        assert searched(index, queries, 9, contract) == expected
        with pytest.raises(ContractMismatch, match="document"):
            Searcher(index, GivenVectors(CONTRACT, {}, {}))
    with IndexWriter.open(tmp_path / "index") as writer:
        writer.compact(progress=False)
    with Index.open(tmp_path / "index") as index:
        assert searched(index, queries, 9, contract) == expected


def test_a_length_of_bags_below_0_is_refused() -> None:
    with pytest.raises(InvalidInput, match="bag_tokens is -1"):
        DocumentPolicy(bag_tokens=-1)


def test_an_explanation_of_beta_search_names_the_shared_terms(tmp_path: Path) -> None:
    documents = [Document("a", "the cat runs"), Document("b", "the dog")]
    build_index(
        document_shards(documents),
        tmp_path / "index",
        query_encoder=encoder_folder(tmp_path),
        options=IndexOptions(analyzer="bag"),
        progress=False,
    )
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index, GivenVectors(CONTRACT, {"q": np.zeros(0)}, {"q": {1: 0.5, 2: 2.0, 4: 1.0}}))
        told = searcher.explain("q", "a", SearchOptions(mode="tokens"))
        assert [(term.term, term.score) for term in told.terms["tokens"]] == [("runs", 1.0), ("cat", 0.5)]
        assert told.score == 1.5


@pytest.mark.parametrize("weighting", ["count", "binary"])
def test_queries_without_weights_search_bags_only_if_token_overlap_is_asked_for(tmp_path: Path, weighting: str) -> None:
    query = QueryPolicy(leading_blank=False, weighting=weighting)  # type: ignore[arg-type]
    contract = word_contract(dense=None, document=POLICY, query=query)
    documents = random_documents(5, 20)
    folder = encoder_folder(tmp_path, contract)
    build_index(
        document_shards(documents), tmp_path / "index", query_encoder=folder, options=IndexOptions(analyzer="bag")
    )
    texts = ["the cat the cat runs", "dog", "unknown", ""]
    with Index.open(tmp_path / "index") as index:
        searcher = Searcher(index)
        for mode in ("tokens", None):
            with pytest.raises(InvalidInput, match=r"no learned term weights.*--tokens overlap"):
                searcher.search(["cat"], options=SearchOptions(mode=mode))
        run = searcher.search(texts, 9, SearchOptions(mode="tokens", overlap=True))
    for row, text in enumerate(texts):
        terms = set(word_tokenizer().term_ids([text]).row(0).tolist()) if text != "unknown" else set()
        expected = beta(dict.fromkeys(terms, 1.0), documents, 9)
        assert list(zip(run[str(row)].doc_ids, run[str(row)].scores.tolist(), strict=True)) == expected


def test_token_overlap_requires_bags(tmp_path: Path) -> None:
    build_index(document_shards([Document("a", "cat")]), tmp_path / "words", progress=False)
    with Index.open(tmp_path / "words") as index, pytest.raises(InvalidInput, match="--analyzer bag"):
        Searcher(index).search(["cat"], options=SearchOptions(overlap=True))
    with pytest.raises(InvalidInput, match="choose one"):
        SearchOptions(overlap=True, smoothing=parse_smoothing("dirichlet"))


def test_bags_need_a_model_with_a_sparse_branch(tmp_path: Path) -> None:
    shards = list(document_shards([Document("a", "cat")]))
    with pytest.raises(InvalidInput, match="query encoder"):
        build_index(shards, tmp_path / "none", options=IndexOptions(analyzer="bag"), progress=False)
