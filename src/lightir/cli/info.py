"""Say what a folder holds: an index, vectors, a model or a query encoder."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json, size, visible
from lightir.errors import NotFound

if TYPE_CHECKING:
    from lightir.contract import Contract, Fusion
    from lightir.index import IndexInfo
    from lightir.types import Branch

HELP = "show what an index, vectors or model folder contains"
EXAMPLES = """
  lightir info index
  lightir info minilm --json
"""
FAILURES_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    parser.add_argument(
        "folder", metavar="FOLDER", help="an index, vectors, model or query-encoder folder, or a model's name"
    )
    add_json(parser)


def run(args: argparse.Namespace) -> None:
    """Print the facts."""
    found = facts(args.folder)
    if args.json:
        print_json(found)
        return
    for name, value in found.items():
        if name in ("bytes", "bytes_per_document"):
            value = ", ".join(f"{part} {size(n_bytes)}" for part, n_bytes in value.items())
        elif name == "failures":
            value = "; ".join(visible(f"{each['doc_id']}: {each['error']}") for each in value[:FAILURES_SHOWN]) or None
        elif isinstance(value, dict):
            value = ", ".join(f"{key} {each}" for key, each in value.items() if not isinstance(each, dict))
        elif isinstance(value, (list, tuple)):
            value = ", ".join(map(str, value))
        print(f"{name:<18} {'-' if value is None else value}")


def kind_of(folder: Path) -> str:
    """ "index", "vectors", "query-encoder" or "model".

    Raises:
        NotFound: the folder is none of them.
    """
    from lightir.contract import FILE_NAME
    from lightir.index.store import STORE_FILE
    from lightir.query.encoder_files import TABLES_FILE
    from lightir.shards import MANIFEST

    marks = {"index": STORE_FILE, "vectors": MANIFEST, "query-encoder": TABLES_FILE, "model": FILE_NAME}
    for kind, name in marks.items():
        if (folder / name).is_file():
            return kind
    if not folder.exists():
        raise NotFound(f"{folder} does not exist; expected an index, vectors, a query encoder or a model")
    raise NotFound(f"{folder} is neither an index nor vectors, a query encoder or a model")


def index_facts(info: IndexInfo, *, n_failed: int) -> dict[str, Any]:
    """Return the counts and sizes of an index, with the number of failed documents and the mean bytes per document."""
    per_document = {part: round(n_bytes / max(info.documents, 1), 1) for part, n_bytes in info.bytes.items()}
    facts: dict[str, Any] = {}
    for name, value in dataclasses.asdict(info).items():
        facts[name] = value
        if name == "pending":
            facts["failed"] = n_failed
        if name == "bytes":
            facts["bytes_per_document"] = per_document
    return facts


def default_search(available: tuple[Branch, ...], contract: Contract | None) -> str:
    """What a search that names no mode does, as "dense=0.5,tokens=0.5 linear"; one branch is its name."""
    from lightir.search.plan import plan

    found = plan(available, contract)
    return fusion_in_words(found.fusion) if len(found.branches) > 1 else found.branches[0]


def fusion_in_words(fusion: Fusion) -> str:
    """Weights and method, as `lightir search --weights` and `--fusion` take them."""
    from lightir.search.options import fusion_text, weights_text

    return f"{weights_text(fusion)} {fusion_text(fusion)}"


def folder_of(address: str) -> Path:
    """The folder that is named, or that of the installed model of this name."""
    from lightir.addresses import shipped_models

    return Path(address) if Path(address).exists() else shipped_models().get(address, Path(address))


def facts(address: str) -> dict[str, Any]:
    """What `--json` prints."""
    from lightir.contract import Contract, to_json

    folder = folder_of(address)
    kind = kind_of(folder)
    if kind == "index":
        from lightir.index import Index
        from lightir.pending import failures_of

        with Index.open(folder) as index:
            failures = [dataclasses.asdict(failure) for failure in failures_of(index.view)]
            search = default_search(index.branches, index.contract)
            counts = index_facts(index.info(), n_failed=len(failures))
            return {"kind": kind, **counts, "default_search": search, "failures": failures}
    contract = Contract.load(folder)
    found: dict[str, Any] = {"kind": kind}
    if kind == "vectors":
        from lightir.shards import VectorsReader

        reader = VectorsReader(folder, allow_incomplete=True)
        found |= {"documents": len(reader), "complete": bool(reader.manifest.get("complete"))}
    if kind != "query-encoder":
        found["default_search"] = fusion_in_words(contract.fusion)
    identity = {"fingerprint": contract.fingerprint, "document_fingerprint": contract.document_fingerprint}
    return {**found, "contract": {**identity, **to_json(contract)}}
