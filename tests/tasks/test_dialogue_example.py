"""The dialogues that examples/picture_dialogues.py makes of captions and questions."""

from __future__ import annotations

import importlib.util
import json
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.picture_dialogues import read_picture_dialogues
from legato.evaluation.visual_chat import by_kind
from tiny_pictures import encoded, write_jsonl, write_picture, write_tar

EXAMPLE = Path(__file__).parents[2] / "examples" / "picture_dialogues.py"


@pytest.fixture(scope="module")
def maker() -> Any:
    spec = importlib.util.spec_from_file_location("picture_dialogues", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def flickr8k(folder: Path) -> Path:
    """Pictures in a .tar beside each table."""
    folder.mkdir()
    for split in ("train", "valid", "test"):
        names = [f"{split}/{number}.png" for number in range(2)]
        write_tar(folder / f"{split}.tar", {name: encoded() for name in names})
        write_jsonl(
            folder / f"{split}.jsonl", [{"image": name, "captions": ["a dog .", "Two , or"]} for name in names]
        )
    return folder


def daquar(folder: Path) -> Path:
    """Pictures that are unpacked."""
    folder.mkdir()
    for split, first in (("train", 0), ("test", 40)):
        rows = [f"images/{first + number}.png\twhat is it ?\tnight_stand, lamp" for number in range(40)]
        (folder / f"{split}.tsv").write_text("\n".join(["image\tquestion\tanswer", *rows]) + "\n")
        for number in range(40):
            write_picture(folder / "images" / f"{first + number}.png")
    return folder


def test_every_caption_is_learned_and_every_picture_is_scored_with_all(maker: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    counts = maker.write_dialogues(flickr8k(tmp_path / "f"), daquar(tmp_path / "d"), out)
    read = {name: read_picture_dialogues(str(out / f"{name}.jsonl")) for name in counts}
    assert {name: len(rows) for name, rows in read.items()} == counts
    assert counts["train"] + counts["valid"] == 2 * 2 + 2 + 40
    assert (counts["test-describe"], counts["test-daquar"], counts["test"]) == (2, 40, 42)
    assert not set(read["train"].names) & set(read["valid"].names)
    described, asked = by_kind(read["test"].references)
    assert (len(described), len(asked)) == (2, 40)
    assert read["test"].references[0] == ["A dog.", "Two, or."]
    first = json.loads((out / "train.jsonl").read_text().splitlines()[0])
    assert first == {"image": "train/0.png", "question": "Describe the picture.", "answer": "A dog."}
    assert read["test-daquar"].rows[0][0]["content"].startswith("What is it? Answer in a word")
    assert read["test-daquar"].references[0] == ["night stand, lamp"]
