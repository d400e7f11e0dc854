"""Generating with GPT-2: Legato and `transformers.generate`, the same weights and prompts, side by side.

    python benchmarks/generate_gpt.py [--device cuda] [--layers 12] [--width 768] [--rounds 5]
    python benchmarks/generate_gpt.py --layers 2 --width 64 --tokens 16 --rounds 2

GPT-2 of the 124M size with random weights (the readout is not the embedding here, which would write one token for
ever) writes `--tokens` tokens greedily: after one prompt of 16 tokens, and after 16 prompts of 4 to 64 tokens in one
batch. Measured: from token numbers to token numbers, prompts taken in and a cache filled. Not measured: loading,
the first call. In float32 both sides must write the same tokens, or the script fails; in bf16 it tells how many
texts are the same. The last line printed is JSON. Needs the peer: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import random
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

from gpt_sides import VOCABULARY, read_ours, read_theirs, write_model
from sides import Side, require_transformers, run_apart, versions

# Legato and its peer are imported by the process that needs them.

Ids = list[list[int]]


class Shape(NamedTuple):
    device: str
    dtype: str
    threads: int
    tokens: int


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


def legato_side(folder: Path, shape: Shape) -> Any:
    from legato.decoding import SearchOptions, search

    model = prepare(read_ours(folder), shape)
    options = SearchOptions(max_tokens=shape.tokens)

    def write(prompts: Ids) -> Ids:
        return [best[0].tokens for best in search(model, prompts, options, eos=None)]

    return timed(write, shape)


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


SIDES = {"legato": legato_side, "huggingface": huggingface_side}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
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
    require_transformers()
    multiprocessing.set_start_method("spawn")
    shape = Shape(options.device, options.dtype, options.threads, options.tokens)
    spread = [round(4 + 60 * i / max(options.batch - 1, 1)) for i in range(options.batch)]
    random.Random(options.seed).shuffle(spread)
    figures: dict[str, Any] = {}
    same = True
    with tempfile.TemporaryDirectory() as place:
        folder = Path(place) / "model"
        run_apart(write_model, folder, options.layers, options.width, 1024, False, options.seed)
        sides = {name: Side(make, folder, shape) for name, make in SIDES.items()}
        print(f"{'':12s}{'':13s}{'tokens/s':>10s}   {'from':>7s} to", flush=True)
        for title, lengths in (("batch 1", [16]), (f"batch {options.batch}", spread)):
            prompts = prompts_of(lengths, options.seed)
            written = {name: side(prompts)[1] for name, side in sides.items()}  # also warms up
            seconds: dict[str, list[float]] = {name: [] for name in sides}
            for _ in range(options.rounds):
                for name, side in sides.items():
                    seconds[name].append(side(prompts)[0])
            count = len(prompts) * options.tokens
            speeds = {name: count / statistics.median(values) for name, values in seconds.items()}
            for number, (name, values) in enumerate(seconds.items()):
                apart = f"{count / max(values):7,.0f} to {count / min(values):7,.0f}"
                print(f"{title if number == 0 else '':12s}{name:13s}{speeds[name]:10,.0f}   {apart}", flush=True)
            equal = sum(a == b for a, b in zip(*written.values(), strict=True))
            ratio = speeds["legato"] / speeds["huggingface"]
            print(f"{'':12s}Legato is {ratio:.2f} ×; {equal} of {len(prompts)} texts are the same", flush=True)
            same &= equal == len(prompts)
            figures[title] = {
                "tokens_per_second": {name: round(speed, 1) for name, speed in speeds.items()},
                "legato_over": round(ratio, 3),
                "equal": equal,
            }
    print(json.dumps({"benchmark": "generate_gpt", **vars(options), "versions": versions(), **figures}))
    if options.dtype == "float32" and not same:
        raise SystemExit("the texts differ, so this is no comparison")


if __name__ == "__main__":
    main()
