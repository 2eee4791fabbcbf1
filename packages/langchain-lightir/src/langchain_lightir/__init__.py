"""LangChain's vector store, retriever and embeddings over lightir."""

from langchain_lightir.embeddings import LightIREmbeddings
from langchain_lightir.retrievers import LightIRRetriever
from langchain_lightir.vectorstores import LightIRVectorStore

__all__ = ["LightIREmbeddings", "LightIRRetriever", "LightIRVectorStore"]
