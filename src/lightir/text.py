"""From a query's text to term ids: the same code for training, caching, indexing and searching."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as _Tokenizer

from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.kernel.query import ByLibrary
from lightir.kernel.tokenizer import TextPolicy, TokenizerPath, text_policy, tokenizer_path
from lightir.vectors import IntArray, Ragged, SparseVectors, TermIds

PROMPT_FORMAT = "Instruct: {instruction}\nQuery: "
"""The instruction in front of a query (LightRetriever, section 2.1); it ends in a blank and is tokenised by itself."""

INSTRUCTION, PROMPT = "{instruction}", "{prompt}"
"""Placeholders in formats: of the instruction, and of the whole prompt."""

MAX_TOKENS, MAX_TERM_ID = 2**63 - 1, 2**32 - 1
"""What the kernel's integers hold."""

MAX_GAP = 2**16
"""So many ids of a vocabulary may stand for nothing, and one for each that stands for a term."""

LATER = {"later": True}
"""Marks a field that came after format 1 was first written: older records lack it, and at its default value it does not
enter the fingerprint, so that their fingerprints stay what they were."""


@dataclass(frozen=True, slots=True)
class QueryPolicy:
    """How a query's text becomes term ids and weights.

    Attributes:
        instruction: the task's instruction, without the frame; "" for none.
        lower_case: lower-case the text first.
        leading_blank: put a blank in front, so that the first word gets the term id it has inside a document.
        weighting: a term's sparse weight is its count in the query (Eq. 7), or 1. With "expansion" the sparse query is
            the mean over its terms of what the sparse head gives for that term alone (SiDR without a model).
        term_weights: "idf" multiplies each sparse weight by the encoder's stored weight of the term.
        drop: term ids that are left out of both branches (special tokens never occur in the first place).
        max_tokens: longer queries are cut after this many tokens.
        suffix: text behind a query that goes through the whole model, in front of its end token. A model that has one
            has no light queries.
        prompt_format: the text in front of the query; "{instruction}" in it stands for the instruction. A format with
            that placeholder gives no prompt at all where there is no instruction, one without it goes with none.
        echo_prompt: with attention "echo", the text in front of the second copy; "{prompt}" stands for the prompt.
        token_vectors: a light dense query is the mean of its tokens' vectors: "encoded" by the whole model (Eq. 3), or
            the model's own input "embeddings" (the paper's ablation).
        expansion_terms: how many of its strongest terms a single term's vector keeps, for weighting "expansion".
        bigrams: the hash of the pairs of terms that have rows of their own in the table, beside the terms' rows; "" for
            none. `lightir distill` sets it.
        tokenizer: the hash of the tokenizer whose terms queries are made of, where it is another than the documents'
            model has; "" for the same. `lightir distill --tokenizer` sets it.
        top_k: how many of its strongest terms a query keeps that goes through the sparse head (beside its own terms,
            where the head keeps those); 0 for as many as a document keeps.
    """

    instruction: str = ""
    lower_case: bool = True
    leading_blank: bool = True
    weighting: Literal["count", "binary", "expansion"] = "count"
    term_weights: Literal["none", "idf"] = "none"
    drop: tuple[int, ...] = ()
    max_tokens: int = 512
    suffix: str = field(default="", metadata=LATER)
    prompt_format: str = field(default=PROMPT_FORMAT, metadata=LATER)
    echo_prompt: str = field(default=PROMPT, metadata=LATER)
    token_vectors: Literal["encoded", "embeddings"] = field(default="encoded", metadata=LATER)
    expansion_terms: int = field(default=48, metadata=LATER)
    top_k: int = field(default=0, metadata=LATER)
    bigrams: str = field(default="", metadata=LATER)
    tokenizer: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        if self.weighting not in ("count", "binary", "expansion"):
            raise InvalidInput(f"query weighting {self.weighting!r}: expected 'count', 'binary' or 'expansion'")
        if self.term_weights not in ("none", "idf"):
            raise InvalidInput(f"query term_weights {self.term_weights!r}: expected 'none' or 'idf'")
        if self.weighting == "expansion" and self.term_weights != "none":
            raise InvalidInput("query weighting 'expansion' has learned weights; term_weights must be 'none'")
        for name in ("max_tokens", "expansion_terms"):
            if (value := getattr(self, name)) < 1:
                raise InvalidInput(f"query {name} is {value}; at least 1 is needed")
        if self.max_tokens > MAX_TOKENS:
            raise InvalidInput(f"query max_tokens is {self.max_tokens}; at most {MAX_TOKENS} can be said")
        if any(not 0 <= term_id <= MAX_TERM_ID for term_id in self.drop):
            raise InvalidInput(f"query drop is {list(self.drop)}; term ids are 0 to {MAX_TERM_ID}")
        if self.top_k < 0:
            raise InvalidInput(f"query top_k is {self.top_k}; expected 0 (as many as of a document) or more")
        require_placeholder("query prompt_format", self.prompt_format, INSTRUCTION)
        require_placeholder("query echo_prompt", self.echo_prompt, PROMPT)
        if self.instruction and INSTRUCTION not in self.prompt_format:
            raise InvalidInput(
                f"query prompt_format {self.prompt_format!r} has no {INSTRUCTION} for the instruction "
                f"{self.instruction!r}; put it there, or make the instruction empty"
            )

    @property
    def prompt(self) -> str:
        """The text in front of the query."""
        if INSTRUCTION in self.prompt_format and not self.instruction:
            return ""
        return self.prompt_format.replace(INSTRUCTION, self.instruction)

    @property
    def second_prompt(self) -> str:
        """The text in front of an echo's second copy."""
        return self.echo_prompt.replace(PROMPT, self.prompt)

    def prepare(self, text: str) -> str:
        """The text as it goes into the tokenizer; blank text stays empty, so it has no terms."""
        text = text.strip()
        if self.lower_case:
            text = text.lower()
        return f" {text}" if self.leading_blank and text else text


