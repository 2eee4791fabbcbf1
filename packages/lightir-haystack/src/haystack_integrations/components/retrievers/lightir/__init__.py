"""Retrievers over an index folder of lightir."""

from haystack_integrations.components.retrievers.lightir.retrievers import LightIREmbeddingRetriever, LightIRRetriever

__all__ = ["LightIREmbeddingRetriever", "LightIRRetriever"]
