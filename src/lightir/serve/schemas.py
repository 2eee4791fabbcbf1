"""Bodies of requests and responses, with the limits and examples that the OpenAPI document shows."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from lightir.serve.serve_options import (
    MAX_DOCUMENTS,
    MAX_K,
    MAX_OFFSET,
    MAX_QUERIES,
    MAX_QUERY_CHARACTERS,
    MAX_TEXT_CHARACTERS,
    MAX_TEXTS,
)
from lightir.types import Document


def _whole(value: Any) -> Any:
    """Return 2 for 2.0, which JSON does not distinguish."""
    return int(value) if isinstance(value, float) and value.is_integer() else value


WHOLE = BeforeValidator(_whole)
"""Takes whole numbers however they are written; it stands after the limits, which the schema then has."""

QueryText = Annotated[str, Field(max_length=MAX_QUERY_CHARACTERS)]
DocId = Annotated[str, Field(min_length=1, max_length=2500)]
Text = Annotated[str, Field(max_length=MAX_TEXT_CHARACTERS)]
Json = dict[str, Any]


class Body(BaseModel):
    """A body whose unknown members are errors, and whose values have the types that they are documented to have."""

    model_config = ConfigDict(extra="forbid", strict=True)


def _example(*examples: Json, extra: Literal["forbid", "ignore"] = "forbid") -> ConfigDict:
    return ConfigDict(extra=extra, strict=True, json_schema_extra={"examples": [*examples]})


class RankingBody(Body):
    """Options that decide how documents are ranked."""

    mode: str | None = Field(None, description="branches: hybrid, dense, sparse, tokens, or several joined by +")
    fusion: str | None = Field(None, description="fusion method, such as absolute, linear:min-max or rrf")
    weights: dict[str, float] | None = Field(None, description="weight of each branch")
    depth: Annotated[int, Field(ge=1, le=100_000), WHOLE] | None = Field(
        None, description="number of documents per branch that are fused"
    )
    filter: Json | None = Field(None, description='condition on the metadata, such as {"year": {"gte": 2015}}')
    passages: bool = Field(False, description="show every passage, not the best one of each document")
    syntax: bool = Field(True, description='read "phrases", -word and field:value in the query')
    typos: bool = Field(True, description="match words that differ by a typing error if no document has the word")
    as_you_type: bool = Field(False, description="take the last word for the beginning of a word")


class SearchRequest(RankingBody):
    """A search for one query, or for a list of them."""

    model_config = _example(
        {"query": "waterproof laptop bag", "k": 3},
        {"query": "kettle", "filter": {"price": {"lt": 50}}, "facets": ["brand"], "sort": "price"},
        {"query": ["first question", "second question"], "k": 100, "ids_only": True},
    )

    query: QueryText | Annotated[list[QueryText], Field(min_length=1, max_length=MAX_QUERIES)] = Field(
        description="text of the query, or a list; white space alone lists the documents that pass the filter"
    )
    k: Annotated[int, Field(ge=1, le=MAX_K, description="number of hits per query"), WHOLE] = 10
    offset: Annotated[
        int, Field(ge=0, le=MAX_OFFSET, description="number of hits to skip; the answer then has a total"), WHOLE
    ] = 0
    exclude: Annotated[list[str], Field(max_length=MAX_DOCUMENTS)] = Field(
        default_factory=list, description="ids to leave out", json_schema_extra={"default": []}
    )
    min_score: float | None = Field(None, description="score below which hits are left out", allow_inf_nan=False)
    facets: list[str] | dict[str, Annotated[int, Field(ge=1, le=1000), WHOLE]] = Field(
        default_factory=list,  # a default that is a list would be copied for every request
        description="fields whose values to count: names, or names with numbers of values (default 10)",
        json_schema_extra={"default": []},
    )
    sort: str | None = Field(None, description="field to sort by, such as price or price:desc")
    group: str | None = Field(None, description="field of whose values each has one hit")
    total: bool = Field(False, description="count all matches")
    explain: bool = Field(False, description="show branches' normalized scores and weights, and the matched terms")
    highlights: bool = Field(True, description="show where the query's terms stand in the snippets")
    full_text: bool = Field(False, description="show whole texts instead of snippets")
    fields: list[str] | None = Field(None, description="metadata fields to show (default: all)")
    ids_only: bool = Field(False, description="show ids and scores alone, which is fastest")
    allow_partial: bool = Field(
        False, description="answer without the shards that do not answer, and list their numbers in missing_shards"
    )

    @property
    def pages(self) -> bool:
        """Whether the answer needs all matches."""
        return bool(self.offset or self.facets or self.total or self.sort is not None or self.group is not None)

    @property
    def facet_counts(self) -> dict[str, int]:
        """Facets with their numbers of values."""
        return self.facets if isinstance(self.facets, dict) else dict.fromkeys(self.facets, 10)


class ExplainRequest(RankingBody):
    """A document whose score for a query is explained."""

    model_config = _example({"query": "waterproof laptop bag", "doc_id": "kettle-7"})

    query: QueryText = Field(description="text of the query")
    doc_id: DocId = Field(description="id of the document, or of one of its passages")


class DocumentBody(Body):
    """A document. Its id is a path parameter where the path has one."""

    title: str = Field("", description="title")
    text: str = Field(description="text")
    metadata: Json = Field({}, description="any JSON object")


class DocumentItem(DocumentBody):
    """A document with its id."""

    model_config = _example(
        {"doc_id": "kettle-7", "title": "Steel kettle", "text": "Holds 1.7 l.", "metadata": {"price": 39.5}}
    )

    doc_id: DocId

    def document(self) -> Document:
        """Return the library's document."""
        return Document(self.doc_id, self.text, self.title, self.metadata)


