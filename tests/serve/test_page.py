"""The search page in a real browser shows what the library gives, and nothing of a document becomes HTML."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import http.server
import json
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import uvicorn

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from lightir.index import Field, Index, IndexOptions, IndexWriter, Schema, build_index
from lightir.search import Searcher, SearchOptions
from lightir.serve.api_keys import ApiKeys, add_key
from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService
from lightir.shards import Shard
from lightir.types import Document
from small_collections import VOCAB_SIZE, csr, word_contract, word_table, write_folder

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

ATTACK = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
TYPED = SearchOptions(syntax=True, as_you_type=True)
DOCUMENTS = [
    Document("b", "🐈🐈 naïve text: the cat sleeps at the well", "Cat", {"brand": "Norda", "price": 20}),
    Document("a", "the dog runs and the cat runs", "Dogs & cats", {"brand": "Norda", "price": 30}),
    Document(ATTACK, f"a fish {ATTACK} and a cat", ATTACK, {"brand": ATTACK, "url": "javascript:window.attacked=1"}),
    Document("d/e ü", "the dog sleeps well", "", {"brand": "Vidra", "price": 50, "url": "https://example.org/d"}),
]
WIDE, PHONE = {"width": 1280, "height": 900}, {"width": 320, "height": 640}


def with_vectors(documents: list[Document]) -> Shard:
    dense = np.random.default_rng(5).standard_normal((len(documents), 4))
    dense = (dense / np.linalg.norm(dense, axis=1, keepdims=True)).astype(np.float16)
    rows: list[dict[int, float]] = [{1: 5, 5: 2}, {2: 4, 4: 3, 1: 1}, {3: 6, 1: 2}, {2: 3, 5: 3, 7: 2}]
    return Shard(documents, dense, csr(rows[: len(documents)], vocab_size=VOCAB_SIZE, dtype=np.uint8))


def make_index(folder: Path) -> Path:
    encoder = write_folder(folder / "q", word_contract(), {"": {"embeddings": word_table()}})
    fields = {"brand": Field("keyword"), "price": Field("number"), "url": Field("text")}
    options = IndexOptions(schema=Schema(fields))
    build_index([with_vectors(DOCUMENTS)], folder / "pets", query_encoder=encoder, options=options, progress=False)
    return folder / "pets"


@contextlib.contextmanager
def running(folder: Path, **given: Any) -> Iterator[str]:
    """Serve an index in a thread; yield its address."""
    options = ServeOptions(port=0, **given)
    keys = None if options.keys is None else ApiKeys.load(options.keys)
    listening = socket.create_server(("127.0.0.1", 0))
    app = create_app(SearchService(folder, options), keys)
    server = uvicorn.Server(uvicorn.Config(app, log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        thread.join()


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """An index with all branches, whose documents attack the page."""
    return make_index(tmp_path_factory.mktemp("page"))


@pytest.fixture(scope="module")
def address(pets: Path) -> Iterator[str]:
    """The address of its service, which changes nothing."""
    with running(pets, read_only=True) as served:
        yield served


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser."""
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@pytest.fixture
def page(browser: Any, address: str) -> Iterator[Any]:
    """The page, without an error in its console and without a request to another origin."""
    with opened(browser, address) as page:
        yield page


@contextlib.contextmanager
def opened(browser: Any, address: str, *, allowed: tuple[str, ...] = (), **options: Any) -> Iterator[Any]:
    context = browser.new_context(**{"viewport": WIDE, "reduced_motion": "reduce", **options})
    page = context.new_page()
    page.set_default_timeout(15_000)
    troubles: list[str] = []
    page.on("console", lambda message: troubles.append(message.text) if message.type == "error" else None)
    page.on("pageerror", lambda error: troubles.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith(address) else troubles.append(request.url))
    try:
        page.goto(address)
        yield page
        assert [trouble for trouble in troubles if not any(known in trouble for known in allowed)] == []
    finally:
        context.close()


def ask(page: Any, query: str) -> None:
    page.get_by_role("searchbox").fill(query)
    settle(page)


def settle(page: Any) -> None:
    """Wait until the answers to the last change are shown."""
    page.locator("[aria-busy=false].results").wait_for()
    page.wait_for_function(
        "() => !document.querySelector('lightir-search').shadowRoot.querySelector('[aria-busy=true]')"
    )


def shown(page: Any) -> list[str]:
    return page.locator("li.hit").evaluate_all("rows => rows.map(row => row.dataset.id)")


def expected(folder: Path, query: str, k: int = 10, **options: Any) -> list[str]:
    with Index.open(folder) as index:
        return [hit.doc_id for hit in Searcher(index).hits(query, k, dataclasses.replace(TYPED, **options))]


