"""GPT-2, LLaMA, Mistral, Qwen 2 and Qwen 3: what Hugging Face's models say, ours say, from folders of either."""

from __future__ import annotations

import json
import tempfile
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.folders.shards import load_weights, save_weights
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS, PUBLISHED
from thinned import some

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

LENGTH = 256
GPT2 = {"vocab_size": 37, "n_embd": 32, "n_layer": 3, "n_head": 4, "n_positions": LENGTH}
LLAMA = {
    "vocab_size": 37,
    "hidden_size": 32,
    "intermediate_size": 44,
    "num_hidden_layers": 3,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": LENGTH,
}
LLAMA3 = {
    "rope_type": "llama3",
    "rope_theta": 500.0,
    "factor": 8.0,
    "low_freq_factor": 1.0,
    "high_freq_factor": 4.0,
    "original_max_position_embeddings": 32,
}
LINEAR = {"rope_type": "linear", "rope_theta": 1000.0, "factor": 3.0}
WINDOW = {"use_sliding_window": True, "sliding_window": 4}
MIXED = ["sliding_attention", "full_attention", "sliding_attention"]

# Theirs: the model_type, and what differs from the above.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied": ("gpt2", {"tie_word_embeddings": False, "n_inner": 40, "vocab_size": 131}),
    "gpt2, exact gelu": ("gpt2", {"activation_function": "gelu", "layer_norm_epsilon": 1e-3, "vocab_size": 128}),
    "llama": ("llama", {"num_key_value_heads": 4}),
    "llama, grouped": ("llama", {"vocab_size": 131}),
    "llama, one key head": ("llama", {"num_key_value_heads": 1, "tie_word_embeddings": True}),
    "llama, biases": ("llama", {"attention_bias": True, "mlp_bias": True, "rms_norm_eps": 1e-3}),
    "llama, linear": ("llama", {"rope_parameters": LINEAR}),
    "llama, llama3": ("llama", {"rope_parameters": LLAMA3, "head_dim": 20, "tie_word_embeddings": True}),
    "mistral": ("mistral", {"sliding_window": None}),
    "mistral, window": ("mistral", {"sliding_window": 5, "head_dim": 12}),
    "qwen2": ("qwen2", {"tie_word_embeddings": True}),
    "qwen2, window": ("qwen2", {**WINDOW, "max_window_layers": 1}),
    "qwen3": ("qwen3", {"head_dim": 12, "tie_word_embeddings": True}),
    "qwen3, biases": ("qwen3", {"head_dim": 8, "attention_bias": True, "hidden_size": 30, "vocab_size": 131}),
    "qwen3, mixed windows": ("qwen3", {"head_dim": 12, **WINDOW, "layer_types": MIXED}),
}
# Ours: the name, and the settings.
SMALL: dict[str, Any] = {"layers": 3, "width": 32, "heads": 4, "length": LENGTH}
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "gpt2": ("gpt2", {}),
    "gpt2, untied": ("gpt2", {"tied": False, "feedforward": 40, "activation": "relu"}),
    "llama": ("llama", {}),
    "llama, tied": ("llama", {"tied": True, "kv_heads": 2, "bias": True, "bias_feedforward": True, "eps": 1e-3}),
    "llama, linear": ("llama", {"theta": 500.0, "scaling": {"type": "linear", "factor": 4}}),
    "llama, llama3": ("llama", {"head_width": 20, "scaling": {"type": "llama3", "factor": 8, "length": 32}}),
    "mistral": ("llama", {"family": "mistral", "kv_heads": 1}),
    "mistral, window": ("llama", {"family": "mistral", "window": 5, "head_width": 12}),
    "qwen2": ("llama", {"family": "qwen2", "tied": True}),
    "qwen2, window": ("llama", {"family": "qwen2", "window": 5, "head_width": 12}),
    "qwen3": ("llama", {"family": "qwen3", "kv_heads": 2, "bias": True, "width": 30, "head_width": 8}),
    "qwen3, mixed windows": ("llama", {"family": "qwen3", "window": 4, "window_layers": [0, 2]}),
}
PROMPTS = [[3, 1, 4, 1, 5, 9, 2, 6], [5], [3, 5, 8], [9, 7, 9, 3, 2]]


@torch.no_grad()
def shake(model: torch.nn.Module) -> None:
    """Weights that have opinions."""
    torch.manual_seed(1)
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))


def adopt(folder: Path) -> SequenceModel:
    """The model in a folder, without the tokenizer that a whole one has."""
    config = json.loads((folder / "config.json").read_text())
    model: SequenceModel = PUBLISHED.get(config["model_type"]).load(config, load_weights(folder), str(folder))
    return model.eval()


@cache
def pair(case: str) -> tuple[Any, SequenceModel]:
    """Hugging Face's model on random weights, and ours from the folder that it saves."""
    kind, asked = THEIRS[case]
    torch.manual_seed(0)
    config = transformers.AutoConfig.for_model(kind, **{**(GPT2 if kind == "gpt2" else LLAMA), **asked})
    theirs = transformers.AutoModelForCausalLM.from_config(config).eval()
    shake(theirs)
    theirs.generation_config.eos_token_id = None  # so that it writes on
    theirs.generation_config.pad_token_id = 0
    with tempfile.TemporaryDirectory() as folder:
        theirs.save_pretrained(folder)
        return theirs, adopt(Path(folder))


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(37, (rows, length), generator=torch.Generator().manual_seed(length))


@torch.no_grad()
def our_logits(model: SequenceModel, ids: Tensor, lengths: Tensor | None = None) -> Tensor:
    return model.readout(model(Batch(Inputs(ids, lengths=lengths))).hidden)


