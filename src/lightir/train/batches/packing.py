"""Documents packed into rows of one length, without padding and without attending to each other."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from lightir.errors import InvalidInput
from lightir.models.attention import NAME, SDPA
from lightir.models.backbones import Backbone
from lightir.models.framing import TextBatch
from lightir.models.masks import model_mask
from lightir.models.pieces import Pieces

PackedAttention = Literal["auto", "pieces", "mask"]


@dataclass(frozen=True, slots=True)
class PackedBatch:
    """Rows full of pieces of documents.

    Attributes:
        input_ids: (B, T) int64.
        pieces: (B, T) int64: 0, 1, … along a row; a piece is a document, or its part on this side of a row's border.
        positions: (B, T) int64: 0, 1, … in every piece.
    """

    input_ids: Tensor
    pieces: Tensor
    positions: Tensor

    def to(self, device: str) -> PackedBatch:
        """Return a copy on a device."""
        return PackedBatch(self.input_ids.to(device), self.pieces.to(device), self.positions.to(device))

    @property
    def predicting(self) -> Tensor:
        """(B, T) bool: positions whose next token is of the same piece."""
        same = self.pieces[:, 1:] == self.pieces[:, :-1]
        return torch.cat([same, torch.zeros_like(same[:, :1])], dim=1)

    @property
    def targets(self) -> Tensor:
        """(n,) int64: the next token of each predicting position, row after row."""
        return self.input_ids.roll(-1, dims=1)[self.predicting]


class PackedTexts:
    """Token sequences in one flat array that are shuffled, joined and cut into rows of one length in every epoch.

    Any row of any epoch can be computed without the rows before it, so a resumed run continues at once.
    """

    def __init__(self, sequences: Iterable[list[int]], *, length: int, seed: int) -> None:
        """Copy the sequences; 4 bytes per token.

        Args:
            sequences: token ids of each document; empty sequences are skipped.
            length: number of tokens in a row.
            seed: seed of the shuffling.

        Raises:
            InvalidInput: a length below 2, or not enough text for one row.
        """
        if length < 2:
            raise InvalidInput(f"a row's length is {length}; at least 2 is needed to predict a token")
        arrays = [np.asarray(sequence, dtype=np.uint32) for sequence in sequences if sequence]
        self.tokens = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.uint32)
        self.indptr = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        self.length, self.seed = length, seed
        if self.rows_per_epoch < 1:
            raise InvalidInput(
                f"the texts have {len(self.tokens)} tokens, less than one row of {length}; give more text"
            )
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        """Return the number of sequences."""
        return len(self.indptr) - 1

    @property
    def rows_per_epoch(self) -> int:
        """Number of full rows; an epoch skips the tokens after the last one."""
        return len(self.tokens) // self.length

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over all tokens and the sequences' bounds."""
        return hashlib.sha256(self.tokens.tobytes() + self.indptr.tobytes()).hexdigest()[:16]

    def batch(self, number: int, *, rows: int, process: int = 0, processes: int = 1) -> PackedBatch:
        """Return rows [number x rows, (number + 1) x rows) of all epochs in sequence, or one process's share."""
        if rows % processes:
            raise InvalidInput(f"{rows} rows do not divide among {processes} processes; change batch_size")
        own = rows // processes
        first = number * rows + process * own
        parts = [self._row(row) for row in range(first, first + own)]
        return PackedBatch(*(torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True)))

    def _row(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return ids, pieces and positions of a row."""
        epoch, row = divmod(number, self.rows_per_epoch)
        order, ends = self._order(epoch)
        ids = np.empty(self.length, dtype=np.int64)
        pieces, positions = np.empty_like(ids), np.empty_like(ids)
        start, filled, piece = row * self.length, 0, 0
        nth = int(np.searchsorted(ends, start, side="right"))
        while filled < self.length:
            sequence = order[nth]
            left = int(ends[nth]) - start  # tokens of the sequence
            take = min(left, self.length - filled)
            stop = int(self.indptr[sequence + 1]) - left + take
            span = slice(filled, filled + take)
            ids[span], pieces[span], positions[span] = self.tokens[stop - take : stop], piece, np.arange(take)
            start, filled, piece, nth = start + take, filled + take, piece + 1, nth + 1
        return ids, pieces, positions

    def _shuffled(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Return the epoch's order of sequences, and their ends in the joined text."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self))
        return order, np.cumsum(np.diff(self.indptr)[order])


def packed_states(backbone: Backbone, batch: PackedBatch, *, attention: PackedAttention = "auto") -> Tensor:
    """Return (B, T, hidden) last hidden states, each piece as if it were alone, causal or bidirectional like the model.

    Args:
        backbone: causal language model, with causal or bidirectional attention.
        batch: rows of pieces.
        attention: "mask" masks a row's other pieces, "pieces" computes each piece's attention by itself, "auto" uses
            pieces if the model's attention supports them.

    Raises:
        InvalidInput: an encoder, which supports no block masks; or "pieces" with a model that `not_piecewise` refuses.
    """
    if backbone.kind != "causal":
        raise InvalidInput("packed rows require a causal language model, not an encoder")
    causal = backbone.attention == "causal"
    obstacle = None if attention == "mask" else not_piecewise(backbone)
    if attention == "pieces" and obstacle:
        raise InvalidInput(f"packed_attention is pieces, but {obstacle}; use mask or auto")
    if attention != "mask" and not obstacle:
        pieces = Pieces.of(batch.pieces, causal=causal)
        # A mask of four dimensions keeps transformers from making one; a layer that read it would return NaN.
        unread = torch.full((1, 1, 1, 1), float("nan"), device=batch.input_ids.device)
        return backbone.states(batch.input_ids, unread, position_ids=batch.positions, use_cache=False, pieces=pieces)
    allowed = batch.pieces[:, :, None] == batch.pieces[:, None, :]
    if causal:
        order = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        allowed &= order[:, None] >= order[None, :]
    mask = model_mask(backbone, allowed, batch.positions, batch.positions)
    return backbone.states(batch.input_ids, mask, position_ids=batch.positions, use_cache=False)


def not_piecewise(backbone: Backbone) -> str:
    """Return why a model's attention cannot be computed piece by piece; empty if it can."""
    model, config = backbone.model, backbone.model.config
    if getattr(config, "sliding_window", None) is not None or "sliding_attention" in (
        getattr(config, "layer_types", None) or ()
    ):
        return "the model attends through a sliding window"
    if getattr(config, "attn_logit_softcapping", None) is not None:
        return "the model caps its attention scores"
    if not model._supports_attention_backend or config._attn_implementation not in (NAME, SDPA):
        return f"the model's attention code, {config._attn_implementation}, takes no pieces"
    return ""


def states_without_padding(
    backbone: Backbone, batch: TextBatch, *, length: int, attention: PackedAttention = "auto"
) -> Tensor:
    """Return (B, T, hidden) last hidden states of padded texts, computed in rows that texts share; 0 in padding.

    The states equal those of the padded forward, without computing the padding. Attention with a mask grows with the
    square of a row's length, so it costs more in a long row.

    Args:
        backbone: causal language model, with causal or bidirectional attention.
        batch: texts, padded on either side.
        length: number of tokens in a row; a longer text makes all rows as long as itself.
        attention: "mask", "pieces" or "auto", as in `packed_states`.

    Raises:
        InvalidInput: an encoder, or "pieces" with a model that `not_piecewise` refuses.
    """
    lengths = batch.attention_mask.sum(1).tolist()
    rows = shared_rows(lengths, max(length, *lengths))
    texts, columns = batch.attention_mask.nonzero(as_tuple=True)  # text by text
    starts = np.cumsum([0, *lengths])
    order = np.concatenate([np.arange(starts[text], starts[text + 1]) for row in rows for text in row])
    used = torch.tensor([sum(lengths[text] for text in row) for row in rows])
    valid = (torch.arange(int(used.max())) < used[:, None]).to(texts.device)
    chosen = torch.from_numpy(order).to(texts.device)
    texts, columns = texts[chosen], columns[chosen]
    ids = torch.full(valid.shape, backbone.eos_id, device=texts.device)
    pieces, positions = torch.full_like(ids, -1), torch.zeros_like(ids)
    ids[valid], pieces[valid] = batch.input_ids[texts, columns], texts
    positions[valid] = (batch.attention_mask.long().cumsum(1) - 1)[texts, columns]
    states = packed_states(backbone, PackedBatch(ids, pieces, positions), attention=attention)
    return states.new_zeros(*batch.input_ids.shape, states.shape[2]).index_put((texts, columns), states[valid])


def shared_rows(lengths: Sequence[int], capacity: int) -> list[list[int]]:
    """Assign texts to rows by first fit: longest first, each to the first row with enough capacity left."""
    rows: list[list[int]] = []
    left: list[int] = []
    for text in sorted(range(len(lengths)), key=lambda position: -lengths[position]):
        row = next((number for number, free in enumerate(left) if free >= lengths[text]), len(rows))
        if row == len(rows):
            rows.append([])
            left.append(capacity)
        rows[row].append(text)
        left[row] -= lengths[text]
    return rows
