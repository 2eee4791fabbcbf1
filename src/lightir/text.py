"""Tokenization of queries into term ids, shared by training, caching, indexing and searching."""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import compress, groupby
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt
from tokenizers import Tokenizer as _Tokenizer

from lightir.errors import FormatError, InvalidInput, NotFound, StorageError, WriteFailed, storage_errors
from lightir.kernel.query import ByLibrary
from lightir.kernel.tokenizer import TextPolicy, TokenizerPath, text_policy, tokenizer_path
from lightir.vectors import IntArray, Ragged, SparseVectors, TermIds, row_starts

PROMPT_FORMAT = "Instruct: {instruction}\nQuery: "
"""Default format of a query's prompt (LightRetriever, section 2.1); it ends in a blank and is tokenized alone."""

INSTRUCTION, PROMPT = "{instruction}", "{prompt}"
"""Placeholders in formats for the instruction and for the whole prompt."""

MAX_TOKENS, MAX_TERM_ID = 2**63 - 1, 2**32 - 1
"""Limits of the kernel's integers."""

MAX_GAP = 2**16
"""Maximum number of unused term ids in a vocabulary, in addition to one per used id."""

LATER = {"later": True}
"""Metadata of fields that were added after the first release of format 1. Older records lack them. At its default value
such a field is not part of the fingerprint, so older fingerprints stay valid."""


@dataclass(frozen=True, slots=True)
class QueryPolicy:
    """The mapping of a query's text to term ids and weights.

    Attributes:
        instruction: instruction of the task, without the prompt format; "" for none.
        lower_case: convert the text to lower case.
        leading_blank: prepend a blank, so that the first word gets the term id that it has inside a document.
        weighting: sparse weight of a term: its count in the query (Eq. 7), or 1 ("binary"). With "expansion" the sparse
            query is the mean over its terms of the sparse head's output for the term alone (SiDR without a model).
        term_weights: "idf" multiplies each sparse weight by the encoder's stored weight of the term.
        drop: term ids that are removed in both branches (special tokens never occur).
        max_tokens: maximum number of tokens; longer queries are truncated.
        suffix: text after a query that the whole model encodes, before the end token. Models with a suffix have no
            light queries.
        prompt_format: text before the query; "{instruction}" is replaced by the instruction. With this placeholder the
            prompt is empty if there is no instruction; without it no instruction is allowed.
        echo_prompt: text before the second copy with attention "echo"; "{prompt}" is replaced by the prompt.
        token_vectors: vectors that a light dense query is the mean of: "encoded" by the whole model (Eq. 3), or the
            model's input "embeddings" (the paper's ablation).
        expansion_terms: number of strongest terms that the expansion of a single term keeps, for weighting "expansion".
        bigrams: hash of the pairs and longer runs of terms that have table rows of their own; "" for none.
            `lightir distill` sets it.
        gate: hash of the vectors from which a query's table rows get their weights; "" if all weigh the same.
        tokenizer: hash of the queries' tokenizer if it differs from the documents' model; "" if it is the same.
            `lightir distill --tokenizer` sets it.
        top_k: number of strongest terms that a query keeps if it goes through the sparse head (in addition to its own
            terms if the head keeps those); 0 for the number that a document keeps.
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
    gate: str = field(default="", metadata=LATER)
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
                raise InvalidInput(f"query {name} is {value}; the minimum is 1")
        if self.max_tokens > MAX_TOKENS:
            raise InvalidInput(f"query max_tokens is {self.max_tokens}; the maximum is {MAX_TOKENS}")
        if any(not 0 <= term_id <= MAX_TERM_ID for term_id in self.drop):
            raise InvalidInput(f"query drop is {list(self.drop)}; expected term ids from 0 to {MAX_TERM_ID}")
        if self.top_k < 0:
            raise InvalidInput(f"query top_k is {self.top_k}; expected 0 (the number that a document keeps) or more")
        require_placeholder("query prompt_format", self.prompt_format, INSTRUCTION)
        require_placeholder("query echo_prompt", self.echo_prompt, PROMPT)
        if self.instruction and INSTRUCTION not in self.prompt_format:
            raise InvalidInput(
                f"query prompt_format {self.prompt_format!r} has no placeholder {INSTRUCTION} for the instruction "
                f"{self.instruction!r}; add it, or remove the instruction"
            )

    @property
    def prompt(self) -> str:
        """Text before the query."""
        if INSTRUCTION in self.prompt_format and not self.instruction:
            return ""
        return self.prompt_format.replace(INSTRUCTION, self.instruction)

    @property
    def second_prompt(self) -> str:
        """Text before the second copy of an echo."""
        return self.echo_prompt.replace(PROMPT, self.prompt)

    @property
    def weights_terms(self) -> bool:
        """Whether sparse queries have learned or IDF weights; otherwise their weights are counts or ones."""
        return self.weighting == "expansion" or self.term_weights == "idf"

    def prepare(self, text: str) -> str:
        """Return the tokenizer's input for a text; blank text becomes empty and has no terms."""
        text = text.strip()
        if self.lower_case:
            text = text.lower()
        return f" {text}" if self.leading_blank and text else text


