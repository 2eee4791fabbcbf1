"""The index: a SQLite store of documents and immutable segments of memory-mapped arrays."""

from lightir.index.build import build_index, document_shards
from lightir.index.index_options import IndexOptions
from lightir.index.metadata_filters import Filter
from lightir.index.passages.options import PassageOptions
from lightir.index.reader import Index, IndexInfo
from lightir.index.schema import Field, Schema, infer
from lightir.index.segments.segment import SparseBranch
from lightir.index.token_queries import TokenQueries
from lightir.index.view import View
from lightir.index.writer import IndexWriter

__all__ = [
    "Field",
    "Filter",
    "Index",
    "IndexInfo",
    "IndexOptions",
    "IndexWriter",
    "PassageOptions",
    "Schema",
    "SparseBranch",
    "TokenQueries",
    "View",
    "build_index",
    "document_shards",
    "infer",
]
