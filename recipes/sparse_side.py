"""Give a distilled model a sparse side without training: the rows of its query table weight the terms of documents.

    python recipes/sparse_side.py minilm --corpus DATA/squadshifts --out minilm-sparse

The documents of --corpus are the sample for IDF weights, term bias and scale; their queries and labels are not read.
The result is a model folder like the first one, with the same dense vectors and query table (docs/results.md has its
figures): lightir encode minilm-sparse CORPUS --out VECTORS
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lightir.train.distill.sparse_side import SparseSideOptions, add_sparse_side


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and write the model."""
    usual = SparseSideOptions()
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="distilled model: a folder, or the name of an installed one")
    parser.add_argument("--corpus", action="append", required=True, help="sample corpus; repeat for more")
    parser.add_argument("--out", required=True, help="model folder to write")
    parser.add_argument(
        "--top-k", type=int, default=usual.top_k, help="terms of a document beside its own (default %(default)s)"
    )
    parser.add_argument(
        "--quantile",
        type=float,
        default=usual.quantile,
        help="fraction of the sample documents in which a term has no weight (default %(default)s)",
    )
    args = parser.parse_args(arguments)
    options = SparseSideOptions(top_k=args.top_k, quantile=args.quantile)
    print(add_sparse_side(args.model, args.corpus, args.out, options=options))


if __name__ == "__main__":
    main()
