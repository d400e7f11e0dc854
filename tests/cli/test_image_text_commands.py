"""Pictures and texts as vectors on the command line: `embed --image`, classes by their names, searching pictures."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import legato
from tiny_pictures import SIDE, picture_model, word_tokenizer, write_picture


@pytest.fixture(scope="module")
def clip(tmp_path_factory: pytest.TempPathFactory) -> Path:
    tower = {"layers": 1, "width": 8, "heads": 2}
    text = {**tower, "length": 12, "eos": word_tokenizer().eos_id}
    folder = tmp_path_factory.mktemp("clip") / "model"
    return picture_model(folder, "clip", vision={**tower, "image": SIDE, "patch": 4}, text=text, projection=6)


@pytest.fixture
def photos(tmp_path: Path) -> Path:
    for number, colour in enumerate(("red", "blue", "grey")):
        write_picture(tmp_path / "photos" / f"{colour}.png", colour, number)
    return tmp_path / "photos"


def test_embed_gives_a_vector_of_a_picture(clip: Path, photos: Path, command: Any) -> None:
    held = legato.load(clip)
    expected = held.embed(image=[photos / "blue.png", photos / "red.png"])
    line = command("embed", clip, "--image", photos / "blue.png").out
    np.testing.assert_allclose([float(number) for number in line.split("\t")], expected[0], rtol=1e-5)
    told = json.loads(command("embed", clip, "--image", photos / "red.png", "--json").out)
    assert told["image"] == str(photos / "red.png")
    np.testing.assert_allclose(told["vector"], expected[1], rtol=1e-5)
    words = json.loads(command("embed", clip, "a red dog", "--json").out)
    np.testing.assert_allclose(words["vector"], held.embed("a red dog"), rtol=1e-5)


def test_embed_writes_the_pictures_of_a_folder(clip: Path, photos: Path, tmp_path: Path, command: Any) -> None:
    answer = command("embed", clip, "--image", photos, "--out", tmp_path / "v.npz", "--json")
    told = json.loads(answer.out)
    assert (told["images"], told["width"]) == (3, 6)
    held = np.load(tmp_path / "v.npz")
    assert held["images"].tolist() == ["blue.png", "grey.png", "red.png"]
    expected = legato.load(clip).embed(image=[photos / name for name in held["images"]])
    np.testing.assert_allclose(held["vectors"], expected, rtol=1e-5, atol=1e-7)
    command("embed", clip, "--image", photos / "red.png", "--image", photos / "blue.png", "--out", tmp_path / "v.npy")
    np.testing.assert_allclose(np.load(tmp_path / "v.npy"), expected[[2, 0]], rtol=1e-5, atol=1e-7)


def test_predict_chooses_a_label_by_its_name(clip: Path, photos: Path, command: Any) -> None:
    shown = str(photos / "red.png")
    answer = command("predict", clip, shown, "--labels", "a red dog,a big cat", "--nbest", "2")
    found = [line.split("\t") for line in answer.out.splitlines()]
    assert {name for _, name, _ in found} == {"a red dog", "a big cat"}
    assert sum(float(share) for *_, share in found) == pytest.approx(1, abs=1e-3)
    told = json.loads(command("predict", clip, shown, "--labels", "dog,cat", "--template", "a {label}", "--json").out)
    same = legato.load(clip).predictions([shown], labels=["a dog", "a cat"])[0].answers[0]
    assert told["answers"][0]["text"] == same.text.removeprefix("a ")
    assert told["answers"][0]["probability"] == pytest.approx(same.score)
    names = [
        line.split("\t")[0] for line in command("predict", clip, "--file", photos, "--labels", "a,b").out.split("\n")
    ]
    assert names[:3] == ["blue.png", "grey.png", "red.png"]


def test_predict_searches_pictures_and_texts(clip: Path, photos: Path, tmp_path: Path, command: Any) -> None:
    (tmp_path / "lines.txt").write_text("a dog\na cat\n")
    found = command("predict", clip, photos / "red.png", "--search", tmp_path / "lines.txt").out.splitlines()
    assert {line.split("\t")[0] for line in found} == {"a dog", "a cat"}
    found = command("predict", clip, "a dog", "--search", photos, "--nbest", "3").out.splitlines()
    cosines = [float(line.split("\t")[-1]) for line in found]
    assert cosines == sorted(cosines, reverse=True)
    assert len(found) == 3


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("embed", "CLIP", "a dog", "--image", "PHOTOS/red.png"), "give texts or --image, not both"),
        (("embed", "CLIP", "--image", "PHOTOS/rad.png"), "did you mean"),
        (("embed", "CLIP", "--image", "PHOTOS/red.png", "--pool", "cls"), "--layers and --pool are for texts"),
        (("embed", "VIT", "a dog"), "this model reads no text but image"),
        (("predict", "CLIP", "PHOTOS/red.png"), "say what to choose from"),
        (("predict", "CLIP", "PHOTOS/red.png", "--labels", "a,b", "--template", "x"), "a template has {label} once"),
        (("predict", "CLIP", "PHOTOS/red.png", "--shots", "x.tsv"), "--shots is for asking a model that writes"),
        (("predict", "VIT", "PHOTOS/red.png", "--labels", "a,b"), "--labels is for asking a model that writes"),
        (("predict", "CLIP", "PHOTOS/red.png", "--search", "PHOTOS/../none"), "there is no file"),
        (("predict", "CLIP", "PHOTOS/none.png", "--labels", "a,b"), "there is no picture"),
    ],
)
def test_what_does_not_go_is_refused_in_one_line(
    words: tuple[str, ...], message: str, clip: Path, photos: Path, tmp_path: Path, command: Any
) -> None:
    if "VIT" in words:
        picture_model(tmp_path / "vit", layers=1, width=8, heads=2, image=SIDE, patch=4)
    places = {"CLIP": str(clip), "VIT": str(tmp_path / "vit")}
    given = [places.get(word, word.replace("PHOTOS", str(photos))) for word in words]
    answer = command(*given)
    assert answer.code == 2
    assert message in answer.err
    assert answer.err.count("\n") == 1


def test_a_model_of_text_reads_no_picture(photos: Path, tmp_path: Path, command: Any) -> None:
    from tiny_adapted import published_folder

    folder = published_folder(tmp_path / "bert", "bert", layers=1)
    answer = command("embed", folder, "--image", photos / "red.png")
    assert (answer.code, answer.err) == (2, f"legato: {folder} reads no pictures\n")
