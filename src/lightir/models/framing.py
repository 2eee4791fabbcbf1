"""Texts as the model reads them: term ids between prompt and end tokens, cut to fit, padded to batches."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from lightir.contract import Contract, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.models.backbones import Backbone
from lightir.text import QueryPolicy, query_term_ids
from lightir.types import Document
from lightir.vectors import Ragged

CHARACTERS_PER_TOKEN = 24
"""Text beyond max_tokens times this is cut before tokenising: a 10 MB document must not cost minutes."""


Framed = tuple[list[int], int, int]
"""A framed text's ids, and where the text's own tokens start and stop in them."""


@dataclass(frozen=True, slots=True)
class TextBatch:
    """Framed texts, padded.

    Attributes:
        input_ids: (B, T) int64.
        attention_mask: (B, T) bool.
        own_mask: (B, T) bool, True on the text's own tokens.
    """

    input_ids: Tensor
    attention_mask: Tensor
    own_mask: Tensor


@dataclass(frozen=True, slots=True)
class Framing:
    """How a model frames texts: `<bos> prompt text suffix <eos>`, with "echo" both prompt and text twice.

    Attributes:
        backbone: its tokenizer and special tokens.
        contract: its policies.
    """

    backbone: Backbone
    contract: Contract

    @property
    def end_ids(self) -> list[int]:
        """What a text ends with: its end tokens, [] where the contract wants none."""
        policy = self.contract.document
        if not policy.eos:
            return []
        return list(self.backbone.end_ids) if policy.ends_hash else [self.backbone.eos_id] * policy.ends

    def documents(self, documents: Sequence[Document | str]) -> list[Framed]:
        """Framed documents, cut to the contract's max_tokens.

        Raises:
            InvalidInput: one is longer than the model's table of positions, or see rows.
        """
        policy, most = self.contract.document, self.backbone.max_positions
        texts = [document_text(document, policy) for document in documents]
        framed = self.rows(policy, self.backbone.tokenizer.term_ids(texts), policy.max_tokens)
        longest = max((len(ids) for ids, _, _ in framed), default=0)
        if most is not None and longest > most:
            raise InvalidInput(
                f"a document of {longest} tokens, but {self.backbone.address} has {most} positions; "
                f"set the documents' max_tokens, which is {policy.max_tokens}, to {most} or less"
            )
        return framed

    def queries(self, texts: Sequence[str], policy: QueryPolicy) -> list[Framed]:
        """Framed queries; the same terms as light queries have, as far as the model has positions for them."""
        return self.rows(policy, query_term_ids(self.backbone.tokenizer, policy, texts), self.backbone.max_positions)

    def rows(self, policy: QueryPolicy | DocumentPolicy, term_ids: Ragged, max_tokens: int | None) -> list[Framed]:
        """Each row's terms in the policy's frame; the terms are cut to max_tokens, the frame never.

        Raises:
            InvalidInput: the frame leaves no room.
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
                raise InvalidInput(f"{max_tokens} tokens at most leave no room for text beside a frame of {frame}")
        framed = []
        for row in range(len(term_ids)):
            own = term_ids.row(row)[:room].tolist()
            head = begin + before + (own + between if again else [])
            framed.append((head + own + end, len(head), len(head) + len(own)))
        return framed

    def text_ids(self, text: str) -> list[int]:
        """A text's term ids, [] of ""."""
        ids: list[int] = self.backbone.tokenizer.term_ids([text]).row(0).tolist() if text else []
        return ids


def pad_batch(
    framed: Sequence[Framed], backbone: Backbone, *, length: int | None = None, padding_side: str = "right"
) -> TextBatch:
    """Framed texts at one length, the longest's or the one given, where the backbone is.

    Raises:
        InvalidInput: a text does not fit.
    """
    longest = max((len(ids) for ids, _, _ in framed), default=0)
    total = max(longest, 1) if length is None else length
    if longest > total:
        raise InvalidInput(f"a text of {longest} tokens does not fit into a batch of length {total}")
    input_ids = np.full((len(framed), total), backbone.eos_id, dtype=np.int64)
    attention, own = np.zeros((len(framed), total), dtype=bool), np.zeros((len(framed), total), dtype=bool)
    for row, (ids, start, stop) in enumerate(framed):
        shift = total - len(ids) if padding_side == "left" else 0
        input_ids[row, shift : shift + len(ids)] = ids
        attention[row, shift : shift + len(ids)] = True
        own[row, shift + start : shift + stop] = True
    return TextBatch(*(torch.from_numpy(x).to(backbone.device) for x in (input_ids, attention, own)))


def document_text(document: Document | str, policy: DocumentPolicy) -> str:
    """A document as it is tokenised: title joined, stripped, cut to what max_tokens can hold."""
    text = document if isinstance(document, str) else document.full_text(policy.title_joiner)
    text = text.lstrip()[: policy.max_tokens * CHARACTERS_PER_TOKEN].rstrip()
    text = text.lower() if policy.lower_case else text
    return f" {text}" if policy.leading_blank and text else text
