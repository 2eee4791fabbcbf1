"""A pretended Vespa: /document/v1 and /search/ for the requests that lightir sends, by Vespa's public documentation.

An application package has to be deployed first. Documents are checked against its schema, fields without a value are
left out of answers, visits give pages of any length, and searches are exact, with ties in an arbitrary order. What the
documentation does not define, or lightir does not send, is refused.
"""

from __future__ import annotations

import hashlib
import json
import re
import threading
import urllib.parse
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from xml.etree import ElementTree

import numpy as np

Fields = dict[str, Any]
Clause = Callable[[Fields], float | None]
"""Gives the raw score of a document that matches, otherwise None."""

PAGE = 37
VISIT_PARAMETERS = {"fieldSet", "wantedDocumentCount", "continuation", "selection", "cluster", "slices", "sliceId"}


class BadRequest(Exception):
    """A request that Vespa answers with 400."""


class PretendedVespa(ThreadingHTTPServer):
    """A server that keeps documents in memory."""

    request_queue_size = 64  # with socketserver's 5, connections at a time wait for a second

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.types: dict[str, Schema] = {}
        self.max_hits: dict[str, int] = {}
        self.documents: dict[tuple[str, str, str], Fields] = {}
        self.requests: list[tuple[str, str, Any]] = []
        self.answers: list[tuple[int, Any]] = []
        """Answers to the next requests, whatever these are."""
        self.clients: set[Any] = set()
        """Addresses of the clients' ends of connections."""

    @property
    def address(self) -> str:
        return f"vespa://127.0.0.1:{self.server_address[1]}/docs"

    def deploy(self, package: Mapping[str, str]) -> None:
        services = ElementTree.fromstring(package["services.xml"])
        assert services.find("container/search") is not None
        assert services.find("container/document-api") is not None
        names = [document.attrib["type"] for document in services.findall("content/documents/document")]
        self.types = {name: Schema(name, package[f"schemas/{name}.sd"]) for name in names}
        self.max_hits = {"default": 400}
        for path, text in package.items():
            if path.startswith("search/query-profiles/"):
                profile = ElementTree.fromstring(text)
                assert path == f"search/query-profiles/{profile.attrib['id']}.xml"
                values = {field.attrib["name"]: field.text for field in profile.findall("field")}
                self.max_hits[profile.attrib["id"]] = int(values["maxHits"] or 0)

    def document(self, method: str, path: str, asked: Mapping[str, str], body: Any) -> tuple[int, Any]:
        namespace, kind, _, *rest = path.removeprefix("/document/v1/").rstrip("/").split("/")
        if kind not in self.types:
            raise BadRequest(f"Document type '{kind}' does not exist")
        if not rest:
            return self._visit(namespace, kind, asked)
        key = (namespace, kind, urllib.parse.unquote(rest[0]))
        about = {"pathId": path, "id": f"id:{namespace}:{kind}::{key[2]}"}
        if method == "POST":
            self.documents[key] = self.types[kind].checked(body["fields"])
        elif method == "DELETE":
            self.documents.pop(key, None)
        elif key not in self.documents:
            return 404, about
        else:
            return 200, about | {"fields": self.types[kind].rendered(self.documents[key])}
        return 200, about

    def _visit(self, namespace: str, kind: str, asked: Mapping[str, str]) -> tuple[int, Any]:
        """Return a page; the first one is empty, as a page may be while documents remain."""
        assert {*asked} <= VISIT_PARAMETERS
        assert asked.get("slices", "1") == "1"
        after = asked.get("continuation")
        if after is None:
            return 200, {"documents": [], "documentCount": 0, "continuation": "0"}
        keys = sorted(key for key in self.documents if key[:2] == (namespace, kind) and key[2] >= after)
        page, rest = keys[:PAGE], keys[PAGE:]
        names = None
        if "fieldSet" in asked:
            chosen, _, names_text = asked["fieldSet"].partition(":")
            assert chosen == kind
            names = names_text.split(",")
        documents = [
            {
                "id": f"id:{namespace}:{kind}::{key[2]}",
                "fields": self.types[kind].rendered(self.documents[key], names),
            }
            for key in page
        ]
        more = {"continuation": rest[0][2]} if rest else {}
        return 200, {"documents": documents, "documentCount": len(documents), **more}

    def search(self, asked: Mapping[str, Any]) -> tuple[int, Any]:
        profile = asked.get("queryProfile", "default")
        if profile not in self.max_hits:
            raise BadRequest(f"Could not resolve query profile '{profile}'")
        if asked["hits"] > self.max_hits[profile]:
            raise BadRequest(f"{asked['hits']} hits requested, configured limit: {self.max_hits[profile]}")
        schema = self.types[asked["model.restrict"]]
        match = re.fullmatch(r"select (.+) from sources \* where (.+)", asked["yql"])
        assert match is not None, asked["yql"]
        names = schema.summary(asked.get("presentation.summary"), match[1].split(", "))
        stored = {key: fields for key, fields in self.documents.items() if key[1] == schema.name}
        clause = Yql(match[2], asked, [*stored.values()], schema).clause
        scored = [(key, clause(fields)) for key, fields in stored.items()]
        rank = schema.ranking(asked.get("ranking.profile", "default"), asked)
        hits = [(rank(stored[key], raw), key) for key, raw in scored if raw is not None]
        hits.sort(key=lambda hit: (-hit[0], hashlib.md5(hit[1][2].encode()).digest()))
        children = [
            {"id": f"index:docs/0/{at}", "relevance": score, "fields": schema.rendered(stored[key], names)}
            for at, (score, key) in enumerate(hits[: asked["hits"]])
        ]
        coverage = {"coverage": 100, "documents": len(stored), "full": True, "nodes": 1}
        root = {"id": "toplevel", "fields": {"totalCount": len(hits)}, "coverage": coverage}
        return 200, {"root": root | ({"children": children} if children else {})}


