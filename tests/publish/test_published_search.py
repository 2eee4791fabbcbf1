"""The script of a published page finds what the Python searcher finds."""

from __future__ import annotations

import dataclasses
import json
import shutil
import subprocess
import zlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import lightir.publish
from lightir.contract import Contract, Fusion
from lightir.index import Index, IndexOptions, IndexWriter, PassageOptions
from lightir.pending import WorkOptions, work
from lightir.publish import publish_index, vector_files
from lightir.search import Searcher, SearchOptions
from lightir.shards import Shard
from lightir.types import Document
from published_indexes import FOLDER, NODE, WORDS, ask, make_index, needs_node, random_documents, write_encoder

pytestmark = needs_node

QUERIES = [
    *WORDS,
    "the cats run",
    "What are the kettles",
    "how do dogs sleep at a well?",
    "WHO sleeps quickly",
    "WHO ARE YOU",
    "who are we",
    "the",
    "Kettles, kettles and KETTLE!",
    "naive cafe strasse",
    "NAÏVE CAFÉ STRASSE",
    "Häuser über dem Haus",
    "東京の猫",
    "кошек кошки",
    "zebra xylophone",
    "!?",
    "running " * 30,
]
ABSOLUTE = Fusion("absolute", {"dense": 0.45, "tokens": 0.55}, spans={"dense": (0.1, 0.8)})
EXACT = {"typos": False, "compounds": False}


def published(index: Path, out: Path, **given: Any) -> Path:
    with Index.open(index) as opened:
        publish_index(opened, out, progress=False, **given)
    return out


