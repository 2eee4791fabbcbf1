"""Model inputs: term ids framed by prompt and special tokens, truncated, and padded to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightir.contract import CHARACTERS_PER_TOKEN, Contract, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.text import QueryPolicy, query_term_ids
from lightir.types import Document
from lightir.vectors import Ragged

Framed = tuple[list[int], int, int]
"""The ids of a framed text, and the start and stop of the text's own tokens in them."""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """A padded batch of framed texts.

    Attributes:
        input_ids: (B, T) int64.
        attention_mask: (B, T) bool, true except on padding.
        own_mask: (B, T) bool, true on the text's own tokens.
    """

    input_ids: Tensor
    attention_mask: Tensor
    own_mask: Tensor


@dataclass(frozen=True, slots=True)
class Framing:
    """The frame of a model's texts: `<bos> prompt text suffix <eos>`, with prompt and text twice for "echo".

    Attributes:
        backbone: backbone with the tokenizer and special tokens.
        contract: contract with the query and document policies.
    """

    backbone: Backbone
    contract: Contract

    @property
    def end_ids(self) -> list[int]:
        """Ids of the end tokens of a text; [] if the contract has none."""
        policy = self.contract.document
        if not policy.eos:
            return []
        return list(self.backbone.end_ids) if policy.ends_hash else [self.backbone.eos_id] * policy.ends

    def documents(self, documents: Sequence[Document | str]) -> list[Framed]:
        """Frame documents, truncated to the contract's max_tokens.

        Raises:
            InvalidInput: a document is longer than the model's table of positions, or the frame leaves no room for
                text.
        """
        policy, limit = self.contract.document, self.backbone.max_positions
        texts = [document_text(document, policy) for document in documents]
        framed = self.rows(policy, self.backbone.tokenizer.term_ids(texts), policy.max_tokens)
        longest = max((len(ids) for ids, _, _ in framed), default=0)
        if limit is not None and longest > limit:
            raise InvalidInput(
                f"a document has {longest} tokens, but {self.backbone.address} only {limit} positions; "
                f"set the documents' max_tokens, which is {policy.max_tokens}, to {limit} or less"
            )
        return framed

    def queries(self, texts: Sequence[str], policy: QueryPolicy) -> list[Framed]:
        """Frame queries with the terms of light queries, truncated to the model's positions."""
        return self.rows(policy, query_term_ids(self.backbone.tokenizer, policy, texts), self.backbone.max_positions)

    def rows(self, policy: QueryPolicy | DocumentPolicy, term_ids: Ragged, max_tokens: int | None) -> list[Framed]:
        """Frame each row's terms; the terms are truncated so that the whole has at most max_tokens, the frame never is.

        Raises:
            InvalidInput: the frame leaves no room for text.
        """
        begin = [self.backbone.bos_id] if self.contract.document.bos and self.backbone.bos_id is not None else []
        end = self.text_ids(policy.suffix) + self.end_ids
        again, before = self.contract.attention == "echo", self.text_ids(policy.prompt)
        between = self.text_ids(policy.second_prompt) if again else []
        room = None
        if max_tokens is not None:
            frame = len(begin) + len(before) + len(between) + len(end)
            room = (max_tokens - frame) // (1 + again)
            if room < 1:
                raise InvalidInput(f"max_tokens {max_tokens} leaves no room for text in a frame of {frame} tokens")
        framed = []
        for row in range(len(term_ids)):
            own = term_ids.row(row)[:room].tolist()
            head = begin + before + (own + between if again else [])
            framed.append((head + own + end, len(head), len(head) + len(own)))
        return framed

    def text_ids(self, text: str) -> list[int]:
        """Return the term ids of a text, [] for ""."""
        ids: list[int] = self.backbone.tokenizer.term_ids([text]).row(0).tolist() if text else []
        return ids


def pad_batch(
    framed: Sequence[Framed], backbone: Backbone, *, length: int | None = None, padding_side: str = "right"
) -> TextBatch:
    """Pad framed texts to one length, on the backbone's device.

    Args:
        framed: framed texts.
        backbone: backbone with the padding id and device.
        length: length of the batch; None is the longest text's.
        padding_side: side of the padding, "left" or "right".

    Raises:
        InvalidInput: a text is longer than the batch.
    """
    longest = max((len(ids) for ids, _, _ in framed), default=0)
    total = max(longest, 1) if length is None else length
    if longest > total:
        raise InvalidInput(f"a text of {longest} tokens does not fit a batch of length {total}")
    input_ids = np.full((len(framed), total), backbone.eos_id, dtype=np.int64)
    attention, own = np.zeros((len(framed), total), dtype=bool), np.zeros((len(framed), total), dtype=bool)
    for row, (ids, start, stop) in enumerate(framed):
        shift = total - len(ids) if padding_side == "left" else 0
        input_ids[row, shift : shift + len(ids)] = ids
        attention[row, shift : shift + len(ids)] = True
        own[row, shift + start : shift + stop] = True
    return TextBatch(*(torch.from_numpy(array).to(backbone.device) for array in (input_ids, attention, own)))


def document_text(document: Document | str, policy: DocumentPolicy) -> str:
    """Return the text of a document for the tokenizer: title joined, stripped, and cut to a limit of characters."""
    text = document if isinstance(document, str) else document.full_text(policy.title_joiner)
    text = text.lstrip()[: policy.max_tokens * CHARACTERS_PER_TOKEN].rstrip()
    text = text.lower() if policy.lower_case else text
    return f" {text}" if policy.leading_blank and text else text
