"""Encoding with rounded layers: quality, memory and speed of each quantiser beside bfloat16 and float32.

    lightir bench quantized --model smollm2-135m --data DATA cranfield
    lightir bench quantized --model minilm --data DATA scifact nfcorpus cranfield
    lightir bench quantized --model smollm2-135m --data DATA --queries 100 --documents 800 scifact nfcorpus

Each variant encodes the whole data sets, or with --queries and --documents a sample: that many test queries, all of
their relevant documents, and random others. Queries are the model's own light ones, which are never quantized. All
variants together need the extras quantize and nf4. Times are CPU seconds, so that other work on the machine matters
less. The output is a line of JSON per variant: bytes of the layers' weights, documents per second, mean cosine to the
first variant's dense vectors, nDCG@10 by mode and set, and the p-value of its difference to the first variant (paired
randomisation test, not corrected).
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import torch

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.data import Dataset
from lightir.encode import EncodeOptions, cache_vocabulary, encode_corpus
from lightir.errors import MissingExtra
from lightir.eval.significance import randomization_test
from lightir.index import Index, IndexOptions, build_index
from lightir.models.encoder import LightRetriever
from lightir.models.quantization import QUANTIZERS, quantize_layers
from lightir.provenance import provenance
from lightir.search import Searcher
from lightir.search.index_evaluation import evaluate_index
from lightir.shards import VectorsReader
from lightir.train.stages.development import load_development
from own_process import cpu_seconds

SMALLEST = "--data {data} tiny --model {model}"
VARIANTS = {"float32": ("fp32", None), "bfloat16": ("bf16", None)} | {
    f"{kind} of {dtype}": (short, kind)
    for kind in QUANTIZERS
    for dtype, short in (("bfloat16", "bf16"), ("float32", "fp32"))
}
DTYPES = {"fp32": torch.float32, "bf16": torch.bfloat16}


def main() -> int:
    """Encode, search, measure."""
    args = arguments()
    print(json.dumps({"provenance": provenance()}), flush=True)
    torch.set_num_threads(args.threads)
    first: dict[str, Any] = {}
    with tempfile.TemporaryDirectory() as work:
        datasets = [opened(args, Path(work), name) for name in args.datasets]
        queries = Path(work) / QUERY_ENCODER
        folder = resolve_model_folder(args.model)
        if (folder / QUERY_ENCODER).is_dir():
            queries = folder / QUERY_ENCODER
        else:
            cache_vocabulary(folder, queries)
        for name in args.variants:
            try:
                line = measured(args, datasets, Path(work), queries, name, first)
            except MissingExtra as error:
                print(f"{name}: left out, {error}")
                continue
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
    parser.add_argument(
        "--queries", type=int, default=0, metavar="N", help="maximum number of test queries (default 0: all)"
    )
    parser.add_argument("--documents", type=int, default=0, metavar="N", help="with --queries: number of documents")
    return parser.parse_args()


def opened(args: argparse.Namespace, work: Path, name: str) -> Dataset:
    """A data set, or a folder with the part of it that is wanted."""
    whole = Dataset.open(args.data / name)
    if not args.queries:
        return whole
    part, folder = load_development(whole, "test", queries=args.queries, documents=args.documents), work / name
    (folder / "qrels").mkdir(parents=True)
    texts = [json.dumps({"_id": d.doc_id, "title": d.title, "text": d.text}) + "\n" for d in part.documents]
    (folder / "corpus.jsonl").write_text("".join(texts))
    asked = [json.dumps({"_id": query.query_id, "text": query.text}) + "\n" for query in part.queries]
    (folder / "queries.jsonl").write_text("".join(asked))
    judged = [
        f"{part.queries[row].query_id}\t{part.documents[column].doc_id}\t{int(part.grades[row, column])}\n"
        for row, column in zip(*part.grades.nonzero(), strict=True)
    ]
    (folder / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\n" + "".join(judged))
    return Dataset.open(folder)


def measured(
    args: argparse.Namespace,
    datasets: list[Dataset],
    work: Path,
    queries: Path,
    name: str,
    first: dict[str, Any],
) -> dict[str, object]:
    """One variant on all data sets; `first` keeps the first one's vectors and values."""
    dtype, kind = VARIANTS[name]
    model = LightRetriever.load(args.model, dtype=DTYPES[dtype])
    if kind:
        quantize_layers(model.backbone, kind)
    seconds, documents, cosines = 0.0, 0, []
    quality: dict[str, dict[str, float]] = {}
    chance: dict[str, dict[str, float]] = {}
    for dataset in datasets:
        vectors = work / f"{name}-{dataset.name}"
        before = cpu_seconds()
        documents += encode_corpus(model, dataset.corpus(), vectors, options=EncodeOptions(compile=False)).documents
        seconds += cpu_seconds() - before
        reader = VectorsReader(vectors)
        dense = np.concatenate([shard.dense for shard in reader if shard.dense is not None]).astype(np.float32)
        cosines.append((dense * first.setdefault(f"{dataset.name} vectors", dense)).sum(1))
        build_index(
            reader,
            vectors / "index",
            contract=reader.contract,
            query_encoder=queries,
            options=IndexOptions(analyzer=None),
        )
        with Index.open(vectors / "index") as index:
            report = evaluate_index(Searcher(index), dataset, measures=["nDCG@10"])
        systems = report.systems.items()
        quality[dataset.name] = {mode: round(evaluation.measures["nDCG@10"], 4) for mode, evaluation in systems}
        values = {mode: list(evaluation.per_query["nDCG@10"].values()) for mode, evaluation in systems}
        reference = first.setdefault(f"{dataset.name} values", values)
        chance[dataset.name] = {
            mode: round(randomization_test(mine, reference[mode], rng=np.random.default_rng(0)), 4)
            for mode, mine in values.items()
        }
    return {
        "layers_mb": round(layer_bytes(model) / 1e6, 1),
        "documents_per_cpu_s": round(documents / seconds, 2),
        "mean_cosine": round(float(np.concatenate(cosines).mean()), 4),
        "nDCG@10": quality,
        "p": chance,
    }


def layer_bytes(model: LightRetriever) -> int:
    """Bytes of the linear layers' weights as they are stored, scales included."""
    layers = (module for module in model.backbone.model.modules() if isinstance(module, torch.nn.Linear))
    return sum(stored_bytes(layer.weight) for layer in layers)


def stored_bytes(weight: torch.Tensor) -> int:
    """Return the bytes of a plain tensor, or of the tensors inside a quantized one."""
    if (state := getattr(weight, "quant_state", None)) is not None:  # bitsandbytes'
        scales = [state.absmax, *([state.state2.absmax] if state.nested else [])]
        return sum(tensor.numel() * tensor.element_size() for tensor in (weight.data, *scales))
    if not hasattr(weight, "__tensor_flatten__"):
        return weight.numel() * weight.element_size()
    return sum(stored_bytes(getattr(weight, name)) for name in weight.__tensor_flatten__()[0])


if __name__ == "__main__":
    raise SystemExit(main())
