"""Whole numbers of 7 bits a byte (LEB128, protobuf's varints), encoded and decoded as arrays."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]

MAX_BYTES = 10
"""Maximum number of bytes of a number of 64 bits."""


def encode_numbers(values: Numbers) -> tuple[bytes, Numbers]:
    """Encode whole numbers from 0 on with 7 bits a byte, the lowest first.

    All bytes of a number but the last one have the 8th bit too.

    Returns:
        The bytes, and the (n,) number of bytes of each value.
    """
    lengths = n_bytes(values)
    ends = np.cumsum(lengths)
    out = np.zeros(int(ends[-1]) if len(ends) else 0, dtype=np.uint8)
    starts = ends - lengths
    for byte in range(int(lengths.max(initial=0))):
        longer = lengths > byte
        more = (lengths[longer] > byte + 1).astype(np.uint8) << 7
        out[starts[longer] + byte] = ((values[longer] >> (7 * byte)) & 127).astype(np.uint8) | more
    return out.tobytes(), lengths


def n_bytes(values: Numbers) -> Numbers:
    """Return the (n,) number of bytes of each encoded value."""
    lengths = np.ones(len(values), dtype=np.int64)
    for bits in range(7, 63, 7):
        lengths += values >> bits > 0
    return lengths


def decode_numbers(content: bytes) -> tuple[Numbers, Numbers] | None:
    """Decode the complete numbers at the beginning of some bytes.

    Returns:
        The (n,) numbers, and the (n,) positions after each; None if one has more than 35 bits.
    """
    raw = np.frombuffer(content, dtype=np.uint8)
    ends = np.flatnonzero(raw < 128) + 1
    starts = np.concatenate([np.zeros(min(1, len(ends)), np.int64), ends[:-1]])
    lengths = ends - starts
    if lengths.max(initial=0) > 5:
        return None
    values = np.zeros(len(ends), dtype=np.int64)
    for byte in range(int(lengths.max(initial=0))):
        longer = lengths > byte
        values[longer] |= (raw[starts[longer] + byte].astype(np.int64) & 127) << (7 * byte)
    return values, ends


def encode_number(value: int) -> bytes:
    """Encode one whole number from 0 on."""
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    out.append(value)
    return bytes(out)


def decode_number(content: bytes, start: int) -> tuple[int, int] | None:
    """Return the number at a position and the position after it; None if the bytes end before it does.

    Raises:
        ValueError: a number of more than 64 bits.
    """
    value = 0
    for at in range(start, min(len(content), start + MAX_BYTES)):
        value |= (content[at] & 127) << (7 * (at - start))
        if content[at] < 128:
            if value >= 2**64:
                break
            return value, at + 1
    else:
        if len(content) - start < MAX_BYTES:
            return None
    raise ValueError("a number has more than 64 bits")