def test_results_change_as_a_person_types(page: Any, pets: Path) -> None:
    for query in ("c", "cat", "cat sleeps", "dog"):
        ask(page, query)
        assert shown(page) == expected(pets, query)
    latency = page.locator(".latency").inner_text()
    assert latency.count("ms") == 2
    ask(page, "cat")
    with Index.open(pets) as index:
        hits = {hit.doc_id: hit for hit in Searcher(index).hits("cat", 10, TYPED)}
    marks = page.locator("li.hit").evaluate_all(
        "rows => rows.map(row => [row.dataset.id, [...row.querySelectorAll('.snippet mark')].map(m => m.textContent)])"
    )
    assert dict(marks) == {i: [hit.snippet[a:b] for a, b in hit.highlights] for i, hit in hits.items()}
    assert dict(marks)["b"] == ["cat"]  # behind two characters that JavaScript counts as four
    assert page.url.endswith("#q=cat&mode=hybrid&k=10")


def test_nothing_of_a_document_becomes_html(page: Any) -> None:
    ask(page, "fish")
    row = page.locator("li.hit").filter(has_text="onerror").first
    assert row.locator(".title").text_content() == ATTACK
    assert ATTACK in (row.locator(".snippet").text_content() or "")
    row.locator(".why-button").click()
    row.locator(".title").click()
    dialog = page.locator("dialog[open]")
    assert ATTACK in dialog.locator(".text").inner_text()
    assert dialog.locator("a").count() == 0  # an address that is a script is no link
    assert page.locator("lightir-search :is(img, script, iframe)").count() == 0
    assert page.evaluate("window.attacked") is None


def test_the_policy_forbids_inline_scripts_styles_and_html(browser: Any, address: str) -> None:
    refusals = ("Content Security Policy", "TrustedHTML", "TrustedScript")
    with opened(browser, address, allowed=refusals) as page:
        added = page.evaluate(
            """() => {
                const script = document.createElement('script');
                script.append('window.attacked = 1');
                try { document.body.append(script); } catch { }
                const style = document.createElement('style');
                style.append('body { display: none }');
                document.body.append(style);
                try { document.body.innerHTML = '<b>x</b>'; return 'html'; } catch (error) { return error.name; }
            }"""
        )
        assert added == "TypeError"
        assert page.evaluate("[window.attacked ?? null, getComputedStyle(document.body).display]") == [None, "block"]


def test_weights_and_k_rank_again(page: Any, pets: Path) -> None:
    ask(page, "dog sleeps")
    given = {"dense": 0.0, "sparse": 0.0, "tokens": 0.0}
    for branch, weight in (("Dense", 1), ("Sparse", 0.25), ("Lexical", 0)):
        page.get_by_role("slider", name=branch).fill(str(weight))
        settle(page)
        given["tokens" if branch == "Lexical" else branch.lower()] = weight
    assert shown(page) == expected(pets, "dog sleeps", weights=given)
    page.get_by_label("Hits").fill("2")
    settle(page)
    assert shown(page) == expected(pets, "dog sleeps", 2, weights=given)
    page.get_by_label("Fusion").select_option("rrf")
    settle(page)
    assert shown(page) == expected(pets, "dog sleeps", 2, fusion="rrf")
    page.get_by_text("Reset weights").click()
    settle(page)
    assert shown(page) == expected(pets, "dog sleeps", 2)


def test_branches_stand_side_by_side(page: Any, pets: Path) -> None:
    ask(page, "cat dog")
    page.get_by_role("radio", name="Side by side").check()
    settle(page)
    columns = page.locator(".column").evaluate_all(
        "columns => columns.map(c => [c.dataset.branch, [...c.querySelectorAll('li')].map(row => row.dataset.id)])"
    )
    assert [mode for mode, _ in columns] == ["hybrid", "dense", "sparse", "tokens"]
    assert columns == [[mode, expected(pets, "cat dog", mode=mode)] for mode, _ in columns]


def test_why_shows_the_parts_of_the_score(page: Any, pets: Path) -> None:
    ask(page, "cat dog")
    page.locator(".why-button").first.click()
    why = page.locator(".why").first
    why.locator("table").first.wait_for()
    with Index.open(pets) as index:
        explained = Searcher(index).explain("cat dog", expected(pets, "cat dog")[0], TYPED)
    assert f"Score {explained.score:#.4g}, number 1 of " in why.inner_text()
    for name, branch in explained.branches.items():
        section = why.locator(f"[data-branch={name}].branch")
        numbers = [
            float(part) for part in section.locator(".product").inner_text().replace("=", "×").split("(")[0].split("×")
        ]
        assert branch.normalized is not None
        assert numbers == pytest.approx([branch.weight, branch.normalized, branch.weight * branch.normalized], rel=1e-3)
        terms = section.locator("tbody tr").evaluate_all("rows => rows.map(r => [...r.cells].map(c => c.textContent))")
        parts = {term: (float(weight), float(part)) for term, weight, _, part in terms}
        assert len(parts) == len(explained.terms[name])
        for term in explained.terms[name]:
            assert parts[term.word or term.term] == pytest.approx((term.weight, term.score), rel=1e-2)


