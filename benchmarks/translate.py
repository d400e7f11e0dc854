"""Translating: Legato, Hugging Face Marian and CTranslate2 with the same weights, side by side.

    python benchmarks/translate.py [--rounds 7] [--threads 2] [--layers 6] [--width 512]
    python benchmarks/translate.py --sides legato,ctranslate2,legato-int8,ctranslate2-int8
    python benchmarks/translate.py --device cuda --dtype bfloat16 --sentences 64 \\
        --sides legato,huggingface,huggingface-static --measure "beam ending,beam fixed"

A Transformer of the base size with 32,000 subwords and random weights is saved in our folder, which
`transformers` loads as it is, and exported to CTranslate2 where that is among the sides. All then translate the same
16 sentences (`--sentences`) of 5 to 40 subwords as one batch, in `--dtype`, greedily and with 4 beams (`--measure`).
Two measurements:

- *ending*: sentences end when the model says so, as they do for users; done sentences leaving the batch is part of
  the speed. The weights are such that ends come early and late (`draw_weights`). Each library stops a beam search
  by its own rule (CTranslate2 as soon as 4 hypotheses have ended, the other two when the open ones are behind
  those), which is part of its speed too, and why beams need not agree in every sentence;
- *fixed*: everybody writes exactly `--length` tokens for every sentence, so the work is the same to the token.

Measured: encoding and the search, from token numbers (for CTranslate2: token names) to token numbers. Not
measured: tokenisation, loading, the first calls. Output tokens are those of the best hypothesis, without the end
mark. Greedy outputs in float32 must be the same, or the script fails; of beam outputs, of bf16 and of 8 bits it tells
how many are. `-int8` has weights and activations of 8 bits. `huggingface-static` has a cache of a fixed size: for
greedy search on CUDA `transformers` then compiles the step by itself (its process begins anew with each measurement,
so that it compiles for that shape alone), for beams it does not. A side's share of the machine counts the
operations of its matrices for every hypothesis, and is of what PyTorch multiplies in that dtype (`machine.py`).

Each side runs in a process of its own, so that none meets another's threads or settings, and rounds of all
sides alternate, so that a change of clock or of load meets all alike. The last line printed is JSON. Needs the
peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import os
import statistics
import sys
import tempfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from generation import measure, timed, warm_calls
from machine import Limits, limits_side
from sides import Side, choose_sides, run_apart, start_sides, versions

# Legato and its peers are imported by the process that needs them.

Ids = list[list[int]]
VOCABULARY, BEAMS = 32_000, 4
EOS, PAD = 0, 1


class Place(NamedTuple):
    device: str
    dtype: str
    threads: int


class Request(NamedTuple):
    beams: int
    least: int  # tokens to write
    most: int


def write_model(folder: Path, layers: int, width: int, seed: int, twin: bool) -> None:
    """A Marian folder, and its `twin` for CTranslate2 beside it, in `ctranslate2/`."""
    import tokenizers
    import torch

    from legato.data.processors import Processors
    from legato.data.text.tokenizers import Tokenizer
    from legato.folders.exports import export
    from legato.folders.model_folder import save_model
    from legato.models.base import Sizes
    from legato.models.transformer import TransformerConfig, TransformerModel

    torch.manual_seed(seed)
    config = TransformerConfig(layers=layers, width=width, heads=width // 64, feedforward=4 * width)
    model = TransformerModel(config, Sizes(VOCABULARY)).eval()
    with torch.no_grad():
        draw_weights(model, width)
    names = {"<eos>": EOS, "<pad>": PAD, "<unk>": 2, **{f"w{i}": i for i in range(3, VOCABULARY)}}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(names, unk_token="<unk>"))
    library.add_special_tokens(["<eos>", "<pad>"])
    folder.mkdir()
    tokenizer = Tokenizer(library, "<eos>")
    save_model(folder, model, Processors(tokenizer), task="translation", about={}, card="", start=PAD)
    if twin:
        export(folder, "ctranslate2", out=folder.parent / "ctranslate2")


def draw_weights(model: Any, width: int) -> None:
    """Random weights with which sentences are varied and end, each in its time.

    As they start, random weights write one token for ever. Here

    - the sublayers say little, so that the current token is not forgotten on its way up;
    - the last feed-forward layer, made linear, turns what arrives into something else, so that another token
      comes next, and the last norm makes distributions as sharp as a trained model's (the best token has about
      two thirds);
    - a few coordinates in which positions rise slowly are left alone by all but the last cross-attention, whose
      answer differs from sentence to sentence. Only the end mark's readout sees them, so it becomes certain after
      a number of tokens that differs too.
    """
    import torch
    from torch import nn

    for name, parameter in model.named_parameters():
        if "layers" in name and parameter.dim() == 2:
            nn.init.xavier_uniform_(parameter, gain=0.3 if name.endswith(("output.weight", "outer.weight")) else 1.0)
    rates = 10000 ** (-torch.arange(0, width, 2) / width)
    slow = torch.nonzero((rates > 1 / 70) & (rates < 1 / 40)).flatten()
    last = model.decoder.layers[-1]
    inner, outer = last.feedforward.inner.weight, last.feedforward.outer.weight
    inner[2 * width :] = -inner[: 2 * width]  # relu(a) − relu(−a) = a
    outer[:, 2 * width :] = -outer[:, : 2 * width]
    outer.mul_(133)
    differing = 0.7 / 0.3 * last.cross.output.weight[:1]
    for block in model.decoder.layers:
        for layer in (block.attention.output, block.cross.output, block.feedforward.outer):
            layer.weight[slow] = 0
            layer.weight.sub_(layer.weight.sum(0) / (width - len(slow)))  # a mean would move `slow` in the norm
            layer.weight[slow] = 0
    last.cross.output.weight[slow] = differing
    last.feedforward_norm.weight.fill_(8)
    last.feedforward_norm.weight[slow] = 400
    model.embedding.weight[:, slow] = 0
    model.embedding.weight[EOS] = 0
    model.embedding.weight[EOS, slow] = 1
    model.output.bias[EOS] = 80
    model.output.bias[PAD] = -1e9  # never


def sentences(count: int, seed: int) -> Ids:
    """5 to 40 subwords each, the end mark counted, in no order of length."""
    import random

    draw = random.Random(seed)
    lengths = [round(5 + 35 * i / max(count - 1, 1)) for i in range(count)]
    draw.shuffle(lengths)
    return [[*(draw.randrange(3, VOCABULARY) for _ in range(length - 1)), EOS] for length in lengths]


Translate = Callable[[Request], Ids]


def legato_side(folder: Path, sources: Ids, place: Place, quantize: str | None = None) -> Translate:
    import numpy as np
    import torch

    from legato.decoding import SearchOptions
    from legato.folders.model_folder import load_model
    from legato.tasks.encoder_decoder import TargetTokens, decode

    torch.set_num_threads(place.threads)
    loaded = load_model(folder)
    model = loaded.module.to(place.device, getattr(torch, place.dtype))
    if quantize is not None:
        from legato.nn.quantized import quantize_layers

        quantize_layers(model, quantize)
    writing = TargetTokens.of(loaded.target, loaded.start)
    arrays = [np.array(source, dtype=np.int32) for source in sources]

    def translate(request: Request) -> Ids:
        beam = {"search": "beam", "beams": request.beams} if request.beams > 1 else {}
        options = SearchOptions(max_tokens=request.most, min_tokens=request.least, **beam)
        found = decode(model, arrays, writing, options, limits=[request.most] * len(arrays))
        return [best.tokens for best, *_ in found]

    return translate


def huggingface_side(folder: Path, sources: Ids, place: Place, cache: str | None = None) -> Translate:
    import torch
    import transformers

    torch.set_num_threads(place.threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    model = transformers.MarianMTModel.from_pretrained(folder, dtype=torch.float32).eval()
    model.to(place.device, getattr(torch, place.dtype))
    model.generation_config.suppress_tokens = None  # the biases of this model's marks do it
    longest, device = max(map(len, sources)), place.device

    def translate(request: Request) -> Ids:
        padded = torch.tensor([source + [PAD] * (longest - len(source)) for source in sources], device=device)
        seen = torch.tensor([[1] * len(source) + [0] * (longest - len(source)) for source in sources], device=device)
        with torch.inference_mode():
            written = model.generate(
                padded,
                attention_mask=seen,
                num_beams=request.beams,
                do_sample=False,
                min_new_tokens=request.least,
                max_new_tokens=request.most,
                max_length=None,
                cache_implementation=cache,
            )
        return [cut(row[1:]) for row in written.tolist()]

    return translate


def ctranslate2_side(folder: Path, sources: Ids, place: Place, width: str | None = None) -> Translate:
    import ctranslate2

    twin = folder.parent / "ctranslate2"
    translator = ctranslate2.Translator(
        str(twin),
        device=place.device,
        compute_type=width or place.dtype,
        intra_threads=place.threads,
        inter_threads=1,
    )
    names = json.loads((twin / "shared_vocabulary.json").read_text())
    numbers = {name: number for number, name in enumerate(names)}
    tokens = [[names[number] for number in source] for source in sources]

    def translate(request: Request) -> Ids:
        found = translator.translate_batch(
            tokens,
            beam_size=request.beams,
            min_decoding_length=request.least,
            max_decoding_length=request.most,
        )
        return [[numbers[name] for name in best.hypotheses[0]] for best in found]

    return translate


SIDES: dict[str, Callable[..., Translate]] = {
    "legato": legato_side,
    "legato-int8": partial(legato_side, quantize="int8"),
    "legato-int4": partial(legato_side, quantize="int4"),
    "huggingface": huggingface_side,
    "huggingface-static": partial(huggingface_side, cache="static"),
    "ctranslate2": ctranslate2_side,
    "ctranslate2-int8": partial(ctranslate2_side, width="int8"),
}


def cut(row: list[int]) -> list[int]:
    return row[: row.index(EOS)] if EOS in row else row


def timed_side(name: str, *given: Any) -> Callable[[Request], tuple[float, Ids]]:
    """What a side's process answers: seconds and outputs."""
    return timed(SIDES[name](*given))


