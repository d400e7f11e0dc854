"""Quantised folders as this version writes them, packed with what their models score: later ones must read them.

    python tests/save_quantized.py tests/saved/quantized/VERSION.tar.xz

`tests/folders/test_quantized_folders.py` unpacks every archive in `tests/saved/quantized`, and scores them again.
"""

from __future__ import annotations

import json
import os
import shutil
import sys
import tarfile
import tempfile
from pathlib import Path
from typing import Any

os.environ["OMP_NUM_THREADS"] = "1"
TEXT = "valid.txt"
TRAIN = {
    "data.train": "train.txt",
    "data.valid": TEXT,
    "model.dropout": 0,
    "model.width": 32,
    "tokenizer": "char",
    "train.steps": 60,
    "train.lr": 0.01,
    "train.batch_tokens": 256,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}
MODELS: dict[str, tuple[str, dict[str, Any]]] = {
    "llama": ("lm", {"model": "llama", "model.layers": 1, "model.heads": 2}),
    "gpt2": ("lm", {"model": "gpt2", "model.length": 64, "model.layers": 1, "model.heads": 2}),
    "elmo": ("lm", {"model": "elmo", "tokenizer": "word", "model.filters": 8, "model.reach": 3}),
    "bert": ("mlm", {"model": "bert", "model.length": 64, "model.layers": 1, "model.heads": 2}),
}
WORDS = ("the", "cat", "dog", "sees", "a", "bird", "that", "sings", "in", "green", "trees", "and", "sleeps")


def write_texts() -> None:
    for name, lines in (("train.txt", 400), (TEXT, 80)):
        rows = (
            [WORDS[(line * line + 3 * place + place * line) % len(WORDS)] for place in range(7)]
            for line in range(lines)
        )
        Path(name).write_text("".join(" ".join(row) + "\n" for row in rows), encoding="utf-8")


def main() -> None:
    import legato
    from legato.folders.exports import export
    from legato.runs.train import train

    out = Path(sys.argv[1]).resolve()
    out.parent.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        os.environ["LEGATO_CACHE"] = str(Path(folder) / "cache")
        write_texts()
        expected = {}
        for name, (task, settings) in MODELS.items():
            train(task, {**TRAIN, **settings}, out=Path("runs") / name)
            for width in ("int8", "int4"):
                made = export(Path("runs") / name, "legato", out=Path(f"{name}-{width}"), quantize=width)
                (made / "README.md").unlink()
                expected[made.name] = float(legato.load(made, device="cpu").evaluate(test=TEXT)["loss"])
        Path("expected.json").write_text(json.dumps(expected, indent=1))
        shutil.rmtree("runs")
        with tarfile.open(out, "w:xz", preset=9) as archive:
            for each in ("expected.json", TEXT, *sorted(expected)):
                archive.add(each)


if __name__ == "__main__":
    main()
