"""Selection of the kernel's own tokenizer or the `tokenizers` library, decided from tokenizer.json.

The kernel tokenizes ASCII texts only, where normalizers and patterns need no Unicode classes. A tokenizer with any
setting that is unsupported here is left to the library for all texts. A supported tokenizer leaves to the library the
texts with unsupported bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from lightir.kernel import _native

REFUSED, DROPPED = 0xFF, 0xFE
"""Marks in a byte map: the library tokenizes texts with a REFUSED byte; DROPPED bytes are removed."""

TextPolicy = _native.TextPolicy
"""Changes to a text before tokenization and to its ids afterward; `text_policy` makes one."""

_REST = r"[^\r\n\p{L}\p{N}]?\p{L}+|%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_MARKS = r"[^\r\n\p{L}\p{N}]?[\p{L}\p{M}]+|\p{N}| ?[^\s\p{L}\p{M}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SPLITS = {
    r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+": "gpt2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _REST % r"\p{N}{1,3}": "llama3",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _REST % r"\p{N}": "qwen2",
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|" + _MARKS: "qwen2",  # Qwen 3.5; combining marks are not ASCII
}
"""Patterns of pre-tokenizers in tokenizer.json, with the kernel's name of the equivalent split of ASCII."""

_ASCII = range(0x80)
_SAME_IN_ASCII = ("NFC", "NFD", "NFKC", "NFKD")


@dataclass(frozen=True, slots=True)
class TokenizerPath:
    """The way from texts to ids.

    Attributes:
        native: the kernel's tokenizer for ASCII texts; None if the library tokenizes all texts.
        description: name of the path, with the reason if it is the library's.
        by_word: whether the ids of a part between blanks depend on that part alone.
    """

    native: _native.Tokenizer | None
    description: str
    by_word: bool = False


def text_policy(
    *,
    strip: bool = False,
    lower_case: bool = False,
    leading_blank: bool = False,
    max_tokens: int | None = None,
    drop: Sequence[int] = (),
) -> TextPolicy:
    """Return a policy that strips, lower-cases, prepends a blank, truncates to max_tokens and drops ids, in this order.

    Args:
        strip: whether to apply `str.strip`.
        lower_case: whether to apply `str.lower`.
        leading_blank: whether to put a blank in front of a text that is not empty.
        max_tokens: maximum number of tokens of a text; None for no limit.
        drop: ids to remove from the result.
    """
    limit = np.iinfo(np.int64).max if max_tokens is None else max_tokens
    return TextPolicy(strip, lower_case, leading_blank, int(limit), np.asarray(drop, dtype=np.uint32))


class _UnsupportedError(Exception):
    """A setting that the kernel's tokenizer does not support."""


def tokenizer_path(content: Mapping[str, Any]) -> TokenizerPath:
    """Return the path for a tokenizer.json; special tokens in a text are tokenized as plain text.

    Args:
        content: parsed file, as the installed `tokenizers` writes it.
    """
    try:
        _check_post_processor(content.get("post_processor"))
        kind = content["model"].get("type")
        if kind == "BPE":
            return _byte_pairs(content)
        if kind == "WordPiece":
            return _word_pieces(content)
        raise _UnsupportedError(f"model {kind}")
    except _UnsupportedError as reason:
        return TokenizerPath(None, f"the tokenizers library: the kernel does not support {reason}")


def _byte_pairs(content: Mapping[str, Any]) -> TokenizerPath:
    _check_unicode_normalizer(content.get("normalizer"))
    split = _byte_level_split(content.get("pre_tokenizer"))
    model = content["model"]
    _expect(
        model,
        dropout=(None, 0.0),
        unk_token=...,
        continuing_subword_prefix=(None, ""),
        end_of_word_suffix=(None, ""),
        fuse_unk=...,
        byte_fallback=...,
        ignore_merges=(False, True),
        vocab=...,
        merges=...,
    )
    vocab: dict[str, int] = model["vocab"]
    alphabet = _byte_alphabet()
    known = {byte: vocab[alphabet[byte]] for byte in _ASCII if alphabet[byte] in vocab}
    byte_ids = np.zeros(256, np.uint32)
    byte_ids[list(known)] = list(known.values())
    pairs = [(vocab[left], vocab[right], vocab[left + right]) for left, right in model["merges"]]
    left, right, merged = np.array(pairs, np.uint32).reshape(-1, 3).T.copy()
    whole = _ascii_words(vocab, alphabet) if model["ignore_merges"] else {}
    literals = [token["content"] for token in _plain_added_tokens(content) if token["content"].isascii()]
    byte_map = bytes(byte if byte in known else REFUSED for byte in range(256))
    native = _native.Tokenizer(split, byte_map, literals, byte_ids, left, right, merged, whole)
    return TokenizerPath(native, f"the kernel's byte-level BPE for ASCII, words as {split}")