MEASURED = [f"{search} {kind}" for search in ("greedy", "beam") for kind in ("ending", "fixed")]


def request_of(name: str, length: int, most: int) -> Request:
    """Of a measurement's name."""
    beams = BEAMS if name.startswith("beam") else 1
    return Request(beams, length, length) if name.endswith("fixed") else Request(beams, 0, most)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--warm", type=int, help="calls before the first round; left out: 4 on cuda, 1 elsewhere")
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--layers", type=int, default=6, help="of the encoder, and as many of the decoder")
    parser.add_argument("--width", type=int, default=512, help="a multiple of 64, one head each")
    parser.add_argument("--sentences", type=int, default=16)
    parser.add_argument("--length", type=int, default=32, help="tokens to write where the number is fixed")
    parser.add_argument("--most", type=int, default=64, help="tokens to write at most where sentences end")
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--sides", default="legato,huggingface,ctranslate2", help=f"of {', '.join(SIDES)}")
    parser.add_argument("--measure", default=",".join(MEASURED), help="which of them, with commas between")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    measured = options.measure.split(",")
    if unknown := [name for name in measured if name not in MEASURED]:
        raise SystemExit(f"'{unknown[0]}' is not measured; there are {', '.join(MEASURED)}")
    chosen = choose_sides(options.sides, SIDES)
    twin = any(name.startswith("ctranslate2") for name in chosen)
    if twin and importlib.util.find_spec("ctranslate2") is None:
        raise SystemExit('ctranslate2 is not installed; the peers come with: pip install -e ".[bench]"')

    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, options.seed, twin)
        sources = sentences(options.sentences, options.seed)
        limits: Limits = Side(limits_side, options.threads, options.device)(None)
        where = Place(options.device, options.dtype, options.threads)
        sides: dict[str, Any] = {}
        figures: dict[str, Any] = {}
        print(limits.tell(), flush=True)
        print(f"{'':18s}{'':20s}{'tokens/s':>9s}   {'from':>5s} to {'':5s} of the limit  Legato is", flush=True)
        for name in measured:
            request = request_of(name, options.length, options.most)
            start_sides(sides, chosen, lambda side: Side(timed_side, side, folder, sources, where))
            seconds, written = measure(sides, request, options.rounds, warm_calls(options))
            work = Work(options.layers, options.width, request.beams, sum(map(len, sources)), options.dtype)
            search, kind = name.split()
            title = f"{search} {BEAMS} {kind}" if search == "beam" else name
            figures[title] = tell(title.replace(f" {kind}", f", {kind}"), seconds, written, work, limits)

    about = {"benchmark": "translate", **vars(options)}
    print(json.dumps({**about, "versions": versions("ctranslate2"), "limits": limits.figures(), **figures}))
    peers = [name for name in chosen if not name.startswith("legato") and not name.endswith("-int8")]
    greedy = [row["equal"] for name, row in figures.items() if "greedy" in name]
    if options.dtype == "float32" and any(
        row.get(name, len(sources)) < len(sources) for row in greedy for name in peers
    ):
        raise SystemExit("greedy outputs differ, so this is no comparison")


