"""Passages: how texts are split, and that an index of passages behaves as one of documents."""

from __future__ import annotations

import dataclasses
import random
import re
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lightir import Index, IndexOptions, IndexWriter, PageOptions, PassageOptions, Searcher, SearchOptions
from lightir.contract import DocumentPolicy
from lightir.errors import InvalidInput, NotFound
from lightir.index.passages.naming import document_of, passage_of, whole_document
from lightir.index.passages.splitter import Splitter, text_tokens
from lightir.index.passages.units import units_of
from lightir.pending import WorkOptions, work
from lightir.types import Document
from pending_documents import FakeEncoder
from small_collections import word_contract, word_table, word_tokenizer, write_folder

WORDS = ["cat", "dog", "bird", "fish", "tree", "house", "river", "stone", "cloud", "night"]
SMALL = PassageOptions(tokens=16)


def n_words(text: str) -> int:
    return len(re.findall(r"\w+|[^\w\s]", text))


def markdown(rng: random.Random, *, n_parts: int) -> str:
    """Return a text with headings, paragraphs, lists, code between fences, page breaks and odd white space."""
    parts = []
    for _ in range(n_parts):
        words = " ".join(rng.choices(WORDS, k=rng.randint(1, 12)))
        parts.append(
            rng.choice(
                [
                    f"{'#' * rng.randint(1, 4)} {words}\n",
                    f"{words}. {words}! {words}\n\n",
                    f"{words}\n",
                    f"- {words}\n- {words}\n",
                    f"```\n# {words}\n\n{words}\n```\n",
                    f"{words}\f",
                    f"\u6771\u4eac\u3067\u3059\u3002{words}\u3002",
                    "\n \n",
                    f"{'x' * rng.randint(1, 60)} ",
                ]
            )
        )
    return "".join(parts)


texts = st.builds(lambda seed, n: markdown(random.Random(seed), n_parts=n), st.integers(0, 2**32), st.integers(1, 40))


def headings_by_definition(text: str, start: int, end: int) -> tuple[str, ...]:
    """The headings above every line of text[start:end], read line by line from the beginning."""
    path: list[tuple[int, str]] = []
    common: tuple[str, ...] | None = None
    fenced, at = False, 0
    for line in re.findall(r"[^\n\f]*[\n\f]|[^\n\f]+", text):
        matched = re.fullmatch(r"(#{1,6})[ \t]+(\S.*?)[ \t]*#*[ \t]*[\n\f]?", line)
        if line.startswith("```"):
            fenced = not fenced
        elif matched and not fenced:
            path = [pair for pair in path if pair[0] < len(matched[1])] + [(len(matched[1]), matched[2])]
        if at < end and at + len(line) > start:
            titles = tuple(title for _, title in path)
            shared = len(titles) if common is None else 0
            while common is not None and shared < min(len(titles), len(common)) and titles[shared] == common[shared]:
                shared += 1
            common = titles[:shared]
        at += len(line)
    return common or ()


@given(texts, st.integers(16, 60), st.integers(0, 8), st.sampled_from(["", "A title of the document"]))
@settings(max_examples=150)
def test_passages_are_short_and_make_up_the_document(text: str, tokens: int, overlap: int, title: str) -> None:
    document = Document("d", text, title, {"n": 1})
    passages = Splitter(PassageOptions(tokens, overlap)).passages(document)
    assert whole_document(random.Random(1).sample(passages, len(passages))) == document
    assert len({passage.doc_id for passage in passages}) == len(passages)
    assert {document_of(passage.doc_id) for passage in passages} == {"d"}
    end = 0
    for passage in passages:
        passage_info = passage_of(passage)
        assert passage_info is not None
        assert passage.text == text[passage_info.start : passage_info.end]
        assert passage_info.start <= end < passage_info.end
        assert n_words(text[passage_info.start : end]) <= overlap
        end = passage_info.end
        assert n_words(passage.full_text()) <= tokens
        assert passage.metadata["n"] == 1
        assert passage_info.page == (1 + text[: passage_info.start].count("\f") if "\f" in text else None)
        first = passage_info.start + len(passage.text) - len(passage.text.lstrip())
        assert passage_info.line == 1 + text[: first if passage.text.strip() else passage_info.start].count("\n")
        assert passage_info.heading == " > ".join(headings_by_definition(text, passage_info.start, passage_info.end))


