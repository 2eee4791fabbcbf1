"""doc2query: the queries that a document answers, to expand it with, or to train on where a corpus has no labels."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

from tqdm import tqdm

from lightir.encode.rerank import load_generator
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.generation import beam_search
from lightir.models.likelihood import end_states
from lightir.types import Document


@dataclass(frozen=True, slots=True)
class GeneratedQuery:
    """A query that a document may answer.

    Attributes:
        text: as the model says it.
        score: mean log probability of its tokens.
    """

    text: str
    score: float


def generate_queries(
    model: LightRetriever | str | os.PathLike[str],
    documents: Iterable[Document],
    *,
    n: int = 5,
    max_tokens: int = 32,
    batch_size: int = 16,
    dtype: Literal["auto", "bf16", "fp32"] = "auto",
    device: str = "auto",
    n_documents: int | None = None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    """Each document, in order, with its best queries by beam search from [E]: at most n, distinct, best first.

    A query ends at the end token (which the recipe's learn_end teaches), at a line break, or after max_tokens.

    Args:
        model: as load_generator takes it.
        documents: any number; they are read as they are needed.
        n: queries a document, and beams.
        max_tokens: of a query.
        batch_size: documents that go through the model together.
        dtype: as load_generator takes it.
        device: likewise.
        n_documents: how many there are, for the progress bar.

    Raises:
        InvalidInput: a model that generates nothing, or a size below 1.
    """
    if min(n, max_tokens, batch_size) < 1:
        raise InvalidInput(f"n {n}, max_tokens {max_tokens}, batch_size {batch_size}: all must be at least 1")
    retriever = load_generator(model, dtype=dtype, device=device)
    return _generate(retriever, iter(documents), n, max_tokens, batch_size, n_documents)


def _generate(
    retriever: LightRetriever,
    documents: Iterator[Document],
    n: int,
    max_tokens: int,
    batch_size: int,
    n_documents: int | None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    backbone, tokenizer = retriever.backbone, retriever.backbone.tokenizer
    line_break = tokenizer.term_ids(["\n"]).row(0).tolist()
    stop_ids = {backbone.eos_id, *(line_break if len(line_break) == 1 else ())}
    with tqdm(total=n_documents, desc="generate", unit="doc", disable=None) as bar:
        while batch := list(islice(documents, batch_size)):
            ends = end_states(backbone, retriever.frame_documents(batch), n_ends=len(retriever.end_ids))
            found = beam_search(backbone, ends, beams=n, max_tokens=max_tokens, stop_ids=stop_ids)
            for document, hypotheses in zip(batch, found, strict=True):
                texts: dict[str, float] = {}
                for each in hypotheses:
                    text = tokenizer.backend.decode(list(each.token_ids), skip_special_tokens=True).strip()
                    if text:
                        texts.setdefault(text, each.score)
                yield document, [GeneratedQuery(text, score) for text, score in texts.items()]
            bar.update(len(batch))


def expanded(document: Document, queries: Sequence[GeneratedQuery]) -> Document:
    """The document with the queries behind its text, a line each."""
    return dataclasses.replace(document, text="\n".join([document.text, *(query.text for query in queries)]))


def training_records(document: Document, queries: Sequence[GeneratedQuery]) -> Iterator[dict[str, Any]]:
    """One JSON object a query, as `TrainingSet.open_jsonl` reads them, with the document as its positive."""
    positive = {"_id": document.doc_id, "title": document.title, "text": document.text}
    for number, query in enumerate(queries):
        yield {"query_id": f"{document.doc_id}:{number}", "query": query.text, "positives": [positive]}
