"""Start of a fit: the rows of a table that was fitted before to the same document encoder."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.addresses import QUERY_ENCODER, resolve_local, resolve_query_encoder, shipped_models
from lightir.contract import FILE_NAME, Contract, require_same_documents
from lightir.errors import ContractMismatch, InvalidInput
from lightir.query import CachedQueryEncoder
from lightir.query.bigrams import Bigrams
from lightir.text import QueryPolicy
from lightir.train.distill.fitted_rows import FittedRows

AUTO, TERMS = "auto", "terms"
"""Starts of a fit that are not addresses: a fitted table if there is one, and the terms encoded alone."""


@dataclass(frozen=True, slots=True)
class StartTable:
    """A fitted table that a fit starts from.

    Attributes:
        address: address of its model or query encoder.
        rows: rows of its terms, then of its pairs, and its gate.
        bigrams: its pairs of terms; None if it has none.
        ridged: whether the rows are the result of the ridge regression already.
        word_weight: its weight of documents' own words in an index (`Contract.word_weight`).
    """

    address: str
    rows: FittedRows
    bigrams: Bigrams | None = None
    ridged: bool = False
    word_weight: float = 0.0

    @classmethod
    def of(cls, address: str, encoder: CachedQueryEncoder) -> StartTable:
        """Return the default table of a query encoder, with its bigrams and its gate."""
        weight = encoder.contract.word_weight
        rows = next(iter(encoder.tables.values())).float_rows()
        if encoder.bigrams is None:
            return cls(address, FittedRows(rows, encoder.gate), word_weight=weight)
        both = np.concatenate([rows, encoder.bigrams.table.float_rows()])
        return cls(address, FittedRows(both, encoder.gate), encoder.bigrams.bigrams, word_weight=weight)


def fitted_rows(
    start: Path | str, teacher: str | os.PathLike[str], contract: Contract, policy: QueryPolicy, tokenizer_hash: str
) -> StartTable | None:
    """Return the fitted table that a fit starts from; None for terms encoded alone.

    Args:
        start: query-encoder folder, model folder or name of an installed model; "auto" for the teacher's own fitted
            table, or that of an installed model with the same document encoder, or none; "terms" for none.
        teacher: address of the teacher.
        contract: the teacher's contract.
        policy: policy of the new table's queries.
        tokenizer_hash: hash of their tokenizer.

    Raises:
        NotFound: there is no query encoder at `start`.
        ContractMismatch: the table at `start` belongs to another document encoder.
        InvalidInput: there is no table at `start`, or its queries have other terms.
    """
    if start == TERMS:
        return None
    if start != AUTO:
        encoder = CachedQueryEncoder.load(resolve_query_encoder(start))
        require_same_documents(encoder.contract, contract, names=(str(start), "the teacher"))
        if problem := _problem(encoder, policy, tokenizer_hash):
            raise InvalidInput(f"a fit cannot start from {start}: {problem}")
        return StartTable.of(str(start), encoder)
    for address, folder in _candidates(teacher):
        if _same_documents(Contract.load(folder / QUERY_ENCODER), contract):
            encoder = CachedQueryEncoder.load(folder)
            if not _problem(encoder, policy, tokenizer_hash):
                return StartTable.of(address, encoder)
    return None


def _candidates(teacher: str | os.PathLike[str]) -> Iterator[tuple[str, Path]]:
    """Yield the addresses and folders of models with a fitted table: the teacher, then the installed ones."""
    own = resolve_local(teacher)
    named = {str(teacher): own, **shipped_models()} if own is not None else shipped_models()
    for address, folder in named.items():
        has_table = (folder / FILE_NAME).is_file() and (folder / QUERY_ENCODER).is_dir()
        if has_table and Contract.load(folder).method == "distilled":
            yield address, folder


def _same_documents(one: Contract, other: Contract) -> bool:
    """Return whether two contracts have the same document encoder, wherever its folder lies."""
    try:
        require_same_documents(one, other, names=("the table", "the teacher"))
    except ContractMismatch:
        return False
    return True


def _problem(encoder: CachedQueryEncoder, policy: QueryPolicy, tokenizer_hash: str) -> str:
    """Return why a fit cannot start from an encoder's table; "" if it can."""
    if not encoder.tables:
        return "it has no table"
    if encoder.tokenizer.hash != tokenizer_hash:
        return "its tokenizer is another"
    if _without_fit(encoder.contract.query) != _without_fit(policy):
        return "its queries have another policy"
    return ""


def _without_fit(policy: QueryPolicy) -> QueryPolicy:
    """Return the policy without what only a fit adds."""
    return dataclasses.replace(policy, bigrams="", gate="")