@given(texts)
def test_units_follow_one_another(text: str) -> None:
    units = units_of(text, with_headings=True)
    assert "".join(text[unit.start : unit.end] for unit in units) == text
    assert all(unit.start < unit.end for unit in units)


def test_a_passage_names_title_and_headings() -> None:
    text = "# Handbook\n\n" + "## Heating\n\n" + "warm water. " * 20 + "\n\n### Pumps\n\n" + "cold water. " * 20
    passages = Splitter(PassageOptions(40)).passages(Document("d", text, "Handbook"))
    titles = [passage.title for passage in passages]
    assert titles[0] == "Handbook"  # its headings are common to the whole passage
    assert titles[-1] == "Handbook > Heating > Pumps"
    assert [passage_info.heading for passage in passages if (passage_info := passage_of(passage))][-1] == titles[-1]


def test_a_comment_in_a_program_is_no_heading() -> None:
    text = "# import everything\n\n" + "x = 1\n\n" * 40
    file = {"type": "py", "modified": "2024-01-01T00:00:00Z"}
    (first, *_) = Splitter(SMALL).passages(Document("d", text, metadata=file))
    assert first.title == ""
    (first, *_) = Splitter(SMALL).passages(Document("d", text))
    assert first.title == "import everything"


def test_lines_of_a_converted_file_are_not_told() -> None:
    file = {"type": "pdf", "modified": "2024-01-01T00:00:00Z"}
    passages = Splitter(SMALL).passages(Document("d", "cat dog\n" * 50, metadata=file))
    assert {passage_info.line for passage in passages if (passage_info := passage_of(passage))} == {None}


def test_a_title_longer_than_a_passage_is_left_out_of_passages_and_kept() -> None:
    document = Document("d", "cat " * 100, "dog " * 300)
    passages = Splitter(SMALL).passages(document)
    assert {passage.title for passage in passages} == {""}
    assert whole_document(passages) == document


def test_a_changed_paragraph_changes_its_own_passages_alone() -> None:
    rng = random.Random(3)
    paragraphs = [" ".join(rng.choices(WORDS, k=rng.randint(5, 40))) + ".\n\n" for _ in range(300)]
    splitter = Splitter(PassageOptions(100))
    before = {passage.doc_id for passage in splitter.passages(Document("d", "".join(paragraphs)))}
    changes = []
    for at in range(0, 300, 7):
        changed = [*paragraphs]
        changed[at] = "an entirely new paragraph of twelve words stands here in its place.\n\n"
        after = {passage.doc_id for passage in splitter.passages(Document("d", "".join(changed)))}
        changes.append(len(after - before))
    assert len(before) > 60
    assert np.mean(changes) < 3  # the passage itself, and until the next boundary that both have
    assert max(changes) < 12


def test_equal_passages_have_different_ids() -> None:
    passages = Splitter(SMALL).passages(Document("d", "one two three four five six seven.\n\n" * 30))
    assert len({passage.text for passage in passages}) < len({passage.doc_id for passage in passages}) == len(passages)


