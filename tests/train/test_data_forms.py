"""Every form of training data works in a whole run, under its name in a recipe."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from collections_for_training import TOPICS
from lightir.cli import main
from lightir.data import LIGHTRETRIEVER_RULES, DuplicateRules
from lightir.errors import InvalidInput, NotFound
from lightir.train.mining.miner import negatives_files
from lightir.train.recipes.contrastive_recipe import ContrastiveRecipe
from lightir.train.recipes.recipe_files import recipe_yaml
from lightir.train.recipes.settings import DataRecipe
from lightir.train.run.loop import Loop
from lightir.train.stages.contrastive import train
from lightir.train.stages.stage_data import open_sets


def triples() -> Iterator[tuple[str, str, str]]:
    """Yield query, positive and negative, two triples per topic."""
    for number, topic in enumerate(TOPICS):
        for step in (1, 2):
            other = TOPICS[(number + step) % len(TOPICS)]
            yield f"what is a {topic}", f"text about the {topic} alone", f"text about the {other} alone"


def test_a_recipe_sets_what_counts_as_close_to_a_held_out_query(
    recipe: ContrastiveRecipe, datasets: tuple[Path, Path]
) -> None:
    """Training and development queries of the data set share two of four words."""
    held_out = dataclasses.replace(recipe, data=recipe.data[:1], held_out=(str(datasets[0]),))
    with pytest.raises(InvalidInput, match="every query is too close"):
        open_sets(held_out, negatives=[None])
    for rules in (LIGHTRETRIEVER_RULES, DuplicateRules(min_jaccard=0.6)):
        (kept,), report = open_sets(dataclasses.replace(held_out, decontamination=rules), negatives=[None])
        assert len(kept) == 3 * len(TOPICS)
        assert report is not None
        assert report.rules == rules


@pytest.fixture
def forms(tmp_path: Path) -> dict[str, DataRecipe]:
    """Return the same training examples as text triples, id triples and two kinds of Hugging Face data sets."""
    rows = list(triples())
    (tmp_path / "texts.tsv").write_text("".join("\t".join(row) + "\n" for row in rows))
    folder = tmp_path / "marco"
    folder.mkdir()
    passages = sorted({text for row in rows for text in row[1:]})
    queries = sorted({row[0] for row in rows})
    (folder / "collection.tsv").write_text("".join(f"p{i}\t{text}\n" for i, text in enumerate(passages)))
    (folder / "queries.tsv").write_text("".join(f"q{i}\t{text}\n" for i, text in enumerate(queries)))
    ids = [f"q{queries.index(a)}\tp{passages.index(b)}\tp{passages.index(c)}\n" for a, b, c in rows]
    (folder / "ids.tsv").write_text("".join(ids))
    result = {"texts": DataRecipe(str(tmp_path / "texts.tsv")), "ids": DataRecipe(str(folder / "ids.tsv"))}
    datasets = pytest.importorskip("datasets")
    names = ("anchor", "positive", "negative")
    plain = datasets.Dataset.from_list([dict(zip(names, row, strict=True)) for row in rows])
    datasets.DatasetDict({"part": plain}).save_to_disk(tmp_path / "plain")
    passage = {text: {"docid": f"p{i}", "title": "", "text": text} for i, text in enumerate(passages)}
    tevatron = [
        {"query_id": a, "query": a, "positive_passages": [passage[b]], "negative_passages": [passage[c]]}
        for a, b, c in rows
    ]
    datasets.Dataset.from_list(tevatron).save_to_disk(tmp_path / "tevatron")
    return result | {
        "plain": DataRecipe(f"hf:{tmp_path / 'plain'}", split="part"),
        "tevatron": DataRecipe(f"hf:{tmp_path / 'tevatron'}"),
    }


def test_sets_of_one_name_take_an_alias(
    recipe: ContrastiveRecipe, forms: dict[str, DataRecipe], tmp_path: Path
) -> None:
    """Two files of one name, and two splits of one Hugging Face data set, train together under their aliases."""
    other = tmp_path / "other"
    other.mkdir()
    (other / "texts.tsv").write_text("what is tea\tleaves in hot water\ta tower of stone\n" * 4)
    same = (forms["texts"], DataRecipe(str(other / "texts.tsv")), forms["plain"], forms["plain"])
    with pytest.raises(InvalidInput, match="2 training sets have the name 'texts': give them an `alias` each"):
        open_sets(dataclasses.replace(recipe, data=same[:2]), negatives=[None, None])
    aliased = tuple(dataclasses.replace(data, alias=name) for data, name in zip(same, "abcd", strict=True))
    held_out = dataclasses.replace(recipe, data=aliased, held_out=(recipe.data[0].name,))
    sets, report = open_sets(held_out, negatives=[None] * 4)
    assert [(training.name, len(training)) for training in sets] == [("a", 12), ("b", 1), ("c", 12), ("d", 12)]
    assert report is not None
    assert list(report.sets) == list("abcd")
    aliased = aliased[:1] + aliased[2:]
    settings = dataclasses.replace(recipe.optimisation, steps=2)
    model = train(dataclasses.replace(recipe, data=aliased, optimisation=settings), tmp_path / "m", device="cpu")
    assert list(json.loads((model / "training" / "data.json").read_text())) == ["a", "c", "d"]


def losses(model: Path) -> list[float]:
    records = [json.loads(line) for line in (model / "training" / "log.jsonl").read_text().splitlines()]
    return [record["loss"] for record in records if "loss" in record]


@pytest.mark.parametrize("form", ["texts", "ids", "plain", "tevatron"])
def test_a_run_on_it_is_resumed_in_the_middle_of_an_epoch(
    form: str, forms: dict[str, DataRecipe], recipe: ContrastiveRecipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    heads = dataclasses.replace(recipe.heads, standardize=False, calibrate=0.0, recalibrate=False)
    settings = dataclasses.replace(recipe.optimisation, steps=4)
    chosen = dataclasses.replace(
        recipe, data=(forms[form],), optimisation=settings, heads=heads, evaluation=type(recipe.evaluation)()
    )
    whole = train(chosen, tmp_path / "whole", device="cpu")

    def cut(self: Loop) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        patched.setattr(Loop, "evaluate", cut)  # after the last step; the checkpoint is of step 4 then
        with pytest.raises(KeyboardInterrupt):
            train(chosen, tmp_path / "cut", device="cpu")
    (tmp_path / "cut.run" / "checkpoints" / "step-0000004").rename(tmp_path / "aside")
    resumed = train(chosen, tmp_path / "cut", resume=True, device="cpu")
    assert losses(resumed) == losses(whole)
    assert json.loads((whole / "training" / "data.json").read_text()) == json.loads(
        (resumed / "training" / "data.json").read_text()
    )


def test_queries_that_a_model_made_train_another(
    recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    """Run doc2query end to end: generate queries for a corpus without labels and train on them for two steps."""
    made = tmp_path / "queries.jsonl"
    expand = ["expand", recipe.model.address, str(datasets[0]), "-n", "2", "--max-tokens", "6", "--training"]
    assert main([*expand, "-o", str(made), "--dtype", "fp32", "--device", "cpu"]) == 0
    queries = {json.loads(line)["query"] for line in made.read_text().splitlines()}
    (tmp_path / "recipe.yaml").write_text(recipe_yaml(recipe))
    changes = (f"data=[{{name: {made}}}]", "optimisation.steps=2", "optimisation.negatives=0")
    options = [option for change in changes for option in ("--set", change)]
    out = tmp_path / "model"
    assert main(["train", str(tmp_path / "recipe.yaml"), *options, "-o", str(out), "--device", "cpu"]) == 0
    assert len(losses(out)) == 2
    (trained_on,) = json.loads((out / "training" / "data.json").read_text()).values()
    assert trained_on["examples"] == len(made.read_text().splitlines()) >= len(queries) > 2


def test_all_forms_hold_the_same_examples(forms: dict[str, DataRecipe], recipe: ContrastiveRecipe) -> None:
    result = []
    for data in forms.values():
        (training,), _ = open_sets(dataclasses.replace(recipe, data=(data,)), negatives=[None])
        documents = training.documents
        result.append(
            {
                example.query: (
                    [documents[d].text for d in example.positive_ids],
                    [documents[d].text for d in example.negative_ids],
                )
                for example in training.examples
            }
        )
    assert len(result[0]) == len(TOPICS)
    assert all(item == result[0] for item in result)


def test_held_out_documents_are_not_trained_on(
    forms: dict[str, DataRecipe], recipe: ContrastiveRecipe, datasets: tuple[Path, Path], tmp_path: Path
) -> None:
    held = tmp_path / "held"
    (held / "qrels").mkdir(parents=True)
    (held / "corpus.jsonl").write_text('{"_id": "x", "text": "Text about the river alone!"}\n')
    (held / "queries.jsonl").write_text('{"_id": "y", "text": "words of its own"}\n')
    (held / "qrels" / "test.tsv").write_text("query-id\tcorpus-id\tscore\ny\tx\t1\n")
    plain = dataclasses.replace(recipe, data=(forms["ids"],), held_out=(str(held),))
    (kept,), _ = open_sets(plain, negatives=[None])
    (fewer,), report = open_sets(dataclasses.replace(plain, held_out_documents=True), negatives=[None])
    gone = {e.query for e in kept.examples} - {e.query for e in fewer.examples}
    assert gone == {"what is a river"}
    assert report is not None
    assert report.sets["ids"].by_rule["shared_document"] == 1


def test_what_whole_examples_have_not_is_refused(
    forms: dict[str, DataRecipe], recipe: ContrastiveRecipe, tmp_path: Path
) -> None:
    def opened(data: DataRecipe) -> None:
        chosen = dataclasses.replace(recipe, data=(data,))
        open_sets(chosen, negatives=negatives_files(chosen, tmp_path))

    with pytest.raises(InvalidInput, match="no negatives can be mined"):
        opened(dataclasses.replace(forms["ids"], negatives="bm25"))
    with pytest.raises(InvalidInput, match="without a split 'dev'"):
        opened(dataclasses.replace(forms["texts"], split="dev"))
    with pytest.raises(InvalidInput, match="has whole examples"):
        opened(dataclasses.replace(forms["plain"], pairs="titles"))
    with pytest.raises(NotFound, match=r"'nowhere\.tsv\.gz': there is no such file"):
        opened(DataRecipe("nowhere.tsv.gz"))
