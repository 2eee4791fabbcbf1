"""HTML pages and EPUB books."""

from __future__ import annotations

import posixpath
import re
import warnings
import zipfile
from typing import Any
from urllib.parse import unquote
from xml.etree import ElementTree

from lightir.data.formats.content import PAGE_BREAK, FileText, damage_as_invalid, first_heading, load, open_archive
from lightir.errors import InvalidInput

_NO_CONTENT = ("script", "style", "noscript", "template", "svg", "nav", "header", "footer", "aside", "form", "button")
_NO_CONTENT_ROLES = ("navigation", "banner", "contentinfo", "search", "complementary")
_EMPTY_LINES = re.compile(r"(?:[ \t]*\n){3,}")
_CONTAINER = "META-INF/container.xml"


def html_text(raw: bytes, limit: int) -> FileText:
    """Read an HTML page: its main part, if it marks one, without navigation, headers and footers."""
    soup = parsed(raw, ".html")
    title = " ".join(soup.title.get_text().split()) if soup.title else ""
    language = soup.html.get("lang") if soup.html else None
    text = body_markdown(soup)
    return FileText(text, title or first_heading(text), {"language": language} if language else {})


def parsed(page: bytes | str, suffix: str) -> Any:
    """Parse a page; XHTML too is parsed as HTML, since many pages are not well-formed."""
    bs4 = load("bs4", suffix)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", bs4.XMLParsedAsHTMLWarning)
        return bs4.BeautifulSoup(page, "lxml")


def body_markdown(soup: Any) -> str:
    """Return the main part of a parsed page as Markdown with the text of links, without their addresses."""
    main = soup.find("main") or soup.find(attrs={"role": "main"}) or _only_article(soup) or soup.body or soup
    for element in main.find_all(_NO_CONTENT):
        if not (element.name == "header" and element.find(["h1", "h2"])):
            element.decompose()
    for element in main.find_all(attrs={"role": list(_NO_CONTENT_ROLES)}):
        element.decompose()
    for element in main.find_all(lambda tag: tag.has_attr("hidden") or tag.get("aria-hidden") == "true"):
        element.decompose()
    markdown = load("markdownify", ".html").MarkdownConverter(
        heading_style="ATX", strip=["a", "img"], escape_asterisks=False, escape_underscores=False
    )
    try:
        return tidy(markdown.convert_soup(main))
    except RecursionError:
        raise InvalidInput("the elements of the page are nested too deeply") from None


def tidy(markdown: str) -> str:
    """Strip a text and leave one empty line where there are several."""
    return _EMPTY_LINES.sub("\n\n", markdown).strip()


def _only_article(soup: Any) -> Any:
    articles = soup.find_all("article")
    return articles[0] if len(articles) == 1 else None


def epub_text(raw: bytes, limit: int) -> FileText:
    """Read a book without copy protection: its chapters in reading order, a PAGE_BREAK between them.

    Raises:
        InvalidInput: not an EPUB, or a protected one.
    """
    archive = open_archive(raw, limit)
    with damage_as_invalid("EPUB"):
        package_name = _package_name(archive)
        package = ElementTree.fromstring(archive.read(package_name))
        chapters = [_chapter(archive, name) for name in _reading_order(package, package_name)]
    named = {field: package.findtext(f".//{{*}}metadata/{{*}}{field}") for field in ("title", "creator", "language")}
    author = {"author": named["creator"]} if named["creator"] else {}
    language = {"language": named["language"]} if named["language"] else {}
    return FileText(PAGE_BREAK.join(chapters), (named["title"] or "").strip(), {**author, **language})


def _package_name(archive: zipfile.ZipFile) -> str:
    if "META-INF/encryption.xml" in archive.namelist() and "META-INF/rights.xml" in archive.namelist():
        raise InvalidInput("the book is copy-protected")
    container = ElementTree.fromstring(archive.read(_CONTAINER))
    root = container.find(".//{*}rootfile")
    if root is None or "full-path" not in root.attrib:
        raise InvalidInput(f"{_CONTAINER} names no package")
    return root.attrib["full-path"]


def _reading_order(package: ElementTree.Element, package_name: str) -> list[str]:
    """Return the names of the chapters' files in the archive."""
    folder = posixpath.dirname(package_name)
    names = {item.get("id"): item.get("href", "") for item in package.iterfind(".//{*}manifest/{*}item")}
    spine = [names[item.get("idref")] for item in package.iterfind(".//{*}spine/{*}itemref")]
    return [posixpath.normpath(posixpath.join(folder, unquote(name))) for name in spine]


def _chapter(archive: zipfile.ZipFile, name: str) -> str:
    return body_markdown(parsed(archive.read(name), ".epub"))
