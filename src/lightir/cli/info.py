"""Show what an index, vectors, query-encoder or model folder contains."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import add_json
from lightir.cli.terminal import print_json, print_status, printable
from lightir.errors import NotFound
from lightir.quantities import format_size

if TYPE_CHECKING:
    from lightir.contract import Contract, Fusion
    from lightir.index import Index, IndexInfo
    from lightir.index.passages.lengths import LongerDocuments
    from lightir.types import Branch

HELP = "show what an index, vectors or model folder contains"
EXAMPLES = """
  lightir info index
  lightir info minilm --json
"""
FAILURES_SHOWN = 5


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command's arguments."""
    add_folder(parser)
    add_json(parser)


def add_folder(parser: argparse.ArgumentParser) -> None:
    """Declare FOLDER."""
    parser.add_argument(
        "folder",
        metavar="FOLDER",
        help="index, vectors, model or query-encoder folder, or the name of an installed model",
    )


def run(args: argparse.Namespace) -> None:
    """Print the facts."""
    report = facts(args.folder)
    if args.json:
        print_json(report)
        return
    for name, value in report.items():
        print(f"{name:<18} {_in_words(name, value)}")


def fields_in_words(fields: Mapping[str, str]) -> str:
    """Return the types of metadata fields in a line, such as "price (number), brand (keyword)"."""
    return ", ".join(f"{printable(name)} ({known})" for name, known in fields.items())


def _in_words(name: str, value: Any) -> str:
    if name == "fields" and value:
        return fields_in_words(value)
    if name in ("bytes", "bytes_per_document"):
        return ", ".join(f"{part} {format_size(n_bytes)}" for part, n_bytes in value.items())
    if name == "failures":
        lines = [printable(f"{failure['doc_id']}: {failure['error']}") for failure in value[:FAILURES_SHOWN]]
        return "; ".join(lines) or "-"
    if isinstance(value, dict):
        return ", ".join(f"{key} {part}" for key, part in value.items() if not isinstance(part, dict))
    if isinstance(value, (list, tuple)):
        return ", ".join(map(str, value))
    return "-" if value is None else str(value)


def kind_of(folder: Path) -> str:
    """Return "index", "vectors", "query-encoder" or "model".

    Raises:
        NotFound: the folder does not exist or is none of these.
    """
    from lightir.contract import FILE_NAME
    from lightir.index.store_file import STORE_FILE
    from lightir.query.encoder_files import TABLES_FILE
    from lightir.shards import MANIFEST

    marks = {"index": STORE_FILE, "vectors": MANIFEST, "query-encoder": TABLES_FILE, "model": FILE_NAME}
    for kind, name in marks.items():
        if (folder / name).is_file():
            return kind
    if not folder.exists():
        raise NotFound(
            f"{folder} does not exist; expected an index, vectors, query-encoder or model folder, or an installed "
            f"model's name{installed_models()}"
        )
    names = ", ".join(marks.values())
    raise NotFound(
        f"{folder} is not an index, vectors, query-encoder or model folder: it contains none of the files {names}"
    )


def installed_models() -> str:
    """Return " (installed: minilm, ...)", or "" if no model is installed."""
    from lightir.addresses import shipped_models

    return f" (installed: {', '.join(shipped_models())})" if shipped_models() else ""


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


def longer_than_read(index: Index) -> LongerDocuments | None:
    """Return how many documents are longer than the index's model reads; None without a model's tokenizer."""
    from lightir.addresses import QUERY_ENCODER
    from lightir.index.passages.lengths import longer_documents
    from lightir.text import TextTokenizer

    path = index.folder / QUERY_ENCODER / "tokenizer.json"
    if index.contract is None or not path.is_file():
        return None
    return longer_documents(index.view, TextTokenizer.from_file(path))


def print_longer(folder: str) -> None:
    """Print how many documents are longer than the index's model reads, if any are."""
    from lightir.index import Index

    with Index.open(folder) as index:
        longer = longer_than_read(index)
    if longer is not None and longer.documents:
        print_status(str(longer))


def default_search(available: tuple[Branch, ...], contract: Contract | None) -> str:
    """Return the default search, such as "dense=0.5,tokens=0.5 linear", or the name of a single branch."""
    from lightir.search.plan import plan

    chosen = plan(available, contract)
    return fusion_in_words(chosen.fusion) if len(chosen.branches) > 1 else chosen.branches[0]


def fusion_in_words(fusion: Fusion) -> str:
    """Return weights and method in the syntax of `lightir search --weights` and `--fusion`."""
    from lightir.search.search_options import fusion_text, weights_text

    return f"{weights_text(fusion)} {fusion_text(fusion)}"


def folder_of(address: str) -> Path:
    """Return the folder at a path, or that of an installed model."""
    from lightir.addresses import shipped_models

    return Path(address) if Path(address).exists() else shipped_models().get(address, Path(address))


def facts(address: str) -> dict[str, Any]:
    """Return what `--json` prints."""
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
            longer = longer_than_read(index)
            counts |= {} if longer is None else {"longer": dataclasses.asdict(longer)}
            return {"kind": kind, **counts, "default_search": search, "failures": failures}
    contract = Contract.load(folder)
    report: dict[str, Any] = {"kind": kind}
    if kind == "vectors":
        from lightir.shards import VectorsReader

        reader = VectorsReader(folder, allow_incomplete=True)
        report |= {"documents": len(reader), "complete": bool(reader.manifest.get("complete"))}
    if kind != "query-encoder":
        report["default_search"] = fusion_in_words(contract.fusion)
    identity = {"fingerprint": contract.fingerprint, "document_fingerprint": contract.document_fingerprint}
    return {**report, "contract": {**identity, **to_json(contract)}}
