"""recipes/broad_text.py reads each kind of source, and draws the same distinct texts from the same packages."""

from __future__ import annotations

import gzip
import itertools
import random
import runpy
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("lxml")
SCRIPT = Path(__file__).resolve().parents[2] / "recipes" / "broad_text.py"


@pytest.fixture(scope="module")
def script() -> dict[str, Any]:
    return runpy.run_path(str(SCRIPT))


CASES = {
    "wordnet": (
        "  1 This line belongs to the license.\n"
        '00001740 03 n 02 living_thing 0 animate_thing 0 001 ~ 00002 n 0000 | a living entity; "a tree is one"  \n',
        [
            ("term", "living thing, animate thing"),
            ("gloss", "a living entity"),
            ("gloss", "living thing: a living entity"),
            ("text", "a tree is one"),
        ],
    ),
    "dictionary": (
        '00-database-info\n   About this file.\nAbjure \\Ab*jure"\\, v. t. [L. abjurare.]\n'
        "   1. To renounce upon oath; to {forswear}.\n      [1913 Webster]\n\n   Syn: To recant.\n",
        [
            ("gloss", "About this file."),
            ("gloss", "00-database-info: About this file."),
            ("term", "Abjure"),
            ("gloss", "To renounce upon oath; to forswear ."),
            ("gloss", "Abjure: To renounce upon oath; to forswear ."),
        ],
    ),
    "markup": (
        "<html><title>A page</title><body><h1>Heading &amp; more</h1><ul><li><p>One\n item.</p></li></ul><p> </p>"
        "</body></html>",
        [("title", "A page"), ("title", "Heading & more"), ("text", "One item.")],
    ),
    "manual": (
        '.\\" A comment\n.SH NAME\nls \\- list directory contents\n.SH OPTIONS\n'
        ".TP\n.B \\-a\ndo not \\fIignore\\fR entries\n",
        [("text", "ls - list directory contents"), ("text", "-a do not ignore entries")],
    ),
    "paragraphs": (
        "A saying.\n%\nAnother one\nin two lines.\n\n1 + 2 = 3; [4]\n",
        [("text", "A saying."), ("text", "Another one in two lines.")],
    ),
    "elisp": (
        '(defun f ()\n  "Return the name of the `current\' buffer."\n  1)\n',
        [("text", "Return the name of the current buffer.")],
    ),
    "docstrings": (
        'def f():\n    """Return one.\n\n    It is a number.\n\n    >>> f()\n    1\n    """\n',
        [("text", "Return one."), ("text", "It is a number.")],
    ),
}


@pytest.mark.parametrize("name", CASES)
def test_a_reader_finds_the_passages_of_a_file(script: dict[str, Any], name: str, tmp_path: Path) -> None:
    text, expected = CASES[name]
    path = tmp_path / "file.gz"
    path.write_bytes(gzip.compress(text.encode()))
    read = [passage for passage in script[name](path) if passage[1]]
    assert read == expected


def test_draws_are_whole_phrases_sentences_and_spans_of_the_text(script: dict[str, Any]) -> None:
    words = [f"word{chr(97 + i)}" for i in range(26)]
    passages = [
        ("term", "a short term"),
        ("title", " ".join(words)),
        ("text", " ".join(words[:20]) + "."),
        ("text", "too short"),
    ]
    drawn = script["draw"](iter(passages), 100, random.Random(0))
    kinds = dict(drawn)
    assert kinds["term"] == "a short term"
    assert "title" not in kinds  # longer than 16 words
    assert kinds.keys() == {"term", "sentence", "span", "passage"}
    for kind, least, most in (("sentence", 4, 40), ("span", 3, 16), ("passage", 17, 60)):
        assert kinds[kind].rstrip(".") in " ".join(words)
        assert least <= len(kinds[kind].split()) <= most
    assert len(script["draw"](iter(passages), 2, random.Random(0))) == 2


def test_a_pool_is_reproducible_and_distinct(
    script: dict[str, Any], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("one", "two"):
        (tmp_path / name).mkdir()
        text = "\n\n".join(
            f"This is saying {'a' * i} of the file {name}, which both have.\n\nShared words here." for i in range(1, 9)
        )
        (tmp_path / name / "file.txt").write_text(text)
    source = script["Source"]
    scope = script["build"].__globals__
    monkeypatch.setitem(
        scope, "PACKAGES", tuple(source(name, script["paragraphs"], "*.txt") for name in ("one", "two"))
    )
    monkeypatch.setitem(scope, "descriptions", lambda: iter([("title", "a description of a package")]))
    monkeypatch.setitem(scope, "docstrings", lambda path: iter([("text", "what a function of a module does")]))
    pools = [list(script["build"](tmp_path, 0, seed)) for seed in (0, 0, 1)]
    assert pools[0] == pools[1] != pools[2]
    texts = [line["text"].casefold() for line in pools[0]]
    assert len(set(texts)) == len(texts) > 10
    assert [line["_id"] for line in pools[0]] == [str(i) for i in range(len(texts))]
    assert {line["source"] for line in pools[0]} == {"one", "two", "descriptions", "docstrings"}
    assert len(list(itertools.islice(script["build"](tmp_path, 3, 0), 9))) == 3
