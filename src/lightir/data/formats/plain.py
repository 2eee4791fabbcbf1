"""Plain text, Markdown, source code, notebooks and e-mail."""

from __future__ import annotations

import email
import email.policy
import json
import re
from email.message import EmailMessage
from typing import Any

from lightir.data.formats.content import FileText, decode, first_heading
from lightir.data.formats.web import html_text
from lightir.errors import InvalidInput

_FRONT_MATTER = re.compile(r"\A---[ \t]*\r?\n(.*?)\r?\n---[ \t]*(?:\r?\n|\Z)", re.DOTALL)
_FRONT_TITLE = re.compile(r"^title:[ \t]*(.+?)[ \t]*$", re.MULTILINE)


def plain_text(raw: bytes, limit: int) -> FileText:
    """Read a text without headings, such as source code."""
    return FileText(decode(raw))


def markdown_text(raw: bytes, limit: int) -> FileText:
    """Read Markdown; its title is that of its front matter (between lines of ---), or its first heading."""
    text = decode(raw)
    front = _FRONT_MATTER.match(text)
    named = _FRONT_TITLE.search(front[1]) if front else None
    title = named[1].strip("\"'") if named else first_heading(text[front.end() :] if front else text)
    return FileText(text, title)


def notebook_text(raw: bytes, limit: int) -> FileText:
    """Read the cells of a Jupyter notebook: Markdown as it is, code between fences; outputs are left out.

    Raises:
        InvalidInput: not a notebook.
    """
    try:
        notebook = json.loads(decode(raw))
        language = notebook.get("metadata", {}).get("language_info", {}).get("name", "")
        cells = [_cell_text(cell, language) for cell in notebook["cells"]]
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise InvalidInput(f"not a Jupyter notebook of format 4: {type(error).__name__} {error}") from None
    text = "\n\n".join(cell for cell in cells if cell)
    return FileText(text, first_heading(text))


def _cell_text(cell: dict[str, Any], language: str) -> str:
    source = cell.get("source", "")
    text = (source if isinstance(source, str) else "".join(source)).strip()
    return f"```{language}\n{text}\n```" if text and cell["cell_type"] == "code" else text


def mail_text(raw: bytes, limit: int) -> FileText:
    """Read an e-mail: the subject is its title; the body is its plain text, or its HTML without one."""
    message = email.message_from_bytes(raw, policy=email.policy.default)
    if not message.keys():
        raise InvalidInput("not an e-mail: it has no headers")
    body = message.get_body(("plain", "html"))
    text = ""
    if body is not None:
        content = body.get_content() if isinstance(body, EmailMessage) else ""
        is_html = body.get_content_subtype() == "html"
        text = html_text(content.encode(), limit).text if is_html else str(content)
    names = {"from": "from", "to": "to", "date": "date"}
    metadata = {name: str(message[header]) for name, header in names.items() if message[header]}
    return FileText(text.strip(), str(message["subject"] or ""), metadata)
