"""Language models as encoders: backbones, masks, pooling, heads and the losses' building blocks."""

import logging

# Where torchao is installed transformers imports it; it talks of kernels for other machines and of torch's internals.
for _name in ("torchao", "torch.utils._pytree"):
    logging.getLogger(_name).setLevel(logging.ERROR)
