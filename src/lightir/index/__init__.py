"""The index: a SQLite store of documents and an immutable segment of memory-mapped arrays."""

from lightir.index.build import build_index, document_shards, normalized
from lightir.index.reader import Index, IndexInfo
from lightir.index.segment import SparseBranch

__all__ = ["Index", "IndexInfo", "SparseBranch", "build_index", "document_shards", "normalized"]
