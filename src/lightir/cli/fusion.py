"""The options that say how branches are joined, and how words are scored."""

from __future__ import annotations

import argparse


class FusionNames(tuple[str, ...]):
    """Names to list and to complete; rrf:K is one of them for every K."""

    def __contains__(self, name: object) -> bool:
        """Whether it is a name; the searcher says what is wrong with a K."""
        return super().__contains__(name) or str(name).startswith("rrf:")


FUSIONS = FusionNames(("linear", "linear:min-max", "linear:z-score", "linear:none", "rrf", "dbsf"))


def add_fusion(parser: argparse.ArgumentParser) -> None:
    """Declare --fusion and --weights."""
    parser.add_argument(
        "--fusion",
        choices=FUSIONS,
        metavar="NAME",
        help=f"how branches are joined: {', '.join(FUSIONS)}, or rrf:K for another constant than 60 "
        "(default: the model's)",
    )
    parser.add_argument(
        "--weights", type=weights, metavar="NAME=W,…", help="the branches' weights (default: the model's)"
    )


def add_tokens(parser: argparse.ArgumentParser) -> None:
    """Declare --tokens."""
    parser.add_argument(
        "--tokens",
        default="bm25",
        metavar="HOW",
        help="how the tokens branch scores counted words: bm25, or by the query's log likelihood dirichlet, "
        "dirichlet:μ, jelinek-mercer or jelinek-mercer:λ (default %(default)s; μ is 1000 and λ 0.1)",
    )


def weights(text: str) -> dict[str, float]:
    """An argparse type: `dense=0.7,sparse=0.3`."""
    try:
        pairs = [(name.strip(), float(value)) for name, value in (part.split("=") for part in text.split(","))]
    except ValueError:
        raise argparse.ArgumentTypeError(f"{text!r} is not of the form dense=0.7,sparse=0.3") from None
    if len(found := dict(pairs)) < len(pairs):
        raise argparse.ArgumentTypeError(f"{text!r} names a branch twice")
    return found
