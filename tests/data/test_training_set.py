"""Training sets and the mixture: what a batch holds, and that the step alone decides it."""

from __future__ import annotations

import dataclasses
from collections import Counter
from pathlib import Path

import numpy as np
import pytest

from lightir.data import Mixture, TrainingSet, instructions, read_negatives, title_pairs, write_negatives
from lightir.data.examples import TrainingExample
from lightir.data.negatives import collect_candidates
from lightir.data.self_supervision import span_pairs
from lightir.errors import InvalidInput, NotFound
from lightir.types import Document


@pytest.fixture
def tiny(beir: Path) -> TrainingSet:
    negatives = {f"q{i}": [f"d{(i + 10 + j) % 40}" for j in range(6)] for i in range(12)}
    write_negatives(beir / "negatives.jsonl", negatives)
    return TrainingSet.open(beir, negatives=beir / "negatives.jsonl", instructions=("find it", "look it up"))


def another(n: int) -> TrainingSet:
    documents = [Document(f"x{i}", f"some words of document {i}", f"title {i}") for i in range(n)]
    return TrainingSet.from_pairs("other", title_pairs(documents), instructions=("",))


def test_a_set_holds_judged_positives_and_mined_negatives(tiny: TrainingSet) -> None:
    examples = {example.query_id: example for example in tiny.examples}
    assert len(tiny) == 24
    assert examples["q2"].positive_ids == ("d2", "d3", "d4")  # the fourth has grade 0
    assert examples["q2"].negative_ids == ("d12", "d13", "d14", "d15", "d16", "d17")
    assert examples["q20"].negative_ids == ()


def test_a_mined_positive_is_no_negative(beir: Path) -> None:
    write_negatives(beir / "n.jsonl", {"q2": ["d3", "d9"], "q27": ["d1"]})
    tiny = TrainingSet.open(beir, negatives=beir / "n.jsonl", instructions=("",))
    assert {example.query_id: example.negative_ids for example in tiny.examples}["q2"] == ("d9",)


def test_negatives_come_back_as_written(tmp_path: Path) -> None:
    write_negatives(tmp_path / "n.jsonl", {"q": ["a b", "ü"], "r": []})
    assert read_negatives(tmp_path / "n.jsonl") == {"q": ("a b", "ü"), "r": ()}
    with pytest.raises(NotFound, match="lightir mine"):
        read_negatives(tmp_path / "none.jsonl")


def test_ids_that_the_corpus_lacks_are_refused(beir: Path) -> None:
    write_negatives(beir / "n.jsonl", {"q2": ["nowhere"]})
    with pytest.raises(InvalidInput, match="'q2' names document 'nowhere'"):
        TrainingSet.open(beir, negatives=beir / "n.jsonl", instructions=("",))


def test_a_folder_without_listed_instruction_needs_one(beir: Path) -> None:
    with pytest.raises(NotFound, match="tiny"):
        TrainingSet.open(beir)


def test_a_training_set_takes_the_listed_instructions_of_training(beir: Path) -> None:
    folder = beir.rename(beir.parent / "scifact")
    assert TrainingSet.open(folder).instructions == instructions("scifact", training=True)
    assert instructions("scifact", training=True) != instructions("scifact")


def test_negatives_of_one_query_stand_in_one_line(tmp_path: Path) -> None:
    (tmp_path / "n.jsonl").write_text('{"query_id": "q", "negatives": ["a"]}\n' * 2)
    with pytest.raises(InvalidInput, match="line 2: duplicate query id 'q'"):
        read_negatives(tmp_path / "n.jsonl")


def test_a_teacher_scores_relevant_documents_best_grade_first_and_then_negatives() -> None:
    qrels = {"q": {"b": 1, "a": 1, "none": 0, "best": 2, "bad": -1}, "alone": {"x": 0}}
    run = collect_candidates(qrels, {"q": ["n2", "a", "n1"], "other": ["n"]})
    assert {query_id: list(ranking.doc_ids) for query_id, ranking in run.items()} == {
        "q": ["best", "a", "b", "n2", "n1"],
        "alone": [],
    }
    assert run["q"].scores.tolist() == [5, 4, 3, 2, 1]


