"""Modules for sentence-transformers, for parts of a lightir model that its own modules cannot express.

lightir copies this file into the folders that need it. It requires only sentence-transformers, not lightir. Such a
folder is loaded with trust_remote_code=True.
"""

from __future__ import annotations

import os
from typing import Any, ClassVar

import torch
from safetensors.torch import save_file
from sentence_transformers.models import InputModule, Module, Transformer
from tokenizers import Tokenizer
from torch import Tensor

LARGEST_SCORE = 6.0


def _stored_in(subfolder: str, keywords: dict[str, Any]) -> dict[str, Any]:
    """Return the arguments that locate a module's files."""
    names = ("token", "cache_folder", "revision", "local_files_only")
    return {name: keywords[name] for name in names if name in keywords} | {"subfolder": subfolder}


class FramedTransformer(Transformer):
    """A Transformer that uses its tokenizer.json as it is; transformers replaces parts of it for some models."""

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> FramedTransformer:
        """Load the model, then the tokenizer."""
        module = super().load(model_name_or_path, subfolder=subfolder, **kwargs)
        where = _stored_in(subfolder, kwargs)
        path = cls.load_file_path(model_name_or_path, filename="tokenizer.json", **where)
        module.tokenizer._tokenizer = Tokenizer.from_file(path)
        return module


class _Terms(InputModule):
    """Turns texts into term ids: truncated, without dropped terms. Subclasses make vectors of the terms."""

    config_keys: ClassVar[list[str]] = ["max_tokens", "drop"]

    def __init__(self, tokenizer: Tokenizer, tensors: dict[str, Tensor], **config: Any) -> None:
        """Store the tokenizer, the arrays as buffers, and the settings as attributes."""
        super().__init__()
        self.tokenizer = tokenizer
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor)
        for key in self.config_keys:
            setattr(self, key, config[key])

    def preprocess(self, inputs: list[str], prompt: str | None = None, **kwargs: Any) -> dict[str, Tensor]:
        """Return all term ids, and for each the number of its text; an empty text has none."""
        texts = [f"{prompt or ''}{text}" for text in inputs]
        encodings = self.tokenizer.encode_batch(texts, add_special_tokens=False)
        drop = set(self.drop)
        rows = [[term for term in encoding.ids[: self.max_tokens] if term not in drop] for encoding in encodings]
        owners = [number for number, row in enumerate(rows) for _ in row]
        return {
            "input_ids": torch.tensor([term for row in rows for term in row], dtype=torch.long),
            "owners": torch.tensor(owners, dtype=torch.long),
            "empty": torch.zeros(len(rows), dtype=torch.bool),
        }

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write tokenizer, arrays and settings."""
        self.tokenizer.save(os.path.join(output_path, "tokenizer.json"))
        save_file(self.state_dict(), os.path.join(output_path, "model.safetensors"))
        self.save_config(output_path)

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> _Terms:
        """Read tokenizer, arrays and settings from a folder or a hub's repository."""
        where = _stored_in(subfolder, kwargs)
        tokenizer = Tokenizer.from_file(cls.load_file_path(model_name_or_path, filename="tokenizer.json", **where))
        tensors = cls.load_torch_weights(model_name_or_path=model_name_or_path, **where)
        return cls(tokenizer, tensors, **cls.load_config(model_name_or_path=model_name_or_path, **where))


