"""Opening and creating index folders for an Embeddings object, or for none."""

from __future__ import annotations

import os
from typing import Literal

import numpy as np
from langchain_core.embeddings import Embeddings

from langchain_lightir.embeddings import LightIREmbeddings
from lightir import IndexOptions, LiveIndex, external_contract
from lightir.errors import InvalidInput

Folder = str | os.PathLike[str]
NAMES = ("model", "model_name", "model_id")
"""Attributes of Embeddings classes that hold the model's name."""


def open_index(folder: Folder, embedding: Embeddings | None, name: str | None, threads: int) -> LiveIndex:
    """Open an index folder.

    Args:
        folder: index folder.
        embedding: embeds documents, and queries if the index has no query table; None if neither is needed.
        name: name of the model behind `embedding`; None for its own.
        threads: maximum number of threads per search.

    Raises:
        NotFound: the folder is not an index.
        ContractMismatch: the index has vectors of another model.
    """
    folder = os.fspath(folder)
    if embedding is None or isinstance(embedding, LightIREmbeddings):
        documents = None if embedding is None else embedding.text_model
        return LiveIndex(folder, documents=documents, threads=threads)
    return LiveIndex.of_functions(
        folder,
        name or model_name(embedding),
        documents=lambda texts: np.array(embedding.embed_documents(list(texts))),
        queries=lambda texts: np.array([embedding.embed_query(text) for text in texts]),
        threads=threads,
    )


def create_index(
    folder: Folder,
    embedding: Embeddings | None,
    *,
    model: Folder | None = None,
    name: str | None = None,
    similarity: Literal["cosine", "dot"] = "cosine",
    options: IndexOptions | None = None,
    threads: int = 1,
) -> LiveIndex:
    """Create an empty index and open it; the arguments are those of `LightIRVectorStore.create`."""
    if embedding is not None and model is not None:
        raise InvalidInput("embedding and model exclude each other: the documents get vectors from one of them")
    contract, table = None, model
    if isinstance(embedding, LightIREmbeddings):
        table = embedding.text_model.address
    elif embedding is not None:
        dims = len(embedding.embed_query("width"))
        contract = external_contract(name or model_name(embedding), dims, similarity=similarity)
    LiveIndex.create(os.fspath(folder), contract=contract, query_encoder=table, options=options).close()
    return open_index(folder, embedding, name, threads)


def model_name(embedding: Embeddings) -> str:
    """Return the name of the model behind an Embeddings object: an attribute of NAMES, else its class."""
    named = [value for name in NAMES if isinstance(value := getattr(embedding, name, None), str) and value.strip()]
    return named[0] if named else type(embedding).__name__
