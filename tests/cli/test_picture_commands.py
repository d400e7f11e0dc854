"""`legato predict` of pictures: files, folders, lists and tables of them, and sheets of where a model looked."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

import legato
import tiny_runs
from legato.model import Model
from tiny_pictures import TINY, TINY_CAPTIONER, captioned, class_folders, picture_model, write_jsonl, write_picture
from tiny_reviews import settings as review_settings


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of pictures, a captioner with attention and one without, a classifier of texts."""
    folder = tmp_path_factory.mktemp("sight")
    photos, table = str(class_folders(folder / "train")), captioned(folder / "captions")
    classes = {**TINY, "data.train": photos, "data.valid": photos, "train.steps": 30, "train.lr": 0.01}
    legato.train("image-classification", {**classes, "train.samples": 0}, out=folder / "classes", quiet=True)
    words = {**TINY_CAPTIONER, "data.train": table, "data.valid": table, "train.steps": 20, "train.lr": 0.02}
    legato.train("captioning", words, out=folder / "words", quiet=True)
    legato.train("captioning", {**words, "model.attention": "none"}, out=folder / "blind", quiet=True)
    legato.train("classification", review_settings(folder, train__steps=2), out=folder / "texts", quiet=True)
    resnet = {"model": "resnet", "model.image": 8, "model.stem": "3x3", "model.widths": [4], "model.depths": [1]}
    small = {**{k: v for k, v in classes.items() if not k.startswith("model")}, **resnet, "train.steps": 1}
    legato.train("image-classification", small, out=folder / "resnet", quiet=True)
    return folder


