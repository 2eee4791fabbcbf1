"""Training sets, and the schedule of batches over several of them."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from lightir.data.dataset import Dataset
from lightir.data.examples import PlacedDocuments, RowExamples, RowSet, TrainingExample, given_document
from lightir.data.instructions import instructions as listed_instructions
from lightir.data.readers import json_records, numbered_lines, place_name
from lightir.errors import InvalidInput, NotFound
from lightir.files import write_bytes
from lightir.text import check_text
from lightir.types import Document, Query


class Pair(NamedTuple):
    """A query and the document that answers it, as self-supervision makes them."""

    query: Query
    document: Document


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Examples, the documents they name, and the instructions to draw from.

    Attributes:
        name: the set's name.
        examples: with distinct query ids; a tuple, or RowExamples that stay in their file.
        documents: every document by id; random negatives come from all of them.
        instructions: at least one; "" stands for none.
        digest: a hash over the file or table that the examples stay in; "" for examples in memory.
    """

    name: str
    examples: Sequence[TrainingExample]
    documents: Mapping[str, Document]
    instructions: tuple[str, ...]
    digest: str = ""

    @classmethod
    def open(
        cls,
        folder: Path | str,
        split: str = "train",
        *,
        negatives: Path | str | None = None,
        instructions: Sequence[str] | None = None,
        min_grade: int = 1,
    ) -> TrainingSet:
        """A BEIR folder's split, its corpus in memory; judged queries without a positive are left out.

        Args:
            folder: the data set.
            split: its split.
            negatives: a file that write_negatives wrote; its queries that the split lacks are left aside.
            instructions: None takes those listed under the folder's name.
            min_grade: documents of this grade or more are positives; a negative is never one of them.

        Raises:
            NotFound: folder, split or file is missing, or no instruction is listed under the name.
            InvalidInput: judgements or negatives name ids that the files don't hold, or nothing is left.
        """
        dataset = Dataset.open(folder)
        chosen = listed_instructions(dataset.name, training=True) if instructions is None else tuple(instructions)
        documents = {document.doc_id: document for document in dataset.corpus()}
        qrels = dataset.qrels(split)
        mined = {} if negatives is None else read_negatives(negatives)
        examples = []
        for query in dataset.queries(split):
            positives = tuple(doc_id for doc_id, grade in qrels[query.query_id].items() if grade >= min_grade)
            if positives:
                hard = tuple(doc_id for doc_id in mined.get(query.query_id, ()) if doc_id not in positives)
                answers = tuple(str(answer) for answer in query.metadata.get("answers", ()))
                examples.append(TrainingExample(query.query_id, query.text, positives, hard, dataset.name, answers))
        return cls.checked(dataset.name, examples, documents, chosen)

    @classmethod
    def open_jsonl(cls, path: Path | str, *, name: str | None = None, instructions: Sequence[str]) -> TrainingSet:
        """Examples out of JSON lines {"query", "positives": [...], "negatives": [...], "query_id"?, "scores"?: [...]}.

        A positive or negative is a text, or an object {"text", "title"?, "_id"?}; equal ones without an id are one
        document. Without a query_id the line number is it. Scores are a teacher's of the positives, then of the
        negatives; null where it gave none.

        Raises:
            NotFound: there is no such file.
            InvalidInput: file and line are named.
        """
        path = Path(path)
        if not path.is_file():
            raise NotFound(f"{path} does not exist; a file of training examples is needed")
        name = name or path.name.split(".")[0]
        documents: dict[str, Document] = {}
        examples = []
        for number, record in json_records(str(path), numbered_lines(path)):
            examples.append(_jsonl_example(record, number, name, documents, place_name(str(path), number)))
        return cls.checked(name, examples, documents, tuple(instructions))

    @classmethod
    def from_pairs(cls, name: str, pairs: Iterable[Pair], *, instructions: Sequence[str]) -> TrainingSet:
        """One example a pair; the documents are those of the pairs."""
        documents: dict[str, Document] = {}
        examples = []
        for query, document in pairs:
            documents[document.doc_id] = document
            examples.append(TrainingExample(query.query_id, query.text, (document.doc_id,), (), name))
        return cls.checked(name, examples, documents, tuple(instructions))

    @classmethod
    def from_rows(cls, name: str, rows: RowSet, *, instructions: Sequence[str]) -> TrainingSet:
        """What reading rows found.

        Raises:
            InvalidInput: there is none, or no instruction.
        """
        _require_some(name, rows.examples, instructions)
        return cls(name, rows.examples, rows.documents, tuple(instructions), rows.digest)

    @classmethod
    def checked(
        cls,
        name: str,
        examples: Sequence[TrainingExample],
        documents: Mapping[str, Document],
        instructions: tuple[str, ...],
    ) -> TrainingSet:
        """A set whose ids all resolve; the constructor itself checks nothing.

        Raises:
            InvalidInput: no example, no instruction, a query id twice, no positive, or a document that is not there.
        """
        _require_some(name, examples, instructions)
        seen: set[str] = set()
        for example in examples:
            if example.query_id in seen:
                raise InvalidInput(f"training set {name!r}: query {example.query_id!r} stands in it twice")
            seen.add(example.query_id)
            if not example.positive_ids:
                raise InvalidInput(f"training set {name!r}: query {example.query_id!r} has no positive document")
            for doc_id in (*example.positive_ids, *example.negative_ids):
                if doc_id not in documents:
                    raise InvalidInput(
                        f"training set {name!r}: query {example.query_id!r} names document {doc_id!r}, "
                        f"which the corpus does not hold"
                    )
        return cls(name, tuple(examples), documents, instructions)

    def __len__(self) -> int:
        """Number of examples."""
        return len(self.examples)

    def queries(self) -> Iterator[Query]:
        """The examples' queries."""
        if isinstance(self.examples, RowExamples):
            yield from self.examples.queries()
            return
        for example in self.examples:
            yield Query(example.query_id, example.query)

    @property
    def doc_ids(self) -> Sequence[str]:
        """All documents' ids, in the mapping's order."""
        return self.documents.ids if isinstance(self.documents, PlacedDocuments) else tuple(self.documents)

    @property
    def most_positives(self) -> int:
        """No example has more positives than this."""
        if isinstance(self.examples, RowExamples):
            return self.examples.most_positives
        return max((len(example.positive_ids) for example in self.examples), default=0)

    def fingerprint(self) -> str:
        """A hash over ids and texts of queries and documents, positives, negatives and scores: 16 digits."""
        if isinstance(self.examples, RowExamples):
            return hashlib.sha256(f"{self.digest} {self.examples.digest()}".encode()).hexdigest()[:16]
        digest = hashlib.sha256()
        for each in self.examples:
            digest.update(repr((each.query_id, each.query, each.positive_ids, each.negative_ids)).encode())
            digest.update(repr(each.scores).encode() if each.scores else b"")
        for doc_id in sorted(self.documents):
            document = self.documents[doc_id]
            digest.update(repr((doc_id, document.title, document.text)).encode())
        return digest.hexdigest()[:16]

    def scored(self, scores: Mapping[str, Mapping[str, float]]) -> TrainingSet:
        """The same set with a teacher's scores, by query and document id; what these lack is unknown.

        Raises:
            InvalidInput: no score belongs to an example of the set.
        """
        examples = []
        for each in self.examples:
            given = scores.get(each.query_id, {})
            values = tuple(given.get(doc_id, math.nan) for doc_id in (*each.positive_ids, *each.negative_ids))
            examples.append(replace(each, scores=values))
        if not any(math.isfinite(value) for each in examples for value in each.scores):
            raise InvalidInput(f"training set {self.name!r}: none of the scores is of its queries and documents")
        return replace(self, examples=tuple(examples))

    def without(self, query_ids: Collection[str]) -> TrainingSet:
        """The same set less some queries; it may end up empty, and then goes into no mixture."""
        dropped = set(query_ids)
        if not isinstance(self.examples, RowExamples):
            return replace(self, examples=tuple(each for each in self.examples if each.query_id not in dropped))
        kept = [place for place, query in enumerate(self.queries()) if query.query_id not in dropped]
        return replace(self, examples=self.examples.select(np.asarray(kept, dtype=np.int64)))


