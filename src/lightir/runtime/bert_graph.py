"""An encoder of the BERT family as an ONNX graph (Devlin et al., NAACL 2019), with ONNX Runtime's fused operators."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from lightir.runtime.bert_files import BertFiles, MaskedHead
from lightir.runtime.onnx_messages import CONTRIB, OnnxGraph
from lightir.vectors import Floats

IDS, LENGTHS, STATES, FEATURES = "input_ids", "lengths", "states", "features"
"""Inputs: (B, T) int32 term ids, padded on the right, and (B,) int32 lengths. Output: (B, T, H) float32 last states, or
the features that a masked-LM head projects to the vocabulary."""

INT8_MAX = 127
ALWAYS_FLOAT = "narrow"
"""Product that stays float32 with int8: single activations before it are far larger than the rest, and one scale for
all costs more than half of the whole loss."""


def bert_graph(files: BertFiles, *, int8: bool = False, head: MaskedHead | None = None) -> bytes:
    """Return the ONNX model of an encoder from ids to last states, or to the features of a masked-LM head.

    Args:
        files: settings and weights.
        int8: whether the layers multiply 8-bit integers, except in ALWAYS_FLOAT: weights with one scale per output,
            activations with one per batch, chosen when it runs. So a text's vector depends slightly on its batch.
        head: masked-LM head, whose features are the output; None for the states.
    """
    graph = OnnxGraph()
    hidden = files.words.shape[1]
    graph.input(IDS, np.int32, ["batch", "positions"])
    graph.input(LENGTHS, np.int32, ["batch"])
    weight, bias = files.embedding_norm
    inputs = [
        IDS,
        "",
        graph.constant("words", files.words),
        graph.constant("positions", files.positions),
        "",
        graph.constant("embedding_norm.weight", weight),
        graph.constant("embedding_norm.bias", bias),
    ]
    states = graph.node(
        "EmbedLayerNormalization", inputs, "embedded", others=["unused"], domain=CONTRIB, epsilon=files.epsilon
    )
    for number, layer in enumerate(files.layers):
        name = STATES if number == files.n_layers - 1 else f"{number}.states"
        states = _Layer(graph, files, layer, f"{number}.", int8).append(states, name)
    if head is not None:
        states = _append_features(graph, files, head, states)
    graph.output(states, np.float32, ["batch", "positions", hidden])
    return graph.model("encoder")


def _append_features(graph: OnnxGraph, files: BertFiles, head: MaskedHead, states: str) -> str:
    """Add the layers of a masked-LM head in front of its projection; return the name of the features."""
    product = graph.node("MatMul", [states, graph.constant("head.weight", head.weight.T)], "head.product")
    activated = _append_activation(
        graph, files.activation, product, graph.constant("head.bias", head.weight_bias), "head"
    )
    weight, bias = graph.constant("head.norm.weight", head.norm[0]), graph.constant("head.norm.bias", head.norm[1])
    return graph.node("LayerNormalization", [activated, weight, bias], FEATURES, epsilon=files.epsilon)


def _append_activation(graph: OnnxGraph, activation: str, states: str, bias: str, prefix: str) -> str:
    """Add a bias and the activation; return the name of the result."""
    output = f"{prefix}activated"
    if activation == "relu":
        return graph.node("Relu", [graph.node("Add", [states, bias], f"{output}.in")], output)
    operator = "BiasGelu" if activation == "gelu" else "FastGelu"  # exact, or by tanh
    return graph.node(operator, [states, bias], output, domain=CONTRIB)


class _Layer:
    """One layer of an encoder, which appends its nodes to a graph."""

    def __init__(self, graph: OnnxGraph, files: BertFiles, weights: dict[str, Floats], prefix: str, int8: bool) -> None:
        self._graph, self._files, self._weights, self._prefix, self._int8 = graph, files, weights, prefix, int8

    def append(self, states: str, output: str) -> str:
        """Add the layer's nodes; return the name of its states."""
        prefix = self._prefix
        attended = self._product(self._attention(states), "attended")
        middle = self._add_and_norm(attended, states, "attended", "attention_norm", f"{prefix}middle")
        narrow = self._product(self._activation(self._product(middle, "wide")), "narrow")
        return self._add_and_norm(narrow, middle, "narrow", "output_norm", output)

    def _constant(self, name: str, array: npt.NDArray[np.float32] | npt.NDArray[np.int8]) -> str:
        return self._graph.constant(self._prefix + name, array)

    def _attention(self, states: str) -> str:
        parts = ("query", "key", "value")
        weight = np.concatenate([self._weights[f"{part}.weight"].T for part in parts], axis=1)
        bias = self._constant("qkv.bias", np.concatenate([self._weights[f"{part}.bias"] for part in parts]))
        output, heads = f"{self._prefix}attention", self._files.n_heads
        if not self._int8:
            inputs = [states, self._constant("qkv.weight", weight), bias, LENGTHS]
            return self._graph.node("Attention", inputs, output, domain=CONTRIB, num_heads=heads)
        projected = [self._product(states, part) for part in parts]
        return self._graph.node(
            "MultiHeadAttention", [*projected, bias, LENGTHS], output, domain=CONTRIB, num_heads=heads
        )

    def _product(self, states: str, part: str) -> str:
        """Add states times weights, without the bias."""
        weight, output = self._weights[f"{part}.weight"].T, f"{self._prefix}{part}"
        if not self._int8 or part == ALWAYS_FLOAT:
            return self._graph.node("MatMul", [states, self._constant(f"{part}.weight", weight)], output)
        rounded, scales = quantize_columns(weight)
        # ONNX Runtime before 1.30 aborts on processors without VNNI where the zero points are not written out.
        zeros = np.zeros(len(scales), dtype=np.int8)
        inputs = [
            states,
            self._constant(f"{part}.weight", rounded),
            self._constant(f"{part}.scales", scales),
            self._constant(f"{part}.zeros", zeros),
        ]
        return self._graph.node("DynamicQuantizeMatMul", inputs, output, domain=CONTRIB)

    def _activation(self, states: str) -> str:
        bias = self._constant("wide.bias", self._weights["wide.bias"])
        return _append_activation(self._graph, self._files.activation, states, bias, self._prefix)

    def _add_and_norm(self, states: str, skip: str, biased: str, norm: str, output: str) -> str:
        names = [f"{norm}.weight", f"{norm}.bias", f"{biased}.bias"]
        inputs = [states, skip, *(self._constant(name, self._weights[name]) for name in names)]
        return self._graph.node("SkipLayerNormalization", inputs, output, domain=CONTRIB, epsilon=self._files.epsilon)


def quantize_columns(weight: Floats) -> tuple[npt.NDArray[np.int8], Floats]:
    """Round the columns of a (K, N) matrix to 8 bits, symmetrically; return (K, N) int8 and (N,) float32 scales."""
    scales = np.abs(weight).max(axis=0) / np.float32(INT8_MAX)
    scales[scales == 0] = 1.0
    return np.round(weight / scales).astype(np.int8), scales