class DocumentsRequest(Body):
    """Documents to add; each replaces the document with its id."""

    documents: Annotated[list[DocumentItem], Field(min_length=1, max_length=MAX_DOCUMENTS)]


class IdsRequest(Body):
    """Ids of documents."""

    model_config = _example({"doc_ids": ["kettle-7", "kettle-8"]})

    doc_ids: Annotated[list[DocId], Field(min_length=1, max_length=MAX_DOCUMENTS)]


class DeleteRequest(Body):
    """Documents to delete: ids, or a filter."""

    model_config = _example({"doc_ids": ["kettle-7"]}, {"filter": {"discontinued": True}})

    doc_ids: Annotated[list[DocId], Field(min_length=1, max_length=MAX_DOCUMENTS)] | None = None
    filter: Annotated[Json, Field(min_length=1)] | None = None


class MetadataRequest(Body):
    """Metadata fields to change; null removes a field."""

    model_config = _example({"metadata": {"price": 29.5, "discontinued": None}})

    metadata: Annotated[Json, Field(min_length=1)]


class ListRequest(Body):
    """A part of the list of ids."""

    model_config = _example({"filter": {"brand": "Norda"}, "limit": 100, "after": "kettle-7"})

    filter: Json | None = Field(None, description="condition on the metadata")
    after: str | None = Field(None, description="id after which the part begins")
    limit: Annotated[int, Field(ge=1, le=10_000, description="maximum number of ids"), WHOLE] = 100


class EncodeRequest(Body):
    """Texts to encode as queries."""

    model_config = _example({"texts": ["how do vaccines work"], "sparse": True})

    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    dense: bool = Field(True, description="return dense vectors, if the model has them")
    sparse: bool = Field(True, description="return sparse vectors, if the model has them")


class EmbeddingsRequest(BaseModel):
    """OpenAI's request for embeddings."""

    model_config = _example({"model": "any", "input": ["how do vaccines work"]}, extra="ignore")

    input: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    model: str = Field("", description="ignored: the service has one model")
    encoding_format: Literal["float", "base64"] = "float"
    dimensions: Annotated[int, Field(ge=1), WHOLE] | None = Field(None, description="width of the vectors")
    user: str | None = Field(None, description="ignored")


class TeiRequest(BaseModel):
    """A request of text-embeddings-inference for embeddings."""

    model_config = _example({"inputs": ["how do vaccines work"]}, extra="ignore")

    inputs: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    truncate: bool | None = Field(None, description="ignored: texts have no maximum of tokens")
    normalize: bool = Field(True, description="must be true: vectors have length 1")
    dimensions: Annotated[int, Field(ge=1), WHOLE] | None = Field(None, description="width of the vectors")


class TeiSparseRequest(BaseModel):
    """A request of text-embeddings-inference for sparse embeddings."""

    model_config = _example({"inputs": "how do vaccines work"}, extra="ignore")

    inputs: Text | Annotated[list[Text], Field(min_length=1, max_length=MAX_TEXTS)]
    truncate: bool | None = Field(None, description="ignored: texts have no maximum of tokens")


class TeiRerankRequest(BaseModel):
    """A request of text-embeddings-inference to rank texts."""

    model_config = _example({"query": "deep learning", "texts": ["a cake", "a neural network"]}, extra="ignore")

    query: QueryText
    texts: Annotated[list[Text], Field(min_length=1, max_length=MAX_DOCUMENTS)]
    raw_scores: bool = Field(False, description="return scores without a bound")
    return_text: bool = Field(False, description="return the texts too")
    truncate: bool | None = Field(None, description="ignored: texts have no maximum of tokens")


class ProblemBody(BaseModel):
    """An error (RFC 9457)."""

    model_config = ConfigDict(
        json_schema_extra={
            "examples": [
                {"type": "about:blank", "title": "Bad Request", "status": 400, "detail": "fusion is 'x'; expected ..."}
            ]
        }
    )

    type: str
    title: str
    status: int
    detail: str
