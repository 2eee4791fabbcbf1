"""Full query encoder: queries through the whole model, the reference for light queries."""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import Literal

import numpy as np
import torch
from torch import Tensor

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract, require_same_documents
from lightir.encode.torch_models import load_encoder
from lightir.errors import InvalidInput
from lightir.models.bags import terms_present
from lightir.models.batch_states import read_texts
from lightir.models.encoder import LightRetriever
from lightir.models.framing import TextBatch
from lightir.progress import Progress
from lightir.runtime.encode_options import EncodeOptions
from lightir.text import query_term_ids, sparse_queries
from lightir.vectors import Floats, QueryVectors, Ragged, SparseVectors

SparseForm = Literal["weights", "lex", "bin", "bag"]
"""Form of a sparse vector: the strongest terms; the text's own terms, weighted (V_lex); the strongest terms, unweighted
(V_bin); the text's own terms, unweighted (V_BoT). The last three are the paper's ablations (SiDR, appendix C)."""


class FullQueryEncoder:
    """Encodes queries by the whole model, like documents: V(q) of SiDR's beta, full and late search.

    Light queries are compared with it. Sparse vectors are those of light queries, as in LightRetriever's comparison, or
    the model's own, as in SiDR and CSplade. The model stays loaded. A `Searcher` takes it in place of the query encoder
    that the index has.
    """

    def __init__(
        self,
        model: LightRetriever,
        *,
        instruction: str | None = None,
        sparse: bool = False,
        form: SparseForm = "weights",
    ) -> None:
        """Wrap a model.

        Args:
            model: model with a dense branch, or with a sparse branch if `sparse`.
            instruction: instruction of the queries; None is the contract's.
            sparse: whether sparse vectors are the sparse head's strongest terms, like documents', or counted terms.
            form: form of the sparse head's vectors.

        Raises:
            InvalidInput: the model lacks the branch.
        """
        if model.contract.dense is None and not sparse:
            raise InvalidInput("this model has no dense branch, so there is no full query encoder")
        if model.contract.sparse is None and sparse:
            raise InvalidInput("this model has no sparse branch, so it cannot encode sparse queries")
        self._model = model
        self._instruction = instruction
        self._sparse = sparse
        self._form: SparseForm = form
        self._last: tuple[str, QueryVectors] | None = None

    @classmethod
    def load(
        cls,
        address: str | os.PathLike[str],
        *,
        instruction: str | None = None,
        sparse: bool | None = None,
        options: EncodeOptions | None = None,
        fitting: Contract | None = None,
    ) -> FullQueryEncoder:
        """Load a model.

        Args:
            address: model folder, or name of a shipped model.
            instruction: instruction of the queries; None is the contract's.
            sparse: whether sparse vectors are the sparse head's; None if the model has no dense branch.
            options: dtype, device and quantization of the model.
            fitting: contract whose document side the model must have (`index.contract`); None for no check.

        Raises:
            NotFound: there is no such model.
            ContractMismatch: the model does not fit; each differing field with both values.
            InvalidInput: the model lacks the branch.
        """
        folder = resolve_model_folder(address)
        if fitting is not None:
            require_same_documents(fitting, Contract.load(folder), names=("the index", "the model"))
        return cls.of(load_encoder(folder, options or EncodeOptions()), instruction=instruction, sparse=sparse)

    @classmethod
    def of(
        cls, model: LightRetriever, *, instruction: str | None = None, sparse: bool | None = None
    ) -> FullQueryEncoder:
        """Wrap a loaded model; `sparse` is as in `load`."""
        return cls(model, instruction=instruction, sparse=model.contract.dense is None if sparse is None else sparse)

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the model's document side."""
        return self._model.contract.document_fingerprint

    @property
    def weights_terms(self) -> bool:
        """Whether sparse queries are the sparse head's, in the form asked for, or have IDF weights."""
        return self._sparse or self._model.contract.query.weights_terms

    def encode(self, texts: Sequence[str], *, task: str | None = None) -> QueryVectors:
        """Return the queries' vectors, zeros for a query without terms; `task` must be None."""
        if task is not None:
            raise InvalidInput(f"the full query encoder has no table for task {task!r}; pass its instruction instead")
        if len(texts) != 1:
            return self._encode_all(texts)
        last = self._last
        if last is None or last[0] != texts[0]:  # both stages of late search encode the same query
            self._last = last = texts[0], self._encode_all(texts)
        return last[1]

    def _encode_all(self, texts: Sequence[str]) -> QueryVectors:
        contract, tokenizer = self._model.contract, self._model.backbone.tokenizer
        term_ids = query_term_ids(tokenizer, contract.query, texts)
        dense, sparse = self._encode(texts, term_ids)
        if contract.sparse is not None and not self._sparse:
            weights = self._model.heads.term_weights
            sparse = sparse_queries(
                term_ids,
                contract.query,
                vocab_size=contract.backbone.vocab_size,
                term_weights=None if weights is None else weights.float().cpu().numpy(),
            )
        return QueryVectors(term_ids, dense, sparse)

    @torch.no_grad()
    def _encode(self, texts: Sequence[str], term_ids: Ragged) -> tuple[Floats | None, SparseVectors | None]:
        """Return the model's dense rows, None without a dense branch, and its sparse rows if requested."""
        model, contract = self._model, self._model.contract
        rows = None
        if contract.dense is not None:
            width = contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size
            rows = np.zeros((len(texts), width), dtype=np.float32)
        terms: dict[int, tuple[Tensor, Tensor]] = {}
        nonempty = np.flatnonzero(term_ids.lengths).tolist()
        framed = model.frame_queries([texts[i] for i in nonempty], instruction=self._instruction)
        with Progress("encode queries", unit="query", total=len(nonempty)) as bar, model.reading_queries():
            for read in read_texts(model, framed):
                own = [nonempty[position] for position in read.positions]
                if rows is not None:
                    dense = model.dense_from(read.states, read.batch)[:, : rows.shape[1]]
                    rows[own] = model.comparable(dense.float()).cpu().numpy()
                if self._sparse and contract.sparse is not None:
                    weights = self._apply_form(model.sparse_from(read.states, read.batch), read.batch).cpu()
                    terms |= {query: _positive_terms(row) for query, row in zip(own, weights, strict=True)}
                bar.update(len(read.positions))
        return rows, _sparse_rows(terms, len(texts), contract.backbone.vocab_size) if self._sparse else None

    def _apply_form(self, weights: Tensor, batch: TextBatch) -> Tensor:
        """Return (B, V) weights in the encoder's sparse form."""
        if self._form in ("weights", "bin"):
            kept = self._model.keep_strongest(weights, batch, k=self._model.contract.query.top_k or None)
            return kept if self._form == "weights" else (kept > 0).float()
        own = terms_present(batch, self._model.backbone).to(weights)
        return own if self._form == "bag" else own * weights


def _positive_terms(weights: Tensor) -> tuple[Tensor, Tensor]:
    """Return the ids of the terms above zero, ascending, and their weights."""
    ids = weights.nonzero()[:, 0]
    return ids, weights[ids]


def _sparse_rows(terms: dict[int, tuple[Tensor, Tensor]], n: int, vocab_size: int) -> SparseVectors:
    """Return n rows; rows without an entry in `terms` are empty."""
    none = torch.zeros(0, dtype=torch.int64), torch.zeros(0)
    rows = [terms.get(query, none) for query in range(n)]
    indptr = np.cumsum([0, *(len(ids) for ids, _ in rows)], dtype=np.int64)
    ids = np.concatenate([np.zeros(0, np.uint32), *(ids.numpy().astype(np.uint32) for ids, _ in rows)])
    weights = np.concatenate([np.zeros(0, np.float32), *(row.float().numpy() for _, row in rows)])
    return SparseVectors(indptr, ids, weights, vocab_size)
