"""Batches of pictures: the same whether pixels are kept or decoded ahead, and from whichever step a run goes on."""

from __future__ import annotations

import gc
import multiprocessing
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.data.batching.batch import IGNORE
from legato.data.batching.batches import BatchShape
from legato.data.batching.examples import Example
from legato.data.batching.picture_batches import PictureBatches, Pixels
from legato.data.image.augmentation import Augmentation, AugmentConfig
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.picture_files import Picture, picture_file
from legato.errors import ConfigError, DataError
from tiny_pictures import SIDE, encoded, pixels, write_picture

PROCESSOR = ImageProcessor((SIDE, SIDE))
COUNT = 11
AUGMENT = Augmentation(AugmentConfig(flip=True, crop=0.5, mixup=0.3), PROCESSOR, 5)


@pytest.fixture
def pictures(tmp_path: Path) -> list[Picture]:
    return [picture_file(write_picture(tmp_path / f"{number}.png", "grey", number)) for number in range(COUNT)]


def rows() -> list[Example]:
    return [Example([], label=number, picture=number) for number in range(COUNT)]


def batches(pixels: Pixels, fixed: bool = False, **how: Any) -> PictureBatches:
    return PictureBatches(rows(), pixels, BatchShape(0, 512, 4, fixed_shape=fixed), augmentation=AUGMENT, **how)


def same(one: PictureBatches, other: PictureBatches, steps: Any) -> None:
    for step in steps:
        mine, theirs = one.at(step), other.at(step)
        assert mine.inputs.values is not None
        assert theirs.inputs.values is not None
        assert torch.equal(mine.inputs.values, theirs.inputs.values)
        assert mine.labels is not None
        assert theirs.labels is not None
        assert torch.equal(mine.labels, theirs.labels)
        assert mine.inputs.draws is not None
        assert theirs.inputs.draws is not None
        assert torch.equal(mine.inputs.draws, theirs.inputs.draws)


def test_every_row_has_its_own_picture(pictures: list[Picture]) -> None:
    made = batches(Pixels(pictures, PROCESSOR))
    seen = []
    for step in range(made.steps_per_epoch):
        batch = made.at(step)
        assert batch.inputs.values is not None
        assert batch.labels is not None
        for values, label in zip(batch.inputs.values, batch.labels.tolist(), strict=True):
            np.testing.assert_array_equal(values, pixels("grey", label))
            seen.append(label)
    assert sorted(seen) == list(range(COUNT))


@pytest.mark.parametrize("workers", [0, 2])
def test_pixels_that_are_kept_and_those_decoded_ahead_are_the_same(pictures: list[Picture], workers: int) -> None:
    kept = Pixels(pictures, PROCESSOR, keep=True)
    ahead = Pixels(pictures, PROCESSOR, keep=False, workers=workers)
    assert kept.kept is not None
    assert ahead.kept is None
    same(batches(kept), batches(ahead), range(5))  # beyond an epoch
    for (mine, one), (theirs, other) in zip(kept.scored(4), ahead.scored(4), strict=True):
        assert list(mine) == list(theirs)
        assert torch.equal(one, other)
    assert torch.equal(kept.take(np.array([3, 3, 0])), ahead.take(np.array([3, 3, 0])))


@pytest.mark.parametrize("keep", [False, True])
def test_some_of_the_pixels_are_those_of_the_same_pictures(pictures: list[Picture], keep: bool) -> None:
    whole = Pixels(pictures, PROCESSOR, keep=keep)
    for picture in pictures if keep else ():
        assert picture.path is not None
        picture.path.unlink()  # which nobody reads again
    part = whole.select([7, 2])
    assert len(part) == 2
    for numbers, found in part.scored():
        np.testing.assert_array_equal(found, np.stack([pixels("grey", (7, 2)[number]) for number in numbers]))


@pytest.mark.slow
@pytest.mark.parametrize("workers", [0, 2])
def test_a_run_that_goes_on_reads_what_it_would_have_read(pictures: list[Picture], workers: int) -> None:
    first, second = (batches(Pixels(pictures, PROCESSOR, keep=False, workers=workers)) for _ in range(2))
    before = [first.at(step) for step in range(5)]
    for step in (3, 4, 1):  # on, and back again
        again = second.at(step)
        assert torch.equal(again.inputs.content, before[step].inputs.content)
        assert again.inputs.draws is not None
        assert torch.equal(again.inputs.draws, AUGMENT.draws(step, again.rows))


