"""Models as MTEB evaluates them: a search system for each mode, and an encoder of texts."""

from __future__ import annotations

import contextlib
import dataclasses
import importlib
import json
import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.data import Dataset
from lightir.encode.model_evaluation import DEFAULT_SYSTEMS, SystemOptions, model_systems
from lightir.encode.model_modes import check_modes
from lightir.errors import InvalidInput, MissingExtra, NotFound
from lightir.eval.runs import distinct_scores
from lightir.files import atomic_file, make_folder, temporary_folder
from lightir.search.index_evaluation import Ranker
from lightir.search.search_options import DEFAULT_OPTIONS, SearchOptions
from lightir.search.text_model import TextModel
from lightir.types import Document, Query, Ranking
from lightir.vectors import Floats

DEFAULT_MODE = "hybrid"


class MtebSearch:
    """A model's index in one mode, as a `SearchProtocol` of MTEB.

    Documents are encoded by the model, queries by the table or as the mode says. Documents with equal scores are ranked
    by ascending id, as everywhere in lightir: their returned scores differ in the last bit, because MTEB breaks ties by
    descending id.
    """

    def __init__(
        self,
        model: str | os.PathLike[str],
        mode: str = DEFAULT_MODE,
        *,
        work: Path | str | None = None,
        systems: SystemOptions = DEFAULT_SYSTEMS,
        options: SearchOptions = DEFAULT_OPTIONS,
    ) -> None:
        """Describe the system; nothing is loaded before the first corpus comes.

        Args:
            model: model folder, or name of a shipped model.
            mode: mode of `evaluate_model`.
            work: folder that keeps each task's vectors and index; None for a temporary one.
            systems: task, analyzer, device and threads; its modes are ignored.
            options: options of every search but the mode.

        Raises:
            NotFound: there is no such model.
            InvalidInput: a mode that the model does not support.
            MissingExtra: mteb is not installed.
        """
        self._address, self._mode, self._work = os.fspath(model), mode, None if work is None else Path(work)
        self._systems = dataclasses.replace(systems, modes=[mode])
        self._options = options
        contract = Contract.load(resolve_model_folder(model))
        check_modes(contract, [mode], options)
        self.mteb_model_meta = _model_meta(self._address, contract, mode, options)
        self._opened = contextlib.ExitStack()
        self._ranker: Ranker | None = None
        self._ranker_mode = ""

    def index(
        self, corpus: Iterable[Mapping[str, Any]], *, task_metadata: Any, hf_split: str, hf_subset: str, **_: Any
    ) -> None:
        """Encode and index a corpus with the columns id, text (or body) and optionally title.

        Raises:
            InvalidInput: a document without id or text, or two with one id.
        """
        self.close()
        name = re.sub(r"[^\w.-]", "_", f"{task_metadata.name}-{hf_subset}-{hf_split}")
        parent = self._opened.enter_context(temporary_folder()) if self._work is None else self._work
        folder = parent / name
        dataset = _write_corpus(corpus, folder)
        rankers = self._opened.enter_context(model_systems(self._address, dataset, folder, self._systems))
        self._ranker, self._ranker_mode = rankers[self._mode]

    def search(
        self,
        queries: Iterable[Mapping[str, Any]],
        *,
        top_k: int,
        top_ranked: Mapping[str, Sequence[str]] | None = None,
        **_: Any,
    ) -> dict[str, dict[str, float]]:
        """Return the scores of each query's best documents, at most `top_k`.

        Args:
            queries: rows with the columns id and text.
            top_k: maximum number of documents per query.
            top_ranked: documents to rank for each query, in tasks of re-ranking; None for all.

        Raises:
            InvalidInput: no corpus is indexed yet, or a query is a conversation.
        """
        if self._ranker is None:
            raise InvalidInput("there is no index to search: call index() with a corpus first")
        texts = [Query(str(row["id"]), _text(row, "query")) for row in queries]
        # All documents are ranked if only some count, so that none of these is missed.
        depth = top_k if top_ranked is None else len(self._ranker.index)
        options = dataclasses.replace(self._options, mode=self._ranker_mode)
        run = self._ranker.search(texts, k=max(1, min(depth, len(self._ranker.index))), options=options)
        return {
            query_id: _scores(ranking, None if top_ranked is None else set(top_ranked.get(query_id, ())), top_k)
            for query_id, ranking in run.items()
        }

    def close(self) -> None:
        """Close the index, and remove it if it was temporary."""
        self._ranker = None
        self._opened.close()


