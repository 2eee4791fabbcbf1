"""The files of deploy/ and the page about them: image, compose file, systemd unit, metrics and alerts."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
sys.path.insert(0, str(DEPLOY))
from try_image import Instruction, parse_dockerfile  # noqa: E402

from lightir.cli.app import build_parser  # noqa: E402

METRIC = re.compile(r"\blightir_[a-z_]+\b")


def stages() -> list[list[Instruction]]:
    return parse_dockerfile((DEPLOY / "Dockerfile").read_text())


def named(stage: list[Instruction], name: str) -> list[Instruction]:
    return [instruction for instruction in stage if instruction.name == name]


def test_dockerfiles_are_parsed() -> None:
    text = (
        "ARG A=1\nFROM x AS y\n# note\nRUN a && \\\n    b\nFROM z\nCOPY --from=y /o /o\n"
        'HEALTHCHECK --retries=3 CMD ["c", "d"]\n'
    )
    first, build, final = parse_dockerfile(text)
    assert [step.value for step in first] == ["A=1"]
    assert build[1].value == "a && b"
    assert (final[1].flags, final[1].words) == ({"from": "y"}, ["/o", "/o"])
    assert (final[2].flags, final[2].words) == ({"retries": "3"}, ["c", "d"])


def test_the_image_has_two_stages_no_root_and_a_health_check() -> None:
    _, build, final = stages()
    assert "slim" in final[0].value
    assert all(":" in stage[0].value for stage in (build, final))
    (user,) = named(final, "USER")
    assert user.value.split(":")[0].isdigit()
    assert int(user.value.split(":")[0]) > 0
    assert named(final, "VOLUME")[0].words == ["/data"]
    assert "/health" in named(final, "HEALTHCHECK")[0].words[-1]
    installs = [step.value for step in build if " install " in step.value and "wheels/" not in step.value]
    assert len(installs) == 2
    assert all("--require-hashes" in install for install in installs)


def test_the_image_copies_files_that_are_there_and_not_ignored() -> None:
    _, build, final = stages()
    ignored = (DEPLOY / "Dockerfile.dockerignore").read_text().split()
    copied = [source for step in named(build, "COPY") for source in step.words[:-1]]
    assert all((ROOT / source).exists() for source in copied)
    assert {f"!{source}" for source in copied} == {line for line in ignored if line.startswith("!")}
    assert all(step.flags["from"] == "build" for step in named(final, "COPY"))


def test_the_commands_of_image_compose_file_and_unit_parse() -> None:
    _, _, final = stages()
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    unit = (DEPLOY / "lightir.service").read_text()
    (started,) = re.findall(r"^ExecStart=/opt/lightir/bin/lightir (.*)$", unit, flags=re.MULTILINE)
    for words in (named(final, "CMD")[0].words, compose["services"]["lightir"]["command"], started.split()):
        assert build_parser().parse_args(words).command == "serve"


def test_the_compose_file_mounts_files_that_are_there() -> None:
    compose = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    service = compose["services"]["lightir"]
    assert (DEPLOY / service["build"]["context"] / service["build"]["dockerfile"]).is_file()
    assert all(port.startswith("127.0.0.1:") for port in service["ports"])
    assert service["cap_drop"] == ["ALL"]
    for volume in compose["services"]["prometheus"]["volumes"]:
        assert (DEPLOY / volume.partition(":")[0]).is_file()


def test_systemd_takes_the_unit(tmp_path: Path) -> None:
    if shutil.which("systemd-analyze") is None:
        pytest.skip("systemd is not installed")
    unit = tmp_path / "lightir.service"
    text = (DEPLOY / "lightir.service").read_text()
    unit.write_text(text.replace("/opt/lightir/bin/lightir", shutil.which("true") or "/bin/true"))
    done = subprocess.run(["systemd-analyze", "verify", unit], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    command = ["systemd-analyze", "security", "--offline=true", "--threshold=20", unit]
    assert subprocess.run(command, capture_output=True).returncode == 0  # exposure up to 2.0 of 10


def test_every_metric_that_is_named_exists(shop: Path, connect: Any) -> None:
    with connect(shop, max_body_bytes=10) as client:
        client.get("/v1/info")
        client.post("/v1/search", json={"query": "longer than ten bytes"})
        shown = set(METRIC.findall(client.get("/metrics").text))
    rules = yaml.safe_load((DEPLOY / "alerts.yml").read_text())["groups"][0]["rules"]
    alerts = {name for rule in rules for name in METRIC.findall(rule["expr"])}
    page = set(METRIC.findall((ROOT / "docs" / "operations.md").read_text()))
    assert len(alerts) >= 5
    assert alerts <= shown
    assert alerts <= page
    assert page <= shown
    families = {name.removesuffix("_total") for name in shown if not re.search(r"_(bucket|sum|count|created)$", name)}
    assert families == {name.removesuffix("_total") for name in page if not re.search(r"_(bucket|sum|count)$", name)}


def test_promtool_takes_the_alerts() -> None:
    if shutil.which("promtool") is None:
        pytest.skip("promtool is not installed")
    assert subprocess.run(["promtool", "check", "rules", DEPLOY / "alerts.yml"], capture_output=True).returncode == 0


@pytest.mark.long
def test_the_steps_of_the_image_make_a_service() -> None:
    done = subprocess.run([sys.executable, DEPLOY / "try_image.py"], capture_output=True, text=True)
    assert done.returncode == 0, done.stdout + done.stderr
