"""Reading prompts and writing behind them, LLaMA shapes on a GPU: Legato, and vLLM where it is installed.

    python benchmarks/llama_prompts.py [--shapes 1b,135m] [--sides legato,vllm] [--rounds 3]

Random weights in bf16, prompts of random tokens, greedy, no end token. Each figure is the median of the rounds, after
one round to warm up: `64 prompts` are of 202 tokens, `8 long` of 3,039; with 1 token it is the time to read
them. `a step` is what one more token costs 64 rows. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

SHAPES: dict[str, dict[str, int]] = {
    "1b": {"width": 2048, "feedforward": 8192, "layers": 16, "heads": 32, "kv_heads": 8},
    "135m": {"width": 576, "feedforward": 1536, "layers": 30, "heads": 9, "kv_heads": 3},
    "7b": {"width": 4096, "feedforward": 11008, "layers": 32, "heads": 32, "kv_heads": 32},
}
VOCABULARY, LENGTH = 49_152, 8192
Prompts = list[list[int]]
Writer = Callable[[Prompts, int], int]  # writes so many tokens behind each; how many in all


def prompts_of(count: int, length: int, seed: int) -> Prompts:
    generator = np.random.default_rng(seed)
    lengths = np.clip(generator.normal(length, length / 10, count).astype(int), 2, LENGTH - 300)
    return [generator.integers(10, VOCABULARY, size).tolist() for size in lengths]


def legato_side(shape: dict[str, int]) -> Writer:
    import torch

    from legato.decoding import SearchOptions
    from legato.decoding.search import search
    from legato.models.base import Sizes
    from legato.models.llama import LlamaConfig, LlamaModel

    torch.manual_seed(0)
    with torch.device("cuda"):
        model = LlamaModel(LlamaConfig(length=LENGTH, tied=True, **shape), Sizes(VOCABULARY))
    model = model.to(torch.bfloat16).eval()

    def write(prompts: Prompts, tokens: int) -> int:
        texts = search(model, prompts, SearchOptions(max_tokens=tokens), eos=None)
        return sum(len(text[0].tokens) for text in texts)

    return write


def vllm_side(shape: dict[str, int]) -> Writer:
    import tempfile
    from pathlib import Path

    from vllm import LLM, SamplingParams

    folder = Path(tempfile.mkdtemp())
    config = {
        "architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": shape["width"],
        "intermediate_size": shape["feedforward"], "num_hidden_layers": shape["layers"],
        "num_attention_heads": shape["heads"], "num_key_value_heads": shape["kv_heads"], "vocab_size": VOCABULARY,
        "max_position_embeddings": LENGTH, "tie_word_embeddings": True, "torch_dtype": "bfloat16",
        "rms_norm_eps": 1e-5, "hidden_act": "silu",
    }  # fmt: skip
    (folder / "config.json").write_text(json.dumps(config))
    model = LLM(str(folder), load_format="dummy", skip_tokenizer_init=True, enable_prefix_caching=False)

    def write(prompts: Prompts, tokens: int) -> int:
        how = SamplingParams(temperature=0, max_tokens=tokens, ignore_eos=True, detokenize=False)
        made = model.generate([{"prompt_token_ids": prompt} for prompt in prompts], how, use_tqdm=False)
        return sum(len(one.outputs[0].token_ids) for one in made)

    return write


SIDES = {"legato": legato_side, "vllm": vllm_side}


def seconds(write: Writer, count: int, length: int, tokens: int, rounds: int) -> float:
    taken = []
    for number in range(rounds + 1):
        prompts = prompts_of(count, length, number)
        begun = time.perf_counter()
        assert write(prompts, tokens) == count * tokens
        taken.append(time.perf_counter() - begun)
    return statistics.median(taken[1:])


def figures_of(write: Writer, rounds: int) -> dict[str, Any]:
    def rate(count: int, tokens: int = 64) -> float:
        return round(count * tokens / seconds(write, count, 202, tokens, rounds), 1)

    longer, shorter = (seconds(write, 64, 202, tokens, rounds) for tokens in (192, 64))
    return {
        "64 prompts, ms": round(1e3 * seconds(write, 64, 202, 1, rounds), 1),
        "8 long, ms": round(1e3 * seconds(write, 8, 3039, 1, rounds), 1),
        "8 long and 64 tokens, ms": round(1e3 * seconds(write, 8, 3039, 64, rounds), 1),
        "a step of 64, ms": round(1e3 * (longer - shorter) / 128, 3),
        "1 prompt, tokens/s": rate(1),
        "64 prompts, tokens/s": rate(64),
        "256 prompts, tokens/s": rate(256),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--shapes", default="1b,135m")
    parser.add_argument("--sides", default="legato")
    parser.add_argument("--rounds", type=int, default=3)
    options = parser.parse_args()
    everything: dict[str, Any] = {}
    for shape in options.shapes.split(","):
        for side in options.sides.split(","):
            figures = figures_of(SIDES[side](SHAPES[shape]), options.rounds)
            everything[f"{shape} {side}"] = figures
            for name, value in figures.items():
                print(f"{shape:5} {side:7} {name:26} {value:>12,}", flush=True)
    print(json.dumps(everything))


if __name__ == "__main__":
    main()
