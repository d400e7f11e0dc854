"""Generating with LLaMA of the 7B shape: Legato in bf16, 8 and 4 bits, beside `transformers.generate`.

    python benchmarks/generate_llama.py --device cuda [--batch 64] [--rounds 3]
    python benchmarks/generate_llama.py --dtype float32 --layers 2 --width 64 --feedforward 128 --heads 2 --tokens 8

As `generate_gpt.py`: `--tokens` tokens are written greedily after one prompt of 16 tokens, and after `--batch`
prompts of 4 to 64 tokens. 32 layers of width 4,096, 32 heads, feed-forward layers of 11,008 and 32,000 tokens: 6.7
billion weights, 13 GB in bf16. Each side draws its own at random, on the device and in the dtype, by the same seed
but in its own order: nothing is written to a disk, *the sides do not share weights*, and no texts are compared. (That
both write the same texts is what `generate_gpt.py` and the tests hold.) The time of a step does not depend on what
the weights are. All sides are in memory at once, each in a process of its own: about 60 GB for all five in bf16.

`huggingface-static` is `transformers` with a cache of a fixed size, for which it compiles the step by itself on CUDA;
its process begins anew with each batch, so that it compiles for that shape alone. Shares of the machine are as
`generation.py` says. The last line printed is JSON. Needs the peer: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import json
from typing import Any, NamedTuple

from generation import (
    Shape,
    Weights,
    add_options,
    batches_of,
    built,
    huggingface_writer,
    least_seconds,
    legato_writer,
    measure,
    tell,
    tell_head,
    tell_ratios,
    timed,
    usual_sides,
    warm_calls,
)
from machine import Limits, limits_side
from sides import Side, choose_sides, start_sides, versions

# Legato and its peer are imported by the process that needs them.

LENGTH = 2048  # tokens of the longest text


class Llama(NamedTuple):
    layers: int
    width: int
    feedforward: int
    heads: int
    vocabulary: int

    @property
    def weights(self) -> Weights:
        layer = 4 * self.width**2 + 3 * self.width * self.feedforward
        return Weights(self.layers * layer, self.vocabulary * self.width)


def legato_side(llama: Llama, shape: Shape, seed: int, quantize: str | None = None) -> Any:
    from legato.models.base import Sizes
    from legato.models.llama import LlamaConfig, LlamaModel

    config = LlamaConfig(
        layers=llama.layers, width=llama.width, feedforward=llama.feedforward, heads=llama.heads, length=LENGTH
    )
    model = built(lambda: LlamaModel(config, Sizes(llama.vocabulary)), shape, seed)
    return timed(legato_writer(model, shape, quantize))


def huggingface_side(llama: Llama, shape: Shape, seed: int, cache: str | None = None) -> Any:
    import transformers

    transformers.logging.set_verbosity_error()
    config = transformers.LlamaConfig(
        vocab_size=llama.vocabulary,
        hidden_size=llama.width,
        intermediate_size=llama.feedforward,
        num_hidden_layers=llama.layers,
        num_attention_heads=llama.heads,
        max_position_embeddings=LENGTH,
    )
    model = built(lambda: transformers.LlamaForCausalLM(config), shape, seed)
    return timed(huggingface_writer(model, shape, cache))


SIDES = usual_sides(legato_side, huggingface_side)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sides", default=",".join(SIDES), help="which of them, with commas between")
    parser.add_argument("--dtype", default="bfloat16", choices=["float32", "bfloat16"])
    parser.add_argument("--layers", type=int, default=32)
    parser.add_argument("--width", type=int, default=4096)
    parser.add_argument("--feedforward", type=int, default=11_008)
    parser.add_argument("--heads", type=int, default=32)
    parser.add_argument("--vocabulary", type=int, default=32_000)
    add_options(parser, tokens=128, batch=8, rounds=3)
    options = parser.parse_args()
    chosen = choose_sides(options.sides, SIDES)
    shape = Shape(options.device, options.dtype, options.threads, options.tokens)
    llama = Llama(options.layers, options.width, options.feedforward, options.heads, options.vocabulary)
    limits: Limits = Side(limits_side, options.threads, options.device)(None)
    print(limits.tell(), flush=True)
    tell_head()
    figures: dict[str, Any] = {}
    sides: dict[str, Any] = {}
    for title, prompts in batches_of(options.batch, options.seed, options.vocabulary).items():
        start_sides(sides, chosen, lambda name: Side(SIDES[name], llama, shape, options.seed))
        seconds, _ = measure(sides, prompts, options.rounds, warm_calls(options))
        least = least_seconds(llama.weights, len(prompts), limits, options.dtype)
        figures[title] = tell(title, len(prompts), options.tokens, seconds, least)
        peers = [name for name in chosen if name.startswith("huggingface")]
        tell_ratios(figures[title], {name: peers for name in chosen if name.startswith("legato")})
    about = {"benchmark": "generate_llama", **vars(options), "versions": versions(), "limits": limits.figures()}
    print(json.dumps({**about, **figures}))


if __name__ == "__main__":
    main()
