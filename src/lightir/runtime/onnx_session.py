"""Sessions of ONNX Runtime over batches of term ids."""

from __future__ import annotations

import os
from collections.abc import Sequence

import numpy as np

from lightir.provenance import usable_cores
from lightir.runtime.bert_graph import IDS, LENGTHS
from lightir.vectors import Floats

ERRORS_ONLY = 3
"""Level of ONNX Runtime's log."""


class OnnxSession:
    """A graph from ids to one array, on all cores of the process."""

    def __init__(self, graph: bytes, output: str, *, padding: int) -> None:
        """Start a session.

        Args:
            graph: ONNX model with the inputs of `lightir.runtime.bert_graph`.
            output: name of the array to return.
            padding: id that fills shorter texts, which the graph ignores.
        """
        import onnxruntime

        options = onnxruntime.SessionOptions()
        options.intra_op_num_threads = n_threads()
        options.inter_op_num_threads = 1
        options.log_severity_level = ERRORS_ONLY
        options.add_session_config_entry("session.intra_op.allow_spinning", "0")  # waiting threads leave the cores free
        options.add_session_config_entry("session.x64quantprecision", "1")  # exact sums of int8 products without VNNI
        self._session = onnxruntime.InferenceSession(graph, options, providers=["CPUExecutionProvider"])
        self._output, self._padding = output, padding

    def run(self, texts: Sequence[Sequence[int]]) -> list[Floats]:
        """Return the output for texts of term ids, (T, H) float32 each; T is the length of the longest one."""
        lengths = np.array([len(ids) for ids in texts], dtype=np.int32)
        padded = np.full((len(texts), max(lengths.max(initial=0), 1)), self._padding, dtype=np.int32)
        for row, ids in enumerate(texts):
            padded[row, : len(ids)] = ids
        (states,) = self._session.run([self._output], {IDS: padded, LENGTHS: lengths})
        return list(states)


def n_threads() -> int:
    """Return the number of threads of a session: OMP_NUM_THREADS, as for torch, else the cores that it may use."""
    wanted = os.environ.get("OMP_NUM_THREADS", "")
    if wanted.isdigit() and int(wanted):
        return int(wanted)
    return usable_cores()
