"""Queries to term ids and sparse vectors, and the arrays they live in."""

from __future__ import annotations

import re
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors, trainers

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
def test_queries_that_are_not_text_are_refused_with_their_position(tokenizer: TextTokenizer, text: object) -> None:
    with pytest.raises(InvalidInput, match="query 1"):
        query_term_ids(tokenizer, QueryPolicy(), ["fine", text])  # type: ignore[list-item]


def test_a_prompt_ends_in_a_blank_and_is_empty_without_an_instruction() -> None:
    assert QueryPolicy("Find it").prompt == "Instruct: Find it\nQuery: "
    assert QueryPolicy().prompt == ""


def test_a_format_without_the_instruction_s_place_is_a_prompt_by_itself() -> None:
    assert QueryPolicy(prompt_format="query: ").prompt == "query: "
    assert QueryPolicy("Find it", prompt_format="{instruction}: ").prompt == "Find it: "


@pytest.mark.parametrize("mistyped", ["{instructon}", "{}", "{ instruction }", "{Instruction}", "{prompt}"])
def test_a_placeholder_that_stands_for_nothing_is_named(mistyped: str) -> None:
    with pytest.raises(
        InvalidInput, match=rf"prompt_format .* the unknown placeholder {re.escape(mistyped)}; .* is {{instruction}}$"
    ):
        QueryPolicy("Find it", prompt_format=f"{{instruction}} {mistyped}: ")
    with pytest.raises(
        InvalidInput, match=r"echo_prompt .* the unknown placeholder \{instruction\}; .* is \{prompt\}$"
    ):
        QueryPolicy("Find it", echo_prompt="{prompt} {instruction}")
    assert QueryPolicy("Find it", prompt_format='{instruction} {"k": 1}').prompt == 'Find it {"k": 1}'


def test_an_instruction_that_its_format_has_no_place_for_is_refused() -> None:
    with pytest.raises(InvalidInput, match=r"no placeholder \{instruction\} for the instruction 'Find it'"):
        QueryPolicy("Find it", prompt_format="query: ")


@pytest.mark.parametrize(
    ("policy", "text", "prepared"),
    [
        (QueryPolicy(), "  Über Uns\n", " über uns"),
        (QueryPolicy(lower_case=False), " Über ", " Über"),
        (QueryPolicy(leading_blank=False), "Über", "über"),
        (QueryPolicy(), " \t ", ""),
        (QueryPolicy(leading_blank=False), "", ""),
    ],
)
def test_the_library_s_path_gets_the_text_that_the_policy_says(
    tokenizer: TextTokenizer, policy: QueryPolicy, text: str, prepared: str
) -> None:
    assert policy.prepare(text) == prepared
    expected = tokenizer.backend.encode(prepared, add_special_tokens=False).ids
    assert query_term_ids(tokenizer, policy, [text]).row(0).tolist() == expected


@pytest.mark.parametrize(
    "settings",
    [
        {"weighting": "tf"},
        {"term_weights": "bm25"},
        {"weighting": "expansion", "term_weights": "idf"},
        {"max_tokens": 0},
        {"max_tokens": 2**63},
        {"expansion_terms": 0},
        {"top_k": -1},
        {"drop": (3, -1)},
        {"drop": (2**32,)},
    ],
)
def test_policies_that_cannot_be_followed_are_refused(settings: dict[str, Any]) -> None:
    with pytest.raises(InvalidInput, match=f"query .*{[*settings][-1]}"):
        QueryPolicy(**settings)


def test_the_least_policies_are_taken(tokenizer: TextTokenizer) -> None:
    assert QueryPolicy(weighting="expansion", expansion_terms=1, top_k=0).expansion_terms == 1
    for text in ("the cat sat", "the cät sat"):
        assert query_term_ids(tokenizer, QueryPolicy(max_tokens=1), [text]).lengths.tolist() == [1]
        assert query_term_ids(tokenizer, QueryPolicy(drop=(2**32 - 1,)), [text]).lengths.tolist() != [0]


def words_of(n: int) -> Tokenizer:
    """Words w0 to w(n - 1) and [UNK], whose id is n, cut at blanks."""
    inner = Tokenizer(models.WordLevel({**{f"w{i}": i for i in range(n)}, "[UNK]": n}, unk_token="[UNK]"))
    inner.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return inner


