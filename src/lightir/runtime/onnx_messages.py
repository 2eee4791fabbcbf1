"""ONNX models as bytes: the few protobuf messages of onnx.proto that a graph of known shape needs.

ONNX Runtime reads models but builds none, and the package `onnx`, which does, is 27 MB. The field numbers are those of
onnx.proto (ONNX IR version 8).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import numpy.typing as npt

from lightir.errors import InvalidInput
from lightir.index.exchange.varints import encode_number

IR_VERSION = 8
OPSET = 17
CONTRIB = "com.microsoft"
"""Domain of ONNX Runtime's own operators, which fuse several of the standard."""

DATA_TYPES = {np.dtype(np.float32): 1, np.dtype(np.int8): 3, np.dtype(np.int32): 6}
"""TensorProto.DataType of the supported dtypes."""

MAX_BYTES = 2**31 - 1
"""Maximum size of a protobuf message."""

_FLOAT, _INT = 1, 2  # AttributeProto.AttributeType
_VARINT, _BYTES, _FIXED32 = 0, 2, 5  # protobuf's wire types


def _integer(number: int, value: int) -> bytes:
    return encode_number(number << 3 | _VARINT) + encode_number(value)


def _bytes(number: int, content: bytes | str) -> bytes:
    raw = content.encode() if isinstance(content, str) else content
    return encode_number(number << 3 | _BYTES) + encode_number(len(raw)) + raw


def _attribute(name: str, value: float | int) -> bytes:
    if isinstance(value, float):
        content = encode_number(2 << 3 | _FIXED32) + struct.pack("<f", value) + _integer(20, _FLOAT)
    else:
        content = _integer(3, value) + _integer(20, _INT)
    return _bytes(1, name) + content


def _tensor(name: str, array: npt.NDArray[Any]) -> bytes:
    if array.dtype not in DATA_TYPES:
        raise InvalidInput(f"array {name} is {array.dtype}; expected one of {', '.join(map(str, DATA_TYPES))}")
    dims = b"".join(_integer(1, size) for size in array.shape)
    little = np.ascontiguousarray(array, dtype=array.dtype.newbyteorder("<"))
    return dims + _integer(2, DATA_TYPES[array.dtype]) + _bytes(8, name) + _bytes(9, little.tobytes())


def _value(name: str, dtype: type, shape: Sequence[int | str]) -> bytes:
    """Return a ValueInfoProto; a dimension that is a name has any size."""
    dims = b"".join(_bytes(1, _integer(1, size) if isinstance(size, int) else _bytes(2, size)) for size in shape)
    tensor = _integer(1, DATA_TYPES[np.dtype(dtype)]) + _bytes(2, dims)
    return _bytes(1, name) + _bytes(2, _bytes(1, tensor))


@dataclass(slots=True)
class OnnxGraph:
    """An ONNX graph that grows node by node.

    Attributes:
        parts: the fields of its GraphProto.
    """

    parts: list[bytes] = field(default_factory=list)

    def constant(self, name: str, array: npt.NDArray[Any]) -> str:
        """Add a constant array (float32, int8 or int32) and return its name."""
        self.parts.append(_bytes(5, _tensor(name, array)))
        return name

    def node(
        self,
        operator: str,
        inputs: Sequence[str],
        output: str,
        *,
        others: Sequence[str] = (),
        domain: str = "",
        **attributes: float | int,
    ) -> str:
        """Add a node, and return the name of its first output.

        Args:
            operator: type of the node.
            inputs: names of its inputs; "" for an optional one that is left out.
            output: name of the first output.
            others: names of its other outputs.
            domain: domain of the operator; "" is ONNX's own.
            attributes: numbers, floats or ints.
        """
        content = b"".join(_bytes(1, name) for name in inputs) + b"".join(_bytes(2, name) for name in (output, *others))
        content += _bytes(3, output) + _bytes(4, operator)
        content += b"".join(_bytes(5, _attribute(name, value)) for name, value in attributes.items())
        self.parts.append(_bytes(1, content + _bytes(7, domain)))
        return output

    def input(self, name: str, dtype: type, shape: Sequence[int | str]) -> str:
        """Declare an input and return its name."""
        self.parts.append(_bytes(11, _value(name, dtype, shape)))
        return name

    def output(self, name: str, dtype: type, shape: Sequence[int | str]) -> None:
        """Declare an output, which a node computes."""
        self.parts.append(_bytes(12, _value(name, dtype, shape)))

    def model(self, name: str) -> bytes:
        """Return the ModelProto of the graph.

        Raises:
            InvalidInput: it is larger than a protobuf message can be.
        """
        if (size := sum(map(len, self.parts))) > MAX_BYTES - 1024:
            raise InvalidInput(f"the model has {size / 2**30:.1f} GiB of weights; a graph can have at most 2 GiB")
        graph = b"".join(self.parts) + _bytes(2, name)
        operators = [_bytes(1, domain) + _integer(2, version) for domain, version in (("", OPSET), (CONTRIB, 1))]
        sets = b"".join(_bytes(8, content) for content in operators)
        return _integer(1, IR_VERSION) + _bytes(2, "lightir") + _bytes(7, graph) + sets
