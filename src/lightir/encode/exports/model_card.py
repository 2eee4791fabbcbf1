"""Cards of models for the Hugging Face hub: what a model is, and how it is used, from its contract."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from lightir.addresses import PYPI_PREFIX, QUERY_ENCODER, REVISION_MARK, hub_name
from lightir.contract import Contract
from lightir.query.encoder_files import load_tables
from lightir.version import __version__

PARTS = {"dense": "dense vectors", "sparse": "learned sparse vectors"}


def model_card(folder: Path, repository: str, *, license: str | None = None) -> str:
    """Return the text of README.md for a model folder in a repository of the hub.

    Args:
        folder: model folder.
        repository: name of the repository, OWNER/NAME.
        license: identifier of the license, such as apache-2.0; None to name none.
    """
    contract = Contract.load(folder)
    name = repository.partition("/")[2]
    branches = [words for branch, words in PARTS.items() if getattr(contract, branch) is not None]
    lines = [
        _front_matter(contract, license),
        f"# {name}",
        "",
        f"A retrieval model of [lightir](https://pypi.org/project/lightir/): {' and '.join(branches)} of documents by "
        f"the model, queries {_queries(folder, contract)}.",
        "",
        "```",
        "pip install 'lightir[train]'",
        f"lightir download {repository} --out {name}",
        f"lightir encode {name} documents/ --out vectors",
        "lightir index vectors --out index",
        'lightir search index "how do I reset it?"',
        "```",
        "",
        "| | |",
        "|---|---|",
        *(f"| {key} | {value} |" for key, value in _facts(contract).items()),
        "",
        f"Written by lightir {__version__} from the model's contract, `lightir.json`. "
        "It has no results: add those that were measured.",
        "",
    ]
    return "\n".join(lines)


def _front_matter(contract: Contract, license: str | None) -> str:
    """Return the metadata that the hub reads; JSON strings are valid YAML."""
    fields: dict[str, Any] = {"library_name": "lightir", "pipeline_tag": "feature-extraction"}
    fields["tags"] = ["lightir", "retrieval", *(branch for branch in PARTS if getattr(contract, branch) is not None)]
    if license is not None:
        fields["license"] = license
    address = contract.backbone.address
    if address.count("/") == 1 and not address.startswith((".", "/", "~", PYPI_PREFIX)):
        fields["base_model"] = hub_name(address)[0]
    return "\n".join(["---", *(f"{key}: {json.dumps(value)}" for key, value in fields.items()), "---", ""])


def _queries(folder: Path, contract: Contract) -> str:
    """Describe how queries are encoded."""
    if not (folder / QUERY_ENCODER).is_dir():
        return "by the model"
    tables = load_tables(folder / QUERY_ENCODER)
    if not tables:
        return "as counted terms, without a model"
    extra = ["rows for pairs of terms"] if contract.query.bigrams else []
    extra += ["a gate"] if contract.query.gate else []
    having = f" with {' and '.join(extra)}" if extra else ""
    return f"by a table of {len(next(iter(tables.values())).embeddings):,} terms{having}, without a model"


def _facts(contract: Contract) -> dict[str, str]:
    """Return the table of the card."""
    backbone, dense, sparse = contract.backbone, contract.dense, contract.sparse
    facts = {
        "method": contract.method,
        "base model" + (" and commit" if REVISION_MARK in backbone.address else ""): f"`{backbone.address}`",
        "weights (hash)": f"`{backbone.weights_hash}`",
        "fingerprint of the contract": f"`{contract.fingerprint}`",
        "maximum length of documents": f"{contract.document.max_tokens} tokens",
    }
    if dense is not None:
        widths = ", ".join(map(str, dense.dims or (backbone.hidden_size,)))
        facts["dense vectors"] = f"{widths} dimensions, pooling {dense.pooling}, {dense.similarity}"
    if sparse is not None:
        facts["sparse vectors"] = f"{backbone.vocab_size:,} terms, at most {sparse.top_k or 'all'} per document"
    if contract.query.instruction:
        facts["instruction"] = contract.query.instruction.replace("|", "\\|").replace("\n", " ")
    return facts
