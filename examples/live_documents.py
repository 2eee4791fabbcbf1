"""Change documents while they are searched. Argument: the name of an installed model, e.g. minilm.

New documents are found by BM25 as soon as they are added, and by their vectors once a worker has encoded them.
"""

import sys

from lightir import Document, Index, IndexWriter, Searcher, SearchOptions, encode_pending
from lightir.pending import WorkOptions

model = sys.argv[1]
tickets = [
    Document("t1", "The printer on the second floor is out of paper.", metadata={"state": "open", "year": 2026}),
    Document("t2", "A laptop does not start after the update.", metadata={"state": "open", "year": 2026}),
    Document("t3", "New chairs for the meeting room.", metadata={"state": "closed", "year": 2025}),
]


def show(title: str) -> None:
    """Print the best open tickets for a query at this moment."""
    with Index.open("tickets") as index:
        still_open = SearchOptions(filter={"state": "open"})
        pending, hits = index.info().pending, Searcher(index).hits("computer will not start", options=still_open)
    print(f"{title}: {[hit.doc_id for hit in hits]}, {pending} pending")


with IndexWriter.create("tickets", query_encoder=model, overwrite=True) as writer:
    writer.add(tickets)
show("by their words")

encode_pending("tickets", model, options=WorkOptions(once=True))  # or `lightir worker tickets` beside your service
show("with vectors")

with IndexWriter.open("tickets") as writer:
    solved = Document("t2", "A laptop does not start. Solved.", metadata={"state": "closed", "year": 2026})
    writer.upsert([solved])
    writer.delete_where({"year": {"lt": 2026}})
show("after a change")
