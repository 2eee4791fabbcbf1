"""Small objects that many tests need."""

from __future__ import annotations

import dataclasses

from lightir.contract import BackboneRecord, Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.text import QueryPolicy


def make_contract(**changes: object) -> Contract:
    """Return a contract of width 8 over a vocabulary of 1,000 terms with some fields changed."""
    backbone = BackboneRecord("org/model", "causal", "w", "", "t", vocab_size=1000, hidden_size=8)
    contract = Contract("lightretriever", backbone, QueryPolicy("find it"), DocumentPolicy(), DenseHead(), SparseHead())
    return dataclasses.replace(contract, **changes)
