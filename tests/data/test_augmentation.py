"""Other views of pictures: exact where no pixel is between others, drawn for each row alone, true to their shares."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from legato.data.image.augmentation import (
    CUT,
    DRAWS,
    GEOMETRIC,
    MIXED,
    MOST_OPERATIONS,
    SHADES,
    Augmentation,
    AugmentConfig,
)
from legato.data.image.image_processor import ImageProcessor

SIDE = 8
PLAIN = ImageProcessor((SIDE, SIDE), mean=None)  # what a model reads is 0 to 1
ALL: dict[str, Any] = {
    "flip": True,
    "shift": 0.3,
    "crop": 0.3,
    "colour": 0.6,
    "operations": MOST_OPERATIONS,
    "magnitude": 1.0,
    "erase": 0.3,
}


def pictures(rows: int = 5, side: int = SIDE) -> Tensor:
    noise = np.random.default_rng(1).integers(0, 256, (rows, side, side, 3), dtype=np.uint8)
    return torch.from_numpy(noise)


def shares(given: Tensor) -> Tensor:
    """Pixels (B, H, W, 3) as (B, 3, H, W) of 0 to 1."""
    return given.movedim(-1, -3).float() / 255


def augmentation(seed: int = 0, processor: ImageProcessor = PLAIN, **settings: Any) -> Augmentation:
    return Augmentation(AugmentConfig(**settings), processor, seed)


def drawn(*values: float, rows: int = 5) -> Tensor:
    """Draws of which the first are these, for every row."""
    found = torch.full((rows, DRAWS), 0.5)
    found[:, : len(values)] = torch.tensor(values)
    return found


def test_nothing_is_changed_where_nothing_is_set() -> None:
    idle = augmentation(processor=ImageProcessor((SIDE, SIDE)))
    assert idle.idle
    assert augmentation(magnitude=0.9).idle
    assert not any(augmentation(**{key: value}).idle for key, value in ALL.items() if key != "magnitude")
    found, own = idle(pictures(), idle.draws(3, 5))
    assert own is None
    torch.testing.assert_close(found, ImageProcessor((SIDE, SIDE)).scaled(pictures()))


def test_a_flip_swaps_left_and_right_exactly() -> None:
    flip = augmentation(flip=True)
    for draw, expected in ((0.2, shares(pictures())), (0.8, shares(pictures()).flip(-1))):
        torch.testing.assert_close(flip(pictures(), drawn(draw))[0], expected, atol=1e-5, rtol=0)


def test_half_of_the_pictures_are_flipped() -> None:
    flip = augmentation(flip=True)
    many = pictures(1).expand(400, -1, -1, -1)
    found = flip(many, flip.draws(0, 400))[0]
    kept = (found - shares(many)).abs().amax((1, 2, 3)) < 1e-4
    assert 150 < int(kept.sum()) < 250


@pytest.mark.parametrize(("across", "down"), [(2, 0), (0, -1), (-2, 1)])
def test_a_shift_by_whole_pixels_is_exact_and_mirrors_at_the_edge(across: int, down: int) -> None:
    # `shift` is the largest share; a draw of 0 to 1 goes from -shift to shift.
    draws = drawn(*(0.5 + 0.5 * by / (0.5 * SIDE) for by in (across, down)))
    found, _ = augmentation(shift=0.5)(pictures(), draws)
    whole = np.pad(shares(pictures()).numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)), mode="symmetric")
    expected = whole[:, :, 2 + down : 2 + down + SIDE, 2 + across : 2 + across + SIDE]
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5)


def test_a_crop_of_the_whole_is_the_whole() -> None:
    found, _ = augmentation(crop=0.2)(pictures(), drawn(1.0, 0.5, 0.9, 0.1))
    torch.testing.assert_close(found, shares(pictures()), atol=1e-5, rtol=0)


def test_a_crop_stretches_a_part() -> None:
    """A quarter of the area, the upper left: its pixels are where it was, twice as large."""
    found, _ = augmentation(crop=0.25)(pictures(), drawn(0.0, 0.5, 0.0, 0.0))
    quarter = shares(pictures())[:, :, : SIDE // 2, : SIDE // 2]
    expected = torch.nn.functional.interpolate(quarter, scale_factor=2, mode="bilinear", align_corners=False)
    inner = (..., slice(1, -1), slice(1, -1))  # beyond a crop lies the rest of the picture
    torch.testing.assert_close(found[inner], expected[inner], atol=1e-5, rtol=0)


def test_brightness_alone_multiplies() -> None:
    found, _ = augmentation(colour=0.5)(pictures(), drawn(0.0, 0.5, 0.5))
    torch.testing.assert_close(found, shares(pictures()) * 0.5)


def test_a_grey_square_is_as_wide_as_it_should() -> None:
    found, _ = augmentation(erase=0.5)(pictures(), drawn(0.5, 0.5))
    changed = (found != shares(pictures())).any(1)
    assert changed[0].sum() == (SIDE // 2) ** 2
    assert (found[:, :, 2:6, 2:6] == 0.5).all()


def test_draws_are_a_function_of_seed_step_and_row() -> None:
    made = augmentation(mixup=0.4, cutmix=1.0)
    few, many = made.draws(7, 3), made.draws(7, 9)
    assert torch.equal(few, many[:3])  # whatever the number of rows
    assert torch.equal(few, augmentation(mixup=0.4, cutmix=1.0).draws(7, 3))
    assert not torch.equal(few, made.draws(8, 3))
    assert not torch.equal(few, augmentation(seed=1, mixup=0.4, cutmix=1.0).draws(7, 3))
    assert len(many.unique(dim=0)) == 9
    assert many.min() >= 0
    assert many.max() <= 1


def test_a_batch_is_its_rows_one_by_one() -> None:
    made = augmentation(**ALL)
    draws = made.draws(0, 5)
    together, _ = made(pictures(), draws)
    alone = [made(pictures()[row : row + 1], draws[row : row + 1])[0] for row in range(5)]
    torch.testing.assert_close(together, torch.cat(alone), atol=1e-6, rtol=0)


@pytest.mark.parametrize("mixing", [{}, {"mixup": 0.5}, {"cutmix": 1.0}, {"mixup": 0.5, "cutmix": 1.0}])
def test_nothing_leaves_the_range_of_colours(mixing: dict[str, float]) -> None:
    made = augmentation(**ALL, **mixing)
    black = torch.zeros(2, SIDE, SIDE, 3).byte()
    given = torch.cat([pictures(60), black, 255 - black])
    for step in range(5):
        found, _ = made(given, made.draws(step, len(given)))
        assert found.isfinite().all()
        assert found.min() >= 0
        assert found.max() <= 1 + 1e-6


def test_one_operation_is_one_of_the_list() -> None:
    """Of places, or of shades: no picture gets one of each, and hardly any gets none."""
    given, made = pictures(1).expand(240, -1, -1, -1), augmentation(operations=1, magnitude=1.0)
    draws = made.draws(0, 240)
    changed = (made(given, draws)[0] - shares(given)).abs().amax((1, 2, 3)) > 1e-3
    assert changed.float().mean() > 0.9
    geometric = draws[:, 0] < len(GEOMETRIC) / len((*GEOMETRIC, *SHADES))
    plain = torch.full_like(given, 100)  # of one shade, to which no place is another
    moved = (made(plain, draws)[0] - shares(plain)).abs().amax((1, 2, 3)) < 1e-4
    assert moved[geometric].all()
    assert 0 < int(geometric.sum()) < 240


def test_mixup_adds_two_pictures_by_their_shares() -> None:
    made = augmentation(mixup=0.4)
    draws = made.draws(2, 5)
    found, own = made(pictures(), draws)
    assert own is not None
    torch.testing.assert_close(own, draws[:, MIXED])
    x, share = shares(pictures()), own[:, None, None, None]
    torch.testing.assert_close(found, share * x + (1 - share) * x.roll(1, 0))


def test_cutmix_puts_in_as_much_of_the_other_as_it_says() -> None:
    made = augmentation(cutmix=1.0)
    for step in range(4):
        found, own = made(pictures(), made.draws(step, 5))
        assert own is not None
        x = shares(pictures())
        mine, others = (found == x).all(1), (found == x.roll(1, 0)).all(1)  # (B, H, W)
        assert (mine | others).all()
        torch.testing.assert_close(mine.float().mean((1, 2)), own)


def test_with_both_each_picture_has_one_or_the_other() -> None:
    made = augmentation(mixup=1.0, cutmix=1.0)
    given, draws = pictures(40), made.draws(0, 40)
    found, own = made(given, draws)
    assert own is not None
    x = shares(given)
    cut = ((found == x) | (found == x.roll(1, 0))).all(1).all(-1).all(-1)
    assert 0 < int(cut.sum()) < 40
    torch.testing.assert_close(own[~cut], draws[~cut, MIXED])
    torch.testing.assert_close((found == x).all(1).float().mean((1, 2))[cut], own[cut])


@pytest.mark.parametrize("mixing", [{"mixup": 0.4}, {"cutmix": 0.4}, {"mixup": 0.4, "cutmix": 0.4}])
def test_no_choice_reads_the_columns_of_the_shares(mixing: dict[str, float]) -> None:
    """With all that can be set, the choices end before them."""
    made = augmentation(**ALL, **mixing)
    draws = made.draws(0, 5)
    other = draws.clone()
    unused = [column for column, name in ((MIXED, "mixup"), (CUT, "cutmix")) if name not in mixing]
    other[:, unused] = 1 - other[:, unused]
    assert torch.equal(made(pictures(), draws)[0], made(pictures(), other)[0])
    same = draws.clone()
    same[:, [MIXED, CUT]] = 1.0  # all of each picture is its own
    alone, _ = augmentation(**ALL)(pictures(), draws)
    torch.testing.assert_close(made(pictures(), same)[0], alone)
