"""Language models as encoders: backbones, masks, pooling and heads."""

import importlib.util
import logging

from lightir.errors import MissingExtra

if importlib.util.find_spec("torch") is None:
    raise MissingExtra("torch is needed to train, to cache and to encode: pip install 'lightir[train]'")

# transformers and peft import these if they are installed; they log about kernels for other machines and torch's
# internals.
for _name in ("torchao", "torch.utils._pytree", "bitsandbytes"):
    logging.getLogger(_name).setLevel(logging.ERROR)
