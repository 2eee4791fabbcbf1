"""A sparse side for a model with a fitted query table, without training: the table's rows weight a document's terms.

The states of a mean-pooled encoder's tokens lie in the space of their mean, the document's vector, and so do the rows
that were fitted to it. A row and a state thus have a score, the largest of which over the positions is a term's weight:
ln(1 + ReLU(max_i h_i · r_t / |r_t| + b_t)). The bias b_t is minus a quantile of these maxima over sample documents, so
that the term has no weight in the others. Queries are counted terms with IDF weights over the same documents.
"""

from __future__ import annotations

import dataclasses
import os
import shutil
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from safetensors.numpy import save_file

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.contract import FILE_NAME, Contract, Fusion, SparseHead
from lightir.data import read_documents
from lightir.encode.query_encoder import stored_rows
from lightir.errors import InvalidInput
from lightir.files import atomic_folder
from lightir.models.devices import fast_dtype, usable_device
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import HeadArrays, write_parts
from lightir.query import CachedQueryEncoder
from lightir.query.encoder_files import SCALES_KEY, TERM_WEIGHTS_FILE
from lightir.train.stages.head_fitting import DOCUMENTS_FOR_IDF, document_frequencies, idf
from lightir.types import Document
from lightir.vectors import Floats

WEIGHTS = {"dense": 0.36, "sparse": 0.2, "tokens": 0.44}
"""Weights of the branches, measured for `minilm` (docs/results.md)."""


@dataclass(frozen=True, slots=True)
class SparseSideOptions:
    """Options of a sparse side.

    Attributes:
        top_k: number of strongest terms that a document keeps beside its own.
        quantile: fraction of the sample documents in which a term has no weight.
        calibration_documents: number of sample documents that bias and scale are fitted to.
        seed: seed of the sample.
        device: device of the model; "auto" uses a GPU if there is one.
    """

    top_k: int = 256
    quantile: float = 0.95
    calibration_documents: int = 300
    seed: int = 0
    device: str = "auto"


def add_sparse_side(
    model: str | os.PathLike[str],
    corpora: Sequence[Path | str],
    out: Path | str,
    *,
    options: SparseSideOptions | None = None,
    overwrite: bool = False,
) -> Path:
    """Write a copy of a distilled model whose documents and queries have a sparse side too, and return its path.

    Dense vectors and the query table do not change. One pass of the model gives both vectors of a document.

    Args:
        model: model folder, or name of a shipped model, with a query table for the model's own terms.
        corpora: corpora whose documents are the sample for IDF weights, bias and scale.
        out: model folder to write.
        options: options; None for the defaults.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: a model that has a sparse side, or whose table and token states are not of one space; no document.
        AlreadyExists: `out` exists.
    """
    options = options or SparseSideOptions()
    folder = resolve_model_folder(model)
    contract = Contract.load(folder)
    if problem := _problem(contract):
        raise InvalidInput(f"{model} cannot get a sparse side from its query table: it {problem}")
    documents = [document for path in corpora for document in read_documents(path)]
    if not documents:
        raise InvalidInput("no documents for the IDF weights and the bias of the sparse side: name a corpus")
    rows = next(iter(CachedQueryEncoder.load(folder / QUERY_ENCODER).tables.values())).float_rows()
    device = usable_device(options.device)
    retriever = LightRetriever.load(folder, dtype=fast_dtype(device), device=device)
    fit_sparse_side(retriever, rows, documents, options)
    ignored = shutil.ignore_patterns(FILE_NAME, "head.safetensors", "checkpoint*")
    with atomic_folder(Path(out), overwrite=overwrite, replaces=FILE_NAME) as aside:
        shutil.copytree(folder, aside, dirs_exist_ok=True, ignore=ignored)
        written = write_parts(aside, retriever.backbone, retriever.contract, retriever.heads)
        written.save(aside / QUERY_ENCODER)
        weights = retriever.heads.term_weights
        assert weights is not None  # fit_sparse_side has set them
        save_file({"term_weights": weights.cpu().numpy()}, str(aside / QUERY_ENCODER / TERM_WEIGHTS_FILE))
    return Path(out)


def fit_sparse_side(
    model: LightRetriever, rows: Floats, documents: Sequence[Document], options: SparseSideOptions
) -> None:
    """Give a model in memory the sparse side of a query table.

    Args:
        model: model without a sparse side.
        rows: (n, H) float32 rows of its query table, for the first n terms of its vocabulary.
        documents: one or more sample documents.
        options: options.
    """
    unit = np.zeros((model.backbone.vocab_size, rows.shape[1]), dtype=np.float32)
    unit[: len(rows)] = rows / np.maximum(np.linalg.norm(rows, axis=1, keepdims=True), 1e-12)
    packed = stored_rows(unit, dtype="int8")
    sample = np.random.default_rng(options.seed).permutation(len(documents))
    policy = model.contract.query
    texts = [documents[i].full_text() for i in sample[:DOCUMENTS_FOR_IDF]]
    frequency = document_frequencies(model.backbone.tokenizer, policy, texts, vocab_size=model.backbone.vocab_size)
    arrays = HeadArrays(
        projection=torch.from_numpy(packed["embeddings"]),
        projection_scales=torch.from_numpy(packed[SCALES_KEY]),
        term_weights=torch.from_numpy(idf(frequency, len(texts))),
    )
    model.heads = arrays
    model.contract = dataclasses.replace(
        model.contract,
        query=dataclasses.replace(policy, term_weights="idf"),
        sparse=SparseHead(projection="own", own_terms=True, top_k=options.top_k, bias_hash="fitted below"),
        fusion=Fusion("absolute", WEIGHTS, spans=model.contract.fusion.spans),
    )
    model.to(model.backbone.device)  # the new arrays
    chosen = [documents[i] for i in sample[: options.calibration_documents]]
    model.calibrate(chosen, quantile=options.quantile)
    model.fit_scale(chosen)


def _problem(contract: Contract) -> str:
    """Return why the rows of a model's table and its token states are not of one space; "" if they are."""
    dense = contract.dense
    if contract.is_external:
        return "has documents that are encoded outside lightir"
    if contract.sparse is not None:
        return "has a sparse side already"
    if contract.method != "distilled" or dense is None:
        return "has no fitted query table"
    if contract.query.tokenizer:
        return "has a table for the terms of another tokenizer"
    if dense.standardized or dense.pooling not in ("mean", "mean_all"):
        return f"pools by {dense.pooling!r}{', standardized' if dense.standardized else ''}; expected a plain mean"
    if dense.dims[:1] not in ((), (contract.backbone.hidden_size,)):
        return f"stores {dense.dims[0]} of {contract.backbone.hidden_size} dimensions"
    return ""
