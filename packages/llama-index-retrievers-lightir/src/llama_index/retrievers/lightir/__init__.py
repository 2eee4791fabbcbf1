"""An index folder of lightir as LlamaIndex's retriever."""

from llama_index.retrievers.lightir.base import LightIRRetriever

__all__ = ["LightIRRetriever"]
