"""The kernel's tokenizer returns the ids of the tokenizers library and refuses unsupported configurations."""

from __future__ import annotations

import gzip
import json
import threading
from collections.abc import Sequence
from functools import cache
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from lightir.errors import InvalidInput
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from llm_tokenizers import NATIVE, QWEN2, TEXTS, by_pattern, byte_level, gpt2, llama3, word_piece
from real_collections import FOLDER, real_collection

ROOT = Path(__file__).resolve().parents[2]
FRAGMENTS = [
    *(" ", "  ", "\n", "\r\n", "\t", "\x0b", "\x1c", "\x00", "\x7f", "'", "''", "'s", "'S", "'re", "'LL", "'x", "''d"),
    *(
        "1",
        "12",
        "1234",
        "a",
        "the",
        "Cat",
        "cat's",
        "zq",
        "_",
        "-",
        "?!",
        "((",
        "~",
        "<think>",
        "<think",
        "<tool call>",
    ),
    *("<|end|>", "[CLS]", "##ing", "<tool call>", "x" * 14, "y" * 15, "Z" * 16, "w" * 21, "é", "北京", "½"),
    *("\u0301", "\u017f", "\u00a0", "\u2003", "\u0085", "\u200b", "\u3000", "\ufffd"),
    *("Σ", "ΑΣ", "İ", "ﬁ", "한", "\U0001f600", " é ", " Ÿ"),
]
some_text = st.one_of(
    st.text(max_size=40),
    st.text(st.characters(max_codepoint=0x7F), max_size=60),
    st.lists(st.sampled_from(FRAGMENTS), max_size=14).map("".join),
)
policies = st.builds(
    QueryPolicy,
    lower_case=st.booleans(),
    leading_blank=st.booleans(),
    max_tokens=st.sampled_from([1, 2, 5, 512]),
    drop=st.sampled_from([(), (5, 70, 100)]),
)


@cache
def tokenizer(name: str) -> TextTokenizer:
    return TextTokenizer(NATIVE[name]())


def by_library(inner: Tokenizer, policy: QueryPolicy, text: str) -> list[int]:
    """Return term ids as QueryPolicy documents them, one text at a time."""
    ids = inner.encode(policy.prepare(text), add_special_tokens=False).ids[: policy.max_tokens]
    return [term_id for term_id in ids if term_id not in policy.drop]


def rows(tokenizer: TextTokenizer, policy: QueryPolicy, texts: Sequence[str], threads: int = 1) -> list[list[int]]:
    ragged = query_term_ids(tokenizer, policy, texts, threads=threads)
    assert ragged.term_ids.dtype == np.uint32
    return [ragged.row(i).tolist() for i in range(len(ragged))]


@pytest.mark.parametrize("name", NATIVE)
@settings(max_examples=150)
@given(texts=st.lists(some_text, max_size=5), policy=policies)
def test_ids_are_those_of_the_library(name: str, texts: list[str], policy: QueryPolicy) -> None:
    ours = tokenizer(name)
    assert rows(ours, policy, texts) == [by_library(ours.backend, policy, text) for text in texts]


@pytest.mark.parametrize("name", NATIVE)
@settings(max_examples=50)
@given(text=some_text, max_tokens=st.sampled_from([None, 1, 7]))
def test_a_document_is_neither_stripped_nor_lowered(name: str, text: str, max_tokens: int | None) -> None:
    ours = tokenizer(name)
    expected = ours.backend.encode(text, add_special_tokens=False).ids[:max_tokens]
    assert ours.term_ids([text], max_tokens=max_tokens).row(0).tolist() == expected


