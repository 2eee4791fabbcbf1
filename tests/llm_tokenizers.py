"""Small tokenizers with the settings of known language models: the same patterns and a few hundred merges."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

LLAMA3 = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+"
    r"|\s+(?!\S)|\s+"
)
QWEN2 = LLAMA3.replace(r"\p{N}{1,3}", r"\p{N}")
GPT2 = r"'s|'t|'re|'ve|'m|'ll|'d| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
TEXTS = [
    "the cat sat on the mat, it's 2024 and they'll say we've 1,234,567 reasons!",
    "What is the boiling point of C2H5OH at 101.3 kPa?? (see: https://example.org/a_b?c=d&e=f)",
    "def main(argv):\n    return 0  # don't\n\n\n\tif x >= 10 and y != 'yes':\r\n        print(\"no\")\n",
    "I'M SURE THAT'S HOW YOU'D DO IT -- isn't it? We'RE the ones who'Ve been there.",
    "Wörter größer als naïve café résumé, 北京是中国的首都。 ½ ٣ İstanbul ß",
]


def by_pattern(pattern: str) -> pre_tokenizers.PreTokenizer:
    """Return a pre-tokenizer that splits by a pattern and then into bytes, as in Llama 3 and Qwen."""
    split = pre_tokenizers.Split(Regex(pattern), behavior="isolated", invert=False)
    return pre_tokenizers.Sequence([split, pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)])


def byte_level(pre_tokenizer: pre_tokenizers.PreTokenizer, **settings: Any) -> Tokenizer:
    """Return a byte-level BPE tokenizer, trained on TEXTS."""
    tokenizer = Tokenizer(models.BPE(ignore_merges=settings.get("ignore_merges", False)))
    if "normalizer" in settings:
        tokenizer.normalizer = settings["normalizer"]
    tokenizer.pre_tokenizer = pre_tokenizer
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=600,
        initial_alphabet=settings.get("alphabet", pre_tokenizers.ByteLevel.alphabet()),
        special_tokens=["<|end|>"],
        show_progress=False,
    )
    tokenizer.train_from_iterator(TEXTS * 3, trainer)
    return tokenizer


def gpt2() -> Tokenizer:
    """GPT-2's tokenizer, which is also SmolLM2's in a GGUF file."""
    return byte_level(pre_tokenizers.ByteLevel(add_prefix_space=False))


def gpt2_by_pattern() -> Tokenizer:
    """GPT-2's tokenizer with its pattern written out."""
    return byte_level(by_pattern(GPT2))


def smollm2() -> Tokenizer:
    """SmolLM2's tokenizer: every digit is a token, and some bytes have no term."""
    parts = [pre_tokenizers.Digits(individual_digits=True), pre_tokenizers.ByteLevel(add_prefix_space=False)]
    alphabet = [char for char in pre_tokenizers.ByteLevel.alphabet() if char not in "ĀāĂ~"]
    return byte_level(pre_tokenizers.Sequence(parts), alphabet=alphabet)


def llama3() -> Tokenizer:
    """Llama 3's tokenizer: up to three digits are a word, and words of the vocabulary are not merged."""
    return byte_level(by_pattern(LLAMA3), ignore_merges=True)


def unmergeable() -> Tokenizer:
    """Llama 3's tokenizer with words in its vocabulary that no merge produces."""
    vocabulary = {char: i for i, char in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    words = ["Ġcat", "ca", "cat", "at", "Ġthe", "123", "Ċ"]
    vocabulary |= {word: len(vocabulary) + i for i, word in enumerate(words)}
    tokenizer = Tokenizer(models.BPE(vocabulary, [("a", "t"), ("c", "a")], ignore_merges=True))
    tokenizer.pre_tokenizer = by_pattern(LLAMA3)
    return tokenizer


def qwen2() -> Tokenizer:
    """Qwen 2's tokenizer: every digit is a word, text is NFC, and some added tokens are not special."""
    tokenizer = byte_level(by_pattern(QWEN2), normalizer=normalizers.NFC())
    tokenizer.add_tokens([AddedToken("<think>", normalized=False), AddedToken("<tool call>"), "cat's"])
    return tokenizer


def qwen35() -> Tokenizer:
    """Qwen 3.5's tokenizer: combining marks are parts of words."""
    marked = QWEN2.replace(r"?\p{L}+", r"?[\p{L}\p{M}]+").replace(r"[^\s\p{L}\p{N}]", r"[^\s\p{L}\p{M}\p{N}]")
    return byte_level(by_pattern(marked), normalizer=normalizers.NFC())


def word_piece(**settings: Any) -> Tokenizer:
    """Return a WordPiece tokenizer with BERT's settings, trained on TEXTS."""
    tokenizer = Tokenizer(models.WordPiece(unk_token="[UNK]", max_input_chars_per_word=20))
    tokenizer.normalizer = normalizers.BertNormalizer(**settings)
    tokenizer.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = ["[PAD]", "[UNK]", "[CLS]", "[SEP]"]
    trainer = trainers.WordPieceTrainer(vocab_size=160, special_tokens=special, show_progress=False)
    tokenizer.train_from_iterator(TEXTS, trainer)
    return tokenizer


def bert_uncased() -> Tokenizer:
    """BERT's tokenizer for lower-case text."""
    return word_piece(lowercase=True)


def bert_cased() -> Tokenizer:
    """BERT's tokenizer for cased text, without cleaning."""
    return word_piece(lowercase=False, clean_text=False, handle_chinese_chars=False)


NATIVE: dict[str, Callable[[], Tokenizer]] = {
    make.__name__: cache(make)
    for make in (gpt2, gpt2_by_pattern, smollm2, llama3, unmergeable, qwen2, qwen35, bert_uncased, bert_cased)
}
"""Tokenizers that the kernel supports for ASCII texts, by name."""
