"""Documents encoded by an embeddings endpoint, for a vectors folder or an index.

Every batch of vectors is kept in a file before the next one is asked for (`FetchedVectors`), so an interrupted run that
is repeated sends no text twice.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from lightir.addresses import QUERY_ENCODER, cache_folder
from lightir.contract import Contract, external_contract
from lightir.data.stored_vectors import Similarity, storable_vectors
from lightir.errors import ContractMismatch, InvalidInput
from lightir.files import make_folder
from lightir.progress import Progress
from lightir.quantities import counted
from lightir.query.endpoint import EmbeddingsEndpoint
from lightir.runtime.documents import copy_query_encoder, unwritten_documents
from lightir.search.fetched_vectors import FetchedVectors
from lightir.shards import Shard, VectorsWriter
from lightir.types import Document

WINDOW = 512
"""Number of documents per shard."""

CHARACTERS_PER_TOKEN = 4
"""Characters of an English token, for endpoints that do not say how many tokens they have read."""

logger = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class EndpointAmount:
    """Texts and tokens that a run has sent to an endpoint.

    Attributes:
        texts: number of texts that were sent.
        known: number of texts whose vectors an earlier run had fetched, or that were repeated.
        characters: number of characters that were sent.
        tokens: number of tokens, by the endpoint, or estimated.
        estimated: whether the tokens are estimated, CHARACTERS_PER_TOKEN characters each.
    """

    texts: int
    known: int
    characters: int
    tokens: int
    estimated: bool

    def cost(self, price: float) -> float:
        """Return the cost at a price per million tokens, in the currency of the price."""
        return self.tokens * price / 1e6


class EndpointDocuments:
    """An endpoint as the encoder of a corpus."""

    def __init__(
        self, endpoint: EmbeddingsEndpoint, *, model: Path | None = None, work: Path | str | None = None
    ) -> None:
        """Open the file of fetched vectors; nothing is sent.

        Args:
            endpoint: endpoint that encodes the documents.
            model: folder of a table that was fitted to the endpoint's vectors, whose contract they get; None without.
            work: folder of the file; None for lightir's cache folder.

        Raises:
            InvalidInput: the model's contract is not one of vectors made outside lightir.
            WriteFailed: the folder cannot be written.
        """
        self.endpoint, self.model = endpoint, model
        self._contract = None if model is None else _external(model)
        folder = cache_folder() / "endpoints" if work is None else Path(work)
        make_folder(folder)
        self._fetched = FetchedVectors(folder, endpoint)

    def begin(
        self, documents: Iterable[Document], *, similarity: Similarity = "cosine"
    ) -> tuple[Contract, Iterator[Document]]:
        """Return the contract of the documents' vectors, and all documents; the first text with words is sent.

        Args:
            documents: documents to be encoded.
            similarity: similarity of the vectors, if there is no model that says it.

        Raises:
            InvalidInput: no document has text.
            ContractMismatch: the endpoint's vectors have another width than the model's.
            EndpointFailed: the endpoint failed.
        """
        read, remaining = [], iter(documents)
        for document in remaining:
            read.append(document)
            if document.full_text().strip():
                break
        else:
            raise InvalidInput("no document has text that the endpoint could encode")
        prompt = "" if self._contract is None else self._contract.document.prompt
        width = self._fetched.rows([read[-1].full_text()], "documents", prompt=prompt, shown=False).shape[1]
        contract = self._contract or external_contract(
            self.endpoint.model, width, similarity=similarity, maker=self.endpoint.host
        )
        if contract.backbone.hidden_size != width:
            raise ContractMismatch(
                f"{self.endpoint.url} gives vectors of width {width}, but those of {self.model} have "
                f"{contract.backbone.hidden_size}"
            )
        return contract, itertools.chain(read, remaining)

    def shards(self, contract: Contract, documents: Iterable[Document], *, total: int | None = None) -> Iterator[Shard]:
        """Yield documents with vectors, and those without text, which endpoints refuse, in shards without vectors.

        Args:
            contract: contract of the vectors, from `begin`.
            documents: documents to encode.
            total: number of documents, for the progress bar; None if unknown.

        Raises:
            EndpointFailed: the endpoint failed; what it gave before is kept.
            InvalidInput: a vector of zeros, or one that float16 cannot hold.
        """
        assert contract.dense is not None
        remaining = iter(documents)
        with Progress("encode", unit="document", total=total) as bar:
            while window := list(itertools.islice(remaining, WINDOW)):
                full = [document for document in window if document.full_text().strip()]
                if full:
                    texts = [document.full_text() for document in full]
                    rows = self._fetched.rows(texts, "documents", prompt=contract.document.prompt, shown=False)
                    stored = storable_vectors(rows, full, contract.dense.similarity, source=self.endpoint.url)
                    yield Shard(full, stored.astype(np.float16), None)
                if len(full) < len(window):
                    yield Shard([document for document in window if not document.full_text().strip()], None, None)
                bar.update(len(window))

    @property
    def query_encoder(self) -> Path | None:
        """Folder of the query encoder of the fitted table; None without one."""
        folder = None if self.model is None else self.model / QUERY_ENCODER
        return folder if folder is not None and folder.is_dir() else None

    @property
    def amount(self) -> EndpointAmount:
        """Texts and tokens that were sent so far."""
        fetched, tokens = self._fetched, self.endpoint.n_tokens
        estimate = -(-fetched.n_characters // CHARACTERS_PER_TOKEN)
        return EndpointAmount(
            fetched.n_texts,
            fetched.n_known,
            fetched.n_characters,
            estimate if tokens is None else tokens,
            estimated=tokens is None,
        )


@dataclass(frozen=True, slots=True)
class EndpointReport:
    """Counts and duration of `encode_by_endpoint`.

    Attributes:
        documents: number of documents that were written.
        already_there: number of documents that the folder had before.
        empty: number of documents without text, which were left out.
        seconds: duration.
        amount: texts and tokens that were sent to the endpoint.
    """

    documents: int
    already_there: int
    empty: int
    seconds: float
    amount: EndpointAmount


def encode_by_endpoint(
    source: EndpointDocuments,
    documents: Iterable[Document],
    out: Path | str,
    *,
    similarity: Similarity = "cosine",
    resume: bool = False,
    n_documents: int | None = None,
) -> EndpointReport:
    """Write documents with an endpoint's vectors as a vectors folder, with the query encoder of the model, if any.

    Args:
        source: endpoint.
        documents: documents with distinct ids. To resume, pass the same documents in the same order.
        out: vectors folder to write.
        similarity: similarity of the vectors, if there is no model that says it.
        resume: continue an interrupted folder.
        n_documents: number of documents, for the progress bar; None if unknown.

    Raises:
        EndpointFailed: the endpoint failed; finished shards and all fetched vectors are kept.
        AlreadyExists, ContractMismatch, InvalidInput: as `encode_corpus`, `EndpointDocuments.begin` and `shards`.
    """
    begun = time.perf_counter()
    contract, documents = source.begin(documents, similarity=similarity)
    with VectorsWriter(out, contract, resume=resume) as writer:
        before, empty = len(writer.doc_ids), 0
        for shard in source.shards(contract, unwritten_documents(documents, writer), total=n_documents):
            if shard.dense is None:
                empty += len(shard.documents)
                continue
            writer.add(shard)
        if empty:
            logger.warning("%s without text left out: an endpoint encodes none", counted(empty, "document"))
        if source.model is not None:
            copy_query_encoder(source.model, Path(out))
        writer.finish()
        return EndpointReport(len(writer.doc_ids) - before, before, empty, time.perf_counter() - begun, source.amount)


def _external(model: Path) -> Contract:
    contract = Contract.load(model)
    if not contract.is_external:
        raise InvalidInput(
            f"{model} encodes documents by itself, not by an endpoint; leave out the endpoint, or name a table that "
            "was fitted to it (lightir distill --teacher-url)"
        )
    return contract