@pytest.mark.parametrize("name", NATIVE)
def test_plain_ascii_goes_through_the_kernel_alone(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours = tokenizer(name)
    expected = [ours.backend.encode(text, add_special_tokens=False).ids for text in TEXTS[:4]]
    assert ours.path.native is not None
    assert "kernel" in ours.path.description
    monkeypatch.setattr(TextTokenizer, "library_term_ids", lambda *_, **__: pytest.fail("the library was asked"))
    rows = ours.term_ids(TEXTS[:4])
    assert [rows.row(i).tolist() for i in range(4)] == expected


@pytest.mark.parametrize("name", ["lightir-smollm2-135m", "lightir-minilm"])
@pytest.mark.parametrize("policy", [QueryPolicy(), QueryPolicy(lower_case=False, leading_blank=False)], ids=str)
@pytest.mark.data
def test_real_texts_get_the_ids_of_the_library(name: str, policy: QueryPolicy) -> None:
    real_collection("scifact")
    model = ROOT / "packages" / name / "src" / name.replace("-", "_") / "model"
    ours = TextTokenizer.from_file(model / "query-encoder" / "tokenizer.json")
    texts = []
    for path in sorted(FOLDER.glob("*/*.jsonl.gz")):
        with gzip.open(path, "rt", encoding="utf-8") as lines:
            texts += [json.loads(line)["text"][:400] for _, line in zip(range(150), lines, strict=False)]
    assert len(texts) > 2500
    expected = ours.library_term_ids([policy.prepare(text) for text in texts], max_tokens=policy.max_tokens)
    rows = query_term_ids(ours, policy, texts, threads=2)
    np.testing.assert_array_equal(rows.term_ids, expected.term_ids)
    np.testing.assert_array_equal(rows.indptr, expected.indptr)


def test_batches_of_many_chunks_are_in_order_with_any_number_of_threads() -> None:
    ours = tokenizer("qwen2")
    texts = [f"{TEXTS[i % 5][i % 60 :]} {i}" for i in range(1200)]
    expected = [by_library(ours.backend, QueryPolicy(), text) for text in texts]
    assert rows(ours, QueryPolicy(), texts) == expected
    assert rows(ours, QueryPolicy(), texts, threads=3) == expected


def test_several_callers_at_a_time_get_their_own_ids() -> None:
    ours = tokenizer("gpt2")
    texts = [[f"{text} number {caller} of {i}" for i in range(300) for text in TEXTS] for caller in range(4)]
    by_threads: dict[int, list[list[int]]] = {}

    def call(caller: int) -> None:
        by_threads[caller] = rows(ours, QueryPolicy(), texts[caller])

    callers = [threading.Thread(target=call, args=(caller,)) for caller in range(4)]
    for thread in callers:
        thread.start()
    for thread in callers:
        thread.join()
    for caller in range(4):
        assert by_threads[caller] == [by_library(ours.backend, QueryPolicy(), text) for text in texts[caller]]


def test_more_words_than_the_cache_holds_are_encoded() -> None:
    ours = tokenizer("gpt2")
    rng = np.random.default_rng(0)
    words = ["".join(rng.choice(list("abcdefgh"), rng.integers(2, 14))) for _ in range(80_000)]
    text = " ".join(words)
    assert ours.term_ids([text]).row(0).tolist() == ours.backend.encode(text, add_special_tokens=False).ids


@pytest.mark.parametrize("length", [7, 8, 9, 15, 16, 17, 22, 23, 24, 255, 256, 257, 5000])
@pytest.mark.parametrize("name", ["gpt2", "bert_uncased"])
def test_words_of_any_length_get_the_ids_of_the_library(name: str, length: int) -> None:
    ours = tokenizer(name)
    text = "cat " + "thecat" * (length // 6) + "c" * (length % 6) + " dog"
    assert ours.term_ids([text] * 2).row(1).tolist() == ours.backend.encode(text, add_special_tokens=False).ids


def test_queries_that_are_not_text_are_refused_with_their_position() -> None:
    for wrong in ("\ud800", 7, None, b"bytes"):
        with pytest.raises(InvalidInput, match="query 1"):
            query_term_ids(tokenizer("gpt2"), QueryPolicy(), ["fine", wrong])  # type: ignore[list-item]


def word_level() -> Tokenizer:
    return Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))


def changed(make: Tokenizer, **parts: object) -> Tokenizer:
    for name, part in parts.items():
        setattr(make, name, part)
    return make


def with_model(make: Tokenizer, **settings: object) -> Tokenizer:
    content = json.loads(make.to_str())
    content["model"] |= settings
    return Tokenizer.from_str(json.dumps(content))


def with_added(make: Tokenizer, token: str) -> Tokenizer:
    make.add_tokens([token])
    return make


@pytest.mark.parametrize(
    ("make", "reason"),
    [
        (word_level, "model WordLevel"),
        (lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=True)), "add_prefix_space=True"),
        (lambda: byte_level(by_pattern(QWEN2 + "|x")), "pattern"),
        (lambda: byte_level(pre_tokenizers.Sequence([pre_tokenizers.ByteLevel(use_regex=False)] * 2)), "ByteLevel"),
        (lambda: byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)), "use_regex=False"),
        (lambda: changed(gpt2(), normalizer=normalizers.Lowercase()), "Lowercase"),
        (lambda: changed(gpt2(), normalizer=normalizers.Replace(Regex("a"), "b")), "Replace"),
        (lambda: changed(gpt2(), pre_tokenizer=pre_tokenizers.Metaspace()), "Metaspace"),
        (lambda: with_model(gpt2(), dropout=0.5), "dropout=0.5"),
        (lambda: with_model(gpt2(), end_of_word_suffix="</w>"), "end_of_word_suffix"),
        (lambda: changed(word_piece(), normalizer=None), "BertNormalizer"),
        (lambda: changed(word_piece(), pre_tokenizer=pre_tokenizers.Whitespace()), "Whitespace"),
        (lambda: with_added(word_piece(), "cat"), "added token 'cat'"),
        (
            lambda: changed(
                llama3(), post_processor=processors.TemplateProcessing(single="$A $A", pair="$A $B", special_tokens=[])
            ),
            "template",
        ),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_tokenizers_with_unknown_parts_use_the_library(make, reason: str) -> None:  # type: ignore[no-untyped-def]
    ours = TextTokenizer(make())
    assert ours.path.native is None
    assert reason in ours.path.description
    if "dropout" not in reason:
        assert ours.term_ids(TEXTS[:1]).row(0).tolist() == ours.backend.encode(TEXTS[0], add_special_tokens=False).ids


@pytest.mark.parametrize("name", sorted(NATIVE))
def test_word_and_character_limits_are_the_library_s(name: str) -> None:
    """Texts have words of WordPiece's maximum length and one more, and the control character after printable ASCII."""
    inner, policy = NATIVE[name](), QueryPolicy(leading_blank=False)
    texts = ["thethethethethetheth", "thethethethethethethe", "catthecat", "the\x7fcat", "\x7f", "~the~", "\x1fthe\x20"]
    assert rows(tokenizer(name), policy, texts) == [by_library(inner_of(inner), policy, text) for text in texts]


def inner_of(inner: Tokenizer) -> Tokenizer:
    """Configure a tokenizer as TextTokenizer does: special tokens inside a text are plain text."""
    return TextTokenizer(inner).backend
