"""lightir in ten lines: documents meet the model once, queries meet none. Takes the model's name as an argument."""

import sys

from lightir.encode import encode_corpus
from lightir.index import Index, build_index
from lightir.search import Searcher
from lightir.shards import VectorsReader
from lightir.types import Document

texts = {"timer": "Call a function after some seconds.", "thread": "Run a function in the background."}
encode_corpus(sys.argv[1], [Document(doc_id, text) for doc_id, text in texts.items()], "vectors")
vectors = VectorsReader("vectors")
build_index(vectors, "index", contract=vectors.contract, query_encoder="vectors/query-encoder")
for hit in Searcher(Index.open("index")).hits("do work behind the scenes", k=2):
    print(f"{hit.score:.3f}  {hit.doc_id}  {hit.snippet}")
