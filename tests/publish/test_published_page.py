"""The page of a published index in a real browser, on a host that knows nothing of lightir."""

from __future__ import annotations

import contextlib
import functools
import http.server
import re
import runpy
import shutil
import sys
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("playwright")
pytest.importorskip("axe_playwright_python")

from axe_playwright_python.sync_playwright import Axe
from playwright.sync_api import sync_playwright

from lightir.index import Field, Index, IndexOptions, Schema
from lightir.publish import publish_index
from lightir.search import PageOptions, Searcher, SearchOptions
from lightir.types import Document
from published_indexes import make_index, random_documents

CHROMIUM = shutil.which("chromium") or shutil.which("google-chrome") or ""
pytestmark = pytest.mark.skipif(not CHROMIUM, reason="Chromium is not installed")

ATTACK = '<img src=x onerror="window.attacked=1"><script>window.attacked=1</script>'
DOCUMENTS = [
    *random_documents(40),
    Document(ATTACK, f"🐈🐈 a kettle {ATTACK} that sleeps", ATTACK, {"url": "javascript:window.attacked=1"}),
]
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; require-trusted-types-for 'script'; trusted-types 'none'"
)
PREFIX = "/some/where/search/"
ROOT = Path(__file__).resolve().parents[2]
LONG = 40  # sentences, so that a section is a passage of its own
PAGES = {
    "README.md": f"# Kettles\n\n{'Kettles boil water. ' * LONG}\n\n"
    f"## Where to buy\n\n{'Shops sell kettles. ' * LONG}\n",
    "docs/care.md": f"# Care\n\n{'A kettle lasts for years. ' * LONG}\n\n"
    f"## `descale`: limescale & vinegar_bath\n\n{'Vinegar dissolves limescale. ' * LONG}\n",
    "packages/whistle/README.md": "# The whistle\n\nA whistle sings when steam passes through it.\n",
}
"""Pages of a small documentation site."""


