"""Indexes in formats of other search systems: CIFF out and in, Anserini's collections out."""

from lightir.index.exchange.anserini_export import AnseriniReport, export_anserini, write_topics
from lightir.index.exchange.ciff_export import ExportReport, export_ciff
from lightir.index.exchange.ciff_import import import_ciff

__all__ = ["AnseriniReport", "ExportReport", "export_anserini", "export_ciff", "import_ciff", "write_topics"]
