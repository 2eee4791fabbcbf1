"""Training sets: examples, the documents that they name, and the instructions to draw from."""

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
    """A query and the document that answers it, as self-supervision makes them."""

    query: Query
    document: Document


@dataclass(frozen=True, slots=True)
class TrainingSet:
    """Examples, the documents they name, and the instructions to draw from.

    Attributes:
        name: the set's name.
        examples: with distinct query ids; a tuple, or LazyExamples that stay in their file.
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
        name = name or path.name.split(".")[0]
        examples, documents = read_jsonl_examples(path, name)
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
        if isinstance(self.examples, LazyExamples):
            yield from self.examples.queries()
            return
        for example in self.examples:
            yield Query(example.query_id, example.query)

    @property
    def doc_ids(self) -> Sequence[str]:
        """All documents' ids, in the mapping's order."""
        return self.documents.ids if isinstance(self.documents, LazyDocuments) else tuple(self.documents)

    @property
    def most_positives(self) -> int:
        """No example has more positives than this."""
        if isinstance(self.examples, LazyExamples):
            return self.examples.most_positives
        return max((len(example.positive_ids) for example in self.examples), default=0)

    def fingerprint(self) -> str:
        """A hash over ids and texts of queries and documents, positives, negatives and scores: 16 digits."""
        if isinstance(self.examples, LazyExamples):
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
        if not isinstance(self.examples, LazyExamples):
            return replace(self, examples=tuple(each for each in self.examples if each.query_id not in dropped))
        kept = [place for place, query in enumerate(self.queries()) if query.query_id not in dropped]
        return replace(self, examples=self.examples.select(np.asarray(kept, dtype=np.int64)))


def _require_some(name: str, examples: Sequence[TrainingExample], instructions: Sequence[str]) -> None:
    if not len(examples):
        raise InvalidInput(f"training set {name!r} has no example with a relevant document")
    if not instructions:
        raise InvalidInput(f"training set {name!r} has no instruction; give '' for a model that takes none")