class Host(http.server.SimpleHTTPRequestHandler):
    """A host with a strict policy and ranges; the folder is somewhere below its root."""

    protocol_version = "HTTP/1.1"
    has_ranges = True

    def log_message(self, *_: Any) -> None:
        """Say nothing."""

    def do_GET(self) -> None:
        """Send a file, or a range of its bytes."""
        path = Path(self.directory, self.path.split("?")[0].removeprefix(PREFIX) or "index.html")
        if not self.path.startswith(PREFIX) or not path.is_file():
            self.send_error(404)
            return
        content, asked = path.read_bytes(), re.fullmatch(r"bytes=(\d+)-(\d+)", self.headers.get("range", ""))
        if asked and self.has_ranges:
            content = content[int(asked[1]) : int(asked[2]) + 1]
        self.send_response(206 if asked and self.has_ranges else 200)
        self.send_header("content-security-policy", POLICY)
        self.send_header("content-type", self.guess_type(path))
        self.send_header("content-length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)


class SimpleHost(Host):
    """A host without ranges."""

    has_ranges = False


@contextlib.contextmanager
def running(site: Path, handler: type[Host]) -> Iterator[str]:
    """Serve a published folder in a thread; yield its address."""
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(handler, directory=str(site)))
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_port}{PREFIX}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@pytest.fixture(scope="module")
def pets(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """An index whose documents attack the page, and its publication."""
    folder = tmp_path_factory.mktemp("page")
    index = make_index(folder, DOCUMENTS)
    with Index.open(index) as opened:
        publish_index(opened, folder / "site", progress=False)
    return index, folder / "site"


@pytest.fixture(scope="module")
def browser() -> Iterator[Any]:
    """A real browser."""
    with sync_playwright() as started:
        launched = started.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        yield launched
        launched.close()


@contextlib.contextmanager
def opened(browser: Any, site: Path, handler: type[Host] = Host, *, allowed: str = "") -> Iterator[Any]:
    """Open the page; fail on an error in its console that is not allowed, and on a request to another address."""
    troubles: list[str] = []
    with running(site, handler) as address:
        page = browser.new_context(viewport={"width": 1280, "height": 900}, reduced_motion="reduce").new_page()
        page.set_default_timeout(15_000)
        page.on(
            "console",
            lambda message: troubles.append(f"{message.text} {message.location}") if message.type == "error" else None,
        )
        page.on("pageerror", lambda error: troubles.append(str(error)))
        page.on("request", lambda sent: None if sent.url.startswith(address) else troubles.append(sent.url))
        try:
            page.goto(address)
            yield page
            assert [trouble for trouble in troubles if not allowed or allowed not in trouble] == []
        finally:
            page.context.close()


def ask(page: Any, query: str) -> list[str]:
    """Type a query, and return the ids of the hits that are shown."""
    page.get_by_role("searchbox").fill(query)
    page.locator("[aria-busy=false].results").wait_for()
    return page.locator("li.hit").evaluate_all("rows => rows.map(row => row.dataset.id)")


def expected(index: Path, query: str, **options: Any) -> list[str]:
    with Index.open(index) as opened_index:
        asked = SearchOptions(typos=False, as_you_type=True, **options)
        return [hit.doc_id for hit in Searcher(opened_index).hits(query, 10, asked)]


@pytest.mark.parametrize("handler", [Host, SimpleHost])
def test_results_change_as_a_person_types(browser: Any, pets: tuple[Path, Path], handler: type[Host]) -> None:
    index, site = pets
    with opened(browser, site, handler) as page:
        page.locator("li.hit").first.wait_for()  # without a query, the first documents
        for query in ("k", "kett", "kettle", "kettle cats", "kettle cats run"):
            assert ask(page, query) == expected(index, query), query
        assert page.locator(".latency").inner_text().count("ms") == 2
        assert page.url.endswith("#q=kettle+cats+run&mode=hybrid&k=10")
        assert page.title() == "kettle cats run · Search"


def test_hits_are_explained_compared_and_opened(browser: Any, pets: tuple[Path, Path]) -> None:
    index, site = pets
    with opened(browser, site) as page:
        first = ask(page, "kettle sleeps")[0]
        page.locator(".why-button").first.click()
        assert page.locator(".why section.branch").count() == 2
        assert "kettl" in page.locator(".why [data-branch=tokens]").first.inner_text()
        page.locator("li.hit .title").first.click()
        text = next(document.text for document in DOCUMENTS if document.doc_id == first)
        assert page.locator("dialog[open] .text").text_content() == text
        page.keyboard.press("Escape")
        page.get_by_role("radio", name="Side by side").check()
        page.locator(".column").first.wait_for()
        columns = page.locator(".column").evaluate_all(
            "columns => columns.map(c => [c.dataset.branch, [...c.querySelectorAll('li')].map(row => row.dataset.id)])"
        )
        modes = ["hybrid", "dense", "tokens"]
        assert columns == [[mode, expected(index, "kettle sleeps", mode=mode)] for mode in modes]
        assert page.get_by_text("As code").count() == 0
        assert page.get_by_role("slider", name="Dense").count() == 1


def test_nothing_of_a_document_becomes_html(browser: Any, pets: tuple[Path, Path]) -> None:
    with opened(browser, pets[1]) as page:
        assert ATTACK in ask(page, "onerror window attacked")
        row = page.locator("li.hit").filter(has_text="onerror").first
        assert ATTACK in (row.locator(".snippet").text_content() or "")
        row.locator(".title").click()
        assert ATTACK in page.locator("dialog[open] .text").inner_text()
        assert page.locator("lightir-search :is(img, script, iframe)").count() == 0
        assert page.evaluate("window.attacked") is None


def test_what_was_read_is_searched_without_a_network(browser: Any, pets: tuple[Path, Path]) -> None:
    with opened(browser, pets[1], allowed="icon.svg") as page:
        before = ask(page, "kettle cats")
        ask(page, "dogs")
        page.context.set_offline(True)
        assert ask(page, "kettle cats") == before
        page.context.set_offline(False)


def test_the_page_has_no_violations_of_accessibility(browser: Any, pets: tuple[Path, Path]) -> None:
    with opened(browser, pets[1], allowed="inline style") as page:  # axe adds one
        ask(page, "kettle")
        violations = Axe().run(page).response["violations"]
        assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in violations] == []