class MtebEncoder:
    """A model's two sides as an `EncoderProtocol` of MTEB: queries by the table, other texts by the model."""

    def __init__(self, model_name: str, revision: str | None = None, *, device: str | None = None, **_: Any) -> None:
        """Load the query table; the model is loaded for the first document.

        Args:
            model_name: model folder, or name of a shipped model.
            revision: fingerprint that the model must have; None for any.
            device: ignored by queries; documents use a GPU if there is one.
        """
        self._model = TextModel(model_name)
        self._model.require("dense")
        contract = self._model.contract
        if revision not in (None, contract.fingerprint):
            raise InvalidInput(f"{model_name} has the fingerprint {contract.fingerprint}, not {revision}")
        self.mteb_model_meta = _model_meta(model_name, contract, "dense", DEFAULT_OPTIONS)

    def encode(self, inputs: Iterable[Mapping[str, Any]], *, prompt_type: Any = None, **_: Any) -> Floats:
        """Return (n, dim) float32 vectors of length 1 of the texts of all batches.

        Args:
            inputs: batches with a list of texts under "text".
            prompt_type: "query" for queries; anything else is encoded as documents.
        """
        as_query = getattr(prompt_type, "value", prompt_type) == "query"
        encode = self._model.dense_queries if as_query else self._model.dense_texts
        vectors = [encode([str(text) for text in batch["text"]]) for batch in inputs]
        return np.concatenate(vectors) if vectors else np.zeros((0, 0), dtype=np.float32)

    def similarity(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the dot products of all pairs, a torch tensor."""
        return importlib.import_module("mteb.similarity_functions").dot_score(embeddings1, embeddings2)

    def similarity_pairwise(self, embeddings1: Any, embeddings2: Any) -> Any:
        """Return the dot products of corresponding vectors, a torch tensor."""
        return importlib.import_module("mteb.similarity_functions").pairwise_dot_score(embeddings1, embeddings2)


def evaluate_on_mteb(
    model: str | os.PathLike[str],
    tasks: Sequence[Any],
    *,
    results: Path | str | None = None,
    work: Path | str | None = None,
    systems: SystemOptions = DEFAULT_SYSTEMS,
    options: SearchOptions = DEFAULT_OPTIONS,
) -> dict[str, dict[str, float]]:
    """Evaluate modes of a model on tasks of MTEB, and write MTEB's result files.

    Args:
        model: model folder, or name of a shipped model.
        tasks: names of tasks, or tasks of mteb.
        results: folder for the result files; None for MTEB's own cache (MTEB_CACHE, else ~/.cache/mteb).
        work: folder that keeps each task's vectors, shared by the modes; None for temporary ones.
        systems: modes to evaluate (None for DEFAULT_MODE alone), and how the indexes are built.
        options: options of every search but the mode.

    Returns:
        Mode -> name of the task -> main score.

    Raises:
        NotFound: there is no such model or task, or a data set cannot be loaded.
        InvalidInput: a task that is not retrieval, or a mode that the model does not support.
        MissingExtra: mteb is not installed.
    """
    mteb = _mteb()
    chosen = [_task(mteb, task) for task in tasks]
    with contextlib.ExitStack() as stack:
        shared = Path(work) if work is not None else stack.enter_context(temporary_folder())
        searches = {
            mode: MtebSearch(model, mode, work=shared, systems=systems, options=options)
            for mode in systems.modes or [DEFAULT_MODE]
        }
        scores = {}
        for mode, search in searches.items():
            stack.callback(search.close)
            cache = mteb.ResultCache(results)
            try:
                model_result = mteb.evaluate(search, chosen, cache=cache, overwrite_strategy="always")
            except (OSError, ValueError) as error:  # of Hugging Face's data sets: no such set, no network
                reason = (str(error) or type(error).__name__).splitlines()[0]
                raise NotFound(f"MTEB cannot evaluate {', '.join(map(_name, chosen))}: {reason}") from error
            scores[mode] = {result.task_name: float(result.get_score()) for result in model_result.task_results}
    return scores


def _task(mteb: Any, task: Any) -> Any:
    if isinstance(task, str):
        try:
            task = mteb.get_task(task)
        except KeyError as error:
            raise NotFound(f"MTEB has no task {task!r}; it lists them with mteb.get_tasks()") from error
    if not isinstance(task, importlib.import_module("mteb.abstasks.retrieval").AbsTaskRetrieval):
        raise InvalidInput(f"{_name(task)} is no retrieval task; lightir evaluates retrieval and re-ranking")
    return task


def _name(task: Any) -> str:
    return str(task.metadata.name)


def _mteb() -> Any:
    try:
        return importlib.import_module("mteb")
    except ImportError:
        raise MissingExtra("MTEB's tasks require mteb: pip install 'lightir[mteb]'") from None


def _model_meta(address: str, contract: Contract, mode: str, options: SearchOptions) -> Any:
    """Return the model's metadata; the revision is the contract's fingerprint."""
    _mteb()
    meta: Any = importlib.import_module("mteb.models.model_meta")
    branches = set(mode.split("+")) & {"dense", "sparse"}
    kind = next(iter(branches)) if len(branches) == 1 and mode in branches else "hybrid"
    default = dataclasses.asdict(DEFAULT_OPTIONS)
    settings = {key: value for key, value in dataclasses.asdict(options).items() if value != default[key]}
    given = {
        "name": f"lightir/{Path(address).name}-{re.sub(r'[^a-z0-9]+', '-', mode)}",
        "revision": contract.fingerprint,
        "model_type": [kind if mode != "tokens" else "sparse"],
        "framework": ["NumPy"],
        "max_tokens": contract.document.max_tokens,
        "embed_dim": contract.backbone.hidden_size,
        "similarity_fn_name": meta.ScoringFunction.DOT_PRODUCT,
        "use_instructions": bool(contract.query.instruction),
        "experiment_kwargs": {"options": json.dumps(settings, default=str)} if settings else None,
    }
    return meta.ModelMeta.create_empty(given)


def _write_corpus(corpus: Iterable[Mapping[str, Any]], folder: Path) -> Dataset:
    """Write corpus.jsonl of a BEIR folder, whose documents `model_systems` reads."""
    make_folder(folder)
    with atomic_file(folder / "corpus.jsonl") as file:
        for row in corpus:
            document = Document(str(row["id"]), _text(row, "document"), str(row.get("title") or ""))
            record = {"_id": document.doc_id, "title": document.title, "text": document.text}
            file.write((json.dumps(record, ensure_ascii=False) + "\n").encode())
    return Dataset(folder, ())


def _text(row: Mapping[str, Any], kind: str) -> str:
    text = row.get("text", row.get("body"))
    if not isinstance(text, str):
        raise InvalidInput(f"{kind} {row.get('id')!r} has no text but {type(text).__name__}; lightir retrieves texts")
    return text


def _scores(ranking: Ranking, allowed: set[str] | None, top_k: int) -> dict[str, float]:
    """Return the scores of the best allowed documents, strictly descending."""
    scores = zip(ranking.doc_ids, distinct_scores(ranking.scores), strict=True)
    kept: Iterator[tuple[str, float]] = (
        (doc_id, float(score)) for doc_id, score in scores if allowed is None or doc_id in allowed
    )
    return dict(list(kept)[:top_k])
