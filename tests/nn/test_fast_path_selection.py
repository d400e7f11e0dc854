"""Fast paths stand for stock modules alone: whatever is hooked, altered or foreign is computed by the modules.

Each path is held against what the modules do where somebody looks inside (`record`), which no fast path serves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from legato.data.batching.batch import Batch, Inputs
from legato.decoding.engine import Engine
from legato.decoding.options import SearchOptions
from legato.nn.capture import record
from legato.nn.feedforward import FeedForward
from legato.nn.kernels import encoder
from legato.nn.kernels.description import describe, recording_key
from legato.nn.kernels.library import library
from legato.nn.linear import Linear
from legato.nn.multihead import SelfAttention
from legato.nn.quantized import QuantizedLinear, quantize_layers
from legato.nn.recurrent import Layer, LSTMCell
from legato.nn.spans.spanned import BLOCK, MANY
from legato.nn.transformer import Block, Stack
from random_models import surer
from tiny_paths import LENGTHS, lstm, model_of, stack_of

B, D = 2, 32


@pytest.fixture(autouse=True)
def _without_traces() -> Iterator[None]:
    """Whatever is planted for all modules of the process is gone behind a test."""
    yield
    assert not nn.modules.module._has_any_global_hook()


class Half(nn.Module):
    def forward(self, weight: Tensor) -> Tensor:
        return 0.5 * weight


class LoudBlock(Block):
    def forward(self, x: Any, *others: Any) -> Any:
        return super().forward(x, *others).roll(1, -1)


class QuietAttention(SelfAttention):
    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return 0.25 * super().forward(x, *others)


class LastHeadOff(SelfAttention):
    def attend(self, query: Tensor, *others: Any) -> Tensor:
        made = super().attend(query, *others)
        return made * (torch.arange(made.shape[2]) < made.shape[2] - 1)[:, None]


class Backwards(FeedForward):
    def forward(self, x: Tensor) -> Tensor:
        return -super().forward(x)


class Doubled(Linear):
    def forward(self, x: Tensor) -> Tensor:
        return 2 * super().forward(x)


class Shifted(nn.LayerNorm):
    def forward(self, x: Tensor) -> Tensor:
        return super().forward(x) + 0.5


class Mean(nn.Module):
    """An attention from elsewhere: the mean of what came before, of each row, which has no padding."""

    def __init__(self, like: SelfAttention) -> None:
        super().__init__()
        self.heads, self.kv_heads, self.head_width, self.fused = like.heads, like.heads, like.head_width, True

    def forward(self, x: Tensor, *others: Any) -> Tensor:
        return x.cumsum(1) / torch.arange(1, 1 + x.shape[1])[:, None]


def turned(module: nn.Module, kind: type[nn.Module]) -> None:
    module.__class__ = kind


def put(module: nn.Module, name: str, value: Any) -> None:
    setattr(module, name, value)


def negative(_: nn.Module, given: Any, made: Tensor) -> Tensor:
    return -made


# What somebody may plant in the second block of a stack.
PLANTED: dict[str, Callable[[Any], Any]] = {
    "hook at an attention": lambda b: b.attention.register_forward_hook(negative),
    "hook at a norm": lambda b: b.attention_norm.register_forward_hook(negative),
    "hook at a layer": lambda b: b.feedforward.outer.register_forward_hook(negative),
    "hook before a layer": lambda b: b.feedforward.outer.register_forward_pre_hook(lambda _, x: (-x[0],)),
    "block of one's own": lambda b: turned(b, LoudBlock),
    "attention of one's own": lambda b: turned(b.attention, QuietAttention),
    "another way to attend": lambda b: turned(b.attention, LastHeadOff),
    "feed-forward of one's own": lambda b: turned(b.feedforward, Backwards),
    "layer of one's own": lambda b: turned(b.feedforward.inner, Doubled),
    "norm of one's own": lambda b: turned(b.feedforward_norm, Shifted),
    "another forward": lambda b: put(b.feedforward, "forward", lambda x: x),
    "another activation": lambda b: put(b.feedforward, "activation", torch.tanh),
    "parametrised weight": lambda b: parametrize.register_parametrization(b.attention.output, "weight", Half()),
}
OF_STEPS = {**PLANTED, "hook at a block": lambda b: b.register_forward_hook(negative)}


def plain(compute: Callable[[], Tensor]) -> Tensor:
    """What the modules make of it."""
    with record():
        return compute()


def held(compute: Callable[[], Tensor], unplanted: Tensor, close: float = 1e-4) -> None:
    """What is computed is what the modules do, and not what it was before something was planted."""
    expected = plain(compute)
    torch.testing.assert_close(compute(), expected, rtol=close, atol=close)
    assert (expected - unplanted).abs().max() > 20 * close, "what is planted does nothing"


# ── while a CPU writes ────────────────────────────────────────────────────────────────────────────

needs_library = pytest.mark.skipif(library() is None, reason="needs a C++ compiler")


def written(model: Any) -> Tensor:
    """Logits behind prompts of two lengths, and after three steps more."""
    torch.manual_seed(1)
    with torch.no_grad():
        memory = None
        if model.is_encoder_decoder:
            source = Inputs.of([[1, 2, 3, 4, 5], [6, 7]], "cpu")
            if model.config.name == "whisper":
                source = Inputs(values=torch.randn(2, 16, 8))
            memory = model.encode(Batch(Inputs.of([[1], [1]], "cpu"), source=source))
        state = model.start(2, 20, memory)
        found = [model.prefill(Inputs.of([[1, 2, 3], [4, 5, 6]], "cpu"), state)]
        found += [model.step(torch.tensor([n, 9 - n]), state) for n in range(3)]
    return torch.cat(found)


@needs_library
@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer", "whisper"])
def test_stock_models_write_by_the_kernels(name: str) -> None:
    model = model_of(name)
    memory = None
    if model.is_encoder_decoder:
        memory = model.encode(
            Batch(
                Inputs.of([[1]], "cpu"),
                source=Inputs(values=torch.randn(1, 16, 8)) if name == "whisper" else Inputs.of([[1, 2]], "cpu"),
            )
        )
    assert describe(model.writer) is not None
    assert model.start(1, 8, memory).kernel is not None or name == "whisper"  # whose memory is looked at itself


@pytest.mark.parametrize("planted", OF_STEPS)
def test_a_step_has_what_is_planted(planted: str) -> None:
    model = model_of("gpt2")
    before = written(model)
    OF_STEPS[planted](model.stack.layers[1])
    held(partial(written, model), before)


@pytest.mark.parametrize("name", ["llama", "transformer", "whisper"])
@pytest.mark.parametrize("planted", ["hook at a block", "another way to attend", "attention from elsewhere"])
def test_other_writers_have_what_is_planted(name: str, planted: str) -> None:
    model = model_of(name)
    before = written(model)
    block = model.writer.layers[1]
    if planted == "attention from elsewhere":
        block.attention = Mean(block.attention)
        model.writer.start_small()
        expected = written(model)
        assert (expected - before).abs().max() > 1e-3
    else:
        OF_STEPS[planted](block)
        held(partial(written, model), before)


def test_what_is_planted_in_cross_attention_is_there() -> None:
    for name in ("transformer", "whisper"):
        model = model_of(name)
        before = written(model)
        model.writer.layers[0].cross.key_value.register_forward_hook(negative)
        held(partial(written, model), before)


@pytest.mark.parametrize("path", ["step", "pass"])
@torch.no_grad()
def test_a_hook_of_all_modules_is_called(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORTH", 0)
    compute = partial(written, model_of("gpt2"))
    if path == "pass":
        compute = partial(read, stack_of(causal=False).eval(), torch.randn(2, 5, D))
    before = compute()
    handle = nn.modules.module.register_module_forward_hook(
        lambda module, _, made: -made if isinstance(module, FeedForward) else None
    )
    try:
        held(compute, before)
    finally:
        handle.remove()


def test_a_readout_of_one_s_own_is_read_out_by() -> None:
    class Cold(type(model_of("gpt2"))):  # type: ignore[misc]
        def readout(self, hidden: Tensor) -> Tensor:
            return super().readout(hidden) / 3

    model = model_of("gpt2")
    before = written(model)
    turned(model, Cold)
    torch.testing.assert_close(written(model), before / 3)


def test_a_hook_at_the_stack_sees_what_is_written() -> None:
    model = model_of("gpt2")
    before = written(model)
    model.stack.register_forward_hook(negative)
    held(partial(written, model), before)


@needs_library
def test_a_request_that_joins_others_brings_its_hook() -> None:
    model = model_of("gpt2")
    with torch.no_grad():
        states = []
        for _ in range(2):
            states.append(model.start(1, 20))
            model.prefill(Inputs.of([[1, 2]], "cpu"), states[-1])
            handle = model.stack.layers[0].register_forward_hook(negative)
        assert states[0].kernel is not None
        states[0].join(states[1])
        assert states[0].kernel is None
        handle.remove()


# ── whole texts ───────────────────────────────────────────────────────────────────────────────────


def read(stack: Stack, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    made = stack(x, lengths)
    return made if lengths is None else made * (torch.arange(x.shape[1]) < lengths[:, None]).unsqueeze(2)


@pytest.mark.parametrize("planted", OF_STEPS)
@pytest.mark.parametrize("options", [{}, {"rotary": True}], ids=["one call", "without padding"])
@torch.no_grad()
def test_encoders_have_what_is_planted(
    options: dict[str, Any], planted: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(encoder, "WORTH", 0)
    stack, x = stack_of(causal=False, **options).eval(), torch.randn(len(LENGTHS), max(LENGTHS), D)
    compute = partial(read, stack, x, torch.tensor(LENGTHS))
    assert library() is None or options or encoder.encoder_pass(stack, x) is not None
    assert stack._packing(x, torch.tensor(LENGTHS)) is not None
    before = compute()
    torch.testing.assert_close(before, plain(compute), rtol=1e-4, atol=1e-4)
    OF_STEPS[planted](stack.layers[1])
    assert stack._packing(x, torch.tensor(LENGTHS)) is None
    held(compute, before)


@torch.no_grad()
def test_a_table_of_kinds_of_sentences_is_called_where_there_is_one_kind() -> None:
    model, batch = model_of("bert"), Batch(Inputs.of([[1, 2, 3]], "cpu"))
    before = model(batch).hidden
    model.segments.register_forward_hook(negative)
    assert (model(batch).hidden - before).abs().max() > 1e-3


@torch.no_grad()
def test_an_attention_from_elsewhere_sees_rows_as_they_are(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(encoder, "WORTH", 0)
    stack = stack_of(causal=False).eval()
    stack.layers[1].attention = Mean(stack.layers[1].attention)  # type: ignore[arg-type]
    x = torch.randn(len(LENGTHS), max(LENGTHS), D)
    found = stack(x, torch.tensor(LENGTHS))
    for row, length in enumerate(LENGTHS):
        torch.testing.assert_close(found[row, :length], stack(x[row : row + 1, :length])[0], rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("planted", OF_STEPS)
def test_windows_have_what_is_planted(planted: str, training: bool) -> None:
    stack, x = stack_of(causal=True, window=8).train(training), torch.randn(1, MANY * BLOCK, D)
    with torch.set_grad_enabled(training):
        before = stack(x)
        assert stack._view(x, None, None, 8).spans is not None
        OF_STEPS[planted](stack.layers[1])
        assert stack._view(x, None, None, 8).mask is not None
        held(partial(stack, x), before.detach())


@pytest.mark.parametrize("norm_first", [False, True])
@pytest.mark.parametrize("planted", OF_STEPS)
def test_training_has_what_is_planted(planted: str, norm_first: bool) -> None:
    stack, x = stack_of(causal=True, norm_first=norm_first).train(), torch.randn(2, 70, D, requires_grad=True)
    before, joins = stack(x), stack._joins(x)
    assert joins == (norm_first and library() is not None)
    OF_STEPS[planted](stack.layers[1])
    assert not stack._joins(x)
    held(partial(stack, x), before.detach())
    slopes = [torch.autograd.grad(way(partial(stack, x)).square().sum(), x)[0] for way in (plain, lambda run: run())]
    torch.testing.assert_close(*slopes, rtol=1e-3, atol=1e-3)


def test_a_hook_for_gradients_hears_them() -> None:
    stack, x, heard = stack_of(causal=True, norm_first=True).train(), torch.randn(2, 4, D, requires_grad=True), []
    for module in (stack.layers[0].feedforward_norm, stack.layers[1].feedforward.inner, stack.layers[1]):
        module.register_full_backward_hook(lambda module, *_: heard.append(module))  # type: ignore[union-attr]
    stack(x).sum().backward()
    assert len(heard) == 3


# ── recurrent layers ──────────────────────────────────────────────────────────────────────────────


class Forgetful(LSTMCell):
    def advance(self, *given: Any) -> Any:
        h, c = super().advance(*given)
        return h / 2, c


class Damped(Layer):
    def forward(self, *given: Any) -> Any:
        y, state = super().forward(*given)
        return y / 2, state


RECURRENT: dict[str, Callable[[Any], Any]] = {
    "hook": lambda layer: layer.register_forward_hook(lambda _, x, made: (-made[0], made[1])),
    "cell of one's own": lambda layer: turned(layer.cell, Forgetful),
    "layer of one's own": lambda layer: turned(layer, Damped),
    "another step": lambda layer: put(layer.cell, "advance", lambda x, state, u: tuple(part / 2 for part in state)),
}


@pytest.mark.parametrize("planted", RECURRENT)
def test_recurrent_layers_have_what_is_planted(planted: str) -> None:
    model, tokens = lstm(), torch.tensor([[1, 2, 3, 4, 5]])

    def walked() -> Tensor:
        with torch.no_grad():
            state = model.start(1, 8)
            found = [model.prefill(Inputs(ids=tokens[:, :2]), state)]
            return torch.cat([*found, *(model.step(tokens[:, at], state) for at in range(2, 5))])

    before = walked()
    RECURRENT[planted](model.stack.layers[0][0])
    with torch.no_grad():
        whole = model.readout(model(Batch(Inputs(ids=tokens))).hidden)[0, 1:]
    torch.testing.assert_close(walked(), whole)
    torch.testing.assert_close(walked(), plain(walked))
    assert (whole - before).abs().max() > 1e-3


# ── steps that are recorded, and narrow weights ───────────────────────────────────────────────────


class OtherStep(type(model_of("gpt2"))):  # type: ignore[misc]
    def step(self, tokens: Tensor, state: Any) -> Tensor:
        return -super().step(tokens, state)


ON_DEVICE: dict[str, Callable[[Any], Any]] = {
    "hook at a block": lambda model: model.stack.layers[1].register_forward_hook(negative),
    "attention of one's own": lambda model: turned(model.stack.layers[1].attention, QuietAttention),
    "another activation": lambda model: put(model.stack.layers[1].feedforward, "activation", torch.tanh),
    "step of one's own": lambda model: turned(model, OtherStep),
    "embedding of one's own": lambda model: model.embedding.register_forward_hook(negative),
}


@pytest.mark.parametrize("planted", ON_DEVICE)
@pytest.mark.parametrize("recorded", [True, None])
def test_a_batch_in_blocks_has_what_is_planted(recorded: bool | None, planted: str) -> None:
    model: Any = surer("gpt2", 23)

    def text(recorded: bool | None) -> list[int]:
        engine = Engine(model, recorded=recorded)
        [number] = engine.add([[1, 2, 3]], SearchOptions(max_tokens=12))
        while engine.step():
            pass
        return engine.take(number)[0].tokens

    assert text(recorded) == text(False)
    ON_DEVICE[planted](model)
    assert text(recorded) == text(False)


def test_recordings_are_of_what_the_model_is_now() -> None:
    model: Any = surer("gpt2", 23)
    key = recording_key(model)
    assert key is not None
    model.stack.windows[0] = 3
    assert recording_key(model) not in (None, key)
    handle = model.stack.layers[0].register_forward_hook(negative)
    assert recording_key(model) is None
    handle.remove()
    model.stack.windows[0] = None
    assert recording_key(model) == key


@pytest.mark.parametrize("planted", ["hook at a layer", "layer of one's own"])
def test_what_is_planted_is_not_quantised_away(planted: str) -> None:
    model = model_of("gpt2")
    OF_STEPS[planted](model.stack.layers[1])
    before = written(model)
    quantize_layers(model, "int8")
    narrow = [type(getattr(model.stack.layers[n].feedforward, name)) for n in (0, 1) for name in ("inner", "outer")]
    kept = narrow.index(Linear if planted == "hook at a layer" else Doubled)
    assert [kind is QuantizedLinear for kind in narrow] == [n != kept for n in range(4)]
    assert (written(model) - before).norm() < 0.05 * before.norm()


# ── cheaply ───────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("name", ["gpt2", "llama", "transformer"])
@pytest.mark.parametrize("width", [None, "int8"])
def test_stock_stacks_are_described(name: str, width: str | None) -> None:
    model = model_of(name)
    if width is not None:
        quantize_layers(model, width)
    for stack in (part for part in model.modules() if isinstance(part, Stack)):
        spec = describe(stack)
        assert spec is not None
        linear = [part for part in stack.modules() if isinstance(part, nn.Linear)]
        assert {*map(id, (*spec.products, *spec.of_sources))} == {*map(id, linear)}
        norms = [part for part in stack.modules() if isinstance(part, nn.LayerNorm | nn.RMSNorm)]
        assert {*map(id, (*spec.norms, *spec.head_norms))} == {*map(id, norms)}


def test_sizes_that_do_not_go_together_are_not_described() -> None:
    stack = stack_of(causal=True)
    stack.layers[1].feedforward = FeedForward(stack.shape.__class__(**{**vars(stack.shape), "inner": 48}))
    assert describe(stack) is None
    stack = stack_of(causal=True)
    stack.layers[0].eval()
    assert describe(stack.train()) is not None
    stack.layers[0].eval()
    assert describe(stack) is None
