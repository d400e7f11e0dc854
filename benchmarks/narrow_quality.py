"""What narrow weights cost a language model: its perplexity on a text in float32, 8 and 4 bits, side by side.

    python benchmarks/narrow_quality.py MODEL text.txt [--widths float32,int8,int4] [--device cuda] [--tokens 100000]

MODEL is what `legato.load` takes: a run, a folder as Hugging Face keeps it, a GGUF file or a name on the hub. Each
width reads the text as `legato eval` does (`evaluation/lm.py`): Transformers in windows that overlap by half,
recurrent models as one stream, of which 2,048 tokens are a window here. `bfloat16` and `float16` are widths, too;
`--dtype` is what a quantised model has in all that is not quantised.

A width's perplexity is told beside the first one's, as a ratio: exp of the mean difference of a token's nats. Its
standard error is *paired by window*: windows differ much, but in the same way for every width, so the differences
vary far less than the losses do. With d_w the difference of window w's nats and n_w its tokens, r = Σd / Σn and

    SE(r)² = W / (W - 1) · Σ (d_w - r n_w)² / (Σn)²,    SE(exp r) = exp(r) SE(r)

The last line printed is JSON.
"""

from __future__ import annotations

import argparse
import json
import math
from typing import Any, NamedTuple

from sides import versions

NARROW, WIDE = ("int8", "int4"), ("float32", "bfloat16", "float16")


class Windows(NamedTuple):
    """What each window's tokens cost, and how many there are."""

    nats: list[float]
    tokens: list[int]

    @property
    def loss(self) -> float:
        return sum(self.nats) / sum(self.tokens)


class Ratio(NamedTuple):
    """Of two perplexities."""

    value: float
    error: float  # standard


def compare(narrow: Windows, wide: Windows) -> Ratio:
    differences = [mine - its for mine, its in zip(narrow.nats, wide.nats, strict=True)]
    total, count = sum(wide.tokens), len(differences)
    mean = sum(differences) / total
    squares = sum((d - mean * n) ** 2 for d, n in zip(differences, wide.tokens, strict=True))
    error = math.sqrt(count / (count - 1) * squares) / total if count > 1 else math.nan
    return Ratio(math.exp(mean), math.exp(mean) * error)


def score(model: Any, ids: Any) -> Windows:
    """Each window's nats of ids[1:], as `legato eval` reads them."""
    from legato.data.batching.batch import IGNORE
    from legato.evaluation.lm import sliding_loss, stream_loss
    from legato.tasks.lm.job import CONTEXT

    module, windows = model.module, Windows([], [])
    plain = module.nll

    def kept(hidden: Any, targets: Any, smoothing: float = 0.0) -> Any:
        """The model's, of one window after another."""
        each = [plain(*row, smoothing) for row in zip(hidden.split(1), targets.split(1), strict=True)]
        windows.nats.extend(float(told) for _, told in each)
        windows.tokens.extend((targets != IGNORE).sum(1).tolist())
        return tuple(sum(parts) for parts in zip(*each, strict=True))

    module.nll = kept
    try:
        if module.max_length is None:
            stream_loss(module, ids)
        else:
            context = model.about.get("window") or min(module.max_length, CONTEXT)
            sliding_loss(module, ids, context, max(1, context // 2))
    finally:
        del module.nll  # the class's again
    return windows


def measure(place: str, source: str, width: str, options: argparse.Namespace) -> Windows:
    import torch

    import legato
    from legato.data.cache import cached_ids
    from legato.data.formats.text import read_text
    from legato.tasks.lm.job import begin_with

    how = {"dtype": options.dtype, "quantize": width} if width in NARROW else {"dtype": width}
    model = legato.load(place, options.device, **how)
    if not model.module.can_generate or model.module.is_encoder_decoder:
        raise SystemExit(f"{place} is no language model that writes, so it has no perplexity of a text")
    ids = begin_with(model.tokenizer.prompt("")[0], cached_ids(read_text(source), model.tokenizer))
    ids = ids if options.tokens is None else ids[: options.tokens + 1]
    if len(ids) < 2:
        raise SystemExit(f"{source} holds no token to predict")
    return score(model, torch.from_numpy(ids.astype("int64")))


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("model", help="a run, a folder, a GGUF file or a name on the hub")
    parser.add_argument("text", help="a text file, or builtin:stdlib")
    parser.add_argument("--widths", default="float32,int8,int4", help=f"of {', '.join((*WIDE, *NARROW))}")
    parser.add_argument("--dtype", default="float32", choices=WIDE, help="of what is not quantised")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--tokens", type=int, default=None, help="of the text, the first ones; left out: all")
    options = parser.parse_args()
    widths = options.widths.split(",")
    if unknown := [width for width in widths if width not in (*WIDE, *NARROW)]:
        raise SystemExit(f"there is no width '{unknown[0]}'; there are {', '.join((*WIDE, *NARROW))}")

    figures: dict[str, Any] = {}
    first: Windows | None = None
    for width in widths:
        windows = measure(options.model, options.text, width, options)
        if first is None:
            first = windows
            print(f"{sum(windows.tokens):,} tokens in {len(windows.tokens):,} windows", flush=True)
            print(f"{'':12s}{'nats a token':>13s}{'perplexity':>12s}   × {widths[0]}'s", flush=True)
        ratio = compare(windows, first)
        figures[width] = {
            "loss": round(windows.loss, 6),
            "perplexity": round(math.exp(windows.loss), 4),
            "ratio": round(ratio.value, 6),
            "standard_error": None if math.isnan(ratio.error) else round(ratio.error, 6),
        }
        told = "" if width == widths[0] else f"   {ratio.value:.5f} ± {ratio.error:.5f}"
        print(f"{width:12s}{windows.loss:13.5f}{math.exp(windows.loss):12.4f}{told}", flush=True)
    assert first is not None
    counts = {"scored_tokens": sum(first.tokens), "windows": len(first.tokens)}
    about = {"benchmark": "narrow_quality", **vars(options), "versions": versions()}
    print(json.dumps({**about, **counts, "by_width": figures}))


if __name__ == "__main__":
    main()