class Schema:
    """Fields, rank profiles and summaries of a schema."""

    def __init__(self, name: str, text: str) -> None:
        assert text.count("{") == text.count("}")
        assert re.match(rf"schema {name} {{\s+document {name} {{", text)
        declared = re.findall(r"field (\w+) type (\S+) {\s+indexing: (.+)", text)
        self.name = name
        self.types = {field: kind for field, kind, _ in declared}
        self.indexing = {field: indexing.split(" | ") for field, _, indexing in declared}
        profile = (
            r"rank-profile (\w+) {(?:\s+inputs {\s+query\((\w+)\) (\S+)\s+})?\s+first-phase {\s+expression {\s+(.+)"
        )
        self.profiles = {match[0]: match[1:] for match in re.findall(profile, text)}
        summaries = re.findall(r"document-summary (\w+) {((?:\s+summary \w+ {})+)", text)
        self.summaries = {summary: re.findall(r"summary (\w+)", fields) for summary, fields in summaries}

    def checked(self, fields: Fields) -> Fields:
        """Return the fields that have a value, as their types keep them."""
        for field in fields:
            if field not in self.types:
                raise BadRequest(f"No field '{field}' in the structure of type '{self.name}'")
        return {field: self._kept(field, value) for field, value in fields.items() if value or value == 0}

    def _kept(self, field: str, value: Any) -> Any:
        kind = self.types[field]
        if kind == "string" and isinstance(value, str) and not re.search(r"[\x00-\x08\x0b\x0c\x0e-\x1f]", value):
            return value
        if kind == "long" and _is_integer(value, 63):
            return value
        if kind == "array<long>" and all(_is_integer(element, 63) for element in value):
            return value
        if kind == "weightedset<int>" and isinstance(value, dict):
            assert all(_is_integer(number, 31) for pair in value.items() for number in (int(pair[0]), pair[1]))
            return value
        if (tensor := re.fullmatch(r"tensor<float>\(x\[(\d+)\]\)", kind)) and len(value) == int(tensor[1]):
            return np.array(value, dtype=np.float32)
        raise BadRequest(f"Could not parse the value of field '{field}' of type {kind}")

    def rendered(self, fields: Fields, names: list[str] | None = None) -> Fields:
        """Return fields as answers have them; a tensor has its type."""
        given = {field: fields[field] for field in (fields if names is None else names) if field in fields}
        tensors = {field for field, kind in self.types.items() if kind.startswith("tensor")}
        return {
            field: {"type": self.types[field], "values": value.tolist()} if field in tensors else value
            for field, value in given.items()
        }

    def summary(self, chosen: str | None, names: list[str]) -> list[str]:
        """Return the names of the fields that a summary has and a query selects."""
        summary = (
            self.summaries[chosen] if chosen else [name for name in self.types if "summary" in self.indexing[name]]
        )
        assert {*names} <= {*summary}, (names, summary)
        return names

    def ranking(self, name: str, asked: Mapping[str, Any]) -> Callable[[Fields, float], float]:
        """Return the first phase of a rank profile."""
        if name in ("unranked", "default"):
            return lambda fields, raw: 0.0
        query_input, tensor, expression = self.profiles[name]
        if product := re.fullmatch(r"sum\(query\(q\) \* attribute\((\w+)\)\)", expression):
            assert query_input == "q"
            assert tensor == self.types[product[1]]
            query = np.array(asked["input.query(q)"], dtype=np.float32)
            return lambda fields, raw: float(query @ fields[product[1]])
        assert re.fullmatch(r"rawScore\((\w+)\)", expression), expression
        return lambda fields, raw: raw


