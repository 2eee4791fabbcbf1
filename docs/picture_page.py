"""Writes docs/page-*.webp, the search page on an index of the sections of these documents: picture_page.py [FOLDER]

FOLDER keeps the index (default build/page-pictures). Requires Chromium, and the packages playwright, pillow and
lightir-smollm2-135m; encoding takes some minutes on one core.
"""

from __future__ import annotations

import io
import json
import re
import shutil
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import uvicorn
from PIL import Image
from playwright.sync_api import sync_playwright

from lightir.serve.http_app import create_app
from lightir.serve.serve_options import ServeOptions
from lightir.serve.service import SearchService

DOCS = Path(__file__).resolve().parent
GUIDES = {
    "guide": ("files", "fields", "passages", "query-syntax", "worker", "progressive", "serve", "serving", "distill"),
    "concept": ("fusion", "known-items", "reliability", "sidr", "reranking"),
}
MODEL = "smollm2-135m"
CHARACTERS = 600
"""Maximum number of characters per section that are indexed."""


def main() -> None:
    """Index the sections, unless that is done, and take the pictures."""
    folder = Path(sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "build" / "page-pictures")
    if not (folder / "lightir-docs").exists():
        make_index(folder)
    service = SearchService(folder / "lightir-docs", ServeOptions())
    listening = socket.create_server(("127.0.0.1", 0))
    server = uvicorn.Server(uvicorn.Config(create_app(service), log_level="error", ws="none"))
    thread = threading.Thread(target=server.run, args=([listening],))
    thread.start()
    try:
        take_pictures(f"http://127.0.0.1:{listening.getsockname()[1]}")
    finally:
        server.should_exit = True
        thread.join()


def make_index(folder: Path) -> None:
    """Encode and index the sections."""
    folder.mkdir(parents=True, exist_ok=True)
    lines = [json.dumps(section, ensure_ascii=False) for section in sections()]
    (folder / "sections.jsonl").write_text("\n".join(lines), encoding="utf-8")
    command = [sys.executable, "-m", "lightir"]
    corpus, index = str(folder / "sections.jsonl"), str(folder / "lightir-docs")
    subprocess.run([*command, "index", corpus, "--out", index, "--model", MODEL, "--overwrite"], check=True)
    subprocess.run([*command, "worker", index, "--once"], check=True)


def sections() -> Iterator[dict[str, Any]]:
    """Yield each section of the pages with its first paragraphs."""
    for kind, names in GUIDES.items():
        for name in names:
            title, *parts = re.split(r"^##? +", (DOCS / f"{name}.md").read_text(encoding="utf-8"), flags=re.MULTILINE)[
                1:
            ]
            for number, part in enumerate([title, *parts]):
                heading, _, body = part.partition("\n")
                text = " ".join(plain(body).split())[:CHARACTERS].rpartition(" ")[0]
                if len(text) > 80:
                    yield {
                        "_id": f"docs/{name}.md#{number}",
                        "title": heading,
                        "text": text,
                        "page": name,
                        "kind": kind,
                    }


def plain(markdown: str) -> str:
    """Return Markdown without code blocks, tables and marks."""
    text = re.sub(r"```.*?```", " ", markdown, flags=re.DOTALL)
    text = re.sub(r"^\|.*$", " ", text, flags=re.MULTILINE)
    text = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text)
    return re.sub(r"[`*]|^#+ |^- ", "", text, flags=re.MULTILINE)


def take_pictures(address: str) -> None:
    """Write the pictures: results with an explanation, the branches side by side in the dark, and a phone."""
    with sync_playwright() as started:
        chromium = shutil.which("chromium")
        browser = started.chromium.launch(executable_path=chromium, args=["--no-sandbox"])
        wide = {"viewport": {"width": 1280, "height": 860}, "device_scale_factor": 1.5}
        page = browser.new_page(**wide, color_scheme="light")
        ask(page, address, "when are new documents found")
        page.locator(".why-button").first.click()
        save(page, "page-why")
        page = browser.new_page(**wide, color_scheme="dark")
        ask(page, address, "what happens when a file is damaged")
        page.get_by_role("radio", name="Side by side").check(force=True)
        save(page, "page-compare")
        phone = {"viewport": {"width": 390, "height": 780}, "device_scale_factor": 2}
        page = browser.new_page(**phone, color_scheme="light")
        ask(page, address, "weights of the branches")
        save(page, "page-phone")
        browser.close()


def ask(page: Any, address: str, query: str) -> None:
    """Open the page and type a query."""
    page.goto(address)
    box = page.get_by_role("searchbox")
    for length in range(1, len(query) + 1, 3):  # as a person types, so that the last search meets a warm index
        box.fill(query[:length])
        page.wait_for_timeout(120)
    box.fill(query)
    page.wait_for_timeout(1500)


def save(page: Any, name: str) -> None:
    """Write what the page shows."""
    page.wait_for_timeout(1500)
    image = Image.open(io.BytesIO(page.screenshot()))
    image.convert("RGB").save(DOCS / f"{name}.webp", quality=82, method=6)


if __name__ == "__main__":
    main()
