"""Run the steps of the Dockerfile without a container engine, and then its command and its health check.

Paths of the image are folders under a temporary one, and Python is the one that runs this script. Of the first stage
only what the second copies is kept. What needs an engine is not tried: the base images, the user, and the volume.

    python deploy/try_image.py
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shlex
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
import urllib.request
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
DOCKERFILE = ROOT / "deploy" / "Dockerfile"
START_S = 30.0
STOPPED = 128 + signal.SIGTERM


@dataclass(frozen=True, slots=True)
class Instruction:
    """A line of a Dockerfile.

    Attributes:
        name: name in capitals.
        flags: options such as {"from": "build"}.
        value: text after the options.
    """

    name: str
    flags: dict[str, str]
    value: str

    @property
    def words(self) -> list[str]:
        """The words of the value: a JSON list, or words as a shell splits them."""
        listed = self.value.removeprefix("CMD ") if self.name == "HEALTHCHECK" else self.value
        words: list[str] = json.loads(listed) if listed.startswith("[") else shlex.split(listed)
        return words


def parse_dockerfile(text: str) -> list[list[Instruction]]:
    """Return the instructions of each stage; the first list is what precedes all stages."""
    stages: list[list[Instruction]] = [[]]
    lines = "\n".join(line for line in text.splitlines() if not line.lstrip().startswith("#"))
    for line in re.sub(r"\\\n\s*", "", lines).splitlines():
        if not line.strip():
            continue
        name, _, rest = line.partition(" ")
        flags: dict[str, str] = {}
        while match := re.match(r"\s*--([\w-]+)=(\S+)\s*", rest):
            flags[match[1]] = match[2]
            rest = rest[match.end() :]
        if name == "FROM":
            stages.append([])
        stages[-1].append(Instruction(name.upper(), flags, rest.strip()))
    return stages


class Image:
    """The folders and settings that instructions make."""

    def __init__(self, root: Path) -> None:
        """Start without any."""
        self.root = root
        self.workdir = root
        self.environment = {"HOME": str(root), "LC_ALL": "C.UTF-8"}
        self.commands: dict[str, list[str]] = {}

    def here(self, text: str) -> str:
        """Return a text with the image's paths replaced by those under the root."""
        return re.sub(r"(?<![\w./])/(build|opt|data)\b", lambda match: f"{self.root}{match[0]}", text)

    def variables(self) -> dict[str, str]:
        """Return the environment of commands; the image's PATH precedes Python's and the system's."""
        own = self.environment.get("PATH", "").replace("$PATH", "").strip(":")
        python = Path(sys.executable).resolve().parent
        return {**self.environment, "PATH": ":".join(filter(None, (own, str(python), os.environ["PATH"])))}

    def run_stage(self, instructions: list[Instruction]) -> None:
        """Follow the instructions of a stage."""
        for instruction in instructions:
            match instruction.name:
                case "WORKDIR":
                    self.workdir = Path(self.here(instruction.value))
                    self.workdir.mkdir(parents=True, exist_ok=True)
                case "ENV":
                    self.environment |= dict(word.split("=", 1) for word in shlex.split(self.here(instruction.value)))
                case "COPY" if "from" not in instruction.flags:
                    self._copy(instruction.words)
                case "RUN":
                    command = self.here(instruction.value)
                    if os.geteuid():
                        command = re.sub(r" -[og] \d+", "", command)
                    print(f"RUN {instruction.value}", flush=True)
                    subprocess.run(command, shell=True, check=True, cwd=self.workdir, env=self.variables())
                case "ENTRYPOINT" | "CMD" | "HEALTHCHECK":
                    self.commands[instruction.name] = [self.here(word) for word in instruction.words]

    def _copy(self, words: list[str]) -> None:
        *sources, target = words
        folder = self.workdir / target
        for source in map(ROOT.joinpath, sources):
            if source.is_dir():
                shutil.copytree(source, folder, ignore=shutil.ignore_patterns("__pycache__", "*.so"))
            else:
                folder.mkdir(parents=True, exist_ok=True)
                shutil.copy(source, folder)


def try_service(image: Image) -> None:
    """Index a document, start the image's command, and ask it."""
    environment, data = image.variables(), image.root / "data"
    (data / "kettle.txt").write_text("A steel kettle that holds one liter.")

    def lightir(*words: object) -> str:
        command = ["lightir", *map(str, words)]
        return subprocess.run(command, check=True, capture_output=True, text=True, env=environment).stdout

    lightir("index", data / "kettle.txt", "--out", data / "index")
    key = lightir("key", data / "keys.json", "--name", "app").strip()
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    command = [*image.commands["ENTRYPOINT"], *image.commands["CMD"]]
    command = [port if word == "8080" else word for word in command]
    process = subprocess.Popen(command, cwd=image.workdir, env=environment)
    try:
        until = time.monotonic() + START_S
        check = [word.replace(":8080", f":{port}") for word in image.commands["HEALTHCHECK"]]
        while subprocess.run(check, env=environment, stderr=subprocess.DEVNULL).returncode:
            if process.poll() is not None or time.monotonic() > until:
                sys.exit("the service does not become healthy")
            time.sleep(0.2)
        asked = urllib.request.Request(f"http://127.0.0.1:{port}/v1/search?q=kettle", headers={"x-api-key": key})
        with urllib.request.urlopen(asked, timeout=10) as answer:
            hits = json.load(answer)["hits"]
        print("healthy; it found", [hit["doc_id"] for hit in hits])
    finally:
        process.send_signal(signal.SIGTERM)
        code = process.wait(timeout=60)
    if code != STOPPED or not hits:
        sys.exit(f"the service found {len(hits)} documents and ended with {code}; expected 1 and {STOPPED}")


def size_of(folder: Path) -> int:
    """Return the bytes of a folder's files."""
    return sum(path.lstat().st_size for path in folder.rglob("*") if path.is_file() and not path.is_symlink())


def main() -> None:
    """Run the steps."""
    argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter).parse_args()
    _, build, final = parse_dockerfile(DOCKERFILE.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as temporary:
        image = Image(Path(temporary))
        image.run_stage(build)
        copied = [image.here(step.words[0]) for step in final if step.flags.get("from")]
        for folder in image.root.iterdir():
            if not any(Path(path).is_relative_to(folder) for path in copied):
                shutil.rmtree(folder)
        image = Image(Path(temporary))
        image.run_stage(final)
        print(f"{size_of(image.root / 'opt') / 1e6:.0f} MB of files in /opt, without Python")
        try_service(image)


if __name__ == "__main__":
    main()