def _require_some(name: str, examples: Sequence[TrainingExample], instructions: Sequence[str]) -> None:
    if not len(examples):
        raise InvalidInput(f"training set {name!r} has no example with a relevant document")
    if not instructions:
        raise InvalidInput(f"training set {name!r} has no instruction; give '' for a model that takes none")


def _jsonl_example(
    record: dict[str, Any], number: int, name: str, documents: dict[str, Document], where: str
) -> TrainingExample:
    if unknown := sorted(record.keys() - {"query_id", "query", "positives", "negatives", "scores"}):
        raise InvalidInput(
            f"{where}: unknown field {unknown[0]!r}; expected query, positives, negatives, scores, query_id"
        )
    query = check_text(record.get("query"), f"{where}: query")
    positives, negatives = (
        tuple(_add_document(each, documents, f"{where}: {role}") for each in _list(record, role, where))
        for role in ("positives", "negatives")
    )
    query_id = check_text(record.get("query_id", str(number)), f"{where}: query_id")
    scores = _jsonl_scores(record, len(positives) + len(negatives), where)
    return TrainingExample(query_id, query, positives, negatives, name, scores=scores)


def _jsonl_scores(record: dict[str, Any], n: int, where: str) -> tuple[float, ...]:
    values = _list(record, "scores", where)
    if values and len(values) != n:
        raise InvalidInput(f"{where}: {len(values)} scores for {n} positives and negatives")
    for value in values:
        if value is not None and (isinstance(value, bool) or not isinstance(value, int | float)):
            raise InvalidInput(f"{where}: the score {value!r} is no number")
    return tuple(math.nan if value is None else float(value) for value in values)


