"""The cached query encoder: token vectors from a table, counted terms, cached expansions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

from lightir.addresses import resolve_query_encoder
from lightir.contract import Contract
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.kernel.query import DenseRows, TextEncoder
from lightir.query.contract_checks import (
    check_bigrams,
    check_expansions,
    check_gate,
    check_tables,
    check_term_weights,
    check_tokenizer,
)
from lightir.query.encoder_files import (
    BIGRAMS_FILE,
    EXPANSIONS_FILE,
    GATE_FILE,
    TERM_WEIGHTS_FILE,
    TOKENIZER_FILE,
    load_bigrams,
    load_expansions,
    load_gate,
    load_tables,
    load_tensor,
)
from lightir.query.expansions import CachedExpansions
from lightir.query.gate import CachedGate
from lightir.query.tables import CachedBigrams, CachedTable
from lightir.text import TextTokenizer, query_library, query_text_policy
from lightir.vectors import Floats, QueryVectors


class CachedQueryEncoder:
    """Encodes queries by table lookup: the mean of token vectors (dense), counts or mean expansions (sparse).

    With bigrams, known pairs of adjacent terms add their rows to the mean; with a gate, the rows have weights.
    """

    def __init__(
        self,
        contract: Contract,
        tokenizer: TextTokenizer,
        *,
        tables: Mapping[str, CachedTable] = MappingProxyType({}),
        term_weights: Floats | None = None,
        expansions: CachedExpansions | None = None,
        bigrams: CachedBigrams | None = None,
        gate: CachedGate | None = None,
        dim: int | None = None,
        threads: int = 1,
    ) -> None:
        """Create an encoder from arrays.

        Args:
            contract: query policy, and document side that the tables were made for.
            tokenizer: tokenizer with the hash of the query policy, or else of the backbone.
            tables: task name -> table, the default first; required if the contract has a dense branch, else unexpected.
            term_weights: (vocab_size,) float32 weights over the contract's vocabulary; required if the policy's
                term_weights are "idf", else unexpected.
            expansions: one row per term of the tokenizer; required if the policy's weighting is "expansion", else
                unexpected.
            bigrams: pairs with rows; required if the policy has their hash, else unexpected. They require one table.
            gate: weights of rows; required if the policy has its hash, else unexpected. It requires one table.
            dim: width of the dense vectors, a Matryoshka prefix of the tables' columns; None for all columns.
            threads: maximum number of threads per batch; small batches use one.

        Raises:
            ContractMismatch: tokenizer, vocabulary or width differ from the contract's; the message has both values.
            InvalidInput: a missing or unexpected table or weight.
        """
        self.contract = contract
        self.tokenizer = tokenizer
        self.tables = dict(tables)
        self.term_weights = term_weights
        self.expansions = expansions
        self.bigrams = bigrams
        self.gate = gate
        self.threads = threads
        check_tokenizer(contract, tokenizer)
        check_tables(contract, tokenizer, self.tables)
        check_term_weights(contract, term_weights)
        check_expansions(contract, tokenizer, expansions)
        check_bigrams(contract, tokenizer, self.tables, bigrams)
        check_gate(contract, self.tables, bigrams, gate)
        self.dim = self._checked_dim(dim)
        self._encoders: dict[str | None, TextEncoder] = {
            name: self._text_encoder(table) for name, table in self.tables.items()
        }
        self._encoders[None] = next(iter(self._encoders.values()), None) or self._text_encoder(None)

    @classmethod
    def load(cls, folder: Path | str, *, dim: int | None = None, threads: int = 1) -> CachedQueryEncoder:
        """Open a query-encoder folder; tables are memory-mapped.

        Args:
            folder: query-encoder folder, a model, vectors or index folder that contains one, or a shipped model's name.
            dim: width of the dense vectors, a Matryoshka prefix of the tables' columns; None for all columns.
            threads: maximum number of threads per batch.

        Raises:
            NotFound: a file does not exist.
            FormatError: a file is damaged or differs from tables.json.
            ContractMismatch: the files belong to different models.
        """
        folder = resolve_query_encoder(folder)
        contract = Contract.load(folder)
        tokenizer = TextTokenizer.from_file(folder / TOKENIZER_FILE)
        tables = load_tables(folder)
        idf = contract.query.term_weights == "idf"
        weights = load_tensor(folder / TERM_WEIGHTS_FILE, "term_weights") if idf else None
        expanding = contract.query.weighting == "expansion"
        try:
            expansions = load_expansions(folder / EXPANSIONS_FILE) if expanding else None
            bigrams = load_bigrams(folder / BIGRAMS_FILE) if contract.query.bigrams else None
            gate = load_gate(folder / GATE_FILE) if contract.query.gate else None
            return cls(
                contract,
                tokenizer,
                tables=tables,
                term_weights=weights,
                expansions=expansions,
                bigrams=bigrams,
                gate=gate,
                dim=dim,
                threads=threads,
            )
        except (InvalidInput, ContractMismatch) as error:
            raise type(error)(f"{folder}: {error}") from error

    @property
    def document_fingerprint(self) -> str:
        """Fingerprint of the document side that the query vectors are comparable with."""
        return self.contract.document_fingerprint

    @property
    def tasks(self) -> tuple[str, ...]:
        """Task names of the tables; the first is the default."""
        return tuple(self.tables)

    def encode(self, texts: Sequence[str], *, task: str | None = None, out: Floats | None = None) -> QueryVectors:
        """Encode queries; a branch that the contract lacks is None.

        Args:
            texts: n queries. A query without terms gets a zero dense row and an empty sparse row.
            task: one of `tasks`; None for the default table.
            out: (n, dim) float32 C-contiguous array that receives the dense vectors and is returned; None for a new
                one. Reuse an array when encoding many chunks: allocating a new one can take as long as encoding.

        Raises:
            NotFound: unknown task.
            InvalidInput: a text that is not a str or not representable in UTF-8, or `out` has another shape or dtype.
        """
        vectors = self._encoder(task).encode(texts, threads=self.threads, out=out)
        if self.expansions is None:
            return vectors
        vocab_size = self.contract.backbone.vocab_size
        means = self.expansions.means(vectors.term_ids, vocab_size=vocab_size, threads=self.threads)
        return replace(vectors, sparse=means)

    def text_encoder(self, task: str | None = None) -> TextEncoder | None:
        """Return the kernel's encoder, or None if expansions require more than the kernel.

        Raises:
            NotFound: unknown task.
        """
        return self._encoder(task) if self.expansions is None else None

    def _encoder(self, task: str | None) -> TextEncoder:
        encoder = self._encoders.get(task)
        if encoder is None:
            raise NotFound(f"unknown task {task!r}: {describe_tables(self.tables)}")
        return encoder

    def _text_encoder(self, table: CachedTable | None) -> TextEncoder:
        return TextEncoder(
            self.tokenizer.path.native,
            query_text_policy(self.contract.query),
            query_library(self.tokenizer, self.contract.query),
            rows=None if table is None else self._rows(table),
            dim=self.dim,
            vocab_size=self.contract.backbone.vocab_size if self._counts_terms else None,
            binary=self.contract.query.weighting == "binary",
            term_weights=self.term_weights,
        )

    def _rows(self, table: CachedTable) -> DenseRows:
        bigrams, gate = self.bigrams, self.gate
        return DenseRows(
            table.embeddings,
            table.scales,
            None if bigrams is None else (bigrams.bigrams.pairs, bigrams.table.embeddings, bigrams.table.scales),
            None if gate is None else (gate.keys, gate.values),
        )

    @property
    def _counts_terms(self) -> bool:
        return self.contract.sparse is not None and self.expansions is None

    def _checked_dim(self, dim: int | None) -> int | None:
        if not self.tables:
            if dim is not None:
                raise InvalidInput(f"dim is {dim}, but the query encoder has no dense branch")
            return None
        width = next(iter(self.tables.values())).dim
        if dim is not None and not 1 <= dim <= width:
            raise InvalidInput(f"dim is {dim}; expected 1 to {width}, the width of the tables")
        return width if dim is None else dim


def describe_tables(names: Collection[str]) -> str:
    """Describe the tables for an error message."""
    if list(names) == [""]:
        return "the query encoder has one table for all tasks; omit the task"
    return f"the query encoder has {list(names)}"
