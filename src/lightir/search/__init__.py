"""Searching: queries in, fused rankings out."""

from lightir.search.fusion import BranchList, Fused, fuse
from lightir.search.late import LateOptions, LateReport, LateSearcher
from lightir.search.options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.searcher import Searcher

__all__ = [
    "DEFAULT_OPTIONS",
    "BranchList",
    "Fused",
    "LateOptions",
    "LateReport",
    "LateSearcher",
    "SearchOptions",
    "Searcher",
    "fuse",
]
