"""Pictures and texts in one space: it learns which go together, resumes to the same bits, refuses in a line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import transformers
from PIL import Image

import legato
from legato.data.formats.captions import read_captions
from legato.errors import ConfigError, LegatoError
from legato.folders.model_folder import load_model
from legato.models.clip import CLIPModel
from legato.registry import TASKS
from legato.runs.compare import table_of
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.embedding.picture_vectors import PictureVectors
from legato.tasks.image_text.matcher import Matcher
from tiny_adapted import published_folder
from tiny_pictures import SIDE, TINY, TOWERS, captioned, picture_model, pixels, write_jsonl, write_picture
from tiny_runs import read_metrics, weights_digest


def settings(train: str, **changes: Any) -> dict[str, Any]:
    """Of a run that takes a second; `train__lr` is train.lr."""
    usual = {key: value for key, value in TINY.items() if key.startswith(("train.", "device"))}
    files = {"data.train": train, "data.valid": train, "tokenizer": "word"}
    return {**usual, **TOWERS, **files, **{key.replace("__", "."): value for key, value in changes.items()}}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run that knows which captions are of red pictures."""
    folder = tmp_path_factory.mktemp("matched")
    captioned(folder)
    rows = [{"image": f"{n}.png", "caption": f"A {('red', 'blue')[n % 2]} square."} for n in range(12)]
    given = settings(write_jsonl(folder / "train.jsonl", rows), train__steps=40, train__lr=0.003)
    given |= {"data.metric": "loss", "train.validate_every": 20}  # of captions of two kinds recalls say little
    legato.train("image-text", given, out=folder / "run", quiet=True)
    return folder


def test_it_learns_which_texts_go_with_which_pictures(home: Path) -> None:
    held = legato.load(home / "run")
    labels = ["A blue square.", "A red square."]
    assert held.predict([pixels("red", 77), pixels("blue", 78)], labels=labels) == labels[::-1]
    named = held.predict(pixels("red", 77), labels="blue,red", template="A {label} square.", nbest=2)
    assert named == ["red", "blue"]
    images = held.embed(image=[pixels("red", 77), pixels("blue", 78)])
    texts = held.embed(["A red square.", "A blue square."])
    assert ((images @ texts.T).argmax(1) == [0, 1]).all()
    np.testing.assert_allclose(np.linalg.norm(np.concatenate([images, texts]), axis=1), 1, rtol=1e-5)
    valid = [line for line in read_metrics(home / "run") if line["kind"] == "valid"]
    assert valid[-1]["loss"] < valid[0]["loss"]
    assert (valid[-1]["pictures"], valid[-1]["captions"]) == (12, 12)


def test_the_probabilities_are_those_of_the_scaled_cosines(home: Path) -> None:
    held = legato.load(home / "run")
    shown, labels = pixels("red", 5), ["A red square.", "all is blue"]
    answer = held.predictions([shown], labels=labels)[0].answers[0]
    cosines = torch.from_numpy(held.embed(labels) @ held.embed(image=shown))
    expected = (held.module.logit_scale.exp().item() * cosines).softmax(0)  # type: ignore[operator]
    found = [answer.more["probabilities"][label] for label in labels]
    torch.testing.assert_close(torch.tensor(found), expected, rtol=1e-4, atol=1e-6)


def test_scores_are_of_both_ways_and_show_the_worst_pictures(home: Path) -> None:
    held = legato.load(home / "run")
    found = held.evaluate(test=str(home / "captions.jsonl"))
    assert (found["pictures"], found["captions"]) == (12, 24)
    assert {f"{side}_recall_{k}" for side in ("text", "image") for k in (1, 5, 10)} <= found.keys()
    assert found["text_rank"] >= 1
    title, columns, rows = found["details"][0]
    assert title == "worst pictures, 10 of 12"
    assert columns == ["picture", "rank", "its nearest caption", "the nearest of all"]
    assert rows[0][1] == max(row[1] for row in rows)


def test_what_is_nearest_is_found_among_texts_and_among_pictures(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "run")
    (tmp_path / "lines.txt").write_text("A blue square.\nA red square.\n")
    red = write_picture(tmp_path / "photos" / "red.png", "red", 55)
    write_picture(tmp_path / "photos" / "blue.png", "blue", 56)
    lines, photos = str(tmp_path / "lines.txt"), str(tmp_path / "photos")
    assert held.predict(str(red), search=lines, nbest=2) == ["A red square.", "A blue square."]
    assert held.predict("A blue square.", search=photos, nbest=2) == ["blue.png", "red.png"]
    assert held.predict(pixels("red", 57), search=photos, nbest=2) == ["red.png", "blue.png"]
    found = held.predictions(["A red square.", " ", str(red)], search=photos)
    assert found[1].problem == "the text is empty"
    assert [answer.text for answer in found[0].answers] == [answer.text for answer in found[2].answers]


