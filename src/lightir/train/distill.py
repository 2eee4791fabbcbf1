"""Fit a query table to a document encoder that stays as it is: any bi-encoder becomes searchable without its model."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import shutil
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F
from tqdm import tqdm

from lightir.addresses import resolve_local
from lightir.contract import Contract, require_same_documents
from lightir.data import (
    Dataset,
    DecontaminationReport,
    TrainingSet,
    decontaminate,
    read_documents,
    read_queries,
    span_pairs,
    title_pairs,
)
from lightir.encode.cache import cached_table, stored_term_weights
from lightir.encode.documents import QUERY_ENCODER, length_batches
from lightir.encode.query_encoder import BigramTable, QueryTable, TableDtype, write_query_encoder
from lightir.errors import InvalidInput
from lightir.files import new_folder, write_json
from lightir.models.encoder import LightRetriever
from lightir.query.bigrams import Bigrams
from lightir.shards import MANIFEST, VectorsReader
from lightir.text import QueryPolicy, TextTokenizer, query_term_ids
from lightir.train.table_fit import FitConfig, fit_table, term_probabilities, weighted_start, with_bigrams
from lightir.train.teacher import load_teacher
from lightir.types import Document, Query
from lightir.vectors import Floats, Ragged

CHUNK = 4096  # texts that are encoded, and at most lost, together


@dataclass(frozen=True, slots=True)
class FittedTable:
    """What a fit gives.

    Attributes:
        rows: (V, dim) float32, the terms'.
        bigrams: pairs of terms with their rows, or None.
    """

    rows: Floats
    bigrams: BigramTable | None


@dataclass(frozen=True, slots=True)
class FitQuery:
    """One query that the table is fitted to.

    Attributes:
        query: its id and text.
        source: the query set or corpus that it came from.
        positive_ids: relevant documents in the corpus of the same name; empty for spans.
    """

    query: Query
    source: str
    positive_ids: tuple[str, ...] = ()


def distill(
    teacher: str | os.PathLike[str],
    corpora: Sequence[Path | str],
    *,
    out: Path | str,
    queries: Sequence[Path | str] = (),
    test: Sequence[Path | str] = (),
    spans: int = 8000,
    config: FitConfig | None = None,
    table_dtype: TableDtype = "int8",
    tokenizer: Path | str | None = None,
    work: Path | str | None = None,
    device: str = "auto",
    overwrite: bool = False,
) -> Path:
    """A model folder whose query table is fitted to the teacher's own query encoder; documents stay as they are.

    Args:
        teacher: a sentence-transformers folder or name (`pypi:PACKAGE` too), or a model folder of ours.
        corpora: what is searched later, or something like it; the teacher ranks these documents for every query. A
            vectors folder (of `lightir encode`) is taken as it is: its documents are not encoded again.
        out: the new model folder.
        queries: BEIR folders, whose train split brings labels, or files of queries. Labels count for a corpus of the
            same name.
        test: BEIR folders whose queries of all splits but train must not be met in training: close ones are left out.
        spans: titles and spans of every corpus that serve as queries; no labels are needed for them. 0 for none.
        config: of the fit.
        table_dtype: of the stored rows.
        tokenizer: a tokenizer.json, or a folder that has one, whose terms the table shall have; None for the teacher's
            own. Queries are then lower-cased and begin with a blank, so that each word has one term at any place.
        work: where the teacher's vectors are kept, so that another run (or the rest of a cut one) is quick.
        device: where the teacher encodes; "auto" takes a GPU where there is one. The table is fitted on the CPU.
        overwrite: replace the folder.

    Raises:
        InvalidInput: no corpus, nothing to fit to, or another tokenizer for a teacher with a sparse branch.
        AlreadyExists: `out` is there.
        NotFound, FormatError: the tokenizer is not there, or is none.
    """
    if not corpora:
        raise InvalidInput("no corpus was given; the table is fitted to the teacher's ranking of documents")
    config = config or FitConfig()
    model = load_teacher(teacher, device=device)
    own = None if tokenizer is None else _tokenizer(tokenizer)
    if own is not None and own.hash == model.backbone.tokenizer.hash:
        own = None
    if own is not None and model.contract.sparse is not None:
        raise InvalidInput(
            f"{teacher} has a sparse branch, whose terms are those of its own tokenizer; leave the other one out"
        )
    read = {_name(path): _read_corpus(path, model.contract) for path in corpora}
    documents = {name: each for name, (each, _) in read.items()}
    encoded = {name: rows for name, (_, rows) in read.items() if rows is not None}
    if len(documents) < len(corpora):
        raise InvalidInput(f"two corpora have the same name: {[_name(path) for path in corpora]}")
    gathered = [*_labelled(queries), *_pseudo_queries(documents, spans, config.seed)]
    gathered, report = _clean(gathered, test)
    query = model.contract.query
    if own is not None:
        query = dataclasses.replace(
            query, tokenizer=own.hash, lower_case=True, leading_blank=True, drop=(), term_weights="none"
        )
    table = fitted_query_table(
        model, gathered, documents, config, work=work, encoded=encoded, terms=None if own is None else (own, query)
    )
    known = "" if table.bigrams is None else table.bigrams.bigrams.hash
    query = dataclasses.replace(query, bigrams=known)
    contract = dataclasses.replace(model.contract, method="distilled", query=query)
    facts = {
        "teacher": str(teacher),
        "fit": dataclasses.asdict(config),
        "corpora": {name: len(each) for name, each in documents.items()},
        "spans": spans,
        "queries": len(gathered),
        "bigrams": 0 if table.bigrams is None else len(table.bigrams.bigrams),
        "decontamination": None if report is None else report.to_json(),
    }
    with new_folder(Path(out), overwrite=overwrite) as folder:
        _save_model(model, contract, teacher, folder)
        fitted = QueryTable("", contract.query.instruction, table.rows)
        write_query_encoder(
            folder / QUERY_ENCODER,
            contract,
            own or model.backbone.tokenizer,
            [fitted],
            dtype=table_dtype,
            term_weights=stored_term_weights(model) if own is None else None,
            bigrams=table.bigrams,
        )
        write_json(folder / "distillation.json", facts)
    return Path(out)


def fitted_query_table(
    model: LightRetriever,
    queries: Sequence[FitQuery],
    documents: dict[str, list[Document]],
    config: FitConfig,
    *,
    work: Path | str | None = None,
    start: Floats | None = None,
    encoded: Mapping[str, Floats] | None = None,
    terms: tuple[TextTokenizer, QueryPolicy] | None = None,
) -> FittedTable:
    """The fitted table, with rows for frequent bigrams where the config asks for them.

    It begins with the paper's cached table for a model of ours, and with each term encoded alone for any other; a term
    of another tokenizer is encoded as the text that it stands for;
    bigrams begin at zero, so that the ridge gives them what the terms' rows leave over.

    Args:
        model: the teacher.
        queries: what to fit to.
        documents: corpora by name.
        config: of the fit.
        work: where vectors are kept.
        start: (V, dim) a table to begin with instead.
        encoded: corpora whose normalised vectors are at hand, (documents, dim) by name.
        terms: the tokenizer and the policy that make terms of a query, where they are not the model's.
    """
    tokenizer, policy = terms or (model.backbone.tokenizer, model.contract.query)
    memory = _Memory(None if work is None else Path(work), model)
    encoded = encoded or {}
    blocks = [encoded[name] if name in encoded else memory.documents(each) for name, each in documents.items() if each]
    document_vectors = np.concatenate(blocks) if blocks else np.zeros((0, 0), dtype=np.float32)
    texts = [each.query.text for each in queries]
    term_ids = query_term_ids(tokenizer, policy, texts)
    if start is None and terms is not None:
        start = memory.queries(tokenizer.term_texts())
    elif start is None:
        ours = model.contract.method != "distilled" and model.backbone.kind == "causal"
        start = cached_table(model) if ours else memory.tokens(model.backbone.tokenizer.vocab_size)
    weighted, n_terms = weighted_start(start, term_probabilities(term_ids, vocab_size=len(start))), len(start)
    bigrams = Bigrams.most_frequent(term_ids, config.bigrams) if config.bigrams else None
    if bigrams is not None:
        weighted = np.concatenate([weighted, np.zeros((len(bigrams), weighted.shape[1]), dtype=np.float32)])
        term_ids = with_bigrams(term_ids, bigrams, vocab_size=n_terms)
    rows = fit_table(
        weighted, term_ids, memory.queries(texts), document_vectors, config, positives=_positives(queries, documents)
    )
    return FittedTable(rows[:n_terms], None if bigrams is None else BigramTable(bigrams, rows[n_terms:]))


class _Memory:
    """The teacher's vectors, kept chunk by chunk in a folder under a name that their input decides."""

    def __init__(self, folder: Path | None, model: LightRetriever) -> None:
        self._folder = folder
        self._model = model
        self._width = model.contract.dense.dims[0] if model.contract.dense and model.contract.dense.dims else None
        if folder is not None:
            folder.mkdir(parents=True, exist_ok=True)

    def documents(self, documents: Sequence[Document]) -> Floats:
        """(N, dim) normalised, as an index holds them."""
        keys = [f"{each.title}\x00{each.text}" for each in documents]
        return self._rows("documents", keys, lambda a, b: self._framed(self._model.frame_documents(documents[a:b])))

    def queries(self, texts: Sequence[str]) -> Floats:
        """(n, dim) normalised vectors of the full query encoder."""
        return self._rows("queries", texts, lambda a, b: self._framed(self._model.frame_queries(texts[a:b])))

    def tokens(self, n: int) -> Floats:
        """(n, dim) each term id encoded alone, normalised."""
        return self._rows("tokens", [str(i) for i in range(n)], self._alone)

    def _alone(self, start: int, stop: int) -> Floats:
        empty_ids, begin, _ = self._model.frame_queries([""])[0]
        framed = [([*empty_ids[:begin], i, *empty_ids[begin:]], begin, begin + 1) for i in range(start, stop)]
        return self._framed(framed)

    @torch.no_grad()
    def _framed(self, framed: list[tuple[list[int], int, int]]) -> Floats:
        blocks = []
        for positions in length_batches([len(ids) for ids, _, _ in framed], 8192):
            batch = self._model.batch([framed[position] for position in positions])
            vectors = self._model.dense_from(self._model.states(batch), batch)[:, : self._width]
            blocks.append((positions, F.normalize(vectors.float(), dim=-1).cpu().numpy()))
        rows = np.zeros((len(framed), blocks[0][1].shape[1] if blocks else 0), dtype=np.float32)
        for positions, block in blocks:
            rows[positions] = block
        return rows

    def _rows(self, kind: str, keys: Sequence[str], encode: Callable[[int, int], Floats]) -> Floats:
        parts = []
        with tqdm(total=len(keys), desc=f"teacher: {kind}", unit="text", disable=None) as bar:
            for start in range(0, len(keys), CHUNK):
                stop = min(start + CHUNK, len(keys))
                parts.append(self._chunk(kind, keys[start:stop], functools.partial(encode, start, stop)))
                bar.update(stop - start)
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _chunk(self, kind: str, keys: Sequence[str], encode: Callable[[], Floats]) -> Floats:
        if self._folder is None:
            return encode()
        identity = [self._model.contract.fingerprint, str(self._model.backbone.model.dtype), kind, *keys]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        path = self._folder / f"{kind}-{name}.npy"
        if not path.is_file():
            aside = path.with_suffix(f".{os.getpid()}.tmp")
            with aside.open("wb") as file:
                np.save(file, encode().astype(np.float16))
            os.replace(aside, path)
        rows: Floats = np.load(path).astype(np.float32)
        return rows


