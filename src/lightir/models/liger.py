"""Liger's fused Triton kernels in a loaded backbone: its RMSNorms, rotary positions and gated feed-forward layers."""

from __future__ import annotations

from lightir.errors import InvalidInput, MissingExtra
from lightir.models.backbones import Backbone


def use_liger(backbone: Backbone) -> None:
    """Have Liger's kernels compute the backbone's norms, rotary positions and gated feed-forward layers, on CUDA alone.

    Values and gradients stay as they are, up to rounding; so do weights and their names. The model keeps its own
    forward: Liger's would fuse a cross entropy with a projection of all positions, but ours reads hidden states.
    Liger also replaces what later models of the same type are built of, and the rotary positions of earlier ones, in
    the whole process.

    Args:
        backbone: without an adapter; the model inside is changed in place.

    Raises:
        MissingExtra: Liger or Triton is not installed.
        InvalidInput: Liger has no kernels for this type of model.
    """
    try:
        from liger_kernel.transformers import _apply_liger_kernel_to_instance  # transformers' own trainer calls it too
        from liger_kernel.transformers.monkey_patch import MODEL_TYPE_TO_APPLY_LIGER_FN
    except ImportError as error:
        raise MissingExtra(
            f"Liger's kernels are needed for model.liger ({error}): pip install 'lightir[gpu]'"
        ) from None
    kind = backbone.model.config.model_type
    if kind not in MODEL_TYPE_TO_APPLY_LIGER_FN:
        known = ", ".join(sorted(MODEL_TYPE_TO_APPLY_LIGER_FN))
        raise InvalidInput(
            f"model.liger: Liger has no kernels for {backbone.address}, a model of type {kind}: leave it out; "
            f"it knows {known}"
        )
    _apply_liger_kernel_to_instance(model=backbone.model, cross_entropy=False, fused_linear_cross_entropy=False)
