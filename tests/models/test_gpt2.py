"""GPT-2: its settings, and what of Hugging Face's folders is taken and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.errors import ConfigError
from legato.models.base import Sizes, count_parameters
from legato.models.gpt2 import GPT2Config, GPT2Model
from legato.models.published.gpt2 import GPT2
from tiny_decoders import V, adopt, complaint, logits, written

SMALL: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "length": 32}


def build(**asked: Any) -> GPT2Model:
    torch.manual_seed(0)
    return GPT2Model(validate(GPT2Config, {**SMALL, **asked}), Sizes(V)).eval()


def folder(**asked: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return written(build(**asked))


def test_the_smallest_published_one_has_124_million_parameters() -> None:
    config = GPT2Config(layers=12, width=768, heads=12)
    with torch.device("meta"):
        assert count_parameters(GPT2Model(config, Sizes(50257))) == 124_439_808


def test_what_ends_a_sublayer_starts_out_smaller() -> None:
    torch.manual_seed(0)
    block = GPT2Model(GPT2Config(layers=8, width=64), Sizes(V)).stack.layers[0]
    assert block.attention.qkv.weight.std().item() == pytest.approx(0.02, rel=0.05)  # type: ignore[union-attr]
    assert block.attention.output.weight.std().item() == pytest.approx(0.02 / 16**0.5, rel=0.05)  # type: ignore[union-attr]


def test_heads_divide_the_width() -> None:
    with pytest.raises(ConfigError, match="heads=3 does not divide width=16"):
        validate(GPT2Config, {**SMALL, "heads": 3})


def test_a_folder_holds_the_vocabulary_without_what_pads_it() -> None:
    config, tensors = folder(tied=False)
    assert config["vocab_size"] == V
    assert tensors["transformer.wte.weight"].shape == tensors["lm_head.weight"].shape == (V, 16)


def test_their_matrices_lie_the_other_way_round() -> None:
    _, tensors = folder()
    assert tensors["transformer.h.0.attn.c_attn.weight"].shape == (16, 48)


def test_a_tied_readout_is_in_no_folder_and_not_minded_when_it_is() -> None:
    config, tensors = folder()
    assert "lm_head.weight" not in tensors
    again = adopt(config, {**tensors, "lm_head.weight": tensors["transformer.wte.weight"].clone()})
    assert torch.equal(logits(again), logits(build()))
    assert again.output.weight is again.embedding.weight


def test_the_settings_come_back() -> None:
    asked: dict[str, Any] = {
        "feedforward": 20,
        "activation": "relu",
        "dropout": 0.2,
        "dropout_embedding": 0.3,
        "dropout_attention": 0.4,
        "eps": 1e-3,
        "tied": False,
    }
    assert adopt(*folder(**asked)).config == validate(GPT2Config, {**SMALL, **asked})


def test_the_first_published_folders_have_no_prefix_and_a_mask() -> None:
    config, tensors = folder()
    old = {name.removeprefix("transformer."): tensor for name, tensor in tensors.items()}
    old["h.0.attn.bias"] = torch.ones(1, 1, 32, 32)
    old["h.0.attn.masked_bias"] = torch.tensor(-1e4)
    del config["tie_word_embeddings"]
    assert torch.equal(logits(adopt(config, old)), logits(build()))


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"scale_attn_by_inverse_layer_idx": True}, "scale_attn_by_inverse_layer_idx is True; Legato has only False"),
        ({"add_cross_attention": True}, "add_cross_attention is True; Legato has only False"),
        ({"activation_function": "mish"}, "activation_function=mish is unknown; there is gelu"),
        ({"activation_function": ["gelu"]}, "'activation_function' should be a valid string, not ['gelu']"),
        ({"n_embd": 10**25}, "'n_embd' should be less than or equal to 16777216"),
        ({"n_head": 0}, "'n_head' should be greater than or equal to 1, not 0"),
        ({"layer_norm_epsilon": -1}, "'layer_norm_epsilon' should be greater than 0, not -1"),
        ({"n_head": 3}, "heads=3 does not divide width=16"),
        ({"n_layer": None}, "'n_layer' should be a valid integer, not None"),
        ({"resid_pdrop": 1.5}, "'resid_pdrop' should be less than 1, not 1.5"),
    ],
)
def test_entries_that_ask_for_what_we_lack_are_refused(entries: dict[str, Any], reason: str) -> None:
    config, tensors = folder()
    found = complaint({**config, **entries}, tensors)
    assert found.startswith("folder/config.json")
    assert reason in found


def test_a_missing_entry_is_named() -> None:
    config, tensors = folder()
    del config["n_embd"]
    assert complaint(config, tensors) == "folder/config.json lacks 'n_embd'"


def test_a_missing_tensor_is_named() -> None:
    config, tensors = folder()
    del tensors["transformer.h.1.mlp.c_fc.bias"]
    assert complaint(config, tensors) == "folder lacks the tensor 'transformer.h.1.mlp.c_fc.bias'"


def test_a_tensor_of_the_wrong_shape_is_named_with_both_shapes() -> None:
    config, tensors = folder()
    name = "transformer.h.1.mlp.c_fc.weight"
    tensors[name] = tensors[name].t().contiguous()
    assert complaint(config, tensors) == f"folder: '{name}' should have shape (16, 64), but has (64, 16)"


def test_a_tensor_that_gpt2_lacks_is_named() -> None:
    config, tensors = folder()
    tensors["score.weight"] = torch.zeros(2, 16)
    assert complaint(config, tensors) == "folder holds a tensor that this architecture lacks: 'score.weight'"


def test_a_readout_that_differs_is_its_own_whatever_the_entry_says() -> None:
    module = GPT2Model(GPT2Config(layers=1, width=8, heads=2, length=6), Sizes(11))
    entries, tensors = GPT2.save(module)
    tensors["lm_head.weight"] = tensors["transformer.wte.weight"] + 1
    loaded = GPT2.load(entries, tensors, "here")
    assert not loaded.config.tied
    assert torch.equal(loaded.output.weight[:11], tensors["lm_head.weight"])
