"""Hard negatives: documents that a searcher finds for a query and that are not relevant to it.

Needs no torch, unless the searcher or the teacher is a model.
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

from tqdm import tqdm

from lightir.data import Dataset, write_negatives
from lightir.errors import InvalidInput, NotFound
from lightir.files import check_writable
from lightir.search.language_model import Smoothing
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
    """Which of the found documents may be negatives; relevant ones and their copies never are.

    Attributes:
        first_rank: ranks before it are left out, counted from 1 with the relevant documents in the list: the very
            first hits are often relevant without a judgement.
        depth: the last rank that is looked at.
        margin: leave out what scores above this share of the best relevant document's score; None for no such test.
        absolute_margin: leave out what scores above the best relevant document's score less this; None for no such
            test.
        skip_answers: leave out what holds one of the query's answers, where the data set names them: all of an
            answer's words in a row, upper and lower case alike.
        teacher_share: leave out what a teacher scores at this share of the best relevant document's score, or above;
            None for no such test.
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


@dataclass(frozen=True, slots=True)
class MiningReport:
    """What mining kept and why it dropped the rest.

    Attributes:
        queries: judged queries that were asked.
        with_negatives: those that got a negative.
        kept: negatives in all.
        dropped: found documents that are none, each under the first reason that holds: "relevant", "copy" (of a
            relevant document), "rank", "margin", "answer", "teacher", "surplus" (as many were kept already).
    """

    queries: int
    with_negatives: int
    kept: int
    dropped: Mapping[str, int]

    def to_json(self) -> dict[str, Any]:
        """As `lightir mine --json` prints it."""
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
    analyzer: str = "english",
    smoothing: Smoothing | None = None,
    threads: int = 1,
) -> MiningReport:
    """Write a negatives file for a split's queries, best first; what was kept and dropped comes back.

    Args:
        dataset: a BEIR folder.
        split: whose judged queries are asked.
        out: JSON lines {"query_id", "negatives"}; written whole or not at all.
        finder: who finds the documents, all of this data set's corpus; None for counted words.
        n_negatives: kept of a query at most.
        filters: None for their defaults.
        teacher: whose scores filters.teacher_share is of.
        analyzer: what counts as a word, without a finder: see `lightir.analysis`.
        smoothing: words are scored by the query's likelihood; None for BM25.
        threads: for that search.

    Raises:
        InvalidInput: no negative is wanted; a teacher without its share or the other way round; or answers are to be
            skipped but no query has any.
        NotFound: no such data set or split.
    """
    filters = filters or NegativeFilters()
    if n_negatives < 1:
        raise InvalidInput(f"{n_negatives} negatives a query are wanted; expected 1 or more")
    if (teacher is None) != (filters.teacher_share is None):
        raise InvalidInput("a teacher and filters.teacher_share go together: one was given without the other")
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    queries = list(opened.queries(split))
    if filters.skip_answers and not any(query.metadata.get("answers") for query in queries):
        raise InvalidInput(f"no query of {opened.name}'s split {split!r} has metadata.answers, so none can be skipped")
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    check_writable(out)
    documents = {document.doc_id: document for document in opened.corpus()}
    words = word_finder(opened, out.parent, analyzer=analyzer, threads=threads, smoothing=smoothing)
    with nullcontext(finder) if finder else words as found_by:
        miner = Miner(opened.qrels(split), documents, found_by, filters, teacher)
        negatives, dropped = miner.mine(queries, n_negatives)
    write_negatives(out, negatives)
    sizes = [len(each) for each in negatives.values()]
    return MiningReport(len(queries), sum(map(bool, sizes)), sum(sizes), dict(sorted(dropped.items())))