@pytest.mark.parametrize("word", ["w3", "ü"])
def test_a_tokenizer_s_own_padding_cut_and_frame_are_left_out(word: str) -> None:
    inner = words_of(5)
    inner.add_special_tokens(["[CLS]"])
    inner.enable_padding(length=9)
    inner.enable_truncation(2)
    inner.post_processor = processors.TemplateProcessing("[CLS] $A", special_tokens=[("[CLS]", 6)])
    before = inner.to_str()
    ids = TextTokenizer(inner).term_ids([f"w1 w2 {word} [CLS]", "w4"])
    assert [ids.row(i).tolist() for i in range(2)] == [[1, 2, 3 if word == "w3" else 5, 5], [4]]
    assert inner.to_str() == before


def test_the_vocabulary_reaches_to_the_last_id_added_tokens_too() -> None:
    assert TextTokenizer(Tokenizer(models.WordLevel({}))).vocab_size == 0
    inner = words_of(5)
    assert TextTokenizer(inner).vocab_size == 6
    inner.add_tokens(["more"])
    assert TextTokenizer(inner).vocab_size == 7


@pytest.mark.parametrize(
    ("model", "unknown"),
    [
        (models.WordLevel({"a": 0, "?": 1}, unk_token="?"), 1),
        (models.Unigram([("a", -1.0), ("?", -2.0)], 1), 1),
        (models.BPE(), None),
    ],
)
def test_the_unknown_term_is_known(model: Any, unknown: int | None) -> None:
    assert TextTokenizer(Tokenizer(model)).unknown_id == unknown


def test_terms_are_shown_as_they_are_read(tokenizer: TextTokenizer) -> None:
    (the,) = tokenizer.term_ids([" the"]).row(0).tolist()
    special = tokenizer.backend.token_to_id("</s>")
    assert (tokenizer.term(the), tokenizer.term(special), tokenizer.term(9999)) == (" the", "</s>", "[9999]")
    texts = tokenizer.term_texts()
    assert (len(texts), texts[the], texts[special]) == (tokenizer.vocab_size, "the", "")


def test_wide_term_ids_are_dropped_by_either_path() -> None:
    tokenizer = TextTokenizer(words_of(70_000))
    policy = QueryPolicy(drop=(65_537, 70_000), leading_blank=False)
    rows = query_term_ids(tokenizer, policy, ["w1 w65537 w69999", "w1 w65537 w69999 ü"])
    assert [rows.row(i).tolist() for i in range(2)] == [[1, 69_999], [1, 69_999]]


def test_expansions_and_weights_of_another_vocabulary_are_not_counted() -> None:
    rows = Ragged.from_lists([[1]])
    with pytest.raises(InvalidInput, match="expansion"):
        sparse_queries(rows, QueryPolicy(weighting="expansion"), vocab_size=4)
    with pytest.raises(InvalidInput, match=r"expected \(4,\)"):
        sparse_queries(rows, QueryPolicy(term_weights="idf"), vocab_size=4, term_weights=np.ones(5, np.float32))


def test_tokenizer_files_are_checked(tmp_path, tokenizer: TextTokenizer) -> None:  # type: ignore[no-untyped-def]
    with pytest.raises(NotFound):
        TextTokenizer.from_file(tmp_path / "none.json")
    (tmp_path / "bad.json").write_text("{}")
    with pytest.raises(FormatError, match=r"bad\.json"):
        TextTokenizer.from_file(tmp_path / "bad.json")
    wide = Tokenizer(models.WordLevel({"a": 0, "b": 1})).to_str().replace('"b":1', f'"b":{2**31}')
    (tmp_path / "wide.json").write_text(wide)  # old versions of the library count up to the id when they save it
    with pytest.raises(FormatError, match="2 terms, but term id 2147483648"):
        TextTokenizer.from_file(tmp_path / "wide.json")
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
        ([0, 2, 1], [0], [1.0], "not decrease"),
        ([0, 2], [0], [1.0], "ends at 2"),
        ([0, 1], [5], [1.0], "term id 5 is outside the vocabulary of 5"),
    ],
)
def test_malformed_sparse_vectors_are_refused(indptr: list, term_ids: list, weights: list, expected: str) -> None:  # type: ignore[type-arg]
    with pytest.raises(InvalidInput, match=expected):
        SparseVectors(np.array(indptr, np.int64), np.array(term_ids, np.uint32), np.array(weights, np.float32), 5)


def test_a_tokenizer_without_a_term_for_unknown_words_says_so() -> None:
    tokenizer = TextTokenizer(Tokenizer(models.WordPiece({"cat": 0}, unk_token="[UNK]")))
    assert tokenizer.term_ids(["cat"]).row(0).tolist() == [0]
    with pytest.raises(FormatError, match=r"cannot represent these texts: .*\[UNK\]"):
        tokenizer.term_ids(["cat", "dog"])
