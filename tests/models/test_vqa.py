"""The model of questions about pictures: its two equations by hand, what it looks at, and what it cannot see."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.vqa import VQAConfig, VQAModel
from legato.nn.capture import record

V = 11
VIT = {"name": "vit", "image": 8, "patch": 4, "width": 6, "layers": 1, "heads": 2}
RESNET = {"name": "resnet", "image": 16, "stem": "3x3", "embedding": 4, "widths": [4, 6], "depths": [1, 1]}


def model(encoder: dict[str, Any] | None = VIT, **settings: Any) -> VQAModel:
    torch.manual_seed(0)
    given = {"name": "vqa", "width": 8, "encoder": encoder, "dropout": 0.0, **settings}
    made = VQAModel(validate(VQAConfig, given), Sizes(V)).double().eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made


def batch(rows: int = 3, side: int = 8, lengths: list[int] | None = None) -> Batch:
    draw = torch.Generator().manual_seed(1)
    ids = torch.randint(V, (rows, 5), generator=draw)
    pixels = torch.randn(rows, 3, side, side, generator=draw, dtype=torch.double)
    short = None if lengths is None else torch.tensor(lengths)
    return Batch(Inputs(ids, lengths=short), images=Inputs(values=pixels), image_rows=torch.arange(rows))


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-9, atol=1e-10)


@torch.no_grad()
def test_without_attention_it_is_the_product_of_two_vectors() -> None:
    made, asked = model(attention="none"), batch()
    grid, question = made.grid(asked), made.vector(asked)
    assert grid.shape == (3, 4, 8)  # the state for the whole picture is left out
    assert made.of_picture is not None
    assert made.of_question is not None
    picture = torch.tanh(grid.mean(1) @ made.of_picture.weight.T + made.of_picture.bias)
    words = torch.tanh(question @ made.of_question.weight.T + made.of_question.bias)
    close(made(asked).hidden, (picture * words).unsqueeze(1))


@torch.no_grad()
def test_stacked_attention_looks_again_with_what_it_saw() -> None:
    made, asked = model(hops=2), batch()
    assert made.of_picture is not None
    places, state = torch.tanh(made.of_picture(made.grid(asked))), made.vector(asked)
    looks = []
    for hop in made.hops:
        mlp: Any = hop
        inner = torch.tanh(mlp.memory(places) + mlp.query(state).unsqueeze(1))  # (B, S, D)
        looks.append(mlp.energy(inner).squeeze(-1).softmax(-1))
        state = (looks[-1].unsqueeze(-1) * places).sum(1) + state
    with record() as trace:
        found = made(asked).hidden
    close(found, state.unsqueeze(1))
    assert [name for name in trace if name.endswith("attention.weights") and name.startswith("hop")] == [
        "hop.1.attention.weights",
        "hop.2.attention.weights",
    ]
    for number, weights in enumerate(looks, start=1):
        (seen,) = trace[f"hop.{number}.attention.weights"]
        assert seen.shape == (3, 4)
        close(seen, weights)
        close(seen.sum(1), torch.ones(3, dtype=torch.double))


@pytest.mark.parametrize("attention", ["none", "stacked"])
@torch.no_grad()
def test_the_blind_model_is_the_same_without_the_picture(attention: str) -> None:
    made, asked = model(None, blind=True, attention=attention), batch()
    found = made(asked).hidden
    close(found, made(Batch(asked.inputs)).hidden)
    expected = made.vector(asked)
    if made.of_question is not None:
        expected = torch.tanh(made.of_question(expected))
    close(found, expected.unsqueeze(1))
    assert VQAModel.processors_of(made.config) == ("tokenizer",)


@pytest.mark.parametrize("attention", ["none", "stacked"])
@torch.no_grad()
def test_a_seeing_model_sees(attention: str) -> None:
    made, asked = model(attention=attention), batch()
    other = batch()
    other.images = Inputs(values=asked.images.content.flip(0))  # type: ignore[union-attr]
    found, changed = made(asked).hidden, made(other).hidden
    close(found[1], changed[1])  # the one in the middle has its picture still
    assert (found - changed)[[0, 2]].abs().amax((1, 2)).min() > 1e-3


@pytest.mark.parametrize("encoder", [VIT, RESNET])
@torch.no_grad()
def test_padding_never_changes_a_state(encoder: dict[str, Any]) -> None:
    made, asked = model(encoder, cell="gru", layers=2), batch(side=16 if encoder is RESNET else 8, lengths=[5, 2, 3])
    whole = made(asked).hidden
    assert asked.images is not None
    for row, length in enumerate([5, 2, 3]):
        alone = Batch(Inputs(asked.inputs.token_ids[row : row + 1, :length]))
        alone.images = Inputs(values=asked.images.content[row : row + 1])
        close(made(alone).hidden[0], whole[row])


@pytest.mark.parametrize("changes", [{}, {"pool": "last"}, {"pool": "mean"}, {"lstm": 1, "width": 4}])
@torch.no_grad()
def test_a_head_reads_the_one_state_however_it_pools(changes: dict[str, Any]) -> None:
    spec = validate(HeadSpec, {"kind": "classes", "outputs": 7, **changes})
    made = ModelWithHead(model().float(), spec).double().eval()
    short, full = batch(lengths=[5, 2, 3]), batch(lengths=[5, 5, 5])
    logits = made(short).logits
    assert logits is not None
    assert logits.shape == (3, 7)
    full_logits = made(full).logits
    assert full_logits is not None
    close(logits[0], full_logits[0])


def test_a_product_has_a_layer_behind_it_and_attention_none() -> None:
    spec = validate(HeadSpec, {"kind": "classes", "outputs": 7})
    assert ModelWithHead(model(attention="none").float(), spec).inner is not None
    assert ModelWithHead(model().float(), spec).inner is None


@pytest.mark.parametrize("layers", ["first", "mix", "sum-all"])
def test_a_head_may_read_what_each_look_left(layers: str) -> None:
    spec = validate(HeadSpec, {"kind": "classes", "outputs": 7, "layers": layers})
    logits = ModelWithHead(model(hops=3).float(), spec)(_float(batch())).logits
    assert logits is not None
    assert logits.shape == (3, 7)


def _float(asked: Batch) -> Batch:
    assert asked.images is not None
    asked.images = Inputs(values=asked.images.content.float())
    return asked


def test_a_frozen_encoder_learns_nothing_and_the_rest_does() -> None:
    made = model(RESNET).train()
    assert made.encoder is not None
    made.encoder.model.requires_grad_(False)
    before = {name: buffer.clone() for name, buffer in made.encoder.model.named_buffers()}
    made(batch(side=16)).hidden.sum().backward()
    assert all(parameter.grad is None for parameter in made.encoder.model.parameters())
    others = [p for name, p in made.named_parameters() if not name.startswith("encoder.model")]
    assert all(parameter.grad is not None for parameter in others)
    assert all(torch.equal(buffer, before[name]) for name, buffer in made.encoder.model.named_buffers())


@torch.no_grad()
@pytest.mark.parametrize("blind", [False, True])
def test_a_folder_holds_the_same_model(blind: bool, tmp_path: Path) -> None:
    made = model(None if blind else VIT, blind=blind).float()
    tokenizer = Tokenizer.train(validate(TokenizerConfig, {"name": "char"}), ["what is it"])
    made = VQAModel(made.config, Sizes(tokenizer.size)).eval()
    others = {} if blind else {"image": ImageProcessor((8, 8))}
    headed = ModelWithHead(made, validate(HeadSpec, {"kind": "classes", "outputs": 3})).eval()
    about = {"labels": ["a", "b", "c"]}
    save_model(tmp_path, headed, Processors(tokenizer, others=others), task="vqa", about=about, card="")
    loaded = load_model(tmp_path)
    asked = _float(batch())
    asked.inputs = Inputs(asked.inputs.token_ids % tokenizer.size)
    found, expected = loaded.module.eval()(asked).logits, headed(asked).logits
    assert torch.equal(found, expected)
    assert set(loaded.processors.others) == set(others)
    assert set(loaded.module.parts) == (set() if blind else {"encoder"})


@pytest.mark.parametrize(
    ("settings", "told"),
    [
        ({"encoder": None}, "blind=true reads the question alone"),
        ({"blind": True}, "leave out encoder"),
        ({"encoder": {"name": "lstm"}}, "lstm reads no pictures"),
        ({"hops": 0}, "hops"),
    ],
)
def test_settings_that_cannot_be(settings: dict[str, Any], told: str) -> None:
    with pytest.raises(ConfigError, match=told):
        validate(VQAConfig, {"name": "vqa", "encoder": VIT, **settings}, "model")