@pytest.mark.parametrize(
    ("examples", "message"),
    [
        ([], "has no example"),
        ([TrainingExample("q", "x", ("a",), (), "s")] * 2, "duplicate query id 'q'"),
        ([TrainingExample("q", "x", (), (), "s")], "'q' has no positive"),
        ([TrainingExample("q", "x", ("a",), ("b",), "s")], "'q' names document 'b'"),
    ],
)
def test_examples_that_are_no_training_set_are_refused(examples: list[TrainingExample], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        TrainingSet.checked("s", examples, {"a": Document("a", "x")}, ("",))


def test_whatever_is_trained_on_changes_the_fingerprint() -> None:
    documents = {"a": Document("a", "x", "t"), "b": Document("b", "y")}
    example = TrainingExample("q", "x", ("a",), ("b",), "s")

    def fingerprint(documents: dict[str, Document] = documents, **changes: object) -> str:
        one = TrainingSet.checked("s", [dataclasses.replace(example, **changes)], documents, ("",))  # type: ignore[arg-type]
        return one.fingerprint()

    fingerprints = [
        fingerprint(),
        fingerprint(query_id="p"),
        fingerprint(query="z"),
        fingerprint(positive_ids=("b",)),
        fingerprint(negative_ids=()),
        fingerprint(scores=(1.0, 0.5)),
        fingerprint({**documents, "a": Document("a", "z", "t")}),
        fingerprint({**documents, "a": Document("a", "x", "u")}),
        fingerprint({**documents, "c": Document("c", "z")}),
    ]
    assert len(set(fingerprints)) == len(fingerprints)
    assert {len(digits) for digits in fingerprints} == {16}
    assert fingerprint(dict(reversed(documents.items()))) == fingerprints[0]
    more = TrainingExample("r", "y", ("a", "b"), (), "s")
    assert TrainingSet.checked("s", [example, more], documents, ("",)).most_positives == 2


def test_json_lines_with_texts_or_documents(tmp_path: Path) -> None:
    path = tmp_path / "set.jsonl"
    path.write_text(
        '{"query": "a", "positives": ["same"], "negatives": [{"_id": "n", "text": "no", "title": "t"}]}\n'
        '{"query": "b", "positives": ["same"], "query_id": "mine"}\n'
    )
    training = TrainingSet.open_jsonl(path, instructions=("",))
    assert training.name == "set"
    assert [example.query_id for example in training.examples] == ["1", "mine"]
    assert training.examples[0].positive_ids == training.examples[1].positive_ids
    assert training.documents["n"] == Document("n", "no", "t")
    assert TrainingSet.open_jsonl(path, name="mine", instructions=("",)).name == "mine"
    with pytest.raises(InvalidInput, match="no instruction"):
        TrainingSet.open_jsonl(path, instructions=())


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ('{"query": "a", "positives": "x"}', "line 1: positives is str"),
        ('{"query": "a", "positive": ["x"]}', "line 1: unknown field 'positive'"),
        ('{"positives": ["x"]}', "line 1: query is NoneType"),
        ('{"query": "a", "positives": []}', "has no positive"),
        ('{"query": "a", "positives": [{"_id": "d", "text": "x"}, {"_id": "d", "text": "y"}]}', "another text"),
    ],
)
def test_a_bad_training_line_is_named(tmp_path: Path, line: str, message: str) -> None:
    (tmp_path / "set.jsonl").write_text(line + "\n")
    with pytest.raises(InvalidInput, match=message):
        TrainingSet.open_jsonl(tmp_path / "set.jsonl", instructions=("",))


def test_the_step_alone_decides_the_batch(tiny: TrainingSet) -> None:
    def mixture(seed: int = 5) -> Mixture:
        return Mixture([tiny, another(20)], batch_size=4, n_negatives=3, seed=seed)

    forward = mixture()
    in_order = [forward.batch(step) for step in range(30)]
    for step in (29, 3, 17, 0):  # a fresh one, in any order, as after a restart
        again = mixture().batch(step)
        assert (again.query_ids, again.instructions) == (in_order[step].query_ids, in_order[step].instructions)
        assert again.documents == in_order[step].documents
        assert np.array_equal(again.false_negatives, in_order[step].false_negatives)
    assert [mixture(6).batch(step).query_ids for step in range(30)] != [batch.query_ids for batch in in_order]


