"""Whisper: Hugging Face's weights in our model and ours in theirs, its writing, and sounds of different lengths."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.decoding.speech.speech_prompt import SpeechPrompt
from legato.errors import ConfigError, FolderError, LegatoError
from legato.models.base import Sizes, count_parameters, measure
from legato.models.published.whisper import Whisper
from legato.models.whisper import WhisperConfig, WhisperModel

transformers = pytest.importorskip("transformers")

V, EOS, START, MELS, STATES = 37, 3, 1, 6, 10
TINY: dict[str, Any] = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 3,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "num_mel_bins": MELS,
    "max_source_positions": STATES,
    "max_target_positions": 24,
}
IDS = {"pad_token_id": EOS, "bos_token_id": EOS, "eos_token_id": EOS, "decoder_start_token_id": START}
SMALL: dict[str, Any] = {
    "layers": 2,
    "width": 16,
    "heads": 4,
    "features": MELS,
    "source_length": STATES,
    "length": 24,
}
POSITIONS = "model.encoder.embed_positions.weight"


def theirs(**asked: Any) -> Any:
    """Hugging Face's model on random weights that have opinions."""
    torch.manual_seed(0)
    config = transformers.WhisperConfig(**{**TINY, **IDS, **asked})
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name != POSITIONS:
                parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def published(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a folder of theirs holds: the config, and every tensor, also those that are copies."""
    return model.config.to_dict(), {name: tensor.clone() for name, tensor in model.state_dict().items()}


def adopted(other: Any) -> Any:
    return Whisper.load(*published(other), "folder").eval()


def ours(**asked: Any) -> WhisperModel:
    torch.manual_seed(1)
    model = WhisperModel(WhisperConfig(**{**SMALL, **asked}), Sizes(V)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def frames(rows: int, length: int = 2 * STATES, seed: int = 0) -> Tensor:
    return torch.randn(rows, length, MELS, generator=torch.Generator().manual_seed(seed))


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(4, V, (rows, length), generator=torch.Generator().manual_seed(length))


def logits_of(model: WhisperModel, ids: Tensor, sounds: Tensor, lengths: Tensor | None = None) -> Tensor:
    with torch.no_grad():
        return model.readout(model(Batch(Inputs(ids), source=Inputs(values=sounds, lengths=lengths))).hidden)


def same_logits(mine: Any, other: Any) -> None:
    ids, sounds = tokens(3, 7), frames(3)
    with torch.no_grad():
        expected = other(input_features=sounds.transpose(1, 2), decoder_input_ids=ids).logits
    torch.testing.assert_close(logits_of(mine, ids, sounds), expected, rtol=1e-4, atol=1e-4)


# --- theirs in ours, ours in theirs ------------------------------------------------------------------


@pytest.mark.parametrize("asked", [{}, {"activation_function": "relu"}, {"tie_word_embeddings": False}])
def test_their_weights_give_their_logits(asked: dict[str, Any]) -> None:
    other = theirs(**asked)
    same_logits(adopted(other), other)


@pytest.mark.parametrize("left_out", ["proj_out.weight", "model."])
def test_folders_without_what_is_there_twice_and_without_the_beginning_of_names_are_read(left_out: str) -> None:
    other = theirs()
    config, tensors = published(other)
    del tensors["proj_out.weight"]
    if left_out == "model.":
        tensors = {name.removeprefix(left_out): tensor for name, tensor in tensors.items()}
    same_logits(Whisper.load(config, tensors, "folder").eval(), other)


@pytest.mark.parametrize("asked", [{}, {"decoder_layers": 1, "activation": "silu"}, {"tied": False}])
def test_our_weights_give_our_logits_there(asked: dict[str, Any]) -> None:
    mine = ours(**asked)
    entries, tensors = Whisper.save(mine)
    other = transformers.WhisperForConditionalGeneration(transformers.WhisperConfig(**{**entries, **IDS})).eval()
    missing, unexpected = other.load_state_dict(tensors, strict=False)
    assert set(missing) <= ({"proj_out.weight"} if mine.config.tied else set())
    assert not unexpected
    same_logits(mine, other)


def test_what_is_saved_is_read_again() -> None:
    mine = ours(decoder_layers=1, feedforward=20)
    entries, tensors = Whisper.save(mine)
    again: Any = Whisper.load(entries, tensors, "folder").eval()
    assert again.config == mine.config
    assert torch.equal(logits_of(again, tokens(2, 5), frames(2)), logits_of(mine, tokens(2, 5), frames(2)))


def test_the_positions_of_a_new_model_are_theirs() -> None:
    torch.testing.assert_close(ours().encoder.positions, theirs().state_dict()[POSITIONS], rtol=0, atol=1e-6)


def test_keys_have_no_bias() -> None:
    tensors = Whisper.save(ours())[1]
    assert not [name for name in tensors if name.endswith("k_proj.bias")]
    assert len([name for name in tensors if name.endswith(("q_proj.bias", "v_proj.bias"))]) == 2 * (2 + 2 * 2)


def test_a_folder_that_says_two_numbers_of_heads_is_refused() -> None:
    config, tensors = published(theirs())
    with pytest.raises(FolderError, match="encoder_attention_heads and decoder_attention_heads to be equal"):
        Whisper.load({**config, "decoder_attention_heads": 2}, tensors, "folder")


# --- writing -----------------------------------------------------------------------------------------


def written(mine: Any, prompt: SpeechPrompt, **options: Any) -> list[list[int]]:
    found = search(
        mine,
        [prompt.tokens] * 4,
        SearchOptions(max_tokens=12, **options),
        eos=EOS,
        suppress=prompt.suppress,
        suppress_first=prompt.suppress_first,
        memory=mine.encode(Batch(Inputs(torch.zeros(4, 1)), source=Inputs(values=frames(4)))),
    )
    return [best[0].tokens for best in found]


def their_writing(other: Any, **asked: Any) -> list[list[int]]:
    """What `generate` writes after the prompt, up to the end."""
    asked = {"suppress_tokens": None, "begin_suppress_tokens": None, "max_new_tokens": 12, **asked}
    length = len(asked["decoder_input_ids"][0])
    rows = other.generate(input_features=frames(4).transpose(1, 2), do_sample=False, **asked).tolist()
    found = []
    for row in rows:
        new = row[length:] if row[:length] == asked["decoder_input_ids"][0].tolist() else row
        found.append(new[: new.index(EOS)] if EOS in new else new)
    return found


@pytest.mark.parametrize("beams", [1, 3])
def test_it_writes_what_their_generate_writes(beams: int) -> None:
    other = theirs()
    prompt = SpeechPrompt((START, 5))
    ids = torch.tensor([prompt.tokens] * 4)
    kind = {"search": "beam", "beams": beams} if beams > 1 else {}
    assert written(adopted(other), prompt, **kind) == their_writing(other, decoder_input_ids=ids, num_beams=beams)


def test_what_is_suppressed_there_is_suppressed_here() -> None:
    other = theirs()
    ids = torch.tensor([[START, 5]] * 4)
    free = their_writing(other, decoder_input_ids=ids)
    never, first = sorted({row[2] for row in free}), sorted({row[0] for row in free} | {EOS})
    prompt = SpeechPrompt((START, 5), tuple(never), tuple(first))
    found = written(adopted(other), prompt)
    assert found != free
    assert found == their_writing(other, decoder_input_ids=ids, suppress_tokens=never, begin_suppress_tokens=first)


@torch.no_grad()
def test_cached_logits_equal_uncached_ones_of_sounds_of_different_lengths() -> None:
    mine, sounds, lengths = ours().double(), frames(3).double(), torch.tensor([20, 7, 12])
    prompts = [[1, 5, 9], [2], [8, 4]]
    state = mine.start(3, 12, mine.encode(Batch(Inputs(tokens(3, 1)), source=Inputs(values=sounds, lengths=lengths))))
    found = mine.prefill(Inputs.of(prompts, padding=7), state)
    for _ in range(4):
        for row, (prompt, length) in enumerate(zip(prompts, lengths.tolist(), strict=True)):
            alone = logits_of(mine, torch.tensor([prompt]), sounds[row : row + 1, :length])[0, -1]
            torch.testing.assert_close(found[row], alone, rtol=1e-9, atol=1e-10)
        chosen = found.argmax(-1)
        prompts = [[*prompt, token] for prompt, token in zip(prompts, chosen.tolist(), strict=True)]
        found = mine.step(chosen, state)


@pytest.mark.parametrize("beams", [1, 3])
@pytest.mark.parametrize("ragged", [False, True])
@torch.no_grad()
def test_looking_at_states_is_looking_at_their_keys_and_values(beams: int, ragged: bool) -> None:
    mine, sounds = ours().double(), frames(3).double()
    lengths = torch.tensor([20, 7, 12]) if ragged else None
    memory = mine.encode(Batch(Inputs(tokens(3, 1)), source=Inputs(values=sounds, lengths=lengths)))
    found = []
    for looks in (False, True):
        mine.decoder.looks_at_states = looks
        state = mine.start(3, 12, memory)
        logits = [mine.prefill(Inputs(tokens(3, 4)), state)]
        state.reorder(torch.arange(3).repeat_interleave(beams))
        logits += [mine.step(tokens(3 * beams, 5)[:, column], state) for column in range(3)]
        state.reorder(torch.tensor([beams, 0]))
        logits.append(mine.step(tokens(2, 6)[:, 0], state))
        found.append(logits)
    for keys, states in zip(*found, strict=True):
        torch.testing.assert_close(states, keys, rtol=1e-9, atol=1e-10)


# --- sounds ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("grad", [True, False])  # without gradients a CPU skips the padding
@pytest.mark.parametrize("beyond", [1e3, float("nan")])
def test_what_lies_beyond_a_sound_changes_nothing(grad: bool, beyond: float) -> None:
    mine, sounds, lengths = ours().double(), frames(4).double(), torch.tensor([20, 1, 8, 9])
    padded = sounds.masked_fill((torch.arange(20) >= lengths[:, None]).unsqueeze(-1), beyond)
    with torch.set_grad_enabled(grad):
        together = mine.encode(Batch(Inputs(tokens(4, 1)), source=Inputs(values=padded, lengths=lengths)))
        assert together.lengths is not None
        assert together.lengths.tolist() == [10, 1, 4, 5]
        for row, length in enumerate(lengths.tolist()):
            alone = mine.encode(Batch(Inputs(tokens(1, 1)), source=Inputs(values=sounds[row : row + 1, :length])))
            states = together.states[row, : together.lengths[row]]
            torch.testing.assert_close(states, alone.states[0], rtol=1e-9, atol=1e-10)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        (None, "whisper reads sound, as frames; the batch has none"),
        (Inputs(torch.zeros(1, 3, dtype=torch.long)), "whisper reads sound, as frames; the batch has none"),
        (Inputs(values=torch.zeros(1, 20, 5)), r"frames of shape \(frames, 6\), not \(20, 5\)"),
        (Inputs(values=torch.zeros(1, 3, 8, 8)), r"frames of shape \(frames, 6\), not \(3, 8, 8\)"),
        (Inputs(values=torch.zeros(1, 21, 6)), "a sound of 21 frames: this model reads 1 to 20"),
        (Inputs(values=torch.zeros(1, 0, 6)), "a sound of 0 frames: this model reads 1 to 20"),
    ],
)
def test_what_is_no_sound_for_it_is_refused(source: Inputs | None, message: str) -> None:
    with pytest.raises(LegatoError, match=message):
        ours()(Batch(Inputs(tokens(1, 2)), source=source))


def test_texts_beyond_its_positions_are_refused() -> None:
    with pytest.raises(LegatoError, match="25 tokens is too long: this model goes up to 24"):
        logits_of(ours(), tokens(1, 25), frames(1))


def test_an_odd_width_is_refused() -> None:
    with pytest.raises(ConfigError, match="even width, not 15"):
        validate(WhisperConfig, {"width": 15, "heads": 3})


# --- parameters --------------------------------------------------------------------------------------


def test_it_has_as_many_parameters_as_theirs() -> None:
    other, mine = theirs(), adopted(theirs())
    learned = sum(parameter.numel() for name, parameter in other.named_parameters() if name != POSITIONS)
    assert count_parameters(mine) == learned == measure(WhisperModel, mine.config, mine.sizes)


def test_every_parameter_gets_a_gradient() -> None:
    mine = ours()
    hidden = mine(Batch(Inputs(tokens(3, 6)), source=Inputs(values=frames(3)))).hidden
    mine.readout(hidden).logsumexp(-1).sum().backward()
    assert [name for name, p in mine.named_parameters() if p.grad is None or not p.grad.any()] == []


def test_dropout_acts_in_training_and_not_in_evaluation() -> None:
    mine, batch = ours(dropout=0.5), Batch(Inputs(tokens(2, 5)), source=Inputs(values=frames(2)))
    assert torch.equal(mine(batch).hidden, mine(batch).hidden)
    mine.train()
    assert not torch.equal(mine(batch).hidden, mine(batch).hidden)


def test_where_it_looks_sums_to_one_over_the_sound() -> None:
    lengths = torch.tensor([20, 7])
    found = ours().align(Batch(Inputs(tokens(2, 5)), source=Inputs(values=frames(2), lengths=lengths)))
    assert found.shape == (2, 5, 10)
    torch.testing.assert_close(found.sum(-1), torch.ones(2, 5))
    assert not found[1, :, 4:].any()
