"""Bytes per document of indexes of real collections by words, from which `lightir size` computes other sizes.

Each collection becomes an index twice: with whole documents, and split into passages. Nothing is encoded, since the
bytes of vectors follow from their width. The output is the part "disk" of src/lightir/index/measurements.json.
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.contract import Contract
from lightir.data import read_documents
from lightir.index import IndexOptions, PassageOptions, build_index, document_shards
from lightir.index.passages.lengths import counter
from lightir.provenance import provenance
from lightir.text import TextTokenizer

SMALLEST = "{data}/tiny --model {model}"


def main() -> None:
    """Build the indexes and print their bytes as JSON."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("collections", nargs="+", type=Path, help="BEIR folders")
    parser.add_argument("--model", default="minilm", help="model whose tokenizer counts tokens, and whose limit splits")
    args = parser.parse_args()
    folder = resolve_model_folder(args.model)
    rows = [measured(collection, folder) for collection in args.collections]
    print(json.dumps({"provenance": provenance(), "model": args.model, "collections": rows}, indent=1))


def measured(collection: Path, model: Path) -> dict[str, Any]:
    """Return counts and bytes of a collection's two indexes."""
    contract = Contract.load(model)
    count = counter(contract, TextTokenizer.from_file(model / "tokenizer.json"))
    texts = [document.full_text(contract.document.title_joiner) for document in read_documents(collection)]
    row: dict[str, Any] = {"name": collection.name, "documents": len(texts), "tokens": sum(count(texts))}
    for name, passages in (("whole", None), ("passages", PassageOptions())):
        with tempfile.TemporaryDirectory() as parent:
            out = Path(parent, "index")
            options = IndexOptions(passages=passages)
            info = build_index(
                document_shards(read_documents(collection)),
                out,
                contract=contract,
                query_encoder=model / QUERY_ENCODER,
                options=options,
                progress=False,
            )
        # Nothing is encoded, so every document and every passage is pending.
        row[name] = {"rows": info.pending, "tokens": info.bytes["tokens"], "store": info.bytes["store"]}
    return row


if __name__ == "__main__":
    main()
