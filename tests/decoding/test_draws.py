"""Random numbers that are functions of seed, walk, step and place."""

from __future__ import annotations

import math

import torch

from legato.decoding.draws import gumbel, seeds_of, uniform

SEEDS = seeds_of([(seed, walk) for seed in (0, 7) for walk in (0, 1)])
STEPS = 3000


def test_each_seed_walk_step_and_place_has_a_number_of_its_own() -> None:
    steps = [torch.full((4,), step) for step in range(50)]
    numbers = torch.stack([uniform(SEEDS, step) for step in steps])  # (steps, groups)
    assert len(numbers.unique()) == numbers.numel()
    noise = torch.stack([gumbel(SEEDS, step, 5) for step in steps])  # (steps, groups, places)
    assert len(noise.unique()) == noise.numel()


def test_they_do_not_depend_on_who_is_beside() -> None:
    steps = torch.tensor([4, 9, 0, 2])
    assert torch.equal(uniform(SEEDS, steps)[2:3], uniform(SEEDS[2:3], steps[2:3]))
    assert torch.equal(gumbel(SEEDS, steps, 9)[2:3, :4], gumbel(SEEDS[2:3], steps[2:3], 4))


def test_they_have_the_mean_and_the_spread_that_they_should() -> None:
    steps = torch.arange(STEPS)
    for seed in SEEDS:
        numbers = uniform(seed.expand(STEPS), steps)
        assert 0 <= float(numbers.min()) <= float(numbers.max()) < 1
        assert abs(float(numbers.mean()) - 1 / 2) < 4 * math.sqrt(1 / 12 / STEPS)
        neighbours = torch.corrcoef(torch.stack([numbers[1:], numbers[:-1]]))[0, 1]
        assert abs(float(neighbours)) < 4 / math.sqrt(STEPS)
    noise = gumbel(SEEDS[:1], torch.tensor([0]), STEPS)
    assert noise.isfinite().all()
    assert abs(float(noise.mean()) - 0.5772) < 4 * math.sqrt(math.pi**2 / 6 / STEPS)  # Euler's constant
    assert abs(float(noise.var()) - math.pi**2 / 6) < 0.3
