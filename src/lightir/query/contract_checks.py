"""Checks that the parts of a query encoder match its contract; each raises InvalidInput or ContractMismatch."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from lightir.contract import Contract
from lightir.errors import ContractMismatch, InvalidInput
from lightir.query.expansions import CachedExpansions
from lightir.query.gate import CachedGate
from lightir.query.tables import CachedBigrams, CachedTable
from lightir.text import TextTokenizer
from lightir.vectors import Floats


def check_tokenizer(contract: Contract, tokenizer: TextTokenizer) -> None:
    """Check that the tokenizer is the one of the query policy, or else of the backbone."""
    expected = contract.query.tokenizer or contract.backbone.tokenizer_hash
    if tokenizer.hash != expected:
        raise ContractMismatch(
            f"the tokenizer has hash {tokenizer.hash!r}, but the contract requires {expected!r}; "
            "use the tokenizer.json that the model was trained with"
        )


def check_tables(contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable]) -> None:
    """Check that tables exist for a dense branch only, have equal widths, and a row for every term."""
    if (contract.dense is None) != (not tables):
        raise InvalidInput(
            f"{len(tables)} tables, but the contract has {'no' if contract.dense is None else 'a'} dense branch"
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
    """Check that there is one weight per term if the policy's term_weights are "idf", and otherwise none."""
    required = contract.query.term_weights == "idf"
    if required != (weights is not None):
        raise InvalidInput(
            f"the contract requires {'stored' if required else 'no'} term weights, "
            f"but they were {'not ' if weights is None else ''}given"
        )
    if weights is None:
        return
    vocab_size = contract.backbone.vocab_size
    if weights.shape != (vocab_size,) or weights.dtype != np.float32:
        raise ContractMismatch(
            f"term weights are {weights.dtype} of shape {weights.shape}, "
            f"but the contract's vocabulary requires float32 of ({vocab_size},)"
        )
    if not np.all(np.isfinite(weights)) or np.any(weights < 0):
        raise InvalidInput("term weights must be finite and not negative")


def check_expansions(contract: Contract, tokenizer: TextTokenizer, expansions: CachedExpansions | None) -> None:
    """Check that there is one expansion per term if the policy's weighting is "expansion", and otherwise none."""
    required = contract.query.weighting == "expansion"
    if required != (expansions is not None):
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
        raise ContractMismatch(
            f"an expansion contains term id {largest}, but the contract's vocabulary has {vocab_size} terms"
        )


def check_bigrams(
    contract: Contract, tokenizer: TextTokenizer, tables: Mapping[str, CachedTable], bigrams: CachedBigrams | None
) -> None:
    """Check that the bigrams are those of the policy, and that their rows are as wide as the table's."""
    bigrams_hash = "" if bigrams is None else bigrams.bigrams.hash
    if bigrams_hash != contract.query.bigrams:
        raise ContractMismatch(
            f"the bigrams have hash {bigrams_hash!r}, but the contract's query policy has {contract.query.bigrams!r}"
        )
    if bigrams is None:
        return
    if len(tables) != 1:
        raise InvalidInput(f"bigrams require exactly one table, but there are {len(tables)}")
    (table,) = tables.values()
    if bigrams.table.dim != table.dim:
        raise InvalidInput(f"the bigrams' rows are {bigrams.table.dim} wide, the terms' {table.dim}")
    pairs = bigrams.bigrams.pairs
    terms = np.concatenate([pairs[: bigrams.bigrams.n_pairs, 0], pairs[:, 1]])
    if (largest := int(terms.max(initial=0))) >= tokenizer.vocab_size:
        raise ContractMismatch(
            f"a bigram contains term id {largest}, but the tokenizer has {tokenizer.vocab_size} terms"
        )


def check_gate(
    contract: Contract, tables: Mapping[str, CachedTable], bigrams: CachedBigrams | None, gate: CachedGate | None
) -> None:
    """Check that the gate is the one of the policy, and that it has a row for each row of the table and of bigrams."""
    gate_hash = "" if gate is None else gate.hash
    if gate_hash != contract.query.gate:
        raise ContractMismatch(
            f"the gate has hash {gate_hash!r}, but the contract's query policy has {contract.query.gate!r}"
        )
    if gate is None:
        return
    if len(tables) != 1:
        raise InvalidInput(f"a gate requires exactly one table, but there are {len(tables)}")
    (table,) = tables.values()
    n_bigrams = 0 if bigrams is None else len(bigrams.bigrams)
    if len(gate) != len(table.embeddings) + n_bigrams:
        raise InvalidInput(
            f"the gate has {len(gate)} rows, but the table has {len(table.embeddings)} and its bigrams {n_bigrams}"
        )
