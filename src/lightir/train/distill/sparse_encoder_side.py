"""A sparse side for a distilled model by a second, small encoder with a masked-LM head, such as SPLADE-tiny.

The encoder reads the ids that the model reads, and its head weights the vocabulary's terms (Formal et al., SIGIR 2021).
Queries need neither: they are counted terms with IDF weights, as in retrievers that are inference-free.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from lightir.addresses import QUERY_ENCODER, SPARSE_ENCODER, resolve_model_folder
from lightir.contract import FILE_NAME, Contract, Fusion, SparseHead
from lightir.data import read_documents
from lightir.errors import InvalidInput
from lightir.files import atomic_folder
from lightir.models.backbones import Backbone, load_backbone
from lightir.models.devices import usable_device
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import HeadArrays, read_parts, write_parts
from lightir.models.own_weights import save_weights
from lightir.query.encoder_files import TERM_WEIGHTS_FILE
from lightir.train.distill.sparse_side import SparseSideOptions
from lightir.train.stages.head_fitting import DOCUMENTS_FOR_IDF, document_frequencies, idf
from lightir.types import Document
from lightir.vectors import Floats

WEIGHTS = {"dense": 0.35, "sparse": 0.45, "tokens": 0.2}
"""Weights of the branches, chosen on development queries (docs/results.md)."""

DEFAULT_OPTIONS = SparseSideOptions(top_k=128)
"""The 128 strongest terms rank as well as 256 (docs/results.md)."""


def add_sparse_encoder(
    model: str | os.PathLike[str],
    encoder: str | os.PathLike[str],
    corpora: Sequence[Path | str],
    out: Path | str,
    *,
    options: SparseSideOptions | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a copy of a distilled model whose documents get a sparse vector of another encoder too; return its path.

    Dense vectors and the query table do not change. The encoder's weights are stored in the model folder as float16.

    Args:
        model: model folder, or name of a shipped model, with a query table for the model's own terms.
        encoder: address of an encoder of the BERT family with a masked-LM head and the model's tokenizer.
        corpora: corpora whose documents are the sample for IDF weights and the quantizer's scale.
        out: model folder to write.
        options: options, of which the quantile does not count; None for the defaults.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: a model that has a sparse side, or no fitted query table; an encoder with another tokenizer or
            without a masked-LM head; no document.
        AlreadyExists: `out` exists.
    """
    options = options or DEFAULT_OPTIONS
    folder, device = resolve_model_folder(model), usable_device(options.device)
    own = load_backbone(encoder)
    if problem := _problem(Contract.load(folder), own):
        raise InvalidInput(f"{model} cannot get a sparse side from {encoder}: {problem}")
    documents = [document for path in corpora for document in read_documents(path)]
    if not documents:
        raise InvalidInput("no documents for the IDF weights of the sparse side: name a corpus")
    ignored = shutil.ignore_patterns(FILE_NAME, "checkpoint*")
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=ignored)
        save_weights(own, aside / SPARSE_ENCODER, dtype=torch.float16)
        backbone, contract, heads = read_parts(folder, dtype=torch.float32, merge=True)
        own = load_backbone(aside / SPARSE_ENCODER)
        retriever = LightRetriever(backbone, contract, heads, sparse_encoder=own).to(device)
        weights = fit_sparse_encoder(retriever, documents, options)
        save_file({"term_weights": weights}, str(aside / QUERY_ENCODER / TERM_WEIGHTS_FILE))
        written = write_parts(aside, retriever.backbone, retriever.contract, retriever.heads)
        written.save(aside / QUERY_ENCODER)
    return Path(out)


def fit_sparse_encoder(model: LightRetriever, documents: Sequence[Document], options: SparseSideOptions) -> Floats:
    """Give a model in memory, which has a sparse encoder, its contract's sparse side; return the IDF weights.

    Args:
        model: model with a sparse encoder and without a sparse side.
        documents: one or more sample documents.
        options: options.
    """
    assert model.sparse_encoder is not None
    sample = np.random.default_rng(options.seed).permutation(len(documents))
    policy, vocab_size = model.contract.query, model.backbone.vocab_size
    texts = [documents[i].full_text() for i in sample[:DOCUMENTS_FOR_IDF]]
    frequency = document_frequencies(model.backbone.tokenizer, policy, texts, vocab_size=vocab_size)
    weights = idf(frequency, len(texts))
    model.heads = HeadArrays(term_weights=torch.from_numpy(weights))
    model.contract = dataclasses.replace(
        model.contract,
        query=dataclasses.replace(policy, term_weights="idf"),
        sparse=SparseHead(top_k=options.top_k, encoder_hash=model.sparse_encoder.weights_hash),
        fusion=Fusion("absolute", WEIGHTS, spans=model.contract.fusion.spans),
    )
    model.to(model.backbone.device)  # the new array
    model.fit_scale([documents[i] for i in sample[: options.calibration_documents]])
    return weights


def _problem(contract: Contract, encoder: Backbone) -> str:
    """Return why a model cannot get the sparse side of an encoder; "" if it can."""
    if contract.is_external:
        return "the model's documents are encoded outside lightir"
    if contract.sparse is not None:
        return "the model has a sparse side already"
    if contract.method != "distilled" or contract.dense is None:
        return "the model has no fitted query table"
    if contract.query.tokenizer:
        return "the model's table is for the terms of another tokenizer"
    if contract.dense.standardized:
        return "the model's dense vectors are standardized"
    if encoder.kind != "encoder" or encoder.head is None:
        return "it has no masked-LM head"
    if encoder.tokenizer.hash != contract.backbone.tokenizer_hash:
        return "it has another tokenizer"
    return ""
