"""Corpus of the demo: the documentation of the running Python."""

from __future__ import annotations

import pytest

from lightir.data.python_docs import python_documents
from lightir.errors import LightirError


@pytest.fixture(scope="module")
def documents():
    return python_documents()


def test_there_are_thousands_of_documents_with_distinct_ids(documents):
    assert 3000 < len(documents) < 9000
    assert len({document.doc_id for document in documents}) == len(documents)


def test_well_known_things_are_found_under_their_dotted_names(documents):
    by_id = {document.doc_id: document for document in documents}
    assert "after a specified number of seconds" in by_id["threading.Timer"].text
    assert by_id["threading.Timer"].metadata["kind"] == "class"
    assert by_id["threading.Timer"].metadata["signature"].startswith("(interval, function")
    assert {"json", "os.path.join", "str.split", "topic:with", "asyncio.run"} <= by_id.keys()


def test_collecting_twice_gives_the_same_documents(documents):
    assert python_documents() == documents


def test_texts_are_short_and_hold_no_memory_addresses(documents):
    assert max(len(document.text) for document in documents) <= 900
    assert not [d.doc_id for d in documents if " at 0x7f" in str(d.metadata)]


def test_a_hanging_collection_is_stopped_with_an_error():
    with pytest.raises(LightirError, match=r"longer than 0\.001 s"):
        python_documents(timeout_s=0.001)
