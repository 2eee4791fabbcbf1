"""Query encoders that need no model: cached tables of token vectors, and counts."""

from lightir.query.cached import CachedQueryEncoder, CachedTable

__all__ = ["CachedQueryEncoder", "CachedTable"]