@pytest.fixture
def photos(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of two pictures and one in a folder of its own, in which the commands run."""
    write_picture(tmp_path / "b.png", "blue", 50)
    write_picture(tmp_path / "a.png", "red", 51)
    write_picture(tmp_path / "more" / "c.png", "red", 52)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def lines(answer: Any) -> list[list[str]]:
    assert answer.code == 0, answer.err
    return [line.split("\t") for line in answer.out.splitlines()]


def test_pictures_on_the_command_line(command: Any, runs: Path, photos: Path) -> None:
    assert [line[0] for line in lines(command("predict", runs / "classes", "a.png"))] == ["red"]
    assert [line[0] for line in lines(command("predict", runs / "classes", "b.png", "a.png"))] == ["blue", "red"]
    found = lines(command("predict", runs / "classes", "b.png", "a.png", "--nbest", 2))
    assert [line[:2] for line in found] == [["0", "blue"], ["0", "red"], ["1", "red"], ["1", "blue"]]
    assert len(lines(command("predict", runs / "words", "a.png", "b.png", "--max-tokens", 3))) == 2


def test_training_counts_pictures_and_ends_with_what_to_do_next(command: Any, runs: Path, tmp_path: Path) -> None:
    photos = runs / "train"
    settings = {**TINY, "data.train": photos, "data.valid": photos, "train.steps": 2, "train.samples": 0}
    done = command("train", "image-classification", *tiny_runs.words(settings), f"out={tmp_path}/my run")
    assert re.search(r"^step 2/2 \(100%\)  loss .*  [\d.,]+ pictures/s  ", done.err, re.MULTILINE), done.err
    result = json.loads((tmp_path / "my run" / "result.json").read_text())
    assert result["speed_unit"] == "pictures"
    seconds = result["tokens"] / result["tokens_per_second"]
    assert result["speed"] * seconds == pytest.approx(2 * 4)  # steps, pictures of each
    place = f"'{tmp_path}/my run'"
    steps = [f"next: legato predict {place} photo.jpg", f"legato serve {place}", f"legato inspect {place} --serve"]
    assert [line.strip() for line in done.err.splitlines()[-3:]] == steps


def test_an_encoder_of_others_without_a_head_is_no_classifier_yet(command: Any, photos: Path) -> None:
    folder = picture_model(photos / "vit", layers=1, width=8, heads=2, image=8, patch=4)
    config = json.loads((folder / "config.json").read_text())
    del config["legato"]  # as published
    (folder / "config.json").write_text(json.dumps(config))
    answer = command("predict", folder, "a.png")
    told = "holds no classifier: its model has no head that names classes; train one: legato train image-classif"
    assert (answer.code, told in answer.err, answer.err.count("\n")) == (2, True, 1)


def test_a_captioner_is_no_model_to_generate_with(command: Any, runs: Path) -> None:
    answer = command("generate", runs / "words", "A dog")
    folder = runs / "words" / "best"
    told = f"legato: {folder} describes pictures: use legato predict\n"
    assert (answer.code, answer.err) == (2, told)


def test_a_folder_gives_each_picture_with_its_name_in_order(command: Any, runs: Path, photos: Path) -> None:
    (photos / "notes.txt").write_text("no picture")
    found = lines(command("predict", runs / "classes", "--file", photos))
    assert [line[:2] for line in found] == [["a.png", "red"], ["b.png", "blue"], ["more/c.png", "red"]]
    several = lines(command("predict", runs / "classes", "--file", "more", "--nbest", 2))
    assert [line[:2] for line in several] == [["c.png", "red"], ["c.png", "blue"]]


def test_a_list_and_a_table_give_an_answer_for_each_row(command: Any, runs: Path, photos: Path) -> None:
    (photos / "more" / "list.txt").write_text(f"{photos}/b.png\nc.png\na.png\n")  # whole, beside the list, from here
    found = lines(command("predict", runs / "classes", "--file", "more/list.txt"))
    assert [line[0] for line in found] == ["blue", "red", "red"]
    table = write_jsonl(photos / "t.jsonl", [{"id": 1, "image": "b.png"}, {"id": 2, "image": "a.png"}])
    answer = command("predict", runs / "classes", "--file", table)
    assert [line[0] for line in lines(answer)] == ["blue", "red"]
    assert answer.err == f"legato: note: {table}: reading 'image' as picture\n"
    assert command("predict", runs / "words", "--file", table).err == ""  # as in training
    named = write_jsonl(photos / "n.jsonl", [{"id": "b.png", "x": "a.png"}])
    assert lines(command("predict", runs / "classes", "--file", named, "--columns", "x"))[0][0] == "red"


def test_json_has_the_names(command: Any, runs: Path, photos: Path) -> None:
    for words in (["a.png", "b.png"], ["--file", str(photos)]):
        answer = command("predict", runs / "classes", *words, "--json")
        found = [json.loads(line) for line in answer.out.splitlines()]
        assert [row["input"] for row in found[:2]] == ["a.png", "b.png"]
        assert [row["answers"][0]["text"] for row in found[:2]] == ["red", "blue"]


def test_a_picture_that_cannot_be_read_leaves_the_others(command: Any, runs: Path, photos: Path) -> None:
    (photos / "bad.jpg").write_text("no picture")
    answer = command("predict", runs / "classes", "--file", photos)
    assert answer.code == 2
    assert [line.split("\t")[0] for line in answer.out.splitlines()] == ["a.png", "b.png", "bad.jpg", "more/c.png"]
    assert answer.out.splitlines()[2] == "bad.jpg\t"
    assert "legato: picture 3:" in answer.err
    assert "bad.jpg is no picture of JPEG, PNG, WEBP, GIF" in answer.err
    assert answer.err.endswith("legato: 1 of 4 could not be done; the rest is done\n")


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["none.png"], "legato: there is no picture none.png; check the path"),
        (["A dog runs."], "legato: 'A dog runs.' is no file, and this model reads pictures, not text; give a pict"),
        (["more"], "legato: more is a folder; give a picture in it, or --file more for all of them"),
        (["--file", "nowhere"], "legato: there is no file or folder nowhere; check the path"),
        (["--file", "empty"], "legato: empty holds no picture; those end in .jpg, .jpeg, .png, .webp, .gif"),
        (["--file", "t.jsonl"], "legato: t.jsonl, line 1: there is no picture none.png"),
        (["a.png", "--beams", "3"], "legato: image-classification has no option 'beams'"),
    ],
)
def test_what_will_not_do_is_one_line(command: Any, runs: Path, photos: Path, words: list[str], said: str) -> None:
    (photos / "empty").mkdir()
    write_jsonl(photos / "t.jsonl", [{"image": "none.png"}])
    answer = command("predict", runs / "classes", *words)
    assert (answer.code, answer.out.strip()) == (2, "")
    assert answer.err.startswith(said)
    assert answer.err.count("\n") == 1


def test_pictures_of_a_folder_are_printed_as_they_are_done(
    command: Any, runs: Path, photos: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    blocks: list[int] = []
    predictions = Model.predictions

    def count(self: Model, inputs: Any, **options: Any) -> Any:
        blocks.append(len(inputs))
        return predictions(self, inputs, **options)

    monkeypatch.setattr(Model, "predictions", count)
    (photos / "third.png").write_bytes((photos / "a.png").read_bytes())
    lines = command("predict", runs / "classes", "--file", ".").out.splitlines()
    assert len(lines) == sum(blocks)
    assert blocks[:2] == [1, 2]


@pytest.mark.parametrize(
    ("verb", "name", "advice"),
    [
        ("predict", "t.csv", "to read what is in it: --file t.csv (of a table, --columns names the texts)"),
        ("predict", "t.txt", "to read what is in it: --file t.txt (of a table, --columns names the texts)"),
        ("predict", "t.m4a", "give it a text"),
        ("embed", "t.txt", "to read its lines: --file t.txt"),
        ("inspect", "t.txt", "give it a text from it"),
    ],
)
def test_a_file_is_not_read_as_its_name(
    command: Any, runs: Path, photos: Path, verb: str, name: str, advice: str
) -> None:
    assert command(verb, runs / "texts", name).code == 0  # a text that only looks like a name
    (photos / name).write_text("text\na merry film\n")
    answer = command(verb, runs / "texts", name)
    assert (answer.code, answer.out) == (2, "")
    kind = {".csv": "table", ".txt": "text file"}.get(Path(name).suffix, "file")
    assert answer.err.startswith(f"legato: {name} is a {kind}, but ")
    assert answer.err.endswith(f" reads text; {advice}\n")


def test_a_picture_for_a_model_that_reads_none(command: Any, runs: Path, photos: Path) -> None:
    answer = command("predict", runs / "texts", "a merry film", "a.png")
    assert (answer.code, answer.out) == (2, "")
    assert answer.err == f"legato: a.png is a picture, but {runs / 'texts' / 'best'} reads text; give it a text\n"
    assert "picture" not in command("predict", runs / "texts", "none.png").err
    refused = command("predict", runs / "texts", "--file", "a.png")
    assert refused.code == 2
    assert refused.err == "legato: a.png is a picture, and classification reads text; give a file of that\n"
    assert "more holds no text file" in command("predict", runs / "texts", "--file", "more").err


def test_sheets_of_where_each_word_looked(command: Any, runs: Path, photos: Path) -> None:
    answer = command("predict", runs / "words", "a.png", "more/c.png", "--max-tokens", 3, "--attention", "out/seen")
    assert len(lines(answer)) == 2
    assert answer.err == "legato: note: where the model looked is in out/seen: 2 sheets\n"
    sheet = Image.open(photos / "out" / "seen" / "a.png")
    assert sheet.size == (4 * 164, 180)  # the picture, and three words
    assert (photos / "out" / "seen" / "c.png").is_file()


def test_sheets_of_each_head_and_how_far_it_looks(command: Any, runs: Path, photos: Path) -> None:
    write_picture(photos / "more" / "a.png")
    answer = command("predict", runs / "classes", "--file", ".", "--attention", "seen")
    assert len(lines(answer)) == 4
    assert "4 sheets; mean attention distance by layer, in pixels: " in answer.err
    assert sorted(path.name for path in (photos / "seen").iterdir()) == ["a-2.png", "a.png", "b.png", "c.png"]
    assert Image.open(photos / "seen" / "a.png").size == (3 * 164, 2 * 180)  # layers × heads
    assert np.asarray(Image.open(photos / "seen" / "a.png")).std() > 0


@pytest.mark.parametrize(
    ("run", "said"),
    [
        ("blind", "this model has no attention"),
        ("resnet", "resnet has no attention, so there is none to show"),
        ("texts", "a.png is a picture, but"),
    ],
)
def test_a_model_without_attention_says_so(command: Any, runs: Path, photos: Path, run: str, said: str) -> None:
    answer = command("predict", runs / run, "a.png", "--attention", "seen")
    assert (answer.code, answer.out) == (2, "")
    assert said in answer.err
    assert answer.err.count("\n") == 1
    assert not (photos / "seen").exists()


def test_a_folder_for_sheets_that_cannot_be_one(command: Any, runs: Path, photos: Path) -> None:
    answer = command("predict", runs / "classes", "a.png", "--attention", "b.png/x")
    assert answer.code == 2
    assert "b.png/x cannot be made a folder" in answer.err
