"""Hard negatives: documents that a searcher retrieves for a query and that are not relevant to it.

Requires no torch, unless the searcher or the teacher is a model.
"""

from __future__ import annotations

import dataclasses
import logging
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import nullcontext
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.data import Dataset, write_negatives
from lightir.errors import InvalidInput, NotFound
from lightir.files import check_writable, make_folder
from lightir.progress import Progress
from lightir.train.mining.answers import holds_answer
from lightir.train.mining.finders import Finder, word_finder
from lightir.train.recipes.data_names import brings_examples, data_folder
from lightir.train.recipes.run_recipe import QueryRunRecipe
from lightir.train.recipes.settings import DataRecipe
from lightir.types import Document, Query, Ranking

if TYPE_CHECKING:
    from lightir.train.distill.teacher import Teacher

logger = logging.getLogger(__name__)

QUERIES_AT_ONCE = 256


@dataclass(frozen=True, slots=True)
class NegativeFilters:
    """Limits on the retrieved documents that may be negatives; relevant documents and copies of them never are.

    Attributes:
        first_rank: first rank that may be a negative, counted from 1 with the relevant documents in the list: the top
            results are often relevant but not in the qrels.
        depth: last rank that may be a negative.
        margin: drop documents scoring above this share of the best relevant document's score; None for no limit.
        absolute_margin: drop documents scoring above the best relevant document's score minus this; None for no limit.
        skip_answers: drop documents that contain one of the query's answers, if the data set has answers: all of an
            answer's words in sequence, ignoring case.
        teacher_share: drop documents that a teacher scores at or above this share of the best relevant document's
            score; None for no limit.
    """

    first_rank: int = 1
    depth: int = 100
    margin: float | None = None
    absolute_margin: float | None = None
    skip_answers: bool = False
    teacher_share: float | None = None

    def __post_init__(self) -> None:
        if not 1 <= self.first_rank <= self.depth:
            raise InvalidInput(f"ranks {self.first_rank} to {self.depth}: expected 1 <= first <= last")


MINED = {"bm25": NegativeFilters(), "bm25-without-answers": NegativeFilters(skip_answers=True)}
"""Negatives that a training run mines itself, by their name in a recipe."""


@dataclass(frozen=True, slots=True)
class MiningReport:
    """Counts of kept negatives and of dropped documents by reason.

    Attributes:
        queries: number of queries with qrels.
        with_negatives: number of queries with at least one negative.
        kept: number of negatives.
        dropped: number of dropped documents by the first reason that applies: "relevant", "copy" (of a relevant
            document), "rank", "margin", "answer", "teacher", "surplus" (beyond the number to keep).
    """

    queries: int
    with_negatives: int
    kept: int
    dropped: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """Return the JSON object that `lightir mine --json` prints."""
        return {**dataclasses.asdict(self), "dropped": dict(self.dropped)}


def mine(
    dataset: Dataset | Path | str,
    split: str,
    out: Path | str,
    *,
    finder: Finder | None = None,
    n_negatives: int = 30,
    filters: NegativeFilters | None = None,
    teacher: Teacher | None = None,
) -> MiningReport:
    """Write a negatives file for a split's queries, best first, and return the counts.

    Args:
        dataset: BEIR folder.
        split: split with the queries.
        out: file to write atomically, JSON lines {"query_id", "negatives"}.
        finder: search over this data set's corpus; None for BM25.
        n_negatives: maximum number of negatives per query.
        filters: which documents may be negatives; None for the defaults.
        teacher: model whose scores filters.teacher_share limits.

    Raises:
        InvalidInput: n_negatives is below 1; a teacher without teacher_share or the reverse; or skip_answers for
            queries without answers.
        NotFound: the data set or split does not exist.
    """
    filters = filters or NegativeFilters()
    if n_negatives < 1:
        raise InvalidInput(f"n_negatives is {n_negatives}; expected 1 or more")
    if (teacher is None) != (filters.teacher_share is None):
        raise InvalidInput("a teacher requires filters.teacher_share, and the reverse; only one was given")
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    queries = list(opened.queries(split))
    if filters.skip_answers and not any(query.metadata.get("answers") for query in queries):
        raise InvalidInput(
            f"no query of {opened.name}'s split {split!r} has metadata.answers, so skip_answers has no effect"
        )
    out = Path(out)
    make_folder(out.parent)
    check_writable(out)
    documents = {document.doc_id: document for document in opened.corpus()}
    with nullcontext(finder) if finder else word_finder(opened, out.parent) as search:
        miner = Miner(opened.qrels(split), documents, search, filters, teacher)
        negatives, dropped = miner.mine(queries, n_negatives)
    write_negatives(out, negatives)
    sizes = [len(doc_ids) for doc_ids in negatives.values()]
    return MiningReport(len(queries), sum(map(bool, sizes)), sum(sizes), dict(sorted(dropped.items())))


