"""The query encoder of a query-encoder folder: token vectors of a cached table, counted terms, cached expansions."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType

import numpy as np

from lightir.addresses import resolve_query_encoder
from lightir.contract import Contract
from lightir.errors import ContractMismatch, InvalidInput, NotFound
from lightir.kernel.query import TextEncoder
from lightir.query.contract_checks import (
    check_bigrams,
    check_expansions,
    check_tables,
    check_term_weights,
    check_tokenizer,
)
from lightir.query.encoder_files import (
    BIGRAMS_FILE,
    EXPANSIONS_FILE,
    TERM_WEIGHTS_FILE,
    TOKENIZER_FILE,
    load_bigrams,
    load_expansions,
    load_tables,
    load_tensor,
)
from lightir.query.expansions import CachedExpansions
from lightir.query.tables import CachedBigrams, CachedTable
from lightir.text import TextTokenizer, query_library, query_text_policy
from lightir.vectors import Floats, QueryVectors, Ragged


class CachedQueryEncoder:
    """Queries become vectors by looking terms up: dense is the mean of rows, sparse counts or a mean of expansions."""

    def __init__(
        self,
        contract: Contract,
        tokenizer: TextTokenizer,
        *,
        tables: Mapping[str, CachedTable] = MappingProxyType({}),
        term_weights: Floats | None = None,
        expansions: CachedExpansions | None = None,
        bigrams: CachedBigrams | None = None,
        dim: int | None = None,
        threads: int = 1,
    ) -> None:
        """Put an encoder together from arrays.

        Args:
            contract: its query policy, and the document side that the tables were made for.
            tokenizer: must have the tokenizer hash of the contract: the query policy's, or else the backbone's.
            tables: task name -> table, the default first; wanted exactly when the contract has a dense branch.
            term_weights: (vocab_size,) float32 over the contract's vocabulary, wanted exactly when the policy's
                term_weights are "idf".
            expansions: a row for each of the tokenizer's terms, wanted exactly when the policy's weighting is
                "expansion".
            bigrams: wanted exactly when the policy names their hash; there is one table then.
            dim: width of the dense vectors, a Matryoshka prefix of the tables'; None for their own width.
            threads: for a batch; queries of a small one are not divided.

        Raises:
            ContractMismatch: tokenizer, vocabulary or width are not the contract's; both values are named.
            InvalidInput: a table or weight that is missing or too many.
        """
        self.contract = contract
        self.tokenizer = tokenizer
        self.tables = dict(tables)
        self.term_weights = term_weights
        self.expansions = expansions
        self.bigrams = bigrams
        self.threads = threads
        check_tokenizer(contract, tokenizer)
        check_tables(contract, tokenizer, self.tables)
        check_term_weights(contract, term_weights)
        check_expansions(contract, tokenizer, expansions)
        check_bigrams(contract, tokenizer, self.tables, bigrams)
        self.dim = self._checked_dim(dim)
        self._encoders: dict[str | None, TextEncoder] = {
            name: self._text_encoder(None if bigrams else table) for name, table in self.tables.items()
        }
        self._encoders[None] = next(iter(self._encoders.values()), None) or self._text_encoder(None)

    @classmethod
    def load(cls, folder: Path | str, *, dim: int | None = None, threads: int = 1) -> CachedQueryEncoder:
        """Open a query-encoder folder; tables are memory-mapped.

        Args:
            folder: lightir.json, tokenizer.json, tables.json and the tables that it names, and what the policy needs
                of term weights, expansions or bigrams. Or a folder that has such a one, as a model's, or the name of a
                shipped model.
            dim: see `__init__`.
            threads: see `__init__`.

        Raises:
            NotFound: a file is missing.
            FormatError: a file is damaged or is not what tables.json says.
            ContractMismatch: the files are not of one model.
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
            return cls(
                contract,
                tokenizer,
                tables=tables,
                term_weights=weights,
                expansions=expansions,
                bigrams=bigrams,
                dim=dim,
                threads=threads,
            )
        except (InvalidInput, ContractMismatch) as error:
            raise type(error)(f"{folder}: {error}") from error

    @property
    def document_fingerprint(self) -> str:
        """The fingerprint of the document side that the vectors are made for."""
        return self.contract.document_fingerprint

    @property
    def tasks(self) -> tuple[str, ...]:
        """Names of the tables; the first is the default."""
        return tuple(self.tables)

    def encode(self, texts: Sequence[str], *, task: str | None = None, out: Floats | None = None) -> QueryVectors:
        """The queries' vectors; a branch that the contract lacks is None.

        Args:
            texts: n queries. One without terms gets a zero dense row and an empty sparse row.
            task: one of `tasks`; None for the default table.
            out: (n, dim) float32, C-contiguous, that the dense vectors are written to and returned as; None for a new
                array. Whoever encodes chunk after chunk and is done with each can pass the same one again: to fill a
                fresh array can take as long as the encoding.

        Raises:
            NotFound: no table has that name.
            InvalidInput: a text is no str, or not representable in UTF-8, or `out` does not fit.
        """
        encoder = self._encoder(task)
        found = encoder.encode(texts, threads=self.threads, out=out)
        if self.bigrams is not None:
            found = replace(found, dense=self._dense_with_bigrams(found.term_ids, self.bigrams, out))
        if self.expansions is None:
            return found
        vocab_size = self.contract.backbone.vocab_size
        return replace(found, sparse=self.expansions.means(found.term_ids, vocab_size=vocab_size, threads=self.threads))

    def text_encoder(self, task: str | None = None) -> TextEncoder | None:
        """The kernel's encoder, where it alone makes the vectors of `encode`; None with bigrams or expansions.

        Raises:
            NotFound: no table has that name.
        """
        return self._encoder(task) if self.bigrams is None and self.expansions is None else None

    def _encoder(self, task: str | None) -> TextEncoder:
        encoder = self._encoders.get(task)
        if encoder is None:
            raise NotFound(f"no query table for task {task!r}; {describe_tables(self.tables)}")
        return encoder

    def _dense_with_bigrams(self, queries: Ragged, bigrams: CachedBigrams, out: Floats | None) -> Floats:
        (table,) = self.tables.values()
        dense = bigrams.means(queries, table, dim=self.dim, threads=self.threads)
        if out is None:
            return dense
        if out.shape != dense.shape or out.dtype != np.float32:
            raise InvalidInput(f"out must be a writable C-contiguous float32 array of {dense.shape}")
        out[:] = dense
        return out

    def _text_encoder(self, table: CachedTable | None) -> TextEncoder:
        return TextEncoder(
            self.tokenizer.path.native,
            query_text_policy(self.contract.query),
            query_library(self.tokenizer, self.contract.query),
            table=None if table is None else table.embeddings,
            scales=None if table is None else table.scales,
            dim=self.dim,
            vocab_size=self.contract.backbone.vocab_size if self._counts_terms else None,
            binary=self.contract.query.weighting == "binary",
            term_weights=self.term_weights,
        )

    @property
    def _counts_terms(self) -> bool:
        return self.contract.sparse is not None and self.expansions is None

    def _checked_dim(self, dim: int | None) -> int | None:
        if not self.tables:
            if dim is not None:
                raise InvalidInput(f"dim is {dim}, but the encoder has no dense branch")
            return None
        width = next(iter(self.tables.values())).dim
        if dim is not None and not 1 <= dim <= width:
            raise InvalidInput(f"dim is {dim}; the tables hold 1 to {width} columns")
        return width if dim is None else dim


def describe_tables(names: Collection[str]) -> str:
    """What an error says of the tables that there are."""
    if list(names) == [""]:
        return "there is one table alone, which is for every task: name none"
    return f"there are {list(names)}"
