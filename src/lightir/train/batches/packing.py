"""Documents packed into rows of one length: no padding, and no token sees another document."""

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
        pieces: (B, T) int64: 0, 1, … along a row; a piece is a document, or the part of one that a row's border left.
        positions: (B, T) int64: 0, 1, … in every piece.
    """

    input_ids: Tensor
    pieces: Tensor
    positions: Tensor

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
    """Token sequences in one flat array; every epoch they are shuffled, joined, and cut into rows of one length.

    Any row of any epoch is found without reading those before it, so a resumed run continues at once.
    """

    def __init__(self, sequences: Iterable[list[int]], *, length: int, seed: int) -> None:
        """Take the sequences in; 4 bytes a token.

        Args:
            sequences: token ids; empty ones are left out.
            length: of a row.
            seed: of the order.

        Raises:
            InvalidInput: a length below 2, or not enough text for one row.
        """
        if length < 2:
            raise InvalidInput(f"a row's length is {length}; at least 2 is needed to predict a token")
        arrays = [np.asarray(each, dtype=np.uint32) for each in sequences if each]
        self.tokens = np.concatenate(arrays) if arrays else np.zeros(0, dtype=np.uint32)
        self.indptr = np.cumsum([0, *map(len, arrays)], dtype=np.int64)
        self.length, self.seed = length, seed
        if self.rows_per_epoch < 1:
            raise InvalidInput(
                f"the texts have {len(self.tokens)} tokens, less than one row of {length}; give more text"
            )
        self._order = lru_cache(maxsize=2)(self._shuffled)

    def __len__(self) -> int:
        """Sequences."""
        return len(self.indptr) - 1

    @property
    def rows_per_epoch(self) -> int:
        """Full rows; what is left over after the last one comes up in another epoch's order."""
        return len(self.tokens) // self.length

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over all tokens and where sequences begin."""
        return hashlib.sha256(self.tokens.tobytes() + self.indptr.tobytes()).hexdigest()[:16]

    def batch(self, number: int, *, rows: int, process: int = 0, processes: int = 1) -> PackedBatch:
        """Rows [number x rows, (number + 1) x rows) of all epochs in a row, or one process's share of them."""
        if rows % processes:
            raise InvalidInput(f"{rows} rows do not divide among {processes} processes; change batch_size")
        own = rows // processes
        first = number * rows + process * own
        parts = [self._row(each) for each in range(first, first + own)]
        return PackedBatch(*(torch.from_numpy(np.stack(part)) for part in zip(*parts, strict=True)))

    def _row(self, number: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Ids, pieces and positions of a row."""
        epoch, row = divmod(number, self.rows_per_epoch)
        order, ends = self._order(epoch)
        ids = np.empty(self.length, dtype=np.int64)
        pieces, positions = np.empty_like(ids), np.empty_like(ids)
        at, filled, piece = row * self.length, 0, 0
        place = int(np.searchsorted(ends, at, side="right"))
        while filled < self.length:
            sequence = order[place]
            left = int(ends[place]) - at  # of the sequence
            take = min(left, self.length - filled)
            stop = int(self.indptr[sequence + 1]) - left + take
            span = slice(filled, filled + take)
            ids[span], pieces[span], positions[span] = self.tokens[stop - take : stop], piece, np.arange(take)
            at, filled, piece, place = at + take, filled + take, piece + 1, place + 1
        return ids, pieces, positions

    def _shuffled(self, epoch: int) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The epoch's order of sequences, and where each ends in the joined text."""
        order = np.random.default_rng([self.seed, epoch]).permutation(len(self))
        return order, np.cumsum(np.diff(self.indptr)[order])


def packed_states(backbone: Backbone, batch: PackedBatch, *, attention: PackedAttention = "auto") -> Tensor:
    """(B, T, hidden) last hidden states, each piece as if it were alone, causally or both ways as the model attends.

    Args:
        backbone: a causal language model, attending either way.
        batch: rows full of pieces.
        attention: "mask" hides a row's other pieces, "pieces" computes each one's attention by itself; "auto" takes
            pieces wherever this model's attention can.

    Raises:
        InvalidInput: an encoder, which takes no block masks; or "pieces" with a model that `not_piecewise` refuses.
    """
    if backbone.kind != "causal":
        raise InvalidInput("packed rows are for causal language models, not for encoders")
    causal = backbone.attention == "causal"
    obstacle = None if attention == "mask" else not_piecewise(backbone)
    if attention == "pieces" and obstacle:
        raise InvalidInput(f"packed_attention is pieces, but {obstacle}; take mask or auto")
    if attention != "mask" and not obstacle:
        pieces = Pieces.of(batch.pieces, causal=causal)
        # A mask of four dimensions keeps transformers from making one; a layer that read it would give NaN.
        unread = torch.full((1, 1, 1, 1), float("nan"), device=batch.input_ids.device)
        return backbone.states(batch.input_ids, unread, position_ids=batch.positions, use_cache=False, pieces=pieces)
    allowed = batch.pieces[:, :, None] == batch.pieces[:, None, :]
    if causal:
        order = torch.arange(batch.input_ids.shape[1], device=batch.input_ids.device)
        allowed &= order[:, None] >= order[None, :]
    mask = model_mask(backbone, allowed, batch.positions, batch.positions)
    return backbone.states(batch.input_ids, mask, position_ids=batch.positions, use_cache=False)


def not_piecewise(backbone: Backbone) -> str:
    """Why a model's attention cannot be computed piece by piece; empty where it can."""
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
    """(B, T, hidden) last hidden states of padded texts, computed in rows that several of them share; 0 in padding.

    The states are those of the padded forward, whose padding is computed for nothing; attention behind a mask, which
    grows with a row's square, has more to do in a long row.

    Args:
        backbone: a causal language model, attending either way.
        batch: texts, padded on either side.
        length: of a row in tokens; a longer text makes all rows as long as itself.
        attention: see packed_states.

    Raises:
        InvalidInput: as packed_states.
    """
    lengths = batch.attention_mask.sum(1).tolist()
    rows = placed(lengths, max(length, *lengths))
    texts, places = batch.attention_mask.nonzero(as_tuple=True)  # text by text
    starts = np.cumsum([0, *lengths])
    order = np.concatenate([np.arange(starts[text], starts[text + 1]) for row in rows for text in row])
    used = torch.tensor([sum(lengths[text] for text in row) for row in rows])
    valid = (torch.arange(int(used.max())) < used[:, None]).to(texts.device)
    chosen = torch.from_numpy(order).to(texts.device)
    texts, places = texts[chosen], places[chosen]
    ids = torch.full(valid.shape, backbone.eos_id, device=texts.device)
    pieces, positions = torch.full_like(ids, -1), torch.zeros_like(ids)
    ids[valid], pieces[valid] = batch.input_ids[texts, places], texts
    positions[valid] = (batch.attention_mask.long().cumsum(1) - 1)[texts, places]
    states = packed_states(backbone, PackedBatch(ids, pieces, positions), attention=attention)
    return states.new_zeros(*batch.input_ids.shape, states.shape[2]).index_put((texts, places), states[valid])


def placed(lengths: Sequence[int], room: int) -> list[list[int]]:
    """Which texts share a row of so much room: the longest first, each into the first row that has room for it."""
    rows: list[list[int]] = []
    left: list[int] = []
    for text in sorted(range(len(lengths)), key=lambda each: -lengths[each]):
        row = next((number for number, free in enumerate(left) if free >= lengths[text]), len(rows))
        if row == len(rows):
            rows.append([])
            left.append(room)
        rows[row].append(text)
        left[row] -= lengths[text]
    return rows