def test_a_batch_is_of_one_set_with_positives_first_and_negatives_query_by_query(tiny: TrainingSet) -> None:
    mixture = Mixture([tiny, another(20)], batch_size=4, n_negatives=3, seed=0)
    examples = {example.query_id: example for example in tiny.examples}
    for step in range(2 * mixture.batches_per_epoch):
        batch = mixture.batch(step)
        assert len(batch.documents) == 4 * (1 + 3)
        assert len(set(batch.query_ids)) == 4
        if batch.dataset != "tiny":
            continue
        for row, query_id in enumerate(batch.query_ids):
            own = [d.doc_id for d in batch.documents[4 + 3 * row : 4 + 3 * (row + 1)]]
            example = examples[query_id]
            assert batch.documents[row].doc_id in example.positive_ids
            assert len(set(own)) == 3
            assert not set(own) & set(example.positive_ids)
            if example.negative_ids:
                assert set(own) <= set(example.negative_ids)


def test_one_pass_takes_every_example_once_and_positives_change(tiny: TrainingSet) -> None:
    mixture = Mixture([tiny], batch_size=4, n_negatives=0, seed=0)
    assert mixture.batches_per_epoch == 6
    epochs = [[mixture.batch(epoch * 6 + step) for step in range(6)] for epoch in range(4)]
    for batches in epochs:
        assert Counter(q for batch in batches for q in batch.query_ids) == Counter(e.query_id for e in tiny.examples)
    assert epochs[0][0].query_ids != epochs[1][0].query_ids
    drawn = {
        d.doc_id
        for batches in epochs
        for b in batches
        for q, d in zip(b.query_ids, b.documents, strict=False)
        if q == "q2"
    }
    assert len(drawn) > 1
    assert {batch.instructions[0] for batches in epochs for batch in batches} == set(tiny.instructions)


def test_ratios_set_the_shares_of_an_epoch(tiny: TrainingSet) -> None:
    mixture = Mixture([tiny, another(40)], batch_size=4, n_negatives=0, seed=0, ratios={"other": 0.5, "tiny": 2})
    assert mixture.batches_per_set == {"tiny": 12, "other": 5}
    names = Counter(mixture.batch(step).dataset for step in range(17))
    assert names == {"tiny": 12, "other": 5}
    assert mixture.position(18) == (1, 1)
    # Half of the set an epoch: the second epoch goes on with the other half.
    seen = [q for step in range(34) for b in [mixture.batch(step)] if b.dataset == "other" for q in b.query_ids]
    assert len(seen) == len(set(seen)) == 40


def test_mixed_batches_deal_out_each_sets_share_of_an_epoch(tiny: TrainingSet) -> None:
    def mixture() -> Mixture:
        ratios = {"other": 0.5, "tiny": 2}
        return Mixture([tiny, another(40)], batch_size=4, n_negatives=2, seed=0, ratios=ratios, mixed=True)

    dealt = mixture()
    assert dealt.batches_per_epoch == 12 + 5
    batches = [dealt.batch(step) for step in range(2 * 17)]
    names = [[_set_of(query_id) for query_id in batch.query_ids] for batch in batches]
    for epoch in (names[:17], names[17:]):
        assert Counter(name for batch in epoch for name in batch) == {"tiny": 48, "other": 20}
    assert {"tiny+other", "tiny"} <= {batch.dataset for batch in batches}
    asked = Counter(query_id for batch in batches for query_id in batch.query_ids)
    assert {count for query_id, count in asked.items() if _set_of(query_id) == "other"} == {1}  # 20 and 20 of 40
    assert {count for query_id, count in asked.items() if _set_of(query_id) == "tiny"} == {4}  # four passes over 24
    for step in (33, 2, 17):
        again = mixture().batch(step)
        assert (again.query_ids, again.instructions) == (batches[step].query_ids, batches[step].instructions)
        assert again.documents == batches[step].documents


def _set_of(query_id: str) -> str:
    return "other" if query_id.startswith("title:") else "tiny"


def test_a_mixed_batchs_queries_keep_to_their_own_sets(tiny: TrainingSet) -> None:
    documents = [Document(f"d{i}", f"another text of {i}", f"title {i}") for i in range(40)]  # the ids of tiny's
    other = TrainingSet.from_pairs("other", title_pairs(documents), instructions=("",))
    mixture = Mixture([tiny, other], batch_size=6, n_negatives=2, seed=1, mixed=True)
    positives = {example.query_id: set(example.positive_ids) for example in (*tiny.examples, *other.examples)}
    for step in range(mixture.batches_per_epoch):
        batch = mixture.batch(step)
        owners = [_set_of(query_id) for query_id in batch.query_ids]
        of_tiny = {i for q, i in zip(batch.query_ids, batch.instructions, strict=True) if _set_of(q) == "tiny"}
        assert len(of_tiny) <= 1
        assert of_tiny <= {"find it", "look it up"}
        assert all(i == "" for o, i in zip(owners, batch.instructions, strict=True) if o == "other")
        columns = [*owners, *(owner for owner in owners for _ in range(2))]
        for column, (owner, document) in enumerate(zip(columns, batch.documents, strict=True)):
            assert document.text.startswith("another") == (owner == "other")
            for row, query_id in enumerate(batch.query_ids):
                answers = owner == owners[row] and document.doc_id in positives[query_id]
                assert batch.false_negatives[row, column] == (answers and column != row)


