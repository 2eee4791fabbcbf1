"""Lengths of documents in tokens, and how many documents are longer than their model reads."""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from lightir.contract import CHARACTERS_PER_TOKEN, Contract
from lightir.index.view import View
from lightir.quantities import counted
from lightir.text import MAX_TOKENS, QueryPolicy, TextTokenizer, query_term_ids
from lightir.types import Document

Count: TypeAlias = Callable[[Sequence[str]], list[int]]
"""Returns the number of tokens of each text."""

MEASURED_DOCUMENTS = 2000
"""Maximum number of documents of an index that are measured; of more, as many are drawn evenly."""

_WORD = re.compile(r"\w+|[^\w\s]")


def text_tokens(contract: Contract, tokenizer: TextTokenizer) -> int:
    """Return the number of tokens of title and text that a model reads of a document."""
    policy = contract.document
    again = contract.attention == "echo"
    framing = [policy.prompt, policy.suffix, policy.second_prompt if again else ""]
    frame = sum(len(tokenizer.term_ids([text]).term_ids) for text in framing if text)
    room = (policy.max_tokens - frame - policy.bos - policy.eos * policy.ends) // (1 + again)
    return max(room, 1)


def counter(contract: Contract, tokenizer: TextTokenizer) -> Count:
    """Return a function that counts tokens as the model's input has them, without its frame."""
    policy = contract.document
    reading = QueryPolicy(lower_case=policy.lower_case, leading_blank=policy.leading_blank, max_tokens=MAX_TOKENS)

    def count(texts: Sequence[str]) -> list[int]:
        indptr = query_term_ids(tokenizer, reading, texts).indptr
        return [int(b - a) for a, b in itertools.pairwise(indptr.tolist())]

    return count


def count_words(texts: Sequence[str]) -> list[int]:
    """Return the number of words and punctuation marks of each text."""
    return [len(_WORD.findall(text)) for text in texts]


def are_longer(texts: Sequence[str], limit: int, count: Count) -> list[bool]:
    """Return which texts have more tokens than a limit, or more than CHARACTERS_PER_TOKEN characters per token of it.

    The model reads neither to the end. Few texts need counting: a text with fewer bytes has fewer tokens.
    """
    most = CHARACTERS_PER_TOKEN * limit
    unsure = [i for i, text in enumerate(texts) if len(text) <= most and _has_bytes(text, limit + 1)]
    longer = [len(text) > most for text in texts]
    for i, n_tokens in zip(unsure, count([texts[i] for i in unsure]), strict=True):
        longer[i] = n_tokens > limit
    return longer


def _has_bytes(text: str, n: int) -> bool:
    return len(text) >= n or len(text.encode()) >= n


def n_longer(documents: Iterable[Document], contract: Contract, tokenizer: TextTokenizer) -> int:
    """Return the number of documents of which a model reads the beginning only."""
    texts = [document.full_text(contract.document.title_joiner) for document in documents]
    return sum(are_longer(texts, text_tokens(contract, tokenizer), counter(contract, tokenizer)))


@dataclass(frozen=True, slots=True)
class LongerDocuments:
    """The documents of an index of which the model reads the beginning only.

    Attributes:
        documents: their number.
        limit: number of tokens that the model reads.
        estimated: whether the number was estimated from MEASURED_DOCUMENTS documents.
    """

    documents: int
    limit: int
    estimated: bool

    def __str__(self) -> str:
        """Say what that means, and what to do."""
        about = "about " * self.estimated
        return (
            f"{about}{counted(self.documents, 'document')} longer than the {self.limit:,} tokens that the model reads: "
            "only the beginning is encoded. Build the index with --passages all to split them"
        )


def longer_documents(view: View, tokenizer: TextTokenizer) -> LongerDocuments:
    """Count the documents of an index that are longer than its model reads.

    Args:
        view: view of an index with a contract.
        tokenizer: the model's tokenizer.
    """
    assert view.contract is not None
    limit, stored = text_tokens(view.contract, tokenizer), view.store.documents
    keys = stored.keys_longer_than(limit)
    step = -(-len(keys) // MEASURED_DOCUMENTS) or 1
    measured = keys[::step]
    n_found = sum(
        n_longer(stored.of(measured[first : first + 256]).values(), view.contract, tokenizer)
        for first in range(0, len(measured), 256)
    )
    return LongerDocuments(round(n_found * len(keys) / max(len(measured), 1)), limit, step > 1)
