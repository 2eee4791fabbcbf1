"""Hard negatives: documents that BM25 finds for a query and that are not relevant to it."""

from __future__ import annotations

import logging
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

from lightir.data import Dataset, write_negatives
from lightir.errors import InvalidInput, NotFound
from lightir.files import sha256_file
from lightir.index import Index, build_index, document_shards
from lightir.search import Searcher
from lightir.train.recipe import DataRecipe, DataStage, data_folder
from lightir.types import Ranking

logger = logging.getLogger(__name__)


def mine(
    dataset: Dataset | Path | str,
    split: str,
    out: Path | str,
    *,
    n_negatives: int = 30,
    first_rank: int = 1,
    depth: int = 100,
    margin: float | None = None,
    analyzer: str = "english",
    threads: int = 1,
) -> int:
    """Write a negatives file for a split's queries, best first; the number of queries with a negative comes back.

    A document is no negative when it is judged relevant to the query (grade 1 or more), or when title and text equal
    a relevant one's.

    Args:
        dataset: a BEIR folder.
        split: whose judged queries are asked.
        out: JSON lines {"query_id", "negatives"}; written whole or not at all.
        n_negatives: kept of a query at most.
        first_rank: ranks before it are left out, counted from 1 with the relevant documents in the list: the very
            first hits are often relevant without a judgement.
        depth: the last rank that is looked at.
        margin: leave out documents that score above this share of the best relevant document that was found; where
            none was found nothing is left out. None for no such test.
        analyzer: what counts as a word: see `lightir.analysis`.
        threads: for the search.

    Raises:
        InvalidInput: ranks that make no sense.
        NotFound: no such data set or split.
    """
    if not 1 <= first_rank <= depth or n_negatives < 1:
        raise InvalidInput(f"ranks {first_rank} to {depth}, {n_negatives} kept: expected 1 <= first <= last, 1 or more")
    opened = dataset if isinstance(dataset, Dataset) else Dataset.open(dataset)
    qrels = opened.qrels(split)
    texts = {document.doc_id: (document.title, document.text) for document in opened.corpus()}
    out = Path(out)
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(dir=out.parent, prefix=f".{out.name}.index-") as folder:
        build_index(document_shards(opened.corpus()), Path(folder) / "index", analyzer=analyzer)
        with Index.open(Path(folder) / "index") as index:
            run = Searcher(index, threads=threads).search(list(opened.queries(split)), depth, mode="tokens")
    negatives: dict[str, list[str]] = {}
    for query_id, ranking in run.items():
        relevant = {doc_id for doc_id, grade in qrels[query_id].items() if grade > 0}
        chosen = choose_negatives(ranking, relevant, texts, first_rank=first_rank, margin=margin)
        negatives[query_id] = chosen[:n_negatives]
    write_negatives(out, negatives)
    return sum(bool(each) for each in negatives.values())


def choose_negatives(
    ranking: Ranking,
    relevant: set[str],
    texts: Mapping[str, tuple[str, str]],
    *,
    first_rank: int,
    margin: float | None,
) -> list[str]:
    """The ranking's documents that may serve as negatives, best first; arguments as for `mine`."""
    known = {texts[doc_id] for doc_id in relevant if doc_id in texts}
    found = [score for doc_id, score in zip(ranking.doc_ids, ranking.scores, strict=True) if doc_id in relevant]
    limit = margin * max(found) if margin is not None and found else float("inf")
    return [
        doc_id
        for rank, (doc_id, score) in enumerate(zip(ranking.doc_ids, ranking.scores, strict=True), 1)
        if rank >= first_rank and score <= limit and doc_id not in relevant and texts[doc_id] not in known
    ]


def negatives_files(recipe: DataStage, cache: Path) -> list[Path | None]:
    """Each training set's file of negatives, or None; "bm25" is mined into the cache once and found there again.

    Raises:
        NotFound: a file that the recipe names is not there.
        InvalidInput: negatives for pairs without judgements.
    """
    return [_negatives_file(data, cache) for data in recipe.data]


def _negatives_file(data: DataRecipe, cache: Path) -> Path | None:
    if not data.negatives:
        return None
    if data.pairs != "judged":
        raise InvalidInput(f"data set {data.name!r}: pairs {data.pairs!r} have no judgements, so no negatives")
    if data.negatives != "bm25":
        if not Path(data.negatives).is_file():
            raise NotFound(f"negatives {data.negatives} do not exist; mine them first: lightir mine")
        return Path(data.negatives)
    folder = data_folder(data.name)
    path = cache / f"negatives-{folder.name}-{data.split}-{_corpus_key(folder)}.jsonl"
    if not path.is_file():
        logger.info("mining BM25 negatives for %s", data.name)
        mine(folder, data.split, path)
    return path


def _corpus_key(folder: Path) -> str:
    files: Sequence[Path] = sorted(folder.glob("corpus.jsonl*"))
    return sha256_file(files[0])[:8] if files else ""