class TermTable(_Terms):
    """Dense queries: the weighted sum of the rows of a query's terms, known pairs of adjacent terms and longer runs.

    Arrays: `embeddings`, the rows of terms and then of pairs and runs; `pairs`, ascending, row of a term or of the run
    that one more term continues, * 2^32 + that term; `keys` and `values` of the gate, or empty ones. A Normalize module
    follows.
    """

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Set `sentence_embedding`, (texts, dim); 0 for a text without terms."""
        rows, owners = self._with_runs(features["input_ids"], features["owners"])
        vectors = self.embeddings[rows].float()
        n_texts = len(features["empty"])
        if len(self.keys):
            vectors = vectors * self._weights(rows, owners, n_texts)[:, None]
        total = torch.zeros(n_texts, vectors.shape[1], device=vectors.device)
        features["sentence_embedding"] = total.index_add_(0, owners, vectors)
        return features

    def _with_runs(self, terms: Tensor, owners: Tensor) -> tuple[Tensor, Tensor]:
        """Return the rows of terms, then of pairs, of runs of three terms and so on; and the text of each."""
        n_terms = len(self.embeddings) - len(self.pairs)
        rows, places = [terms], torch.arange(len(terms), device=terms.device)  # of each run's last term
        texts = [owners]
        while len(self.pairs) and len(places):
            inside = places + 1 < len(terms)
            places, shorter = places[inside], rows[-1][inside]
            wanted = (shorter << 32) | terms[places + 1]
            numbers = torch.searchsorted(self.pairs, wanted).clamp(max=len(self.pairs) - 1)
            known = (owners[places] == owners[places + 1]) & (self.pairs[numbers] == wanted)
            places = places[known] + 1
            rows.append(numbers[known] + n_terms)
            texts.append(owners[places])
        return torch.cat(rows), torch.cat(texts)

    def _weights(self, rows: Tensor, owners: Tensor, n_texts: int) -> Tensor:
        """Return the weight of each row: exp of its key times the mean value of its text's rows."""
        values = self.values[rows].float()
        total = torch.zeros(n_texts, values.shape[1], device=values.device).index_add_(0, owners, values)
        counts = torch.bincount(owners, minlength=n_texts).clamp(min=1)
        context = (total / counts[:, None])[owners]
        scores = (self.keys[rows].float() * context).sum(dim=1)
        return scores.clamp(-LARGEST_SCORE, LARGEST_SCORE).exp()

    def get_embedding_dimension(self) -> int:
        """Return the width of the vectors."""
        return int(self.embeddings.shape[1])


class TermCounts(_Terms):
    """Sparse queries: each term's count, or 1 if `binary`, times its weight in the array `weight`, (vocabulary,)."""

    config_keys: ClassVar[list[str]] = ["max_tokens", "drop", "binary"]

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Set `sentence_embedding`, (texts, vocabulary)."""
        terms, owners = features["input_ids"], features["owners"]
        counts = torch.zeros(len(features["empty"]), len(self.weight), device=self.weight.device)
        ones = torch.ones(len(terms), device=self.weight.device)
        counts.index_put_((owners, terms), ones, accumulate=True)
        counts = counts.clamp(max=1) if self.binary else counts
        features["sentence_embedding"] = counts * self.weight
        return features

    def get_embedding_dimension(self) -> int:
        """Return the size of the vocabulary."""
        return len(self.weight)


class OwnPositions(Module):
    """Restricts pooling to a text's own tokens: without special tokens, prompt and suffix.

    It adds the array `bias`, if there is one, to the logits of every position.
    """

    config_keys: ClassVar[list[str]] = ["before", "after", "whole_if_empty"]

    def __init__(self, before: int, after: int, whole_if_empty: bool, bias: Tensor | None = None) -> None:
        """Store the number of tokens before and after a text.

        Args:
            before: number of tokens before the text.
            after: number of tokens after the text.
            whole_if_empty: whether a text without own tokens is pooled over all its tokens.
            bias: (vocabulary,) float32, or None.
        """
        super().__init__()
        self.before, self.after, self.whole_if_empty = before, after, whole_if_empty
        self.register_buffer("bias", bias)

    def forward(self, features: dict[str, Tensor], **kwargs: Any) -> dict[str, Tensor]:
        """Change `attention_mask`, which the pooling reads, and `token_embeddings`."""
        if "cu_seq_lens_q" in features:
            raise ValueError("texts are not padded here: set unpad_inputs=False in the Transformer module")
        attended = features["attention_mask"]
        own = (attended.cumsum(1) > self.before) & (attended.flip(1).cumsum(1).flip(1) > self.after)
        own = own.to(attended.dtype) * attended
        if self.whole_if_empty:
            own = torch.where(own.any(dim=1, keepdim=True), own, attended)
        features["attention_mask"] = own
        if self.bias is not None:
            features["token_embeddings"] = features["token_embeddings"] + self.bias
        return features

    def save(self, output_path: str, *args: Any, safe_serialization: bool = True, **kwargs: Any) -> None:
        """Write the settings and the bias."""
        self.save_config(output_path)
        if self.bias is not None:
            save_file({"bias": self.bias}, os.path.join(output_path, "model.safetensors"))

    @classmethod
    def load(cls, model_name_or_path: str, subfolder: str = "", **kwargs: Any) -> OwnPositions:
        """Read the settings and the bias from a folder or a hub's repository."""
        where = _stored_in(subfolder, kwargs)
        config = cls.load_config(model_name_or_path=model_name_or_path, **where)
        stored = cls.load_file_path(model_name_or_path, filename="model.safetensors", **where) is not None
        tensors = cls.load_torch_weights(model_name_or_path=model_name_or_path, **where) if stored else {}
        return cls(**config, bias=tensors.get("bias"))