def _list(record: dict[str, Any], role: str, where: str) -> list[Any]:
    value = record.get(role, [])
    if not isinstance(value, list):
        raise InvalidInput(f"{where}: {role} is {type(value).__name__}; expected a list")
    return value


def _add_document(value: Any, documents: dict[str, Document], where: str) -> str:
    """The id of the document, which is put among the documents."""
    document = given_document(value, where)
    if documents.setdefault(document.doc_id, document) != document:
        raise InvalidInput(f"{where}: document {document.doc_id!r} came before with another text")
    return document.doc_id


# Mined negatives.


def write_negatives(path: Path | str, negatives: Mapping[str, Sequence[str]]) -> None:
    """Write JSON lines {"query_id", "negatives": [doc_id, …]}, best first, whole or not at all."""
    lines = (
        json.dumps({"query_id": query_id, "negatives": list(doc_ids)}, ensure_ascii=False) + "\n"
        for query_id, doc_ids in negatives.items()
    )
    write_bytes(Path(path), "".join(lines).encode())


def read_negatives(path: Path | str) -> dict[str, tuple[str, ...]]:
    """What write_negatives wrote: query_id -> document ids, best first.

    Raises:
        NotFound: there is no such file.
        InvalidInput: file and line are named.
    """
    path = Path(path)
    if not path.is_file():
        raise NotFound(f"{path} does not exist; mine the negatives first: lightir mine")
    negatives: dict[str, tuple[str, ...]] = {}
    for number, record in json_records(str(path), numbered_lines(path)):
        where = place_name(str(path), number)
        query_id = check_text(record.get("query_id"), f"{where}: query_id")
        if query_id in negatives:
            raise InvalidInput(f"{where}: query {query_id!r} came before")
        negatives[query_id] = tuple(
            check_text(each, f"{where}: a negative") for each in _list(record, "negatives", where)
        )
    return negatives


# Batches.


@dataclass(frozen=True, slots=True)
class Batch:
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
    """The batches over several sets as a pure function of the step: nothing to save but the step.

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

    def batch(self, step: int) -> Batch:
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

    def _set_batch(self, chosen: int, number: int) -> Batch:
        examples = self.sets[chosen].examples
        a_pass, place = divmod(number, len(examples) // self.batch_size)
        rows = self._permutation(chosen, a_pass)[place * self.batch_size : (place + 1) * self.batch_size]
        rng = np.random.default_rng([self.seed, 2, chosen, number])
        return self._draw([chosen] * len(rows), [examples[row] for row in rows], rng)

    def _mixed_batch(self, step: int, order: npt.NDArray[np.int64], epoch: int, place: int) -> Batch:
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

    def _draw(self, chosen: Sequence[int], examples: Sequence[TrainingExample], rng: np.random.Generator) -> Batch:
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
        return Batch(
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
    """See Batch; `columns` are the documents' sets and ids: equal ids in different sets are different documents."""
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
