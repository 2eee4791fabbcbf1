"""A model of lightir as LlamaIndex's embedding."""

from llama_index.embeddings.lightir.base import LightIREmbedding

__all__ = ["LightIREmbedding"]
