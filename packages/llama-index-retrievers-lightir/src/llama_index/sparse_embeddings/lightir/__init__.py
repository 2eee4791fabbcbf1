"""A model of lightir as LlamaIndex's sparse embedding."""

from llama_index.sparse_embeddings.lightir.base import LightIRSparseEmbedding

__all__ = ["LightIRSparseEmbedding"]
