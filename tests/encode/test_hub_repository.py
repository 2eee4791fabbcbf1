"""Models are uploaded to a local hub by Hugging Face's client, and downloaded from it at a pinned commit."""

from __future__ import annotations

import dataclasses
import json
import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from lightir.addresses import resolve_model_folder, shipped_models
from lightir.contract import Contract, DenseHead, DocumentPolicy, SparseHead
from lightir.encode import cache_vocabulary
from lightir.encode.exports.hub_repository import upload_model
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


def test_an_uploaded_model_is_downloaded_at_its_commit(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=True)
    (model / "checkpoint-1").mkdir()
    (model / "checkpoint-1" / "state.json").write_text("{}")
    (tmp_path / "root" / "models").mkdir(parents=True)
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        environment["HF_TOKEN"] = "hf_pretended"
        uploaded = lightir(environment, "upload", model, "owner/tiny", "--license", "mit", "--json")
        assert uploaded.returncode == 0, uploaded.stderr
        address = json.loads(uploaded.stdout)["address"]
        downloaded = lightir(environment, "download", address, "--out", tmp_path / "downloaded", "--json")
        assert downloaded.returncode == 0, downloaded.stderr
        assert json.loads(downloaded.stdout)["address"] == address
        newest = lightir(environment, "download", "owner/tiny", "--out", tmp_path / "newest")
        assert f"{address} written to" in newest.stderr
        other = lightir(environment, "download", f"owner/tiny@{'1' * 40}", "--out", tmp_path / "other")
        assert other.returncode == 1
        assert "cannot download owner/tiny@1111" in other.stderr
        again = lightir(environment, "download", "owner/tiny", "--out", tmp_path / "newest")
        assert "--overwrite" in again.stderr
        save_tiny("llama", tmp_path / "root" / "models" / "owner" / "plain")
        plain = lightir(environment, "download", "owner/plain", "--out", tmp_path / "other")
        assert "owner/plain is not a lightir model" in plain.stderr
    assert not (tmp_path / "other").exists()
    downloaded_files, own_files = checksums_of_files(tmp_path / "downloaded"), checksums_of_files(model)
    assert downloaded_files.pop("README.md")
    assert own_files.pop("checkpoint-1/state.json")
    assert downloaded_files == own_files
    assert LightRetriever.load(tmp_path / "downloaded").contract.fingerprint == Contract.load(model).fingerprint


def test_an_upload_without_a_hub_says_what_failed(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=True)
    with pretended_hub(tmp_path / "root", tmp_path / "home") as environment:
        environment["HF_HUB_OFFLINE"] = "1"
        failed = lightir(environment, "upload", model, "owner/tiny")
    assert failed.returncode == 1
    assert "cannot upload" in failed.stderr
    assert "HF_TOKEN" in failed.stderr


def test_what_others_cannot_load_is_not_uploaded(tmp_path: Path) -> None:
    model = save_model(tmp_path, whole=False)
    with pytest.raises(InvalidInput, match="others do not have"):
        upload_model(model, "owner/tiny")
    for name in ("tiny", "a/b/c", "../x", "owner/", "-/ x"):
        with pytest.raises(InvalidInput, match="expected OWNER/NAME"):
            upload_model(model, name)


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
    assert "lightir download owner/tiny --out tiny" in text
    assert "by a table of 258 terms, without a model" in text
    assert f"`org/base@{'5' * 40}`" in text
    assert "| instruction | Find it |" in text


@pytest.mark.skipif("minilm" not in shipped_models(), reason="the package lightir-minilm is not installed")
def test_the_card_of_minilm_names_pairs_and_gate() -> None:
    card = model_card(resolve_model_folder("minilm"), "owner/minilm")
    assert "by a table of 30,522 terms with rows for pairs of terms and a gate, without a model" in card
    assert "license" not in card
