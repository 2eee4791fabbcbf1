"""Patterns that no file of a page may match."""

from __future__ import annotations

import re

HTML_FROM_TEXT = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc"
)
"""Ways in which a script turns text into HTML or code."""

INLINE = re.compile(r"<style|\sstyle=|\son\w+=|<script(?![^>]*\ssrc=)")
"""Inline scripts and styles, which a strict Content-Security-Policy forbids."""
