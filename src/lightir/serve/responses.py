"""Bodies of responses, for the OpenAPI document. Routes do not validate them: that would cost more than a search."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict


class BranchPart(BaseModel):
    """A branch's part of a score."""

    score: float | None
    rank: int | None
    normalized: float | None = None
    weight: float | None = None


class TermPart(BaseModel):
    """A matched term."""

    term: str
    weight: float
    score: float
    word: str = ""


class PassagePlace(BaseModel):
    """The place of a passage in its document."""

    document: str
    start: int
    end: int
    heading: str = ""
    page: int | None = None
    line: int | None = None


class HitBody(BaseModel):
    """A hit. With ids_only it has its id and score alone."""

    doc_id: str
    score: float
    title: str | None = None
    snippet: str | None = None
    highlights: list[tuple[int, int]] | None = None
    metadata: dict[str, Any] | None = None
    branches: dict[str, BranchPart] | None = None
    terms: list[TermPart] | None = None
    pending: bool | None = None
    named: bool | None = None
    passage: PassagePlace | None = None


class FacetValue(BaseModel):
    """A value and the number of matching documents that have it."""

    value: Any
    count: int


class SearchResult(BaseModel):
    """The answer to one query."""

    query: str
    mode: str
    took_ms: float
    hits: list[HitBody]
    total: int | None = None
    facets: dict[str, list[FacetValue]] | None = None
    missing_shards: list[int] | None = None


class SearchResults(BaseModel):
    """The answers to a list of queries, in its order."""

    results: list[SearchResult]
    missing_shards: list[int] | None = None


class ExplainResult(BaseModel):
    """A document's score: the sum of weight x normalized over the branches, and the terms of each branch."""

    query: str
    doc_id: str
    score: float
    rank: int | None
    n_candidates: int
    fusion: str
    branches: dict[str, BranchPart]
    terms: dict[str, list[TermPart]]
    pending: bool
    named: bool


class FoundDocument(BaseModel):
    """A document of the index."""

    doc_id: str
    title: str
    text: str
    metadata: dict[str, Any]


class FoundDocuments(BaseModel):
    """Documents of the index; ids without a document are omitted."""

    documents: list[FoundDocument]


class IdList(BaseModel):
    """A part of the list of ids, the number of all that match, and the `after` of the next part (null: no more)."""

    total: int
    doc_ids: list[str]
    next: str | None


class JobBody(BaseModel):
    """A change. Once its state is "done", it survives a crash; if it is "failed", nothing was changed."""

    model_config = ConfigDict(json_schema_extra={"examples": [{"id": 7, "kind": "upsert", "state": "done"}]})

    id: int
    kind: Literal["upsert", "delete", "metadata"]
    state: Literal["queued", "running", "done", "failed"]
    documents: int | None
    error: str | None
    queued_at: float
    finished_at: float | None


class JobList(BaseModel):
    """Jobs, newest first."""

    jobs: list[JobBody]


class BulkResult(BaseModel):
    """The end of a stream of documents: all of its lines are committed."""

    documents: int


class SparseRow(BaseModel):
    """A sparse vector: term ids of the model and their weights."""

    indices: list[int]
    values: list[float]


class EncodeResult(BaseModel):
    """Query vectors; null for what the model does not have or was not asked for."""

    model: str
    dense: list[list[float]] | None
    sparse: list[SparseRow] | None


class EmbeddingItem(BaseModel):
    """One embedding: numbers, or base64 of little-endian float32."""

    object: Literal["embedding"]
    index: int
    embedding: list[float] | str


class Usage(BaseModel):
    """Counted words."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingsResult(BaseModel):
    """OpenAI's answer."""

    object: Literal["list"]
    data: list[EmbeddingItem]
    model: str
    usage: Usage


class SparseValue(BaseModel):
    """An entry of a sparse vector."""

    index: int
    value: float


class RankedText(BaseModel):
    """A ranked text."""

    index: int
    score: float
    text: str | None = None


class StatusBody(BaseModel):
    """State of the service."""

    status: Literal["ok"]
