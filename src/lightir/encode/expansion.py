"""doc2query: generate the queries that a document answers, to expand it or to train on an unlabeled corpus."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any

import numpy as np

from lightir.encode.likelihood_reranking import check_generator
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.models.generation import Hypothesis, beam_search, sample
from lightir.models.likelihood import EndStates, end_states
from lightir.progress import Progress
from lightir.types import Document


@dataclass(frozen=True, slots=True)
class GeneratedQuery:
    """A query that a document may answer.

    Attributes:
        text: text of the query.
        score: mean log probability of its tokens.
    """

    text: str
    score: float


@dataclass(frozen=True, slots=True)
class GenerationOptions:
    """Options of query generation, by beam search or random draws.

    Beam search finds the most probable queries, which resemble each other; draws vary more (doc2query's later form
    draws from the 10 most probable tokens).

    Attributes:
        n: number of queries of a document, and of beams or draws.
        max_tokens: maximum number of tokens of a query.
        draw_among: number of most probable tokens that each token is drawn from; 0 is beam search.
        seed: seed of the draws. Those of a document depend on the seed and the document's number alone.
    """

    n: int = 5
    max_tokens: int = 32
    draw_among: int = 0
    seed: int = 0

    def __post_init__(self) -> None:
        """Refuse sizes below 1, or below 0 for draw_among."""
        if min(self.n, self.max_tokens) < 1:
            raise InvalidInput(f"n is {self.n} and max_tokens {self.max_tokens}; both must be at least 1")
        if self.draw_among < 0:
            raise InvalidInput(
                f"draw_among is {self.draw_among}; expected 0 (beam search) or a number of tokens to draw from"
            )


DEFAULT_OPTIONS = GenerationOptions()


def generate_queries(
    model: LightRetriever,
    documents: Iterable[Document],
    *,
    options: GenerationOptions = DEFAULT_OPTIONS,
    batch_size: int = 16,
    n_documents: int | None = None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    """Yield each document, in order, with at most `options.n` distinct queries from its [E], best first.

    A query ends at the end token (which the recipe's learn_end teaches), at a line break, or after max_tokens.

    Args:
        model: generator, as `load_generator` returns it.
        documents: documents, read as they are needed.
        options: number, length and choice of the queries.
        batch_size: number of documents of a forward pass.
        n_documents: number of documents, for the progress bar; None if unknown.

    Raises:
        InvalidInput: a model that generates nothing, or a batch size below 1.
    """
    if batch_size < 1:
        raise InvalidInput(f"batch_size is {batch_size}; expected at least 1")
    check_generator(model)
    backbone = model.backbone
    line_break = backbone.tokenizer.term_ids(["\n"]).row(0).tolist()
    stop_ids = {backbone.eos_id, *(line_break if len(line_break) == 1 else ())}
    n, max_tokens = options.n, options.max_tokens

    def generate(ends: EndStates, first: int) -> list[list[Hypothesis]]:
        if not options.draw_among:
            return beam_search(backbone, ends, beams=n, max_tokens=max_tokens, stop_ids=stop_ids)
        generators = [np.random.default_rng([options.seed, first + row]) for row in range(len(ends.states))]
        among = options.draw_among
        return sample(backbone, ends, generators, draws=n, among=among, max_tokens=max_tokens, stop_ids=stop_ids)

    return _generate(model, iter(documents), generate, batch_size, n_documents)


def _generate(
    model: LightRetriever,
    documents: Iterator[Document],
    generate: Callable[[EndStates, int], list[list[Hypothesis]]],
    batch_size: int,
    n_documents: int | None,
) -> Iterator[tuple[Document, list[GeneratedQuery]]]:
    """Yield documents with their queries; `generate` takes end states and the number of the batch's first document."""
    backbone, tokenizer = model.backbone, model.backbone.tokenizer
    n_done = 0
    with Progress("generate", unit="document", total=n_documents) as bar:
        while batch := list(islice(documents, batch_size)):
            ends = end_states(backbone, model.frame_documents(batch), n_ends=len(model.end_ids))
            generated = generate(ends, n_done)
            n_done += len(batch)
            for document, hypotheses in zip(batch, generated, strict=True):
                scores: dict[str, float] = {}
                for hypothesis in hypotheses:
                    text = tokenizer.backend.decode(list(hypothesis.token_ids), skip_special_tokens=True).strip()
                    if text:
                        scores.setdefault(text, hypothesis.score)
                yield document, [GeneratedQuery(text, score) for text, score in scores.items()]
            bar.update(len(batch))


def expand_document(document: Document, queries: Sequence[GeneratedQuery]) -> Document:
    """Return the document with the queries appended to its text, one a line."""
    return dataclasses.replace(document, text="\n".join([document.text, *(query.text for query in queries)]))


def training_records(document: Document, queries: Sequence[GeneratedQuery]) -> Iterator[dict[str, Any]]:
    """Yield one JSON object per query, as `TrainingSet.open_jsonl` reads them, with the document as its positive."""
    positive = {"_id": document.doc_id, "title": document.title, "text": document.text}
    for number, query in enumerate(queries):
        yield {"query_id": f"{document.doc_id}:{number}", "query": query.text, "positives": [positive]}