def require_placeholder(name: str, text: str, known: str) -> None:
    """Refuse a format with an unknown placeholder, which would become part of the prompt.

    Raises:
        InvalidInput: the message has the format and the unknown placeholder.
    """
    placeholders = re.findall(r"\{\s*\w*\s*\}", text)
    if unknown := next((placeholder for placeholder in placeholders if placeholder != known), None):
        raise InvalidInput(f"{name} {text!r} has the unknown placeholder {unknown}; the only placeholder is {known}")


class TextTokenizer:
    """A tokenizer.json without special tokens, padding and truncation; it maps texts to term ids."""

    def __init__(self, tokenizer: _Tokenizer) -> None:
        """Wrap a copy of a tokenizer, so that the original's settings do not change."""
        self._tokenizer = _Tokenizer.from_str(tokenizer.to_str())
        self._tokenizer.no_padding()
        self._tokenizer.no_truncation()
        # "</s>" typed by a user is plain text and must not become the special token.
        self._tokenizer.encode_special_tokens = True

    @classmethod
    def from_file(cls, path: Path | str) -> TextTokenizer:
        """Read a tokenizer.json.

        Raises:
            NotFound: the file does not exist.
            FormatError: the file is not a tokenizer.
            StorageError: the system refuses to read the file.
        """
        path = Path(path)
        if not path.is_file():
            raise NotFound(f"{path} does not exist; expected a tokenizer.json")
        try:
            with storage_errors(f"cannot read {path}"):
                content = path.read_bytes()
            inner = _Tokenizer.from_buffer(content)
            ids = inner.get_vocab(with_added_tokens=True).values()
            if (largest := max(ids, default=0)) > MAX_GAP + 2 * len(ids):  # the library iterates over all ids
                raise ValueError(f"it has {len(ids)} terms, but term id {largest}")
            return cls(inner)
        except StorageError:
            raise
        except Exception as error:  # tokenizers raises Exception itself
            raise FormatError(f"{path} is not a tokenizer: {error}") from error

    @property
    def backend(self) -> _Tokenizer:
        """The wrapped `tokenizers.Tokenizer`."""
        return self._tokenizer

    def term_texts(self) -> list[str]:
        """Return the text of each term id alone; "" for special tokens and unused ids."""
        return [self._tokenizer.decode([i], skip_special_tokens=True).strip() for i in range(self.vocab_size)]

    @cached_property
    def vocab_size(self) -> int:
        """Largest term id plus 1."""
        return max(self._tokenizer.get_vocab(with_added_tokens=True).values(), default=-1) + 1

    @cached_property
    def unknown_id(self) -> int | None:
        """Term id of unknown words; None if the tokenizer can represent every text."""
        model = self._content()["model"]
        name = model.get("unk_token")
        return model.get("unk_id") if name is None else self._tokenizer.token_to_id(name)

    @cached_property
    def hash(self) -> str:
        """SHA-256 of all settings that affect term ids, 16 hexadecimal digits."""
        content = self._content()
        decisive = {key: content.get(key) for key in ("normalizer", "pre_tokenizer", "model", "added_tokens")}
        return hashlib.sha256(json.dumps(decisive, sort_keys=True).encode()).hexdigest()[:16]

    @cached_property
    def path(self) -> TokenizerPath:
        """Implementation in use: the kernel if it supports all settings, else the tokenizers library."""
        return tokenizer_path(self._content())

    def _content(self) -> dict[str, Any]:
        content: dict[str, Any] = json.loads(self._tokenizer.to_str())
        return content

    def save(self, path: Path) -> None:
        """Write a tokenizer.json.

        Raises:
            WriteFailed: the disk is full or broken.
        """
        with storage_errors(f"cannot write {path}", kind=WriteFailed):
            path.write_text(self._tokenizer.to_str(pretty=True), encoding="utf-8")

    def term_ids(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Ragged:
        """Tokenize texts without special tokens, each truncated to max_tokens.

        Raises:
            InvalidInput: a text is not a str, or contains lone surrogates, which UTF-8 cannot represent.
        """

        def by_library(texts: Sequence[str], positions: Sequence[int]) -> tuple[TermIds, IntArray]:
            checked = [check_text(texts[position], f"text {position}") for position in positions]
            rows = self.mixed_term_ids(checked, max_tokens=max_tokens)
            return rows.term_ids, rows.indptr

        return self.read(texts, text_policy(max_tokens=max_tokens), by_library, threads=1)

    def library_term_ids(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Ragged:
        """Return the same as `term_ids`, computed by the tokenizers library only, without checks of the texts.

        Raises:
            FormatError: the tokenizer cannot represent a text, for instance because it has no term for unknown words.
        """
        try:
            encodings = self._tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)
        except Exception as error:  # tokenizers raises Exception itself
            raise FormatError(f"the tokenizer cannot represent these texts: {error}") from error
        return Ragged.from_lists([encoding.ids[:max_tokens] for encoding in encodings])

    def mixed_term_ids(self, texts: Sequence[str], *, max_tokens: int | None = None) -> Ragged:
        """Return the same as `library_term_ids`; the kernel reads the ASCII words if the tokenizer allows it.

        Raises:
            FormatError: the tokenizer cannot represent a text, for instance because it has no term for unknown words.
        """
        if self.path.native is None or not self.path.by_word:
            return self.library_term_ids(texts, max_tokens=max_tokens)

        def by_library(texts: Sequence[str], positions: Sequence[int]) -> tuple[TermIds, IntArray]:
            rows = self.library_term_ids([texts[position] for position in positions])
            return rows.term_ids, rows.indptr

        pieces = [[" ".join(words) for _, words in groupby(text.split(" "), str.isascii)] for text in texts]
        flat = [piece for row in pieces for piece in row]
        is_ascii = np.array([piece.isascii() for piece in flat], dtype=bool)
        read = self.read(list(compress(flat, is_ascii)), text_policy(), by_library, threads=1)
        rest = self.library_term_ids(list(compress(flat, ~is_ascii)))
        lengths = np.zeros(len(flat), np.int64)
        lengths[is_ascii], lengths[~is_ascii] = read.lengths, rest.lengths
        of_read = np.repeat(is_ascii, lengths)
        term_ids = np.zeros(len(of_read), np.uint32)
        term_ids[of_read], term_ids[~of_read] = read.term_ids, rest.term_ids
        starts = row_starts(lengths)[row_starts([len(row) for row in pieces])]
        rows = Ragged(term_ids, starts)
        return rows if max_tokens is None else rows.first(max_tokens)

    def read(self, texts: Sequence[str], policy: TextPolicy, by_library: ByLibrary, *, threads: int) -> Ragged:
        """Tokenize texts under a policy: by the kernel, or by the library for texts that it does not support."""
        if self.path.native is None:
            texts = tuple(texts)
            return Ragged(*by_library(texts, range(len(texts))))
        return Ragged(*self.path.native.tokenize(texts, policy, threads, by_library))

    def term(self, term_id: int) -> str:
        """Return the readable text of a term, with its leading blank."""
        return self._tokenizer.decode([term_id], skip_special_tokens=False) or (
            self._tokenizer.id_to_token(term_id) or f"[{term_id}]"
        )


def check_text(text: object, name: str) -> str:
    """Return a value that is a str representable in UTF-8.

    Raises:
        InvalidInput: it is not; the message begins with `name`.
    """
    if not isinstance(text, str):
        raise InvalidInput(f"{name} is {type(text).__name__}; expected str")
    try:
        text.encode()
    except UnicodeEncodeError as error:
        raise InvalidInput(f"{name} is not representable in UTF-8: {error.reason} at character {error.start}") from None
    return text


def query_term_ids(tokenizer: TextTokenizer, policy: QueryPolicy, texts: Sequence[str], *, threads: int = 1) -> Ragged:
    """Return the term ids T_q of each query's text, without instruction and special tokens, in text order."""
    by_library = query_library(tokenizer, policy)
    return tokenizer.read(texts, query_text_policy(policy), by_library, threads=threads)


def query_text_policy(policy: QueryPolicy) -> TextPolicy:
    """Convert the policy to the kernel's form."""
    return text_policy(
        strip=True,
        lower_case=policy.lower_case,
        leading_blank=policy.leading_blank,
        max_tokens=policy.max_tokens,
        drop=policy.drop,
    )


def query_library(tokenizer: TextTokenizer, policy: QueryPolicy) -> ByLibrary:
    """Return a function that tokenizes the queries at given positions by the tokenizers library, under the policy.

    The function raises InvalidInput if a query is not a str or not representable in UTF-8.
    """

    def by_library(texts: Sequence[str], positions: Sequence[int]) -> tuple[TermIds, IntArray]:
        prepared = [policy.prepare(check_text(texts[position], f"query {position}")) for position in positions]
        rows = tokenizer.mixed_term_ids(prepared, max_tokens=policy.max_tokens)
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
    """Compute sparse query vectors (Eq. 7): each distinct term's count, or 1, times its stored weight for "idf".

    Args:
        term_ids: term ids of the queries; see `query_term_ids`.
        policy: policy with weighting and term_weights.
        vocab_size: width of the result.
        term_weights: (vocab_size,) float32 weights; required if policy.term_weights is "idf", else unexpected.

    Returns:
        One row per query, term ids ascending, without zeros.
    """
    if policy.weighting == "expansion":
        raise InvalidInput("queries with weighting 'expansion' are means of cached expansions, not counted terms")
    if (policy.term_weights == "idf") != (term_weights is not None):
        raise InvalidInput(
            f"the query policy has term_weights={policy.term_weights!r}, "
            f"but stored weights were {'given' if term_weights is not None else 'not given'}"
        )
    counted = SparseVectors.count(term_ids, vocab_size=vocab_size)
    weights = np.ones_like(counted.weights) if policy.weighting == "binary" else counted.weights
    if term_weights is not None:
        if term_weights.shape != (vocab_size,):
            raise InvalidInput(f"term weights have shape {term_weights.shape}; expected ({vocab_size},)")
        weights = weights * term_weights[counted.term_ids]
    return counted.with_weights(weights).without_zeros()
