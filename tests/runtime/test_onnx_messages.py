"""The bytes of ONNX messages, against a reader of protobuf's wire format that knows nothing of the writer."""

from __future__ import annotations

import struct
from typing import Any

import numpy as np
import pytest

from lightir.errors import InvalidInput
from lightir.runtime.onnx_messages import MAX_BYTES, OnnxGraph

Fields = dict[int, list[Any]]


def read(message: bytes) -> Fields:
    """Return field number -> values: integers, bytes, or the bytes of 32-bit numbers."""
    fields: Fields = {}
    position = 0

    def varint() -> int:
        nonlocal position
        value = shift = 0
        while True:
            byte = message[position]
            position += 1
            value |= (byte & 0x7F) << shift
            shift += 7
            if not byte & 0x80:
                return value

    while position < len(message):
        key = varint()
        number, wire = key >> 3, key & 7
        if wire == 0:
            value: Any = varint()
        else:
            size = varint() if wire == 2 else 4
            value = message[position : position + size]
            position += size
        fields.setdefault(number, []).append(value)
    return fields


def test_a_graph_has_the_fields_of_onnx_proto():
    graph = OnnxGraph()
    graph.input("x", np.int32, ["batch", 300])
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    graph.constant("w", array)
    assert graph.node("Mix", ["x", "", "w"], "y", others=["z"], domain="com.microsoft", epsilon=0.5, heads=300) == "y"
    graph.output("y", np.float32, ["batch"])
    model = read(graph.model("name"))
    assert model[1] == [8]
    assert [(read(part).get(1, [b""]), read(part)[2]) for part in model[8]] == [
        ([b""], [17]),
        ([b"com.microsoft"], [1]),
    ]
    content = read(model[7][0])
    assert content[2] == [b"name"]
    node = read(content[1][0])
    assert (node[1], node[2], node[4], node[7]) == ([b"x", b"", b"w"], [b"y", b"z"], [b"Mix"], [b"com.microsoft"])
    epsilon, heads = (read(part) for part in node[5])
    assert (epsilon[1], struct.unpack("<f", epsilon[2][0]), epsilon[20]) == ([b"epsilon"], (0.5,), [1])
    assert (heads[1], heads[3], heads[20]) == ([b"heads"], [300], [2])
    tensor = read(content[5][0])
    assert (tensor[1], tensor[2], tensor[8], tensor[9]) == ([2, 3], [1], [b"w"], [array.tobytes()])
    value = read(content[11][0])
    kind = read(read(value[2][0])[1][0])
    dims = [read(part) for part in read(kind[2][0])[1]]
    assert (value[1], kind[1], dims) == ([b"x"], [6], [{2: [b"batch"]}, {1: [300]}])


def test_other_dtypes_and_models_above_two_gigabytes_are_refused():
    with pytest.raises(InvalidInput, match="array w is float64; expected one of float32, int8, int32"):
        OnnxGraph().constant("w", np.zeros(2))

    class Huge(bytes):
        def __len__(self) -> int:
            return MAX_BYTES

    with pytest.raises(InvalidInput, match=r"2\.0 GiB of weights; a graph can have at most 2 GiB"):
        OnnxGraph([Huge()]).model("m")
