"""Where a model looks in a picture: weights over the grid, how far heads look, and what learned positions are."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

import legato
from legato.errors import DataError, LegatoError
from legato.inspect.pictures import (
    AttentionFolder,
    HeadMaps,
    WordMaps,
    attention_maps,
    attention_sheet,
    head_maps,
    laid_over,
    mean_attention_distance,
    position_similarity,
)
from legato.tasks.picture_data import picture_encoder
from tiny_pictures import TINY, TINY_CAPTIONER, captioned, class_folders, pixels, write_jsonl, write_picture

GRID = 2  # 8 pixels of a side, in patches of 4


@pytest.fixture(scope="module")
def classes(tmp_path_factory: pytest.TempPathFactory) -> Any:
    folder = tmp_path_factory.mktemp("classes")
    photos = str(class_folders(folder / "train"))
    given = {**TINY, "data.train": photos, "data.valid": photos, "train.steps": 2}
    legato.train("image-classification", given, out=folder / "run", quiet=True)
    return legato.load(folder / "run")


@pytest.fixture(scope="module", params=["seq2seq", "transformer"])
def captioner(tmp_path_factory: pytest.TempPathFactory, request: Any) -> Any:
    folder = tmp_path_factory.mktemp("captions")
    table = captioned(folder)
    given = {**TINY_CAPTIONER, "data.train": table, "data.valid": table, "train.steps": 2}
    if request.param == "transformer":
        given |= {"model": "transformer", "model.heads": 2, "model.length": 16}
    legato.train("captioning", given, out=folder / "run", quiet=True)
    return legato.load(folder / "run")


def silence(model: Any, layer: int) -> Any:
    """A block whose queries are nothing, so that every position looks at all others alike."""
    encoder: Any = picture_encoder(model.module)
    attention = encoder.stack.layers[layer].attention
    with torch.no_grad():
        for parameter in attention.parameters():
            parameter.zero_()
    return model


def test_each_word_of_a_caption_has_a_map(captioner: Any) -> None:
    maps = attention_maps(captioner, pixels("red"), "a red square")
    assert isinstance(maps, WordMaps)
    assert maps.words == ["a", "red", "square"]
    assert maps.weights.shape == (3, GRID, GRID)
    assert (maps.weights >= 0).all()
    assert (maps.weights.sum((1, 2)) <= 1 + 1e-5).all()  # the rest lies on the state for the whole
    assert np.array_equal(maps.picture, pixels("red"))
    said = captioner.predict(pixels("red"))
    written = attention_maps(captioner, pixels("red"))
    assert isinstance(written, WordMaps)
    assert written.words == said.split()


def test_the_maps_are_those_of_the_alignment(captioner: Any) -> None:
    from legato.tasks.captioning.captioner import Captioner

    held = Captioner.of(captioner.loaded)
    tokens = held.tokenizer.encode("a red square").tolist()
    looks = held.looks(torch.from_numpy(pixels("red")), tokens)[:-1, 1:]
    maps = attention_maps(captioner, pixels("red"), "a red square")
    torch.testing.assert_close(maps.weights.flatten(1), looks)


def test_a_caption_without_words_has_no_map(captioner: Any) -> None:
    maps = attention_maps(captioner, pixels("red"), "")
    assert maps.weights.shape == (0, GRID, GRID)
    assert attention_sheet(maps).size[1] == 180


def test_each_head_of_each_layer_has_a_map(classes: Any, tmp_path: Path) -> None:
    Image.fromarray(pixels("blue")).save(tmp_path / "a.png")
    for given in (pixels("blue"), tmp_path / "a.png"):
        maps = attention_maps(classes, given)
        assert isinstance(maps, HeadMaps)
        assert maps.weights.shape == (2, 2, GRID, GRID)
        assert maps.distances.shape == (2, 2)
        assert (maps.weights.sum((2, 3)) < 1).all()  # the rest lies on the vector for the whole itself
        assert (maps.weights > 0).all()
    assert attention_sheet(maps).size == (3 * 164, 2 * 180)


def test_heads_of_a_captioners_encoder_are_seen_as_well(captioner: Any) -> None:
    assert head_maps(captioner, pixels("red")).weights.shape == (2, 2, GRID, GRID)


def test_who_looks_everywhere_looks_the_mean_distance_far(classes: Any) -> None:
    """Four patches, 4 pixels apart: each is 0, 4, 4 and 4√2 from the others."""
    even = silence(legato.load(classes.folder), 0)
    maps = head_maps(even, pixels("red"))
    torch.testing.assert_close(maps.weights[0], torch.full((2, GRID, GRID), 1 / 5))
    torch.testing.assert_close(maps.distances[0], torch.full((2,), (8 + 4 * 2**0.5) / 4))
    assert not torch.allclose(maps.distances[1], maps.distances[0])


def test_distances_are_the_mean_over_pictures(classes: Any) -> None:
    several = [pixels("red"), pixels("blue")]
    alone = torch.stack([mean_attention_distance(classes, picture) for picture in several])
    torch.testing.assert_close(mean_attention_distance(classes, several), alone.mean(0))
    assert (alone > 0).all()
    assert (alone < 4 * 2**0.5).all()
    with pytest.raises(DataError, match="there is no picture to look at"):
        mean_attention_distance(classes, [])


def test_positions_are_like_themselves(classes: Any) -> None:
    found = position_similarity(classes)
    assert found.shape == (GRID, GRID, GRID, GRID)
    flat = found.view(GRID * GRID, GRID * GRID)
    torch.testing.assert_close(flat.diagonal(), torch.ones(GRID * GRID))
    torch.testing.assert_close(flat, flat.t())
    encoder: Any = picture_encoder(classes.module)
    one, other = encoder.learned_positions()[0, 1], encoder.learned_positions()[1, 0]
    torch.testing.assert_close(found[0, 1, 1, 0], torch.cosine_similarity(one, other, dim=0))


def test_what_is_looked_at_is_lit_and_the_rest_is_dark() -> None:
    grey = np.full((8, 8, 3), 100, np.uint8)
    found = laid_over(grey, torch.tensor([[1.0, 0.0], [0.0, 0.0]])).astype(int)
    assert found[0, 0, 0] > 150
    assert found[7, 7].max() < 60
    assert (np.diff(found[0, :, 0]) <= 0).all()  # smoothly
    assert (laid_over(grey, torch.zeros(2, 2)) == 45).all()


def test_a_model_that_reads_no_pictures_has_nowhere_to_look(tmp_path: Path) -> None:
    from tiny_runs import small

    legato.train("lm", small(tmp_path, train__steps=1), out=tmp_path / "run", quiet=True)
    for look in (lambda m: attention_maps(m, pixels()), position_similarity):
        with pytest.raises(LegatoError, match="reads no pictures"):
            look(legato.load(tmp_path / "run"))


@pytest.fixture(scope="module")
def asked(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Models that answer questions: `stacked`, and `none` without attention."""
    folder = tmp_path_factory.mktemp("questions")
    rows = []
    for number in range(8):
        colour = ("red", "blue")[number % 2]
        write_picture(folder / f"{number}.png", colour, number)
        rows.append({"image": f"{number}.png", "question": "what colour is it ?", "answer": colour})
    table = write_jsonl(folder / "q.jsonl", rows)
    given = {**TINY_CAPTIONER, "model": "vqa", "data.train": table, "data.valid": table, "train.steps": 2}
    for attention in ("stacked", "none"):
        legato.train("vqa", {**given, "model.attention": attention}, out=folder / attention, quiet=True)
    return folder


