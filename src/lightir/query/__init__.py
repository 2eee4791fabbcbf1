"""Query encoders without a model: cached tables of token vectors, cached expansions, and term counts."""

from lightir.query.cached_encoder import CachedQueryEncoder
from lightir.query.expansions import CachedExpansions
from lightir.query.gate import CachedGate
from lightir.query.tables import CachedTable

__all__ = ["CachedExpansions", "CachedGate", "CachedQueryEncoder", "CachedTable"]
