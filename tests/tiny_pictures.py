"""Pictures, and folders and tables of them, small enough for a test."""

from __future__ import annotations

import io
import json
import tarfile
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from legato.config import validate
from legato.data.batching.picture_batches import Decoder
from legato.data.processors import TEXT, Processors
from legato.data.text.tokenizers import Tokenizer
from legato.data.text.vocabularies import TokenizerConfig
from legato.folders.chat_template import plain_chat
from legato.folders.model_folder import save_model
from legato.models.base import Sizes
from legato.models.image_encoder import ImageConfig
from legato.registry import MODELS

COLOURS = {"red": (220, 30, 30), "blue": (30, 30, 220), "grey": (120, 120, 120)}
SIDE = 8

TINY = {
    "model": "vit",
    "model.image": SIDE,
    "model.patch": 4,
    "model.width": 16,
    "model.layers": 2,
    "model.heads": 2,
    "train.steps": 6,
    "train.batch_rows": 4,
    "train.validate_every": 3,
    "train.log_every": 1,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}
TINY_CAPTIONER = {
    **{key.replace("model.", "model.encoder."): value for key, value in TINY.items() if key.startswith("model.")},
    **{key: value for key, value in TINY.items() if key.startswith(("train.", "device"))},
    "model": "seq2seq",
    "model.encoder": "vit",
    "model.width": 16,
    "model.layers": 1,
    "tokenizer.min_count": 1,
}

TOWERS = {
    **{f"model.vision.{key}": value for key, value in {"layers": 1, "width": 16, "image": SIDE, "patch": 4}.items()},
    **{f"model.text.{key}": value for key, value in {"layers": 1, "width": 16, "length": 12}.items()},
    "model.projection": 8,
}


def pixels(colour: str = "red", seed: int = 0, side: int = SIDE) -> np.ndarray[Any, np.dtype[np.uint8]]:
    """A colour with some noise."""
    noise = np.random.default_rng(seed).integers(-25, 26, (side, side, 3))
    return (np.array(COLOURS[colour]) + noise).clip(0, 255).astype(np.uint8)


def encoded(colour: str = "red", seed: int = 0, kind: str = "PNG") -> bytes:
    file = io.BytesIO()
    Image.fromarray(pixels(colour, seed)).save(file, kind)
    return file.getvalue()


def write_picture(path: Path, colour: str = "red", seed: int = 0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(encoded(colour, seed))
    return path


def class_folders(folder: Path, count: int = 6, colours: Sequence[str] = ("blue", "red")) -> Path:
    """`folder/red/0.png` and so on."""
    for colour in colours:
        for number in range(count):
            write_picture(folder / colour / f"{number}.png", colour, number)
    return folder


def write_tar(path: Path, members: Mapping[str, bytes]) -> Path:
    with tarfile.open(path, "w") as archive:
        for name, data in members.items():
            entry = tarfile.TarInfo(name)
            entry.size = len(data)
            archive.addfile(entry, io.BytesIO(data))
    return path


def write_jsonl(path: Path, rows: Sequence[Mapping[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def captioned(folder: Path, count: int = 12) -> str:
    """A table of pictures with two captions each, and the pictures beside it."""
    rows = []
    for number in range(count):
        colour = ("red", "blue")[number % 2]
        write_picture(folder / f"{number}.png", colour, number)
        rows.append({"image": f"{number}.png", "captions": [f"A {colour} square.", f"all is {colour}"]})
    return write_jsonl(folder / "captions.jsonl", rows)


def picture_model(folder: Path, name: str = "vit", **settings: Any) -> Path:
    """A random model of pictures in a folder of its own; with a tokenizer where it reads text, too."""
    kind = MODELS.get(name)
    config = validate(kind.Config, {"name": name, **settings})
    held = word_tokenizer() if TEXT in kind.processors_of(config) else None
    reads = config if isinstance(config, ImageConfig) else ImageConfig(name="pictures", image=SIDE)
    _save(
        folder, kind, config, held, reads.image_processor(), "image-classification" if held is None else "image-text"
    )
    return folder


def captioner_model(folder: Path) -> Path:
    """A random captioner in the shape that Hugging Face's VisionEncoderDecoder has."""
    kind, held = MODELS.get("transformer"), word_tokenizer()
    encoder = {"name": "vit", "layers": 1, "width": 8, "heads": 2, "image": SIDE, "patch": 4}
    shape = {"norm": "pre", "positions": "learned", "activation": "gelu-tanh", "scale": False, "bias_readout": False}
    small = {"name": "transformer", "layers": 1, "width": 8, "heads": 2, "length": 16, "encoder": encoder, **shape}
    config = validate(kind.Config, small)
    _save(folder, kind, config, held, config.encoder.image_processor(), "captioning")
    return folder


def talking_model(folder: Path) -> Path:
    """A random LLaVA in the shape that Hugging Face's has, which can be talked to about a picture."""
    kind, held = MODELS.get("llava"), word_tokenizer().with_special_tokens(["<image>"])
    held.template = plain_chat(held).source
    tower = {"layers": 1, "width": 8, "heads": 2}
    vision, text = {**tower, "image": SIDE, "patch": 4}, {"name": "llama", **tower, "length": 64}
    config = validate(kind.Config, {"name": "llava", "vision": vision, "text": text})
    _save(folder, kind, config, held, config.image_processor(), "visual-chat")
    return folder


def word_tokenizer() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="word"), ["a red dog saw a big cat and ran off\n"])


def _save(folder: Path, kind: Any, config: Any, held: Tokenizer | None, processor: Any, task: str) -> None:
    folder.mkdir(parents=True)
    torch.manual_seed(0)
    processors = Processors(held, others={"image": processor})
    model = kind(config, Sizes(0 if held is None else held.size))
    save_model(folder, model, processors, task=task, about={}, card="")


def count_decoded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of the pictures that are decoded from now on."""
    decoded: list[int] = []
    read = Decoder.__getitem__

    def counted(self: Decoder, number: int) -> Any:
        decoded.append(number)
        return read(self, number)

    monkeypatch.setattr(Decoder, "__getitem__", counted)
    return decoded
