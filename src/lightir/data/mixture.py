"""Batches from several training sets, as a pure function of the step."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.data.examples import TrainingExample
from lightir.data.training_set import TrainingSet
from lightir.errors import InvalidInput
from lightir.types import Document


@dataclass(frozen=True, slots=True)
class TrainingBatch:
    """The queries of one step with their documents.

    Attributes:
        dataset: name of the set; for a mixed batch the names of its sets, joined by "+".
        instructions: n instructions, one per query, drawn from its set's for this batch.
        query_ids: n ids, distinct within a set.
        queries: n texts.
        documents: n positives, one per query, then n_negatives for the first query, for the second, and so on.
        false_negatives: (n, len(documents)) bool. True if a document other than the row's own positive is relevant to
            the query (by id, or because its text equals that of the row's positive). Exclude it from the loss.
        scores: (n, len(documents)) float32, a teacher's scores, NaN where missing; None without a teacher.
    """

    dataset: str
    instructions: tuple[str, ...]
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    documents: tuple[Document, ...]
    false_negatives: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float32] | None = None


class Mixture:
    """Batches from several sets as a pure function of the step, so that a checkpoint only saves the step.

    In one epoch each set contributes round(ratio * examples / batch_size) batches, at least one. The order of all sets'
    batches is drawn from the seed. A set is traversed in passes, each a new permutation whose last, incomplete batch is
    dropped; the next epoch continues where the previous one stopped. A batch therefore contains no query twice.

    A mixed mixture distributes the same number of each set's examples over the epoch's batches one by one. It drops no
    example, so a batch at the border of two passes can contain a query twice. The query's documents are then excluded
    from its negatives.
    """

    def __init__(
        self,
        sets: Sequence[TrainingSet],
        *,
        batch_size: int,
        n_negatives: int,
        seed: int,
        ratios: Mapping[str, float] | None = None,
        mixed: bool = False,
    ) -> None:
        """Plan the batches.

        Args:
            sets: training sets with distinct names.
            batch_size: number of queries per batch, over all processes.
            n_negatives: number of hard negatives per query, drawn from its list. If the list is too short, the rest are
                documents drawn from the set's corpus.
            seed: seed of all random choices.
            ratios: fraction of each set's examples used in one epoch (the paper's Table 5); default 1.
            mixed: mix examples of several sets in a batch.

        Raises:
            InvalidInput: no set, duplicate names, a set with fewer examples than a batch or too few documents for
                n_negatives, or a ratio that is not positive or names an unknown set.
        """
        names = [training.name for training in sets]
        if not sets or len(set(names)) < len(names):
            raise InvalidInput(f"a mixture requires sets with distinct names, not {names}")
        if batch_size < 1 or n_negatives < 0:
            raise InvalidInput(f"batch_size {batch_size} must be at least 1, n_negatives {n_negatives} at least 0")
        ratios = dict(ratios or {})
        if unknown := sorted(ratios.keys() - set(names)):
            raise InvalidInput(f"ratio for unknown set {unknown[0]!r}; the sets are {names}")
        self.sets = tuple(sets)
        self.batch_size = batch_size
        self.n_negatives = n_negatives
        self.seed = seed
        self.mixed = mixed
        self._doc_ids = [training.doc_ids for training in sets]
        self.batches_per_set: dict[str, int] = {}
        for training in sets:
            ratio = ratios.get(training.name, 1.0)
            self._check_set(training, ratio)
            self.batches_per_set[training.name] = max(1, round(ratio * len(training) / batch_size))
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None
        self._permutations: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}

    def _check_set(self, training: TrainingSet, ratio: float) -> None:
        if not ratio > 0:
            raise InvalidInput(f"training set {training.name!r}: the ratio is {ratio}; expected a positive number")
        if len(training) < self.batch_size:
            raise InvalidInput(
                f"training set {training.name!r} has {len(training)} examples, fewer than a batch of {self.batch_size}"
            )
        if len(training.documents) - training.most_positives >= self.n_negatives:
            return
        for example in training.examples:
            if len(training.documents) - len(example.positive_ids) < self.n_negatives:
                raise InvalidInput(
                    f"training set {training.name!r} has {len(training.documents)} documents, too few for "
                    f"{self.n_negatives} negatives of query {example.query_id!r}"
                )

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches per epoch."""
        return sum(self.batches_per_set.values())

    def position(self, step: int) -> tuple[int, int]:
        """Return a step's epoch and its position in the epoch, both from 0."""
        return divmod(step, self.batches_per_epoch)

    def batch(self, step: int) -> TrainingBatch:
        """Return the batch of a step, from 0; it does not depend on earlier calls."""
        if step < 0:
            raise InvalidInput(f"step {step} is negative")
        epoch, position = self.position(step)
        order = self._epoch_order(epoch)
        if self.mixed:
            return self._mixed_batch(step, order, epoch, position)
        chosen = int(order[position])
        before = int(np.count_nonzero(order[:position] == chosen))
        number = epoch * self.batches_per_set[self.sets[chosen].name] + before
        return self._set_batch(chosen, number)

    def _epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Return the set number of each batch of an epoch, or of each example if mixed; int64."""
        if self._order is None or self._order[0] != epoch:
            counts = [self._per_epoch(training.name) for training in self.sets]
            order = np.repeat(np.arange(len(self.sets)), counts)
            self._order = epoch, np.random.default_rng([self.seed, 0, epoch]).permutation(order)
        return self._order[1]

    def _per_epoch(self, name: str) -> int:
        """Return a set's number of batches per epoch, or of examples if mixed."""
        return self.batches_per_set[name] * (self.batch_size if self.mixed else 1)

    def _set_batch(self, chosen: int, number: int) -> TrainingBatch:
        examples = self.sets[chosen].examples
        pass_number, position = divmod(number, len(examples) // self.batch_size)
        start = position * self.batch_size
        rows = self._permutation(chosen, pass_number)[start : start + self.batch_size]
        rng = np.random.default_rng([self.seed, 2, chosen, number])
        return self._draw([chosen] * len(rows), [examples[row] for row in rows], rng)

    def _mixed_batch(self, step: int, order: npt.NDArray[np.int64], epoch: int, position: int) -> TrainingBatch:
        first = position * self.batch_size
        chosen = order[first : first + self.batch_size].tolist()
        before = np.bincount(order[:first], minlength=len(self.sets)).tolist()
        examples = []
        for number in chosen:
            training = self.sets[number]
            pass_number, row = divmod(epoch * self._per_epoch(training.name) + before[number], len(training))
            examples.append(training.examples[int(self._permutation(number, pass_number)[row])])
            before[number] += 1
        return self._draw(chosen, examples, np.random.default_rng([self.seed, 4, step]))

    def _permutation(self, chosen: int, pass_number: int) -> npt.NDArray[np.int64]:
        """Return the order of a set's examples in one pass."""
        if self._permutations.get(chosen, (-1,))[0] != pass_number:
            generator = np.random.default_rng([self.seed, 1, chosen, pass_number])
            self._permutations[chosen] = pass_number, generator.permutation(len(self.sets[chosen]))
        return self._permutations[chosen][1]

    def _draw(
        self, chosen: Sequence[int], examples: Sequence[TrainingExample], rng: np.random.Generator
    ) -> TrainingBatch:
        """Draw a batch of examples; `chosen` holds each example's set number."""
        instructions = {}
        for number in sorted(set(chosen)):
            candidates = self.sets[number].instructions
            instructions[number] = candidates[rng.integers(len(candidates))]
        doc_ids = [example.positive_ids[rng.integers(len(example.positive_ids))] for example in examples]
        for number, example in zip(chosen, examples, strict=True):
            doc_ids += self._negatives(number, example, rng)
        owners = [*chosen, *np.repeat(np.asarray(chosen), self.n_negatives).tolist()]
        columns = list(zip(owners, doc_ids, strict=True))
        documents = tuple(self.sets[number].documents[doc_id] for number, doc_id in columns)
        return TrainingBatch(
            "+".join(self.sets[number].name for number in instructions),
            tuple(instructions[number] for number in chosen),
            tuple(example.query_id for example in examples),
            tuple(example.query for example in examples),
            documents,
            _false_negatives(chosen, examples, columns, documents),
            _known_scores(chosen, examples, columns),
        )

    def _negatives(self, chosen: int, example: TrainingExample, rng: np.random.Generator) -> list[str]:
        hard = example.negative_ids
        if len(hard) >= self.n_negatives:
            return [hard[position] for position in rng.choice(len(hard), self.n_negatives, replace=False)]
        negatives = list(hard)
        taken = {*hard, *example.positive_ids}
        pool = self._doc_ids[chosen]
        if len(pool) - len(taken) < self.n_negatives - len(negatives):  # positives and negatives cover the corpus
            raise InvalidInput(
                f"query {example.query_id!r} of {example.dataset!r}: too few documents for its negatives"
            )
        while len(negatives) < self.n_negatives:
            doc_id = pool[int(rng.integers(len(pool)))]
            if doc_id not in taken:
                taken.add(doc_id)
                negatives.append(doc_id)
        return negatives


def _false_negatives(
    chosen: Sequence[int],
    examples: Sequence[TrainingExample],
    columns: Sequence[tuple[int, str]],
    documents: Sequence[Document],
) -> npt.NDArray[np.bool_]:
    """Return TrainingBatch.false_negatives; `columns` are (set, document id): equal ids in two sets differ."""
    texts = [(document.title, document.text) for document in documents]
    excluded = np.zeros((len(examples), len(documents)), dtype=np.bool_)
    for row, example in enumerate(examples):
        positives = {(chosen[row], doc_id) for doc_id in example.positive_ids}
        for column, key in enumerate(columns):
            excluded[row, column] = column != row and (key in positives or texts[column] == texts[row])
    return excluded


def _known_scores(
    chosen: Sequence[int], examples: Sequence[TrainingExample], columns: Sequence[tuple[int, str]]
) -> npt.NDArray[np.float32] | None:
    if not any(example.scores for example in examples):
        return None
    scores = np.full((len(examples), len(columns)), np.nan, dtype=np.float32)
    for row, example in enumerate(examples):
        doc_ids = [(chosen[row], doc_id) for doc_id in (*example.positive_ids, *example.negative_ids)]
        known = dict(zip(doc_ids, example.scores, strict=False))
        scores[row] = [known.get(key, np.nan) for key in columns]
    return scores
