"""What a command costs before and after its work: from the process's start to its end, beside `import torch` alone.

    python benchmarks/start.py [--rounds 7] [--source OTHER/src]

Tiny models are trained, and each command is run as a person runs it, a process each time, with one thread and with
modules that are compiled already. Counted is processor time, the user's and the system's, of the round that took
least; other programs on the machine disturb it less than the wall's. PyTorch's part is its import in a process that
looks for no garbage and ends at once, the least that whatever computes can take; ours is the rest. What is below that
has not imported it. `python -c "import torch"` is there as well. `--source` measures another checkout's package, such
as one from before a change. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import resource
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

ALONE, FLOOR = "import torch", "import torch, at the least"
TINY = {
    "model": "lstm",
    "model.layers": "1",
    "model.width": "8",
    "tokenizer": "char",
    "device": "cpu",
    "train.steps": "2",
    "train.batch_tokens": "64",
    "train.samples": "0",
    "train.tensorboard": "false",
}
SEQ2SEQ = {**TINY, "model": "seq2seq", "tokenizer": "word"}


class Taken(NamedTuple):
    cpu: float
    wall: float


def trained(folder: Path) -> dict[str, Path]:
    """A language model, a classifier and a translator, each small enough to be made in a moment."""
    import legato

    (folder / "a.txt").write_text("the cat sat on the mat and saw one more dog\n" * 60)
    (folder / "a.tsv").write_text("text\tlabel\n" + "a fine film\tgood\na dull film\tbad\n" * 20)
    (folder / "b.txt").write_text("die Katze sass auf der Matte und sah noch einen Hund\n" * 60)
    one, two = str(folder / "a.txt"), [str(folder / "a.txt"), str(folder / "b.txt")]
    jobs: dict[str, dict[str, Any]] = {
        "lm": {"data.train": one, "data.valid": one, **TINY},
        "classification": {"data.train": str(folder / "a.tsv"), "data.valid": str(folder / "a.tsv"), **TINY},
        "translation": {"data.train": two, "data.valid": two, **SEQ2SEQ},
    }
    return {task: legato.train(task, job, out=folder / task, quiet=True).run for task, job in jobs.items()}


def commands(runs: dict[str, Path]) -> dict[str, list[str]]:
    """What is measured, by its name, as Python's arguments."""
    legato = ["-m", "legato"]
    words = {
        "--help": ["--help"],
        "predict --help": ["predict", "--help"],
        "predict, no such model": ["predict", "/nowhere/at/all", "a"],
        "train, no such recipe": ["train", "nothing"],
        "recipes": ["recipes"],
        "models": ["models"],
        "predict, a classifier": ["predict", str(runs["classification"]), "a fine film"],
        "predict, a translator": ["predict", str(runs["translation"]), "the cat sat"],
        "generate": ["generate", str(runs["lm"]), "the ", "--max-tokens", "8"],
        "embed": ["embed", str(runs["lm"]), "the cat"],
    }
    floors = {ALONE: "import torch", FLOOR: "import gc, os; gc.disable(); import torch; os._exit(0)"}
    return {
        **{name: ["-c", script] for name, script in floors.items()},
        **{name: [*legato, *given] for name, given in words.items()},
    }


def measure(arguments: list[str], environment: dict[str, str]) -> Taken:
    """One process, from its start to its end."""
    before, began = resource.getrusage(resource.RUSAGE_CHILDREN), time.perf_counter()
    ended = subprocess.run(
        [sys.executable, *arguments], env=environment, capture_output=True, stdin=subprocess.DEVNULL, check=False
    )
    wall, after = time.perf_counter() - began, resource.getrusage(resource.RUSAGE_CHILDREN)
    if ended.returncode not in (0, 2):  # 2: a slip is refused
        raise SystemExit(f"{' '.join(arguments)} failed: {ended.stderr.decode(errors='replace')[-500:]}")
    return Taken(after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime, wall)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--source", help="a folder with the package to measure; left out: the one that is installed")
    options = parser.parse_args()
    environment = {key: value for key, value in os.environ.items() if not key.startswith("PYTHON")}
    environment |= {"OMP_NUM_THREADS": "1"}
    if options.source is not None:
        environment["PYTHONPATH"] = str(Path(options.source).absolute())
    with tempfile.TemporaryDirectory() as folder:
        asked = commands(trained(Path(folder)))
        rounds: dict[str, list[Taken]] = {name: [] for name in asked}
        for number in range(options.rounds + 1):
            for name, arguments in asked.items():
                taken = measure(arguments, environment)
                if number:  # the first compiles modules, and brings files into memory
                    rounds[name].append(taken)
    best = {name: Taken(*map(min, zip(*taken, strict=True))) for name, taken in rounds.items()}
    figures = {}
    print(f"{'command':28s}{'CPU s':>8}{'PyTorch':>9}{'ours':>7}{'wall s':>8}")
    for name, taken in best.items():
        floor = best[FLOOR].cpu if taken.cpu >= best[FLOOR].cpu else 0.0
        parts = {"cpu": taken.cpu, "torch": floor, "ours": taken.cpu - floor, "wall": taken.wall}
        print(f"{name:28s}{taken.cpu:8.2f}{floor:9.2f}{parts['ours']:7.2f}{taken.wall:8.2f}")
        figures[name] = {part: round(seconds, 3) for part, seconds in parts.items()}
    print(json.dumps({"benchmark": "start", "rounds": options.rounds, "seconds": figures}))


if __name__ == "__main__":
    main()
