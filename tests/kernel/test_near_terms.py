"""Terms near a word are those of the definition, whatever the dictionary."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from lightir import kernel
from lightir.errors import FormatError, InvalidInput
from lightir.index.segments.dictionary import SortedStrings
from lightir.kernel import reference
from lightir.kernel.reference import edit_distance

words = st.text("abcé中", max_size=6)


@pytest.mark.parametrize(
    ("a", "b", "distance"),
    [("", "", 0), ("ab", "", 2), ("cat", "cut", 1), ("vacine", "vaccine", 1), ("form", "from", 1), ("ca", "abc", 3)],
)
def test_a_swap_of_neighbors_counts_once_and_no_part_changes_twice(a: str, b: str, distance: int) -> None:
    assert (edit_distance(a, b), edit_distance(b, a)) == (distance, distance)


@given(st.sets(words | st.text(max_size=3), max_size=40), words, st.integers(0, 3), st.booleans())
@example({"ab", "abc", "abd", "b"}, "abx", 1, True)
def test_near_terms_are_those_of_the_twin(terms: set[str], word: str, distance: int, prefix: bool) -> None:
    ordered = sorted(term for term in terms if term.isprintable())
    near = kernel.near_terms(*SortedStrings.pack(ordered).arrays, word, distance=distance, prefix=prefix)
    expected = reference.near_terms(ordered, word, distance=distance, prefix=prefix)
    for array, wanted in zip(near, expected, strict=True):
        assert array.dtype == wanted.dtype
        np.testing.assert_array_equal(array, wanted)


def test_damaged_dictionaries_and_wrong_arguments_are_refused() -> None:
    text, indptr = SortedStrings.pack(["cat", "dog"]).arrays
    with pytest.raises(FormatError, match="outside its text"):
        kernel.near_terms(text, np.array([0, 3, 9]), "dog", distance=1)
    with pytest.raises(InvalidInput, match="indptr is empty"):
        kernel.near_terms(text, indptr[:0], "dog", distance=1)
    with pytest.raises(InvalidInput, match="must not be negative"):
        kernel.near_terms(text, indptr, "dog", distance=-1)
    with pytest.raises(InvalidInput, match="above 255"):
        kernel.near_terms(text, indptr, "dog", distance=256)
    assert kernel.near_terms(text, indptr, "\ud800", distance=1)[0].size == 0