def test_a_folder_is_embedded_once_until_a_picture_changes(
    home: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held, photos = legato.load(home / "run"), tmp_path / "photos"
    for name, colour in (("one", "red"), ("two", "blue")):
        write_picture(photos / f"{name}.png", colour, 55)
    embedded: list[int] = []
    embed = PictureVectors.embed

    def counted(self: PictureVectors, pictures: Any, *more: Any) -> Any:
        embedded.append(len(pictures))
        return embed(self, pictures, *more)

    monkeypatch.setattr(PictureVectors, "embed", counted)
    for _ in range(2):
        assert held.predict("A blue square.", search=str(photos)) == "two.png"
    assert embedded == [2]
    for name, colour in (("one", "blue"), ("two", "red")):
        write_picture(photos / f"{name}.png", colour, 55)
    assert held.predict("A blue square.", search=str(photos)) == "one.png"
    assert embedded == [2, 2]


def test_their_library_reads_the_folder_and_finds_the_same_vectors(home: Path) -> None:
    folder = home / "run" / "best"
    held = legato.load(folder)
    theirs = transformers.CLIPModel.from_pretrained(folder).eval()
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    processor = transformers.CLIPImageProcessor.from_pretrained(folder)
    texts, shown = ["A red square.", "all is blue"], [Image.fromarray(pixels("red", seed)) for seed in (1, 2)]
    with torch.no_grad():
        expected = theirs(
            **tokenizer(texts, padding=False, return_tensors="pt"), **processor(shown, return_tensors="pt")
        )
    np.testing.assert_allclose(held.embed(texts), expected.text_embeds, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(held.embed(image=shown), expected.image_embeds, rtol=1e-4, atol=1e-5)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_run_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    given = settings(str(home / "captions.jsonl"), data__augment__flip="true", train__checkpoint_every=3)
    given |= {"train.schedule": "constant", "train.warmup": 0}
    legato.train("image-text", given, out=tmp_path / "whole", quiet=True)
    legato.train("image-text", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")
    both = [json.loads((tmp_path / run / "last" / "config.json").read_text()) for run in ("whole", "part")]
    assert both[0]["text_config"] == both[1]["text_config"]  # the EOS token among it


def job_of(given: dict[str, Any]) -> Any:
    plan = plan_of(check(settings_for("image-text", given)), torch.device("cpu"))
    return TASKS.get("image-text").prepare(plan, lambda _: None)


def test_a_batch_is_drawn_at_random_and_is_always_full(home: Path, tmp_path: Path) -> None:
    rows = [{"image": str(home / f"{n}.png"), "captions": ["a", "a b c"]} for n in range(12)]
    job = job_of(settings(write_jsonl(tmp_path / "t.jsonl", rows), train__batch_rows=5))
    assert job.batches.steps_per_epoch == 4  # of 24 captions
    batches = [job.batches.at(step) for step in range(8)]
    assert {batch.rows for batch in batches} == {5}
    assert sum(batch.inputs.lengths is not None for batch in batches) > 4  # short and long ones together
    kept = job.pixels["train"].take(batches[0].labels.numpy())
    assert torch.equal(batches[0].source.values, kept)  # each row beside its own picture


def test_captions_of_one_picture_are_no_negatives_in_a_batch(home: Path) -> None:
    job = job_of(settings(str(home / "captions.jsonl"), train__batch_rows=24))
    model = CLIPModel(job.plan.model, job.sizes)
    batch = job.batches.at(0)
    found = job.loss(model, batch, None).total.item()
    data = read_captions(str(home / "captions.jsonl"))
    matcher = job.matcher(model.eval())
    vectors = matcher.vectors(data, job.pixels["train"])
    assert found / 24 == pytest.approx(matcher.loss(data, *vectors, 24), rel=1e-5)
    assert found / 24 < matcher.model.contrastive_losses(*_pairs(vectors)).mean().item()  # equal ones count there


def _pairs(vectors: Any) -> Any:
    return torch.from_numpy(vectors[0][np.repeat(np.arange(12), 2)]), torch.from_numpy(vectors[1])


@pytest.mark.slow
def test_towers_begin_with_those_of_folders(home: Path, tmp_path: Path) -> None:
    """The vision tower of any model of pictures; the text tower of CLIP, with its tokenizer."""
    resnet = picture_model(tmp_path / "resnet", "resnet", image=SIDE, embedding=4, widths=(4, 8), depths=(1, 1))
    begun = {"from.vision": str(resnet), "from.text": str(home / "run"), "train.frozen": ["vision"]}
    given = {**settings(str(home / "captions.jsonl"), train__steps=2), **begun}
    given = {
        key: value for key, value in given.items() if not key.startswith(("model.vision", "model.text", "token"))
    }
    legato.train("image-text", given, out=tmp_path / "run", quiet=True)
    made, text = load_model(tmp_path / "run" / "last"), load_model(home / "run" / "best")
    assert isinstance(made.module, CLIPModel)
    assert made.module.config.vision.name == "resnet"
    expected = load_model(resnet).module.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in made.module.vision.state_dict().items())
    assert made.tokenizer.fingerprint() == text.tokenizer.fingerprint()
    assert made.module.text.config == text.module.config.text
    assert json.loads((tmp_path / "run" / "last" / "config.json").read_text())["model_type"] == "legato-clip"
    assert Matcher.of(made).pictures.embed([pixels("red")]).shape == (1, 8)
    again = {**settings(str(home / "captions.jsonl"), train__steps=2), "from": str(home / "run")}
    again = {key: value for key, value in again.items() if not key.startswith(("model", "tokenizer"))}
    legato.train("image-text", {**again, "train.encoder_lr": 0}, out=tmp_path / "on", quiet=True)
    kept, moved = load_model(tmp_path / "on" / "last").module, text.module
    assert isinstance(kept, CLIPModel)
    assert isinstance(moved, CLIPModel)
    assert torch.equal(kept.vision.norm.weight, moved.vision.norm.weight)  # type: ignore[arg-type]
    assert not torch.equal(kept.text_projection.weight, moved.text_projection.weight)


@pytest.mark.slow
def test_its_vision_tower_becomes_an_encoder_of_others(home: Path, tmp_path: Path) -> None:
    given = {"data.train": str(home / "captions.jsonl"), "model": "seq2seq", "from.encoder": str(home / "run")}
    given |= {"model.width": 8, "model.layers": 1, "train.encoder_lr": 0, "train.steps": 1, "train.batch_rows": 4}
    legato.train("captioning", {**given, "device": "cpu"}, out=tmp_path / "run", quiet=True)
    made, tower = (
        load_model(tmp_path / "run" / "last").module.parts["encoder"],
        load_model(home / "run" / "best").module,
    )
    assert isinstance(tower, CLIPModel)
    expected = tower.vision.state_dict()
    assert all(torch.equal(tensor, expected[name]) for name, tensor in made.state_dict().items())


@pytest.mark.slow
def test_models_whose_parts_began_with_others_are_compared(home: Path, tmp_path: Path) -> None:
    given = {"data.train": str(home / "captions.jsonl"), "from.encoder": str(home / "run"), "device": "cpu"}
    given |= {"model.width": 8, "model.layers": 1, "train.encoder_lr": 0, "train.steps": 1, "train.batch_rows": 4}
    given |= {"model": "seq2seq", "model.attention": ["none", "mlp"], "match": "none"}
    comparison = legato.compare("captioning", given, out=tmp_path / "c", quiet=True)
    titles, rows, _ = table_of(comparison)
    assert [row[0] for row in rows] == ["model.attention=none", "model.attention=mlp"]
    assert {"valid bleu 4", "valid cider"} <= {*titles}


def test_scenes_are_learned_from_without_a_download(tmp_path: Path) -> None:
    scenes = {"size": 32, "count": 16, "valid_count": 4, "test_count": 4, "most_shapes": 2}
    given = settings("toy:scenes", **{f"data__scenes__{key}": value for key, value in scenes.items()})
    given = {key: value for key, value in given.items() if not key.startswith("model.text")} | {"train.steps": 2}
    given |= {"model.vision.image": 32, "model.vision.patch": 16}
    legato.train("image-text", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.module.config.text.length == 32  # type: ignore[union-attr]
    assert held.evaluate(test="toy:scenes")["pictures"] == 4


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "vit"}, "model=vit makes no vectors of pictures and texts; image-text needs model=clip"),
        ({"train.batch_rows": 1}, "1 pairs a step in 1 parts leave a pair no others"),
        ({"train.accumulate": 3}, "4 pairs a step in 3 parts leave a pair no others"),
        ({"data.augment.mixup": 0.2}, "no caption describes both"),
        (
            {"model.text.eos": 3},
            r"model\.text\.eos=3 is where a text's vector is read, and texts end in <eos>, token",
        ),
        ({"from.text": "FOLDER", "tokenizer": "char"}, r"from\.text=.* brings its own tokenizer"),
        ({"train.frozen": ["head"]}, r"train\.frozen=head: model=clip has no such part; it has vision and text"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(
    changes: dict[str, Any], message: str, home: Path, tmp_path: Path
) -> None:
    given = {**settings(str(home / "captions.jsonl")), **changes}
    given = {key: str(home / "run") if value == "FOLDER" else value for key, value in given.items()}
    if changes.get("model") == "vit" or "from.text" in changes:
        given = {key: value for key, value in given.items() if not key.startswith("model.")}
    with pytest.raises(ConfigError, match=message):
        legato.train("image-text", given, out=tmp_path / "run", quiet=True)


def test_the_text_tower_begins_with_a_text_tower_alone(home: Path, tmp_path: Path) -> None:
    folder = published_folder(tmp_path / "bert", "bert", layers=1)
    given = {"data.train": str(home / "captions.jsonl"), "from.text": str(folder)}
    message = r"from\.text=.* holds 'bert', and the text of model=clip is always 'clip-text'; .* another clip"
    with pytest.raises(ConfigError, match=message):
        legato.train("image-text", given, out=tmp_path / "run", quiet=True)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({}, r"say what to choose from: --labels \"a dog,a cat\", or --search"),
        ({"labels": "a,,b"}, "a label is empty"),
        ({"labels": "a,b,a"}, "the label 'a' stands there twice"),
        ({"labels": "a,b", "template": "a photo"}, r"a template has \{label\} once"),
        ({"labels": "a,b", "search": "lines.txt"}, "not both"),
        ({"search": "nowhere.txt"}, "there is no file .*nowhere.txt to search in"),
        ({"labels": "a,b", "beams": 3}, "image-text has no option 'beams'"),
    ],
)
def test_what_cannot_be_asked_is_said_in_a_line(options: dict[str, Any], message: str, home: Path) -> None:
    with pytest.raises(LegatoError, match=message):
        legato.load(home / "run").predict(pixels("red"), **options)


