"""The index: a SQLite store of documents and an immutable segment of memory-mapped arrays."""

from lightir.index.build import build_index, document_shards
from lightir.index.bm25 import B, K1
from lightir.index.reader import Index, IndexInfo, SparseBranch

__all__ = ["B", "K1", "Index", "IndexInfo", "SparseBranch", "build_index", "document_shards"]
