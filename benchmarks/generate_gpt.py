"""Generating with GPT-2: Legato, `transformers.generate`, CTranslate2 and llama.cpp, the same weights and prompts.

    python benchmarks/generate_gpt.py [--device cuda] [--layers 12] [--width 768] [--rounds 5]
    python benchmarks/generate_gpt.py --device cuda --dtype bfloat16 --batch 64 \\
        --sides legato,huggingface,huggingface-static
    python benchmarks/generate_gpt.py --sides legato,legato-int8,legato-int4,huggingface --batch 8
    python benchmarks/generate_gpt.py --sides legato,ctranslate2,legato-int8,ctranslate2-int8,llama.cpp-q8_0 --batch 8
    python benchmarks/generate_gpt.py --layers 2 --width 64 --tokens 16 --rounds 2

GPT-2 of the 124M size with random weights (the readout is not the embedding here, which would write one token for
ever) writes `--tokens` tokens greedily: after one prompt of 16 tokens, and after 16 prompts of 4 to 64 tokens in one
batch. Measured: from token numbers to token numbers, prompts taken in and a cache filled. Not measured: loading,
the first calls. `huggingface-static` is `transformers` with a cache of a fixed size, for which it compiles the step
by itself on CUDA (nowhere else); its process begins anew with each batch, so that it compiles for that shape alone.
In float32 `legato` and both `huggingface` sides must write the same tokens, but where the two best logits lie within
rounding of each other, or the script fails; in bf16 it says how many texts are the same. `legato-int8` and
`legato-int4` are the same model, quantised; so are CTranslate2's and llama.cpp's (its GGUF files are written by us,
of the same weights; it runs in the environment of `--peers`, see `peers.py`). A side's share of the machine is of
what it could write if a step took no longer than to read its weights once or to multiply them with every row
(`generation.py`). The last line printed is JSON. Needs the peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from generation import (
    Ids,
    Shape,
    Weights,
    add_options,
    batches_of,
    huggingface_writer,
    least_seconds,
    legato_writer,
    measure,
    prepare,
    tell,
    tell_head,
    tell_ratios,
    timed,
    usual_sides,
    warm_calls,
)
from gpt_sides import VOCABULARY, read_ours, read_theirs, write_ctranslate2, write_gguf, write_model
from machine import Limits, limits_side
from peers import PeerSide
from sides import Side, choose_sides, run_apart, start_sides, versions

# Legato and its peer are imported by the process that needs them.

TIE = 1e-4  # between two logits that rounding decides


class Fork(NamedTuple):
    """Where two sides go on differently."""

    before: list[int]
    ours: int
    theirs: int


def apart(model: Any, fork: Fork) -> float:
    import torch

    from legato.data.batching.batch import Inputs

    with torch.no_grad():
        logits = model.prefill(Inputs.of([fork.before], model.device), model.start(1, len(fork.before)))[0].float()
    return float((logits[fork.ours] - logits[fork.theirs]).abs())


def is_tie(side: Side, prompt: list[int], ours: list[int], theirs: list[int]) -> bool:
    """Whether two texts differ from where the two best logits lie within rounding of each other."""
    first = next(n for n, pair in enumerate(zip(ours, theirs, strict=True)) if pair[0] != pair[1])
    return bool(side(Fork(prompt + ours[:first], ours[first], theirs[first])) < TIE)


def legato_side(folder: Path, shape: Shape, quantize: str | None = None) -> Any:
    model = prepare(read_ours(folder), shape)
    write = timed(legato_writer(model, shape, quantize))

    def answer(asked: Any) -> Any:
        """Of prompts what writing takes, and what is written; of a `Fork` how far its two logits lie apart."""
        return apart(model, asked) if isinstance(asked, Fork) else write(asked)

    return answer


def huggingface_side(folder: Path, shape: Shape, cache: str | None = None) -> Any:
    return timed(huggingface_writer(prepare(read_theirs(folder), shape), shape, cache))


def ctranslate2_side(folder: Path, shape: Shape, width: str = "float32") -> Any:
    import ctranslate2

    twin = folder.with_name("ctranslate2")
    model = ctranslate2.Generator(
        str(twin), device=shape.device, compute_type=width, intra_threads=shape.threads, inter_threads=1
    )

    def write(prompts: Ids) -> Ids:
        found = model.generate_batch(
            [[f"t{number}" for number in prompt] for prompt in prompts],
            max_length=shape.tokens,
            min_length=shape.tokens,
            sampling_topk=1,
            include_prompt_in_result=False,
        )
        return [list(each.sequences_ids[0]) for each in found]

    return timed(write)


SIDES: dict[str, Any] = {
    **usual_sides(legato_side, huggingface_side),
    "ctranslate2": ctranslate2_side,
    "ctranslate2-int8": partial(ctranslate2_side, width="int8"),
}
PEERS = ["huggingface", "huggingface-static"]  # which must write the same texts
LLAMA_CPP = {f"llama.cpp-{width}": width for width in ("f32", "q8_0", "q4_0")}


def start(name: str, folder: Path, shape: Shape, peers: str) -> Any:
    if name not in LLAMA_CPP:
        return Side(SIDES[name], folder, shape)
    file = folder.with_name(f"{LLAMA_CPP[name]}.gguf")
    run_apart(write_gguf, folder, file, LLAMA_CPP[name])
    return PeerSide(peers, "llama_cpp", {"file": str(file), "threads": shape.threads, "tokens": shape.tokens})


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", default="legato,huggingface", help=f"of {', '.join((*SIDES, *LLAMA_CPP))}")
    parser.add_argument("--peers", default=sys.executable, help="the Python that has llama-cpp-python")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    add_options(parser, tokens=128, batch=16, rounds=5)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, (*SIDES, *LLAMA_CPP))
    shape = Shape(options.device, options.dtype, options.threads, options.tokens)
    weights = Weights(options.layers * 12 * options.width**2, VOCABULARY * options.width)
    figures: dict[str, Any] = {}
    same = True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, 1024, False, options.seed)
        if any(name.startswith("ctranslate2") for name in chosen):
            run_apart(write_ctranslate2, folder)
        limits: Limits = Side(limits_side, options.threads, options.device)(None)
        print(limits.tell(), flush=True)
        tell_head()
        sides: dict[str, Any] = {}
        for title, prompts in batches_of(options.batch, options.seed, VOCABULARY).items():
            start_sides(sides, chosen, lambda name: start(name, folder, shape, options.peers))
            seconds, written = measure(sides, prompts, options.rounds, warm_calls(options))
            least = least_seconds(weights, len(prompts), limits, options.dtype)
            figures[title] = tell(title, len(prompts), options.tokens, seconds, least)
            tell_ratios(figures[title], {"legato": PEERS})
            for peer in PEERS:
                if {"legato", peer} <= set(chosen):
                    figures[title][f"texts as {peer}"] = texts = agreement(
                        sides["legato"], prompts, written["legato"], written[peer]
                    )
                    print(f"{'':12s}{texts['equal']} of {len(prompts)} texts as {peer}", end="", flush=True)
                    print(f", {texts['ties']} but for a tie" if texts["ties"] else "", flush=True)
                    same &= sum(texts.values()) == len(prompts)
    about = {"benchmark": "generate_gpt", **vars(options), "versions": versions(), "limits": limits.figures()}
    print(json.dumps({**about, **figures}))
    if options.dtype == "float32" and not same:
        raise SystemExit("the texts differ, so this is no comparison")


def agreement(side: Side, prompts: Ids, ours: Ids, theirs: Ids) -> dict[str, int]:
    """How many texts are the same, and how many but for a tie."""
    each = list(zip(prompts, ours, theirs, strict=True))
    forks = [one for one in each if one[1] != one[2]]
    return {"equal": len(each) - len(forks), "ties": sum(is_tie(side, *fork) for fork in forks)}


if __name__ == "__main__":
    main()
