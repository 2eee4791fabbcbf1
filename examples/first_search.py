"""Semantic search in seven lines: encode, index, search. Argument: the name of an installed model, e.g. minilm."""

import sys

from lightir import Document, Index, Searcher, build_index, encode_corpus

texts = {"timer": "Call a function after some seconds.", "thread": "Run a function in the background."}
encode_corpus(sys.argv[1], [Document(doc_id, text) for doc_id, text in texts.items()], "vectors")
build_index("vectors", "index")
for hit in Searcher(Index.open("index")).hits("do work behind the scenes", k=2):
    print(f"{hit.score:.3f}  {hit.doc_id}  {hit.snippet}")