def require_placeholder(name: str, text: str, known: str) -> None:
    """Refuse a format with a placeholder other than the known one: as text it would be in front of every query.

    Raises:
        InvalidInput: names the format and what it holds.
    """
    if unknown := next((found for found in re.findall(r"\{\s*\w*\s*\}", text) if found != known), None):
        raise InvalidInput(
            f"{name} {text!r} holds {unknown}, which stands for nothing; its only placeholder is {known}"
        )


class TextTokenizer:
    """A tokenizer.json without its specials, padding and truncation: text in, term ids out."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        """Wrap a tokenizer; the one given is copied, so its own settings stay as they are."""
        self._tokenizer = _Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # A special token's text inside a query is plain text: "</s>" typed by a user must not become the token.
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def from_file(cls, path: Path | str) -> TextTokenizer:
        """Read a tokenizer.json.

        Raises:
            NotFound: there is no such file.
            FormatError: it is not a tokenizer.
        """
        path = Path(path)
        if not path.is_file():
            raise NotFound(f"{path} does not exist; a tokenizer.json is needed")
        try:
            inner = _Tokenizer.from_file(str(path))
            ids = inner.get_vocab(with_added_tokens=True).values()
            if (largest := max(ids, default=0)) > MAX_GAP + 2 * len(ids):  # the library walks through all ids up to it
                raise ValueError(f"it has {len(ids)} terms, but term id {largest}")
            return cls(inner)
        except Exception as error:  # tokenizers raises the bare class
            raise FormatError(f"{path} is not a tokenizer: {error}") from error

    @property
    def backend(self) -> _Tokenizer:
        """The `tokenizers.Tokenizer` inside."""
        return self._tokenizer

    def term_texts(self) -> list[str]:
        """The text that each term id stands for by itself; "" for special tokens and ids that stand for none."""
        return [self._tokenizer.decode([i], skip_special_tokens=True).strip() for i in range(self.vocab_size)]

    @cached_property
    def vocab_size(self) -> int:
        """One more than the largest term id."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def unknown_id(self) -> int | None:
        """The term id that stands for whatever the tokenizer does not know; None where it knows every text."""
        model = self._content()["model"]
        name = model.get("unk_token")
        return model.get("unk_id") if name is None else self._tokenizer.token_to_id(name)

    @cached_property
    def hash(self) -> str:
        """SHA-256 over everything that decides the ids: 16 hexadecimal digits."""
        content = self._content()
        decisive = {key: content.get(key) for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def path(self) -> TokenizerPath:
        """Which code tokenises: the kernel if it knows every setting of this tokenizer, else the tokenizers library."""
        return tokenizer_path(self._content())

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return content

    def save(self, path: Path) -> None:
        """Write a tokenizer.json."""
        self._tokenizer.save(str(path))

    def term_ids(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Ragged:
        """The texts' term ids, no special tokens, each cut after max_tokens.

        Raises:
            InvalidInput: a text is no str, or holds lone surrogates, which UTF-8 cannot say.
        """

        def by_library(texts: Sequence[str], positions: Sequence[int]) -> tuple[TermIds, IntArray]:
            checked = [check_text(texts[position], f"text {position}") for position in positions]
            rows = self.library_term_ids(checked, max_tokens=max_tokens)
            return rows.term_ids, rows.indptr

        return self.read(texts, text_policy(max_tokens=max_tokens), by_library, threads=1)

    def library_term_ids(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Ragged:
        """What `term_ids` gives, by the tokenizers library alone; the texts are not checked.

        Raises:
            FormatError: the tokenizer lacks what it needs for a text, as the term for unknown words.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # tokenizers raises the bare class
            raise FormatError(f"the tokenizer cannot read these texts: {error}") from error
        return Ragged.from_lists([encoding.ids[:max_tokens] for encoding in encodings])

    def read(self, texts: Sequence[str], policy: TextPolicy, by_library: ByLibrary, *, threads: int) -> Ragged:
        """The texts' term ids under a policy: by the kernel, and by the library for texts that the kernel refuses."""
        if self.path.native is None:
            texts = tuple(texts)
            return Ragged(*by_library(texts, range(len(texts))))
        return Ragged(*self.path.native.tokenize(texts, policy, threads, by_library))

    def term(self, term_id: int) -> str:
        """The term as a person would read it, with its leading blank."""
        return self._tokenizer.decode([term_id], skip_special_tokens=False) or (
            self._tokenizer.id_to_token(term_id) or f"[{term_id}]"
        )


def check_text(text: object, name: str) -> str:
    """The text itself.

    Raises:
        InvalidInput: it is no str, or not representable in UTF-8.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} cannot be written as UTF-8: {error.reason} at character {error.start}") from None
    return text


def query_term_ids(tokenizer: TextTokenizer, policy: QueryPolicy, texts: Sequence[str], *, threads: int = 1) -> Ragged:
    """The term ids T_q of each query: the query text alone, no instruction, no special tokens, order kept."""
    by_library = query_library(tokenizer, policy)
    return tokenizer.read(texts, query_text_policy(policy), by_library, threads=threads)


def query_text_policy(policy: QueryPolicy) -> TextPolicy:
    """The policy as the kernel takes it."""
    return text_policy(
        strip=True,
        lower_case=policy.lower_case,
        leading_blank=policy.leading_blank,
        max_tokens=policy.max_tokens,
        drop=policy.drop,
    )


def query_library(tokenizer: TextTokenizer, policy: QueryPolicy) -> ByLibrary:
    """A function that tokenises the queries at some positions by the tokenizers library alone, under the policy.

    Raises (the function that is returned):
        InvalidInput: a query is no str, or not representable in UTF-8.
    """

    def by_library(texts: Sequence[str], positions: Sequence[int]) -> tuple[TermIds, IntArray]:
        prepared = [policy.prepare(check_text(texts[position], f"query {position}")) for position in positions]
        rows = tokenizer.library_term_ids(prepared, max_tokens=policy.max_tokens)
        rows = rows.without(np.asarray(policy.drop, dtype=np.uint32)) if policy.drop else rows
        return rows.term_ids, rows.indptr

    return by_library


def sparse_queries(
    term_ids: Ragged,
    policy: QueryPolicy,
    *,
    vocab_size: int,
    term_weights: npt.NDArray[np.float32] | None = None,
) -> SparseVectors:
    """Sparse query vectors (Eq. 7): each distinct term's count, or 1, times its stored weight if the policy says idf.

    Args:
        term_ids: the queries' term ids, as query_term_ids gives them.
        policy: weighting and term_weights are read.
        vocab_size: the width of the result.
        term_weights: (vocab_size,) float32, wanted exactly when policy.term_weights is "idf".

    Returns:
        One row a query, term ids ascending, no zero weights.
    """
    if policy.weighting == "expansion":
        raise InvalidInput("queries with weighting 'expansion' are means of cached expansions, not counted terms")
    if (policy.term_weights == "idf") != (term_weights is not None):
        raise InvalidInput(
            f"the query policy says term_weights={policy.term_weights!r}, "
            f"but stored weights were {'given' if term_weights is not None else 'not given'}"
        )
    counted = SparseVectors.count(term_ids, vocab_size=vocab_size)
    weights = np.ones_like(counted.weights) if policy.weighting == "binary" else counted.weights
    if term_weights is not None:
        if term_weights.shape != (vocab_size,):
            raise InvalidInput(f"term weights have shape {term_weights.shape}; expected ({vocab_size},)")
        weights = weights * term_weights[counted.term_ids]
    return counted.with_weights(weights).without_zeros()
