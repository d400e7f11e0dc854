"""The kernels of a decoder's step and of the choice of tokens: the same as the modules and as the plain search.

They run on a GPU, or in Triton's interpreter; there the tests of this file are run again, in a process of their own.
"""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import nn

from interpreted_kernels import DEVICE, needs_interpreter, needs_kernels, run_interpreted
from legato.config import validate
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.decoding.candidates import Chooser
from legato.decoding.lanes.device_frontier import DeviceFrontier
from legato.decoding.options import SearchOptions
from legato.decoding.row_settings import Level, RowSettings
from legato.models.base import Sizes
from legato.nn import feedforward, transformer
from legato.nn.capture import record
from legato.nn.feedforward import BlockShape
from legato.nn.linear import Linear
from legato.nn.losses import vocabulary as losses
from legato.nn.quantized import QuantizedLinear, quantize, quantize_layers
from legato.nn.transformer import Stack
from legato.registry import MODELS

V = 23


@pytest.mark.slow
@needs_interpreter
def test_all_of_this_file_in_triton_interpreter() -> None:
    run_interpreted(__file__)


KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {"name": "gpt2"},
    "llama": {"name": "llama", "kv_heads": 1},
    "mistral": {"name": "llama", "family": "mistral", "window": 4},
    "qwen3": {"name": "llama", "family": "qwen3", "kv_heads": 1},
    "transformer": {"name": "transformer", "dropout": 0.0},
    "rotary": {"name": "transformer", "positions": "rotary", "norm": "pre", "window": 5, "dropout": 0.0},
}


def logits_of(
    kind: str, groups: int, width: int, capacity: int, *, kernel: bool, quantize: str | None = None, steps: int = 9
) -> torch.Tensor:
    """Of some steps, after prompts of different lengths; beams change places."""
    torch.manual_seed(0)
    name = KINDS[kind]["name"]
    settings = {"layers": 2, "width": 16, "heads": 2, "length": 64, **KINDS[kind]}
    if quantize is not None:
        settings |= {"width": 64, "feedforward": 96}
    model: Any = MODELS.get(name)(validate(MODELS.get(name).Config, settings), Sizes(V)).to(DEVICE).eval()
    if quantize is not None:
        quantize_layers(model, quantize)
    prompts = [[1 + (i * j) % (V - 1) for j in range(1, 2 + i % 6)] for i in range(groups)]
    inputs, memory = Inputs.of(prompts, DEVICE), None
    draw = torch.Generator().manual_seed(1)
    with torch.no_grad():
        if model.is_encoder_decoder:
            sources = [[1 + (3 * i + j) % (V - 1) for j in range(2 + 5 * i % 7)] for i in range(groups)]
            memory = model.encode(Batch(inputs, source=Inputs.of(sources, DEVICE)))
        state = model.start(groups, 40, memory)
        model.prefill(inputs, state)
        slots = model.slots(groups, width, capacity, state, 16)
        assert slots.kernel is not None
        if not kernel:
            slots.kernel = None
        slots.put(torch.arange(groups, device=DEVICE), state)
        found = []
        for _ in range(steps):
            tokens = torch.randint(1, V, (groups * width,), generator=draw).to(DEVICE)
            first = torch.arange(groups).repeat_interleave(width) * width
            parents = (first + torch.randint(0, width, (groups * width,), generator=draw)).to(DEVICE)
            found.append(slots.step(tokens, parents if width > 1 else None))
        return torch.stack(found)


@needs_kernels
@pytest.mark.parametrize(("groups", "width"), [(1, 1), (3, 1), (2, 3)])
@pytest.mark.parametrize("kind", KINDS)
def test_a_step_is_what_the_modules_make(kind: str, groups: int, width: int) -> None:
    made, expected = (logits_of(kind, groups, width, 32, kernel=kernel) for kernel in (True, False))
    torch.testing.assert_close(made, expected, rtol=1e-4, atol=1e-4)


