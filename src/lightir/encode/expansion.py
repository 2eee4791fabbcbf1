"""doc2query: the queries that a document answers, to expand it with, or to train on where a corpus has no labels."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, Literal

import numpy as np
from tqdm import tqdm

from lightir.encode.likelihood_reranking import load_generator
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.generation import Hypothesis, beam_search, sample
from lightir.models.likelihood import EndStates, end_states
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
    draw_among: int = 0,
    seed: int = 0,
    dtype: Literal["auto", "bf16", "fp32"] = "auto",
    device: str = "auto",
    n_documents: int | None = None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    """Each document, in order, with queries from its [E]: at most n, distinct, best first.

    Beam search finds the most probable ones, which resemble each other; draws vary more (doc2query's later form, from
    the 10 most probable tokens).

    A query ends at the end token (which the recipe's learn_end teaches), at a line break, or after max_tokens.

    Args:
        model: as load_generator takes it.
        documents: any number; they are read as they are needed.
        n: queries a document, and beams or draws.
        max_tokens: of a query.
        batch_size: documents that go through the model together.
        draw_among: 0 for beam search; else each token is drawn from the so many most probable ones.
        seed: of the draws. A document's depend on it and on the document's number alone.
        dtype: as load_generator takes it.
        device: likewise.
        n_documents: how many there are, for the progress bar.

    Raises:
        InvalidInput: a model that generates nothing, or a size below 1.
    """
    if min(n, max_tokens, batch_size) < 1:
        raise InvalidInput(f"n {n}, max_tokens {max_tokens}, batch_size {batch_size}: all must be at least 1")
    if draw_among < 0:
        raise InvalidInput(f"draw_among is {draw_among}; expected 0 (beam search) or a number of tokens to draw from")
    retriever = load_generator(model, dtype=dtype, device=device)
    backbone = retriever.backbone
    line_break = backbone.tokenizer.term_ids(["\n"]).row(0).tolist()
    stop_ids = {backbone.eos_id, *(line_break if len(line_break) == 1 else ())}

    def texts(ends: EndStates, first: int) -> list[list[Hypothesis]]:
        """The queries of a batch whose first document has this number."""
        if not draw_among:
            return beam_search(backbone, ends, beams=n, max_tokens=max_tokens, stop_ids=stop_ids)
        generators = [np.random.default_rng([seed, first + place]) for place in range(len(ends.states))]
        return sample(backbone, ends, generators, draws=n, among=draw_among, max_tokens=max_tokens, stop_ids=stop_ids)

    return _generate(retriever, iter(documents), texts, batch_size, n_documents)


def _generate(
    retriever: LightRetriever,
    documents: Iterator[Document],
    texts_of: Callable[[EndStates, int], list[list[Hypothesis]]],
    batch_size: int,
    n_documents: int | None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    backbone, tokenizer = retriever.backbone, retriever.backbone.tokenizer
    n_done = 0
    with tqdm(total=n_documents, desc="generate", unit="doc", disable=None) as bar:
        while batch := list(islice(documents, batch_size)):
            ends = end_states(backbone, retriever.frame_documents(batch), n_ends=len(retriever.end_ids))
            found = texts_of(ends, n_done)
            n_done += len(batch)
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
