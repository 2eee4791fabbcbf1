"""Frames of texts: term ids between prompt and special tokens, truncated."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

from lightir.contract import CHARACTERS_PER_TOKEN, Contract, DocumentPolicy
from lightir.errors import InvalidInput
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.types import Document
from lightir.vectors import Ragged

Framed = tuple[list[int], int, int]
"""The ids of a framed text, and the start and stop of the text's own tokens in them."""


class SpecialTokens(Protocol):
    """The tokenizer, special tokens and limit of a model, as frames need them.

    Attributes:
        tokenizer: tokenizer without special tokens, padding and truncation.
        bos_id: id of the begin token of a text; None if the model has none.
        eos_id: id of the end token of a text.
        end_ids: ids of the model's own end tokens, after the vocabulary.
        address: address of the model, for messages.
        max_positions: number of tokens that a table of learned positions supports; None for no limit.
    """

    @property
    def tokenizer(self) -> TextTokenizer: ...
    @property
    def bos_id(self) -> int | None: ...
    @property
    def eos_id(self) -> int: ...
    @property
    def end_ids(self) -> tuple[int, ...]: ...
    @property
    def address(self) -> str: ...
    @property
    def max_positions(self) -> int | None: ...


@dataclass(frozen=True, slots=True)
class Framing:
    """The frame of a model's texts: `<bos> prompt text suffix <eos>`, with prompt and text twice for "echo".

    Attributes:
        backbone: backbone with the tokenizer and special tokens.
        contract: contract with the query and document policies.
    """

    backbone: SpecialTokens
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


def document_text(document: Document | str, policy: DocumentPolicy) -> str:
    """Return the text of a document for the tokenizer: title joined, stripped, and cut to a limit of characters."""
    text = document if isinstance(document, str) else document.full_text(policy.title_joiner)
    text = text.lstrip()[: policy.max_tokens * CHARACTERS_PER_TOKEN].rstrip()
    text = text.lower() if policy.lower_case else text
    return f" {text}" if policy.leading_blank and text else text