@torch.no_grad()
def their_logits(model: Any, ids: Tensor, mask: Tensor | None = None) -> Tensor:
    logits: Tensor = model(ids, attention_mask=mask).logits
    return logits


def close(found: Tensor, expected: Tensor) -> None:
    assert expected.std() > 0.5  # flat logits would show nothing
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-4)


def padded(prompts: list[list[int]]) -> Inputs:
    # What pads is a real word, so that reading it would show.
    return Inputs.of(prompts, padding=7)


# --- their folder in ours ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", THEIRS)
def test_their_folder_gives_their_logits(case: str) -> None:
    theirs, ours = pair(case)
    ids = tokens(3, 40)
    close(our_logits(ours, ids), their_logits(theirs, ids))


@pytest.mark.parametrize("case", THEIRS)
def test_a_padded_batch_gives_their_logits(case: str) -> None:
    theirs, ours = pair(case)
    ids, lengths = tokens(4, 19), torch.tensor([19, 2, 1, 11])
    inside = torch.arange(19) < lengths[:, None]
    close(our_logits(ours, ids, lengths)[inside], their_logits(theirs, ids, inside.long())[inside])


@pytest.mark.parametrize("case", some([*THEIRS], [*THEIRS][::3]))
def test_cached_steps_after_ragged_prompts_give_their_logits(case: str) -> None:
    theirs, ours = pair(case)
    state = ours.start(len(PROMPTS), 30)
    rows = [list(prompt) for prompt in PROMPTS]
    logits = ours.prefill(padded(rows), state)
    for new in tokens(12, len(PROMPTS)):
        close(logits, torch.stack([their_logits(theirs, torch.tensor([row]))[0, -1] for row in rows]))
        logits = ours.step(new, state)
        for row, token in zip(rows, new.tolist(), strict=True):
            row.append(token)


@pytest.mark.parametrize("case", THEIRS)
def test_a_cache_filled_in_pieces_gives_their_logits(case: str) -> None:
    theirs, ours = pair(case)
    ids = tokens(2, 24)
    state, expected, at = ours.start(2, 24), their_logits(theirs, ids), 0
    for size in (7, 1, 1, 6, 9):
        found = ours.prefill(Inputs(ids[:, at : at + size]), state)
        at += size
        close(found, expected[:, at - 1])


# --- our folder in theirs ---------------------------------------------------------------------------


@pytest.mark.parametrize("case", OURS)
def test_our_folder_gives_our_logits_in_theirs(case: str, tmp_path: Path) -> None:
    name, asked = OURS[case]
    model: type[SequenceModel] = MODELS.get(name)
    ours = model(validate(model.Config, {"name": name, **SMALL, **asked}), Sizes(37)).eval()
    shake(ours)
    form = PUBLISHED.get(str(ours.published))
    assert form.refusal(ours) is None
    entries, tensors = form.save(ours)
    head = {"model_type": form.model_type, "architectures": [form.architecture]}
    (tmp_path / "config.json").write_text(json.dumps({**head, **entries}))
    save_weights(tensors, tmp_path)
    theirs, told = transformers.AutoModelForCausalLM.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told.values()), told
    assert type(theirs).__name__ == form.architecture
    ids = tokens(3, 40)
    close(our_logits(ours, ids), their_logits(theirs.eval(), ids))
    torch.testing.assert_close(our_logits(adopt(tmp_path), ids), our_logits(ours, ids), rtol=0, atol=0)


# --- the same words ---------------------------------------------------------------------------------

STEPS = 80
WRITERS = ["gpt2", "gpt2, untied", "llama, grouped", "llama, linear"]
WRITERS += ["mistral, window", "qwen2, window", "qwen3, biases", "qwen3, mixed windows"]


def same_words(model: SequenceModel, prompt: list[int], found: list[int], expected: list[int]) -> None:
    """Equal up to where two logits lie within rounding of each other; from there on the texts are two."""
    assert len(found) == len(expected) == STEPS
    for place, (mine, other) in enumerate(zip(found, expected, strict=True)):
        if mine != other:
            logits = our_logits(model, torch.tensor([prompt + found[:place]]))[0, -1]
            assert abs(logits[mine] - logits[other]) < 1e-4, f"step {place}: {mine} and {other}"
            return


def written(model: SequenceModel, prompts: list[list[int]]) -> list[list[int]]:
    return [found[0].tokens for found in search(model, prompts, SearchOptions(max_tokens=STEPS), eos=None)]


def their_words(model: Any, prompts: list[list[int]]) -> list[list[int]]:
    """What they write. Their prompts end together: padding stands before them."""
    longest = max(map(len, prompts))
    ids = torch.tensor([[0] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    found = model.generate(ids, attention_mask=mask, max_new_tokens=STEPS, do_sample=False)
    words: list[list[int]] = found[:, longest:].tolist()
    return words


@pytest.mark.parametrize("case", some(WRITERS, WRITERS[::2]))
def test_greedy_search_writes_what_theirs_writes(case: str) -> None:
    theirs, ours = pair(case)
    prompt = PROMPTS[0]
    same_words(ours, prompt, written(ours, [prompt])[0], their_words(theirs, [prompt])[0])


@pytest.mark.parametrize("case", some(WRITERS, WRITERS[1::2]))
def test_greedy_search_of_a_ragged_batch_writes_what_theirs_writes(case: str) -> None:
    theirs, ours = pair(case)
    for prompt, mine, other in zip(PROMPTS, written(ours, PROMPTS), their_words(theirs, PROMPTS), strict=True):
        same_words(ours, prompt, mine, other)
