"""Queries to term ids and sparse vectors, and the arrays they live in."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, trainers

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids, sparse_queries
from lightir.vectors import Ragged, SparseVectors

ROWS = st.lists(st.lists(st.integers(0, 9), max_size=8), max_size=6)


@pytest.fixture(scope="module")
def tokenizer() -> TextTokenizer:
    """A byte-level BPE with an end token, as LLMs have it."""
    inner = Tokenizer(models.BPE())
    inner.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    inner.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet, special_tokens=["</s>"])
    inner.train_from_iterator(["the cat sat on the mat, the cat the cat"] * 5, trainer)
    return TextTokenizer(inner)


def test_the_first_word_gets_the_term_id_it_has_inside_a_document(tokenizer: TextTokenizer) -> None:
    inside = tokenizer.term_ids(["on the"]).row(0)[-1]
    assert query_term_ids(tokenizer, QueryPolicy(), ["The"]).row(0).tolist() == [inside]


def test_repeated_words_count_unless_binary(tokenizer: TextTokenizer) -> None:
    term_ids = query_term_ids(tokenizer, QueryPolicy(), ["the cat the cat"])
    counted = sparse_queries(term_ids, QueryPolicy(), vocab_size=tokenizer.vocab_size)
    binary = sparse_queries(term_ids, QueryPolicy(weighting="binary"), vocab_size=tokenizer.vocab_size)
    assert counted.weights.tolist() == [2, 2]
    assert binary.weights.tolist() == [1, 1]


def test_idf_weights_multiply_and_zero_weights_vanish(tokenizer: TextTokenizer) -> None:
    policy = QueryPolicy(term_weights="idf")
    term_ids = query_term_ids(tokenizer, policy, ["the cat the"])
    the, cat = (int(tokenizer.term_ids([word]).row(0)[0]) for word in (" the", " cat"))
    weights = np.zeros(tokenizer.vocab_size, dtype=np.float32)
    weights[cat] = 3.0
    vectors = sparse_queries(term_ids, policy, vocab_size=tokenizer.vocab_size, term_weights=weights)
    assert vectors.term_ids.tolist() == [cat]
    assert vectors.weights.tolist() == [3.0]
    assert the != cat


def test_stored_weights_come_exactly_when_the_policy_says_so(tokenizer: TextTokenizer) -> None:
    term_ids = Ragged.from_lists([[1]])
    with pytest.raises(InvalidInput, match="not given"):
        sparse_queries(term_ids, QueryPolicy(term_weights="idf"), vocab_size=4)
    with pytest.raises(InvalidInput, match="'none'"):
        sparse_queries(term_ids, QueryPolicy(), vocab_size=4, term_weights=np.ones(4, np.float32))


@pytest.mark.parametrize("text", ["", "   ", "\n\t"])
def test_blank_queries_have_no_terms(tokenizer: TextTokenizer, text: str) -> None:
    assert query_term_ids(tokenizer, QueryPolicy(), [text]).lengths.tolist() == [0]


def test_a_special_token_typed_by_a_user_is_plain_text(tokenizer: TextTokenizer) -> None:
    special = tokenizer.backend.token_to_id("</s>")
    assert special not in query_term_ids(tokenizer, QueryPolicy(), ["</s>"]).row(0)


def test_long_queries_are_cut_and_dropped_terms_left_out(tokenizer: TextTokenizer) -> None:
    policy = QueryPolicy(max_tokens=7)
    assert query_term_ids(tokenizer, policy, ["the cat " * 10_000]).lengths.tolist() == [7]
    the = int(tokenizer.term_ids([" the"]).row(0)[0])
    dropped = query_term_ids(tokenizer, QueryPolicy(drop=(the,)), ["the cat", "the"])
    assert dropped.lengths.tolist() == [1, 0]


@pytest.mark.parametrize("text", ["\ud800", 7, None, b"bytes"])
def test_what_is_no_text_is_refused_with_its_place(tokenizer: TextTokenizer, text: object) -> None:
    with pytest.raises(InvalidInput, match="query 1"):
        query_term_ids(tokenizer, QueryPolicy(), ["fine", text])  # type: ignore[list-item]


def test_a_prompt_ends_in_a_blank_and_is_empty_without_an_instruction() -> None:
    assert QueryPolicy("Find it").prompt == "Instruct: Find it\nQuery: "
    assert QueryPolicy().prompt == ""


def test_tokenizer_files_are_checked(tmp_path, tokenizer: TextTokenizer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotFound):
        TextTokenizer.from_file(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FormatError, match=r"bad\.json"):
        TextTokenizer.from_file(tmp_path / "bad.json")
    tokenizer.save(tmp_path / "good.json")
    assert TextTokenizer.from_file(tmp_path / "good.json").hash == tokenizer.hash


@given(ROWS)
def test_counting_equals_counting_by_hand(rows: list[list[int]]) -> None:
    vectors = SparseVectors.count(Ragged.from_lists(rows), vocab_size=10)
    assert vectors.to_dense().tolist() == [[row.count(term) for term in range(10)] for row in rows]


@given(ROWS, st.sets(st.integers(0, 9)))
def test_dropping_terms_equals_filtering_each_row(rows: list[list[int]], drop: set[int]) -> None:
    kept = Ragged.from_lists(rows).without(np.array(sorted(drop), dtype=np.uint32))
    assert [kept.row(i).tolist() for i in range(len(kept))] == [[t for t in row if t not in drop] for row in rows]


@pytest.mark.parametrize(
    ("indptr", "term_ids", "weights", "expected"),
    [
        ([1, 1], [], [], "start at 0"),
        ([0, 2, 1], [0], [1.0], "never fall"),
        ([0, 2], [0], [1.0], "ends at 2"),
        ([0, 1], [5], [1.0], "term id 5 is outside the vocabulary of 5"),
    ],
)
def test_malformed_sparse_vectors_are_refused(indptr: list, term_ids: list, weights: list, expected: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInput, match=expected):
        SparseVectors(np.array(indptr, np.int64), np.array(term_ids, np.uint32), np.array(weights, np.float32), 5)
