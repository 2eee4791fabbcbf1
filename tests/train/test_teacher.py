"""Sentence-transformers folders as teachers: their own pooling, frame and prompts, compared with plain transformers."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

from lightir.errors import InvalidInput
from lightir.train.distill import teacher as teacher_module
from lightir.train.distill.teacher import Teacher
from lightir.types import Document
from tiny_models import write_sentence_transformer

TEXTS = ["a river", "the harbor and its planets", "x"]
PROMPTS = {"query": "query: ", "passage": "passage: "}


def plainly(folder: Path, texts: list[str], pooling: str) -> Tensor:
    """Return (n, hidden) normalized vectors, text by text: the tokenizer's own frame, the model, plain pooling."""
    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModel.from_pretrained(folder).eval()
    rows = []
    for text in texts:
        ids = tokenizer(text, return_tensors="pt", truncation=True, max_length=60)["input_ids"]
        states = model(ids).last_hidden_state[0].double()
        rows.append({"mean": states.mean(0), "cls": states[0], "lasttoken": states[-1]}[pooling])
    return torch.nn.functional.normalize(torch.stack(rows), dim=-1).float()


@pytest.mark.parametrize("prompts", [None, PROMPTS], ids=["plain", "prompts"])
@pytest.mark.parametrize(
    ("name", "frame", "mode", "written"),
    [
        ("bert", "<s> $A </s>", "mean", {"pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}),
        ("bert", "<s> $A </s>", "cls", {"pooling_mode_mean_tokens": False, "pooling_mode_cls_token": True}),
        ("bert", "<s> $A </s>", "cls", {"pooling_mode": "cls"}),
        ("xlm-roberta", "<s> $A </s>", "mean", {"pooling_mode": "mean"}),
        ("qwen3", "$A </s>", "lasttoken", {"pooling_mode_lasttoken": True, "include_prompt": True}),
        ("qwen3", "$A", "lasttoken", {"pooling_mode": "lasttoken"}),
        ("llama", "<s> $A", "mean", {"pooling_mode": "mean"}),
    ],
)
@torch.no_grad()
def test_a_folder_gives_its_own_vectors(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    name: str,
    frame: str,
    mode: str,
    written: dict[str, object],
    prompts: dict[str, str] | None,
) -> None:
    monkeypatch.setattr(teacher_module, "fast_dtype", lambda _: torch.float32)
    folder = write_sentence_transformer(tmp_path / "st", name=name, frame=frame, pooling=written, prompts=prompts)
    teacher = Teacher.load(str(folder), max_tokens=60, device="cpu")
    before = prompts or {"query": "", "passage": ""}
    expected = plainly(folder, [before["query"] + text for text in TEXTS], mode)
    torch.testing.assert_close(teacher.queries(TEXTS), expected, rtol=0, atol=1e-3)
    texts = [*TEXTS, "long " * 40]
    expected = plainly(folder, [before["passage"] + text for text in texts], mode)
    if frame.endswith("</s>") or mode == "mean":  # truncated texts keep their frame in both implementations
        result = teacher.documents([Document(str(i), text) for i, text in enumerate(texts)])
        torch.testing.assert_close(result, expected, rtol=0, atol=1e-3)


@torch.no_grad()
def test_a_folder_that_sentence_transformers_writes_gives_its_vectors(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    modules = pytest.importorskip("sentence_transformers.sentence_transformer.modules")
    sentence_transformers = pytest.importorskip("sentence_transformers")
    monkeypatch.setattr(teacher_module, "fast_dtype", lambda _: torch.float32)
    plain = write_sentence_transformer(tmp_path / "plain", name="xlm-roberta")
    parts = [modules.Transformer(str(plain)), modules.Pooling(32, "mean"), modules.Normalize()]
    theirs = sentence_transformers.SentenceTransformer(modules=parts, device="cpu", prompts={"query": "query: "})
    theirs.max_seq_length = 20
    theirs.save(str(tmp_path / "theirs"))
    teacher = Teacher.load(str(tmp_path / "theirs"), max_tokens=60, device="cpu")
    texts = [*TEXTS, "long " * 40]
    expected = torch.from_numpy(theirs.encode_query(texts))
    torch.testing.assert_close(teacher.queries(texts), expected, rtol=0, atol=1e-3)
    expected = torch.from_numpy(theirs.encode_document(texts))
    result = teacher.documents([Document(str(i), text) for i, text in enumerate(texts)])
    torch.testing.assert_close(result, expected, rtol=0, atol=1e-3)


def test_an_older_folder_may_lower_case_and_one_without_a_length_is_refused(tmp_path: Path) -> None:
    folder = write_sentence_transformer(tmp_path / "st")
    (folder / "sentence_bert_config.json").unlink()
    with pytest.raises(InvalidInput, match="no maximum length, neither"):
        teacher_module.load_teacher(folder)
    (folder / "sentence_xlm-roberta_config.json").write_text('{"max_seq_length": 1000, "do_lower_case": true}')
    contract = teacher_module.load_teacher(folder).contract
    assert (contract.document.max_tokens, contract.query.max_tokens) == (256, 254)  # the length of its position table
    assert contract.document.lower_case
    assert contract.query.lower_case


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"pooling": {"pooling_mode_max_tokens": True}}, "pools by"),
        ({"pooling": {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True}}, "pools by"),
        ({"frame": "<s> $A </s> </s>"}, "frame"),
        ({"name": "llama", "frame": "<s> $A", "pooling": {"pooling_mode": "cls"}}, "first state"),
        ({"prompts": {"query": "q" * 80}}, "query prompt of 80"),
        ({"prompts": PROMPTS, "pooling": {"pooling_mode": "mean", "include_prompt": False}}, "leaves its prompts out"),
    ],
)
def test_what_a_contract_cannot_say_is_refused(tmp_path: Path, changes: dict[str, object], message: str) -> None:
    folder = write_sentence_transformer(tmp_path / "st", **changes)  # type: ignore[arg-type]
    with pytest.raises(InvalidInput, match=message):
        Teacher.load(str(folder), max_tokens=60, device="cpu")
