"""Vectors of queries that the caller's own model made: --query-vectors of the commands that search."""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from lightir.errors import InvalidInput

if TYPE_CHECKING:
    from lightir.index import Index
    from lightir.search.external_vectors import GivenQueryVectors

Options: TypeAlias = argparse.ArgumentParser | argparse._ArgumentGroup


def add_query_vectors(group: Options, rows: str) -> None:
    """Declare --query-vectors and --query-vector-ids.

    Args:
        group: parser or group.
        rows: the queries that have a row each, as the help says it.
    """
    group.add_argument(
        "--query-vectors",
        metavar="FILE",
        help="file of the queries' vectors, made by the model that made those of the documents: .npy with one row per "
        f"{rows}. For an index of such vectors (lightir index --vectors)",
    )
    group.add_argument(
        "--query-vector-ids",
        metavar="FILE",
        help="text file with the query's id for each row of a .npy file of --query-vectors, one per line (default: "
        "rows are in the order of the queries)",
    )


def read_query_vectors(index: Index, args: argparse.Namespace, query_ids: Sequence[str] | None) -> GivenQueryVectors:
    """Return the vectors of --query-vectors by query_id.

    Args:
        index: index to search.
        args: arguments of the command.
        query_ids: ids of the queries in their order, for files without ids; None for one query with the id "".

    Raises:
        InvalidInput: an index without vectors, or vectors of another number or width.
    """
    from lightir.data import StoredVectors
    from lightir.search.external_vectors import GivenQueryVectors

    if index.contract is None:
        raise InvalidInput(f"{index.folder} has no vectors; --query-vectors requires an index of vectors")
    stored = StoredVectors.read(args.query_vectors, ids=args.query_vector_ids)
    ids = [""] if query_ids is None else query_ids if stored.ids is None else stored.ids
    return GivenQueryVectors(index.contract, ids, stored.rows)