def test_the_limit_is_what_the_model_reads() -> None:
    policy = DocumentPolicy(prompt="cat dog", max_tokens=32, bos=True, eos=True)
    contract = dataclasses.replace(word_contract(), document=policy)
    assert text_tokens(contract, word_tokenizer()) == 32 - 2 - 2
    twice = dataclasses.replace(contract, attention="echo")  # <bos> prompt text prompt text <eos>
    assert text_tokens(twice, word_tokenizer()) == (32 - 2 - 2 * 2) // 2
    document = Document("d", "cat dog bird " * 100)
    for passage in Splitter(PassageOptions(), contract, word_tokenizer()).passages(document):
        assert len(word_tokenizer().term_ids([passage.full_text()]).term_ids) <= 28
    with pytest.raises(InvalidInput, match="longer than the 28 that the model reads"):
        Splitter(PassageOptions(29), contract, word_tokenizer())
    with pytest.raises(InvalidInput, match="query encoder is missing"):
        Splitter(PassageOptions(), contract)


@pytest.mark.parametrize(("tokens", "overlap"), [(15, 0), (20, 11), (None, -1)])
def test_impossible_sizes_are_refused(tokens: int | None, overlap: int) -> None:
    with pytest.raises(InvalidInput, match="passages"):
        PassageOptions(tokens, overlap)


def test_bags_have_no_passages() -> None:
    with pytest.raises(InvalidInput, match="bag_tokens"):
        IndexOptions(analyzer="bag", passages=SMALL)


# The index


