"""Tables of cached vectors of tokens and of pairs of tokens."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.query.bigrams import Bigrams
from lightir.vectors import Floats


@dataclass(frozen=True, slots=True)
class CachedTable:
    """The token vectors of one instruction.

    Attributes:
        embeddings: (n_terms, dim) float16, float32, int8, or uint16 (the bits of bfloat16); one row per term id.
        scales: (n_terms,) float32 for int8, where row t is scales[t] * embeddings[t]; otherwise None.
        instruction: instruction that the rows were computed with.
    """

    embeddings: npt.NDArray[np.float16] | npt.NDArray[np.float32] | npt.NDArray[np.int8] | npt.NDArray[np.uint16]
    scales: Floats | None = None
    instruction: str = ""

    def __post_init__(self) -> None:
        rows = self.embeddings
        if rows.ndim != 2 or rows.dtype not in (np.float16, np.float32, np.int8, np.uint16):
            raise InvalidInput(
                f"embeddings are {rows.dtype} of shape {rows.shape}; "
                "expected float16, float32, int8 or uint16 (bfloat16) of 2 dimensions"
            )
        if (rows.dtype == np.int8) != (self.scales is not None):
            raise InvalidInput(f"{rows.dtype} embeddings {'with' if self.scales is not None else 'without'} scales")
        if self.scales is not None and (self.scales.shape != (len(rows),) or self.scales.dtype != np.float32):
            raise InvalidInput(
                f"scales are {self.scales.dtype} of shape {self.scales.shape}; expected float32 of ({len(rows)},)"
            )

    @property
    def dim(self) -> int:
        """Number of columns."""
        return int(self.embeddings.shape[1])

    def float_rows(self) -> Floats:
        """Return a copy of the rows: (n_terms, dim) float32."""
        rows = self.embeddings
        if rows.dtype == np.uint16:
            return (rows.astype(np.uint32) << 16).view(np.float32)
        values = rows.astype(np.float32)
        return values if self.scales is None else values * self.scales[:, None]


@dataclass(frozen=True, slots=True)
class CachedBigrams:
    """Vectors of pairs of terms: a dense query is the sum of the rows of its terms and of its known pairs, of length 1.

    Attributes:
        bigrams: pairs of terms.
        table: table with one row per pair.
    """

    bigrams: Bigrams
    table: CachedTable

    def __post_init__(self) -> None:
        if len(self.bigrams) != len(self.table.embeddings):
            raise InvalidInput(f"there are {len(self.bigrams)} bigrams, but {len(self.table.embeddings)} rows")
