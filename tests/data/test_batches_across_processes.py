"""The batch at a step is the same in every process, however many there are and whatever they did before."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = """
import hashlib, sys
import numpy as np
from legato.data.batching.batches import BatchShape
from legato.data.batching.batch import named_tensors
from legato.data.batching.batches import WindowShape, Streams, Windows
from legato.data.batching.examples import Example, ExampleBatches, next_tokens
from legato.data.batching.examples import GroupBatches
from legato.data.batching.pair_batches import PairBatches
from legato.data.batching.skip_grams import SkipGrams

text = np.random.default_rng(1).integers(0, 50, 4000)
rows = [text[i : i + 3 + i % 17].tolist() for i in range(0, 3000, 20)]
examples = [Example(row, label=n) for n, row in enumerate(rows)]
groups = [[Example(a), Example(b)] for a, b in zip(rows[::2], rows[1::2])]
every = {
    "streams": Streams(text, WindowShape(rows=4, window=8, seed=3), forget=0.2),
    "windows": Windows(text, WindowShape(rows=4, window=8, seed=3)),
    "sequences": ExampleBatches(next_tokens((row, 1) for row in rows), BatchShape(batch_tokens=64, seed=3)),
    "examples": ExampleBatches(examples, BatchShape(batch_tokens=64, seed=3)),
    "pairs": PairBatches(rows, rows[::-1], BatchShape(batch_tokens=128, seed=3), start=0, eos=0),
    "groups": GroupBatches(groups, BatchShape(batch_rows=8, seed=3)),
    "skip-grams": SkipGrams(text, np.bincount(text, minlength=50), end=0, rows=32, window=2, subsample=0, seed=3),
}
for name, batches in every.items():
    for step in map(int, sys.argv[1:]):
        digest = hashlib.sha256()
        for part, tensor in sorted(named_tensors(batches.at(step)).items()):
            digest.update(part.encode() + tensor.contiguous().numpy().tobytes())
        print(name, step, digest.hexdigest())
"""


def digests(seed: str, steps: list[int]) -> set[str]:
    source = Path(__file__).parents[2] / "src"
    env = {**os.environ, "PYTHONHASHSEED": seed, "PYTHONPATH": str(source)}
    asked = [sys.executable, "-c", SCRIPT, *map(str, steps)]
    return set(subprocess.run(asked, env=env, check=True, capture_output=True, text=True).stdout.splitlines())


@pytest.mark.slow
@pytest.mark.parametrize("processes", [2, 3])
def test_processes_that_share_the_steps_make_the_batches_of_one(processes: int) -> None:
    steps = [0, 7, 100, 3, 41, 12]
    alone = digests("0", steps)
    shared = [digests(str(rank + 1), steps[rank::processes]) for rank in range(processes)]
    assert set.union(*shared) == alone
    assert len(alone) == 7 * len(steps)