def _word_pieces(content: Mapping[str, Any]) -> TokenizerPath:
    byte_map = _bert_byte_map(content.get("normalizer"))
    _expect(content.get("pre_tokenizer"), type=("BertPreTokenizer",))
    if added := _plain_added_tokens(content):
        raise _UnsupportedError(f"added token {added[0]['content']!r} beside WordPiece")
    model = content["model"]
    _expect(model, unk_token=..., continuing_subword_prefix=..., max_input_chars_per_word=..., vocab=...)
    vocab: dict[str, int] = model["vocab"]
    if model["unk_token"] not in vocab:
        raise _UnsupportedError("WordPiece without an unknown token")
    prefix = model["continuing_subword_prefix"]
    first = {token: term_id for token, term_id in vocab.items() if token.isascii()}
    further = {token[len(prefix) :]: term_id for token, term_id in first.items() if token.startswith(prefix)}
    native = _native.Tokenizer(byte_map, first, further, vocab[model["unk_token"]], model["max_input_chars_per_word"])
    return TokenizerPath(native, "the kernel's WordPiece for ASCII", by_word=True)


def _expect(part: Any, **allowed: Any) -> None:
    """Raise an error unless a part has exactly these keys with allowed values (... allows any value)."""
    if not isinstance(part, Mapping):
        raise _UnsupportedError(f"{part!r} instead of {allowed.get('type', 'settings')}")
    kind = part.get("type")
    if unknown := set(part) ^ set(allowed) ^ ({"type"} - set(allowed)):
        raise _UnsupportedError(f"{kind} with missing or unexpected {', '.join(sorted(unknown))}")
    for key, values in allowed.items():
        if values is not ... and part[key] not in values:
            raise _UnsupportedError(f"{part[key]}" if key == "type" else f"{kind} with {key}={part[key]!r}")


def _parts(part: Any, key: str) -> list[Any]:
    """Return the members of a part: none for None, those of a Sequence, or else the part itself."""
    if part is None:
        return []
    return list(part[key]) if part.get("type") == "Sequence" else [part]


def _check_unicode_normalizer(normalizer: Any) -> None:
    for part in _parts(normalizer, "normalizers"):
        _expect(part, type=_SAME_IN_ASCII)


def _check_post_processor(processor: Any) -> None:
    """Accept processors that only add special tokens; a template must contain the text exactly once."""
    for part in _parts(processor, "processors"):
        if part["type"] == "TemplateProcessing":
            if sum("Sequence" in piece for piece in part["single"]) != 1:
                raise _UnsupportedError("a template that does not contain the text exactly once")
        elif part["type"] not in ("ByteLevel", "BertProcessing", "RobertaProcessing"):
            raise _UnsupportedError(f"post-processor {part['type']}")


def _byte_level_split(pre_tokenizer: Any) -> str:
    *before, last = _parts(pre_tokenizer, "pretokenizers") or [None]
    by_pattern = len(before) == 1 and before[0].get("type") == "Split"
    _expect(last, type=("ByteLevel",), add_prefix_space=(False,), trim_offsets=..., use_regex=(not by_pattern,))
    if not before:
        return "gpt2"
    if not by_pattern:
        _expect(before[0], type=("Digits",), individual_digits=(True,))
        if len(before) > 1:
            raise _UnsupportedError(f"a sequence of {len(before) + 1} pre-tokenizers")
        return "gpt2_digits"
    _expect(before[0], pattern=..., behavior=("Isolated",), invert=(False,))
    pattern = before[0]["pattern"].get("Regex")
    if pattern not in SPLITS:
        raise _UnsupportedError(f"pattern {pattern!r}")
    return SPLITS[pattern]


def _bert_byte_map(normalizer: Any) -> bytes:
    """Return BertNormalizer's effect on ASCII: it may remove control characters and lower-case letters."""
    flags = (False, True)
    _expect(
        normalizer,
        type=("BertNormalizer",),
        clean_text=flags,
        handle_chinese_chars=flags,
        strip_accents=(None, False, True),
        lowercase=flags,
    )

    def mapped(byte: int) -> int:
        if normalizer["clean_text"] and (byte < 0x20 or byte == 0x7F) and chr(byte) not in "\t\n\r":
            return DROPPED
        return ord(chr(byte).lower()) if normalizer["lowercase"] else byte

    return bytes(mapped(byte) if byte in _ASCII else REFUSED for byte in range(256))


def _plain_added_tokens(content: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    """Return the added tokens that are not special; they are split off before normalization."""
    return [token for token in content.get("added_tokens") or [] if not token["special"] and token["content"]]


def _byte_alphabet() -> list[str]:
    """Return the character of each byte in a byte-level vocabulary (GPT-2): itself if it is printable."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    alphabet = {byte: chr(byte) for byte in printed}
    alphabet |= {byte: chr(0x100 + i) for i, byte in enumerate(b for b in range(256) if b not in alphabet)}
    return [alphabet[byte] for byte in range(256)]


def _ascii_words(vocab: Mapping[str, int], alphabet: list[str]) -> dict[str, int]:
    """Return the words of the vocabulary that consist of ASCII bytes, as text."""
    text_of = {alphabet[byte]: chr(byte) for byte in _ASCII}
    return {
        "".join(text_of[char] for char in word): term_id
        for word, term_id in vocab.items()
        if all(char in text_of for char in word)
    }
