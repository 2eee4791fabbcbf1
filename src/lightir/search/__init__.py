"""Searching: queries in, fused rankings out."""

from lightir.kernel.candidates import BranchColumn, Candidates
from lightir.search.external_vectors import ExternalDocumentEncoder, ExternalQueryEncoder
from lightir.search.late import LateOptions, LateReport, LateSearcher, SecondStage
from lightir.search.live_index import LiveIndex
from lightir.search.pages import Page, PageOptions
from lightir.search.pair_stage import PairScorer, PairStage
from lightir.search.prepared import PreparedSearch
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.searcher import Searcher
from lightir.search.second_stage import OtherStage, OwnStage
from lightir.search.text_model import TextModel

__all__ = [
    "DEFAULT_OPTIONS",
    "BranchColumn",
    "Candidates",
    "ExternalDocumentEncoder",
    "ExternalQueryEncoder",
    "LateOptions",
    "LateReport",
    "LateSearcher",
    "LiveIndex",
    "OtherStage",
    "OwnStage",
    "Page",
    "PageOptions",
    "PairScorer",
    "PairStage",
    "PreparedSearch",
    "SearchOptions",
    "Searcher",
    "SecondStage",
    "TextModel",
]
