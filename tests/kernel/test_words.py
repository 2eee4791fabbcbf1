"""Words are cut by the kernel as the regular expression cuts them, and analyzers count the same terms either way."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from lightir import kernel
from lightir.analysis import OF_A_MODEL, Analyzer, analyzer_names
from lightir.errors import InvalidInput
from lightir.kernel import reference

ascii_texts = st.text(st.sampled_from("aAbB zZ_09\t\n.-'\x00\x1c\x7f{@[`/:"), max_size=60)


@given(st.lists(ascii_texts | st.text(max_size=20), max_size=8))
def test_words_are_those_of_the_twin(texts: list[str]) -> None:
    words, ids, indptr, refused = kernel.split_words(texts)
    slow_words, slow_ids, slow_indptr, slow_refused = reference.split_words(texts)
    assert (words, refused) == (slow_words, slow_refused)
    assert (ids.dtype, indptr.dtype) == (np.uint32, np.int64)
    np.testing.assert_array_equal(ids, slow_ids)
    np.testing.assert_array_equal(indptr, slow_indptr)


def test_a_dictionary_grows_past_many_words_and_long_ones() -> None:
    texts = [" ".join(f"word{i}" for i in range(start, 30_000, 3)) for start in range(3)] + ["x" * 1_000_000, "x"]
    assert kernel.split_words(texts)[0] == reference.split_words(texts)[0]


@pytest.mark.parametrize("name", sorted({*analyzer_names()} - {*OF_A_MODEL}))
@given(texts=st.lists(ascii_texts | st.text(max_size=20) | st.sampled_from(["The cats WERE running", "中文ab"])))
def test_distinct_terms_are_the_terms(name: str, texts: list[str]) -> None:
    analyzer = Analyzer(name)
    distinct, rows = analyzer.distinct_terms(texts)
    assert len(set(distinct)) == len(distinct)
    assert [[distinct[i] for i in rows.row(n).tolist()] for n in range(len(rows))] == analyzer.terms(texts)


def test_distinct_terms_name_the_text_that_is_none() -> None:
    with pytest.raises(InvalidInput, match="text 1"):
        Analyzer("words").distinct_terms(["a", "\ud800"])
    with pytest.raises(InvalidInput, match="text 0"):
        Analyzer("words").distinct_terms([None])  # type: ignore[list-item]