def test_a_picture_that_cannot_be_read_is_said_of_it_alone(home: Path, tmp_path: Path) -> None:
    held = legato.load(home / "run")
    (tmp_path / "b.jpg").write_text("no picture")
    found = held.predictions([str(tmp_path / "b.jpg"), pixels("red"), "a dog"], labels="red,blue")
    assert found[0].problem == f"{tmp_path}/b.jpg is no picture of JPEG, PNG, WEBP, GIF"
    assert found[1].answers
    assert "'a dog' is no file, and labels are chosen for pictures; what is nearest to a" in str(found[2].problem)
    with pytest.raises(LegatoError, match="give texts, or image=…, not both"):
        held.embed("a dog", image=pixels("red"))
    with pytest.raises(LegatoError, match="is no picture"):
        held.embed(image=tmp_path / "b.jpg")
    with pytest.raises(LegatoError, match="have length one; leave out --no-normalize"):
        held.embed("a dog", normalize=False)
    write_jsonl(tmp_path / "t.jsonl", [{"image": "b.jpg", "caption": "none"}])
    with pytest.raises(LegatoError, match=r"b\.jpg is no picture"):
        held.evaluate(test=str(tmp_path / "t.jsonl"))


def test_options_for_texts_are_none_for_pictures(home: Path) -> None:
    with pytest.raises(ConfigError, match="layers and pool are for texts"):
        legato.load(home / "run").embed(image=home / "0.png", pool="cls")


def test_any_model_of_pictures_gives_their_vectors(tmp_path: Path) -> None:
    shown = pixels("red", 3)
    for name, wide, more in (
        ("vit", 8, {"layers": 1, "width": 8, "heads": 2, "patch": 4}),
        ("resnet", 6, {"embedding": 4, "widths": (4, 6), "depths": (1, 1)}),
    ):
        held = legato.load(picture_model(tmp_path / name, name, image=SIDE, **more))
        assert held.embed(image=shown).shape == (wide,)
        assert np.linalg.norm(held.embed(image=[shown], normalize=True)) == pytest.approx(1, rel=1e-5)