def check_rankings(
    index: Path, site: Path, *, queries: list[str], options: dict[str, Any], k: int = 10, snippets: bool = True
) -> list[Any]:
    """Compare ids, scores, branches and snippets. Documents whose scores differ by roundings may change places.

    By rrf, a change of places in one branch changes the score by the step between two ranks: at most 1/61 - 1/62.
    """
    roundings = 3e-4 if options.get("fusion") == "rrf" else 1e-4
    body = {name: value for name, value in options.items() if name in ("mode", "fusion", "weights", "as_you_type")}
    answers = ask(site, [("search", {"query": query, "k": k, **body}) for query in queries])
    with Index.open(index) as opened:
        searcher = Searcher(opened)
        for query, answer in zip(queries, answers, strict=True):
            assert "error" not in answer["answer"], (query, answer["answer"])
            hits = answer["answer"]["hits"]
            expected = searcher.hits(query, k + 5, SearchOptions(**EXACT, **options))
            by_id = {hit.doc_id: hit for hit in expected}
            assert len(hits) == min(k, len(expected)), query
            for hit, best in zip(hits, expected, strict=False):
                assert hit["score"] == pytest.approx(best.score, rel=1e-4, abs=roundings), query
                same = by_id[hit["doc_id"]]
                assert same.score == pytest.approx(best.score, rel=1e-4, abs=roundings), query
                assert (hit["title"], hit["metadata"]) == (same.title, dict(same.metadata))
                assert hit["branches"].keys() == same.branches.keys()
                for name, branch in same.branches.items():
                    assert hit["branches"][name]["score"] == pytest.approx(branch.score, rel=2e-5, abs=2e-5)
                    assert hit["branches"][name]["weight"] == pytest.approx(branch.weight)
                if snippets:
                    shown = hit["snippet"], [tuple(span) for span in hit["highlights"]]
                    assert shown == (same.snippet, list(same.highlights)), query
    return answers


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index of random documents, and its publication."""
    folder = tmp_path_factory.mktemp("pets")
    index = make_index(folder, random_documents(120))
    return index, published(index, folder / "site")


@pytest.mark.parametrize("mode", [None, "hybrid", "dense", "tokens", "dense+tokens"])
def test_rankings_are_those_of_the_searcher(pets: tuple[Path, Path], mode: str | None) -> None:
    answers = check_rankings(*pets, queries=QUERIES, options={} if mode is None else {"mode": mode})
    assert any(answer["answer"]["hits"] for answer in answers)


@pytest.mark.parametrize("fusion", ["absolute", "linear", "linear:min-max", "linear:z-score", "rrf", "dbsf"])
def test_every_fusion_is_that_of_the_searcher(pets: tuple[Path, Path], fusion: str) -> None:
    check_rankings(*pets, queries=QUERIES[-16:], options={"mode": "hybrid", "fusion": fusion})


def test_weights_can_be_given(pets: tuple[Path, Path]) -> None:
    weights = {"dense": 0.9, "tokens": 0.2}
    check_rankings(*pets, queries=QUERIES[-16:], options={"mode": "hybrid", "weights": weights})


def test_the_default_fusion_is_the_models(tmp_path: Path) -> None:
    index = make_index(tmp_path, random_documents(60), fusion=ABSOLUTE)
    check_rankings(index, published(index, tmp_path / "site"), queries=QUERIES, options={})


@pytest.mark.parametrize(
    "beginning", ["ke", "kett", "the kettl", "gener", "generousl", "sle", "cat ", "zzz", "Cafés", "4"]
)
def test_the_last_word_is_completed_while_it_is_typed(pets: tuple[Path, Path], beginning: str) -> None:
    check_rankings(*pets, queries=[beginning], options={"mode": "tokens", "as_you_type": True}, snippets=False)


@pytest.mark.parametrize(
    "analyzer",
    [
        "auto-english",
        "english",
        "words",
        "auto-german",
        "german",
        "chinese",
        "russian",
        "auto-turkish",
        "auto-english+german",
        "auto-german+english",
    ],
)
def test_words_are_those_of_the_index(tmp_path: Path, analyzer: str) -> None:
    index = make_index(tmp_path, random_documents(60), options=IndexOptions(analyzer=analyzer))
    # Other words than those of the documents are not stemmed in other languages than English: see docs/publish.md.
    knows_all = analyzer in ("auto-english", "english", "words", "chinese")
    site = published(index, tmp_path / "site")
    queries = QUERIES if knows_all else WORDS
    check_rankings(index, site, queries=queries, options={"mode": "tokens"}, snippets=knows_all)


@pytest.mark.parametrize("dtype", ["fp16", "fp32", "int8"])
@pytest.mark.parametrize("pairs", [True, False])
def test_tables_of_all_kinds(tmp_path: Path, dtype: str, pairs: bool) -> None:
    index = make_index(tmp_path, random_documents(40), dtype=dtype, pairs=pairs)
    check_rankings(index, published(index, tmp_path / "site"), queries=QUERIES, options={"mode": "dense"})


def test_an_index_of_fewer_columns_than_its_table(tmp_path: Path) -> None:
    index = make_index(tmp_path, random_documents(40), options=IndexOptions(dense_dim=8, dense_dtype="int8"))
    check_rankings(index, published(index, tmp_path / "site"), queries=QUERIES, options={})


def test_codes_and_refined_rows_find_the_same(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(vector_files, "WHOLE_BYTES", 0)
    index = make_index(tmp_path, random_documents(150), dim=32, fusion=ABSOLUTE)
    site = published(index, tmp_path / "site")
    assert json.loads((site / "search.json").read_text())["dense"]["code"] is not None
    for mode in ("dense", "hybrid"):
        answers = check_rankings(index, site, queries=QUERIES, options={"mode": mode})
        assert max(answer["bytes"] for answer in answers[1:]) > 0


def test_the_best_documents_are_known_while_scores_change() -> None:
    rng = np.random.default_rng(11)
    cases: list[dict[str, Any]] = []
    for _ in range(200):
        n, k, spare = int(rng.integers(0, 40)), int(rng.integers(1, 12)), int(rng.integers(0, 12))
        changes: list[list[tuple[int, int]]] = [[]]
        for _ in range(4 if n else 0):
            changed = rng.choice(n, int(rng.integers(0, min(n, 9) + 1)), replace=False)
            changes.append([(int(i), int(rng.integers(0, 6))) for i in changed])
        cases.append({"scores": rng.integers(0, 6, n).tolist(), "k": k, "spare": spare, "changes": changes})
    command = [NODE, str(FOLDER / "best_of_page.mjs"), str(Path(lightir.publish.__file__).parent / "page")]
    done = subprocess.run(command, input=json.dumps(cases), capture_output=True, text=True, check=True)
    for case, lists in zip(cases, json.loads(done.stdout), strict=True):
        scores = list(case["scores"])
        for change, given in zip(case["changes"], lists, strict=True):
            for document, score in change:
                scores[document] = score
            assert given == sorted(range(len(scores)), key=lambda i: (-scores[i], i))[: case["k"]]


def test_several_segments_with_deleted_documents(tmp_path: Path) -> None:
    documents = random_documents(90)
    index = make_index(tmp_path, documents[:60])
    with IndexWriter.open(index) as writer:
        rng = np.random.default_rng(9)
        added = rng.standard_normal((30, 16)).astype(np.float32)
        writer.add(documents[60:], dense=added / np.linalg.norm(added, axis=1, keepdims=True))
        writer.delete([document.doc_id for document in documents[10:20]])
    check_rankings(index, published(index, tmp_path / "site"), queries=QUERIES, options={})


def test_a_host_that_ignores_ranges_gives_the_same(pets: tuple[Path, Path]) -> None:
    requests = [("search", {"query": query}) for query in QUERIES]
    by_range, whole = ask(pets[1], requests), ask(pets[1], requests, host="whole")
    for one, other in zip(by_range, whole, strict=True):
        assert [hit["doc_id"] for hit in one["answer"]["hits"]] == [hit["doc_id"] for hit in other["answer"]["hits"]]


def test_what_was_read_is_not_read_again(pets: tuple[Path, Path]) -> None:
    first, again = ask(pets[1], [("search", {"query": "the cats run"})] * 2)
    assert first["requests"] > 5
    assert (again["requests"], again["bytes"]) == (0, 0)


def test_documents_without_words_and_a_single_one(tmp_path: Path) -> None:
    for n in (1, 3):
        with IndexWriter.create(tmp_path / f"{n}") as writer:
            writer.add([Document(f"d{i}", "") for i in range(n)])
        site = published(tmp_path / f"{n}", tmp_path / f"site{n}")
        answers = ask(site, [("search", {"query": "cat"}), ("search", {"query": ""}), ("document", "d0")])
        assert [len(answer["answer"]["hits"]) for answer in answers[:2]] == [0, n]
        assert answers[2]["answer"] == {"doc_id": "d0", "title": "", "text": "", "metadata": {}}


def test_vectors_alone_are_searched_and_texts_marked(tmp_path: Path) -> None:
    index = make_index(tmp_path, random_documents(40), options=IndexOptions(analyzer=None))
    check_rankings(index, published(index, tmp_path / "site"), queries=QUERIES, options={}, snippets=False)


def test_random_queries_find_the_same(pets: tuple[Path, Path]) -> None:
    rng = np.random.default_rng(4)
    queries = [" ".join(rng.choice([*WORDS, "zebra", "?"], int(rng.integers(1, 9)))) for _ in range(60)]
    check_rankings(*pets, queries=queries, options={"mode": "hybrid"})


def test_a_query_of_white_space_lists_documents(pets: tuple[Path, Path]) -> None:
    index, site = pets
    (answer,) = ask(site, [("search", {"query": " ", "k": 7})])
    with Index.open(index) as opened:
        assert [hit["doc_id"] for hit in answer["answer"]["hits"]] == opened.ids(limit=7)


def test_scores_are_explained(pets: tuple[Path, Path]) -> None:
    index, site = pets
    query = "what do the cats and kettles do"
    with Index.open(index) as opened:
        searcher = Searcher(opened)
        options = SearchOptions(**EXACT)
        ids = [hit.doc_id for hit in searcher.hits(query, 5, options)]
        body = {"query": query, "k": 10}
        _, *answers = ask(site, [("search", body), *(("explain", {**body, "doc_id": doc_id}) for doc_id in ids)])
        for doc_id, answer in zip(ids, answers, strict=True):
            shown, expected = answer["answer"], searcher.explain(query, doc_id, options)
            assert shown["score"] == pytest.approx(expected.score, abs=2e-5)
            assert (shown["rank"], shown["fusion"]) == (expected.rank, expected.fusion)
            for name, terms in expected.terms.items():
                parts = {term["term"]: term["score"] for term in shown["terms"][name]}
                assert parts == pytest.approx({term.term: term.score for term in terms}, abs=2e-5)


def test_documents_are_shown_whole(tmp_path: Path) -> None:
    long = " ".join(f"word{i} 🐈" for i in range(3000))
    index = make_index(tmp_path, [Document("long", long, "Long", {"x": [1, None]}), Document("s", "short")])
    site = published(index, tmp_path / "site")
    answer, document, unknown = ask(
        site, [("search", {"query": "word7 word8"}), ("document", "long"), ("document", "other")]
    )
    assert answer["answer"]["hits"][0]["doc_id"] == "long"
    assert document["answer"] == {"doc_id": "long", "title": "Long", "text": long, "metadata": {"x": [1, None]}}
    assert unknown["answer"] == {"error": "there is no document other", "status": 404}


def test_refusals_say_what_the_publication_has(pets: tuple[Path, Path]) -> None:
    answers = ask(
        pets[1],
        [
            ("search", {"query": "cat", "mode": "sparse"}),
            ("search", {"query": "cat", "fusion": "nonsense"}),
            ("search", {"query": "cat", "filter": {"price": 1}}),
        ],
    )
    errors = [answer["answer"]["error"] for answer in answers]
    assert errors[0] == "the published index has no sparse branch; it has dense, tokens"
    assert errors[1].startswith("the published index has no fusion nonsense; it has absolute, linear")
    assert errors[2] == "the published index has no values of the field price; the fields with values: none"


def test_another_format_and_missing_parts_are_named(pets: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(pets[1], site)
    manifest = json.loads((site / "search.json").read_text())
    for part in (site / manifest["folder"]).glob("postings-*"):
        part.unlink()
    (answer,) = ask(site, [("search", {"query": "cats"})])
    message = "postings-0000.bin cannot be read: The index was published again: reload the page."
    assert message in answer["answer"]["error"]
    (site / "search.json").write_text(json.dumps({**manifest, "format_version": 99}))
    (answer,) = ask(site, [("info", None)])
    assert answer["answer"]["error"].endswith("has the format 99; this script reads 2. Reload the page.")


def test_cut_parts_are_refused(pets: tuple[Path, Path], tmp_path: Path) -> None:
    site = tmp_path / "site"
    shutil.copytree(pets[1], site)
    (postings,) = site.glob("data-*/postings-0000.bin")
    postings.write_bytes(postings.read_bytes()[:-1])
    (answer,) = ask(site, [("search", {"query": " ".join(WORDS)})], host="whole")
    assert "postings-0000.bin has" in answer["answer"]["error"]


class HashEncoder:
    """An encoder whose vectors depend on the texts."""

    def __init__(self, contract: Contract) -> None:
        self.contract = contract

    def encode(self, documents: Sequence[Document]) -> Shard:
        seeds = [zlib.crc32(document.text.encode()) for document in documents]
        rows = np.array([np.random.default_rng(seed).standard_normal(16) for seed in seeds])
        return Shard(list(documents), (rows / np.linalg.norm(rows, axis=1, keepdims=True)).astype(np.float16), None)


@pytest.mark.parametrize("kind", ["words", "vectors", "codes"])
def test_the_best_passage_of_each_document_is_shown(tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    options = IndexOptions(passages=PassageOptions(tokens=16), boosts={"title": 5})
    contract = write_encoder(tmp_path / "q", dim=16, fusion=ABSOLUTE) if kind != "words" else None
    encoder = None if contract is None else tmp_path / "q"
    with IndexWriter.create(tmp_path / "index", options=options, contract=contract, query_encoder=encoder) as writer:
        writer.add(random_documents(50))
    if contract is not None:
        work(tmp_path / "index", HashEncoder(contract), WorkOptions(once=True), progress=False)
    if kind == "codes":
        monkeypatch.setattr(vector_files, "WHOLE_BYTES", 0)
    site = published(tmp_path / "index", tmp_path / "site")
    check_rankings(tmp_path / "index", site, queries=QUERIES, options={})
    k = 10 if kind == "codes" else 50  # by codes, passages of documents far below may be missed
    (answer,) = ask(site, [("search", {"query": "cats kettles dogs", "k": k})])
    hits = answer["answer"]["hits"]
    assert len({hit["doc_id"] for hit in hits}) == len(hits)
    with_place = [hit for hit in hits if "passage" in hit]
    assert with_place
    requests = [("search", {"query": "cats kettles dogs", "k": k}), *(("document", hit["doc_id"]) for hit in hits)]
    _, *documents = ask(site, requests)
    with Index.open(tmp_path / "index") as index:
        expected = {hit.doc_id: hit for hit in Searcher(index).hits("cats kettles dogs", 50, SearchOptions(**EXACT))}
        for hit in with_place:
            passage = expected[hit["doc_id"]].passage
            assert passage is not None
            assert hit["passage"] == dataclasses.asdict(passage)
        stored = index.get([hit["doc_id"] for hit in hits])
    for document in documents:
        assert Document(**document["answer"]) == stored[document["answer"]["doc_id"]]
