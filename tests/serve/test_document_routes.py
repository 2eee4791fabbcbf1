"""Changes over HTTP are durable and searchable once they are answered, whoever else changes the index."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import pytest

from lightir.index import Index, IndexWriter, build_index, document_shards
from lightir.types import Document

NDJSON = {"content-type": "application/x-ndjson"}


def found(client: Any, query: str) -> list[str]:
    return [hit["doc_id"] for hit in client.post("/v1/search", json={"query": query}).json()["hits"]]


def stored(folder: Path) -> dict[str, str]:
    with Index.open(folder) as index:
        return {doc_id: document.text for doc_id, document in index.get(index.ids()).items()}


@pytest.mark.parametrize("doc_id", ["new", "a/b", "ä ö", "100%", "..", "a?b#c", "bulk", "line\nbreak"])
def test_a_document_is_added_replaced_and_deleted(shop: Path, connect: Any, doc_id: str) -> None:
    from urllib.parse import quote

    path = "/v1/documents/" + quote(doc_id, safe="").replace(".", "%2E")
    with connect(shop) as client:
        for text in ("zebra crossing", "zebra stripes"):
            job = client.put(path, json={"text": text, "metadata": {"brand": "Zed"}})
            assert (job.status_code, job.json()["state"], job.json()["documents"]) == (200, "done", 1)
            assert found(client, "zebra") == [doc_id]
            assert stored(shop)[doc_id] == text
        document = client.get(path).json()
        assert document == {"doc_id": doc_id, "title": "", "text": "zebra stripes", "metadata": {"brand": "Zed"}}
        assert client.delete(path).json()["documents"] == 1
        assert client.delete(path).json()["documents"] == 0
        assert client.get(path).status_code == 404
        assert found(client, "zebra") == []


def test_many_documents_are_added_got_listed_and_deleted(shop: Path, connect: Any) -> None:
    documents = [{"doc_id": f"n{i:03}", "text": f"number {i}", "metadata": {"price": i}} for i in range(50)]
    with connect(shop) as client:
        assert client.post("/v1/documents", json={"documents": documents}).json()["documents"] == 50
        got = client.post("/v1/get", json={"doc_ids": ["n001", "none", "n000"]}).json()["documents"]
        assert [document["doc_id"] for document in got] == ["n001", "n000"]
        listed: list[str] = []
        after = None
        while True:
            asked = {"filter": {"price": {"lt": 30}}, "limit": 7, "after": after}
            part = client.post("/v1/list", json=asked).json()
            assert part["total"] == 31
            listed += part["doc_ids"]
            after = part["next"]
            if after is None:
                break
        assert listed == sorted(["shop/pot", *(f"n{i:03}" for i in range(30))])
        deleted = client.post("/v1/delete", json={"filter": {"price": {"gte": 10, "lt": 30}}})
        assert deleted.json()["documents"] == 21
        assert client.post("/v1/delete", json={"doc_ids": ["n000", "none"]}).json()["documents"] == 1
    assert len(stored(shop)) == 54 - 22


def test_metadata_is_changed(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        job = client.patch("/v1/documents/kettle-1", json={"metadata": {"price": 9, "brand": None}})
        assert job.json()["documents"] == 1
        assert client.get("/v1/documents/kettle-1").json()["metadata"] == {"price": 9}
        assert client.patch("/v1/documents/none", json={"metadata": {"price": 9}}).status_code == 404
        wrong = client.patch("/v1/documents/kettle-1", json={"metadata": {"price": "cheap"}})
        assert (wrong.status_code, "price" in wrong.json()["detail"]) == (400, True)


def test_a_stream_is_committed_whole_and_can_be_sent_again(shop: Path, connect: Any) -> None:
    lines = "".join(json.dumps({"doc_id": f"s{i}", "text": f"streamed {i} ü"}) + "\n\n" for i in range(1201))
    with connect(shop) as client:
        for _ in range(2):
            content = (lines.encode()[i : i + 1000] for i in range(0, len(lines.encode()), 1000))
            assert client.post("/v1/bulk", content=content, headers=NDJSON).json() == {"documents": 1201}
            assert len(stored(shop)) == 1205
        assert len(client.get("/v1/jobs").json()["jobs"]) == 6


@pytest.mark.parametrize(
    ("line", "words"),
    [
        (b"{", "line 502"),
        (b'{"doc_id": "x"}', "text"),
        (b'{"doc_id": "x", "text": "y", "titel": "z"}', "titel"),
        (b'{"doc_id": "x", "text": "y", "metadata": {"price": "cheap"}}', "price"),
        (b'{"doc_id": "x", "text": "\\ud800"}', "line 502"),
        (b'{"doc_id": "x", "text": "' + b"y" * 10_000 + b'"}', "a line has more than 9,000 bytes"),
        (b"[" * 5000, "line 502"),
    ],
)
def test_a_wrong_line_of_a_stream_says_what_was_committed(shop: Path, connect: Any, line: bytes, words: str) -> None:
    good = b"".join(json.dumps({"doc_id": f"s{i}", "text": "t"}).encode() + b"\n" for i in range(501))
    with connect(shop, max_body_bytes=9000) as client:
        answer = client.post("/v1/bulk", content=good + line + b"\n", headers=NDJSON)
    problem = answer.json()
    assert (answer.status_code, problem["status"]) == (400, 400)
    assert words in problem["detail"]
    assert len(stored(shop)) == 4 + problem["committed"]
    assert problem["committed"] >= 9000 // 40


def test_a_stream_must_say_that_it_is_one(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        answer = client.post("/v1/bulk", content=b"{}\n", headers={"content-type": "text/plain"})
    assert answer.status_code == 415


def test_a_change_need_not_be_waited_for(shop: Path, connect: Any) -> None:
    with connect(shop) as client:
        answer = client.put("/v1/documents/later?wait=false", json={"text": "later"})
        assert answer.status_code == 202
        number = answer.json()["id"]
        deadline = time.monotonic() + 20
        while (job := client.get(f"/v1/jobs/{number}").json())["state"] != "done":
            assert time.monotonic() < deadline
            time.sleep(0.01)
        assert job["documents"] == 1
        assert client.get("/v1/jobs/999").status_code == 404
    assert stored(shop)["later"] == "later"


def test_a_wrong_document_changes_nothing(shop: Path, connect: Any) -> None:
    before = stored(shop)
    documents = [{"doc_id": "good", "text": "x"}, {"doc_id": "bad", "text": "x", "metadata": {"price": "cheap"}}]
    with connect(shop) as client:
        assert client.post("/v1/documents", json={"documents": documents}).status_code == 400
        repeated = [{"doc_id": "same", "text": "x"}] * 2
        assert client.post("/v1/documents", json={"documents": repeated}).status_code == 400
        assert client.post("/v1/delete", json={}).status_code == 400
        assert client.post("/v1/delete", json={"filter": {}}).status_code == 422
    assert stored(shop) == before


def test_a_read_only_service_changes_nothing(shop: Path, connect: Any) -> None:
    with connect(shop, read_only=True) as client:
        assert client.put("/v1/documents/x", json={"text": "x"}).status_code == 403
        assert client.post("/v1/bulk", content=b"", headers=NDJSON).status_code == 403
        assert client.get("/v1/jobs").json() == {"jobs": []}
        assert client.get("/v1/info").json()["read_only"] is True


def test_changes_of_other_processes_appear(shop: Path, connect: Any) -> None:
    with connect(shop, refresh_s=0.02) as client:
        with IndexWriter.open(shop) as writer:
            writer.add([Document("other", "quagga")])
        wait_until(lambda: found(client, "quagga") == ["other"])


def test_a_replaced_index_is_served_with_its_model(shop: Path, animals: Path, connect: Any) -> None:
    with connect(animals, refresh_s=0.02) as client:
        assert client.get("/v1/info").json()["model"] == "words"
        build_index(document_shards([Document("new", "quagga")]), animals, progress=False, overwrite=True)
        wait_until(lambda: client.get("/v1/info").json()["documents"] == 1)
        assert found(client, "quagga") == ["new"]
        assert client.post("/v1/embeddings", json={"input": "cat"}).status_code == 400
        assert client.put("/v1/documents/more", json={"text": "zorse"}).status_code == 200
        assert found(client, "zorse") == ["more"]


def test_an_index_that_is_replaced_just_before_it_is_refreshed_is_served_with_its_model(
    animals: Path, connect: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    refresh = Index.refresh

    def late(index: Index, **options: Any) -> bool:
        monkeypatch.setattr(Index, "refresh", refresh)
        build_index(document_shards([Document("new", "quagga")]), animals, progress=False, overwrite=True)
        return refresh(index, **options)

    with connect(animals, refresh_s=0.02) as client:
        monkeypatch.setattr(Index, "refresh", late)
        wait_until(lambda: client.get("/v1/info").json()["documents"] == 1)
        assert client.post("/v1/embeddings", json={"input": "cat"}).status_code == 400
        assert found(client, "quagga") == ["new"]


def test_a_removed_index_keeps_its_state_but_is_not_ready(shop: Path, connect: Any) -> None:
    with connect(shop, refresh_s=0.02) as client:
        shop.rename(shop.with_name("away"))
        wait_until(lambda: client.get("/ready").status_code == 503)
        assert found(client, "pot") == ["shop/pot"]
        shop.with_name("away").rename(shop)
        wait_until(lambda: client.get("/ready").status_code == 200)


def test_a_locked_index_refuses_changes_for_now(shop: Path, connect: Any) -> None:
    with connect(shop, lock_s=0.05) as client, IndexWriter.open(shop):
        answer = client.put("/v1/documents/x", json={"text": "x"})
        assert answer.status_code == 503
        assert answer.headers["retry-after"] == "1"
        assert "writer" in answer.json()["detail"]


def wait_until(condition: Any) -> None:
    deadline = time.monotonic() + 20
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.01)
