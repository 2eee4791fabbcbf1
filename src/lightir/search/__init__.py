"""Searching: queries in, fused rankings out."""

from lightir.search.fusion import RRF_CONSTANT, BranchList, Fused, fuse
from lightir.search.searcher import Searcher

__all__ = ["RRF_CONSTANT", "BranchList", "Fused", "Searcher", "fuse"]
