"""Models of sound: how many states are left, what padding changes, what is refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.errors import LegatoError
from legato.models.base import Sizes
from legato.models.conformer import ConformerConfig, ConformerModel
from legato.models.deepspeech import DeepSpeechConfig, DeepSpeechModel
from legato.nn.losses.ctc import ctc_nll

SIZES = {"layers": 2, "width": 16, "features": 8, "channels": 4}


def made(name: str, **changes: Any) -> Any:
    torch.manual_seed(1)
    if name == "conformer":
        return ConformerModel(ConformerConfig(**{**SIZES, "heads": 2, **changes}), Sizes(0)).eval()
    return DeepSpeechModel(DeepSpeechConfig(**{**SIZES, **changes}), Sizes(0)).eval()


@pytest.mark.parametrize("name", ["conformer", "deepspeech"])
@pytest.mark.parametrize("factor", [2, 4, 8])
def test_states_are_as_many_as_said(name: str, factor: int) -> None:
    model = made(name, subsampling=factor)
    for frames in (1, 2, 7, 33):
        inputs = Inputs(values=torch.randn(1, frames, 8), lengths=torch.tensor([frames]))
        hidden = model(Batch(inputs)).hidden
        assert hidden.shape == (1, model.config.states_of(frames), 16)
        assert model.state_lengths(inputs).tolist() == [model.config.states_of(frames)]
    every = model.states(Batch(Inputs(values=torch.randn(2, 9, 8))))
    assert len(every) == 3
    assert {state.shape for state in every} == {(2, model.config.states_of(9), 16)}


@pytest.mark.parametrize("name", ["conformer", "deepspeech"])
def test_padding_changes_nothing(name: str) -> None:
    model = made(name)
    frames = torch.randn(2, 40, 8)
    alone = model(Batch(Inputs(values=frames[:1, :21], lengths=torch.tensor([21])))).hidden
    both = model(Batch(Inputs(values=frames, lengths=torch.tensor([21, 40])))).hidden
    assert torch.allclose(both[0, : alone.shape[1]], alone[0], atol=1e-5)


def test_frames_of_other_features_are_refused() -> None:
    with pytest.raises(LegatoError, match="conformer reads frames of 8 features"):
        made("conformer")(Batch(Inputs(values=torch.randn(1, 5, 9))))
    with pytest.raises(ValueError, match="a kernel of 4 states has no middle"):
        ConformerConfig(kernel=4)


def test_the_loss_of_each_row_is_its_own() -> None:
    torch.manual_seed(0)
    logits = torch.randn(3, 6, 4, requires_grad=True)
    targets = torch.tensor([[1, 2, -100], [1, 1, 1], [0, -100, -100]])
    lengths = torch.tensor([6, 4, 3])
    losses = ctc_nll(logits, lengths, targets, blank=3)
    assert losses[1] == 0  # three alike need five states
    log_probs = logits[2, :3].log_softmax(-1)
    paths = [(a, b, c) for a in (0, 3) for b in (0, 3) for c in (0, 3)]
    said = [path for path in paths if "".join("x" if p == 0 else " " for p in path).split() and _one(path)]
    total = torch.stack([sum((log_probs[t, p] for t, p in enumerate(path)), torch.tensor(0.0)) for path in said])
    assert torch.allclose(-losses[2], total.logsumexp(0), atol=1e-5)
    losses.sum().backward()
    assert logits.grad is not None
    assert not logits.grad[1].any()
    assert not logits.grad[2, 3:].any()


def _one(path: tuple[int, ...]) -> bool:
    """Whether a path of tokens 0 and blanks 3 says 0 once."""
    return len("".join("x" if p == 0 else " " for p in path).split()) == 1