class Work(NamedTuple):
    """What is multiplied at least: each matrix with every token that it reads, but nothing for attention."""

    layers: int
    width: int
    beams: int
    source_tokens: int
    dtype: str = "float32"

    def operations(self, tokens: int) -> float:
        matrix = 2.0 * self.width**2
        encoder, memory = self.layers * (4 + 8) * matrix, self.layers * 2 * matrix
        decoder = self.layers * (4 + 2 + 8) * matrix + 2.0 * self.width * VOCABULARY
        return self.source_tokens * (encoder + memory) + self.beams * tokens * decoder


def tell(
    title: str, seconds: dict[str, list[float]], written: dict[str, Ids], work: Work, limits: Limits
) -> dict[str, Any]:
    """Print one measurement; its figures. A side in 8 bits is compared with Legato's in 8 bits."""
    figures: dict[str, Any] = {"equal": {}, "tokens": {}, "tokens_per_second": {}, "share": {}, "legato_over": {}}
    medians = {name: statistics.median(values) for name, values in seconds.items()}
    for name in seconds:
        count = sum(map(len, written[name]))
        figures["tokens"][name] = count
        figures["tokens_per_second"][name] = round(count / medians[name], 1)
        figures["share"][name] = round(work.operations(count) / medians[name] / limits.rate(work.dtype), 3)
    for name, values in seconds.items():
        ours = "legato-int8" if name.endswith("-int8") and "legato-int8" in seconds else "legato"
        speed, count, ratio = figures["tokens_per_second"][name], figures["tokens"][name], ""
        if speed and not name.startswith("legato") and ours in seconds:
            figures["legato_over"][name] = round(figures["tokens_per_second"][ours] / speed, 3)
            ratio = f"{figures['legato_over'][name]:6.2f} ×"
        if name != "legato" and "legato" in seconds:
            figures["equal"][name] = sum(a == b for a, b in zip(written["legato"], written[name], strict=True))
        spread = f"{count / max(values):5.0f} to {count / min(values):5.0f}"
        print(f"{title:18s}{name:20s}{speed:9.0f}   {spread}  {figures['share'][name]:8.0%}     {ratio}", flush=True)
        title = ""
    same = ", ".join(f"{equal} of {len(written[name])} as {name}" for name, equal in figures["equal"].items())
    lengths = sorted(map(len, next(iter(written.values()))))
    print(f"{'':18s}{same}; {lengths[0]} to {lengths[-1]} tokens, {sum(lengths)} in all", flush=True)
    return figures


if __name__ == "__main__":
    try:
        main()
    except BrokenPipeError:  # whoever read this has read enough, as `head` does
        sys.stdout = open(os.devnull, "w")  # noqa: SIM115  # for Python's own flush at the end
