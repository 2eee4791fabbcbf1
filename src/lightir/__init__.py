"""lightir: text retrieval with documents encoded offline by a language model, and model-free queries.

This module exports the library's main names. Each is imported on first access, so `import lightir` is fast and does not
import torch.
"""

from __future__ import annotations

from lightir.version import __version__ as __version__

TYPE_CHECKING = False  # the command line handles signals sooner if less is imported
if TYPE_CHECKING:
    from typing import Any

    from lightir.contract import external_contract
    from lightir.data import Dataset, read_documents, read_queries
    from lightir.encode.full_queries import FullQueryEncoder
    from lightir.encode.model_evaluation import evaluate_model
    from lightir.encode.model_search import late_searcher, reranking_searcher
    from lightir.encode.vocabulary import cache_vocabulary
    from lightir.errors import LightirError
    from lightir.eval import evaluate
    from lightir.index import Field, Index, IndexOptions, IndexWriter, PassageOptions, Schema, build_index
    from lightir.lines import ReadOptions
    from lightir.publish import publish_index
    from lightir.query import CachedQueryEncoder
    from lightir.query.fallback import FallbackQueryEncoder
    from lightir.runtime.documents import encode_corpus
    from lightir.runtime.model_encoder import ModelEncoder, encode_pending
    from lightir.search import (
        ExternalDocumentEncoder,
        ExternalQueryEncoder,
        LateOptions,
        LateSearcher,
        LiveIndex,
        PageOptions,
        Searcher,
        SearchOptions,
        TextModel,
    )
    from lightir.search.index_evaluation import evaluate_index
    from lightir.shards import VectorsReader
    from lightir.train.distill.distillation import distill
    from lightir.train.distill.external import distill_external
    from lightir.train.stages.registry import train_file
    from lightir.types import Document, Hit, Query

    __all__ = [
        "CachedQueryEncoder",
        "Dataset",
        "Document",
        "ExternalDocumentEncoder",
        "ExternalQueryEncoder",
        "FallbackQueryEncoder",
        "Field",
        "FullQueryEncoder",
        "Hit",
        "Index",
        "IndexOptions",
        "IndexWriter",
        "LateOptions",
        "LateSearcher",
        "LightirError",
        "LiveIndex",
        "ModelEncoder",
        "PageOptions",
        "PassageOptions",
        "Query",
        "ReadOptions",
        "Schema",
        "SearchOptions",
        "Searcher",
        "TextModel",
        "VectorsReader",
        "build_index",
        "cache_vocabulary",
        "distill",
        "distill_external",
        "encode_corpus",
        "encode_pending",
        "evaluate",
        "evaluate_index",
        "evaluate_model",
        "external_contract",
        "late_searcher",
        "publish_index",
        "read_documents",
        "read_queries",
        "reranking_searcher",
        "train_file",
    ]

_LIGHT = {
    "CachedQueryEncoder": "lightir.query",
    "Dataset": "lightir.data",
    "Document": "lightir.types",
    "ExternalDocumentEncoder": "lightir.search",
    "ExternalQueryEncoder": "lightir.search",
    "FallbackQueryEncoder": "lightir.query.fallback",
    "Field": "lightir.index",
    "Hit": "lightir.types",
    "Index": "lightir.index",
    "IndexOptions": "lightir.index",
    "IndexWriter": "lightir.index",
    "LateOptions": "lightir.search",
    "LateSearcher": "lightir.search",
    "LightirError": "lightir.errors",
    "LiveIndex": "lightir.search",
    "ModelEncoder": "lightir.runtime.model_encoder",
    "PageOptions": "lightir.search",
    "PassageOptions": "lightir.index",
    "Query": "lightir.types",
    "ReadOptions": "lightir.lines",
    "Schema": "lightir.index",
    "SearchOptions": "lightir.search",
    "Searcher": "lightir.search",
    "TextModel": "lightir.search",
    "VectorsReader": "lightir.shards",
    "build_index": "lightir.index",
    "encode_corpus": "lightir.runtime.documents",
    "encode_pending": "lightir.runtime.model_encoder",
    "evaluate": "lightir.eval",
    "evaluate_index": "lightir.search.index_evaluation",
    "external_contract": "lightir.contract",
    "publish_index": "lightir.publish",
    "read_documents": "lightir.data",
    "read_queries": "lightir.data",
}
_HEAVY = {
    "FullQueryEncoder": "lightir.encode.full_queries",
    "cache_vocabulary": "lightir.encode.vocabulary",
    "distill": "lightir.train.distill.distillation",
    "distill_external": "lightir.train.distill.external",
    "evaluate_model": "lightir.encode.model_evaluation",
    "late_searcher": "lightir.encode.model_search",
    "reranking_searcher": "lightir.encode.model_search",
    "train_file": "lightir.train.stages.registry",
}
"""Names that require the extra `train`; without it they raise MissingExtra."""


def __getattr__(name: str) -> Any:
    import importlib

    if name == "__all__":  # `from lightir import *`
        return [public for public in __dir__() if public in _LIGHT or public in _HEAVY]
    module = _LIGHT.get(name) or _HEAVY.get(name)
    if module is None:
        raise AttributeError(f"module 'lightir' has no attribute {name!r}")
    globals()[name] = value = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    """List the available names, without those that require torch if it is missing: help() and `import *` access all."""
    import importlib.util

    heavy = _HEAVY if importlib.util.find_spec("torch") is not None else {}
    return sorted({*globals(), *_LIGHT, *heavy})
