"""LightRetriever's encoder: documents and full queries through the model, light queries through one token at a time."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract, DenseHead, SparseHead
from lightir.errors import InvalidInput
from lightir.models.attention import SDPA
from lightir.models.backbones import Backbone
from lightir.models.bags import mixed, term_counts, terms_present, token_means
from lightir.models.compilation import layers_compiled_for_any_shape
from lightir.models.devices import usable_device
from lightir.models.framing import Framed, Framing, TextBatch, pad_batch
from lightir.models.heads import LMHead, activate, calibrate_bias, quantized, top_k_weights
from lightir.models.masks import PromptCache, model_mask, prompt_cache, token_states
from lightir.models.model_folder import HeadArrays, read_parts, with_array_hashes, write_parts
from lightir.models.pooling import Pooling, Standardization, pool
from lightir.text import QueryPolicy
from lightir.types import Document
from lightir.vectors import Ragged, SparseVectors

CALIBRATED_AT_ONCE = 16


class LightRetriever(nn.Module):
    """A backbone with LightRetriever's heads, under one contract.

    The module holds the backbone's trunk (with its adapter) as a child; heads are fixed arrays, but for a trainable
    term bias that training may swap in.
    """

    def __init__(self, backbone: Backbone, contract: Contract, heads: HeadArrays | None = None) -> None:
        """Join the parts; `contract` names the policies, `heads` the arrays that belong to them."""
        super().__init__()
        if contract.attention == "echo" and contract.document.light:
            raise InvalidInput("light documents are encoded token by token: there is no text to feed twice")
        if contract.attention == "echo" and (backbone.attention != "causal" or _pools_everything(contract)):
            raise InvalidInput(
                "attention 'echo' pools over a text's second copy, read causally: not with an encoder, "
                "and not with pooling 'mean_all'"
            )
        self.backbone = backbone
        self.trunk = backbone.trunk
        self.contract = contract
        self.heads = heads or HeadArrays()

    # ---- loading and saving

    @classmethod
    def load(
        cls, address: str | Path, *, dtype: torch.dtype = torch.float32, merge: bool = True, device: str = "cpu"
    ) -> LightRetriever:
        """Read a model folder (or a shipped model's name) and the backbone that its contract names.

        The device "auto" is a GPU where there is one.

        Raises:
            ContractMismatch: the backbone, adapter, tokenizer or head found is not the one of the contract.
            InvalidInput: a device that is not there.
        """
        device = usable_device(device)
        return cls(*read_parts(resolve_model_folder(address), dtype=dtype, merge=merge)).to(device)

    def save(self, folder: Path) -> Contract:
        """Write contract, tokenizer, adapter and head arrays into a folder; the contract as saved comes back.

        Its hashes are those of the arrays as they are now. The model's own contract is updated to it.
        """
        self.contract = write_parts(folder, self.backbone, self.contract, self.heads)
        return self.contract

    def to(self, *arguments: Any, **keywords: Any) -> LightRetriever:
        """Move the trunk, the head and the fixed arrays; dtype changes are for the backbone's loader."""
        super().to(*arguments, **keywords)
        device = self.backbone.device
        self.heads = HeadArrays(**{name: value.to(device) for name, value in self.heads.arrays().items()})
        if (head := self.backbone.head) is not None:
            self.backbone = dataclasses.replace(self.backbone, head=head.to(device))
        if device.type == "cuda" and not getattr(self.backbone.model.config, "attn_logit_softcapping", None):
            self.backbone.model.set_attn_implementation(SDPA)
        return self

    # ---- text to batches

    def frame_documents(self, documents: Sequence[Document | str]) -> list[Framed]:
        """Token ids of `<bos> prompt text suffix <eos>` with the span of the text; the text is cut, the frame never.

        With attention "echo" of `<bos> prompt text second prompt text suffix <eos>`, with the span of the second copy.
        """
        return self.framing.documents(documents)

    def frame_queries(self, texts: Sequence[str], *, instruction: str | None = None) -> list[Framed]:
        """Token ids of `<bos> Inst query suffix <eos>` for the full encoder; the same terms as light queries have."""
        return self.framing.queries(texts, self._query_policy(instruction))

    @property
    def framing(self) -> Framing:
        """How this model frames texts."""
        return Framing(self.backbone, self.contract)

    @property
    def end_ids(self) -> list[int]:
        """What a text ends with: its end tokens, [] where the contract wants none."""
        return self.framing.end_ids

    def _query_policy(self, instruction: str | None) -> QueryPolicy:
        policy = self.contract.query
        return policy if instruction is None else dataclasses.replace(policy, instruction=instruction)

    def batch(self, framed: Sequence[Framed], *, length: int | None = None, padding_side: str = "right") -> TextBatch:
        """Pad framed texts to one length (the longest, or the one given)."""
        return pad_batch(framed, self.backbone, length=length, padding_side=padding_side)

    # ---- the forward passes

    def states(self, batch: TextBatch) -> Tensor:
        """Last hidden states (B, T, H); a row sees its own tokens alone, whatever its padding."""
        mask = batch.attention_mask
        positions = (mask.long().cumsum(1) - 1).clamp(min=0)
        if self.backbone.attention == "bidirectional":
            return self.backbone.states(batch.input_ids, mask.long(), position_ids=positions)
        order = torch.arange(mask.shape[1], device=mask.device)
        allowed = mask[:, None, :] & (order[:, None] >= order[None, :])
        allowed |= torch.eye(mask.shape[1], dtype=torch.bool, device=mask.device)
        prepared = model_mask(self.backbone, allowed, positions, positions)
        return self.backbone.states(batch.input_ids, prepared, position_ids=positions, use_cache=False)

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
        """Framed documents' dense (B, H), not yet normalised, and sparse (B, V or terms) vectors, in fp32.

        Args:
            batch: from frame_documents.
            dense: whether the dense one is wanted; None comes back without.
            sparse: likewise.
            terms: see sparse_from.
            straight_through: likewise.
            states: the batch's, where they are computed already.
        """
        if self.contract.document.light:
            own = [ids[mask].cpu().numpy() for ids, mask in zip(batch.input_ids, batch.own_mask, strict=True)]
            term_ids = Ragged.from_lists([row.tolist() for row in own])
            counts = term_counts(term_ids, self.backbone, terms) if sparse else None
            return self._light_vectors(term_ids, self.contract.document.prompt) if dense else None, counts
        states = self.states(batch) if states is None else states
        return (
            self.dense_from(states, batch) if dense else None,
            self.sparse_from(states, batch, terms=terms, straight_through=straight_through) if sparse else None,
        )

    def _light_vectors(self, term_ids: Ragged, prompt: str) -> Tensor:
        unique, mixing = token_means(term_ids)
        states = self._token_states(unique, self.framing.text_ids(prompt), self._dense.pooling)
        return mixed(mixing, self._standardize(states))

    def dense_from(self, states: Tensor, batch: TextBatch) -> Tensor:
        """(B, H) float32 pooled and standardised states, not yet normalised."""
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
        """(B, V) float32 weights, all terms (no top-k): Eq. 8 over the text's own positions.

        With `terms`, (n,) int64 term ids, (B, n): theirs alone, at n / V of the cost. `straight_through`: see activate.
        """
        maxima = self._head.maxima(states, batch.own_mask, term_bias=self.heads.term_bias, terms=terms)
        return activate(maxima, self._sparse.activation, straight_through=straight_through)

    def maxima(self, states: Tensor, batch: TextBatch) -> Tensor:
        """(B, V) float32: each term's largest logit over the text's own positions, without the calibrated bias."""
        return self._head.maxima(states, batch.own_mask)

    def full_queries(self, texts: Sequence[str], *, instruction: str | None = None) -> Tensor:
        """(n, H) float32 vectors of the symmetric encoder, not yet normalised."""
        batch = self.batch(self.frame_queries(texts, instruction=instruction))
        return self.dense_from(self.states(batch), batch)

    def light_queries(self, term_ids: Ragged, *, instruction: str | None = None, pad_to: int = 1) -> Tensor:
        """(n, H) float32: the mean of each query's token vectors (Eq. 4), not yet normalised; empty queries are 0.

        Each distinct token of the batch is encoded once, all in one shared-prompt forward.

        Raises:
            InvalidInput: the query policy has bigrams or its own tokenizer, whose rows are in a fitted table alone.
        """
        if self.contract.query.bigrams or self.contract.query.tokenizer:
            raise InvalidInput(
                "this model's query table has rows for bigrams, or another tokenizer than the model: its light queries "
                "are the table's alone"
            )
        unique, mixing = token_means(term_ids)
        rows = self.token_vectors(unique, instruction=instruction, pad_to=pad_to)
        return mixed(mixing, rows)

    def token_vectors(
        self,
        token_ids: Tensor,
        *,
        instruction: str | None = None,
        cache: PromptCache | None = None,
        pad_to: int = 1,
    ) -> Tensor:
        """(n, H) float32: Enc_q(Inst; t) of single tokens through shared-prompt forwards (Eq. 3), standardised.

        Where the query policy says "embeddings" they are the model's own input embeddings, as they are.

        Args:
            token_ids: (n,) int64.
            instruction: the contract's by default.
            cache: from prompt_cache, of the same instruction.
            pad_to: n is padded up to a multiple, so that compiled layers meet few shapes.
        """
        if self.contract.query.token_vectors == "embeddings":
            embedded: Tensor = self.backbone.model.get_input_embeddings()(token_ids.to(self.backbone.device))
            return embedded.float()
        if self.contract.attention == "echo":
            return self.dense_from(*self._echoed(token_ids, instruction))
        if not self.contract.has_light_queries:
            raise InvalidInput("this model's queries have a suffix or several end tokens: it has no light queries")
        padded = F.pad(token_ids, (0, -len(token_ids) % pad_to))
        prompt = self._prompt_ids(instruction)
        states = self._token_states(padded, prompt, self._dense.pooling, cache=cache)
        return self._standardize(states[: len(token_ids)])

    def token_weights(
        self,
        token_ids: Tensor,
        *,
        instruction: str | None = None,
        cache: PromptCache | None = None,
        pad_to: int = 1,
    ) -> Tensor:
        """(n, V) float32: the sparse head over each single token in the prompt, all terms; arguments as above."""
        if self.contract.attention == "echo":
            return self.sparse_from(*self._echoed(token_ids, instruction))
        padded = F.pad(token_ids, (0, -len(token_ids) % pad_to))
        prompt = self._prompt_ids(instruction)
        states = self._token_states(padded, prompt, "last", cache=cache)[: len(token_ids), None]
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
        """The strongest terms of token_weights, as many as the query policy says, the token itself always among them.

        Returns:
            (n, k) int64 term ids, and (n, k) float32 weights, which carry gradients.
        """
        rows = self.token_weights(token_ids, instruction=instruction, cache=cache, pad_to=pad_to)
        own = token_ids.to(rows.device)[:, None]
        ranked = rows.detach().scatter(1, own, torch.inf)
        places = ranked.topk(min(self.contract.query.expansion_terms, rows.shape[1]), dim=1).indices
        return places, rows.gather(1, places)

    def _echoed(self, token_ids: Tensor, instruction: str | None) -> tuple[Tensor, TextBatch]:
        """States of one-token queries, each fed twice in a sequence of its own; and their batch."""
        rows = Ragged.from_lists([[token] for token in token_ids.tolist()])
        policy = self._query_policy(instruction)
        batch = self.batch(self.framing.rows(policy, rows, None))
        return self.states(batch), batch

    def prompt_cache(self, *, instruction: str | None = None) -> PromptCache | None:
        """The keys and values of `<bos> Inst`, shared by a whole vocabulary; None where nothing can be shared."""
        if self.contract.attention == "echo":
            return None
        return prompt_cache(self.backbone, self._prompt_ids(instruction), begin=self.contract.document.bos)

    def _token_states(
        self, token_ids: Tensor, prompt_ids: list[int], pooling: Pooling, *, cache: PromptCache | None = None
    ) -> Tensor:
        """token_states between the begin and the end token that the contract puts around every text."""
        document = self.contract.document
        return token_states(
            self.backbone,
            prompt_ids,
            token_ids,
            pooling=pooling,
            begin=document.bos,
            end=document.eos,
            cache=cache,
        )

    def _prompt_ids(self, instruction: str | None) -> list[int]:
        return self.framing.text_ids(self._query_policy(instruction).prompt)

    def _standardize(self, vectors: Tensor) -> Tensor:
        if self.heads.mean is None or self.heads.deviation is None:
            return vectors
        return (vectors - self.heads.mean) / self.heads.deviation

    @property
    def _head(self) -> LMHead:
        if self.contract.sparse is not None and self.contract.sparse.projection == "embeddings":
            embeddings: Tensor = self.backbone.model.get_input_embeddings().weight  # type: ignore[assignment]
            return LMHead(embeddings, kernel=self.backbone.head.kernel if self.backbone.head else "auto")
        if self.backbone.head is None:
            raise InvalidInput(f"{self.backbone.address} has no language-modelling head, so no sparse branch")
        return self.backbone.head

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

    # ---- what encoding and training call

    @contextlib.contextmanager
    def compiled(self) -> Iterator[None]:
        """Inside, encode_batch runs compiled layers, for batches of every size and length; afterwards as before.

        A first small batch goes through, so that what compiling costs (seconds; fewer when torch's cache on the disk
        has it) and whether it works show at once. A batch or a length of 1 is compiled for itself when it comes.

        Raises:
            InvalidInput: no compiler, or layers that torch cannot compile.
        """
        end = self.backbone.eos_id
        with layers_compiled_for_any_shape(self.backbone):
            self.encode_batch(self.batch([([end] * 3, 0, 3), ([end] * 2, 0, 2)]))
            yield

    @torch.no_grad()
    def encode_batch(self, batch: TextBatch) -> tuple[Tensor | None, SparseVectors | None]:
        """Documents as they are stored: normalised dense (B, dim) float32, and quantised top-k impacts."""
        dense_head, sparse_head = self.contract.dense, self.contract.sparse
        if self.contract.document.light:
            dense, weights = self.document_vectors(batch, dense=dense_head is not None, sparse=sparse_head is not None)
            weights = None if weights is None or sparse_head is None else self.kept(weights, batch)
        else:
            states = self.states(batch)
            dense = None if dense_head is None else self.dense_from(states, batch)
            weights = None if sparse_head is None else self._stored_weights(states, batch)
        if dense is not None and dense_head is not None:
            dense = F.normalize(dense[:, : dense_head.dims[0] if dense_head.dims else None], dim=-1)
        return dense, None if weights is None or sparse_head is None else quantized(weights, sparse_head)

    def _stored_weights(self, states: Tensor, batch: TextBatch) -> Tensor:
        """(B, V) float32: what top_k_weights keeps of sparse_from, without computing the rest exactly."""
        sparse = self._sparse
        maxima = self._head.largest_maxima(
            states,
            batch.own_mask,
            term_bias=self.heads.term_bias,
            k=sparse.top_k,
            floor=0.0 if sparse.activation == "log1p_relu" else -torch.inf,
            also=self._own_terms(batch),
        )
        return self.kept(activate(maxima, sparse.activation), batch)

    def kept(self, weights: Tensor, batch: TextBatch, *, k: int | None = None) -> Tensor:
        """(B, V): each row's k strongest weights (None for the contract's), own terms too where asked."""
        return top_k_weights(weights, self._sparse.top_k if k is None else k, own=self._own_terms(batch))

    def _own_terms(self, batch: TextBatch) -> Tensor | None:
        """(B, V) bool: which terms stand in a text; None where the contract keeps the strongest alone."""
        if not self._sparse.own_terms:
            return None
        return terms_present(batch, self.backbone)

    @torch.no_grad()
    def calibrate(self, documents: Sequence[Document | str], *, quantile: float) -> None:
        """Fit the standardisation and the term bias on a sample of documents, as far as the contract asks for them.

        Asked for means: DenseHead.standardized or SparseHead.bias_hash is not "" (any text serves before the fit).
        """
        pooled, maxima = [], []
        dense, sparse = self.contract.dense, self.contract.sparse
        self.heads = dataclasses.replace(self.heads, mean=None, deviation=None)
        framed = self.frame_documents(documents)
        for start in range(0, len(framed), CALIBRATED_AT_ONCE):
            batch = self.batch(framed[start : start + CALIBRATED_AT_ONCE])
            states = self.states(batch)
            if dense is not None and dense.standardized:
                light, _ = self.document_vectors(batch, sparse=False) if self.contract.document.light else (None, None)
                pooled.append(self.dense_from(states, batch) if light is None else light)
            if sparse is not None and sparse.bias_hash:
                maxima.append(self.maxima(states, batch))
        if pooled:
            fitted = Standardization.fit(torch.cat(pooled))
            self.heads = dataclasses.replace(self.heads, mean=fitted.mean, deviation=fitted.std)
        if maxima:
            bias = calibrate_bias(maxima, quantile=quantile).to(self.backbone.device)
            self.heads = dataclasses.replace(self.heads, term_bias=bias)
        self.contract = with_array_hashes(self.contract, self.heads)


def _pools_everything(contract: Contract) -> bool:
    return contract.dense is not None and contract.dense.pooling == "mean_all"
