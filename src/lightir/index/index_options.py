"""The options that an index is built with, which it keeps for what is added later."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, get_args

from lightir.analysis import BAG
from lightir.contract import check_word_weight
from lightir.errors import InvalidInput
from lightir.index.passages.naming import PASSAGE_FIELDS
from lightir.index.passages.options import PassageOptions
from lightir.index.schema import Schema
from lightir.index.text_fields import require_boosts

DenseDtype = Literal["fp16", "int8", "fp16+int8"]

SEGMENT_DOCUMENTS = 1_048_576
"""Default maximum number of documents per segment. Over a million documents, sixteen segments take nearly twice as
long as one for a sparse query or BM25, and sixteen graphs take sixteen times as long."""


@dataclass(frozen=True, slots=True)
class IndexOptions:
    """Options of an index. The index stores them, and documents that are added later follow them.

    Attributes:
        dense_dim: number of leading columns of each dense vector to keep, normalized again (Matryoshka); None for all.
            A width that the model was not trained at is logged as a warning.
        dense_dtype: storage of dense vectors: "fp16"; "int8", with one scale per row (its largest absolute value /
            127); or "fp16+int8", float16 rows with int8 copies that are scanned first in segments without codes
            (`kernel.code_rows`). "fp16+int8" returns the results of "fp16" in less time there.
        sparse_top_k: maximum number of impacts per document; the largest are kept, ties go to the smaller term id.
            None for all.
        dense_graph: build a graph (HNSW) over the dense rows of each large segment, for approximate, faster search.
        analyzer: name of the analyzer of title and text for the tokens branch, see `lightir.analysis.Analyzer`; None
            for an index without tokens branch. "auto" treats each script by its own rules and detects the language of
            Latin words from the first shard; the index stores the answer ("auto-german"). One that is created empty
            does so when the first documents are added.
        segment_documents: maximum number of documents per segment, at least 1.
        schema: types of the metadata fields, by which values are checked and filters compare; None to store any values
            and compare by JSON types. See `lightir.index.schema.infer`.
        passages: sizes of passages, into which documents that are longer than the model reads are split when they are
            added without vectors; None to split none. The schema gets the fields of passages.
        boosts: weight from 1 to 100 of each field in BM25 (`lightir.index.text_fields`): "title" and "text", 1 without
            a boost, and metadata fields of text or keywords in the schema, whose words only count with a boost. The
            model reads title and text whatever the boosts.
        word_weight: weight, 0 to 1, of the light vector of a document's own words, which is added to its dense vector
            (`lightir.index.word_vectors`); None for that of the query encoder's contract. It requires a query encoder
            with dense rows, which makes the light vector as that of a query, without a model.
    """

    dense_dim: int | None = None
    dense_dtype: DenseDtype = "fp16"
    sparse_top_k: int | None = None
    dense_graph: bool = False
    analyzer: str | None = "auto"
    segment_documents: int = SEGMENT_DOCUMENTS
    schema: Schema | None = None
    passages: PassageOptions | None = None
    boosts: Mapping[str, int] = field(default_factory=dict)
    word_weight: float | None = None

    def __post_init__(self) -> None:
        if self.dense_dtype not in get_args(DenseDtype):
            raise InvalidInput(
                f"dense_dtype is {self.dense_dtype!r}; expected one of {', '.join(get_args(DenseDtype))}"
            )
        for name in ("dense_dim", "sparse_top_k", "segment_documents"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InvalidInput(f"{name} is {value}; expected at least 1")
        if self.passages is not None and self.analyzer == BAG:
            raise InvalidInput("bags of tokens are cut by the model's bag_tokens; they have no passages")
        if self.passages is not None:
            object.__setattr__(self, "schema", (self.schema or Schema()).with_fields(PASSAGE_FIELDS))
        require_boosts(self.boosts, self.schema, self.analyzer)
        if self.word_weight is not None:
            check_word_weight(self.word_weight)

    def sizes(self) -> dict[str, Any]:
        """Return the options under "sizes" in the store's record: how vectors are stored."""
        return {name: getattr(self, name) for name in ("dense_dim", "dense_dtype", "sparse_top_k", "dense_graph")}