def test_workers_end_as_soon_as_their_batches_are_dropped(pictures: list[Picture]) -> None:
    """Where Python has to find out first that nobody refers to them, it may close what would tell them to end."""
    before = multiprocessing.active_children()
    gc.disable()
    try:
        made = batches(Pixels(pictures, PROCESSOR, keep=False, workers=2))
        made.at(0)
        workers = [child for child in multiprocessing.active_children() if child not in before]
        assert len(workers) == 2
        del made
        assert [worker.exitcode for worker in workers] == [0, 0]
    finally:
        gc.enable()


def test_many_pictures_are_decoded_by_workers_in_their_order(
    pictures: list[Picture], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("legato.data.batching.picture_batches.FEW", 4)
    monkeypatch.setattr("legato.data.batching.picture_batches.AT_ONCE", 3)
    kept = Pixels(pictures, PROCESSOR, workers=2).kept
    assert kept is not None
    assert torch.equal(kept, torch.from_numpy(np.stack([pixels("grey", number) for number in range(COUNT)])))


@pytest.mark.parametrize("keep", [True, False])
@pytest.mark.parametrize("workers", [0, 2])
def test_a_damaged_picture_is_one_line(pictures: list[Picture], keep: bool, workers: int) -> None:
    bad = pictures[7].path
    assert bad is not None
    bad.write_bytes(b"nothing")
    broken = [*pictures[:7], picture_file(bad), *pictures[8:]]

    def read_all() -> None:
        made = batches(Pixels(broken, PROCESSOR, keep=keep, workers=workers))
        for step in range(made.steps_per_epoch):
            made.at(step)

    with pytest.raises(DataError, match=r"^\S+/7\.png is no picture of JPEG, PNG, WEBP, GIF$"):
        read_all()


def test_a_batch_that_is_filled_up_repeats_pictures_whose_labels_do_not_count(pictures: list[Picture]) -> None:
    made = batches(Pixels(pictures, PROCESSOR), fixed=True)
    found = [made.at(step) for step in range(made.steps_per_epoch)]
    assert {batch.inputs.content.shape for batch in found} == {(4, SIDE, SIDE, 3)}
    short = next(batch for batch in found if batch.tokens < 4)
    assert short.labels is not None
    count = short.tokens
    assert (short.labels[count:] == IGNORE).all()
    assert (short.labels[:count] != IGNORE).all()
    for row in range(4):  # no picture that there is not, which a batch norm would see
        assert torch.equal(short.inputs.content[row], short.inputs.content[row % count])
    assert sum(batch.tokens for batch in found) == COUNT


def test_pictures_stand_where_the_model_reads_them(pictures: list[Picture]) -> None:
    texts = [Example([1, 2, 3], targets=[2, 3, 4], picture=number) for number in range(COUNT)]
    held = Pixels(pictures, PROCESSOR)
    for place in ("source", "images"):
        made = PictureBatches(texts, held, BatchShape(0, 512, 4), place=place)  # type: ignore[arg-type]
        batch = made.at(0)
        assert batch.inputs.token_ids.shape == (batch.rows, 3)
        where = batch.source if place == "source" else batch.images
        assert where is not None
        assert where.content.shape == (batch.rows, SIDE, SIDE, 3)
        assert (batch.image_rows is None) == (place == "source")


def test_a_budget_of_positions_counts_pictures(pictures: list[Picture]) -> None:
    held = Pixels(pictures, PROCESSOR)
    made = PictureBatches(rows(), held, BatchShape(0, 12, None), positions=4)
    assert made.at(0).rows == 3
    assert made.at(0).read == 3 * 4


def test_pictures_of_different_sizes_are_refused(pictures: list[Picture]) -> None:
    for processor in (replace(PROCESSOR, size=None), replace(PROCESSOR, size=8)):
        with pytest.raises(ConfigError, match="leaves pictures of different sizes"):
            Pixels(pictures, processor)


@pytest.mark.parametrize("kind", ["L", "CMYK", "I;16", "RGBA", "1"])
def test_pictures_of_every_kind_stand_in_one_batch(tmp_path: Path, kind: str) -> None:
    from PIL import Image

    Image.new(kind, (1, 3)).save(tmp_path / ("x.jpg" if kind == "CMYK" else "x.png"))
    odd = next(tmp_path.glob("x.*"))
    held = Pixels([Picture("a", data=encoded()), picture_file(odd)], PROCESSOR)
    assert held.take(np.array([0, 1])).shape == (2, SIDE, SIDE, 3)