def test_a_question_looks_at_the_picture_as_often_as_it_has_hops(asked: Path) -> None:
    model = legato.load(asked / "stacked")
    for given in ((pixels("red"), "what colour is it ?"), f"{asked}/0.png\twhat colour is it ?"):
        maps = attention_maps(model, given)
        assert isinstance(maps, WordMaps)
        assert maps.words == ["look 1", "look 2"]
        torch.testing.assert_close(maps.weights.sum((1, 2)), torch.ones(2))
        assert maps.weights.shape == (2, GRID, GRID)
    with pytest.raises(LegatoError, match="has no question"):
        attention_maps(model, (pixels("red"),))
    with pytest.raises(LegatoError, match="none/best: this model has no attention, so there is none to show"):
        attention_maps(legato.load(asked / "none"), (pixels("red"), "what colour is it ?"))


def test_a_sheet_for_a_question_is_called_after_its_picture(asked: Path, tmp_path: Path) -> None:
    folder = AttentionFolder(legato.load(asked / "stacked"), tmp_path / "seen")
    given = f"{asked}/0.png\twhat colour is it ?"
    folder.add([given], legato.load(asked / "stacked").predictions([given]))
    assert [path.name for path in (tmp_path / "seen").iterdir()] == ["0.png"]
    assert folder.summary() == f"where the model looked is in {tmp_path / 'seen'}: 1 sheet"