def _read_corpus(path: Path | str, contract: Contract) -> tuple[list[Document], Floats | None]:
    """A corpus's documents, and their vectors where the path is a vectors folder of the same document encoder."""
    folder = Path(path)
    if not (folder / MANIFEST).is_file():
        return list(read_documents(path)), None
    reader = VectorsReader(folder)
    require_same_documents(reader.contract, contract, names=(str(folder), "the teacher"))
    documents: list[Document] = []
    rows = []
    for shard in reader:
        if shard.dense is None:
            raise InvalidInput(f"{folder} holds no dense vectors; a table is fitted to these")
        documents.extend(shard.documents)
        rows.append(shard.dense.astype(np.float32))
    return documents, np.concatenate(rows) if rows else None


def _positives(queries: Sequence[FitQuery], documents: dict[str, list[Document]]) -> Ragged:
    ordinal: dict[tuple[str, str], int] = {}
    for name, each in documents.items():
        ordinal.update({(name, document.doc_id): len(ordinal) + i for i, document in enumerate(each)})
    keys = [[(each.source, doc_id) for doc_id in each.positive_ids] for each in queries]
    return Ragged.from_lists([[ordinal[key] for key in row if key in ordinal] for row in keys])


def _labelled(paths: Iterable[Path | str]) -> list[FitQuery]:
    found: list[FitQuery] = []
    for path in paths:
        name = _name(path)
        if Path(path).is_dir():
            examples = TrainingSet.open(path, instructions=("",)).examples
            found += [FitQuery(Query(e.query_id, e.query), name, e.positive_ids) for e in examples]
        else:
            found += [FitQuery(query, name) for query in read_queries(path)]
    return found


