"""Vector databases and search engines that hold an index's documents, and searches of them by model-free queries."""

from __future__ import annotations

from lightir.engines.address import EngineAddress
from lightir.engines.engine import CollectionRecord, Engine, EngineFailed, EngineRows, open_engine
from lightir.engines.engine_searcher import EngineSearcher
from lightir.engines.pushing import PushOptions, PushReport, push_index
from lightir.engines.reading import read_collection

__all__ = [
    "CollectionRecord",
    "Engine",
    "EngineAddress",
    "EngineFailed",
    "EngineRows",
    "EngineSearcher",
    "PushOptions",
    "PushReport",
    "open_engine",
    "push_index",
    "read_collection",
]