def test_a_mixed_batch_of_one_set_may_meet_the_next_pass(tiny: TrainingSet) -> None:
    mixture = Mixture([tiny], batch_size=7, n_negatives=0, seed=0, mixed=True)
    asked = [query_id for step in range(24) for query_id in mixture.batch(step).query_ids]
    for a_pass in range(7):
        assert len(set(asked[24 * a_pass : 24 * (a_pass + 1)])) == 24


def test_false_negatives_are_the_other_documents_that_answer_too(tiny: TrainingSet) -> None:
    mixture = Mixture([tiny], batch_size=24, n_negatives=2, seed=3)
    examples = {example.query_id: example for example in tiny.examples}
    batch = mixture.batch(0)
    for row, query_id in enumerate(batch.query_ids):
        for column, document in enumerate(batch.documents):
            same_text = document.text == batch.documents[row].text
            answers = document.doc_id in examples[query_id].positive_ids or same_text
            assert batch.false_negatives[row, column] == (answers and column != row)
    assert batch.false_negatives.any()


def test_equal_texts_under_other_ids_are_false_negatives() -> None:
    documents = [Document("a", "same"), Document("b", "same"), Document("c", "other")]
    pairs = [(document, f"q{document.doc_id}") for document in documents]
    made = TrainingSet.from_pairs(
        "s", [p for d, q in pairs for p in title_pairs([Document(d.doc_id, d.text, q)])], instructions=("",)
    )
    batch = Mixture([made], batch_size=3, n_negatives=0, seed=0).batch(0)
    order = [query_id.removeprefix("title:") for query_id in batch.query_ids]
    a, b, c = (order.index(name) for name in "abc")
    expected = np.zeros((3, 3), dtype=bool)
    expected[a, b] = expected[b, a] = True
    assert np.array_equal(batch.false_negatives, expected)
    assert c in range(3)


def test_dropped_queries_are_gone(tiny: TrainingSet) -> None:
    assert [example.query_id for example in tiny.without([f"q{i}" for i in range(1, 24)]).examples] == ["q0"]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"batch_size": 25}, "fewer than a batch"),
        ({"batch_size": 0}, "at least 1"),
        ({"n_negatives": -1}, "at least 1"),
        ({"n_negatives": 40}, "too few for 40 negatives"),
        ({"ratios": {"tiny": 0}}, "positive"),
        ({"ratios": {"tony": 1}}, "'tony'"),
    ],
)
def test_a_mixture_that_cannot_be_is_refused(tiny: TrainingSet, arguments: dict[str, object], message: str) -> None:
    with pytest.raises(InvalidInput, match=message):
        Mixture([tiny], **{"batch_size": 4, "n_negatives": 2, "seed": 0, **arguments})  # type: ignore[arg-type]


def test_titles_answer_with_their_text_alone() -> None:
    pairs = list(title_pairs([Document("a", "body", "head"), Document("b", "body", " "), Document("c", " ", "head")]))
    assert [(p.query.query_id, p.query.text, p.document) for p in pairs] == [("title:a", "head", Document("a", "body"))]


def test_spans_are_words_in_a_row_of_the_wanted_length() -> None:
    text = "Zero, one  two\nthree four (five) six seven eight nine ten eleven twelve."
    documents = [Document("a", text), Document("short", "only three words"), Document("b", "汉字没有空格但是可以切开")]
    pairs = list(span_pairs(documents, np.random.default_rng(0), min_words=4, max_words=6, per_document=50))
    assert len(pairs) == 100
    lengths = set()
    for query, document in pairs:
        assert query.text in document.text
        lengths.add(len(query.text.split()) if document.doc_id == "a" else len(query.text))
    assert lengths == {4, 5, 6}
    assert {"Zero,", "twelve."} <= {word for query, _ in pairs for word in query.text.split()}  # both ends come up
    again = span_pairs(documents, np.random.default_rng(0), min_words=4, max_words=6, per_document=50)
    assert [pair.query for pair in again] == [pair.query for pair in pairs]