class Yql:
    """The condition of a query; `clause` gives a document's raw score, or None."""

    def __init__(self, text: str, asked: Mapping[str, Any], documents: list[Fields], schema: Schema) -> None:
        self._asked, self._documents, self._schema = asked, documents, schema
        tokens = r"\(\{.*?\}\w+\(.*?\)\)|\w+ in \(.*?\)|\(|\)|and|or|true"
        self._tokens = re.findall(tokens, text)
        assert "".join(self._tokens).replace(" ", "") == text.replace(" ", ""), text
        self._ranked: list[tuple[int, Callable[[Fields], float | None]]] = []
        tested = self._joined()
        assert not self._tokens
        self.clause = self._top(tested)

    def _top(self, tested: Clause) -> Clause:
        """Return the clause that only the best rows of an operator with targetHits match."""
        if not self._ranked:
            return tested
        ((target, score),) = self._ranked
        passed = [fields for fields in self._documents if tested(fields) is not None]
        scores = sorted((value for fields in passed if (value := score(fields)) is not None), reverse=True)[:target]
        lowest = scores[-1] if scores else np.inf
        return lambda fields: (
            value if tested(fields) is not None and (value := score(fields)) is not None and value >= lowest else None
        )

    def _joined(self) -> Clause:
        parts, words = [self._part()], set()
        while self._tokens and self._tokens[0] in ("and", "or"):
            words.add(self._tokens.pop(0))
            parts.append(self._part())
        assert len(words) <= 1  # and binds more than or; lightir writes parentheses
        together = any if "or" in words else all
        return lambda fields: 0.0 if together(part(fields) is not None for part in parts) else None

    def _part(self) -> Clause:
        token = self._tokens.pop(0)
        if token == "(":
            inner = self._joined()
            assert self._tokens.pop(0) == ")"
            return inner
        if token == "true":
            return lambda fields: 0.0
        if among := re.fullmatch(r"(\w+) in \((.*)\)", token):
            return self._among(among[1], among[2])
        operator = re.fullmatch(r"\(\{(.*)\}(\w+)\((\w+), @?(\w+)\)\)", token)
        assert operator is not None, token
        annotations = dict(pair.split(": ") for pair in operator[1].split(", "))
        score = {"nearestNeighbor": self._nearest, "wand": self._wand}[operator[2]](
            operator[3], operator[4], annotations
        )
        self._ranked.append((int(annotations["targetHits"]), score))
        return lambda fields: 0.0 if score(fields) is not None else None

    def _among(self, field: str, text: str) -> Clause:
        assert self._schema.types[field] in ("long", "array<long>")
        assert "attribute" in self._schema.indexing[field]
        listed = str(self._asked[text[1:]]) if text.startswith("@") else text
        numbers = {int(number.removesuffix("L")) for number in re.split(", ?", listed)}
        assert all(number < 2**31 for number in numbers) or text.startswith("@") or text.count("L") == len(numbers)

        def clause(fields: Fields) -> float | None:
            value = fields.get(field, [])
            return 0.0 if numbers & {*(value if isinstance(value, list) else [value])} else None

        return clause

    def _nearest(self, field: str, name: str, annotations: Mapping[str, str]) -> Clause:
        known = {"targetHits", "approximate", "hnsw.exploreAdditionalHits"}
        assert {*annotations} <= known
        assert "attribute" in self._schema.indexing[field]
        query = np.array(self._asked[f"input.query({name})"], dtype=np.float32)
        return lambda fields: float(query @ fields[field]) if field in fields else None

    def _wand(self, field: str, name: str, annotations: Mapping[str, str]) -> Clause:
        assert {*annotations} == {"targetHits"}
        assert self._schema.types[field] == "weightedset<int>"
        pairs = [pair.split(": ") for pair in self._asked[name].strip("{}").split(", ")]
        weights = {term: int(weight) for term, weight in pairs}
        assert all(_is_integer(weight, 31) for weight in weights.values())

        def clause(fields: Fields) -> float | None:
            shared = {*weights} & {*fields.get(field, {})}
            return float(sum(weights[term] * fields[field][term] for term in shared)) if shared else None

        return clause


def _is_integer(value: Any, bits: int) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and -(2**bits) <= value < 2**bits


class Handler(BaseHTTPRequestHandler):
    server: PretendedVespa
    protocol_version = "HTTP/1.1"  # connections are kept open
    disable_nagle_algorithm = True  # or the client would wait for its own delayed acknowledgment

    def do_GET(self) -> None:
        parts = urllib.parse.urlsplit(self.path)
        asked = dict(urllib.parse.parse_qsl(parts.query))
        body = json.loads(self.rfile.read(int(self.headers.get("Content-Length", 0))) or b"null")
        self.server.clients.add(self.client_address)
        self.server.requests.append((self.command, self.path, body))
        if self.server.answers:
            status, answer = self.server.answers.pop(0)
        else:
            try:
                is_search = parts.path == "/search/"
                search, document = self.server.search, self.server.document
                status, answer = search(body) if is_search else document(self.command, parts.path, asked, body)
            except BadRequest as error:
                status, answer = 400, {"pathId": parts.path, "message": str(error)}
            except Exception as error:  # noqa: BLE001 (a request that the documentation does not define)
                status, answer = 500, {"message": f"{type(error).__name__}: {error}"}
        content = json.dumps(answer).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_DELETE = do_GET  # noqa: N815 (http.server's names)

    def log_message(self, *arguments: Any) -> None: ...


@contextmanager
def started_vespa() -> Iterator[PretendedVespa]:
    with PretendedVespa() as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield server
        server.shutdown()
