"""Training sets: examples, their documents, and the instructions that training draws from."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import NamedTuple

import numpy as np

from lightir.data.dataset import Dataset
from lightir.data.examples import LazyExamples, RowSet, TrainingExample
from lightir.data.instructions import instructions as listed_instructions
from lightir.data.jsonl_examples import read_jsonl_examples
from lightir.data.lazy_documents import LazyDocuments
from lightir.data.negatives import read_negatives
from lightir.errors import InvalidInput
from lightir.types import Document, Query


class Pair(NamedTuple):
    """A query and its relevant document, as self-supervision makes them.

    Attributes:
        query: pseudo-query.
        document: document that the query was made from.
    """

    query: Query
    document: Document


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """A named set of training examples with their documents and instructions.

    Attributes:
        name: name of the set.
        examples: examples with distinct query ids; a tuple, or LazyExamples, which are read on access.
        documents: all documents by id; random negatives are drawn from them.
        instructions: one or more instructions; "" means no instruction.
        digest: hash of the file or table that LazyExamples are read from; "" for examples in memory.
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
        """Open a split of a BEIR folder, with the corpus in memory; queries without a positive are skipped.

        Args:
            folder: path of the data set.
            split: name of the split.
            negatives: file that `write_negatives` wrote; queries that are not in the split are ignored.
            instructions: instructions that training draws from; None for the known ones of the folder's name.
            min_grade: minimum grade of a positive. Positives are removed from the negatives.

        Raises:
            NotFound: the folder, split or file does not exist, or no instruction is known for the name.
            InvalidInput: qrels or negatives contain unknown ids, or no example remains.
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
        """Read JSON lines {"query", "positives": [...], "negatives": [...], "query_id"?, "scores"?: [...]}.

        A positive or negative is a text, or an object {"text", "title"?, "_id"?}; equal ones without an id are one
        document. The default of query_id is the line number. Scores are a teacher's scores of the positives, then of
        the negatives; null for a missing one.

        Raises:
            NotFound: the file does not exist.
            InvalidInput: invalid line; the message names file and line.
        """
        path = Path(path)
        name = name or path.name.split(".")[0]
        examples, documents = read_jsonl_examples(path, name)
        return cls.checked(name, examples, documents, tuple(instructions))

    @classmethod
    def from_pairs(cls, name: str, pairs: Iterable[Pair], *, instructions: Sequence[str]) -> TrainingSet:
        """Make one example per pair; the documents are those of the pairs."""
        documents: dict[str, Document] = {}
        examples = []
        for query, document in pairs:
            documents[document.doc_id] = document
            examples.append(TrainingExample(query.query_id, query.text, (document.doc_id,), (), name))
        return cls.checked(name, examples, documents, tuple(instructions))

    @classmethod
    def from_rows(cls, name: str, rows: RowSet, *, instructions: Sequence[str]) -> TrainingSet:
        """Make a set of the result of `read_rows`.

        Raises:
            InvalidInput: no example or no instruction.
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
        """Make a set after checking that all ids resolve; the constructor checks nothing.

        Raises:
            InvalidInput: no example, no instruction, duplicate query id, no positive, or unknown document id.
        """
        _require_some(name, examples, instructions)
        seen: set[str] = set()
        for example in examples:
            if example.query_id in seen:
                raise InvalidInput(f"training set {name!r}: duplicate query id {example.query_id!r}")
            seen.add(example.query_id)
            if not example.positive_ids:
                raise InvalidInput(f"training set {name!r}: query {example.query_id!r} has no positive document")
            for doc_id in (*example.positive_ids, *example.negative_ids):
                if doc_id not in documents:
                    raise InvalidInput(
                        f"training set {name!r}: query {example.query_id!r} names document {doc_id!r}, "
                        "which is not in the corpus"
                    )
        return cls(name, tuple(examples), documents, instructions)

    def __len__(self) -> int:
        """Return the number of examples."""
        return len(self.examples)

    def queries(self) -> Iterator[Query]:
        """Iterate over the examples' queries."""
        if isinstance(self.examples, LazyExamples):
            yield from self.examples.queries()
            return
        for example in self.examples:
            yield Query(example.query_id, example.query)

    @property
    def doc_ids(self) -> Sequence[str]:
        """Ids of all documents, in the mapping's order."""
        return self.documents.ids if isinstance(self.documents, LazyDocuments) else tuple(self.documents)

    @property
    def most_positives(self) -> int:
        """Upper bound of an example's number of positives."""
        if isinstance(self.examples, LazyExamples):
            return self.examples.most_positives
        return max((len(example.positive_ids) for example in self.examples), default=0)

    def fingerprint(self) -> str:
        """Return a hash of queries, documents, positives, negatives and scores: 16 hexadecimal digits."""
        if isinstance(self.examples, LazyExamples):
            return hashlib.sha256(f"{self.digest} {self.examples.digest()}".encode()).hexdigest()[:16]
        digest = hashlib.sha256()
        for example in self.examples:
            ids = example.query_id, example.query, example.positive_ids, example.negative_ids
            digest.update(repr(ids).encode())
            digest.update(repr(example.scores).encode() if example.scores else b"")
        for doc_id in sorted(self.documents):
            document = self.documents[doc_id]
            digest.update(repr((doc_id, document.title, document.text)).encode())
        return digest.hexdigest()[:16]

    def scored(self, scores: Mapping[str, Mapping[str, float]]) -> TrainingSet:
        """Return the set with a teacher's scores, given by query and document id; missing scores become NaN.

        Raises:
            InvalidInput: no score belongs to an example of the set.
        """
        examples = []
        for example in self.examples:
            known = scores.get(example.query_id, {})
            doc_ids = (*example.positive_ids, *example.negative_ids)
            examples.append(replace(example, scores=tuple(known.get(doc_id, math.nan) for doc_id in doc_ids)))
        if not any(math.isfinite(score) for example in examples for score in example.scores):
            raise InvalidInput(f"training set {self.name!r}: no score belongs to its queries and documents")
        return replace(self, examples=tuple(examples))

    def without(self, query_ids: Collection[str]) -> TrainingSet:
        """Return the set without some queries; an empty set cannot be part of a mixture."""
        dropped = set(query_ids)
        if not isinstance(self.examples, LazyExamples):
            return replace(self, examples=tuple(e for e in self.examples if e.query_id not in dropped))
        kept = [position for position, query in enumerate(self.queries()) if query.query_id not in dropped]
        return replace(self, examples=self.examples.select(np.asarray(kept, dtype=np.int64)))


def _require_some(name: str, examples: Sequence[TrainingExample], instructions: Sequence[str]) -> None:
    if not len(examples):
        raise InvalidInput(f"training set {name!r} has no example with a relevant document")
    if not instructions:
        raise InvalidInput(f"training set {name!r} has no instruction; give '' for a model without instructions")
