"""Encoding of a model's vocabulary into query tables, one per instruction (LightRetriever, section 3.1).

For sparse queries with the weighting "expansion", the strongest terms of each term are cached in the same way.
"""

from __future__ import annotations

import dataclasses
import logging
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.data import instructions as listed_instructions
from lightir.encode.query_encoder import QueryEncoderArrays, QueryTable, TableDtype, write_query_encoder
from lightir.errors import InvalidInput
from lightir.models.encoder import LightRetriever
from lightir.progress import Progress
from lightir.query import CachedExpansions
from lightir.vectors import Floats

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class TableOptions:
    """Instructions and shape of the query tables of a model.

    Attributes:
        tasks: names of known tasks (`lightir.data.task_names`); each table is stored under its task's name.
        instructions: instructions as text; each table is stored under the text. Without tasks and instructions there
            is one table, of the model's own instruction, under "". The first table is the default. Expansions support
            one instruction.
        dim: width of the tables, at most the model's; None is the model's. Stored rows are cut, since normalization
            follows the mean.
        dtype: dtype of the stored rows; expansions support "fp16" and "fp32".
        batch: number of terms of a forward pass.
    """

    tasks: Sequence[str] = ()
    instructions: Sequence[str] = ()
    dim: int | None = None
    dtype: TableDtype = "fp16"
    batch: int = 1024


DEFAULT_OPTIONS = TableOptions()


def cache_vocabulary(
    model: LightRetriever | str | os.PathLike[str],
    out: Path | str | None = None,
    *,
    options: TableOptions = DEFAULT_OPTIONS,
    device: str = "auto",
    overwrite: bool = False,
) -> Path:
    """Encode a model's vocabulary into a query-encoder/ folder and return its path.

    Args:
        model: loaded model, model folder, or name of a shipped model.
        out: folder to write; None is query-encoder/ in the model's folder.
        options: instructions and shape of the tables.
        device: torch device; "auto" is a GPU if there is one, else the CPU. Must be "auto" for a loaded model.
        overwrite: replace an existing folder.

    Raises:
        InvalidInput: a width above the model's, no out folder for a loaded model, instructions or a dtype that the
            model's kind of queries does not support, or a missing device.
        AlreadyExists: the folder exists and overwrite is off.
    """
    retriever, own_folder = _load(model, device)
    folder = own_folder if out is None else Path(out)
    if folder is None:
        raise InvalidInput("a loaded model has no folder: pass `out`, the folder of the query encoder")
    named = [(task, listed_instructions(task)[0]) for task in options.tasks]
    named += [(text, text) for text in options.instructions]
    fitted = retriever.contract
    # Bigrams and a gate belong to a fitted table, whose place the new one takes.
    contract = dataclasses.replace(fitted, query=dataclasses.replace(fitted.query, bigrams="", gate=""))
    tables, expansions = [], None
    if contract.query.weighting == "expansion":
        instruction = _only_instruction(named, contract.query.instruction)
        contract = dataclasses.replace(contract, query=dataclasses.replace(contract.query, instruction=instruction))
        expansions = cached_expansions(retriever, instruction=instruction, dtype=options.dtype, batch=options.batch)
    elif named and contract.dense is None:
        raise InvalidInput("this model's queries are counted terms: they have no table, and no instruction applies")
    if contract.dense is not None:
        for task, instruction in named or [("", contract.query.instruction)]:
            rows = cached_table(retriever, instruction=instruction, dim=options.dim, batch=options.batch)
            tables.append(QueryTable(task, instruction, rows))
    arrays = QueryEncoderArrays(tables, stored_term_weights(retriever), expansions)
    tokenizer = retriever.backbone.tokenizer
    write_query_encoder(folder, contract, tokenizer, arrays, dtype=options.dtype, overwrite=overwrite)
    return folder


def _load(model: LightRetriever | str | os.PathLike[str], device: str) -> tuple[LightRetriever, Path | None]:
    """Return the loaded model and the default folder of its query encoder, None for a model that was passed loaded."""
    if not isinstance(model, LightRetriever):
        folder = resolve_model_folder(model)
        return LightRetriever.load(str(folder), device=device), folder / QUERY_ENCODER
    if device != "auto":
        raise InvalidInput("a loaded model stays on its device; pass its folder to choose another")
    return model, None


