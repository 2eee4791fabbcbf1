"""Language models as encoders: backbones, masks, pooling, heads and the losses' building blocks."""

import logging

# Where these are installed transformers or peft import them; they talk of kernels for other machines and of torch's
# internals.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes"):
    logging.getLogger(_name).setLevel(logging.ERROR)