def test_facets_count_and_filter(page: Any, pets: Path) -> None:
    ask(page, "")
    assert page.locator(".total").inner_text() == "4 documents"
    counts = page.locator(".facet .value").evaluate_all("rows => rows.map(row => row.textContent)")
    assert sorted(counts) == sorted(["Norda2", "Vidra1", f"{ATTACK}1"])
    page.get_by_role("checkbox", name="Norda").check()
    settle(page)
    assert sorted(shown(page)) == ["a", "b"]
    assert len(page.locator(".facet .value").all()) == 3  # the others can still be chosen
    page.get_by_label("price from").fill("25")
    page.get_by_label("price from").blur()
    settle(page)
    assert shown(page) == ["a"]
    ask(page, "cat")
    assert shown(page) == expected(pets, "cat", filter={"brand": "Norda", "price": {"gte": 25}})
    for text in ("remove the filter brand: Norda", "remove the filter price"):
        page.get_by_role("button", name=text).click()
        settle(page)
    assert shown(page) == expected(pets, "cat")
    assert page.get_by_label("price from").input_value() == ""


def test_the_keyboard_does_everything(page: Any) -> None:
    focus = "document.activeElement.shadowRoot?.activeElement"
    settle(page)
    assert page.evaluate(f"{focus}.id") == "query"
    page.keyboard.type("cat")
    settle(page)
    page.keyboard.press("ArrowDown")
    page.keyboard.press("ArrowDown")
    assert page.evaluate(f"{focus}.closest('li').dataset.id") == shown(page)[1]
    page.keyboard.press("w")
    page.locator(".why table").first.wait_for()
    page.keyboard.press("Enter")
    page.locator("dialog[open]").wait_for()
    page.keyboard.press("Escape")
    assert page.locator("dialog[open]").count() == 0
    assert page.evaluate(f"{focus}.className") == "title"
    page.keyboard.press("Escape")
    assert page.evaluate(f"{focus}.id") == "query"
    page.keyboard.press("ArrowDown")
    page.keyboard.press("2")
    settle(page)
    assert page.get_by_role("radio", name="Dense").is_checked()
    page.evaluate("document.querySelector('lightir-search').blur()")
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("dialog[open]").get_by_role("heading").inner_text() == "Keyboard"
    page.get_by_label("Single characters are shortcuts").uncheck()
    page.keyboard.press("Escape")
    page.locator("h1").click()
    page.keyboard.press("?")
    assert page.locator("dialog[open]").count() == 0


def test_the_code_gives_what_is_shown(page: Any) -> None:
    ask(page, "cat's dog")
    page.get_by_role("checkbox", name="Norda").check()
    settle(page)
    code = page.locator("pre code")
    if shutil.which("curl"):
        done = subprocess.run(["bash", "-c", f"{code.text_content()} -s"], capture_output=True, text=True, check=True)
        listed = [hit["doc_id"] for hit in json.loads(done.stdout)["hits"]]
        assert listed == shown(page)
    page.get_by_role("radio", name="Python").check()
    done = subprocess.run([sys.executable, "-c", code.text_content()], capture_output=True, text=True, check=True)
    assert [line.split("  ")[1] for line in done.stdout.splitlines()] == shown(page)


