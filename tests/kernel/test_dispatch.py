"""The dispatch levels are those that Linux reports of the machine: a build that finds fewer is slow without a word."""

from __future__ import annotations

import platform
import sys
from pathlib import Path

import pytest

from lightir import kernel

AVX2 = {"avx", "avx2", "f16c"}
AVX512 = AVX2 | {"avx512f", "avx512bw", "avx512dq", "avx512vl", "avx512_vnni"}


@pytest.mark.skipif(sys.platform != "linux", reason="needs /proc/cpuinfo")
def test_the_levels_are_those_of_the_processor() -> None:
    lines = Path("/proc/cpuinfo").read_text().splitlines()
    fields = ("flags", "Features")  # of x86-64 and of aarch64
    flags = next((set(line.partition(":")[2].split()) for line in lines if line.startswith(fields)), set[str]())
    expected = ["scalar"]
    if platform.machine() == "x86_64":
        expected += ["avx2"] * (flags >= AVX2) + ["avx512"] * (flags >= AVX512)
    if platform.machine() == "aarch64":
        expected += ["neon"] + ["dotprod"] * ("asimddp" in flags)
    assert kernel.available() == expected
