"""The Transformer's parts: beside PyTorch's own, fused and written out, with a cache and without."""

from __future__ import annotations

import copy
import io
import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn

from kernels import fuse
from legato.errors import LegatoError
from legato.nn.capture import record
from legato.nn.feedforward import ACTIVATIONS, BlockShape, FeedForward, gelu_tanh, make_norm
from legato.nn.kv_cache import KeyValueCache, _first_differing, _move, right_aligned
from legato.nn.linear import Linear, pack
from legato.nn.multihead import AttentionView, CrossAttention, SelfAttention, Source
from legato.nn.positions import Rotary
from legato.nn.sources import Sources
from legato.nn.state import Memory
from legato.nn.transformer import Stack

B, T, S, D, H = 3, 6, 5, 16, 4
SHAPE = BlockShape(D, H, 24)
GROUPED = BlockShape(D, H, 24, kv_heads=2)
LENGTHS = torch.tensor([5, 2, 3])


@pytest.fixture(autouse=True)
def seeded() -> None:
    torch.manual_seed(0)


def close(left: Any, right: Any) -> None:
    torch.testing.assert_close(left, right, rtol=1e-9, atol=1e-10)


def randn(*shape: int) -> Tensor:
    return torch.randn(*shape, dtype=torch.float64)


def stack(shape: BlockShape = SHAPE, *, causal: bool = False, **asked: Any) -> Stack:
    """Two blocks in double precision, whose biases and norms are not what they start as."""
    made = Stack("stack", 2, shape, causal=causal, **asked).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    return made


# --- beside PyTorch's own --------------------------------------------------------------------------


def give_attention(theirs: nn.MultiheadAttention, ours: SelfAttention | CrossAttention) -> None:
    if isinstance(ours, SelfAttention):
        theirs.in_proj_weight.copy_(ours.qkv.weight)
        theirs.in_proj_bias.copy_(ours.qkv.bias)
    else:
        theirs.in_proj_weight.copy_(torch.cat([ours.query.weight, ours.key_value.weight]))
        theirs.in_proj_bias.copy_(torch.cat([ours.query.bias, ours.key_value.bias]))
    theirs.out_proj.load_state_dict(ours.output.state_dict())


@torch.no_grad()
def pytorch_layer(block: Any, shape: BlockShape) -> Any:
    """PyTorch's layer with the weights of our block."""
    decoder = block.cross is not None
    kind = nn.TransformerDecoderLayer if decoder else nn.TransformerEncoderLayer
    theirs = (
        kind(D, H, shape.inner, 0.0, shape.activation, batch_first=True, norm_first=shape.norm_first).double().eval()
    )
    give_attention(theirs.self_attn, block.attention)
    norms = [block.attention_norm, block.feedforward_norm]
    if decoder:
        give_attention(theirs.multihead_attn, block.cross)  # type: ignore[union-attr]
        norms.insert(1, block.cross_norm)
    for number, norm in enumerate(norms, start=1):
        getattr(theirs, f"norm{number}").load_state_dict(norm.state_dict())
    theirs.linear1.load_state_dict(block.feedforward.inner.state_dict())
    theirs.linear2.load_state_dict(block.feedforward.outer.state_dict())
    return theirs


@pytest.mark.parametrize("activation", ["relu", "gelu"])
@pytest.mark.parametrize("norm_first", [False, True])
def test_an_encoder_equals_pytorch_s_layers(norm_first: bool, activation: str) -> None:
    shape = BlockShape(D, H, 24, activation, norm_first=norm_first)
    ours, x = stack(shape), randn(B, T, D)
    lengths = torch.tensor([6, 2, 4])
    away = torch.arange(T) >= lengths[:, None]
    expected = x
    for block in ours.layers:
        expected = pytorch_layer(block, shape)(expected, src_key_padding_mask=away)
    if ours.norm is not None:
        expected = ours.norm(expected)
    for found, wanted, length in zip(ours(x, lengths), expected, lengths, strict=True):
        close(found[:length], wanted[:length])


@pytest.mark.parametrize("norm_first", [False, True])
def test_a_decoder_equals_pytorch_s_layers(norm_first: bool) -> None:
    shape = BlockShape(D, H, 24, norm_first=norm_first)
    ours, x, memory = stack(shape, causal=True, cross=True), randn(B, T, D), randn(B, S, D)
    future = nn.Transformer.generate_square_subsequent_mask(T, dtype=torch.float64)
    away = torch.arange(S) >= LENGTHS[:, None]
    expected = x
    for block in ours.layers:
        expected = pytorch_layer(block, shape)(expected, memory, tgt_mask=future, memory_key_padding_mask=away)
    if ours.norm is not None:
        expected = ours.norm(expected)
    close(ours(x, memory=Memory(memory, LENGTHS)), expected)