def _pseudo_queries(documents: dict[str, list[Document]], wanted: int, seed: int) -> list[FitQuery]:
    found: list[FitQuery] = []
    rng = np.random.default_rng(seed)
    for name, corpus in documents.items():
        if not wanted or not corpus:
            continue
        per_document = -(-wanted // len(corpus))
        pairs = [*span_pairs(corpus, rng, per_document=per_document), *title_pairs(corpus)]
        chosen = np.sort(rng.permutation(len(pairs))[:wanted])
        found += [FitQuery(pairs[i].query, name) for i in chosen]
    return found


def _clean(queries: list[FitQuery], test: Sequence[Path | str]) -> tuple[list[FitQuery], DecontaminationReport | None]:
    if not test:
        return queries, None
    held_out: dict[str, list[Query]] = {}
    for path in test:
        dataset = Dataset.open(path)
        splits = [split for split in dataset.splits if split != "train"]
        held_out[dataset.name] = [query for split in splits for query in dataset.queries(split)]
    groups: dict[str, list[FitQuery]] = {}
    for each in queries:
        groups.setdefault(f"{each.source} {'labelled' if each.positive_ids else 'unlabelled'}", []).append(each)
    # Ids of queries and of spans may meet, so each goes in under its place.
    numbered = {
        name: [Query(str(place), each.query.text) for place, each in enumerate(group)] for name, group in groups.items()
    }
    kept, report = decontaminate(numbered, held_out)
    return [groups[name][int(query.query_id)] for name, clean in kept.items() for query in clean], report


def _save_model(model: LightRetriever, contract: Contract, teacher: str | os.PathLike[str], folder: Path) -> None:
    source = resolve_local(teacher)
    if source is not None and (source / "lightir.json").is_file():
        ignored = shutil.ignore_patterns(QUERY_ENCODER, "checkpoint*")
        shutil.copytree(source, folder, dirs_exist_ok=True, ignore=ignored)
    else:
        model.backbone.tokenizer.save(folder / "tokenizer.json")
    contract.save(folder)


def _tokenizer(path: Path | str) -> TextTokenizer:
    path = Path(path)
    return TextTokenizer.from_file(path / "tokenizer.json" if path.is_dir() else path)


def _name(path: Path | str) -> str:
    return Path(path).resolve().name
