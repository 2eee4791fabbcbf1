"""Arguments and messages of searches whose queries of low confidence go to the model."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import Arguments
from lightir.cli.terminal import print_status
from lightir.errors import InvalidInput
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.index import Index
    from lightir.query import CachedQueryEncoder
    from lightir.query.fallback import EncodeTexts, FallbackQueryEncoder
    from lightir.search import Searcher, SearchOptions


def add_fallback(group: Arguments) -> None:
    """Declare --fallback and where the model is."""
    group.add_argument(
        "--fallback",
        type=share,
        metavar="CONFIDENCE",
        help="send queries whose confidence is below CONFIDENCE (0 to 1) to the model that the query table was fitted "
        "to. The report of lightir distill lists what each confidence saves and gives (default: no query)",
    )
    group.add_argument(
        "--fallback-url",
        metavar="URL",
        help="for --fallback: OpenAI-compatible endpoint of the model, without /embeddings (default: the local model, "
        "see --model)",
    )
    group.add_argument(
        "--fallback-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's API key (default: no key is sent)",
    )


def share(text: str) -> float:
    """Parse a number from 0 to 1 (argparse type)."""
    try:
        value = float(text)
    except ValueError:
        value = -1.0
    if not 0 <= value <= 1:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a number from 0 to 1")
    return value


def check_fallback(args: argparse.Namespace) -> None:
    """Refuse options of a fallback without one, and modes whose queries all go through the model."""
    from lightir.search.through_model import needs_model

    if args.fallback is None and (args.fallback_url or args.fallback_key_env):
        args.parser.error("--fallback-url and --fallback-key-env require --fallback")
    if args.fallback_key_env and not args.fallback_url:
        args.parser.error("--fallback-key-env requires --fallback-url")
    if args.fallback is not None and needs_model(args.mode):
        args.parser.error(
            f"--fallback and --mode {args.mode} cannot be combined: the model encodes all queries of this mode"
        )


def with_fallback(
    index: Index, encoder: CachedQueryEncoder | None, args: argparse.Namespace
) -> FallbackQueryEncoder | CachedQueryEncoder | None:
    """Return the index's query encoder, or another one, with the model for queries of low confidence.

    Without --fallback the given encoder is returned.

    Raises:
        InvalidInput: there is no query encoder, or it has no confidence; documents were encoded elsewhere, and no
            endpoint is named.
    """
    from lightir.addresses import QUERY_ENCODER, resolve_query_encoder
    from lightir.query.confidence import Confidence
    from lightir.query.fallback import FallbackQueryEncoder

    if args.fallback is None:
        return encoder
    chosen = encoder or index.query_encoder(threads=args.threads)
    if chosen is None:
        raise InvalidInput(f"{args.index} has no query encoder, so --fallback has no table to fall back from")
    folder = resolve_query_encoder(args.query_encoder) if args.query_encoder else index.folder / QUERY_ENCODER
    return FallbackQueryEncoder(
        chosen, Confidence.load(folder), encode_function(index, chosen, args), threshold=args.fallback
    )


def encode_function(index: Index, encoder: CachedQueryEncoder, args: argparse.Namespace) -> EncodeTexts:
    """Return the function that encodes queries by the endpoint or by the local model, which is loaded when needed."""
    from lightir.query.endpoint import EmbeddingsEndpoint, EndpointOptions

    contract = encoder.contract
    if args.fallback_url is None:
        if contract.is_external:
            raise InvalidInput(
                f"--fallback requires --fallback-url: {args.index} has vectors of {contract.backbone.address}, which "
                "lightir cannot load"
            )
        from lightir.encode.model_search import ModelSearchOptions, model_fallback
        from lightir.runtime.encode_options import EncodeOptions

        options = ModelSearchOptions(EncodeOptions(device=args.device), args.task, args.threads)
        return model_fallback(index, args.model, options=options)
    endpoint = EmbeddingsEndpoint(
        args.fallback_url, contract.backbone.address, EndpointOptions(key_variable=args.fallback_key_env)
    )
    prompt = contract.query.prompt
    return lambda texts: endpoint.encode([f"{prompt}{text}" for text in texts])


def fallback_json(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> dict[str, Any]:
    """Return a query's confidence and whether the model encoded it, for --json; {} without a fallback."""
    if args.fallback is None:
        return {}
    confidence = _confidence(searcher, query, options, args)
    return {"confidence": round(confidence, 4), "by_model": bool(confidence < args.fallback and query.strip())}


def print_fallback(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> None:
    """Print that the model encoded a query, and why."""
    if args.fallback is not None and query.strip():
        confidence = _confidence(searcher, query, options, args)
        by = "encoded by the model" if confidence < args.fallback else "encoded without the model"
        print_status(f"confidence {confidence:.2f}: {by} (--fallback {args.fallback:g})")


def print_fallback_share(searcher: Searcher) -> None:
    """Print how many queries the model encoded."""
    from lightir.query.fallback import FallbackQueryEncoder

    if isinstance(encoder := searcher.encoder, FallbackQueryEncoder):
        saved = 1 - encoder.n_fallback / max(encoder.n_queries, 1)
        queries = counted(encoder.n_fallback, "query")
        print_status(f"{queries} of {encoder.n_queries:,} encoded by the model; {saved:.0%} needed none")


def _confidence(searcher: Searcher, query: str, options: SearchOptions, args: argparse.Namespace) -> float:
    """Return the confidence of a query, without its conditions."""
    from lightir.query.fallback import FallbackQueryEncoder

    assert isinstance(searcher.encoder, FallbackQueryEncoder)
    _, words = searcher.prepare(options).read(query)
    return float(searcher.encoder.confidences([words], task=args.task)[0])
