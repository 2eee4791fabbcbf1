"""An index folder of lightir as Haystack's document store."""

from haystack_integrations.document_stores.lightir.document_store import LightIRDocumentStore

__all__ = ["LightIRDocumentStore"]
