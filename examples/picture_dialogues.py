"""Dialogues about photographs, made of Flickr8k's captions and DAQUAR's questions, for visual-chat.

    python examples/picture_dialogues.py flickr8k daquar data/picture-dialogues
    legato train visual-chat/stage-one data.root=data from.vision=efficientnet-lite0 from.text=smollm2 out=runs/one
    legato train visual-chat/stage-two data.root=data from=runs/one out=runs/two

`flickr8k` holds train.jsonl, valid.jsonl and test.jsonl with rows of {"image", "captions"}, `daquar` train.tsv and
test.tsv with the columns image, question and answer; the pictures are in .tar files beside the tables, or unpacked.
Written are

    train.jsonl           a dialogue for every caption and every question
    valid.jsonl           one for every picture of Flickr8k, with all its captions as references; and the questions
                          about a tenth of DAQUAR's training pictures, which are not trained on
    test-describe.jsonl   the same of Flickr8k's test pictures
    test-daquar.jsonl     DAQUAR's test questions
    test.jsonl            both
    images.tar            all pictures
"""

from __future__ import annotations

import csv
import hashlib
import io
import json
import re
import sys
import tarfile
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

DESCRIBE = "Describe the picture."
BRIEFLY = "Answer in a word or a few, with commas between several things."
HELD_OUT = 0.1  # share of DAQUAR's training pictures that are validated on
Row = dict[str, Any]


def sentence(text: str) -> str:
    """A caption as people write it: no space before a full stop or a comma, and a full stop at its end.

    >>> sentence("a dog , and a cat .")
    'A dog, and a cat.'
    """
    text = re.sub(r"\s+([.,;:!?])", r"\1", " ".join(text.split()))
    return text[:1].upper() + text[1:].rstrip(" .,") + "."


def captions(folder: Path, split: str, *, each: bool) -> Iterator[Row]:
    """A dialogue for `each` caption, or one for each picture, with its captions as references."""
    for line in (folder / f"{split}.jsonl").read_text(encoding="utf-8").splitlines():
        found = json.loads(line)
        said = [sentence(text) for text in found["captions"] if text.strip(" .")]
        row = {"image": found["image"], "question": DESCRIBE}
        if each:
            yield from ({**row, "answer": text} for text in said)
        else:
            yield {**row, "answer": said[0], "references": said}


def questions(folder: Path, split: str) -> Iterator[Row]:
    """A dialogue for each question."""
    with (folder / f"{split}.tsv").open(encoding="utf-8", newline="") as file:
        for found in csv.DictReader(file, delimiter="\t", quoting=csv.QUOTE_NONE):
            asked = re.sub(r"\s+\?", "?", found["question"].strip())
            answer = ", ".join(part.strip().replace("_", " ") for part in found["answer"].split(","))
            yield {"image": found["image"], "question": f"{asked[:1].upper()}{asked[1:]} {BRIEFLY}", "answer": answer}


def is_held_out(image: str) -> bool:
    """Whether a picture of DAQUAR's is validated on: that follows from its name."""
    return int.from_bytes(hashlib.sha256(image.encode()).digest()[:8], "big") < HELD_OUT * 2**64


def write_table(path: Path, rows: Iterable[Row], *, compared: bool = True) -> int:
    """A table of dialogues, with references where they are to be compared; how many there are."""
    made = [{**row, "references": row.get("references")} if compared else row for row in rows]
    text = "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in made)
    path.write_text(text, encoding="utf-8")
    return len(made)


def pictures(folder: Path, archive: str, names: Iterable[str]) -> Iterator[tuple[str, bytes]]:
    """The bytes of the pictures that tables name, from a .tar, or unpacked."""
    wanted = sorted(set(names))
    if not (folder / archive).is_file():
        yield from ((name, (folder / name).read_bytes()) for name in wanted)
        return
    with tarfile.open(folder / archive, "r:") as packed:
        for name in wanted:
            member = packed.extractfile(name)
            assert member is not None
            yield name, member.read()


def pack(archive: tarfile.TarFile, found: Iterable[tuple[str, bytes]]) -> None:
    for name, data in found:
        entry = tarfile.TarInfo(name)
        entry.size = len(data)
        archive.addfile(entry, io.BytesIO(data))


def write_dialogues(flickr8k: Path, daquar: Path, out: Path) -> dict[str, int]:
    """The tables and the pictures; how many dialogues each table has."""
    out.mkdir(parents=True, exist_ok=True)
    asked = list(questions(daquar, "train"))
    learned = [row for row in asked if not is_held_out(row["image"])]
    valid = [row for row in asked if is_held_out(row["image"])]
    described = {split: list(captions(flickr8k, split, each=False)) for split in ("train", "valid", "test")}
    tested = list(questions(daquar, "test"))
    counts = {
        "train": write_table(
            out / "train.jsonl", [*captions(flickr8k, "train", each=True), *learned], compared=False
        ),
        "valid": write_table(out / "valid.jsonl", [*described["valid"], *valid]),
        "test-describe": write_table(out / "test-describe.jsonl", described["test"]),
        "test-daquar": write_table(out / "test-daquar.jsonl", tested),
        "test": write_table(out / "test.jsonl", [*described["test"], *tested]),
    }
    with tarfile.open(out / "images.tar", "w") as archive:
        parts = [
            pictures(flickr8k, f"{split}.tar", (row["image"] for row in rows)) for split, rows in described.items()
        ]
        parts.append(pictures(daquar, "images.tar", (row["image"] for row in [*asked, *tested])))
        for part in parts:
            pack(archive, part)
    return counts


def main() -> None:
    if len(sys.argv) != 4:
        sys.exit("usage: python examples/picture_dialogues.py FLICKR8K DAQUAR FOLDER")
    flickr8k, daquar, out = map(Path, sys.argv[1:])
    try:
        counts = write_dialogues(flickr8k, daquar, out)
    except (OSError, KeyError, ValueError, tarfile.TarError) as problem:
        sys.exit(f"{flickr8k} and {daquar} are not the folders of Flickr8k and DAQUAR ({problem})")
    for name, count in counts.items():
        print(f"{out / name}.jsonl: {count:,} dialogues")


if __name__ == "__main__":
    main()
