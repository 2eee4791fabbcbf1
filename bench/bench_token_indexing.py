"""Indexing speed without a model's vectors, from texts to a searchable index: words, bags of terms, and their peers.

bm25s and tantivy (requirements/bench.lock) index the same texts in the same run, one thread each. Words are BM25
without stems and stop words, as the peers have them here; bags are SiDR's V_BoT, which a query encoder's weights then
search. Documents a second of CPU count the process's own time, so that other work counts little.
"""

from __future__ import annotations

import argparse
import os
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")

from bench_index import build_texts, peer_builds, timed
from lightir.addresses import QUERY_ENCODER, resolve_model_folder
from lightir.data import Dataset
from lightir.index import IndexOptions, build_index, document_shards
from origin import print_origin

SMALLEST = "{data}/tiny --model {model}"


def main() -> None:
    """Index each way, print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("dataset", help="a BEIR folder")
    parser.add_argument("--model", default="smollm2-135m", help="whose terms the bags hold (default %(default)s)")
    parser.add_argument(
        "--times", type=int, default=1, help="number of copies of the corpus, each with new ids (default %(default)s)"
    )
    parser.add_argument("--dir", help="where to write (default: the system's folder for temporary files)")
    args = parser.parse_args()
    print_origin()
    corpus = list(Dataset.open(args.dataset).corpus())
    documents = [
        type(document)(f"{number}-{document.doc_id}", document.text, document.title)
        for number in range(args.times)
        for document in corpus
    ]
    encoder = resolve_model_folder(args.model) / QUERY_ENCODER
    megabytes = sum(len(document.full_text()) for document in documents) / 1e6
    print(f"{len(documents):,} documents, {megabytes:,.1f} million characters")
    with tempfile.TemporaryDirectory(dir=args.dir) as name:
        folder = Path(name)
        for analyzer in ("words", "english"):
            report(partial(build_texts, documents, folder / analyzer, analyzer), len(documents), analyzer)

        def with_bags() -> None:
            build_index(
                document_shards(documents),
                folder / "bags",
                query_encoder=encoder,
                options=IndexOptions(analyzer="bag"),
                progress=False,
            )

        report(with_bags, len(documents), f"bags of {args.model}'s terms")
        peer_builds(documents, folder / "tantivy")


def report(work: Callable[[], object], n: int, name: str) -> None:
    """One line."""
    print(f"texts     {timed(work, n)}, {name}")


if __name__ == "__main__":
    main()
