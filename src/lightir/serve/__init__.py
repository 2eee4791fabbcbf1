"""The search service: an index over HTTP. Requires the extra `serve`; needs no torch."""

from __future__ import annotations
