"""LightRetriever's encoder: whole texts through the model, and light queries one token at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightir.addresses import SPARSE_ENCODER, resolve_model_folder
from lightir.contract import Contract, DenseHead, SparseHead
from lightir.errors import InvalidInput
from lightir.files import copy_folder
from lightir.models.attention import SDPA
from lightir.models.backbones import Backbone, first_layers
from lightir.models.bags import count_terms, mix_rows, terms_present, token_means
from lightir.models.compilation import compiled_if_worth, layers_compiled_for_any_shape
from lightir.models.devices import usable_device
from lightir.models.framing import Framed, Framing, TextBatch, pad_batch
from lightir.models.heads import (
    LMHead,
    activate,
    calibrate_bias,
    fitted_scale,
    quantize,
    state_norm,
    top_k_weights,
    without_first_terms,
)
from lightir.models.masks import PromptCache, causal_mask, model_mask, prompt_cache, text_positions, token_states
from lightir.models.model_folder import HeadArrays, read_parts, sparse_encoder, with_array_hashes, write_parts
from lightir.models.pooling import Pooling, fit_standardization, pool, standardize
from lightir.models.projection import StoredTerms
from lightir.runtime.encode_options import BATCH_TOKENS
from lightir.text import QueryPolicy, TextTokenizer
from lightir.types import Document
from lightir.vectors import Floats, Ragged, SparseVectors

CALIBRATION_BATCH = 16
GPU_ENCODE_SIZE = 512
"""Number of documents that a worker encodes together on a GPU."""


class LightRetriever(nn.Module):
    """A backbone with LightRetriever's heads, under one contract.

    The module holds the backbone's trunk (with its adapter) as a child. The heads are fixed arrays, except for a
    trainable term bias that training may set. The sparse head can have an encoder of its own, which reads the same ids.
    """

    def __init__(
        self,
        backbone: Backbone,
        contract: Contract,
        heads: HeadArrays | None = None,
        *,
        sparse_encoder: Backbone | None = None,
    ) -> None:
        """Join a backbone, a contract with its policies, the arrays of its heads, and the sparse head's own encoder."""
        super().__init__()
        if contract.attention == "echo" and contract.document.light:
            raise InvalidInput("light documents are encoded token by token: there is no text to repeat for an echo")
        if contract.attention == "echo" and (backbone.attention != "causal" or _pools_everything(contract)):
            raise InvalidInput(
                "attention 'echo' pools over a text's second copy, read causally: it does not support encoders "
                "or pooling 'mean_all'"
            )
        self.backbone = backbone
        self.trunk = backbone.trunk
        self.contract = contract
        self.heads = heads or HeadArrays()
        self.sparse_encoder = sparse_encoder
        self.sparse_trunk = None if sparse_encoder is None else sparse_encoder.trunk
        self._unpacked: tuple[Tensor | None, Tensor] | None = None

    # ---- loading and saving

    @classmethod
    def load(
        cls, address: str | Path, *, dtype: torch.dtype = torch.float32, merge: bool = True, device: str = "cpu"
    ) -> LightRetriever:
        """Load a model and the backbone that its contract names.

        Args:
            address: model folder, or name of a shipped model.
            dtype: dtype of the backbone's weights.
            merge: whether the adapter is merged into the weights; if not, it is trainable.
            device: torch device; "auto" is a GPU if there is one, else the CPU.

        Raises:
            ContractMismatch: the backbone, adapter, tokenizer or head differs from the contract's.
            InvalidInput: a missing device.
        """
        device, folder = usable_device(device), resolve_model_folder(address)
        backbone, contract, heads = read_parts(folder, dtype=dtype, merge=merge)
        own = sparse_encoder(folder, contract, dtype=dtype)
        return cls(backbone, contract, heads, sparse_encoder=own).to(device)

    def save(self, folder: Path) -> Contract:
        """Write a model folder; update the model's contract to the hashes of the saved arrays and return it."""
        if self.sparse_encoder is not None:
            copy_folder(self.sparse_encoder.files, folder / SPARSE_ENCODER)
        self.contract = write_parts(folder, self.backbone, self.contract, self.heads)
        return self.contract

    def to(self, *arguments: Any, **keywords: Any) -> LightRetriever:
        """Move the trunk, the LM head and the fixed arrays; the dtype is set by the backbone's loader."""
        super().to(*arguments, **keywords)
        device = self.backbone.device
        self.heads = HeadArrays(**{name: value.to(device) for name, value in self.heads.arrays().items()})
        if (head := self.backbone.head) is not None:
            self.backbone = dataclasses.replace(self.backbone, head=head.to(device))
        if (own := self.sparse_encoder) is not None and own.head is not None:
            self.sparse_encoder = dataclasses.replace(own, head=own.head.to(device))
        if device.type == "cuda" and not getattr(self.backbone.model.config, "attn_logit_softcapping", None):
            self.backbone.model.set_attn_implementation(SDPA)
        return self

    # ---- texts to batches

    @property
    def framing(self) -> Framing:
        """Frame of this model's texts."""
        return Framing(self.backbone, self.contract)

    @property
    def end_ids(self) -> list[int]:
        """Ids of the end tokens of a text; [] if the contract has none."""
        return self.framing.end_ids

    def frame_documents(self, documents: Sequence[Document | str]) -> list[Framed]:
        """Frame documents as `<bos> prompt text suffix <eos>`, with the span of the text; the text is truncated.

        With attention "echo" as `<bos> prompt text second prompt text suffix <eos>`, with the span of the second copy.
        """
        return self.framing.documents(documents)

    def frame_queries(self, texts: Sequence[str], *, instruction: str | None = None) -> list[Framed]:
        """Frame queries as `<bos> Inst query suffix <eos>` for the full encoder, with the terms of light queries."""
        return self.framing.queries(texts, self._query_policy(instruction))

    def batch(self, framed: Sequence[Framed], *, length: int | None = None, padding_side: str = "right") -> TextBatch:
        """Pad framed texts to one length (None is the longest text's)."""
        return pad_batch(framed, self.backbone, length=length, padding_side=padding_side)

    def _query_policy(self, instruction: str | None) -> QueryPolicy:
        policy = self.contract.query
        return policy if instruction is None else dataclasses.replace(policy, instruction=instruction)

    def _prompt_ids(self, instruction: str | None) -> list[int]:
        return self.framing.text_ids(self._query_policy(instruction).prompt)

    # ---- whole texts

    def states(self, batch: TextBatch) -> Tensor:
        """Return the last hidden states (B, T, H); a text attends only its own tokens, on any padding side."""
        mask = batch.attention_mask
        positions = text_positions(mask)
        if self.backbone.attention == "bidirectional":
            return self.backbone.states(batch.input_ids, mask.long(), position_ids=positions)
        prepared = model_mask(self.backbone, causal_mask(mask), positions, positions)
        return self.backbone.states(batch.input_ids, prepared, position_ids=positions, use_cache=False)

    def reading_queries(self) -> AbstractContextManager[None]:
        """Return a context in which the model reads with the contract's query_layers: texts in it are queries."""
        return first_layers(self.backbone, self.contract.query_layers)

    def document_vectors(
        self,
        batch: TextBatch,
        *,
        dense: bool = True,
        sparse: bool = True,
        terms: Tensor | None = None,
        straight_through: bool = False,
        states: Tensor | None = None,
    ) -> tuple[Tensor | None, Tensor | None]:
        """Return the fp32 vectors of framed documents: dense (B, H), not normalized, and sparse (B, V or n).

        Args:
            batch: batch of `frame_documents`.
            dense: whether to compute dense vectors; None is returned without.
            sparse: whether to compute sparse vectors; None is returned without.
            terms: (n,) int64 ids of the terms of the sparse vectors; None for the whole vocabulary.
            straight_through: whether ReLU has GELU's gradient (see `activate`).
            states: last hidden states of the batch, if they are computed already.
        """
        if self.contract.document.light:
            own = [ids[mask].cpu().numpy() for ids, mask in zip(batch.input_ids, batch.own_mask, strict=True)]
            term_ids = Ragged.from_lists([row.tolist() for row in own])
            counts = count_terms(term_ids, self.backbone, terms) if sparse else None
            return self._light_vectors(term_ids, self.contract.document.prompt) if dense else None, counts
        states = self.states(batch) if states is None else states
        return (
            self.dense_from(states, batch) if dense else None,
            self.sparse_from(states, batch, terms=terms, straight_through=straight_through) if sparse else None,
        )

    def _light_vectors(self, term_ids: Ragged, prompt: str) -> Tensor:
        unique, mixing = token_means(term_ids)
        states = self._token_states(unique, self.framing.text_ids(prompt), self._dense.pooling)
        return mix_rows(mixing, self._standardize(states))

    def dense_from(self, states: Tensor, batch: TextBatch) -> Tensor:
        """Return (B, H) float32 pooled and standardized states, not normalized."""
        pooled = pool(
            states,
            attention_mask=batch.attention_mask,
            text_mask=batch.own_mask,
            pooling=self._dense.pooling,
            ends=self.contract.document.ends,
        )
        return self._standardize(pooled)

    def sparse_from(
        self, states: Tensor, batch: TextBatch, *, terms: Tensor | None = None, straight_through: bool = False
    ) -> Tensor:
        """Return (B, V) float32 weights of all terms, without top-k: Eq. 8 over the text's own positions.

        With `terms`, (n,) int64 term ids, the weights are (B, n), at n / V of the cost. `straight_through`: see
        `activate`. A sparse head with an encoder of its own reads the batch itself, and ignores the states.
        """
        states = self._sparse_states(states, batch)
        maxima = self._head.maxima(states, batch.own_mask, term_bias=self.heads.term_bias, terms=terms)
        maxima = without_first_terms(maxima, self._sparse.first_term, terms=terms)
        return activate(maxima, self._sparse.activation, straight_through=straight_through)

    def maxima(self, states: Tensor, batch: TextBatch) -> Tensor:
        """Return each term's largest logit over the text's own positions, without the calibrated bias: (B, V) fp32."""
        return self._head.maxima(self._sparse_states(states, batch), batch.own_mask)

    def _sparse_states(self, states: Tensor, batch: TextBatch) -> Tensor:
        """Return the states that the sparse head gets: those of its own encoder, else the backbone's."""
        if self.sparse_encoder is None:
            return states
        mask = batch.attention_mask
        return self.sparse_encoder.states(batch.input_ids, mask.long(), position_ids=text_positions(mask))

    # ---- queries as single tokens

    def light_queries(self, term_ids: Ragged, *, instruction: str | None = None, pad_to: int = 1) -> Tensor:
        """Return the mean of each query's token vectors (Eq. 4): (n, H) float32, not normalized; 0 for empty queries.

        Each distinct token of the batch is encoded once, all in one shared-prompt forward.

        Raises:
            InvalidInput: the query policy has bigrams, a gate or its own tokenizer, which only a fitted table has.
        """
        if self.contract.query.bigrams or self.contract.query.gate or self.contract.query.tokenizer:
            raise InvalidInput(
                "this model's query table has rows for bigrams, a gate, or another tokenizer than the model: only the "
                "table encodes its light queries"
            )
        unique, mixing = token_means(term_ids)
        rows = self.token_vectors(unique, instruction=instruction, pad_to=pad_to)
        return mix_rows(mixing, rows)

    def token_vectors(
        self,
        token_ids: Tensor,
        *,
        instruction: str | None = None,
        cache: PromptCache | None = None,
        pad_to: int = 1,
    ) -> Tensor:
        """Return Enc_q(Inst; t) of single tokens, by shared-prompt forwards (Eq. 3): (n, H) float32, standardized.

        With the query policy's token_vectors "embeddings" they are the model's input embeddings, unchanged.

        Args:
            token_ids: (n,) int64.
            instruction: instruction in the prompt; None is the contract's.
            cache: `prompt_cache` of the same instruction.
            pad_to: n is padded to a multiple of this, so that compiled layers see few shapes.
        """
        if self.contract.query.token_vectors == "embeddings":
            embedded: Tensor = self.backbone.model.get_input_embeddings()(token_ids.to(self.backbone.device))
            return embedded.float()
        if self.contract.attention == "echo":
            return self.dense_from(*self._encode_echoed(token_ids, instruction))
        if not self.contract.has_light_queries:
            raise InvalidInput(
                "this model's queries have a suffix, several end tokens or layers of their own, or are compared by dot "
                "product: it has no light queries"
            )
        padded = F.pad(token_ids, (0, -len(token_ids) % pad_to))
        states = self._token_states(padded, self._prompt_ids(instruction), self._dense.pooling, cache=cache)
        return self._standardize(states[: len(token_ids)])

    def token_weights(
        self,
        token_ids: Tensor,
        *,
        instruction: str | None = None,
        cache: PromptCache | None = None,
        pad_to: int = 1,
    ) -> Tensor:
        """Return the sparse head's weights for each single token in the prompt: (n, V) float32, all terms.

        Args:
            token_ids: (n,) int64.
            instruction: instruction in the prompt; None is the contract's.
            cache: `prompt_cache` of the same instruction.
            pad_to: n is padded to a multiple of this, so that compiled layers see few shapes.

        Raises:
            InvalidInput: the sparse head has an encoder of its own, which reads whole texts alone.
        """
        if self.sparse_encoder is not None:
            raise InvalidInput("the sparse head has an encoder of its own, so single tokens have no expansion")
        if self.contract.attention == "echo":
            return self.sparse_from(*self._encode_echoed(token_ids, instruction))
        padded = F.pad(token_ids, (0, -len(token_ids) % pad_to))
        states = self._token_states(padded, self._prompt_ids(instruction), "last", cache=cache)
        states = states[: len(token_ids), None]
        own = torch.ones(states.shape[:2], dtype=torch.bool, device=states.device)
        return self.sparse_from(states, TextBatch(own.long(), own, own))

    def token_expansions(
        self,
        token_ids: Tensor,
        *,
        instruction: str | None = None,
        cache: PromptCache | None = None,
        pad_to: int = 1,
    ) -> tuple[Tensor, Tensor]:
        """Return the k strongest terms of `token_weights`, always including the token itself.

        k is the query policy's expansion_terms. Arguments are those of `token_weights`.

        Returns:
            (n, k) int64 term ids, and (n, k) float32 weights, which carry gradients.
        """
        rows = self.token_weights(token_ids, instruction=instruction, cache=cache, pad_to=pad_to)
        own = token_ids.to(rows.device)[:, None]
        ranked = rows.detach().scatter(1, own, torch.inf)
        terms = ranked.topk(min(self.contract.query.expansion_terms, rows.shape[1]), dim=1).indices
        return terms, rows.gather(1, terms)

    def prompt_cache(self, *, instruction: str | None = None) -> PromptCache | None:
        """Return the keys and values of `<bos> Inst`, shared by a whole vocabulary; None if nothing can be shared."""
        if self.contract.attention == "echo":
            return None
        return prompt_cache(self.backbone, self._prompt_ids(instruction), begin=self.contract.document.bos)

    def _encode_echoed(self, token_ids: Tensor, instruction: str | None) -> tuple[Tensor, TextBatch]:
        """Return the states and batch of one-token queries, each repeated in a sequence of its own."""
        rows = Ragged.from_lists([[token] for token in token_ids.tolist()])
        policy = self._query_policy(instruction)
        batch = self.batch(self.framing.rows(policy, rows, None))
        return self.states(batch), batch

    def _token_states(
        self, token_ids: Tensor, prompt_ids: list[int], pooling: Pooling, *, cache: PromptCache | None = None
    ) -> Tensor:
        """Call `token_states` with the contract's begin and end tokens."""
        begin, end = self.contract.document.bos, self.contract.document.eos
        return token_states(self.backbone, prompt_ids, token_ids, pooling=pooling, begin=begin, end=end, cache=cache)

    # ---- heads

    def _standardize(self, vectors: Tensor) -> Tensor:
        if self.heads.mean is None or self.heads.deviation is None:
            return vectors
        return standardize(vectors, self.heads.mean, self.heads.deviation)

    @property
    def _head(self) -> LMHead:
        projection = None if self.contract.sparse is None else self.contract.sparse.projection
        if projection == "own":
            return self._own_head()
        if self.sparse_encoder is not None and self.sparse_encoder.head is not None:
            return self.sparse_encoder.head
        if projection == "embeddings":
            embeddings: Tensor = self.backbone.model.get_input_embeddings().weight  # type: ignore[assignment]
            weight, bias = self.heads.norm_weight, self.heads.norm_bias
            norm = None if weight is None or bias is None else state_norm(weight, bias)
            return LMHead(
                embeddings, transform=norm, kernel=self.backbone.head.kernel if self.backbone.head else "auto"
            )
        if self.backbone.head is None:
            raise InvalidInput(f"{self.backbone.address} has no language-modelling head, so no sparse branch")
        return self.backbone.head

    def _own_head(self) -> LMHead:
        """Return the head with the model's own projection, which is unpacked once into the dtype of the backbone."""
        packed = self.heads.projection
        if self._unpacked is None or self._unpacked[0] is not packed:
            self._unpacked = packed, self.heads.own_projection(self.backbone.model.dtype)
        return LMHead(self._unpacked[1], kernel=self.backbone.head.kernel if self.backbone.head else "auto")

    @property
    def _dense(self) -> DenseHead:
        if self.contract.dense is None:
            raise InvalidInput("this model has no dense branch")
        return self.contract.dense

    @property
    def _sparse(self) -> SparseHead:
        if self.contract.sparse is None:
            raise InvalidInput("this model has no sparse branch")
        return self.contract.sparse

    # ---- stored vectors (`lightir.runtime.document_model.DocumentModel`)

    @property
    def runtime(self) -> Literal["torch"]:
        """Program that runs the model."""
        return "torch"

    @property
    def tokenizer(self) -> TextTokenizer:
        """Tokenizer of the backbone."""
        return self.backbone.tokenizer

    @property
    def batch_tokens(self) -> int:
        """Default maximum number of tokens of a forward pass on the model's device."""
        return BATCH_TOKENS.get(self.backbone.device.type, 8192)

    @property
    def encode_size(self) -> int | None:
        """Default number of documents that a worker encodes together; None for the worker's default."""
        return None if self.backbone.device.type == "cpu" else GPU_ENCODE_SIZE

    def encode_framed(self, framed: Sequence[Framed]) -> tuple[Floats | None, SparseVectors | None]:
        """Return the stored vectors of framed documents: (n, dim) float32, quantized impacts; None without."""
        dense, sparse = self.encode_batch(self.batch(framed))
        return None if dense is None else dense.float().cpu().numpy(), sparse

    def prepared(self, compile: bool | None, expected_tokens: float) -> AbstractContextManager[None]:
        """Return a context in which the layers are compiled, if asked or, for None, if that many tokens repay it."""
        return compiled_if_worth(self.backbone, self.compiled, compile, expected_tokens)

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """Compile the layers inside the context, for batches of every size and length.

        A small first batch is encoded at once, so that the cost of compiling (seconds; fewer with torch's cache on
        disk) and any failure show early. A size or length of 1 compiles separately when it first occurs.

        Raises:
            InvalidInput: no compiler, or layers that torch cannot compile.
        """
        end = self.backbone.eos_id
        with layers_compiled_for_any_shape(self.backbone):
            self.encode_batch(self.batch([([end] * 3, 0, 3), ([end] * 2, 0, 2)]))
            yield

    @torch.no_grad()
    def encode_batch(self, batch: TextBatch) -> tuple[Tensor | None, SparseVectors | None]:
        """Return the stored vectors of documents: comparable dense (B, dim) fp32, and quantized top-k impacts."""
        dense_head, sparse_head = self.contract.dense, self.contract.sparse
        if self.contract.document.light:
            dense, weights = self.document_vectors(batch, dense=dense_head is not None, sparse=sparse_head is not None)
            weights = None if weights is None or sparse_head is None else self.keep_strongest(weights, batch)
        else:
            states = self.states(batch)
            dense = None if dense_head is None else self.dense_from(states, batch)
            weights = None if sparse_head is None else self._stored_weights(states, batch)
        if dense is not None and dense_head is not None:
            dense = self.comparable(dense[:, : dense_head.dims[0] if dense_head.dims else None])
        return dense, None if weights is None or sparse_head is None else quantize(weights, sparse_head)

    def comparable(self, dense: Tensor) -> Tensor:
        """Return dense vectors as they are compared: of length 1, unless the contract's similarity is "dot"."""
        return dense if self._dense.similarity == "dot" else F.normalize(dense, dim=-1)

    def _stored_weights(self, states: Tensor, batch: TextBatch) -> Tensor:
        """Return `keep_strongest(sparse_from(...))`, (B, V) float32, without computing the other terms exactly.

        Lexical documents keep only their own terms.
        """
        sparse = self._sparse
        floor = 0.0 if sparse.activation == "log1p_relu" else -torch.inf
        own = terms_present(batch, self.backbone) if sparse.own_terms or sparse.lexical else None
        k = sparse.top_k + sparse.first_term if sparse.top_k else 0  # the terms left out may be the strongest ones
        stored = StoredTerms(k, floor, own)
        states = self._sparse_states(states, batch)
        maxima = self._head.largest_maxima(states, batch.own_mask, term_bias=self.heads.term_bias, stored=stored)
        weights = activate(without_first_terms(maxima, sparse.first_term), sparse.activation)
        if sparse.lexical and own is not None:
            weights = torch.where(own, weights, 0.0)
        return self.keep_strongest(weights, batch)

    def keep_strongest(self, weights: Tensor, batch: TextBatch, *, k: int | None = None) -> Tensor:
        """Keep each row's k strongest weights (None is the contract's top_k), and own terms if the contract does."""
        return top_k_weights(weights, self._sparse.top_k if k is None else k, own=self._own_terms(batch))

    def _own_terms(self, batch: TextBatch) -> Tensor | None:
        """Return a (B, V) bool mask of each text's terms; None if the contract keeps only the strongest."""
        return terms_present(batch, self.backbone) if self._sparse.own_terms else None

    @torch.no_grad()
    def calibrate(self, documents: Sequence[Document | str], *, quantile: float) -> None:
        """Fit the standardization and the term bias on a sample of documents, if the contract has them.

        The contract has them if DenseHead.standardized or SparseHead.bias_hash is not "" (any text before the fit).
        """
        pooled, maxima = [], []
        dense, sparse = self.contract.dense, self.contract.sparse
        self.heads = dataclasses.replace(self.heads, mean=None, deviation=None)
        framed = self.frame_documents(documents)
        for start in range(0, len(framed), CALIBRATION_BATCH):
            batch = self.batch(framed[start : start + CALIBRATION_BATCH])
            states = self.states(batch)
            if dense is not None and dense.standardized:
                light, _ = self.document_vectors(batch, sparse=False) if self.contract.document.light else (None, None)
                pooled.append(self.dense_from(states, batch) if light is None else light)
            if sparse is not None and sparse.bias_hash:
                maxima.append(self.maxima(states, batch))
        if pooled:
            mean, deviation = fit_standardization(torch.cat(pooled))
            self.heads = dataclasses.replace(self.heads, mean=mean, deviation=deviation)
        if maxima:
            bias = calibrate_bias(maxima, quantile=quantile).to(self.backbone.device)
            self.heads = dataclasses.replace(self.heads, term_bias=bias)
        self.contract = with_array_hashes(self.contract, self.heads)

    @torch.no_grad()
    def fit_scale(self, documents: Sequence[Document | str]) -> None:
        """Set the quantizer's scale to the stored weights of sample documents, so that nearly none is clipped.

        Raises:
            InvalidInput: the model has no sparse branch, or no document has a weight above zero.
        """
        framed, kept = self.frame_documents(documents), []
        for start in range(0, len(framed), CALIBRATION_BATCH):
            batch = self.batch(framed[start : start + CALIBRATION_BATCH])
            _, counts = self.document_vectors(batch, dense=False) if self.contract.document.light else (None, None)
            weights = self._stored_weights(self.states(batch), batch) if counts is None else counts
            kept.append(weights[weights > 0].float().cpu())
        sparse = dataclasses.replace(self._sparse, scale=fitted_scale(torch.cat([torch.zeros(0), *kept])))
        self.contract = dataclasses.replace(self.contract, sparse=sparse)


def _pools_everything(contract: Contract) -> bool:
    return contract.dense is not None and contract.dense.pooling == "mean_all"