def test_swiglu_by_hand() -> None:
    layer = FeedForward(BlockShape(2, 1, 3, "swiglu", bias=False)).double()
    x = randn(2)
    gate, up = layer.inner.weight[:3] @ x, layer.inner.weight[3:] @ x
    close(layer(x), layer.outer.weight @ (gate * torch.sigmoid(gate) * up))


def test_the_rms_norm_by_hand() -> None:
    norm = make_norm(BlockShape(4, 1, 1, norm="rms", eps=0.0))
    close(norm(torch.tensor([2.0, -2.0, 2.0, -2.0])), torch.tensor([1.0, -1.0, 1.0, -1.0]))
    assert [name for name, _ in norm.named_parameters()] == ["weight"]


# --- fused and written out -------------------------------------------------------------------------

STACKS: dict[str, dict[str, Any]] = {
    "encoder": {},
    "causal": {"causal": True},
    "window": {"window": 2},
    "causal window": {"causal": True, "window": 3},
    "cross": {"causal": True, "cross": True},
    "rotary": {"causal": True, "rotary": Rotary(40, D // H)},
    "grouped": {"causal": True, "shape": GROUPED},
    "llama": {
        "causal": True,
        "shape": BlockShape(D, H, 24, "swiglu", kv_heads=1, norm="rms", norm_first=True, bias=False),
        "rotary": Rotary(40, D // H),
    },
}


def run(made: Stack, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    memory = Memory(torch.linspace(-1, 1, B * S * D, dtype=torch.float64).view(B, S, D), LENGTHS)
    return made(x, lengths, memory if made.layers[0].cross is not None else None)


@pytest.mark.parametrize("name", STACKS)
def test_fused_equals_written_out_in_outputs_and_gradients(name: str) -> None:
    made, x, lengths = stack(**STACKS[name]), randn(B, T, D), torch.tensor([6, 2, 4])
    inside = (torch.arange(T) < lengths[:, None])[..., None]
    outputs, gradients = [], []
    for fused in (True, False):
        fuse(made, fused)
        made.zero_grad()
        outputs.append(run(made, x, lengths) * inside)
        outputs[-1].square().sum().backward()
        gradients.append([parameter.grad.clone() for parameter in made.parameters()])  # type: ignore[union-attr]
    close(*outputs)
    close(*gradients)


@pytest.mark.parametrize("name", STACKS)
def test_looking_inside_changes_nothing(name: str) -> None:
    made, x = stack(**STACKS[name]), randn(B, T, D)
    before = run(made, x)
    with record() as trace:
        close(run(made, x), before)
    crossed = {"stack.0.cross.weights", "stack.1.cross.weights"} if "cross" in name else set()
    looks = ("queries", "keys", "values", "weights")
    kinds = (*(f"attention.{kind}" for kind in looks), "feedforward.units", "hidden")
    own = {f"stack.{layer}.{kind}" for layer in range(2) for kind in kinds}
    assert set(trace) == own | crossed | {"stack.embedded"}
    assert trace["stack.0.attention.weights"][0].shape == (B, H, T, T)
    assert trace["stack.1.hidden"][0].shape == (B, T, D)
    query, key, value, weights = (trace[f"stack.1.attention.{kind}"][0] for kind in looks)
    assert query.shape == key.shape == value.shape == (B, H, T, D // H)
    scores = (query @ key.transpose(-2, -1) / (D // H) ** 0.5).masked_fill(weights == 0, float("-inf"))
    close(scores.softmax(-1), weights)


def test_only_the_causal_see_nothing_ahead() -> None:
    x = randn(B, T, D)
    for causal in (True, False):
        with record() as trace:
            stack(causal=causal)(x)
        assert bool(trace["stack.0.attention.weights"][0].triu(1).any()) is not causal


@pytest.mark.parametrize("name", ["encoder", "window"])
def test_padding_never_changes_a_token_before_it(name: str) -> None:
    made, x, lengths = stack(**STACKS[name]), randn(B, T, D), [6, 2, 4]
    together = made(x, torch.tensor(lengths))
    for row, length in enumerate(lengths):
        close(together[row, :length], made(x[row : row + 1, :length])[0])


def test_dropouts_act_in_training_only() -> None:
    for kind in ("dropout", "dropout_attention", "dropout_activation"):
        made, x = stack(BlockShape(D, H, 24, **{kind: 0.5})), randn(B, T, D)
        close(made(x), made(x))
        made.train()
        assert not torch.allclose(made(x), made(x)), kind


@pytest.mark.parametrize("module", [SelfAttention(SHAPE), CrossAttention(SHAPE), SelfAttention(GROUPED)])
def test_stacked_projections_start_as_if_each_stood_alone(module: Any) -> None:
    parts = (
        module.qkv.weight.split([D, module.kv_heads * 4, module.kv_heads * 4])
        if isinstance(module, SelfAttention)
        else module.key_value.weight.chunk(2)
    )
    for part in parts:
        bound = (6 / sum(part.shape)) ** 0.5
        assert 0.9 * bound < part.abs().max().item() <= bound


def test_heads_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match="3 heads do not divide a width of 16"):
        SelfAttention(BlockShape(D, 3, 24))
    with pytest.raises(ValueError, match="3 key and value heads do not divide 4 heads"):
        SelfAttention(BlockShape(D, H, 24, kv_heads=3))


# --- the cache -------------------------------------------------------------------------------------


def feed(made: Stack, cache: KeyValueCache, x: Tensor, lengths: Tensor | None = None) -> Tensor:
    return made.extend(x, cache.open(x.shape[1], lengths))


CAUSAL = [name for name, asked in STACKS.items() if asked.get("causal") and "cross" not in asked]


@pytest.mark.parametrize("name", CAUSAL)
@torch.no_grad()
def test_token_by_token_equals_all_at_once(name: str) -> None:
    made, x = stack(**STACKS[name]), randn(B, 9, D)
    cache = made.start(B, 9)
    pieces = [feed(made, cache, x[:, a:b]) for a, b in ((0, 4), (4, 5), (5, 8), (8, 9))]
    close(torch.cat(pieces, 1), made(x))


@pytest.mark.parametrize("name", CAUSAL)
@given(data=st.data())
@settings(max_examples=6, deadline=None)
def test_ragged_pieces_equal_each_row_alone(name: str, data: st.DataObject) -> None:
    torch.manual_seed(0)
    made, x = stack(**STACKS[name]), randn(B, 12, D)
    cache = made.start(B, 12)
    done = torch.zeros(B, dtype=torch.long)
    with torch.no_grad():
        for _ in range(3):
            lengths = torch.tensor(data.draw(st.lists(st.integers(1, 4), min_size=B, max_size=B)))
            columns = int(lengths.max())
            piece = torch.zeros(B, columns, D, dtype=torch.float64)
            for row in range(B):
                piece[row, columns - lengths[row] :] = x[row, done[row] : done[row] + lengths[row]]
            out = feed(made, cache, piece, None if (lengths == columns).all() else lengths)
            done += lengths
            for row in range(B):
                close(out[row, -1], made(x[row : row + 1, : done[row]])[0, -1])


def test_a_row_at_a_limit_is_told_so_however_the_columns_count() -> None:
    cache = KeyValueCache(1, 2, 1, 20, 2, like=torch.empty(0), limit=6)
    cache.open(5, torch.tensor([5, 1]))
    cache.open(4, torch.tensor([1, 4]))  # nine columns, but no row above six
    assert cache.length == 9
    with pytest.raises(LegatoError, match="a sequence of 7 tokens is too long: this model goes up to 6"):
        cache.open(1)
    cache.reorder(torch.tensor([1, 1]))  # the row of six leaves
    cache.open(1)
    with pytest.raises(LegatoError, match="7 tokens"):
        cache.open(1)


def test_a_cache_that_is_full_says_so() -> None:
    cache = KeyValueCache(1, 2, 1, 3, 2, like=torch.empty(0))
    cache.open(3)
    with pytest.raises(ValueError, match="this cache has 3 columns; 4 were asked for"):
        cache.open(1)
    with pytest.raises(ValueError, match="cannot go to 4"):
        cache.rewind(4)


def test_even_rows_need_no_mask() -> None:
    cache = KeyValueCache(1, 2, 1, 9, 2, like=torch.empty(0))
    assert cache.open(4).views[0].mask is None
    assert cache.open(1).views[0].mask is None


def test_a_cache_has_the_device_and_dtype_of_its_stack() -> None:
    cache = stack(causal=True).start(2, 3)
    assert cache.open(1).pasts[0].key.dtype == torch.float64


@pytest.mark.slow
@given(data=st.data(), rows=st.integers(1, 6))
@settings(max_examples=150, deadline=None)
def test_moving_rows_in_place_equals_picking_them(data: st.DataObject, rows: int) -> None:
    picked = data.draw(st.lists(st.integers(0, rows - 1), min_size=1, max_size=rows))
    shared = data.draw(st.integers(0, 2))  # columns that are the same in all rows
    content = torch.arange(rows).view(-1, 1, 1).repeat(1, 2, 3)  # (B, S, K)
    content[:, :shared] = 0
    expected = content[picked]
    _move(list(content), picked, _first_differing(content[..., 0].numpy(), picked))
    assert torch.equal(content[: len(picked)], expected)


def at_the_end(rows: Tensor, length: int) -> Tensor:
    return F.pad(rows, (length - rows.shape[1], 0))


@pytest.mark.slow
@given(data=st.data(), rows=st.integers(1, 5))
@settings(max_examples=100, deadline=None)
def test_a_cache_that_copies_only_what_differs_equals_one_that_copies_all(data: st.DataObject, rows: int) -> None:
    """Openings, reorders, rewinds and rows that join; what is kept is a number that no other row or time has."""
    cache = KeyValueCache(1, rows, 1, 12, 1, like=torch.empty(0))
    plain = torch.empty(rows, 0)
    for number in range(data.draw(st.integers(1, 10))):
        kind = data.draw(st.sampled_from(["open", "open", "reorder", "rewind", "join"]))
        if kind == "open" and cache.length < cache.capacity:
            columns = data.draw(st.integers(1, min(2, cache.capacity - cache.length)))
            fresh = 100.0 * number + torch.arange(len(plain) * columns).view(-1, columns)
            cache.open(columns).pasts[0].new.copy_(fresh.view(1, -1, 1, columns, 1).expand(2, -1, -1, -1, -1))
            plain = torch.cat([plain, fresh], 1)
        elif kind == "reorder":
            picked = data.draw(st.lists(st.integers(0, len(plain) - 1), min_size=1, max_size=6))
            cache.reorder(torch.tensor(picked))
            plain = plain[picked]
        elif kind == "rewind":
            length = data.draw(st.integers(0, cache.length))
            cache.rewind(length)
            plain = plain[:, :length]
        elif kind == "join":
            other, length = KeyValueCache(1, 2, 1, 12, 1, like=torch.empty(0)), data.draw(st.integers(0, 4))
            fresh = 1000.0 * number + torch.arange(2 * length).view(2, length)
            if length:
                other.open(length).pasts[0].new.copy_(fresh.view(1, 2, 1, length, 1).expand(2, -1, -1, -1, -1))
            other.reorder(torch.tensor([0, 1, 1]))
            before, cache_rows = cache._first_column(), cache.rows
            cache.join(other)
            plain = torch.cat(
                [at_the_end(plain[:, before:], cache.length), at_the_end(fresh[[0, 1, 1]], cache.length)]
            )
            assert cache.rows == cache_rows + 3
        assert torch.equal(cache._store[0, 1, :, 0, : cache.length, 0], plain)


@given(data=st.data(), groups=st.integers(1, 4), width=st.integers(1, 4))
@settings(max_examples=100, deadline=None)
def test_every_row_keeps_its_source_wherever_it_goes(data: st.DataObject, groups: int, width: int) -> None:
    """Beams, prompts that leave, and orders that no search makes."""
    numbers = torch.arange(groups).view(-1, 1, 1, 1)
    sources = Sources([Source(numbers, numbers)])
    rows = torch.arange(groups).repeat_interleave(width).tolist()
    sources.reorder(rows)
    for _ in range(3):
        picked = data.draw(st.lists(st.integers(0, len(rows) - 1), min_size=1, max_size=9))
        sources.reorder(picked)
        rows = [rows[row] for row in picked]
        kept = sources.layers[0].key.flatten().tolist()
        assert [kept[row // (len(rows) // len(kept))] for row in range(len(rows))] == rows


def test_beams_share_their_source() -> None:
    sources = Sources([Source(randn(3, 1, 2, 2), randn(3, 1, 2, 2))])
    sources.reorder([0] * 4 + [1] * 4 + [2] * 4)
    assert len(sources.layers[0].key) == 3
    sources.reorder([1, 1, 0, 2, 8, 9, 11, 11])  # the second prompt is done
    assert len(sources.layers[0].key) == 2


def test_queries_of_one_source_folded_together_equal_each_row_alone() -> None:
    module, x, memory = CrossAttention(SHAPE).double(), randn(B * 4, 2, D), randn(B, S, D)
    mask = (torch.arange(S) < LENGTHS[:, None])[:, None, None]
    each = torch.arange(B).repeat_interleave(4)
    folded = module(x, module.source(memory, mask))
    close(folded, module(x, module.source(memory[each], mask[each])))
    with record() as trace:
        close(module(x, module.source(memory, mask)), folded)
        module(x, module.source(memory[each], mask[each]))
    assert trace["weights"][0].shape == (B * 4, H, 2, S)
    close(*trace["weights"])


def test_rows_padded_on_the_right_are_aligned_at_their_ends() -> None:
    aligned = right_aligned(torch.tensor([[1, 2, 3], [4, 0, 0]]), torch.tensor([3, 1]))
    assert aligned[0].tolist() == [1, 2, 3]
    assert aligned[1, -1].item() == 4


# --- linear layers laid out for generation ---------------------------------------------------------


def packed(inputs: int, outputs: int, bias: bool = True) -> Linear:
    layer = Linear(inputs, outputs, bias).eval()
    pack(layer)
    return layer


def plain(layer: Linear, x: Tensor) -> Tensor:
    return nn.functional.linear(x, layer.weight, layer.bias)


@pytest.mark.parametrize("rows", [1, 4, 64, 128, 500])
@torch.no_grad()
def test_a_packed_layer_equals_a_plain_one(rows: int) -> None:
    layer, x = packed(24, 40), torch.randn(rows, 1, 24)
    torch.testing.assert_close(layer(x), plain(layer, x))
    assert (layer._packed is not None) is (4 <= rows < 128 and torch.backends.mkldnn.is_available())
    pack(layer, below=math.inf)
    torch.testing.assert_close(layer(x), plain(layer, x))
    assert (layer._packed is not None) is (rows >= 4 and torch.backends.mkldnn.is_available())


@torch.no_grad()
def test_a_packed_layer_follows_its_weights() -> None:
    layer, x = packed(24, 40, bias=False), torch.randn(8, 24)
    before = layer(x)
    layer.weight.mul_(2)
    torch.testing.assert_close(layer(x), 2 * before)
    layer.load_state_dict({"weight": torch.zeros(40, 24)})
    assert not layer(x).any()
    layer.weight = nn.Parameter(torch.ones(40, 24))
    torch.testing.assert_close(layer(x), x.sum(-1, keepdim=True).expand(8, 40))


def test_a_packed_layer_follows_its_weights_through_training() -> None:
    layer, x = packed(24, 40), torch.randn(8, 24)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=0.1, fused=True)
    for _ in range(2):
        layer.eval()
        with torch.no_grad():
            torch.testing.assert_close(layer(x), plain(layer, x))
        layer.train()
        layer(x).square().sum().backward()
        optimizer.step()


def test_a_packed_layer_can_be_copied_and_saved() -> None:
    layer, x = packed(24, 40), torch.randn(8, 24)
    with torch.no_grad():
        expected = layer(x)
    torch.testing.assert_close(copy.deepcopy(layer)(x), expected)
    torch.save(layer, io.BytesIO())
    assert list(layer.state_dict()) == ["weight", "bias"]
    with torch.no_grad():
        assert layer.double()(x.double()).dtype == torch.float64


def test_every_activation_is_used_by_some_feed_forward_layer() -> None:
    for name in ACTIVATIONS:
        assert FeedForward(BlockShape(4, 1, 6, name))(torch.randn(2, 4)).shape == (2, 4)


def test_attention_without_anything_to_look_at_but_itself_is_its_value() -> None:
    module, x = SelfAttention(SHAPE).double(), randn(B, 1, D)
    value = (x @ module.qkv.weight.T + module.qkv.bias)[..., 2 * D :]
    close(module(x, AttentionView(causal=True)), module.output(value))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64, torch.bfloat16])
def test_a_compiled_gelu_is_the_same(dtype: torch.dtype) -> None:
    x = torch.linspace(-9, 9, 301, dtype=dtype, requires_grad=True)
    compiled = torch.compile(gelu_tanh, backend="eager", fullgraph=True)
    found, expected = compiled(x), gelu_tanh(x)
    assert ["Gelu" in str(y.grad_fn) for y in (found, expected)] == [False, True]
    torch.testing.assert_close(found, expected)
    slopes = (torch.autograd.grad(y.sum(), x)[0] for y in (found, expected))
    torch.testing.assert_close(*slopes)
