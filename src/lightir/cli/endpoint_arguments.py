"""Arguments about an embeddings endpoint that encodes documents, for `lightir encode` and `lightir index`."""

from __future__ import annotations

import argparse
import math
from typing import TYPE_CHECKING, Any

from lightir.cli.arguments import Arguments
from lightir.cli.terminal import Misuse, print_status
from lightir.quantities import counted

if TYPE_CHECKING:
    from lightir.search.endpoint_documents import EndpointAmount, EndpointDocuments

URL_HELP = (
    "the address of an OpenAI-compatible embeddings endpoint, such as http://127.0.0.1:8000/v1 (with --endpoint-model)"
)


def add_endpoint(group: Arguments) -> None:
    """Declare which model of the endpoint encodes, its key, its price, and where its vectors are kept."""
    group.add_argument(
        "--endpoint-model",
        metavar="NAME",
        help="if MODEL is an address: name of the endpoint's model, or folder of a table that was fitted to it "
        "(lightir distill --teacher-url), with which queries need no model",
    )
    group.add_argument(
        "--endpoint-key-env",
        metavar="VARIABLE",
        help="environment variable that holds the endpoint's API key (default: no key is sent)",
    )
    group.add_argument(
        "--price",
        type=price,
        metavar="P",
        help="price of a million tokens, to print what the documents cost (default: only the tokens are printed)",
    )
    group.add_argument(
        "--work",
        metavar="DIR",
        help="folder that keeps the endpoint's vectors: the same command continues an interrupted one and sends no "
        "text twice (default: lightir's cache folder)",
    )


def price(text: str) -> float:
    """Parse a price (argparse type)."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 <= value < math.inf:
        raise argparse.ArgumentTypeError(f"{text[:40]!r} is not a price; expected a number from 0")
    return value


def is_address(model: str | None) -> bool:
    """Return whether a model is the address of an endpoint."""
    return model is not None and model.startswith(("http://", "https://"))


def check_endpoint(args: argparse.Namespace, *, others: dict[str, Any]) -> None:
    """Refuse options of an endpoint without one, an endpoint without a model, and options of local models.

    Args:
        args: parsed arguments.
        others: name of each option that a local model alone has, with its default.
    """
    own = {"endpoint_model", "endpoint_key_env", "price", "work"}
    if not is_address(args.model):
        for name in sorted(own):
            if getattr(args, name) is not None:
                raise Misuse(f"--{name.replace('_', '-')} requires the address of an endpoint as the model")
        return
    if not args.endpoint_model:
        raise Misuse(f"{args.model} is an endpoint; name its model with --endpoint-model")
    for name, default in others.items():
        if getattr(args, name) != default:
            option = f"--{name.replace('_', '-')}"
            raise Misuse(f"{option} and an endpoint exclude each other; the endpoint encodes whole documents")


def endpoint_documents(args: argparse.Namespace) -> EndpointDocuments:
    """Return the endpoint that the arguments name, and the table that was fitted to it, if they name one."""
    from pathlib import Path

    from lightir.contract import FILE_NAME, Contract
    from lightir.query.endpoint import EmbeddingsEndpoint, EndpointOptions
    from lightir.search.endpoint_documents import EndpointDocuments

    folder = Path(args.endpoint_model)
    model = folder if (folder / FILE_NAME).is_file() else None
    name = args.endpoint_model if model is None else Contract.load(model).backbone.address
    endpoint = EmbeddingsEndpoint(args.model, name, EndpointOptions(key_variable=args.endpoint_key_env))
    return EndpointDocuments(endpoint, model=model, work=args.work)


def amount_json(amount: EndpointAmount, args: argparse.Namespace) -> dict[str, Any]:
    """Return what was sent, for --json."""
    sent = {
        "texts": amount.texts,
        "known_texts": amount.known,
        "characters": amount.characters,
        "tokens": amount.tokens,
        "tokens_estimated": amount.estimated,
    }
    return sent | ({} if args.price is None else {"cost": round(amount.cost(args.price), 6)})


def print_amount(amount: EndpointAmount, args: argparse.Namespace) -> None:
    """Print what was sent, and what it cost."""
    tokens = f"{'about ' if amount.estimated else ''}{counted(amount.tokens, 'token')}"
    cost = "" if args.price is None else f", {amount.cost(args.price):.4f} at {args.price:g} a million"
    known = f"; {counted(amount.known, 'text')} known already" if amount.known else ""
    print_status(f"sent to {args.model}: {counted(amount.texts, 'text')}, {tokens}{cost}{known}")
