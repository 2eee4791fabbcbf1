"""Files for the evaluation of a model on a data set: vectors, query encoder, and indexes of other forms."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Literal

import numpy as np

from lightir.addresses import QUERY_ENCODER
from lightir.analysis import BAG
from lightir.contract import Contract, require_same_documents
from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder, SparseForm
from lightir.encode.model_modes import has_light_dense
from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, write_query_encoder
from lightir.encode.vocabulary import cache_vocabulary, stored_term_weights
from lightir.errors import InvalidInput
from lightir.files import make_folder
from lightir.index import IndexOptions, build_index, document_shards
from lightir.index.intake import bag_term_ids
from lightir.models.devices import fast_dtype, usable_device
from lightir.models.encoder import LightRetriever
from lightir.query import CachedQueryEncoder
from lightir.query.cached_encoder import describe_tables
from lightir.runtime.documents import encode_corpus
from lightir.search import Searcher
from lightir.shards import MANIFEST, Shard, VectorsReader
from lightir.text import TextTokenizer


class PreparedModel:
    """A model's vectors and query encoder for one corpus; the model is loaded only to compute missing files."""

    def __init__(self, folder: Path, dataset: Dataset, work: Path, device: str) -> None:
        """Set the model folder, the data set, the work folder for computed files, and the model's device."""
        self.folder = folder
        self.contract = Contract.load(folder)
        self.work = work
        self._dataset = dataset
        self._device = device
        make_folder(work)

    @cached_property
    def model(self) -> LightRetriever:
        """The loaded model."""
        device = usable_device(self._device)
        return LightRetriever.load(self.folder, dtype=fast_dtype(device), device=device)

    def vectors(self) -> VectorsReader:
        """Return the encoded corpus; a complete one in the work folder is reused if it has the same document side."""
        out = self.work / "vectors"
        if (out / MANIFEST).is_file():
            reader = VectorsReader(out, allow_incomplete=True)
            require_same_documents(reader.contract, self.contract, names=(str(out), str(self.folder)))
            if reader.manifest.get("complete"):
                self._check_complete(reader)
                return reader
        encode_corpus(self.model, self._dataset.corpus(), out, resume=True, n_documents=len(self._dataset))
        return VectorsReader(out)

    def _check_complete(self, reader: VectorsReader) -> None:
        if len(reader) != len(self._dataset):
            raise InvalidInput(
                f"{reader.folder} holds {len(reader)} documents, but {self._dataset.name} has {len(self._dataset)}; "
                f"use one work folder per data set"
            )
        for stored, expected in zip(reader.documents(), self._dataset.corpus(), strict=False):
            if (stored.doc_id, stored.title, stored.text) != (expected.doc_id, expected.title, expected.text):
                raise InvalidInput(
                    f"{reader.folder} holds other documents than {self._dataset.name}: {stored.doc_id!r} instead of "
                    f"{expected.doc_id!r}, or another text; remove it, or use another work folder"
                )

    def query_encoder(self) -> Path:
        """Return the model's query-encoder folder, or one computed in the work folder."""
        own, cached = self.folder / QUERY_ENCODER, self.work / QUERY_ENCODER
        if own.is_dir():
            return own
        if not cached.is_dir() or Contract.load(cached).fingerprint != self.contract.fingerprint:
            if has_light_dense(self.contract) or self.contract.dense is None:
                cache_vocabulary(self.model, cached, overwrite=True)
            else:
                self._write_empty_table(cached)
        self.contract.save(cached)  # with the model's present defaults of indexes and searches
        return cached

    def _write_empty_table(self, out: Path) -> None:
        """Write a table of zeros: an index of dense vectors requires a table, but no mode of this model reads it."""
        dense, tokenizer = self.contract.dense, self.model.backbone.tokenizer
        assert dense is not None  # checked by the caller
        width = dense.dims[0] if dense.dims else self.contract.backbone.hidden_size
        rows = np.zeros((tokenizer.vocab_size, width), dtype=np.float32)
        table = QueryTable("", self.contract.query.instruction, rows)
        arrays = QueryEncoderArrays([table], stored_term_weights(self.model))
        write_query_encoder(out, self.contract, tokenizer, arrays, overwrite=True)

    def encoded_index(self, analyzer: str) -> Path:
        """Build an index of the vectors as the model made them, without light vectors of words.

        Args:
            analyzer: analyzer of the tokens branch.
        """
        build_index(
            self.vectors(),
            self.work / "encoded",
            contract=self.contract,
            query_encoder=self.query_encoder(),
            options=IndexOptions(analyzer=analyzer, word_weight=0),
            overwrite=True,
            progress=False,
        )
        return self.work / "encoded"

    def bags_index(self) -> Path:
        """Build an index of the corpus as bags of tokens."""
        shards = document_shards(self._dataset.corpus())
        build_index(
            shards,
            self.work / "bags",
            query_encoder=self.query_encoder(),
            options=IndexOptions(analyzer=BAG),
            overwrite=True,
            progress=False,
        )
        return self.work / "bags"

    def formed_index(self, form: Literal["lex", "bin"]) -> Path:
        """Build an index of the corpus's sparse vectors as V_lex or V_bin."""
        shards = (self._apply_form(shard, form) for shard in self.vectors())
        build_index(
            shards,
            self.work / form,
            contract=self.contract,
            query_encoder=self.query_encoder(),
            options=IndexOptions(analyzer=None),
            overwrite=True,
            progress=False,
        )
        return self.work / form

    def _apply_form(self, shard: Shard, form: Literal["lex", "bin"]) -> Shard:
        assert shard.sparse is not None  # full_query_encoder refuses models without the branch
        sparse = shard.sparse
        if form == "bin":
            return Shard(shard.documents, None, sparse.with_weights(np.ones(len(sparse.term_ids), dtype=np.uint8)))
        tokenizer = TextTokenizer.from_file(self.folder / "tokenizer.json")
        own = bag_term_ids(tokenizer, self.contract.document, shard.documents)
        rows, width = np.arange(len(shard.documents)), sparse.vocab_size
        kept = np.isin(
            np.repeat(rows, np.diff(sparse.indptr)) * width + sparse.term_ids,
            np.repeat(rows, own.lengths) * width + own.term_ids,
        )
        weights = np.where(kept, sparse.weights, 0).astype(np.uint8)
        return Shard(shard.documents, None, sparse.with_weights(weights).without_zeros())

    def full_query_encoder(
        self, light: Searcher, task: str | None, *, sparse: bool, form: SparseForm = "weights"
    ) -> FullQueryEncoder:
        """Return the full query encoder with the instruction of the light encoder's table."""
        encoder = light.encoder
        assert isinstance(encoder, CachedQueryEncoder)  # the one stored in the index
        name = next(iter(encoder.tables), None) if task is None else task
        if name is None:
            return FullQueryEncoder(self.model, sparse=sparse, form=form)
        if name not in encoder.tables:
            raise InvalidInput(f"no query table for task {name!r}; {describe_tables(encoder.tables)}")
        return FullQueryEncoder(self.model, instruction=encoder.tables[name].instruction, sparse=sparse, form=form)
