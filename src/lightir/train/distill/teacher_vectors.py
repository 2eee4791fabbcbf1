"""A teacher's vectors, cached in files."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import torch.nn.functional as F

from lightir.files import atomic_file, make_folder
from lightir.models.batch_states import read_texts
from lightir.models.encoder import LightRetriever
from lightir.models.framing import Framed
from lightir.progress import Progress
from lightir.types import Document
from lightir.vectors import Floats

CHUNK = 4096  # texts per file: the maximum number to encode again after an interruption


class TeacherVectors:
    """A teacher's vectors, cached in chunks in a folder; a hash of the input is a chunk's file name."""

    def __init__(self, folder: Path | None, model: LightRetriever) -> None:
        self._folder = folder
        self._model = model
        self._width = model.contract.dense.dims[0] if model.contract.dense and model.contract.dense.dims else None
        if folder is not None:
            make_folder(folder)

    def documents(self, documents: Sequence[Document]) -> Floats:
        """Return (N, dim) normalized document vectors."""
        keys = [f"{document.title}\x00{document.text}" for document in documents]
        return self._rows("documents", keys, lambda a, b: self._framed(self._model.frame_documents(documents[a:b])))

    def queries(self, texts: Sequence[str]) -> Floats:
        """Return (n, dim) normalized vectors of the full query encoder."""
        return self._rows("queries", texts, lambda a, b: self._framed(self._model.frame_queries(texts[a:b])))

    def tokens(self, n: int) -> Floats:
        """Return (n, dim) normalized vectors of the term ids 0 to n - 1, each encoded alone."""
        return self._rows("tokens", [str(i) for i in range(n)], self._alone)

    def _alone(self, start: int, stop: int) -> Floats:
        empty_ids, begin, _ = self._model.frame_queries([""])[0]
        framed = [([*empty_ids[:begin], i, *empty_ids[begin:]], begin, begin + 1) for i in range(start, stop)]
        return self._framed(framed)

    def _framed(self, framed: list[Framed]) -> Floats:
        blocks = []
        for read in read_texts(self._model, framed):
            vectors = self._model.dense_from(read.states, read.batch)[:, : self._width]
            blocks.append((read.positions, F.normalize(vectors.float(), dim=-1).cpu().numpy()))
        rows = np.zeros((len(framed), blocks[0][1].shape[1] if blocks else 0), dtype=np.float32)
        for positions, block in blocks:
            rows[positions] = block
        return rows

    def _rows(self, kind: str, keys: Sequence[str], encode: Callable[[int, int], Floats]) -> Floats:
        parts = []
        with Progress(f"teacher: {kind}", unit="text", total=len(keys)) as bar:
            for start in range(0, len(keys), CHUNK):
                stop = min(start + CHUNK, len(keys))
                parts.append(self._chunk(kind, keys[start:stop], functools.partial(encode, start, stop)))
                bar.update(stop - start)
        return np.concatenate(parts) if parts else np.zeros((0, 0), np.float32)

    def _chunk(self, kind: str, keys: Sequence[str], encode: Callable[[], Floats]) -> Floats:
        if self._folder is None:
            return encode()
        identity = [self._model.contract.fingerprint, str(self._model.backbone.model.dtype), kind, *keys]
        name = hashlib.sha256(json.dumps(identity).encode()).hexdigest()[:32]
        path = self._folder / f"{kind}-{name}.npy"
        if not path.is_file():
            with atomic_file(path) as file:
                np.save(file, encode().astype(np.float16))
        rows: Floats = np.load(path).astype(np.float32)
        return rows