def share_heads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Let four programs look at the 64 columns of a head."""
    from legato.nn.kernels.cuda import step

    for name, value in {"LONG": 2, "COLUMNS": 4, "PROGRAMS": 12}.items():
        monkeypatch.setattr(step, name, value)
    assert step.Attention._parts(SimpleNamespace(window=0, heads=2), 2, 64) == 4  # type: ignore[arg-type]


@needs_kernels
@pytest.mark.parametrize("parts", [1, 2])
@pytest.mark.parametrize("quantize", ["int8", "int4"])
@pytest.mark.parametrize("kind", ["llama", "transformer", "rotary"])
def test_a_narrow_step_is_what_the_modules_make(
    kind: str, quantize: str, parts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = logits_of(kind, 2, 1, 64, kernel=False, quantize=quantize, steps=2)
    if parts > 1:
        share_heads(monkeypatch)
    made = logits_of(kind, 2, 1, 64, kernel=True, quantize=quantize, steps=2)
    assert float((made - expected).norm() / expected.norm()) < (0.03 if DEVICE.type == "cpu" else 1e-3)


@needs_kernels
@pytest.mark.parametrize("kind", ["llama", "mistral", "transformer"])
def test_heads_that_several_programs_share_are_the_same(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    expected = logits_of(kind, 2, 1, 64, kernel=False)
    share_heads(monkeypatch)
    torch.testing.assert_close(logits_of(kind, 2, 1, 64, kernel=True), expected, rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("gated", [False, True])
@pytest.mark.parametrize(("inputs", "outputs"), [(64, 40), (96, 48), (1056, 66)])
@pytest.mark.parametrize("width", ["wide", "int8", "int4", "int4 above minimums"])
def test_products_of_few_rows(width: str, inputs: int, outputs: int, gated: bool) -> None:
    from legato.nn.kernels.cuda.product import Product

    torch.manual_seed(0)
    holder = torch.nn.Sequential(Linear(inputs, outputs * (1 + gated)))
    with torch.no_grad():
        if width == "int4 above minimums":
            holder[0].weight.copy_(torch.randint(0, 16, holder[0].weight.shape) * 0.125 + 0.5)
        if width != "wide":
            quantize_layers(holder, width[:4])
        layer: Any = holder.to(DEVICE)[0]
        weight = layer.quantized.dequantize() if isinstance(layer, QuantizedLinear) else layer.weight
        for rows in (1, 3):
            x = torch.randn(rows, inputs, device=DEVICE)
            expected = F.linear(x, weight, layer.bias)
            if gated:
                gate, up = expected.chunk(2, dim=-1)
                expected = F.silu(gate) * up
            made = Product(layer, 5 if gated else 0, gated)(x)
            assert float((made - expected).norm() / expected.norm()) < (1e-5 if width == "wide" else 3e-4)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bits", [8, 4])
@pytest.mark.parametrize("even", [False, True])
def test_narrow_matrices_made_wide(bits: int, even: bool, dtype: torch.dtype) -> None:
    from legato.nn.kernels.cuda.widening import widened

    torch.manual_seed(0)
    weight = torch.randint(0, 16, (40, 96)) * 0.125 + 0.5 if even else torch.randn(40, 96)
    made = quantize(weight, bits)
    table = None if made.table is None else made.table.to(DEVICE)
    found = widened(made.blocks.to(DEVICE), made.shape, bits, table, 2.0**made.exponent, made.minimums, dtype)
    torch.testing.assert_close(found.cpu(), made.dequantize(dtype))


def forbidden_of(chooser: Chooser) -> Any:
    """As `Chooser` gives it to the kernels."""
    from legato.nn.kernels.cuda.choice import Forbidden

    least = torch.tensor([chooser.options.min_tokens], dtype=torch.int32, device=DEVICE)
    tokens, ending = chooser.forbidden[False, least.item() == 0], chooser._ending[False]
    kinds = ending.int() * 2 if least.item() else torch.zeros(len(tokens), dtype=torch.int32)
    return Forbidden(tokens.to(DEVICE), kinds.to(DEVICE), least)


@needs_kernels
def test_rows_that_have_chosen_go_on_as_the_runner_lets_them() -> None:
    from legato.decoding.runner import Runner
    from legato.nn.kernels.cuda.choice import advance_rows

    made = torch.tensor([[4.0, 7, 2], [0, 0, 0], [-1, -2, -3], [-1, -2, -4], [9, 8, 7]])
    lengths, written = torch.tensor([5, 0, 31]), torch.tensor([2, 0, 6])  # one that writes, nobody, one at its end
    plain: Any = object.__new__(Runner)
    plain._logs, plain._last, plain._log = True, 31, torch.zeros(4, 5, 8)
    plain._turn, plain.tokens = torch.tensor([3]), torch.zeros(8, dtype=torch.long)
    ours = [part.clone().to(DEVICE) for part in (plain._log, plain._turn, plain.tokens, written, lengths)]
    plain._advance(made, written, lengths)
    advance_rows(made.to(DEVICE), *ours, 31)
    for mine, its in zip(ours, (plain._log, plain._turn, plain.tokens, written, lengths), strict=True):
        assert torch.equal(mine.cpu(), its)


@needs_kernels
def test_gates_are_what_the_modules_make_of_them() -> None:
    from legato.nn.kernels.cuda import product_kernels

    torch.manual_seed(0)
    y, out = torch.randn(3, 2 * 40, device=DEVICE), torch.empty(3, 40, device=DEVICE)
    product_kernels.gate[(3, 2)](y, out, 40, ACTIVATION=5, BLOCK=32, PDL=False)
    gate, up = y.chunk(2, dim=-1)
    torch.testing.assert_close(out, torch.nn.functional.silu(gate) * up)


# What may not be written: ends, what is suppressed, and how many tokens come before an end.
BARRED = {"all": ([], [], 0), "suppressed": ([3], [0, 7], 0), "ends later": ([3, 8], [7], 2)}


@needs_kernels
@pytest.mark.parametrize("barred", BARRED)
@pytest.mark.parametrize("size", [50, 64, 1000])
def test_a_token_taken_or_drawn_is_the_plain_search_s(
    size: int, barred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.nn.kernels.cuda import choice

    monkeypatch.setattr(choice, "BLOCK", 64)
    ends, suppress, least = BARRED[barred]
    torch.manual_seed(0)
    logits = 3 * torch.randn(5, size)
    logits[1, 3] = logits[1, 7] = logits[1].max() + 1  # of equals the first
    logits[2] = -torch.inf
    logits[2, 5] = 1
    logits[3, 3] = 100  # what is forbidden counts in the sum, however much it is
    steps = torch.arange(5)
    chooser = Chooser(SearchOptions(min_tokens=least), ends, suppress)
    taken = chooser(logits.clone(), torch.zeros(5, 1), steps)
    found = choice.choose(logits.to(DEVICE), steps.to(DEVICE), forbidden_of(chooser)).cpu()
    torch.testing.assert_close(found, taken, rtol=1e-4, atol=1e-4)
    many, seeds = logits[[0]].repeat(300, 1), torch.randint(-(2**62), 2**62, (300,))
    for temperature in (1.0, 0.3):
        options = SearchOptions(search="sample", temperature=temperature, min_tokens=least)
        chooser = Chooser(options, ends, suppress)
        drawn = chooser(many.clone(), torch.zeros(300, 1), torch.arange(300), seeds)
        written = torch.arange(300, device=DEVICE)
        found = choice.choose(many.to(DEVICE), written, forbidden_of(chooser), temperature, seeds.to(DEVICE)).cpu()
        assert int((found[0] != drawn[0]).sum()) <= 1  # where a number falls on a border, rounding decides
    each = [SearchOptions(search="sample", temperature=0.3), SearchOptions(), SearchOptions(search="sample")] * 100
    rows, lane = RowSettings(each), Chooser(SearchOptions(search="sample", min_tokens=least), ends, suppress)
    mixed = lane(many.clone(), torch.zeros(300, 1), torch.arange(300), seeds, rows=rows, level=Level.DRAWN)
    warmth = rows.temperature.to(DEVICE)
    found = choice.choose(many.to(DEVICE), written, forbidden_of(lane), warmth, seeds.to(DEVICE)).cpu()
    assert int((found[0] != mixed[0]).sum()) <= 1
    assert torch.equal(found[0, 1::3], mixed[0, 1::3])
    broken = logits.clone()
    broken[0, 1], broken[1, 0], broken[4] = torch.nan, torch.inf, -torch.inf
    finite = choice.choose(broken.to(DEVICE), steps.to(DEVICE), forbidden_of(chooser))[4, :, 0].isfinite()
    assert finite.tolist() == [False, False, True, True, False]


@needs_kernels
@pytest.mark.parametrize("barred", BARRED)
@pytest.mark.parametrize("width", [2, 4])
@pytest.mark.parametrize("size", [9, 64, 300])
def test_beams_candidates_are_the_plain_search_s(
    size: int, width: int, barred: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.nn.kernels.cuda import choice

    monkeypatch.setattr(choice, "BLOCK", 64)
    ends, suppress, least = BARRED[barred]
    torch.manual_seed(0)
    logits = (3 * torch.randn(3 * width, size)).round()  # with many that are equal
    logits[:, 3] += 90
    scores = torch.randn(3, width).round()
    scores[1, 1], scores[2, 1:] = -torch.inf, -torch.inf
    chooser = Chooser(SearchOptions(search="beam", beams=width, min_tokens=least), ends, suppress)
    steps = torch.arange(1, 4)
    expected = chooser(logits.clone(), scores, steps)
    found = choice.choose_beams(logits.to(DEVICE), scores.to(DEVICE), steps.to(DEVICE), forbidden_of(chooser)).cpu()
    possible = expected[3] > -torch.inf
    assert torch.equal(found[3] > -torch.inf, possible)
    torch.testing.assert_close(found[:, possible], expected[:, possible], rtol=1e-4, atol=1e-4)


@needs_kernels
@pytest.mark.parametrize("width", [2, 3, 4, 8])
def test_the_next_frontier_is_the_plain_one(width: int) -> None:
    from legato.nn.kernels.cuda.choice import advance_beams

    torch.manual_seed(0)
    groups, size, count = 40, 30, 2 * width
    ends = torch.arange(size) % 3 == 0
    plain = DeviceFrontier(groups, width, ends)
    plain.scores.copy_(torch.randn(groups, width))
    plain.scores[:10, 1:] = -torch.inf
    plain.scores[10] = -torch.inf
    fast = DeviceFrontier(groups, width, ends.to(DEVICE))
    fast.scores.copy_(plain.scores)
    for _ in range(3):
        picked = torch.stack([torch.randperm(width * size)[:count] for _ in range(groups)])
        gains = -torch.rand(groups, count)
        gains[20:25, 1:] = -torch.inf
        candidates = torch.stack([picked % size, picked // size, gains, gains, torch.zeros(groups, count)])
        plain.advance(candidates)
        advance_beams(candidates.to(DEVICE), fast.ends, fast.scores, fast.tokens, fast.parents, fast.written)
        for name in ("scores", "tokens", "parents", "written"):
            assert torch.equal(getattr(fast, name).cpu(), getattr(plain, name)), name


@needs_kernels
@pytest.mark.parametrize("kind", [nn.LayerNorm, nn.RMSNorm])
@pytest.mark.parametrize(("wide", "narrow"), [(torch.float32, torch.bfloat16), (torch.float32, torch.float32),
                                              (torch.bfloat16, torch.bfloat16)])  # fmt: skip
@pytest.mark.parametrize("read", ["both", "the sum", "the norm"])
def test_a_sum_and_its_norm_have_the_plain_gradients(
    kind: type[nn.Module], wide: torch.dtype, narrow: torch.dtype, read: str
) -> None:
    from legato.nn.kernels.cuda.residual_norm import residual_norm

    torch.manual_seed(0)
    norm: Any = kind(24, eps=1e-5).to(DEVICE)
    with torch.no_grad():
        for parameter in norm.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    x, y = torch.randn(3, 5, 24, device=DEVICE).to(wide), torch.randn(3, 5, 24, device=DEVICE).to(narrow)
    up, right = torch.randn(3, 5, 24, device=DEVICE).to(wide), torch.randn(3, 5, 24, device=DEVICE).to(narrow)
    found = []
    for fast in (True, False):
        given = x.clone().requires_grad_(), y.clone().requires_grad_()
        norm.zero_grad()
        if fast:
            s, n = residual_norm(*given, norm, narrow)
        else:
            s = given[0] + given[1]
            n = norm(s.float()).to(narrow)
        loss = (s * up).sum() if read != "the norm" else 0.0
        (loss + ((n * right).sum() if read != "the sum" else 0.0)).backward()  # type: ignore[union-attr]
        gradients = [None if p.grad is None else p.grad.clone() for p in norm.parameters()]
        found.append((s.detach(), n.detach(), given[0].grad, given[1].grad, *gradients))
    tight = wide == narrow == torch.float32
    for one, other in zip(*found, strict=True):
        if other is None:
            assert one is None or not one.any()
            continue
        assert one is not None
        assert one.dtype == other.dtype
        torch.testing.assert_close(one, other, rtol=1e-4 if tight else 0.02, atol=1e-4 if tight else 0.06)


@needs_kernels
@pytest.mark.parametrize(
    "shape", [{}, {"activation": "gelu-tanh"}, {"norm": "rms", "activation": "swiglu", "bias": False}]
)
def test_a_stack_that_joins_them_learns_the_same(shape: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.nn.kernels.cuda import biased_gelu

    torch.manual_seed(0)
    block = BlockShape(width=16, heads=2, inner=32, **{"activation": "gelu", "norm_first": True, **shape})
    stack = Stack("decoder", 2, block, causal=True).to(DEVICE).train()
    with torch.no_grad():
        for parameter in stack.parameters():  # biases and norms that a fresh model has at 0 and 1
            parameter.add_(0.1 * torch.randn_like(parameter))
    x, found, made_by_kernel = torch.randn(2, 6, 16, device=DEVICE), [], []
    real = biased_gelu.biased_gelu

    def told(*given: Any, **how: Any) -> torch.Tensor:
        made_by_kernel.append(how)
        return real(*given, **how)

    monkeypatch.setattr(biased_gelu, "biased_gelu", told)
    for joins in (True, False):
        for module in (transformer, feedforward):
            monkeypatch.setattr(module, "training_kernels", lambda x, joins=joins: joins)
        assert stack._joins(x) is joins
        given = x.clone().requires_grad_()
        stack.zero_grad()
        made = stack(given)
        made.square().sum().backward()
        found.append([made.detach(), given.grad, *(p.grad.clone() for p in stack.parameters() if p.grad is not None)])
    assert len(made_by_kernel) == (0 if shape.get("activation") == "swiglu" else 2)
    torch.testing.assert_close(*found, rtol=1e-3, atol=1e-3)


@needs_kernels
def test_they_are_joined_only_where_nobody_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (transformer, feedforward):
        monkeypatch.setattr(module, "training_kernels", lambda x: True)
    shape = BlockShape(width=16, heads=2, inner=32, activation="gelu", norm_first=True)
    stack, x = Stack("decoder", 2, shape, causal=True).to(DEVICE).train(), torch.randn(1, 3, 16, device=DEVICE)
    assert stack._joins(x)
    for listened in (stack.layers[1], stack.layers[0].attention_norm, stack.norm):
        heard: list[Any] = []
        handle = listened.register_forward_hook(lambda module, given, made, heard=heard: heard.append(made))
        assert not stack._joins(x)
        stack(x)
        assert heard
        handle.remove()
    with record():
        assert not stack._joins(x)
    stack.recompute = True
    assert not stack._joins(x)
    stack.recompute = False
    assert not stack.eval()._joins(x)
    inner = stack.layers[0].feedforward.inner
    assert inner.plain
    inner.register_forward_hook(lambda *_: None)
    assert not inner.plain
    post = Stack("decoder", 1, BlockShape(width=16, heads=2, inner=32), causal=True).to(DEVICE).train()
    assert not post._joins(x)


@needs_kernels
def test_a_stack_that_joins_them_can_be_compiled(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.nn.kernels.cuda import residual_norm  # noqa: F401, a compiler cannot bring it in

    torch.manual_seed(0)
    shape = BlockShape(width=16, heads=2, inner=32, activation="gelu", norm_first=True)
    stack = Stack("decoder", 2, shape, causal=True).to(DEVICE).train()
    x = torch.randn(2, 6, 16, device=DEVICE)
    expected = torch.autograd.grad(stack(x).square().sum(), list(stack.parameters()))
    monkeypatch.setattr(Stack, "_joins", lambda self, x: True)
    found = torch.compile(stack, backend="aot_eager", fullgraph=True)(x)
    torch.testing.assert_close(torch.autograd.grad(found.square().sum(), list(stack.parameters())), expected)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("tanh", [True, False])
@pytest.mark.parametrize(("rows", "width"), [(1, 70), (13, 64)])
def test_gelu_of_a_product_and_its_bias_has_the_plain_gradients(
    dtype: torch.dtype, tanh: bool, rows: int, width: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.nn.kernels.cuda import biased_gelu

    monkeypatch.setattr(biased_gelu, "FORWARD", 32)
    monkeypatch.setattr(biased_gelu, "BACKWARD", 32)
    torch.manual_seed(0)
    x = 2 * torch.randn(rows, width, device=DEVICE).to(dtype)
    bias, up = torch.randn(width, device=DEVICE), torch.randn(rows, width, device=DEVICE).to(dtype)
    found = []
    for fast in (True, False):
        given, added = x.clone().requires_grad_(), bias.clone().requires_grad_()
        if fast:
            made = biased_gelu.biased_gelu(given, added, tanh=tanh)
        else:
            made = F.gelu(given.float() + added, approximate="tanh" if tanh else "none").to(dtype)
        made.backward(up)
        found.append((made.detach(), given.grad, added.grad))
    near = 1e-4 if dtype == torch.float32 else 0.03
    torch.testing.assert_close(*found, rtol=near, atol=near)


@needs_kernels
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("smoothing", [0.0, 0.1])
@pytest.mark.parametrize(("vocabulary", "padded"), [(70, 72), (64, 64), (300, 320)])
def test_a_chunk_s_losses_and_gradient_are_the_plain_ones(
    vocabulary: int, padded: int, smoothing: float, dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    from legato.nn.kernels.cuda import cross_entropy

    monkeypatch.setattr(cross_entropy, "BLOCK", 128)
    draw = torch.Generator().manual_seed(0)
    logits = (torch.randn(9, padded, generator=draw) * 6).to(DEVICE, dtype)
    targets = torch.randint(0, vocabulary, (9,), generator=draw).to(DEVICE)
    targets[2], targets[5], targets[6] = IGNORE, 0, vocabulary - 1
    expected, slope = losses._gradient(logits.clone(), targets, vocabulary, smoothing, torch.float32)
    found = cross_entropy.losses_and_gradient(logits, targets, vocabulary, smoothing, IGNORE)
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)
    counted = targets != IGNORE  # in the other rows nobody reads it
    torch.testing.assert_close(logits[counted], slope[counted])
