"""Steps from documents to an index that several commands share."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from lightir.errors import ContractMismatch, InvalidInput

if TYPE_CHECKING:
    from lightir.contract import Contract
    from lightir.data import StoredVectors
    from lightir.index import IndexInfo, IndexOptions
    from lightir.runtime.documents import EncodeReport
    from lightir.shards import Shard, VectorsReader
    from lightir.types import Document


def encode_documents(
    model: str, documents: Iterable[Document], vectors: Path, *, n_documents: int | None
) -> EncodeReport:
    """Encode documents, continuing an interrupted run, and compute query tables if the model folder has none."""
    from lightir.addresses import QUERY_ENCODER, resolve_model_folder
    from lightir.runtime.documents import encode_corpus
    from lightir.runtime.encode_options import EncodeOptions

    folder = resolve_model_folder(model)
    options = EncodeOptions(shard_size=1024)
    report = encode_corpus(folder, documents, vectors, options=options, resume=True, n_documents=n_documents)
    if not (folder / QUERY_ENCODER).is_dir():
        from lightir.encode import cache_vocabulary

        cache_vocabulary(folder, vectors / QUERY_ENCODER, overwrite=True)
    return report


def index_vectors(
    folders: Sequence[Path],
    out: Path,
    *,
    options: IndexOptions | None = None,
    query_encoder: Path | None = None,
    overwrite: bool = False,
) -> IndexInfo:
    """Build an index of one or more vectors folders of the same model, including their query encoder."""
    from lightir.addresses import QUERY_ENCODER
    from lightir.index import build_index

    readers = read_vectors(folders)
    carried = next((folder / QUERY_ENCODER for folder in folders if (folder / QUERY_ENCODER).is_dir()), None)
    return build_index(
        (shard for reader in readers for shard in reader),
        out,
        options=options,
        contract=readers[0].contract,
        query_encoder=query_encoder or carried,
        overwrite=overwrite,
    )


def are_vectors(paths: Sequence[str | Path]) -> bool:
    """Return whether the paths are folders written by `lightir encode`; otherwise they are a corpus.

    Raises:
        InvalidInput: some are and some are not.
    """
    from lightir.shards import MANIFEST

    encoded = [Path(path, MANIFEST).is_file() for path in paths]
    if any(encoded) and not all(encoded):
        plain = next(path for path, is_encoded in zip(paths, encoded, strict=True) if not is_encoded)
        raise InvalidInput(
            f"{plain} is not a vectors folder, but others are; name vectors folders only, or a corpus only"
        )
    return all(encoded)


def read_vectors(folders: Sequence[str | Path]) -> list[VectorsReader]:
    """Open vectors folders of one model."""
    from lightir.shards import VectorsReader

    readers = [VectorsReader(folder) for folder in folders]
    for reader in readers[1:]:
        if reader.contract.fingerprint != readers[0].contract.fingerprint:
            raise ContractMismatch(
                f"{readers[0].folder} and {reader.folder} were encoded by different models (contracts "
                f"{readers[0].contract.fingerprint} and {reader.contract.fingerprint}); expected vectors of one model"
            )
    return readers


def read_stored_vectors(args: argparse.Namespace) -> StoredVectors:
    """Open the file of --vectors and --vector-ids."""
    from lightir.data import StoredVectors

    return StoredVectors.read(args.vector_file, ids=args.vector_ids)


def with_stored_vectors(
    documents: Iterable[Document], contract: Contract | None, stored: StoredVectors, *, size: int = 4096
) -> Iterator[Shard]:
    """Return the documents of a corpus with stored vectors; documents without vectors are in shards of their own.

    Raises:
        InvalidInput: there is no contract with a dense branch.
        ContractMismatch: the vectors have another width than the contract's.
    """
    if contract is None or contract.dense is None:
        raise InvalidInput(
            f"--vectors {stored.path} requires the model that made them: its name (--vector-model NAME), or a model "
            "with a query table for them (--model MODEL), which can be fitted with: lightir distill --vectors FILE "
            "--teacher-model NAME --corpus CORPUS --out MODEL"
        )
    width = (contract.dense.dims or (contract.backbone.hidden_size,))[0]
    if stored.dim != width:
        raise ContractMismatch(f"{stored.path} has vectors of width {stored.dim}, but the model's have {width}")
    return stored.shards(documents, similarity=contract.dense.similarity, size=size)


def shards_of(
    paths: Sequence[str], *, size: int, fields: Mapping[str, str] | None
) -> tuple[Iterator[Shard], Contract | None]:
    """Return the shards of vectors folders and their contract, or a corpus in shards of `size` documents and None."""
    from lightir.data import read_documents
    from lightir.index import document_shards

    if are_vectors(paths):
        readers = read_vectors(paths)
        return (shard for reader in readers for shard in reader), readers[0].contract
    return document_shards(read_documents(paths, fields=fields), size=size), None