def test_facets_count_and_filter(browser: Any, tmp_path: Path) -> None:
    documents = [
        replace(document, metadata={"kind": "ab"[i % 2], "day": f"2024-01-{i % 28 + 1:02d}", "price": i})
        for i, document in enumerate(random_documents(40))
    ]
    schema = Schema({"kind": Field("keyword"), "day": Field("date"), "price": Field("number")})
    index = make_index(tmp_path, documents, options=IndexOptions(schema=schema))
    with Index.open(index) as opened_index:
        publish_index(opened_index, tmp_path / "site", progress=False)
    with opened(browser, tmp_path / "site") as page:
        ask(page, "kettle cats")
        assert ask(page, "kettle cats") == expected(index, "kettle cats")
        page.locator(".facet .value").first.wait_for()
        page.get_by_role("checkbox", name="b").check()
        page.get_by_label("price from").fill("7")
        page.get_by_label("price from").blur()
        page.get_by_label("day to").fill("2024-01-20")
        page.get_by_label("day to").blur()
        wanted = {"kind": {"in": ["b"]}, "price": {"gte": 7}, "day": {"lte": "2024-01-20"}}
        assert ask(page, "cats kettle") == expected(index, "cats kettle", filter=wanted)
        with Index.open(index) as opened_index:
            options = SearchOptions(filter=wanted, typos=False, compounds=False)
            total = Searcher(opened_index).page("cats kettle", PageOptions(limit=1), options).total
        page.get_by_text(f"{total} match").wait_for()


@pytest.fixture(scope="module")
def documentation(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small documentation site, whose search is made as `make site` makes it; pages have the site's anchors."""
    root = tmp_path_factory.mktemp("documentation")
    site, html = root / "site", root / "site" / "html"
    for name, text in PAGES.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    (root / "mkdocs.yml").write_text("".join(f"  - A page: {name}\n" for name in PAGES), encoding="utf-8")
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(ROOT / "docs")
        publish_search = runpy.run_path(str(ROOT / "docs" / "build_site.py"))["publish_search"]
    publish_search.__globals__.update(ROOT=root, SITE=site)
    site.mkdir()
    publish_search(str(Path(sys.executable).with_name("lightir")))
    search = (ROOT / "docs" / "search.md").read_text(encoding="utf-8")
    contents = {
        "index.html": '<h1 id="kettles">Kettles</h1><h2 id="where-to-buy">Where to buy</h2>',
        "docs/care.html": '<h1 id="care">Care</h1><h2 id="descale-limescale-vinegar_bath">Limescale</h2>',
        "packages/whistle/index.html": '<h1 id="the-whistle">The whistle</h1>',
        "docs/search.html": "<h1>Search</h1>" + "".join(re.findall(r"^<.+$", search, re.MULTILINE)),
    }
    for name, content in contents.items():
        (html / name).parent.mkdir(parents=True, exist_ok=True)
        icon = "../" * name.count("/") + "search/page/icon.svg"
        head = '<!doctype html><html lang="en"><meta charset="utf-8"><title>Kettles</title><link rel="icon" '
        (html / name).write_text(f'{head}href="{icon}"><main>{content}</main>', encoding="utf-8")
    shutil.copyfile(ROOT / "docs" / "site-search.js", html / "docs" / "site-search.js")
    return html


@pytest.mark.parametrize(
    ("query", "target"),
    [
        ("dissolves limescale", "docs/care.html#descale-limescale-vinegar_bath"),
        ("shops that sell", "index.html#where-to-buy"),
        ("boil water", "index.html"),
        ("steam whistle", "packages/whistle/index.html"),
    ],
)
def test_a_hit_of_the_documentation_opens_its_page_at_its_heading(
    browser: Any, documentation: Path, query: str, target: str
) -> None:
    with opened(browser, documentation) as page:
        home = page.url
        page.goto(f"{home}docs/search.html")
        ask(page, query)
        page.locator("li.hit .title").first.click()
        page.wait_for_url(lambda url: url.startswith(home) and "search.html" not in url)
        assert page.url.removeprefix(home) == target
        path, _, fragment = target.partition("#")
        assert (documentation / path).is_file()
        assert not fragment or page.locator(f":target[id='{fragment}']").count() == 1


def test_the_search_of_the_documentation_is_accessible(browser: Any, documentation: Path) -> None:
    with opened(browser, documentation, allowed="inline style") as page:  # axe adds one
        page.goto(f"{page.url}docs/search.html")
        assert ask(page, "steam whistle")[0].startswith("pages/packages/whistle/README.md")
        violations = Axe().run(page).response["violations"]
        assert [(v["id"], [node["html"] for node in v["nodes"]]) for v in violations] == []