class Miner:
    """Chooses negatives out of what a finder finds."""

    def __init__(
        self,
        qrels: Mapping[str, Mapping[str, int]],
        documents: Mapping[str, Document],
        finder: Finder,
        filters: NegativeFilters,
        teacher: Teacher | None = None,
    ) -> None:
        """`documents`: the whole corpus by id; grades of 1 or more are relevant."""
        self._qrels, self._documents, self._finder = qrels, documents, finder
        self._filters, self._teacher = filters, teacher

    def mine(self, queries: Sequence[Query], n_negatives: int) -> tuple[dict[str, list[str]], Counter[str]]:
        """Each query's negatives, best first, and how many documents were dropped for which reason."""
        negatives: dict[str, list[str]] = {}
        dropped: Counter[str] = Counter()
        with tqdm(total=len(queries), desc="mine", unit="query", disable=None) as bar:
            for start in range(0, len(queries), QUERIES_AT_ONCE):
                asked = queries[start : start + QUERIES_AT_ONCE]
                run = self._finder.find(asked, self._filters.depth)
                for query in asked:
                    negatives[query.query_id], reasons = self.choose(query, run[query.query_id], n_negatives)
                    dropped += reasons
                bar.update(len(asked))
        return negatives, dropped

    def choose(self, query: Query, ranking: Ranking, n_negatives: int) -> tuple[list[str], Counter[str]]:
        """One query's negatives, and the reasons why the ranking's other documents are none."""
        relevant = {d for d, grade in self._qrels[query.query_id].items() if grade > 0 and d in self._documents}
        dropped: Counter[str] = Counter()
        passed = []
        for doc_id, reason in self._judged(query, ranking, relevant):
            if reason:
                dropped[reason] += 1
            else:
                passed.append(doc_id)
        kept: list[str] = []
        while passed and len(kept) < n_negatives:  # a teacher reads no more documents than are needed
            some, passed = passed[:n_negatives], passed[n_negatives:]
            fine = self._fine_by_teacher(query, some, relevant)
            dropped["teacher"] += len(some) - len(fine)
            kept += fine
        dropped["surplus"] = len(passed) + len(kept[n_negatives:])
        return kept[:n_negatives], +dropped

    def _judged(self, query: Query, ranking: Ranking, relevant: set[str]) -> Iterator[tuple[str, str]]:
        """The ranking's documents with the reason against each; "" where there is none but perhaps the teacher's."""
        texts = {(self._documents[doc_id].title, self._documents[doc_id].text) for doc_id in relevant}
        answers = [str(each) for each in query.metadata.get("answers", ())] if self._filters.skip_answers else []
        limit = self._limit(query, ranking, relevant)
        for rank, (doc_id, score) in enumerate(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True), 1):
            document = self._documents.get(doc_id)
            if document is None:
                raise InvalidInput(f"the searcher found {doc_id!r}, which the corpus lacks; is it of another data set?")
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
        """The score above which both margins leave documents out; infinite without a margin or a relevant document."""
        filters = self._filters
        if not relevant or (filters.margin is None and filters.absolute_margin is None):
            return math.inf
        found = dict(zip(ranking.doc_ids, ranking.scores.tolist(), strict=True))
        ranked = [found[doc_id] for doc_id in relevant if doc_id in found]
        best = max(ranked) if ranked else max(self._finder.score(query, doc_id) for doc_id in relevant)
        by_share = math.inf if filters.margin is None else share_of_score(best, filters.margin)
        by_distance = math.inf if filters.absolute_margin is None else best - filters.absolute_margin
        return min(by_share, by_distance)

    def _fine_by_teacher(self, query: Query, doc_ids: Sequence[str], relevant: set[str]) -> list[str]:
        if self._teacher is None or self._filters.teacher_share is None or not relevant:
            return list(doc_ids)
        read = [self._documents[doc_id] for doc_id in (*sorted(relevant), *doc_ids)]
        scores = (self._teacher.queries([query.text]) @ self._teacher.documents(read).T)[0].tolist()
        limit = share_of_score(max(scores[: len(relevant)]), self._filters.teacher_share)
        return [doc_id for doc_id, score in zip(doc_ids, scores[len(relevant) :], strict=True) if score < limit]


def share_of_score(score: float, share: float) -> float:
    """`share` of a score; of one below zero what lies as far under it as it would under one above zero."""
    return score - (1 - share) * abs(score)


def negatives_files(recipe: QueryRunRecipe, cache: Path) -> list[Path | None]:
    """Each training set's file of negatives, or None; "bm25" is mined into the cache and found there again.

    The file's name holds the data set's digest, so that other texts, queries or judgements are mined anew.

    Raises:
        NotFound: a file that the recipe names is not there.
        InvalidInput: negatives for pairs without judgements.
    """
    return [_negatives_file(data, cache) for data in recipe.data]


def _negatives_file(data: DataRecipe, cache: Path) -> Path | None:
    if not data.negatives:
        return None
    if data.pairs != "judged" or brings_examples(data.name):
        what = "a set of whole examples has" if data.pairs == "judged" else f"pairs {data.pairs!r} have"
        raise InvalidInput(f"data set {data.name!r}: {what} no judgements, so no negatives are mined for it")
    if data.negatives != "bm25":
        if not Path(data.negatives).is_file():
            raise NotFound(f"negatives {data.negatives} do not exist; mine them first: lightir mine")
        return Path(data.negatives)
    folder = data_folder(data.name)
    path = cache / f"negatives-{folder.name}-{data.split}-{Dataset.open(folder).digest(data.split)}.jsonl"
    if not path.is_file():
        logger.info("mining BM25 negatives for %s", data.name)
        mine(folder, data.split, path)
    return path
