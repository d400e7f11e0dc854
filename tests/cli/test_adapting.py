"""From a table of labelled texts to an adapted model, and what is said of settings and folders that do not fit."""

from __future__ import annotations

import json
import random
import shutil
from pathlib import Path

import pytest

from answers import Command
from legato.folders.weights import load_tensors, save_tensors
from tiny_adapted import published_folder
from tiny_runs import WORDS

TEXT = (*WORDS, "good", "bad")
QUICK = ("train.steps=4", "train.validate_every=2", "train.samples=0", "train.tensorboard=false", "device=cpu")


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a small published encoder and labelled texts."""
    root = tmp_path_factory.mktemp("adapting")
    published_folder(root / "bert", "bert")
    draw = random.Random(0)
    for name, count in (("train", 60), ("dev", 12)):
        texts = [" ".join(draw.choices(TEXT, k=6)) for _ in range(count)]
        lines = [f"{text}\t{'yes' if 'good' in text else 'no'}\n" for text in texts]
        (root / f"{name}.tsv").write_text("sentence\tlabel\n" + "".join(lines))
    return root


def words(place: Path, *more: str) -> tuple[str, ...]:
    return (f"data.train={place}/train.tsv", f"data.valid={place}/dev.tsv", f"from={place}/bert", *QUICK, *more)


def one_line(answer: object, part: str) -> None:
    code, err = answer.code, answer.err  # type: ignore[attr-defined]
    said = [line for line in err.splitlines() if line.startswith("legato:")]
    assert code == 2
    assert len(said) == 1
    assert part in said[0]


def test_train_with_lora_then_predict_and_export(command: Command, place: Path, tmp_path: Path) -> None:
    run = tmp_path / "c"
    answer = command("train", "classification", *words(place, "adapt=lora", f"out={run}"))
    assert answer.code == 0, answer.err
    assert "trainable: 1," in answer.err
    adapted = command("predict", run, "a good dog", "--json")
    assert adapted.code == 0, adapted.err
    assert command("export", run, "--to", "hf", "--out", tmp_path / "whole").code == 0
    whole = command("predict", tmp_path / "whole", "a good dog", "--json")
    one, other = (json.loads(told.out.splitlines()[0])["answers"][0] for told in (adapted, whole))
    assert one["text"] == other["text"]
    assert one["score"] == pytest.approx(other["score"], abs=1e-5)
    assert command("eval", run, f"data.test={place}/dev.tsv").code == 0


def test_one_table_for_everything_that_can_be_tuned(command: Command, place: Path, tmp_path: Path) -> None:
    chosen = words(place, "adapt=[full,lora,bitfit,head]", f"out={tmp_path}/cmp")
    answer = command("compare", "classification", *chosen)
    assert answer.code == 0, answer.err
    for title in ("trainable", "peak memory", "minutes", "file", "valid accuracy"):
        assert title in answer.out
    told = json.loads((tmp_path / "cmp" / "compare.json").read_text())["entries"]
    trainable = [entry["trainable"]["mean"] for entry in told]
    sizes = [entry["saved_bytes"]["mean"] for entry in told]
    assert [entry["label"] for entry in told] == ["full", "lora", "bitfit", "head"]
    assert trainable == sorted(trainable, reverse=True)
    assert sizes == sorted(sizes, reverse=True)
    assert trainable[-1] == 2 * 16 + 2


def test_scores_on_what_was_learned_are_told(command: Command, place: Path, tmp_path: Path) -> None:
    said = "note: data.valid holds what data.train does, so its scores say how well that was learned"
    shutil.copy(place / "train.tsv", tmp_path / "copy.tsv")
    same = command("train", "classification", *words(place, f"data.valid={tmp_path}/copy.tsv", f"out={tmp_path}/a"))
    assert same.code == 0
    assert said in same.err
    held_out = command("train", "classification", *words(place, "data.valid=null", f"out={tmp_path}/b"))
    assert held_out.code == 0
    assert "note: data.valid" not in held_out.err


def test_what_does_not_fit_is_told_in_one_line(command: Command, place: Path, tmp_path: Path) -> None:
    out = f"out={tmp_path}/x"
    one_line(command("train", "classification", *words(place, "adapt=lora", "adapt.rank=64", out)), "adapt.rank=64")
    one_line(
        command("train", "classification", *words(place, "adapt=lora", "adapt.targets=[wq]", out)),
        "nothing in this bert is called 'wq'; there is attention.output.dense",
    )
    chosen = [word for word in words(place, "adapt=lora", out) if not word.startswith("from=")]
    one_line(command("train", "classification", *chosen), "name it: from=MODEL")
    assert not (tmp_path / "x").exists()


def test_an_adapter_for_another_base_names_both(command: Command, place: Path, tmp_path: Path) -> None:
    base, run = tmp_path / "base", tmp_path / "c"
    shutil.copytree(place / "bert", base)
    chosen = words(place, "adapt=bitfit", f"out={run}", "train.steps=1")
    assert command("train", "classification", *chosen, f"from={base}").code == 0
    tensors = load_tensors(base / "model.safetensors")
    save_tensors({name: tensor * 1.01 for name, tensor in tensors.items()}, base / "model.safetensors")
    answer = command("predict", run, "a good dog")
    one_line(answer, "is an adapter for another base: it was trained for")
    assert str(base) in answer.err
    shutil.rmtree(base)
    one_line(command("predict", run, "a good dog"), "which is not there")
