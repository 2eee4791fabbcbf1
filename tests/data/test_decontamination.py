"""Decontamination equals comparing with every test query, and says what it did."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir.data import (
    LIGHTRETRIEVER_RULES,
    Dataset,
    DuplicateRules,
    TrainingSet,
    decontaminate,
    decontaminate_sets,
    decontamination,
    near_duplicates,
    open_triples,
)
from lightir.data.decontamination import RelevantDocuments, Sample
from lightir.data.near_duplicates import RULES, NearDuplicates, character_runs, content_tokens, simhash
from lightir.errors import InvalidInput
from lightir.types import Document, Query

WORDS = ["heart", "lung", "cancer", "drug", "the", "of", "what", "癌", "症", "癌症药", "vitamin"]
TEXTS = st.lists(st.sampled_from(WORDS), max_size=7).map(" ".join)


def slow_simhash(features: list[str], *, md5: bool) -> int:
    """Charikar's definition: bit i is set if more than half of the features' 64-bit hashes have it."""
    hashes = [
        int.from_bytes(hashlib.md5(f.encode()).digest(), "big") % 2**64
        if md5
        else int.from_bytes(hashlib.blake2b(f.encode(), digest_size=8).digest(), "big")
        for f in features
    ]
    return sum(1 << bit for bit in range(64) if sum(value >> bit & 1 for value in hashes) > len(hashes) / 2)


def slow_runs(text: str) -> list[str]:
    """Every run of four letters or digits that follow each other when all else is left out; a short text is one run."""
    letters = "".join(character for character in text.lower() if character.isalnum())
    return [letters[i : i + 4] for i in range(len(letters)) if i + 4 <= len(letters)] or [letters] * bool(letters)


@given(TEXTS, st.booleans())
def test_simhash_equals_its_definition(text: str, md5: bool) -> None:
    assert simhash(content_tokens(text), md5=md5) == slow_simhash(content_tokens(text), md5=md5)
    assert character_runs(text) == slow_runs(text)


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("where did abraham lincoln died", 0x861CE860C21DC350),
        ("Where did Abraham Lincoln die?", 0x8614E860C21DC340),
        ("癌症药 heart 字", 0x0C84979C30242056),
        ("a", 0x31C399E269772661),
        ("What is_it?", 0x4A50EBB1E71AC9C4),
    ],
)
def test_simhash_of_characters_is_that_of_the_package_of_lightretrievers_authors(text: str, value: int) -> None:
    """Values of Simhash(text).value of the package simhash 2.1.2, whose "_" the authors remove first."""
    assert simhash(character_runs(text), md5=True) == value


@given(
    st.lists(TEXTS, max_size=12),
    TEXTS,
    st.sampled_from([0.0, 0.1, 1 / 3, 0.5, 2 / 3, 1.0]),
    st.sampled_from([-1, 0, 3, 20, 63]),
    st.sampled_from(["words", "characters"]),
)
def test_the_index_finds_what_comparing_with_each_finds(
    texts: list[str], text: str, min_jaccard: float, max_hamming: int, features: Literal["words", "characters"]
) -> None:
    rules = DuplicateRules(min_jaccard, max_hamming, features)
    index = NearDuplicates([Query(str(i), t) for i, t in enumerate(texts)], rules)
    hashed = slow_runs if features == "characters" else content_tokens
    md5 = features == "characters"
    expected = set()
    for position, other in enumerate(texts):
        if text.split() == other.split():
            expected.add((position, "exact"))
        if hashed(text) and hashed(other):
            difference = slow_simhash(hashed(text), md5=md5) ^ slow_simhash(hashed(other), md5=md5)
            if difference.bit_count() <= max_hamming:
                expected.add((position, "simhash"))
        both, either = (
            operation(set(content_tokens(text)), set(content_tokens(other))) for operation in (set.__and__, set.__or__)
        )
        if min_jaccard > 0 and both and len(both) / len(either) >= min_jaccard:
            expected.add((position, "jaccard"))
    matches = list(index.matches(text))
    assert {(match.position, match.rule) for match in matches} == expected
    assert matches == sorted(matches, key=lambda match: (RULES.index(match.rule), match.position))
    assert all(match.value == 0 for match in matches if match.rule == "exact")


def test_content_tokens_leave_out_function_words_and_cut_han_into_bigrams() -> None:
    assert content_tokens("What is the Heart's X-ray?") == ["heart", "x", "ray"]
    assert content_tokens("癌症药 heart 字") == ["癌症", "症药", "heart", "字"]
    assert content_tokens("what is it?") == []


def queries(*texts: str) -> list[Query]:
    return [Query(f"t{i}", text) for i, text in enumerate(texts)]


def test_near_duplicates_go_and_the_report_says_why() -> None:
    train = {
        "a": queries(
            "Where DID Abraham Lincoln die",  # exact but for case and punctuation
            "abraham lincoln died where",  # 2 of 4 content words
            "who was abraham",
            "what is it",
        ),
        "b": queries("unrelated entirely"),
    }
    test = {"x": queries("where did abraham lincoln die?", "what is it?!"), "y": queries("boiling point")}
    kept, report = decontaminate(train, test)
    assert [query.query_id for query in kept["a"]] == ["t2"]
    assert kept["b"] == train["b"]
    set_report = report.sets["a"]
    assert (set_report.queries, set_report.dropped) == (4, 3)
    assert set_report.by_rule == {"exact": 2, "simhash": 1, "jaccard": 2, "shared_document": 0}
    assert set_report.only_by_rule == {"exact": 1, "simhash": 0, "jaccard": 1, "shared_document": 0}
    assert set_report.by_test_set == {"x": 3, "y": 0}
    assert set_report.test_queries_touched == {"x": 2, "y": 0}
    assert set_report.samples["jaccard"][1].test_query == "where did abraham lincoln die?"
    assert set_report.samples["jaccard"][1].value == pytest.approx(0.5)
    assert set_report.samples["exact"][0] == Sample("t0", train["a"][0].text, "x", "t0", test["x"][0].text, 0.0)
    assert report.rules == DuplicateRules(0.5, 3, "words", 0.8)
    assert len({line.count("|") for line in report.to_markdown().splitlines()}) == 1
    assert json.loads(json.dumps(report.to_json()))["sets"]["b"]["dropped"] == 0
    assert "| a | 4 | 2 | 1 | 2 | 0 | 3 | 1 |" in report.to_markdown()
    kept, report = decontaminate(train, test, rules=DuplicateRules(min_jaccard=1.0, max_hamming=63))
    assert kept == {"a": [], "b": []}
    assert report.to_json()["rules"]["max_hamming"] == 63


def test_lightretrievers_rules_drop_the_duplicates_that_its_paper_lists() -> None:
    """Table 7 of the paper, and a query that only the strict rules drop."""
    train = queries(
        "Is there a framework for auditing social media?",
        "who is sachin tendulkar?",
        "How does unemployment insurance work?",
        "where did abraham lincoln died",
        "where was abraham lincoln born",
    )
    test = queries(
        "Is there a framework for auditing social media?",
        "Who is Sachin Tendulkar?",
        "How does unemployment insurance work?",
        "Where did Abraham Lincoln die?",
    )
    kept, report = decontaminate({"a": train}, {"x": test}, rules=LIGHTRETRIEVER_RULES)
    assert [query.query_id for query in kept["a"]] == ["t4"]
    assert report.sets["a"].by_rule == {"exact": 3, "simhash": 4, "jaccard": 0, "shared_document": 0}
    kept, _ = decontaminate({"a": train}, {"x": test})
    assert not kept["a"]


def test_a_shared_relevant_document_counts_within_one_set_when_asked() -> None:
    train = {"s": queries("alpha", "beta"), "other": queries("alpha")}
    test = {"s": queries("gamma")}
    train_qrels = {"s": {"t0": {"d1": 1}, "t1": {"d1": 0, "d2": 1}}, "other": {"t0": {"d1": 1}}}
    test_qrels = {"s": {"t0": {"d1": 1, "d2": 0}}}
    kept, report = decontaminate(
        train, test, train_relevant=RelevantDocuments(train_qrels), test_relevant=RelevantDocuments(test_qrels)
    )
    assert [query.query_id for query in kept["s"]] == ["t1"]
    assert len(kept["other"]) == 1
    assert report.sets["s"].by_rule["shared_document"] == 1


def test_a_relevant_documents_text_counts_in_any_set_and_under_any_id() -> None:
    words = "rivers carry sand and silt from mountains down towards flat deltas where it settles over centuries"
    texts = {
        "same": words.upper(),
        "close": f"{words} slowly",
        "far": "bread rises because yeast makes gas in warm dough",
    }
    train = {"s": queries("alpha", "beta", "gamma")}
    train_qrels = {"s": {f"t{i}": {doc_id: 1} for i, doc_id in enumerate(texts)}}
    documents = {"s": {doc_id: Document(doc_id, text) for doc_id, text in texts.items()}}
    of_train = RelevantDocuments(train_qrels, documents)
    test_qrels = {"h": {"t0": {"x": 1, "y": 0}}}
    of_test = RelevantDocuments(test_qrels, {"h": {"x": Document("x", words), "y": Document("y", texts["far"])}})
    kept, report = decontaminate(train, {"h": queries("delta")}, train_relevant=of_train, test_relevant=of_test)
    assert [query.query_id for query in kept["s"]] == ["t2"]  # y is judged, but not relevant
    assert report.sets["s"].by_rule["shared_document"] == 2
    of_test = RelevantDocuments(test_qrels)
    kept, _ = decontaminate(train, {"h": queries("delta")}, train_relevant=of_train, test_relevant=of_test)
    assert len(kept["s"]) == 3


def test_training_sets_lose_shared_documents_when_asked(beir: Path, tmp_path: Path) -> None:
    rows = [f"unrelated {i} words\ttext of {i}\tanother passage" for i in (23, 24, 25, 28)]
    (tmp_path / "t.tsv").write_text("\n".join(rows) + "\n")
    held = [Dataset.open(shutil.copytree(beir, tmp_path / "held"))]
    (tmp_path / "held" / "qrels" / "train.tsv").unlink()
    corpus = [json.dumps({"_id": f"d{i}", "text": f"text of {i}"}) + "\n" for i in range(40)]
    (tmp_path / "held" / "corpus.jsonl").write_text("".join(corpus))
    training = open_triples(tmp_path / "t.tsv", instructions=("",))
    (clean,), _ = decontaminate_sets([training], held)
    assert len(clean) == 4
    (clean,), report = decontaminate_sets([training], held, shared_documents=True)
    assert [example.query for example in clean.examples] == ["unrelated 23 words", "unrelated 28 words"]
    assert report.sets["t"].test_queries_touched == {"held": 2}


def test_nothing_against_nothing() -> None:
    kept, report = decontaminate({"a": []}, {})
    assert kept == {"a": []}
    assert report.sets["a"].dropped == 0


@pytest.mark.parametrize(
    "arguments", [{"min_jaccard": -0.1}, {"min_jaccard": 1.1}, {"max_hamming": -2}, {"max_hamming": 64}]
)
def test_thresholds_without_sense_are_refused(arguments: dict[str, Any]) -> None:
    ((name, value),) = arguments.items()
    with pytest.raises(InvalidInput, match=f"{name} is {value}; expected"):
        DuplicateRules(**arguments)


def test_training_sets_lose_what_is_close_to_any_split_but_train(beir: Path) -> None:
    tiny = TrainingSet.open(beir, instructions=("",))
    clean, report = decontaminate_sets([tiny], [Dataset.open(beir)], rules=DuplicateRules(min_jaccard=1.0))
    assert len(clean[0]) == 24  # their numbers differ
    assert report.test_sets == {"tiny": 4}
    clean, _ = decontaminate_sets([tiny], [Dataset.open(beir)], rules=DuplicateRules(min_jaccard=0.4))
    assert len(clean[0]) == 0  # "question number" is common to all


class CountingList(list):
    """A list that counts how often an item is read."""

    reads = 0

    def __getitem__(self, position):
        CountingList.reads += 1
        return super().__getitem__(position)


class CountingDuplicates(NearDuplicates):
    """Counts the texts that a text is compared with."""

    def __init__(self, *arguments, **options) -> None:
        super().__init__(*arguments, **options)
        self._hashes, self._tokens = CountingList(self._hashes), CountingList(self._tokens)


def test_it_is_not_quadratic(monkeypatch: pytest.MonkeyPatch) -> None:
    """Comparing all pairs would be 1,600 comparisons per query and part of its rule; "thing" is in every text."""
    n = 1600
    monkeypatch.setattr(decontamination, "NearDuplicates", CountingDuplicates)
    train = [Query(str(i), f"word{i} word{i + 1} word{i + 2} thing") for i in range(n)]
    test = [Query(str(i), f"other{i} word{3 * i} other{i + 1} thing") for i in range(n)]
    CountingList.reads = 0
    decontaminate({"a": train}, {"b": test})
    assert 0 < CountingList.reads < 10 * n


@pytest.mark.parametrize("max_hamming", [0, 1, 3, 8])
def test_every_hash_within_the_distance_is_found(monkeypatch: pytest.MonkeyPatch, max_hamming: int) -> None:
    """Whichever bits differ, also one in each of as many equal parts of the hash as there are differing bits."""
    rng = np.random.default_rng(5)
    flips = [rng.choice(64, max_hamming, replace=False).tolist() for _ in range(200)]
    flips.append([64 * part // max(max_hamming, 1) for part in range(max_hamming)])
    base = 0x9E3779B97F4A7C15
    hashes = {f"word{i}": base ^ sum(1 << bit for bit in bits) for i, bits in enumerate(flips)}
    hashes["far"] = base ^ ((1 << (max_hamming + 1)) - 1)
    monkeypatch.setattr(near_duplicates, "simhash", lambda features, md5: hashes.get(features[0], base))
    rules = DuplicateRules(min_jaccard=0.0, max_hamming=max_hamming)  # no words
    index = NearDuplicates([Query(text, text) for text in hashes], rules)
    matches = {match.position: match.value for match in index.matches("something else")}
    assert matches == dict.fromkeys(range(len(flips)), float(max_hamming))


@pytest.mark.data
def test_scifact_is_as_dirty_as_it_is_known_to_be(collections: Path) -> None:
    """The pilot's figures: 46 % of the test claims have a near-duplicate, 65 % share a document with a train claim."""
    train, test = TrainingSet.open(collections / "scifact"), Dataset.open(collections / "scifact")
    _, report = decontaminate_sets([train], [test])
    assert report.sets["scifact"].test_queries_touched["scifact"] / 300 == pytest.approx(0.46, abs=0.03)
    _, report = decontaminate_sets([train], [test], rules=DuplicateRules(min_jaccard=1.0), shared_documents=True)
    assert report.sets["scifact"].test_queries_touched["scifact"] / 300 == pytest.approx(0.65, abs=0.01)


@pytest.mark.data
def test_lightretrievers_rules_drop_as_many_queries_as_its_paper_reports(collections: Path) -> None:
    """Table 6: 5 of NFCorpus' 2,590 training queries and 3 of SciFact's 809 are close to a test query."""
    for name, total, duplicates in (("nfcorpus", 2590, 5), ("scifact", 809, 3)):
        train, test = TrainingSet.open(collections / name), Dataset.open(collections / name)
        _, report = decontaminate(
            {"s": list(train.queries())}, {"t": list(test.queries("test"))}, rules=LIGHTRETRIEVER_RULES
        )
        assert (report.sets["s"].queries, report.sets["s"].dropped) == (total, duplicates)
