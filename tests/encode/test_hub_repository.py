"""Models are pushed to a local hub by Hugging Face's client, and pulled from it at a pinned commit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import cache_vocabulary
from lightir.encode.exports.hub_repository import push_model
from lightir.encode.exports.model_card import model_card
from lightir.errors import InvalidInput
from lightir.files import checksums_of_files
from lightir.models.backbones import load_backbone
from lightir.models.encoder import LightRetriever
from lightir.models.model_folder import backbone_record
from lightir.models.own_weights import train_all
from lightir.text import QueryPolicy
from pretended_hub import pretended_hub
from tiny_models import save_tiny


def save_model(folder: Path, *, whole: bool) -> Path:
    """Save a model with a query encoder, with weights of its own or on a local base model."""
    save_tiny("llama", folder / "base")
    backbone = load_backbone(folder / "base")
    record = backbone_record(backbone)
    contract = Contract("lightretriever", record, QueryPolicy("Find it"), DocumentPolicy(), DenseHead(), SparseHead())
    LightRetriever(train_all(backbone) if whole else backbone, contract).save(folder / "model")
    cache_vocabulary(folder / "model")
    return folder / "model"


def lightir(environment: dict[str, str], *arguments: str | Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "lightir", *map(str, arguments)]
    return subprocess.run(command, env=environment, capture_output=True, text=True)


def test_a_pushed_model_is_pulled_at_its_commit(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=True)
    (model / "checkpoint-1").mkdir()
    (model / "checkpoint-1" / "state.json").write_text("{}")
    (tmp_path / "root" / "models").mkdir(parents=True)
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        environment["HF_TOKEN"] = "hf_pretended"
        pushed = lightir(environment, "push", model, "owner/tiny", "--license", "mit", "--json")
        assert pushed.returncode == 0, pushed.stderr
        address = json.loads(pushed.stdout)["address"]
        pulled = lightir(environment, "pull", address, "--out", tmp_path / "pulled", "--json")
        assert pulled.returncode == 0, pulled.stderr
        assert json.loads(pulled.stdout)["address"] == address
        newest = lightir(environment, "pull", "owner/tiny", "--out", tmp_path / "newest")
        assert f"{address} written to" in newest.stderr
        other = lightir(environment, "pull", f"owner/tiny@{'1' * 40}", "--out", tmp_path / "other")
        assert other.returncode == 1
        assert "cannot pull owner/tiny@1111" in other.stderr
        again = lightir(environment, "pull", "owner/tiny", "--out", tmp_path / "newest")
        assert "--overwrite" in again.stderr
        save_tiny("llama", tmp_path / "root" / "models" / "owner" / "plain")
        plain = lightir(environment, "pull", "owner/plain", "--out", tmp_path / "other")
        assert "owner/plain is not a lightir model" in plain.stderr
    assert not (tmp_path / "other").exists()
    pulled_files, own_files = checksums_of_files(tmp_path / "pulled"), checksums_of_files(model)
    assert pulled_files.pop("README.md")
    assert own_files.pop("checkpoint-1/state.json")
    assert pulled_files == own_files
    assert LightRetriever.load(tmp_path / "pulled").contract.fingerprint == Contract.load(model).fingerprint


def test_a_push_without_a_hub_says_what_failed(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=True)
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        environment["HF_HUB_OFFLINE"] = "1"
        failed = lightir(environment, "push", model, "owner/tiny")
    assert failed.returncode == 1
    assert "cannot push" in failed.stderr
    assert "HF_TOKEN" in failed.stderr


def test_what_others_cannot_load_is_not_pushed(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=False)
    with pytest.raises(InvalidInput, match="others do not have"):
        push_model(model, "owner/tiny")
    for name in ("tiny", "a/b/c", "../x", "owner/", "-/ x"):
        with pytest.raises(InvalidInput, match="expected OWNER/NAME"):
            push_model(model, name)


def test_the_card_says_what_the_model_is(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=True)
    contract = Contract.load(model)
    base = dataclasses.replace(contract.backbone, address=f"org/base@{'5' * 40}")
    dataclasses.replace(contract, backbone=base).save(model)
    card = model_card(model, "owner/tiny", license="apache-2.0")
    _, front_matter, text = card.split("---\n", 2)
    metadata = yaml.safe_load(front_matter)
    assert metadata == {
        "library_name": "lightir",
        "pipeline_tag": "feature-extraction",
        "tags": ["lightir", "retrieval", "dense", "sparse"],
        "license": "apache-2.0",
        "base_model": "org/base",
    }
    assert "# tiny\n" in text
    assert "lightir pull owner/tiny --out tiny" in text
    assert "by a table of 258 terms, without a model" in text
    assert f"`org/base@{'5' * 40}`" in text
    assert "| instruction | Find it |" in text


def test_the_card_of_minilm_names_pairs_and_gate() -> None:
    from lightir.addresses import resolve_model_folder

    card = model_card(resolve_model_folder("minilm"), "owner/minilm")
    assert "by a table of 30,522 terms with rows for pairs of terms and a gate, without a model" in card
    assert "license" not in card
