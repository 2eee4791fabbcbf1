"""Checks that a query encoder's parts are what its contract says; each raises InvalidInput or ContractMismatch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightir.contract import Contract
from lightir.errors import ContractMismatch, InvalidInput
from lightir.query.expansions import CachedExpansions
from lightir.query.tables import CachedBigrams, CachedTable
from lightir.text import TextTokenizer
from lightir.vectors import Floats


def check_tokenizer(contract: Contract, tokenizer: TextTokenizer) -> None:
    """Refuse a tokenizer that is neither the contract's nor the one that the query policy names."""
    expected = contract.query.tokenizer or contract.backbone.tokenizer_hash
    if tokenizer.hash != expected:
        raise ContractMismatch(
            f"the tokenizer has hash {tokenizer.hash!r}, but the contract says {expected!r}; "
            "put the tokenizer.json beside it that the model was trained with"
        )


def check_tables(contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable]) -> None:
    """Refuse tables that lack where there is a dense branch, differ in width, or have no row for some term."""
    if (contract.dense is None) != (not tables):
        raise InvalidInput(
            f"the contract has {'no' if contract.dense is None else 'a'} dense branch, but {len(tables)} tables came"
        )
    if contract.dense is None:
        return
    widest = contract.dense.dims[0] if contract.dense.dims else contract.backbone.hidden_size
    first = next(iter(tables.values())).dim
    for name, table in tables.items():
        if len(table.embeddings) < tokenizer.vocab_size:
            raise ContractMismatch(
                f"table {name!r} has {len(table.embeddings)} rows, but the tokenizer has {tokenizer.vocab_size} terms"
            )
        if table.dim > widest:
            raise ContractMismatch(f"table {name!r} is {table.dim} wide, but the contract's vectors are {widest}")
        if table.dim != first:
            raise InvalidInput(f"table {name!r} is {table.dim} wide, but another is {first}; all must be the same")


def check_term_weights(contract: Contract, weights: Floats | None) -> None:
    """Refuse term weights unless the policy says idf, and then anything but one weight a term."""
    wanted = contract.query.term_weights == "idf"
    if wanted != (weights is not None):
        raise InvalidInput(
            f"the contract wants {'stored' if wanted else 'no'} term weights, "
            f"but they were {'not ' if weights is None else ''}given"
        )
    if weights is None:
        return
    vocab_size = contract.backbone.vocab_size
    if weights.shape != (vocab_size,) or weights.dtype != np.float32:
        raise ContractMismatch(
            f"term weights are {weights.dtype} of shape {weights.shape}, "
            f"but the contract's vocabulary wants float32 of ({vocab_size},)"
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InvalidInput("term weights must be finite and not negative")


def check_expansions(contract: Contract, tokenizer: TextTokenizer, expansions: CachedExpansions | None) -> None:
    """Refuse expansions unless the policy's weighting is "expansion", and then anything but a row for each term."""
    wanted = contract.query.weighting == "expansion"
    if wanted != (expansions is not None):
        raise InvalidInput(
            f"the contract's query weighting is {contract.query.weighting!r}, "
            f"but expansions were {'not ' if expansions is None else ''}given"
        )
    if expansions is None:
        return
    if contract.sparse is None:
        raise InvalidInput("the query weighting is 'expansion', but the contract has no sparse branch")
    if len(expansions) < tokenizer.vocab_size:
        raise ContractMismatch(
            f"there are {len(expansions)} expansions, but the tokenizer has {tokenizer.vocab_size} terms"
        )
    vocab_size = contract.backbone.vocab_size
    if (largest := int(expansions.term_ids.max(initial=0))) >= vocab_size:
        raise ContractMismatch(f"an expansion names term {largest}, but the contract's vocabulary has {vocab_size}")


def check_bigrams(
    contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable], bigrams: CachedBigrams | None
) -> None:
    """Refuse bigrams that the policy does not name, or whose rows are not as wide as the table's."""
    found = "" if bigrams is None else bigrams.bigrams.hash
    if found != contract.query.bigrams:
        raise ContractMismatch(
            f"the bigrams have hash {found!r}, but the contract's query policy says {contract.query.bigrams!r}"
        )
    if bigrams is None:
        return
    if len(tables) != 1:
        raise InvalidInput(f"bigrams belong to one table, but there are {len(tables)}")
    (table,) = tables.values()
    if bigrams.table.dim != table.dim:
        raise InvalidInput(f"the bigrams' rows are {bigrams.table.dim} wide, the terms' {table.dim}")
    if (largest := int(bigrams.bigrams.pairs.max(initial=0))) >= tokenizer.vocab_size:
        raise ContractMismatch(f"a bigram names term {largest}, but the tokenizer has {tokenizer.vocab_size} terms")
