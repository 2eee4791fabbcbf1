"""The application package, requests and queries for Vespa beside those of its own client, pyvespa."""

from __future__ import annotations

import os
from collections.abc import Iterator
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

import engine_suite as suite
from lightir.engines import CollectionRecord, EngineRows, open_engine
from lightir.engines.vespa import row_id
from lightir.engines.vespa_package import MAX_HITS, application_package
from lightir.index.metadata_filters import parse
from lightir.types import Document
from pretended_vespa import PretendedVespa, started_vespa

pytestmark = pytest.mark.skipif(
    not os.environ.get("LIGHTIR_ENGINES"), reason="needs the engines that make test-engines installs"
)
RECORD = CollectionRecord(2, 100, fingerprint="f" * 16)


@pytest.fixture
def server() -> Iterator[PretendedVespa]:
    with started_vespa() as server:
        server.deploy(application_package("docs", RECORD))
        yield server


def schema_of_pyvespa(record: CollectionRecord) -> Any:
    """Return the schema of a record, as pyvespa describes it."""
    from vespa.package import HNSW, Document, DocumentSummary, Field, RankProfile, Schema, Summary

    graph = HNSW("dotproduct", 16, 200) if record.index == "hnsw" else None
    tensor = f"tensor<float>(x[{record.dense_dim}])"
    in_memory, fast = ["attribute", "summary"], ["fast-search"]
    dense = (
        Field("dense", tensor, ["attribute", "index", "summary"], ann=graph)
        if graph
        else Field("dense", tensor, in_memory, attribute=["distance-metric: dotproduct"])
    )
    fields = [
        Field("doc_id", "string", in_memory),
        Field("lightir_row", "long", ["attribute"], attribute=fast),
        *(Field(name, "string", ["summary"]) for name in ("title", "text", "metadata")),
        Field("lightir_values", "array<long>", ["attribute"], attribute=fast),
        Field("lightir_version", "string", ["summary"]),
        dense,
        Field("sparse", "weightedset<int>", in_memory, attribute=fast),
    ]
    profiles = [
        RankProfile("dense", "sum(query(q) * attribute(dense))", inputs=[("query(q)", tensor)]),
        RankProfile("sparse", "rawScore(sparse)"),
    ]
    summaries = [DocumentSummary("lightir_ids", summary_fields=[Summary("doc_id")])]
    return Schema("docs", Document(fields), rank_profiles=profiles, document_summaries=summaries)


@pytest.mark.parametrize("index", ["hnsw", "flat"])
def test_the_package_is_what_pyvespa_writes(index: Any) -> None:
    from vespa.package import ApplicationPackage, QueryField, QueryProfile

    record = CollectionRecord(2, 100, index=index)
    profile = QueryProfile([QueryField("maxHits", MAX_HITS), QueryField("dispatch.topKProbability", 1.0)])
    theirs = ApplicationPackage("docs", [schema_of_pyvespa(record)], profile)
    ours = application_package("docs", record)
    assert ours["schemas/docs.sd"].split() == theirs.schema.schema_to_text.split()
    assert _tree(ours["services.xml"]) == _tree(theirs.services_to_text)
    fields = [_tree(text)[3] for text in (ours["search/query-profiles/lightir.xml"], theirs.query_profile_to_text)]
    assert fields[0] == fields[1]


def _tree(text: str) -> Any:
    """Return an XML document as tuples of tag, attributes, text and children."""

    def node(element: ElementTree.Element) -> Any:
        return element.tag, element.attrib, (element.text or "").strip(), [node(child) for child in element]

    return node(ElementTree.fromstring(text.strip().encode()))


def test_queries_are_what_pyvespas_query_builder_writes(server: PretendedVespa) -> None:
    import vespa.querybuilder as qb

    engine: Any = open_engine(server.address)
    engine.create(RECORD)
    assert engine.restrict(parse({"a": 1, "or": [{"b": 2}, {"c": "x"}]}))
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=False)
    numbers = [int(part.split("L")[0]) for part in server.requests[-1][2]["yql"].split("in (")[1:]]
    values = qb.QueryField("lightir_values")
    a, b, c = (values.in_(number) for number in numbers)
    nearest = qb.nearestNeighbor("dense", "q", {"targetHits": 3, "hnsw.exploreAdditionalHits": 197})
    assert _written(server) == _without_spaces(qb.select(["doc_id"]).from_("sources *").where(nearest & (a & (b | c))))
    engine.restrict(None)
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=True)
    nearest = qb.nearestNeighbor("dense", "q", {"targetHits": 3, "approximate": False})
    assert _written(server) == _without_spaces(qb.select(["doc_id"]).from_("sources *").where(nearest))
    engine.sparse(suite.csr([{7: 2}], vocab_size=100, dtype=np.float32), 3)
    best = qb.wand("sparse", "@terms", {"targetHits": 3})
    expected = _without_spaces(qb.select(["doc_id"]).from_("sources *").where(best))
    assert _written(server) == expected.replace('"', "")  # it quotes the parameter, which Vespa does not want
    engine.count()
    assert _written(server) == _without_spaces(qb.select(["doc_id"]).from_("sources *").where(qb.true()))


def _written(server: PretendedVespa) -> str:
    """Return the last query without spaces; a number of 64 bits ends with L, which pyvespa leaves to its caller."""
    return _without_spaces(server.requests[-1][2]["yql"]).replace("L)", ")")


def _without_spaces(query: Any) -> str:
    return str(query).replace(" ", "")


def test_requests_are_what_pyvespa_sends(server: PretendedVespa) -> None:
    from vespa.application import Vespa

    engine: Any = open_engine(server.address)
    engine.create(RECORD)
    client = Vespa("http://127.0.0.1", server.server_address[1])
    sparse = suite.csr([{3: 2}], vocab_size=100, dtype=np.float32)
    engine.upsert(EngineRows([Document("ä/b", "x")], ["v"], np.ones((1, 2), np.float32), sparse))
    ours = server.requests[-1]
    assert client.feed_data_point("docs", row_id("ä/b"), ours[2]["fields"]).status_code == 200
    assert server.requests[-1] == ours
    engine.dense(np.array([[1, 2]], np.float32), 3, exact=False)
    ours = server.requests[-1]
    answer = client.query(ours[2])
    assert server.requests[-1] == ours
    assert (answer.hits[0]["fields"], answer.number_documents_retrieved) == ({"doc_id": "ä/b"}, 1)
    engine.collection()
    ours = server.requests[-1]
    assert client.get_data("docs", "record", "lightir").is_successful()
    assert server.requests[-1] == ours
    (pages,) = client.visit("docs_content", "docs")
    visited = [document["fields"]["doc_id"] for page in pages for document in page.documents]
    assert visited == [doc_id for doc_id, _ in engine.versions()] == ["ä/b"]
    engine.delete(["ä/b"])
    ours = server.requests[-1]
    assert client.delete_data("docs", row_id("ä/b")).is_successful()
    assert server.requests[-1] == ours
