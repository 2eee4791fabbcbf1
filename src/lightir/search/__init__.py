"""Searching: queries in, fused rankings out."""

from lightir.search.fusion import BranchList, Fused, fuse
from lightir.search.late import LateReport, LateSearcher
from lightir.search.searcher import Searcher

__all__ = ["BranchList", "Fused", "LateReport", "LateSearcher", "Searcher", "fuse"]