class Miner:
    """Chooses negatives among the results of a finder."""

    def __init__(
        self,
        qrels: Mapping[str, Mapping[str, int]],
        documents: Mapping[str, Document],
        finder: Finder,
        filters: NegativeFilters,
        teacher: Teacher | None = None,
    ) -> None:
        """Take qrels (grades of 1 or more are relevant), the whole corpus by id, a finder, filters and a teacher."""
        self._qrels, self._documents, self._finder = qrels, documents, finder
        self._filters, self._teacher = filters, teacher

    def mine(self, queries: Sequence[Query], n_negatives: int) -> tuple[dict[str, list[str]], Counter[str]]:
        """Return each query's negatives, best first, and the number of dropped documents by reason."""
        negatives: dict[str, list[str]] = {}
        dropped: Counter[str] = Counter()
        with Progress("mine", unit="query", total=len(queries)) as bar:
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                batch = queries[start : start + QUERIES_AT_ONCE]
                run = self._finder.find(batch, self._filters.depth)
                for query in batch:
                    negatives[query.query_id], reasons = self.choose(query, run[query.query_id], n_negatives)
                    dropped += reasons
                bar.update(len(batch))
        return negatives, dropped

    def choose(self, query: Query, ranking: Ranking, n_negatives: int) -> tuple[list[str], Counter[str]]:
        """Return one query's negatives, and the number of the ranking's other documents by reason."""
        relevant = {d for d, grade in self._qrels[query.query_id].items() if grade > 0 and d in self._documents}
        dropped: Counter[str] = Counter()
        passed = []
        for doc_id, reason in self._judged(query, ranking, relevant):
            if reason:
                dropped[reason] += 1
            else:
                passed.append(doc_id)
        kept: list[str] = []
        while passed and len(kept) < n_negatives:  # so that a teacher reads no more documents than needed
            candidates, passed = passed[:n_negatives], passed[n_negatives:]
            accepted = self._accepted_by_teacher(query, candidates, relevant)
            dropped["teacher"] += len(candidates) - len(accepted)
            kept += accepted
        dropped["surplus"] = len(passed) + len(kept[n_negatives:])
        return kept[:n_negatives], +dropped

    def _judged(self, query: Query, ranking: Ranking, relevant: set[str]) -> Iterator[tuple[str, str]]:
        """Yield the ranking's documents with the reason to drop each; "" if only the teacher may drop it."""
        texts = {(self._documents[doc_id].title, self._documents[doc_id].text) for doc_id in relevant}
        answers = [str(answer) for answer in query.metadata.get("answers", ())] if self._filters.skip_answers else []
        limit = self._limit(query, ranking, relevant)
        for rank, (doc_id, score) in enumerate(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True), 1):
            document = self._documents.get(doc_id)
            if document is None:
                raise InvalidInput(
                    f"the searcher returned {doc_id!r}, which is not in the corpus; does it search another data set?"
                )
            if doc_id in relevant:
                yield doc_id, "relevant"
            elif (document.title, document.text) in texts:
                yield doc_id, "copy"
            elif rank < self._filters.first_rank:
                yield doc_id, "rank"
            elif score > limit:
                yield doc_id, "margin"
            elif holds_answer(document.full_text(), answers):
                yield doc_id, "answer"
            else:
                yield doc_id, ""

    def _limit(self, query: Query, ranking: Ranking, relevant: set[str]) -> float:
        """Return the score above which the margins drop documents; infinite without a margin or a relevant document."""
        filters = self._filters
        if not relevant or (filters.margin is None and filters.absolute_margin is None):
            return math.inf
        score_of = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        ranked = [score_of[doc_id] for doc_id in relevant if doc_id in score_of]
        best = max(ranked) if ranked else max(self._finder.score(query, doc_id) for doc_id in relevant)
        by_share = math.inf if filters.margin is None else share_of_score(best, filters.margin)
        by_distance = math.inf if filters.absolute_margin is None else best - filters.absolute_margin
        return min(by_share, by_distance)

    def _accepted_by_teacher(self, query: Query, doc_ids: Sequence[str], relevant: set[str]) -> list[str]:
        if self._teacher is None or self._filters.teacher_share is None or not relevant:
            return list(doc_ids)
        read = [self._documents[doc_id] for doc_id in (*sorted(relevant), *doc_ids)]
        scores = (self._teacher.queries([query.text]) @ self._teacher.documents(read).T)[0].tolist()
        limit = share_of_score(max(scores[: len(relevant)]), self._filters.teacher_share)
        return [doc_id for doc_id, score in zip(doc_ids, scores[len(relevant) :], strict=True) if score < limit]


def share_of_score(score: float, share: float) -> float:
    """Return `share` of a score; for a negative score, the value as far below it as for a positive one."""
    return score - (1 - share) * abs(score)


def negatives_files(recipe: QueryRunRecipe, cache: Path) -> list[Path | None]:
    """Return each training set's file of negatives, or None; MINED ones are mined into the cache once.

    The file's name contains the data set's digest, so that changed texts, queries or qrels are mined again.

    Raises:
        NotFound: a file that the recipe names does not exist.
        InvalidInput: negatives for pairs without qrels.
    """
    return [_negatives_file(data, cache) for data in recipe.data]


def _negatives_file(data: DataRecipe, cache: Path) -> Path | None:
    if not data.negatives:
        return None
    if data.pairs != "judged" or brings_examples(data.name):
        what = "a set of whole examples has" if data.pairs == "judged" else f"pairs {data.pairs!r} have"
        raise InvalidInput(f"data set {data.name!r}: {what} no qrels, so no negatives can be mined for it")
    if data.negatives not in MINED:
        if not Path(data.negatives).is_file():
            raise NotFound(f"negatives {data.negatives} do not exist; mine them first: lightir mine")
        return Path(data.negatives)
    folder = data_folder(data.name)
    filters = MINED[data.negatives]
    kind = "-without-answers" if filters.skip_answers else ""
    path = cache / f"negatives-{folder.name}-{data.split}{kind}-{Dataset.open(folder).digest(data.split)}.jsonl"
    if not path.is_file():
        logger.info("mining BM25 negatives for %s", data.name)
        mine(folder, data.split, path, filters=filters)
    return path
