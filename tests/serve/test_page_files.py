"""The page's files as the service sends them, without a browser."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import lightir.serve
from lightir.serve.page_routes import PAGE_POLICY, TYPES, page_files
from page_checks import HTML_FROM_TEXT, INLINE

FOLDER = Path(lightir.serve.__file__).parent / "page"


def test_the_page_is_answered_with_its_policy(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        answer = client.get("/")
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        assert answer.content == (FOLDER / "index.html").read_bytes()
        for name, file in page_files().items():
            sent = client.get(f"/page/{name}")
            assert (sent.status_code, sent.content) == (200, (FOLDER / name).read_bytes())
            assert sent.headers["content-security-policy"] == PAGE_POLICY
            assert sent.headers["x-content-type-options"] == "nosniff"
            assert sent.headers["content-type"] == file.media_type
            again = client.get(f"/page/{name}", headers={"if-none-match": sent.headers["etag"]})
            assert (again.status_code, again.content) == (304, b"")
    assert "unsafe" not in PAGE_POLICY
    assert set(re.findall(r"'\w+'", PAGE_POLICY)) == {"'none'", "'self'", "'script'"}


def test_other_names_are_no_files(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        for name in (
            "x.js",
            "..%2fguard.py",
            "%2e%2e/guard.py",
            "..%2f..%2f..%2fpyproject.toml",
            "",
            "%00",
            "index.html/",
        ):
            assert client.get(f"/page/{name}").status_code == 404, name


def test_every_file_is_sent() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(page_files())
    assert {path.suffix for path in FOLDER.iterdir()} == set(TYPES)


def test_the_page_needs_nothing_from_elsewhere_and_parses_no_text() -> None:
    html = (FOLDER / "index.html").read_text()
    assert INLINE.findall(html) == []
    named = re.findall(r'(?:src|href)="page/([\w.-]+)"', html)
    for path in FOLDER.iterdir():
        text = path.read_text()
        assert HTML_FROM_TEXT.findall(text) == [], path.name
        code = re.sub(r"/\*.*?\*/", "", text, flags=re.DOTALL).replace("http://www.w3.org/2000/svg", "")
        assert re.findall(r"https?://\w", code) == [], path.name
        named += re.findall(r'(?:from |import\()"\./([\w.-]+)"|URL\("([\w.-]+)"', code)
    files = {name for names in named for name in ([names] if isinstance(names, str) else names) if name}
    assert files == set(page_files()) - {"index.html"}
