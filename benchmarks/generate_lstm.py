"""Sampling from an LSTM language model: Legato beside a plain loop over `nn.LSTM`, the same weights and prompts.

    python benchmarks/generate_lstm.py --device cuda [--rounds 5] [--sides legato,loop,legato-bfloat16,loop-bfloat16]
    python benchmarks/generate_lstm.py --layers 1 --width 32 --embedding 16 --vocabulary 50 --batch 3 --tokens 8

3 layers of width 1,152, an embedding of 400, 10,000 tokens, random weights: 64 rows write 256 tokens each, drawn from
the whole distribution, after prompts of 8 tokens. Nothing ends a text. The sides:

- *legato*: `legato.decoding.search` with `search="sample"`, whose draws depend on the seed and the prompt alone;
- *loop*: what one writes by hand: `nn.LSTM` one step a call, softmax and `torch.multinomial` on the device, which is
  read once, at the end.

Both are in `--dtype`; a side with `-bfloat16` or `-float32` behind its name is in that. In float32 no product is TF32
on either side (cuDNN's would be, left to itself); `--tf32` allows it on both. Before the rounds all write `--check`
tokens greedily; in float32 nine of ten texts must be the same (equal logits may fall either way), or the script
fails. Measured: from token numbers to token numbers. Not measured: loading, the first calls. Shares of the machine
are as `generation.py` says. The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from generation import (
    Answer,
    Ids,
    Weights,
    add_options,
    measure,
    prompts_of,
    tell,
    tell_head,
    tell_ratios,
    timed,
    warm_calls,
)
from machine import Limits, limits_side
from sides import Side, choose_sides, versions

# Legato is imported by the process that needs it.

PROMPT = 8  # tokens
DTYPES = ("float32", "bfloat16")
SAME = 0.9  # of the texts


class Lstm(NamedTuple):
    layers: int
    width: int
    embedding: int
    vocabulary: int
    seed: int

    @property
    def weights(self) -> Weights:
        cells = 4 * self.width * (self.embedding + self.width) + (self.layers - 1) * 8 * self.width**2
        return Weights(cells, self.vocabulary * self.width)


class Place(NamedTuple):
    device: str
    threads: int
    tf32: bool


class Request(NamedTuple):
    prompts: Ids
    tokens: int
    sample: bool


def read_model(lstm: Lstm, place: Place, dtype: str) -> Any:
    import torch

    from legato.models.base import Sizes
    from legato.models.recurrent import RecurrentConfig, RecurrentModel

    torch.set_num_threads(place.threads)
    torch.set_float32_matmul_precision("high" if place.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = place.tf32
    torch.manual_seed(lstm.seed)
    config = RecurrentConfig(
        name="lstm", layers=lstm.layers, width=lstm.width, embedding=lstm.embedding, tied=False, dropout=0
    )
    return RecurrentModel(config, Sizes(lstm.vocabulary)).to(place.device, getattr(torch, dtype)).eval()


def legato_side(lstm: Lstm, place: Place, dtype: str) -> Answer:
    from legato.decoding import SearchOptions, search

    model = read_model(lstm, place, dtype)

    def write(request: Request) -> Ids:
        how: Any = {"search": "sample", "seed": lstm.seed} if request.sample else {}
        options = SearchOptions(max_tokens=request.tokens, **how)
        return [best[0].tokens for best in search(model, request.prompts, options, eos=None)]

    return timed(write)


def loop_side(lstm: Lstm, place: Place, dtype: str) -> Answer:
    import torch
    from torch import nn

    model = read_model(lstm, place, dtype)
    stack = nn.LSTM(lstm.embedding, lstm.width, lstm.layers, device=place.device, dtype=getattr(torch, dtype)).eval()
    theirs = {
        f"{name}_l{depth}": parameter
        for depth, pair in enumerate(model.stack.layers)
        for name, parameter in pair[0].cell.named_parameters()
    }
    stack.load_state_dict(theirs)
    stack.flatten_parameters()  # as cuDNN wants them
    embedding, output = model.embedding, model.output

    @torch.inference_mode()
    def write(request: Request) -> Ids:
        hidden, state = stack(embedding(torch.tensor(request.prompts, device=place.device).t()))  # (T, B, D)
        written = []
        while True:
            logits = output(hidden[-1])  # (B, V)
            token = torch.multinomial(logits.softmax(-1), 1)[:, 0] if request.sample else logits.argmax(-1)
            written.append(token)
            if len(written) == request.tokens:
                rows: Ids = torch.stack(written, 1).tolist()
                return rows
            hidden, state = stack(embedding(token)[None], state)

    return timed(write)


MAKERS = {"legato": legato_side, "loop": loop_side}
NAMES = [*MAKERS, *(f"{name}-{dtype}" for dtype in DTYPES for name in MAKERS)]


def dtype_of(side: str, usual: str) -> str:
    return side.partition("-")[2] or usual


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", default="legato,loop,legato-bfloat16,loop-bfloat16", help=f"of {', '.join(NAMES)}")
    parser.add_argument("--dtype", default="float32", choices=DTYPES, help="of sides that do not name theirs")
    parser.add_argument("--layers", type=int, default=3)
    parser.add_argument("--width", type=int, default=1152)
    parser.add_argument("--embedding", type=int, default=400)
    parser.add_argument("--vocabulary", type=int, default=10_000)
    parser.add_argument("--check", type=int, default=32, help="tokens written greedily, to compare the sides")
    parser.add_argument("--tf32", action="store_true", help="products in float32 may be TF32")
    add_options(parser, tokens=256, batch=64, rounds=5)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, NAMES)
    lstm = Lstm(options.layers, options.width, options.embedding, options.vocabulary, options.seed)
    place = Place(options.device, options.threads, options.tf32)
    dtypes = {name: dtype_of(name, options.dtype) for name in chosen}
    limits: Limits = Side(limits_side, options.threads, options.device)(None)
    print(limits.tell(), flush=True)
    sides = {name: Side(MAKERS[name.partition("-")[0]], lstm, place, dtypes[name]) for name in chosen}
    prompts = prompts_of([PROMPT] * options.batch, options.seed, options.vocabulary)

    def least(name: str) -> float:
        read = lstm.weights.bytes("", dtypes[name])
        return limits.least_seconds(read, lstm.weights.operations(options.batch), dtypes[name])

    greedy = {name: side(Request(prompts, options.check, sample=False))[1] for name, side in sides.items()}
    request = Request(prompts, options.tokens, sample=True)
    seconds, _ = measure(sides, request, options.rounds, warm_calls(options))
    tell_head()
    figures = tell(f"{options.batch} rows", options.batch, options.tokens, seconds, least)
    twins = {name: name.replace("legato", "loop", 1) for name in chosen if name.startswith("legato")}
    tell_ratios(figures, {name: [twin] for name, twin in twins.items()})
    figures["same"] = {
        name: sum(ours == theirs for ours, theirs in zip(greedy[name], greedy[twin], strict=True))
        for name, twin in twins.items()
        if twin in chosen
    }
    for name, same in figures["same"].items():
        print(f"{'':12s}{same} of {options.batch} greedy texts of {name} as {twins[name]}", flush=True)
    about = {"benchmark": "generate_lstm", **vars(options), "versions": versions(), "limits": limits.figures()}
    print(json.dumps({**about, **figures}))
    exact = [same for name, same in figures["same"].items() if dtypes[name] == "float32" and not options.tf32]
    if any(same < SAME * options.batch for same in exact):
        raise SystemExit("the texts differ, so this is no comparison")


if __name__ == "__main__":
    main()