def long_document(doc_id: str, rng: random.Random, n_words: int, **metadata: object) -> Document:
    sentences = [" ".join(rng.choices(WORDS, k=6)) + ". " for _ in range(n_words // 6)]
    breaks = ["\n\n" if rng.random() < 0.3 else "" for _ in sentences]
    text = "".join(sentence + gap for sentence, gap in zip(sentences, breaks, strict=True))
    return Document(doc_id, text, rng.choice(["", "River"]), metadata)


def stored_ids(index: Index) -> set[str]:
    return {doc_id for _, doc_id in index.view.store.documents.ids_by_key()}


def test_an_index_of_passages_behaves_as_one_of_documents(tmp_path: Path) -> None:
    rng, splitter, expected = random.Random(5), Splitter(SMALL), {}
    names = [f"d{i}" for i in range(8)] + ["d1#p-", "d1!", "d1#p-zzz"]
    with IndexWriter.create(tmp_path / "index", options=IndexOptions(passages=SMALL, analyzer="words")) as writer:
        for step in range(120):
            action = rng.choice(["add", "upsert", "upsert", "same", "delete", "set", "compact", "keep", "where"])
            chosen = rng.sample(names, rng.randint(1, 4))
            if action == "add":
                chosen = [name for name in chosen if name not in expected]
            new = [long_document(name, rng, rng.choice([3, 12, 60, 200]), n=rng.randint(0, 3)) for name in chosen]
            if action in ("add", "upsert"):
                getattr(writer, action)(new)
                expected |= {document.doc_id: document for document in new}
            elif action == "same":
                assert writer.upsert(list(expected.values())) == 0
            elif action == "delete":
                assert writer.delete(chosen) == len(expected.keys() & set(chosen))
                expected = {name: document for name, document in expected.items() if name not in chosen}
            elif action == "keep" and step % 3 == 0:
                assert writer.keep_only(chosen) == len(expected.keys() - set(chosen))
                expected = {name: document for name, document in expected.items() if name in chosen}
            elif action == "where":
                gone = [name for name, document in expected.items() if document.metadata.get("n") == 3]
                assert writer.delete_where({"n": 3}) == len(gone)
                expected = {name: document for name, document in expected.items() if name not in gone}
            elif action == "set":
                known = [name for name in chosen if name in expected]
                writer.set_metadata({name: {"n": step} for name in known})
                for name in known:
                    expected[name] = dataclasses.replace(expected[name], metadata={"n": step})
            elif action == "compact":
                writer.compact()
            with Index.open(tmp_path / "index") as index:
                assert index.ids() == sorted(expected)
                assert index.count() == len(index) == len(writer) == index.info().documents == len(expected)
                assert index.get(names) == {name: expected[name] for name in names if name in expected}
                parts = {part.doc_id for document in expected.values() for part in splitter.split([document])}
                assert stored_ids(index) == parts
                assert index.info().passages == sum(document_of(doc_id) != doc_id for doc_id in parts)
                wanted = {"n": {"gte": 2}}
                matching = sorted(name for name, document in expected.items() if document.metadata["n"] >= 2)
                assert index.ids(wanted) == matching
                assert index.count(wanted) == len(matching)
                assert index.ids(wanted, after="d3", limit=2) == [name for name in matching if name > "d3"][:2]


@pytest.fixture(scope="module")
def encoded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with a model: some of its passages are encoded, others pending, in several segments."""
    folder = tmp_path_factory.mktemp("passages")
    rng = random.Random(8)
    encoder = write_folder(folder / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    options = IndexOptions(analyzer="words", passages=SMALL)
    with IndexWriter.create(
        folder / "index", options=options, contract=word_contract(), query_encoder=encoder
    ) as writer:
        writer.add([long_document(f"a{i}", rng, 90, n=i) for i in range(6)])
    work(folder / "index", FakeEncoder(), WorkOptions(once=True), progress=False)
    with IndexWriter.open(folder / "index") as writer:
        writer.upsert([long_document(f"a{i}", rng, 70, n=i) for i in (2, 3)])
        writer.add([long_document(f"b{i}", rng, 40, n=i) for i in range(4)])
        writer.add([Document("short", "cat dog", metadata={"n": 9})])
    return folder / "index"


@pytest.mark.parametrize("mode", ["tokens", "dense", "hybrid", "dense+sparse"])
@pytest.mark.parametrize("chosen", [{}, {"filter": {"n": {"lt": 3}}}, {"exclude": ["a1", "short"]}])
def test_a_search_ranks_documents_by_their_best_passages(encoded: Path, mode: str, chosen: dict[str, object]) -> None:
    with Index.open(encoded) as index:
        searcher = Searcher(index)
        options = SearchOptions(mode=mode, depth=1000, **chosen)
        every = dataclasses.replace(options, passages=True)
        for query in ("cat", "dog river", "night stone cloud cat", "absent"):
            passages = searcher.search([query], 1000, every)["0"]
            best: dict[str, float] = {}
            for doc_id, score in zip(passages.doc_ids, passages.scores.tolist(), strict=True):
                best.setdefault(document_of(doc_id), score)
            if "exclude" in chosen:
                assert not {"a1", "short"} & best.keys()
            for k in (1, 3, 50):
                ranking = searcher.search([query], k, options)["0"]
                assert list(ranking.doc_ids) == list(best)[:k]
                assert ranking.scores.tolist() == list(best.values())[:k]
                hits = searcher.hits(query, k, options)
                assert [hit.doc_id for hit in hits] == list(ranking.doc_ids)
                for hit in hits:
                    if hit.passage is not None:
                        text = index.get([hit.doc_id])[hit.doc_id].text
                        assert hit.passage.document == hit.doc_id
                        assert hit.snippet.strip("\u2026").split()[0] in text[hit.passage.start : hit.passage.end]
                        assert "passage" not in hit.metadata
                for hit in hits[:2] if "exclude" not in chosen else ():  # an explanation ignores exclusions
                    assert searcher.explain(query, hit.doc_id, options).score == hit.score


def test_a_page_counts_documents(encoded: Path) -> None:
    with Index.open(encoded) as index:
        searcher, documents = Searcher(index), index.get(index.ids())
        for query in ("cat", "dog stone", ""):
            options = SearchOptions(mode="tokens")
            words = set(query.split())
            matched = {
                name
                for name, document in documents.items()
                if not words or words & set(re.findall(r"\w+", document.full_text()))
            }
            page = searcher.page(query, PageOptions(limit=100), options)
            assert page.total == len(matched)
            assert {hit.doc_id for hit in page.hits} == matched
            assert len(page.hits) == len(matched)
            several = [
                searcher.page(query, PageOptions(offset, 2), options).hits for offset in range(0, len(matched), 2)
            ]
            assert [hit.doc_id for hits in several for hit in hits] == [hit.doc_id for hit in page.hits]
            every = searcher.page(query, PageOptions(limit=100), dataclasses.replace(options, passages=True))
            assert every.total >= page.total
            assert {document_of(hit.doc_id) for hit in every.hits} == matched


def test_unchanged_passages_keep_their_vectors(tmp_path: Path) -> None:
    encoder = write_folder(tmp_path / "encoder", word_contract(), {"default": {"embeddings": word_table()}})
    document = long_document("d", random.Random(9), 600)
    options = IndexOptions(analyzer="words", passages=PassageOptions(32))
    with IndexWriter.create(
        tmp_path / "index", options=options, contract=word_contract(), query_encoder=encoder
    ) as writer:
        writer.add([document, Document("other", "cat")])
    model = FakeEncoder()
    work(tmp_path / "index", model, WorkOptions(once=True), progress=False)
    n_passages = len(model.encoded)
    assert n_passages > 20
    middle = document.text.index("\n\n", 1500)
    changed = dataclasses.replace(document, text=f"{document.text[:middle]} A new sentence.{document.text[middle:]}")
    with IndexWriter.open(tmp_path / "index") as writer:
        assert writer.upsert([changed]) == 1
        assert 1 <= writer.info().pending <= 4
        assert writer.upsert([dataclasses.replace(changed, metadata={"n": 1})]) == 1
        assert 1 <= writer.info().pending <= 4  # other metadata, the same vectors
    again = FakeEncoder()
    work(tmp_path / "index", again, WorkOptions(once=True), progress=False)
    assert len(again.encoded) <= 4
    with Index.open(tmp_path / "index") as index:
        assert index.get(["d"])["d"] == dataclasses.replace(changed, metadata={"n": 1})
        index.verify()


def test_a_document_that_would_be_taken_for_a_passage_is_refused(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index", options=IndexOptions(passages=SMALL)) as writer:
        with pytest.raises(InvalidInput, match="ends like that of a passage"):
            writer.add([Document("d#p-0123456789ab", "cat")])
        with pytest.raises(InvalidInput, match="metadata field 'passage'"):
            writer.add([Document("d", "cat", metadata={"passage": 3})])
        writer.add([Document("d", "cat " * 100)])
        with pytest.raises(InvalidInput, match="metadata field 'passage'"):
            writer.set_metadata({"d": {"passage.start": 3}})
        with pytest.raises(NotFound, match=r"no document 'e'.*1 of 2 ids"):
            writer.set_metadata({"d": {"n": 3}, "e": {"n": 3}})
        assert writer.set_metadata({"d": {"n": 3}, "e": {"n": 3}}, skip_missing=True) == 1
        with pytest.raises(InvalidInput, match="'d' is already in the index"):
            writer.add([Document("d", "cat")])
        assert len(writer) == 1


def test_a_passage_is_read_by_its_own_id(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index", options=IndexOptions(passages=SMALL)) as writer:
        writer.add([Document("d", "cat dog bird. " * 30)])
        with Index.open(tmp_path / "index") as index:
            (some, *_) = sorted(stored_ids(index))
            assert index.documents([some])[0].doc_id == some
            with pytest.raises(NotFound, match="no document 'e'"):
                index.documents(["d", "e"])


def test_an_index_without_passages_may_have_such_ids(tmp_path: Path) -> None:
    with IndexWriter.create(tmp_path / "index") as writer:
        writer.add([Document("d#p-0123456789ab", "cat"), Document("d", "cat dog")])
        with Index.open(tmp_path / "index") as index:
            assert index.ids() == ["d", "d#p-0123456789ab"]
            assert len(Searcher(index).search(["cat"])["0"]) == 2
