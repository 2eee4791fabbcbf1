"""Query encoders that need no model: cached tables of token vectors, cached expansions, and counts."""

from lightir.query.cached import CachedQueryEncoder, CachedTable
from lightir.query.expansions import CachedExpansions

__all__ = ["CachedExpansions", "CachedQueryEncoder", "CachedTable"]
