"""Encoding with rounded layers: quality, memory and speed of each quantiser beside bfloat16 and float32.

    lightir bench quantized -- --model smollm2-135m --data DATA cranfield
    lightir bench quantized -- --model minilm --data DATA scifact nfcorpus cranfield

Each variant encodes the whole data sets; queries are the model's own light ones, which no quantiser touches. Seconds
are of the processor, so that what else the machine does matters less. A line of JSON each: bytes of the layers'
weights, documents a second, the mean cosine to the first variant's dense vectors, and nDCG@10 of each mode and set.
"""

from __future__ import annotations

import argparse
import json
import os
import tempfile
from pathlib import Path

import numpy as np
import torch

from lightir.addresses import resolve_model_folder
from lightir.data import Dataset
from lightir.encode import cache_vocabulary, encode_corpus
from lightir.encode.documents import QUERY_ENCODER
from lightir.index import Index, build_index
from lightir.models.encoder import LightRetriever
from lightir.models.quantization import QUANTIZERS, quantize_layers
from lightir.search import Searcher
from lightir.search.evaluate import evaluate_index
from lightir.shards import VectorsReader

VARIANTS = {"float32": ("fp32", None), "bfloat16": ("bf16", None)} | {
    f"{kind} of {dtype}": (short, kind)
    for kind in QUANTIZERS
    for dtype, short in (("bfloat16", "bf16"), ("float32", "fp32"))
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> int:
    """Encode, search, measure."""
    args = arguments()
    torch.set_num_threads(args.threads)
    base: dict[str, np.ndarray] = {}
    with tempfile.TemporaryDirectory() as work:
        queries = Path(work) / QUERY_ENCODER
        folder = resolve_model_folder(args.model)
        if (folder / QUERY_ENCODER).is_dir():
            queries = folder / QUERY_ENCODER
        else:
            cache_vocabulary(folder, queries)
        for name in args.variants:
            line = measured(args, Path(work), queries, name, base)
            print(json.dumps({"model": args.model, "variant": name, **line}), flush=True)
    return 0


def arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="BEIR folders inside DATA")
    parser.add_argument("--data", type=Path, required=True, help="the folder of the data sets")
    parser.add_argument("--model", default="smollm2-135m", help="a shipped model's name or a model folder")
    parser.add_argument("--variants", nargs="+", choices=list(VARIANTS), default=list(VARIANTS), metavar="NAME")
    parser.add_argument("--threads", type=int, default=1, help="of torch (default %(default)s)")
    return parser.parse_args()


def measured(
    args: argparse.Namespace, work: Path, queries: Path, name: str, base: dict[str, np.ndarray]
) -> dict[str, object]:
    """One variant on all data sets."""
    dtype, kind = VARIANTS[name]
    model = LightRetriever.load(args.model, dtype=DTYPES[dtype])
    if kind:
        quantize_layers(model.backbone, kind)
    seconds, documents, cosines = 0.0, 0, []
    quality: dict[str, dict[str, float]] = {}
    for dataset in args.datasets:
        vectors, opened = work / f"{name}-{dataset}", Dataset.open(args.data / dataset)
        before = sum(os.times()[:4])
        documents += encode_corpus(model, opened.corpus(), vectors, compile=False).documents
        seconds += sum(os.times()[:4]) - before
        reader = VectorsReader(vectors)
        dense = np.concatenate([shard.dense for shard in reader if shard.dense is not None]).astype(np.float32)
        cosines.append((dense * base.setdefault(dataset, dense)).sum(1))
        build_index(reader, vectors / "index", contract=reader.contract, query_encoder=queries, analyzer=None)
        with Index.open(vectors / "index") as index:
            report = evaluate_index(Searcher(index), opened, measures=["nDCG@10"])
        quality[dataset] = {mode: round(found.measures["nDCG@10"], 4) for mode, found in report.systems.items()}
    return {
        "layers_mb": round(layer_bytes(model) / 1e6, 1),
        "documents_per_cpu_s": round(documents / seconds, 2),
        "mean_cosine": round(float(np.concatenate(cosines).mean()), 4),
        "nDCG@10": quality,
    }


def layer_bytes(model: LightRetriever) -> int:
    """Bytes of the linear layers' weights as they are stored, scales included."""
    layers = (module for module in model.backbone.model.modules() if isinstance(module, torch.nn.Linear))
    return sum(stored_bytes(layer.weight) for layer in layers)


def stored_bytes(weight: torch.Tensor) -> int:
    """Of a plain tensor, or of the tensors inside a quantised one."""
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.numel() * weight.element_size()
    return sum(stored_bytes(getattr(weight, name)) for name in weight.__tensor_flatten__()[0])


if __name__ == "__main__":
    raise SystemExit(main())
