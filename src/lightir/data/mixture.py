"""Batches over several training sets, as a pure function of the step."""

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
        dataset: the set's name; of a mixed batch the names of all its sets, with "+" between them.
        instructions: n, each query's: one of its set's, drawn for this batch.
        query_ids: n of them, distinct within a set.
        queries: n texts.
        documents: n positives, query by query, then n_negatives for the first query, for the second, and so on.
        false_negatives: (n, len(documents)) bool. True where a document is relevant to the query (by id, or because
            its text equals that of the row's positive) and is not the row's own positive: leave it out of the loss.
        scores: (n, len(documents)) float32, a teacher's, NaN where it gave none; None where it gave none at all.
    """

    dataset: str
    instructions: tuple[str, ...]
    query_ids: tuple[str, ...]
    queries: tuple[str, ...]
    documents: tuple[Document, ...]
    false_negatives: npt.NDArray[np.bool_]
    scores: npt.NDArray[np.float32] | None = None


class Mixture:
    """The batches over several sets as a pure function of the step, so that a checkpoint has nothing else to save.

    One epoch gives each set round(ratio * examples / batch_size) batches, at least one, and runs through all sets'
    batches in an order drawn from the seed. A set is walked pass by pass, each a fresh permutation whose last, short
    batch is left out, and goes on in the next epoch where it stopped. So a batch holds no query twice.

    A mixed one deals the same number of each set's examples out to the epoch's batches one by one. No example of a pass
    is left out then, so a query can stand twice in a batch where one pass ends and the next begins; its documents are
    no negatives of its own.
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
            sets: with distinct names.
            batch_size: queries a batch, on all processes together.
            n_negatives: hard negatives a query, drawn from its list; where that is short, the rest are documents
                drawn from the set's corpus.
            seed: decides everything that is drawn.
            ratios: a set's share of its examples seen in one epoch (the paper's Table 5); 1 where not named.
            mixed: a batch holds examples of several sets, not of one.

        Raises:
            InvalidInput: no set, a name twice, a set with fewer examples than a batch or too few documents for
                n_negatives, or a ratio that is not positive or belongs to no set.
        """
        names = [each.name for each in sets]
        if not sets or len(set(names)) < len(names):
            raise InvalidInput(f"a mixture needs sets with distinct names, not {names}")
        if batch_size < 1 or n_negatives < 0:
            raise InvalidInput(f"batch_size {batch_size} must be at least 1, n_negatives {n_negatives} at least 0")
        ratios = dict(ratios or {})
        if unknown := sorted(ratios.keys() - set(names)):
            raise InvalidInput(f"a ratio is given for {unknown[0]!r}; the sets are {names}")
        self.sets = tuple(sets)
        self.batch_size = batch_size
        self.n_negatives = n_negatives
        self.seed = seed
        self.mixed = mixed
        self._doc_ids = [each.doc_ids for each in sets]
        for each in sets:
            self._check_set(each, ratios.get(each.name, 1.0))
        self.batches_per_set = {
            each.name: max(1, round(ratios.get(each.name, 1.0) * len(each) / batch_size)) for each in sets
        }
        self._order: tuple[int, npt.NDArray[np.int64]] | None = None
        self._permutations: dict[int, tuple[int, npt.NDArray[np.int64]]] = {}

    def _check_set(self, each: TrainingSet, ratio: float) -> None:
        if not ratio > 0:
            raise InvalidInput(f"training set {each.name!r}: the ratio is {ratio}; expected a positive number")
        if len(each) < self.batch_size:
            raise InvalidInput(
                f"training set {each.name!r} has {len(each)} examples, fewer than a batch of {self.batch_size}"
            )
        if len(each.documents) - each.most_positives >= self.n_negatives:
            return
        for example in each.examples:
            if len(each.documents) - len(example.positive_ids) < self.n_negatives:
                raise InvalidInput(
                    f"training set {each.name!r}: query {example.query_id!r} cannot get {self.n_negatives} negatives "
                    f"out of {len(each.documents)} documents"
                )

    @property
    def batches_per_epoch(self) -> int:
        """Number of batches in one epoch."""
        return sum(self.batches_per_set.values())

    def position(self, step: int) -> tuple[int, int]:
        """The step's epoch and its place in it, both from 0."""
        return divmod(step, self.batches_per_epoch)

    def batch(self, step: int) -> TrainingBatch:
        """The batch of the step, from 0; the same one however often and in whatever order it is asked for."""
        if step < 0:
            raise InvalidInput(f"step {step} is negative")
        epoch, place = self.position(step)
        order = self._epoch_order(epoch)
        if self.mixed:
            return self._mixed_batch(step, order, epoch, place)
        chosen = int(order[place])
        before = int(np.count_nonzero(order[:place] == chosen))
        number = epoch * self.batches_per_set[self.sets[chosen].name] + before
        return self._set_batch(chosen, number)

    def _epoch_order(self, epoch: int) -> npt.NDArray[np.int64]:
        """Which set each batch of the epoch is from, or each example of a mixed one's; int64."""
        if self._order is None or self._order[0] != epoch:
            counts = [self._per_epoch(each.name) for each in self.sets]
            order = np.repeat(np.arange(len(self.sets)), counts)
            self._order = epoch, np.random.default_rng([self.seed, 0, epoch]).permutation(order)
        return self._order[1]

    def _per_epoch(self, name: str) -> int:
        """A set's batches in an epoch, or its examples where batches are mixed."""
        return self.batches_per_set[name] * (self.batch_size if self.mixed else 1)

    def _set_batch(self, chosen: int, number: int) -> TrainingBatch:
        examples = self.sets[chosen].examples
        a_pass, place = divmod(number, len(examples) // self.batch_size)
        rows = self._permutation(chosen, a_pass)[place * self.batch_size : (place + 1) * self.batch_size]
        rng = np.random.default_rng([self.seed, 2, chosen, number])
        return self._draw([chosen] * len(rows), [examples[row] for row in rows], rng)

    def _mixed_batch(self, step: int, order: npt.NDArray[np.int64], epoch: int, place: int) -> TrainingBatch:
        first = place * self.batch_size
        chosen = order[first : first + self.batch_size].tolist()
        before = np.bincount(order[:first], minlength=len(self.sets)).tolist()
        examples = []
        for number in chosen:
            each = self.sets[number]
            a_pass, row = divmod(epoch * self._per_epoch(each.name) + before[number], len(each))
            examples.append(each.examples[int(self._permutation(number, a_pass)[row])])
            before[number] += 1
        return self._draw(chosen, examples, np.random.default_rng([self.seed, 4, step]))

    def _permutation(self, chosen: int, a_pass: int) -> npt.NDArray[np.int64]:
        """The order of a set's examples in one of its passes."""
        if self._permutations.get(chosen, (-1,))[0] != a_pass:
            generator = np.random.default_rng([self.seed, 1, chosen, a_pass])
            self._permutations[chosen] = a_pass, generator.permutation(len(self.sets[chosen]))
        return self._permutations[chosen][1]

    def _draw(
        self, chosen: Sequence[int], examples: Sequence[TrainingExample], rng: np.random.Generator
    ) -> TrainingBatch:
        """A batch of examples, each of the set with the number beside it."""
        instructions = {}
        for number in sorted(set(chosen)):
            some = self.sets[number].instructions
            instructions[number] = some[rng.integers(len(some))]
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
            return [hard[place] for place in rng.choice(len(hard), self.n_negatives, replace=False)]
        negatives = list(hard)
        taken = {*hard, *example.positive_ids}
        pool = self._doc_ids[chosen]
        if len(pool) - len(taken) < self.n_negatives - len(negatives):  # positives and negatives cover the corpus
            raise InvalidInput(f"query {example.query_id!r} of {example.dataset!r} has too few documents left to draw")
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
    found = np.zeros((len(examples), len(documents)), dtype=np.bool_)
    for row, example in enumerate(examples):
        positives = {(chosen[row], doc_id) for doc_id in example.positive_ids}
        for column, key in enumerate(columns):
            found[row, column] = column != row and (key in positives or texts[column] == texts[row])
    return found


def _known_scores(
    chosen: Sequence[int], examples: Sequence[TrainingExample], columns: Sequence[tuple[int, str]]
) -> npt.NDArray[np.float32] | None:
    if not any(example.scores for example in examples):
        return None
    found = np.full((len(examples), len(columns)), np.nan, dtype=np.float32)
    for row, example in enumerate(examples):
        doc_ids = [(chosen[row], doc_id) for doc_id in (*example.positive_ids, *example.negative_ids)]
        known = dict(zip(doc_ids, example.scores, strict=False))
        found[row] = [known.get(key, np.nan) for key in columns]
    return found
