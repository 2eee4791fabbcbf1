"""Search an index over HTTP with the standard library: /?q=kettle&k=3. Arguments: index folder and port."""

import json
import sys
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from urllib.parse import parse_qs, urlsplit

from lightir import Index, LightirError, Searcher, SearchOptions

index = Index.open(sys.argv[1])
searcher = Searcher(index)


def answer(parameters: dict[str, list[str]]) -> list[dict[str, object]]:
    """Return the `k` best documents for the query `q`, restricted by a `filter` in JSON."""
    index.refresh()  # to the newest commit
    condition = json.loads(parameters["filter"][0]) if "filter" in parameters else None
    options = SearchOptions(filter=condition, syntax=True)
    hits = searcher.hits(parameters["q"][0], int(parameters.get("k", ["10"])[0]), options)
    return [
        {"id": hit.doc_id, "score": hit.score, "title": hit.title, "snippet": hit.snippet, "metadata": hit.metadata}
        for hit in hits
    ]


class Handler(BaseHTTPRequestHandler):
    """Handler of one request. Every request has its own thread; all threads share the searcher."""

    def do_GET(self) -> None:
        """Respond with hits or an error, as JSON."""
        try:
            status, body = 200, json.dumps(answer(parse_qs(urlsplit(self.path).query)))
        except (KeyError, ValueError, LightirError) as error:
            status, body = 400, json.dumps({"error": str(error)})
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.end_headers()
        self.wfile.write(body.encode())


server = ThreadingHTTPServer(("127.0.0.1", int(sys.argv[2])), Handler)
print(f"http://127.0.0.1:{server.server_port}/?q=", flush=True)
server.serve_forever()
