"""Learning rates, step by step."""

from __future__ import annotations

import math
from typing import Any

import pytest

from legato.training.config import TrainConfig
from legato.training.schedules import Schedule, lengthened, resolve_steps, resolve_validate_every

STEPS = 100


def schedule(**settings: Any) -> Schedule:
    return Schedule(TrainConfig(lr=2.0, **settings), STEPS)


def test_constant_stays_at_the_rate() -> None:
    constant = schedule(schedule="constant")
    assert [constant.lr(step) for step in (0, 50, 99)] == [2.0, 2.0, 2.0]


def test_linear_falls_in_a_straight_line() -> None:
    linear = schedule(schedule="linear")
    assert [linear.lr(step) for step in (0, 25, 50, 100)] == pytest.approx([2.0, 1.5, 1.0, 0.0])


def test_cosine_is_half_way_down_in_the_middle() -> None:
    cosine = schedule(schedule="cosine")
    assert cosine.lr(0) == 2.0
    assert cosine.lr(50) == pytest.approx(1.0)
    assert cosine.lr(25) == pytest.approx(1 + math.cos(math.pi / 4))
    assert cosine.lr(100) == pytest.approx(0.0)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_falling_schedule_ends_at_the_final_share(name: str) -> None:
    assert schedule(schedule=name, lr_final=0.1).lr(STEPS) == pytest.approx(0.2)


@pytest.mark.parametrize("name", ["linear", "cosine"])
def test_a_falling_schedule_never_rises_again_after_the_end(name: str) -> None:
    falling = schedule(schedule=name)
    assert falling.lr(STEPS + 50) == falling.lr(STEPS)


@pytest.mark.parametrize("name", ["constant", "linear", "cosine", "inverse-sqrt", "plateau"])
def test_warm_up_rises_in_a_straight_line_to_the_rate(name: str) -> None:
    warm = schedule(schedule=name, warmup=10)
    assert [warm.lr(step) for step in (0, 4, 9)] == pytest.approx([0.2, 1.0, 2.0])


def test_cosine_begins_to_fall_when_warm_up_ends() -> None:
    cosine = schedule(schedule="cosine", warmup=20)
    assert cosine.lr(60) == pytest.approx(1.0)  # half way between 20 and 100


def test_inverse_square_root_halves_when_the_steps_are_four_times_as_many() -> None:
    falling = schedule(schedule="inverse-sqrt", warmup=10)
    assert falling.lr(9) == pytest.approx(2.0)
    assert falling.lr(39) == pytest.approx(1.0)


def test_plateau_cuts_after_more_validations_without_gain_than_its_patience() -> None:
    plateau = schedule(schedule="plateau", plateau_patience=1, plateau_factor=0.5)
    rates = []
    for improved in (True, False, False, False, False):
        plateau.validated(improved)
        rates.append(plateau.lr(0))
    assert rates == [2.0, 2.0, 1.0, 1.0, 0.5]


def test_a_gain_makes_plateau_patient_again() -> None:
    plateau = schedule(schedule="plateau", plateau_patience=1)
    for improved in (False, True, False):
        plateau.validated(improved)
    assert plateau.lr(0) == 2.0


def test_only_plateau_listens_to_validations() -> None:
    cosine = schedule(schedule="cosine")
    for _ in range(5):
        cosine.validated(False)
    assert cosine.lr(0) == 2.0


def test_a_run_that_is_made_longer_says_how_its_rate_jumps() -> None:
    config = TrainConfig(lr=2.0, schedule="linear")
    before, after = Schedule(config, 10), Schedule(config, 20)
    said = lengthened(before, after, 10)
    assert said == (
        "the learning rate goes from 0.2 to 1 here, for train.schedule=linear now ends at step 20, not at 10"
    )
    assert lengthened(before, Schedule(config, 10), 10) is None
    warm = TrainConfig(lr=2.0, schedule="inverse-sqrt", warmup=None)
    assert "from 0.667 to 0.938" in str(lengthened(Schedule(warm, 100), Schedule(warm, 200), 90))


def test_a_rate_that_does_not_depend_on_the_length_is_not_spoken_of() -> None:
    for config in (TrainConfig(schedule="constant"), TrainConfig(schedule="plateau"), TrainConfig(lr_final=1.0)):
        assert lengthened(Schedule(config, 10), Schedule(config, 20), 10) is None


@pytest.mark.parametrize(("optimizer", "rate"), [("adamw", 0.003), ("sgd", 1.0), ("asgd", 1.0)])
def test_a_rate_left_out_suits_the_optimiser(optimizer: Any, rate: float) -> None:
    assert TrainConfig(optimizer=optimizer).rate == rate


@pytest.mark.parametrize(("steps", "warm"), [(100, 10), (5, 0), (50_000, 1000)])
def test_a_warm_up_that_is_left_to_the_run_is_a_tenth_of_it_and_a_thousand_at_most(steps: int, warm: int) -> None:
    made = Schedule(TrainConfig(lr=2.0, schedule="inverse-sqrt", warmup=None), steps)
    assert made.warmup == warm
    assert made.lr(max(warm - 1, 0)) == 2.0


@pytest.mark.parametrize(("given", "warm"), [(0.06, 6), (0.5, 50), (0, 0), (1, 1), (7, 7), (0.001, 0)])
def test_a_warm_up_below_one_is_a_share_of_the_steps(given: float, warm: int) -> None:
    assert schedule(warmup=given).warmup == warm


def test_a_warm_up_of_half_a_step_more_is_refused() -> None:
    with pytest.raises(ValueError, match=r"a number of steps, or a share of them below 1; 1\.5 is neither"):
        TrainConfig(warmup=1.5)


@pytest.mark.parametrize(
    ("settings", "steps"),
    [
        ({"epochs": 3}, 21),
        ({"epochs": 3, "min_steps": 100}, 100),
        ({"epochs": 30, "min_steps": 100}, 210),
        ({"steps": 5, "min_steps": 100}, 5),
    ],
)
def test_small_data_are_passed_over_until_there_were_so_many_steps(settings: dict[str, Any], steps: int) -> None:
    assert resolve_steps(TrainConfig(**settings), steps_per_epoch=7) == steps


def test_small_data_are_validated_twenty_times_and_not_after_every_pass() -> None:
    assert resolve_validate_every(TrainConfig(), 210, steps_per_epoch=7) == 7
    assert resolve_validate_every(TrainConfig(), 10, steps_per_epoch=7) == 3
    assert resolve_validate_every(TrainConfig(min_steps=300), 300, steps_per_epoch=7) == 15
    assert resolve_validate_every(TrainConfig(min_steps=300, validate_every=50), 300, steps_per_epoch=7) == 50
