"""Data sets small enough to train on in seconds."""

from __future__ import annotations

import json
from pathlib import Path

TOPICS = (
    "river",
    "engine",
    "planet",
    "bread",
    "piano",
    "forest",
    "bridge",
    "winter",
    "copper",
    "island",
    "mirror",
    "candle",
)


def write_dataset(folder: Path, prefix: str) -> Path:
    """Write a BEIR folder with one document, three train queries and one dev query per topic."""
    (folder / "qrels").mkdir(parents=True)
    documents, queries, qrels = [], [], {"train": [], "dev": []}
    for topic in TOPICS:
        documents.append({"_id": f"{prefix}-{topic}", "title": topic, "text": f"{prefix} text about the {topic} alone"})
        for number, split in enumerate(("train", "train", "train", "dev")):
            query_id = f"{topic}-{number}"
            queries.append({"_id": query_id, "text": f"{prefix} {topic} " + "abcd"[number] * 4})
            qrels[split].append(f"{query_id}\t{prefix}-{topic}\t1")
    for name, records in (("corpus", documents), ("queries", queries)):
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(r) + "\n" for r in records))
    for split, lines in qrels.items():
        (folder / "qrels" / f"{split}.tsv").write_text("\n".join(["query-id\tcorpus-id\tscore", *lines]) + "\n")
    return folder
