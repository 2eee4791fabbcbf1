"""Embedders by a model of lightir."""

from haystack_integrations.components.embedders.lightir.embedders import LightIRDocumentEmbedder, LightIRTextEmbedder

__all__ = ["LightIRDocumentEmbedder", "LightIRTextEmbedder"]