def test_dropped_files_become_documents(browser: Any, tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    (tmp_path / "note.md").write_text("Some words\n\n# A walrus\n\nThe walrus swims.\n")
    (tmp_path / "more.jsonl").write_text('{"_id": "b", "text": "a new walrus", "brand": "Norda"}\n')
    (tmp_path / "bad.jsonl").write_text('{"_id": "x"}\n')
    (tmp_path / "photo.jpg").write_bytes(b"\xff\xd8\xff\x00")
    with running(folder) as address, opened(browser, address) as page:
        settle(page)
        names = ("note.md", "more.jsonl", "bad.jsonl", "photo.jpg")
        page.locator("input[type=file]").set_input_files([tmp_path / name for name in names])
        dialog = page.locator("dialog[open]")
        dialog.get_by_role("button", name="Add and replace").wait_for()
        text = dialog.inner_text()
        assert "2 documents: note.md, b. Replaces b." in text
        assert "bad.jsonl: line 1 needs _id and text" in text
        assert "photo.jpg: it is not a text file" in text
        with Index.open(folder) as index:
            assert index.get(["b"])["b"] == DOCUMENTS[0]  # nothing is changed before the button
        dialog.get_by_role("button", name="Add and replace").click()
        dialog.get_by_text("2 documents added").wait_for()
        page.keyboard.press("Escape")
        ask(page, "walrus")
        assert sorted(shown(page)) == ["b", "note.md"]
        assert page.locator("li.hit[data-id='note.md'] .title").inner_text() == "A walrus"
        transfer = page.evaluate_handle(
            "() => { const t = new DataTransfer(); t.items.add(new File(['seal'], 's.txt')); return t; }"
        )
        page.locator("lightir-search .app").dispatch_event("drop", {"dataTransfer": transfer})
        page.get_by_text("1 document: s.txt.").wait_for()
    with Index.open(folder) as index:
        assert index.get(["b"])["b"].metadata == {"brand": "Norda"}
        assert "s.txt" not in index.get(["s.txt"])


def test_a_key_is_asked_for_and_decides_what_is_offered(browser: Any, pets: Path, tmp_path: Path) -> None:
    path = tmp_path / "keys.json"
    keys = {role: add_key(path, role, role) for role in ("read", "write")}  # type: ignore[arg-type]
    with running(pets, keys=path) as address:
        for role in ("read", "write"):
            with opened(browser, address, allowed=("401",)) as page:
                page.get_by_label("This service requires a key").fill("wrong")
                page.get_by_role("button", name="Use the key").click()
                page.get_by_text("the API key is unknown").wait_for()
                page.get_by_label("This service requires a key").fill(keys[role])
                page.get_by_role("button", name="Use the key").click()
                page.locator("li.hit").first.wait_for()
                assert page.get_by_role("button", name="Add files").count() == (role == "write")
                assert keys[role] not in page.content()
                assert "LIGHTIR_KEY" in page.locator("pre code").inner_text()


def test_encoding_shows_as_progress_and_brings_its_branches(browser: Any, tmp_path: Path) -> None:
    folder = make_index(tmp_path)
    with IndexWriter.open(folder) as writer:
        writer.upsert([dataclasses.replace(DOCUMENTS[0], doc_id="new")])
    with running(folder) as address, opened(browser, address) as page:
        page.get_by_text("4 of 5 documents encoded").wait_for()
        assert page.get_by_role("progressbar").evaluate("bar => [bar.value, bar.max]") == [4, 5]
        ask(page, "cat")
        assert page.locator("li.hit[data-id=new]").get_by_text("not encoded yet").count() == 1
        with IndexWriter.open(folder) as writer:
            writer.delete(["new"])
        page.get_by_role("progressbar").wait_for(state="hidden")
        page.wait_for_function(
            "() => !document.querySelector('lightir-search').shadowRoot.querySelector('[data-id=new]')"
        )


def test_other_sites_embed_the_element_if_they_are_allowed(browser: Any, pets: Path, tmp_path: Path) -> None:
    handler = functools.partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path))
    handler.log_message = lambda *_: None  # type: ignore[attr-defined]
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as site:
        threading.Thread(target=site.serve_forever).start()
        origin = f"http://127.0.0.1:{site.server_port}"
        try:
            for allowed in (True, False):
                with running(pets, read_only=True, allow_origins=(origin,) if allowed else ()) as address:
                    (tmp_path / "index.html").write_text(
                        f'<script type="module" src="{address}/page/lightir-search.js"></script>'
                        f'<lightir-search src="{address}" query="cat" mode="tokens" k="2"></lightir-search>'
                    )
                    page = browser.new_page()
                    page.goto(origin, wait_until="networkidle")
                    assert page.locator("li.hit").count() == (2 if allowed else 0)
                    if allowed:
                        page.evaluate(
                            "addEventListener('lightir-open', e => { e.preventDefault(); window.hit = e.detail; })"
                        )
                        page.locator(".title").first.click()
                        assert page.evaluate("window.hit.doc_id") == shown(page)[0]
                        assert page.locator("dialog[open]").count() == 0
                    page.close()
        finally:
            site.shutdown()


@pytest.mark.parametrize(("scheme", "size"), [("light", WIDE), ("dark", PHONE)])
def test_axe_finds_no_violation(browser: Any, address: str, scheme: str, size: dict[str, int]) -> None:
    by_axe = ("Applying inline style",)
    with opened(browser, address, allowed=by_axe, color_scheme=scheme, viewport=size) as page:
        ask(page, "cat dog")
        page.locator("details").evaluate_all("sections => sections.forEach(section => { section.open = true; })")
        page.locator(".why-button").first.click()
        page.locator(".why table").first.wait_for()
        states = [lambda: None, lambda: page.get_by_role("radio", name="Side by side").check(force=True)]
        states.append(lambda: page.locator(".title").first.click())
        for enter in states:
            enter()
            settle(page)
            violations = Axe().run(page).response["violations"]
            assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in violations] == []
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth")
