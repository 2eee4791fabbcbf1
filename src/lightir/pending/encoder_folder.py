"""The folder of the model that encodes an index's pending documents, looked up without torch."""

from __future__ import annotations

import os
from pathlib import Path

from lightir.addresses import resolve_model_folder, shipped_models
from lightir.contract import Contract, refuse_external, require_same_documents
from lightir.errors import InvalidInput, NotFound
from lightir.index import Index


def encoder_folder(index: Index, model: str | os.PathLike[str] | None = None) -> Path:
    """Return the folder of a model whose document side is that of an index.

    Args:
        index: index with a model's contract.
        model: model folder or name of a shipped model; None for the installed model that fits the index.

    Raises:
        InvalidInput: the index has no contract, or its documents are encoded outside lightir.
        NotFound: there is no such model, or no model is named and no installed one fits.
        ContractMismatch: the named model does not fit; each differing field with both values.
    """
    contract = index.contract
    if contract is None:
        raise InvalidInput(
            f"{index.folder} has no model's contract, so its documents cannot get vectors; "
            "build it with `lightir index CORPUS --model MODEL`"
        )
    refuse_external(contract, str(index.folder))
    if model is None:
        return _shipped_for(contract)
    folder = resolve_model_folder(model)
    require_same_documents(contract, Contract.load(folder), names=("the index", "the model"))
    return folder


def _shipped_for(contract: Contract) -> Path:
    shipped = shipped_models()
    for folder in shipped.values():
        if Contract.load(folder).document_fingerprint == contract.document_fingerprint:
            return folder
    raise NotFound(
        f"no installed model has the document side {contract.document_fingerprint} of the index (method "
        f"{contract.method}, backbone {contract.backbone.address}; installed: {', '.join(shipped) or 'none'}); "
        "name its folder with --model"
    )
