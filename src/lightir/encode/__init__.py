"""Encoding of documents and vocabularies by a model, re-ranking, expansion and evaluation."""

from __future__ import annotations

import lightir.models  # noqa: F401 - first, as it says what to install where torch is not there
from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.encode.vocabulary import TableOptions, cache_vocabulary, cached_expansions, cached_table
from lightir.runtime.documents import EncodeReport, encode_corpus
from lightir.runtime.encode_options import EncodeOptions

__all__ = [
    "EncodeOptions",
    "EncodeReport",
    "QueryEncoderArrays",
    "QueryTable",
    "TableOptions",
    "cache_vocabulary",
    "cached_expansions",
    "cached_table",
    "encode_corpus",
    "write_query_encoder",
]
