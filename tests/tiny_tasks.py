"""A run of every task that takes a fraction of a second, for tests that go over all tasks."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import tiny_boxes
import tiny_pairs
import tiny_pictures
import tiny_questions
import tiny_reviews
import tiny_runs
import tiny_sounds
import tiny_tagged
from legato.registry import TASKS

TREES = (
    "(S (NP (DT the) (NN dog)) (VP (VBZ sees) (NP (NNS cats))) (. .))",
    "(S (NP (NNS birds)) (VP (VBP sing) (PP (IN in) (NP (NNS trees)))) (. .))",
    "(S (NP (DT a) (NN cat)) (VP (VBZ sings)) (. .))",
)
ANIMALS = {"cat": "meow", "dog": "woof", "cow": "moo", "duck": "quack"}
TINY = {
    "model.width": 8,
    "model.dropout": 0.2,
    "train.steps": 4,
    "train.validate_every": 2,
    "train.checkpoint_every": 2,
    "train.keep": 1,
    "train.log_every": 1,
    "train.samples": 0,
    "train.tensorboard": "false",
    "device": "cpu",
}


def _texts(folder: Path) -> dict[str, Any]:
    return {key: value for key, value in tiny_runs.small(folder).items() if key.startswith("data.")}


def _lm(folder: Path) -> dict[str, Any]:
    return {**_texts(folder), "model": "lstm", "model.layers": 1, "tokenizer": "char", "train.batch_tokens": 64}


def _mlm(folder: Path) -> dict[str, Any]:
    return {**_texts(folder), "model": "lstm", "model.layers": 1, "tokenizer": "word", "train.batch_tokens": 64}


def _translation(folder: Path) -> dict[str, Any]:
    more = {"model__layers": 1, "tokenizer": "word", "tokenizer__size": None, "train__batch_tokens": 96}
    made = tiny_pairs.small_translation(folder, **{**tiny_pairs.SEQ2SEQ, **more})
    for language in ("en", "de"):  # what is written to be scored takes longest
        file = folder / f"val.{language}"
        file.write_text("".join(file.read_text().splitlines(keepends=True)[:2]))
    return made


def _parsing(folder: Path) -> dict[str, Any]:
    draw = random.Random(1)
    for name, count in (("train.mrg", 30), ("valid.mrg", 2)):
        (folder / name).write_text("".join(draw.choice(TREES) + "\n" for _ in range(count)))
    files = {"data.train": str(folder / "train.mrg"), "data.valid": str(folder / "valid.mrg")}
    return {**files, "model": "seq2seq", "model.layers": 1, "tokenizer.size": 280, "train.batch_tokens": 64}


def _tagging(folder: Path) -> dict[str, Any]:
    dropped = ("train.epochs",)
    return {key: value for key, value in tiny_tagged.small(folder).items() if key not in dropped}


def _classification(folder: Path) -> dict[str, Any]:
    return tiny_reviews.settings(folder)


def _qa(folder: Path) -> dict[str, Any]:
    train, valid = tiny_questions.squad(folder / "train.json"), tiny_questions.squad(folder / "valid.json", 1, seed=2)
    return {**tiny_questions.SMALL, "data.train": str(train), "data.valid": str(valid), "train.batch_rows": 4}


def _chat(folder: Path) -> dict[str, Any]:
    asked = [
        [
            {"role": "user", "content": f"what does the {animal} say"},
            {"role": "assistant", "content": f"{sound}!"},
        ]
        for animal, sound in ANIMALS.items()
    ]
    for name, times in (("train.jsonl", 4), ("valid.jsonl", 1)):
        lines = [json.dumps({"messages": turns}) + "\n" for turns in asked * times]
        (folder / name).write_text("".join(lines))
    files = {"data.train": str(folder / "train.jsonl"), "data.valid": str(folder / "valid.jsonl")}
    return {**files, "model": "lstm", "model.layers": 1, "tokenizer": "char", "train.batch_rows": 4}


def _word2vec(folder: Path) -> dict[str, Any]:
    return {**{k: v for k, v in _texts(folder).items() if k != "data.window"}, "train.batch_tokens": 64}


def _embedding(folder: Path) -> dict[str, Any]:
    draw = random.Random(3)
    words = ("big", "fast", "glad", "red", "old", "dog", "cat", "car", "ship", "man")
    for name, count in (("train.tsv", 40), ("valid.tsv", 8)):
        rows = [draw.sample(words, 4) for _ in range(count)]
        (folder / name).write_text("".join(f"{' '.join(row[:3])}\t{' '.join(row[1:])}\n" for row in rows))
    files = {"data.train": str(folder / "train.tsv"), "data.valid": str(folder / "valid.tsv")}
    return {**files, "model": "lstm", "model.layers": 1, "tokenizer": "word", "train.batch_rows": 8}


VIT = {"layers": 1, "width": 8, "heads": 2, "image": tiny_pictures.SIDE, "patch": 4}


def _image_classification(folder: Path) -> dict[str, Any]:
    photos = str(tiny_pictures.class_folders(folder / "photos", count=6))
    shape = {f"model.{key}": value for key, value in VIT.items()}
    return {"data.train": photos, "data.valid": photos, "model": "vit", **shape, "train.batch_rows": 4}


def _pictures(folder: Path) -> dict[str, Any]:
    """Pictures beside tables of them, and an encoder that reads them."""
    for number in range(6):
        tiny_pictures.write_picture(folder / f"{number}.png", "red" if number % 2 else "blue", number)
    return {"model.encoder": "vit", **{f"model.encoder.{key}": value for key, value in VIT.items()}}


def _captioning(folder: Path) -> dict[str, Any]:
    rows = [{"image": f"{number}.png", "captions": [f"picture {number}", "a square"]} for number in range(6)]
    train = tiny_pictures.write_jsonl(folder / "train.jsonl", rows)
    valid = tiny_pictures.write_jsonl(folder / "valid.jsonl", rows[:2])
    own = {"model": "seq2seq", "model.layers": 1, "tokenizer.min_count": 1, "train.batch_rows": 4}
    return {"data.train": train, "data.valid": valid, **_pictures(folder), **own}


def _image_text(folder: Path) -> dict[str, Any]:
    files = {key: value for key, value in _captioning(folder).items() if key.startswith("data.")}
    return {**files, **tiny_pictures.TOWERS, "model": "clip", "tokenizer": "word", "train.batch_rows": 4}


def _vqa(folder: Path) -> dict[str, Any]:
    rows = [f"{number}.png\twhat colour is it?\t{'red' if number % 2 else 'blue'}\n" for number in range(6)]
    for name, count in (("train.tsv", 6), ("valid.tsv", 2)):
        (folder / name).write_text("image\tquestion\tanswer\n" + "".join(rows[:count]))
    files = {"data.train": str(folder / "train.tsv"), "data.valid": str(folder / "valid.tsv")}
    return {**files, **_pictures(folder), "model": "vqa", "train.batch_rows": 4}


def _detection(folder: Path) -> dict[str, Any]:
    table = tiny_boxes.boxed(folder, 6)
    model = {key: value for key, value in tiny_boxes.SMALL.items() if key.startswith("model.")}
    model |= {key: [*map(str, value)] for key, value in model.items() if isinstance(value, list)}  # as words
    return {**model, "data.train": table, "data.valid": table, "train.batch_rows": 4}


def _visual_chat(folder: Path) -> dict[str, Any]:
    _pictures(folder)
    rows = [
        {"image": f"{number}.png", "question": "what colour?", "answer": "red" if number % 2 else "blue"}
        for number in range(6)
    ]
    train = tiny_pictures.write_jsonl(folder / "train.jsonl", rows)
    valid = tiny_pictures.write_jsonl(folder / "valid.jsonl", rows[:2])
    vision = {f"model.vision.{key}": value for key, value in VIT.items()}
    text = {"model.text": "gpt2", "model.text.layers": 1, "model.text.width": 8, "model.text.heads": 2}
    own = {"model.text.dropout": 0.2, "tokenizer": "word", "tokenizer.min_count": 1, "train.batch_rows": 4}
    return {"data.train": train, "data.valid": valid, "data.max_tokens": 4, "model": "llava", **vision, **text, **own}


def _unit(folder: Path) -> dict[str, Any]:
    """A question about a picture, boxes in it, and a text, of unequal weights."""
    colours = {key.removeprefix("data."): value for key, value in _vqa(folder).items() if key.startswith("data.")}
    pictures = [{"image": f"{n}.png", "objects": [{"label": "all", "box": [1, 1, 7, 6]}]} for n in range(6)]
    boxes = tiny_pictures.write_jsonl(folder / "boxes.jsonl", pictures)
    films = folder / "films"
    films.mkdir()
    given = tiny_reviews.settings(films)
    reviews = {key.removeprefix("data."): value for key, value in given.items() if key.startswith("data.")}
    tasks: dict[str, Any] = {
        "colours": {"task": "vqa", **colours},
        "boxes": {"task": "detection", "train": boxes, "valid": boxes, "queries": 2},
        "films": {"task": "classification", "weight": 2, **reviews},
    }
    small = {"model.layers": 1, "model.encoder_layers": 1, "model.heads": 2, "model.text.layers": 1}
    return {"data.tasks": tasks, **_pictures(folder), **small, "train.batch_rows": 4}


def _speech(folder: Path) -> dict[str, Any]:
    return {**tiny_sounds.write_sounds(folder), **tiny_sounds.SMALL}


def _audio_classification(folder: Path) -> dict[str, Any]:
    tiny_sounds.write_sounds(folder)
    return {"data.train": str(folder / "classes.tsv"), "data.valid": str(folder / "classes.tsv"), **tiny_sounds.SMALL}


EXAMPLES: dict[str, Callable[[Path], dict[str, Any]]] = {
    "lm": _lm,
    "mlm": _mlm,
    "translation": _translation,
    "parsing": _parsing,
    "tagging": _tagging,
    "classification": _classification,
    "qa": _qa,
    "chat": _chat,
    "word2vec": _word2vec,
    "embedding": _embedding,
    "image-classification": _image_classification,
    "captioning": _captioning,
    "image-text": _image_text,
    "vqa": _vqa,
    "detection": _detection,
    "visual-chat": _visual_chat,
    "unit": _unit,
    "speech": _speech,
    "audio-classification": _audio_classification,
}
LACKING = {  # which of TINY
    "word2vec": ("model.dropout",),
    "visual-chat": ("model.width", "model.dropout"),
    "image-text": ("model.width", "model.dropout"),
}


def tiny(task: str, folder: Path, **changes: Any) -> dict[str, Any]:
    """Settings of a tiny run of a task, on files in `folder`; `train__lr` is train.lr."""
    assert task in EXAMPLES, f"the task {task} has no example yet: add one to EXAMPLES in {__file__}"
    folder.mkdir(parents=True, exist_ok=True)
    made = {**EXAMPLES[task](folder), **TINY, **{key.replace("__", "."): value for key, value in changes.items()}}
    return {key: value for key, value in made.items() if key not in LACKING.get(task, ())}


def all_tasks() -> list[str]:
    """Those that are registered, each of which needs an example."""
    return list(TASKS.names())
