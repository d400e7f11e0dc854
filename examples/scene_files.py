"""Drawn scenes as files, for the commands of docs/pictures.md: what `toy:scenes` draws, as people have pictures.

    python examples/scene_files.py [FOLDER]

writes

    scenes/train/, scenes/test/     scenes of one or two shapes, and dialogues.jsonl of questions about them
    colours/                        scenes of one shape, a folder for each colour
    warmth.csv, warmth.tar          the coloured ones of these, called warm or cold: a table, its pictures beside it
    warmth.parquet                  the same with the pictures inside
"""

from __future__ import annotations

import csv
import json
import sys
import tarfile
from pathlib import Path

import pyarrow
import pyarrow.parquet
from PIL import Image

from legato.data.image.scene_captions import captions
from legato.data.image.scene_questions import questions
from legato.data.image.scenes import Scenes, ScenesConfig, picture

WARMTH = {"red": "warm", "orange": "warm", "yellow": "warm", "blue": "cold", "green": "cold", "purple": "cold"}
COUNTS = {"train": 1000, "test": 50}
COLOURED = 1200


def write_scenes(folder: Path, split: str, count: int) -> None:
    """Pictures by their numbers, and a row for each question about each."""
    folder.mkdir(parents=True, exist_ok=True)
    with (folder / "dialogues.jsonl").open("w", encoding="utf-8") as table:
        for number, scene in enumerate(Scenes(ScenesConfig(most_shapes=2), split, seed=0)[:count]):
            Image.fromarray(picture(scene)).save(folder / f"{number}.png")
            pairs = [(question.text, question.answer) for question in questions(scene)]
            for text, answer in [("Describe the picture.", captions(scene)[0]), *pairs]:
                row = {"image": f"{number}.png", "question": text, "answer": answer}
                table.write(f"{json.dumps(row)}\n")


def write_colours(out: Path, count: int) -> list[Path]:
    """A folder for each colour; the pictures' names, from `out`."""
    for number, scene in enumerate(Scenes(ScenesConfig(most_shapes=1), "train", seed=1)[:count]):
        folder = out / "colours" / scene.largest.colour
        folder.mkdir(parents=True, exist_ok=True)
        Image.fromarray(picture(scene)).save(folder / f"{number}.png")
    return [path.relative_to(out) for path in sorted((out / "colours").rglob("*.png"))]


def write_warmth(out: Path, names: list[Path]) -> None:
    """The same pictures in two kinds of tables."""
    rows = [(name, WARMTH[name.parent.name]) for name in names if name.parent.name in WARMTH]
    with (out / "warmth.csv").open("w", encoding="utf-8", newline="") as table:
        csv.writer(table, lineterminator="\n").writerows([("image", "label"), *rows])
    with tarfile.open(out / "warmth.tar", "w") as archive:
        for name, _ in rows:
            archive.add(out / name, str(name))
    cells = [{"bytes": (out / name).read_bytes(), "path": name.name} for name, _ in rows]
    columns = {"image": cells, "label": [label for _, label in rows]}
    pyarrow.parquet.write_table(pyarrow.table(columns), out / "warmth.parquet")


def main(words: list[str]) -> None:
    out = Path(words[0]) if words else Path()
    for split, count in COUNTS.items():
        write_scenes(out / "scenes" / split, split, count)
    write_warmth(out, write_colours(out, COLOURED))


if __name__ == "__main__":
    main(sys.argv[1:])
