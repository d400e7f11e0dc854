"""Generating with GPT-2: Legato, `transformers.generate`, CTranslate2 and llama.cpp, the same weights and prompts.

    python benchmarks/generate_gpt.py [--device cuda] [--layers 12] [--width 768] [--rounds 5]
    python benchmarks/generate_gpt.py --sides legato,legato-int8,legato-int4,huggingface --batch 8
    python benchmarks/generate_gpt.py --sides legato,ctranslate2,legato-int8,ctranslate2-int8,llama.cpp-q8_0 --batch 8
    python benchmarks/generate_gpt.py --layers 2 --width 64 --tokens 16 --rounds 2

GPT-2 of the 124M size with random weights (the readout is not the embedding here, which would write one token for
ever) writes `--tokens` tokens greedily: after one prompt of 16 tokens, and after 16 prompts of 4 to 64 tokens in one
batch. Measured: from token numbers to token numbers, prompts taken in and a cache filled. Not measured: loading,
the first call. In float32 `legato` and `huggingface` must write the same tokens, but where the two best logits lie
within rounding of each other, or the script fails; in bf16 it says how many texts are the same. `legato-int8` and
`legato-int4` are the same model, quantised; so are CTranslate2's and llama.cpp's (its GGUF files are written by us,
of the same weights; it runs in the environment of `--peers`, see `peers.py`). A side's share of the machine is of
what it could write if it read its weights once a step, as fast as PyTorch reads them (`machine.py`). The last line
printed is JSON. Needs the peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import random
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from gpt_sides import VOCABULARY, read_ours, read_theirs, write_ctranslate2, write_gguf, write_model
from machine import Limits, limits_side
from peers import PeerSide
from sides import Side, choose_sides, run_apart, versions

# Legato and its peer are imported by the process that needs them.

Ids = list[list[int]]
TIE = 1e-4  # between two logits that rounding decides


class Shape(NamedTuple):
    device: str
    dtype: str
    threads: int
    tokens: int


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


def prompts_of(lengths: list[int], seed: int) -> Ids:
    draw = random.Random(seed)
    return [[draw.randrange(VOCABULARY) for _ in range(length)] for length in lengths]


def prepare(model: Any, shape: Shape) -> Any:
    import torch

    torch.set_num_threads(shape.threads)
    torch.set_float32_matmul_precision("highest")
    return model.to(shape.device, getattr(torch, shape.dtype)).eval()


def timed(write: Any, shape: Shape) -> Any:
    """From prompts to the seconds that writing takes, and what is written."""

    def answer(prompts: Ids) -> tuple[float, Ids]:
        started = time.perf_counter()
        written = write(prompts)  # lists of numbers: the device has finished
        return time.perf_counter() - started, written

    return answer


def legato_side(folder: Path, shape: Shape, quantize: str | None = None) -> Any:
    from legato.decoding import SearchOptions, search

    model = prepare(read_ours(folder), shape)
    if quantize is not None:
        from legato.nn.quantized import quantize_layers

        quantize_layers(model, quantize)
    options = SearchOptions(max_tokens=shape.tokens)

    def write(prompts: Ids) -> Ids:
        return [best[0].tokens for best in search(model, prompts, options, eos=None)]

    def answer(asked: Any) -> Any:
        """Of prompts what writing takes, and what is written; of a `Fork` how far its two logits lie apart."""
        return apart(model, asked) if isinstance(asked, Fork) else timed(write, shape)(asked)

    return answer


def huggingface_side(folder: Path, shape: Shape) -> Any:
    import torch

    model = prepare(read_theirs(folder), shape)

    def write(prompts: Ids) -> Ids:
        longest = max(map(len, prompts))
        ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts], device=shape.device)
        seen = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts], device=shape.device)
        with torch.inference_mode():
            written = model.generate(
                ids,
                attention_mask=seen,
                do_sample=False,
                max_new_tokens=shape.tokens,
                min_new_tokens=shape.tokens,
                eos_token_id=None,
                pad_token_id=0,
            )
        rows: Ids = written[:, longest:].tolist()
        return rows

    return timed(write, shape)


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

    return timed(write, shape)


def bytes_of(name: str, layers: int, width: int) -> float:
    """What a side reads at each step: the matrices, and the readout."""
    numbers = layers * 12 * width**2 + VOCABULARY * width
    if name.endswith(("int8", "q8_0")):
        return 34 / 32 * numbers
    if name.endswith(("int4", "q4_0")):
        return 18 / 32 * layers * 12 * width**2 + 34 / 32 * VOCABULARY * width
    return 4.0 * numbers


SIDES: dict[str, Any] = {
    "legato": legato_side,
    "legato-int8": partial(legato_side, quantize="int8"),
    "legato-int4": partial(legato_side, quantize="int4"),
    "huggingface": huggingface_side,
    "ctranslate2": ctranslate2_side,
    "ctranslate2-int8": partial(ctranslate2_side, width="int8"),
}
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
    parser.add_argument("--device", default="cpu", help="cpu or cuda")
    parser.add_argument("--dtype", default="float32", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--width", type=int, default=768, help="a multiple of 64, one head each")
    parser.add_argument("--tokens", type=int, default=128, help="to write")
    parser.add_argument("--batch", type=int, default=16, help="prompts in the larger batch")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--threads", type=int, default=2, help="of a CPU")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, (*SIDES, *LLAMA_CPP))
    shape = Shape(options.device, options.dtype, options.threads, options.tokens)
    spread = [round(4 + 60 * i / max(options.batch - 1, 1)) for i in range(options.batch)]
    random.Random(options.seed).shuffle(spread)
    figures: dict[str, Any] = {}
    same = True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, 1024, False, options.seed)
        if any(name.startswith("ctranslate2") for name in chosen):
            run_apart(write_ctranslate2, folder)
        limits: Limits = Side(limits_side, options.threads)(None)
        print(limits.tell(), flush=True)
        sides = {name: start(name, folder, shape, options.peers) for name in chosen}
        print(f"{'':12s}{'':18s}{'tokens/s':>10s}   {'from':>7s} to {'':7s} of the limit", flush=True)
        for title, lengths in (("batch 1", [16]), (f"batch {options.batch}", spread)):
            prompts = prompts_of(lengths, options.seed)
            written = {name: side(prompts)[1] for name, side in sides.items()}  # also warms up
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, side in sides.items():
                    seconds[name].append(side(prompts)[0])
            count = len(prompts) * options.tokens
            speeds = {name: count / statistics.median(values) for name, values in seconds.items()}
            weights = {name: bytes_of(name, options.layers, options.width) for name in sides}
            shares: dict[str, float] = {}
            for number, (name, values) in enumerate(seconds.items()):
                apart = f"{count / max(values):7,.0f} to {count / min(values):7,.0f}"
                share = shares[name] = speeds[name] / len(prompts) * weights[name] / limits.read
                line = f"{title if number == 0 else '':12s}{name:18s}{speeds[name]:10,.0f}   {apart}  {share:8.0%}"
                print(line, flush=True)
            figures[title] = {
                "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
                "share": {name: round(share, 3) for name, share in shares.items()},
            }
            if {"legato", "huggingface"} <= set(chosen):
                both = list(zip(prompts, written["legato"], written["huggingface"], strict=True))
                equal = sum(ours == theirs for _, ours, theirs in both)
                forks = [each for each in both if each[1] != each[2]]
                ties = sum(is_tie(sides["legato"], *each) for each in forks)
                ratio = speeds["legato"] / speeds["huggingface"]
                print(
                    f"{'':12s}Legato is {ratio:.2f} ×; {equal} of {len(prompts)} texts are the same",
                    end="",
                    flush=True,
                )
                print(f", {ties} but for a tie" if ties else "", flush=True)
                same &= equal + ties == len(prompts)
                figures[title] |= {"legato_over": round(ratio, 3), "equal": equal, "ties": ties}
    about = {"benchmark": "generate_gpt", **vars(options), "versions": versions(), "limits": limits.figures()}
    print(json.dumps({**about, **figures}))
    if options.dtype == "float32" and not same:
        raise SystemExit("the texts differ, so this is no comparison")


if __name__ == "__main__":
    main()