def stored_term_weights(model: LightRetriever) -> Floats | None:
    """Return the weight of each term in sparse queries, (V,) float32, if the query policy's is "idf"; else None."""
    weights = model.heads.term_weights
    if model.contract.query.term_weights != "idf" or weights is None:
        return None
    return np.asarray(weights.float().cpu().numpy(), dtype=np.float32)


def _only_instruction(named: Sequence[tuple[str, str]], own: str) -> str:
    if len(named) > 1:
        raise InvalidInput(f"expansions support one instruction, but {len(named)} were named; write a folder for each")
    return named[0][1] if named else own


@torch.no_grad()
def cached_expansions(
    model: LightRetriever, *, instruction: str | None = None, dtype: TableDtype = "fp16", batch: int = 1024
) -> CachedExpansions:
    """Return the strongest terms of V(Inst; t) for every term id t of the tokenizer, always including t itself.

    Their number is the query policy's expansion_terms; ids ascend in each row. The prompt's keys and values are
    computed once.

    Args:
        model: model with a sparse branch.
        instruction: instruction in the prompt; None is the contract's.
        dtype: dtype of the weights, "fp16" or "fp32".
        batch: number of terms of a forward pass.
    """
    if dtype not in ("fp16", "fp32"):
        raise InvalidInput(f"expansions are stored as 'fp16' or 'fp32', not {dtype!r}")
    n_terms, width = model.backbone.tokenizer.vocab_size, model.contract.query.expansion_terms
    width = min(width, model.backbone.vocab_size)
    cache = model.prompt_cache(instruction=instruction)
    term_ids = np.empty((n_terms, width), dtype=np.uint32)
    weights = np.empty((n_terms, width), dtype=np.float16 if dtype == "fp16" else np.float32)
    with Progress("cache", unit="term", total=n_terms) as bar:
        for start in range(0, n_terms, batch):
            ids = torch.arange(start, min(start + batch, n_terms))
            terms, values = model.token_expansions(ids, instruction=instruction, cache=cache)
            terms, order = terms.sort(dim=1)
            term_ids[start : start + batch] = terms.cpu().numpy().astype(np.uint32)
            weights[start : start + batch] = values.gather(1, order).float().cpu().numpy()
            bar.update(len(ids))
    return CachedExpansions(term_ids, weights)


@torch.no_grad()
def cached_table(
    model: LightRetriever, *, instruction: str | None = None, dim: int | None = None, batch: int = 1024
) -> Floats:
    """Return E[t] = Enc_q(Inst; t) for every term id t of the tokenizer: (V, dim) float32, not normalized.

    The prompt's keys and values are computed once. Eq. 6 normalizes after the mean, so cutting the rows to a Matryoshka
    width equals cutting the mean.

    Args:
        model: model with light queries.
        instruction: instruction in the prompt; None is the contract's.
        dim: width of the rows; None is the model's.
        batch: number of terms of a forward pass.

    Raises:
        InvalidInput: a width above the model's, or a batch below 1.
    """
    trained = model.contract.dense.dims if model.contract.dense is not None else ()
    width = dim or (trained[0] if trained else model.backbone.hidden_size)
    if batch < 1 or not 1 <= width <= (trained[0] if trained else model.backbone.hidden_size):
        raise InvalidInput(f"dim is {dim} and batch {batch}; the model's vectors have {trained or 'all'} dimensions")
    if warning := model.contract.width_warning(width):
        logger.warning("dim: %s", warning)
    n_terms = model.backbone.tokenizer.vocab_size
    cache = model.prompt_cache(instruction=instruction)
    table = np.empty((n_terms, width), dtype=np.float32)
    with Progress("cache", unit="term", total=n_terms) as bar:
        for start in range(0, n_terms, batch):
            ids = torch.arange(start, min(start + batch, n_terms))
            rows = model.token_vectors(ids, instruction=instruction, cache=cache)
            table[start : start + batch] = rows[:, :width].float().cpu().numpy()
            bar.update(len(ids))
    return table
