"""An index behind HTTP, with the standard library alone: /?q=kettle&k=3. Takes the index's folder and a port."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from lightir import Index, LightirError, Searcher, SearchOptions

index = Index.open(sys.argv[1])
searcher = Searcher(index)


def answer(asked: dict[str, list[str]]) -> list[dict[str, object]]:
    """The best documents for the query `q`: `k` of them, those that a `filter` in JSON lets through."""
    index.refresh()  # so that what others committed is found
    wanted = json.loads(asked["filter"][0]) if "filter" in asked else None
    hits = searcher.hits(asked["q"][0], int(asked.get("k", ["10"])[0]), SearchOptions(filter=wanted))
    return [
        {"id": hit.doc_id, "score": hit.score, "title": hit.title, "snippet": hit.snippet, "metadata": hit.metadata}
        for hit in hits
    ]


class Handler(BaseHTTPRequestHandler):
    """One request; a thread each, which all share the searcher."""

    def do_GET(self) -> None:
        """Answer in JSON."""
        try:
            status, found = 200, json.dumps(answer(parse_qs(urlsplit(self.path).query)))
        except (KeyError, ValueError, LightirError) as error:
            status, found = 400, json.dumps({"error": str(error)})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(found.encode())


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"http://127.0.0.1:{server.server_port}/?q=", flush=True)
server.serve_forever()
