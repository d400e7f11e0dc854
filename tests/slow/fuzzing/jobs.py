"""How each task is trained on something small: what it reads, its settings, how it is asked and scored."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from fuzzing import sounds, stock

Make = Callable[[Path], None]


@dataclass(frozen=True)
class Job:
    """How a task is trained on something small."""

    makes: tuple[Make, ...]
    settings: dict[str, Any]
    test: Any  # data.test of an evaluation
    asks: tuple[str, ...] = ()  # the words of `predict` behind the model
    verb: str = "predict"
    answers: str | int | None = None
    more: tuple[Make, ...] = field(default=())


LSTM: Final = {"model": "lstm", "model.width": 8, "model.layers": 1}
ATTENDING: Final = {"model.width": 8, "model.layers": 1, "model.heads": 2, "model.length": 64}
TEXT: Final = {"data.train": "train.txt", "data.valid": "valid.txt"}
WINDOWED: Final = {**TEXT, "tokenizer": "char", "data.window": 16, "train.batch_tokens": 64}
ENGLISH: Final = {"data.train": ["train.en", "train.de"], "data.valid": ["valid.en", "valid.de"]}
TABLE: Final = {"data.train": "train.tsv", "data.valid": "valid.tsv", "train.batch_rows": 8}
VIT: Final = {"layers": 1, "width": 8, "heads": 2, "image": 8, "patch": 4}
SEEING: Final = {"model.encoder": "vit", **{f"model.encoder.{key}": value for key, value in VIT.items()}}
DETECTING: Final = {
    "model": "detr",
    "model.size": ["16", "24"],
    "model.width": 8,
    "model.heads": 2,
    "model.layers": 1,
    "model.encoder_layers": 1,
    "model.queries": 4,
    **SEEING,
    "model.encoder.image": 24,
}
HEARING: Final = {"layers": 1, "width": 8, "heads": 2, "features": 8, "channels": 2}
TALKING: Final = {
    **{f"model.vision.{key}": value for key, value in VIT.items()},
    "model.text": "gpt2",
    **{f"model.text.{key}": value for key, value in {"layers": 1, "width": 8, "heads": 2, "length": 64}.items()},
}
FILE: Final = ("--file", "texts.txt", "--json")

JOBS: Final[dict[str, Job]] = {
    "lm": Job(
        (stock.text, stock.texts),
        {**WINDOWED, **LSTM},
        "valid.txt",
        (*FILE, "--max-tokens", "8"),
        "generate",
        "texts.txt",
    ),
    "mlm": Job(
        (stock.text,),
        {**TEXT, "model": "bert", **ATTENDING, "data.window": 16, "train.batch_tokens": 64, "data.max_sentences": 4},
        "valid.txt",
        ("the <mask> sat on a <mask>", "one <mask>", "--json"),
        answers=2,
    ),
    "translation": Job(
        (stock.pairs,),
        {
            **ENGLISH,
            "model": "transformer",
            **ATTENDING,
            "tokenizer.size": 300,
            "train.batch_tokens": 128,
            "data.beams": 1,
        },
        ["valid.en", "valid.de"],
        ("A dog runs.", "The cat eats.", "--beams", "2", "--nbest", "2", "--max-tokens", "10", "--json"),
        answers=2,
    ),
    "parsing": Job(
        (stock.trees,),
        {
            "data.train": "trees.zip!**/train*.mrg",
            "data.valid": "valid.mrg",
            "tokenizer": "word",
            "model": "seq2seq",
            "model.width": 8,
            "model.layers": 1,
            "train.batch_tokens": 128,
            "data.beams": 1,
        },
        "valid.mrg",
        ("the dog sees a cat .", "--json"),
        answers=1,
    ),
    "tagging": Job(
        (stock.tagged, stock.texts),
        {**TEXT, **LSTM, "train.batch_rows": 8, "head.crf": "true"},
        "valid.txt",
        FILE,
        answers="texts.txt",
    ),
    "classification": Job(
        (stock.reviews, stock.texts), {**TABLE, **LSTM}, "valid.tsv", (*FILE, "--nbest", "2"), answers="texts.txt"
    ),
    "qa": Job(
        (stock.questions, stock.context),
        {"data.train": "train.json", "data.valid": "valid.json", **LSTM, "train.batch_rows": 8},
        "valid.json",
        ("--context", "context.txt", "Who did it?", "When was it?", "--json"),
        answers=2,
    ),
    "chat": Job(
        (stock.dialogues, stock.published("gpt2")),
        {"data.train": "train.jsonl", "from": "gpt2", "data.valid_share": 0.3, "train.batch_rows": 2},
        "train.jsonl",
        ("--chat", "who are you?", "--system", "Be brief.", "--max-tokens", "5", "--json"),
        "generate",
        answers=1,
    ),
    "word2vec": Job(
        (stock.topics,),
        {
            "data.train": "train.txt",
            "data.analogies": "analogies.txt",
            "data.similarity": "similarity.tsv",
            "model.width": 8,
            "train.batch_tokens": 64,
            "data.subsample": 0,
        },
        "train.txt",
        ("boat", "cow - hay + sail", "--json"),
        answers=2,
    ),
    "embedding": Job(
        (stock.alike, stock.search),
        {**TABLE, **LSTM, "tokenizer": "word"},
        "valid.tsv",
        ("big car", "--search", "lines.txt", "--json"),
        answers=1,
    ),
    "image-classification": Job(
        (stock.pictures,),
        {
            "data.train": "photos",
            "data.valid": "photos",
            "model": "vit",
            **{f"model.{key}": value for key, value in VIT.items()},
            "train.batch_rows": 4,
        },
        "photos",
        ("photo.png", "--json"),
        answers=1,
    ),
    "captioning": Job(
        (stock.pictures,),
        {
            "data.train": "train.jsonl",
            "data.valid": "valid.jsonl",
            "model": "seq2seq",
            "model.width": 8,
            "model.layers": 1,
            **SEEING,
            "tokenizer.min_count": 1,
            "train.batch_rows": 4,
        },
        "valid.jsonl",
        ("photo.png", "--beams", "2", "--max-tokens", "5", "--json"),
        answers=1,
    ),
    "image-text": Job(
        (stock.pictures,),
        {
            "data.train": "train.jsonl",
            "data.valid": "valid.jsonl",
            "model": "clip",
            **{f"model.vision.{key}": value for key, value in VIT.items()},
            **{f"model.text.{key}": value for key, value in {"layers": 1, "width": 8, "length": 12}.items()},
            "model.projection": 8,
            "tokenizer": "word",
            "train.batch_rows": 4,
        },
        "valid.jsonl",
        ("photo.png", "--labels", "red,blue", "--template", "a {label} square", "--json"),
        answers=1,
    ),
    "vqa": Job(
        (stock.pictures,),
        {
            "data.train": "train.tsv",
            "data.valid": "valid.tsv",
            "model": "vqa",
            "model.width": 8,
            **SEEING,
            "train.batch_rows": 4,
        },
        "valid.tsv",
        ("photo.png", "what colour is it?", "--json"),
        answers=1,
    ),
    "detection": Job(
        (stock.boxes,),
        {"data.train": "train.jsonl", "data.valid": "valid.jsonl", **DETECTING, "train.batch_rows": 4},
        "valid.jsonl",
        ("photo.png", "--threshold", "0.1", "--nbest", "3", "--json"),
        answers=1,
    ),
    "visual-chat": Job(
        (stock.picture_dialogues,),
        {
            "data.train": "train.jsonl",
            "data.valid": "valid.jsonl",
            "model": "llava",
            **TALKING,
            "tokenizer": "word",
            "tokenizer.min_count": 1,
            "train.batch_rows": 4,
            "data.max_tokens": 5,
        },
        "valid.jsonl",
        ("what colour?", "--image", "photo.png", "--chat", "--max-tokens", "5", "--json"),
        "generate",
        answers=1,
    ),
    "unit": Job(
        (stock.pictures, stock.tables),
        {
            "data.tasks.colours.task": "vqa",
            "data.tasks.colours.train": "train.tsv",
            "data.tasks.colours.valid": "valid.tsv",
            "data.tasks.films.task": "classification",
            "data.tasks.films.train": "train.csv",
            "data.tasks.films.valid": "valid.csv",
            "data.tasks.films.weight": 2,
            "model.width": 8,
            "model.layers": 1,
            "model.heads": 2,
            "model.text.layers": 1,
            **SEEING,
            "train.batch_rows": 4,
        },
        {"data.tasks.colours.test": "valid.tsv", "data.tasks.films.test": "valid.csv"},
        ("photo.png", "what colour is it?", "--task", "colours", "--json"),
        answers=1,
    ),
    "speech": Job(
        (sounds.sounds,),
        {
            "data.train": "train.tsv",
            "data.valid": "valid.tsv",
            "model": "conformer",
            **{f"model.{key}": value for key, value in HEARING.items()},
            "data.batch_seconds": 2,
        },
        "valid.tsv",
        ("sound.wav", "--beams", "2", "--timestamps", "--json"),
        answers=1,
    ),
    "audio-classification": Job(
        (sounds.sounds,),
        {
            "data.train": "classes.tsv",
            "data.valid": "classes.tsv",
            "model": "conformer",
            **{f"model.{key}": value for key, value in HEARING.items()},
            "data.batch_seconds": 2,
        },
        "classes.tsv",
        ("sound.wav", "--nbest", "2", "--json"),
        answers=1,
    ),
}
