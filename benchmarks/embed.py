"""Vectors of sentences: Legato beside `sentence-transformers`, ONNX Runtime and OpenVINO, the same model and texts.

    python benchmarks/embed.py [MODEL] [--sides legato,sentence-transformers] [--device cuda] [--batch-size 32]
    python benchmarks/embed.py --sides legato,legato-int8,sentence-transformers,onnxruntime-int8 --peers V/bin/python
    python benchmarks/embed.py --sides legato,legato-float16,sentence-transformers --peers V/bin/python

Without a MODEL it is a BERT of the base size with random weights, and texts are made of its own words: 8 of 128
tokens each (*even*), and `--texts` of 4 to 256 tokens (*mixed*). With one, texts are sentences of 3 to 40 words, or
those of `--file`.

Every side gets all texts at once, and sorts them by length itself. Measured: from texts to vectors, the tokenizer
included. Peers run in the environment of `--peers` (`peers.py` says what they need): ONNX Runtime and OpenVINO driven
directly, `-int8` with ONNX Runtime's dynamic quantisation. Each side has a process of its own, and rounds alternate.
A side's share of the machine counts the operations of the matrices for each token, and is of what PyTorch multiplies
in float32 (`machine.py`). The last line printed is JSON, with how far each side's vectors lie from the first one's.
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from machine import Limits, limits_side
from peers import PeerSide, timed
from sides import Side, choose_sides, run_apart

WORDS = (
    *("the", "a", "one", "two", "old", "new", "red", "dog", "cat", "man", "house", "car", "river", "runs", "sleeps"),
    *("sees", "finds", "in", "on", "under", "with", "and", "quickly"),
)
SPECIAL, VOCABULARY = ("[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"), 30_522
EVEN, TOKENS, SHORTEST, LONGEST = 8, 128, 4, 256


def write_model(folder: Path, layers: int, width: int) -> None:
    """A sentence encoder with random weights, as `sentence-transformers` keeps it."""
    import tokenizers
    import torch
    import transformers
    from sentence_transformers import SentenceTransformer
    from sentence_transformers.models import Pooling, Transformer
    from tokenizers.processors import TemplateProcessing

    torch.manual_seed(0)
    transformers.logging.set_verbosity_error()
    names = {**{name: at for at, name in enumerate(SPECIAL)}, **{f"w{at}": at for at in range(5, VOCABULARY)}}
    words = tokenizers.Tokenizer(tokenizers.models.WordPiece(names, unk_token="[UNK]"))
    words.pre_tokenizer = tokenizers.pre_tokenizers.BertPreTokenizer()
    words.post_processor = TemplateProcessing(single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)])
    config = transformers.BertConfig(
        hidden_size=width, num_hidden_layers=layers, num_attention_heads=width // 64, intermediate_size=4 * width
    )
    body = folder.parent / "body"
    transformers.BertModel(config).save_pretrained(body)
    roles = {"pad_token": "[PAD]", "unk_token": "[UNK]", "cls_token": "[CLS]", "sep_token": "[SEP]"}
    transformers.PreTrainedTokenizerFast(tokenizer_object=words, mask_token="[MASK]", **roles).save_pretrained(body)
    encoder = Transformer(str(body), max_seq_length=512)
    SentenceTransformer(modules=[encoder, Pooling(width, "mean")], device="cpu").save(str(folder))


def made_up(lengths: Sequence[int]) -> list[str]:
    """Texts of so many tokens, the two special ones counted."""
    draw = random.Random(0)
    return [" ".join(f"w{draw.randrange(5, VOCABULARY)}" for _ in range(length - 2)) for length in lengths]


def legato_side(folder: Path, device: str, threads: int, batch: int, width: str) -> Any:
    import torch

    import legato

    torch.set_num_threads(threads)
    model = legato.load(folder, device, dtype=width if width.startswith("float") else "float32")
    if width.startswith("int"):
        from legato.nn.quantized import quantize_layers

        quantize_layers(model.module, width)
    return timed(lambda texts: model.embed(texts, batch_size=batch)[:, :8].tolist())


NAMES = (
    *("legato", "legato-float16", "legato-int8", "legato-int4", "sentence-transformers"),
    *("onnxruntime", "onnxruntime-int8", "openvino", "openvino-int8"),
)


def start(name: str, folder: Path, given: argparse.Namespace) -> Any:
    if name.startswith("legato"):
        width = name.removeprefix("legato").removeprefix("-") or "float32"
        return Side(legato_side, folder, given.device, given.threads, given.batch_size, width)
    about = {"folder": str(folder), "threads": given.threads, "batch": given.batch_size}
    if name == "sentence-transformers":
        return PeerSide(given.peers, "sentence_transformers", about)
    return PeerSide(given.peers, "encoder", {**about, "engine": name})


def main() -> None:
    import sys

    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", type=Path, nargs="?")
    parser.add_argument("--sides", default="legato,sentence-transformers", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--peers", default=sys.executable, help="the Python that has the peers")
    parser.add_argument("--file", type=Path)
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--batch-size", type=int, default=32)
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--texts", type=int, default=64)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    given = parser.parse_args()
    chosen = choose_sides(given.sides, NAMES)
    draw = random.Random(0)
    with tempfile.TemporaryDirectory() as place:
        folder: Path = given.model or Path(place) / "model"
        if given.model is None:
            run_apart(write_model, folder, given.layers, given.width)
            mixed = [draw.randint(SHORTEST, LONGEST) for _ in range(given.texts)]
            batches = {"even": made_up([TOKENS] * EVEN), "mixed": made_up(mixed)}
            tokens = {"even": EVEN * TOKENS, "mixed": sum(mixed)}
        else:
            texts = [" ".join(draw.choices(WORDS, k=draw.randint(3, 40))) for _ in range(given.texts)]
            batches = {"texts": texts if given.file is None else given.file.read_text("utf-8").splitlines()}
            tokens = {}
        limits: Limits = Side(limits_side, given.threads)(None)
        print(limits.tell(), flush=True)
        sides = {name: start(name, folder, given) for name in chosen}
        operations = 24.0 * given.layers * given.width**2  # of each token
        figures = {
            name: measure(name, texts, sides, given.rounds, operations * tokens.get(name, 0), limits)
            for name, texts in batches.items()
        }
    about = {key: str(value) if isinstance(value, Path) else value for key, value in vars(given).items()}
    print(json.dumps({"benchmark": "embed", **about, "limits": limits.figures(), **figures}))


def measure(
    title: str, texts: list[str], sides: dict[str, Any], rounds: int, operations: float, limits: Limits
) -> dict[str, Any]:
    """Rounds of all sides in turn, and their figures."""
    import numpy as np

    found = {name: np.array(side(texts)[1]) for name, side in sides.items()}  # once before the clock runs
    seconds: dict[str, list[float]] = {name: [] for name in sides}
    for _ in range(rounds):
        for name, side in sides.items():
            seconds[name].append(side(texts)[0])
    first = next(iter(found.values()))
    figures: dict[str, Any] = {"texts_per_second": {}, "share": {}, "off_by": {}}
    for name, values in seconds.items():
        speed = len(texts) / statistics.median(values)
        spread = f"{len(texts) / max(values):7.2f} to {len(texts) / min(values):7.2f}"
        off = float(np.linalg.norm(found[name] - first) / np.linalg.norm(first))
        share = operations / statistics.median(values) / limits.products
        print(f"{title:8}{name:24}{speed:8.2f} texts/s  {spread}  {share:6.0%} of the limit", flush=True)
        figures["texts_per_second"][name], figures["share"][name] = round(speed, 2), round(share, 3)
        figures["off_by"][name] = round(off, 5)
        title = ""
    return figures


if __name__ == "__main__":
    main()
