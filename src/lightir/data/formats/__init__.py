"""Text of files: plain text, Markdown, source code, HTML, PDF, DOCX, PPTX, XLSX, EPUB, notebooks and e-mail.

Every format becomes one text with Markdown headings; pages, slides and sheets are separated by form feeds.
"""

from lightir.data.formats.content import FileText
from lightir.data.formats.file_text import FORMATS, extract, format_suffix

__all__ = ["FORMATS", "FileText", "extract", "format_suffix"]
