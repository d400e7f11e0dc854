"""LLaMA and its relatives: their settings, and what of Hugging Face's folders is taken and refused."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.config import validate
from legato.errors import ConfigError
from legato.models.base import Sizes, count_parameters
from legato.models.llama import LlamaConfig, LlamaModel, Scaling
from legato.nn.positions import Rotary
from tiny_decoders import V, adopt, complaint, logits, written

SMALL: dict[str, Any] = {"layers": 3, "width": 16, "heads": 4, "length": 64}
FAMILIES = ["llama", "mistral", "qwen2", "qwen3"]


def build(**asked: Any) -> LlamaModel:
    torch.manual_seed(0)
    return LlamaModel(validate(LlamaConfig, {**SMALL, **asked}), Sizes(V)).eval()


def folder(**asked: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    return written(build(**asked))


# --- the settings -----------------------------------------------------------------------------------


def test_it_starts_as_llama_with_nothing_tied_and_no_biases() -> None:
    names = {name.rpartition(".")[2] for name, _ in build().named_parameters()}
    assert names == {"weight"}
    assert build().published == "llama"


def test_the_feed_forward_layers_have_8_thirds_of_the_width() -> None:
    assert [LlamaConfig(width=width).inner for width in (256, 768, 4096)] == [688, 2048, 10928]


@pytest.mark.parametrize("family", FAMILIES)
def test_the_family_decides_the_biases_and_norms_of_attention(family: str) -> None:
    attention = build(family=family).stack.layers[0].attention  # type: ignore[union-attr]
    assert (attention.qkv.bias is not None) == (family == "qwen2")  # type: ignore[union-attr]
    assert (attention.query_norm is not None) == (family == "qwen3")  # type: ignore[union-attr]
    assert attention.output.bias is None  # type: ignore[union-attr]


def test_fewer_heads_of_keys_and_values_have_fewer_parameters() -> None:
    # Keys and values of three heads fewer, of width 4, in three layers.
    assert count_parameters(build()) - count_parameters(build(kv_heads=1)) == 3 * 2 * 3 * 4 * 16


def test_the_window_may_be_of_some_layers_only() -> None:
    assert build(family="qwen2", window=4, window_layers=[0, 2]).stack.windows == [4, None, 4]
    assert build(family="mistral", window=4).stack.windows == [4, 4, 4]


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ({"heads": 3}, "heads=3 does not divide width=16"),
        ({"heads": 3, "head_width": 4}, "heads=3 does not divide width=16"),
        ({"kv_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ({"head_width": 5}, "rotary positions need heads of an even width, not 5"),
        ({"window": 8}, "family=llama has no window; family=mistral has"),
        ({"family": "qwen2", "window_layers": [0]}, "window_layers needs a window, and family=qwen2 or qwen3"),
        ({"family": "mistral", "window": 8, "window_layers": [0]}, "window_layers needs a window, and family="),
        ({"family": "qwen3", "window": 8, "window_layers": [1, 3]}, "but there are layers 0 to 2"),
        ({"family": "mistral", "bias": True}, "family=mistral has no choice of bias; llama and qwen3 have"),
        ({"family": "qwen3", "bias_feedforward": True}, "family=qwen3 has no bias_feedforward; llama has"),
        ({"family": "gemma"}, "family=gemma should be 'llama', 'mistral', 'qwen2' or 'qwen3'"),
        ({"scaling": {"type": "llama3", "low": 4}}, "scaling: low=4 should be less than high=4"),
        ({"scaling": {"factr": 4}}, "unknown key 'scaling.factr'; did you mean 'factor'"),
    ],
)
def test_settings_that_do_not_go_together_are_refused(asked: dict[str, Any], reason: str) -> None:
    with pytest.raises(ConfigError) as caught:
        validate(LlamaConfig, {**SMALL, **asked})
    assert reason in str(caught.value)


# --- slowed positions -------------------------------------------------------------------------------


def test_linear_scaling_puts_every_factor_th_position_where_one_was() -> None:
    slowed = Scaling(type="linear", factor=4).slowed
    slow, plain = Rotary(40, 8, slowed=slowed)(slice(0, 40, 4)), Rotary(10, 8)(slice(0, 10))
    torch.testing.assert_close(slow.cos, plain.cos)


def test_llama_3_slows_what_turns_seldom_and_keeps_what_turns_often() -> None:
    rates = 2 * torch.pi / torch.tensor([1.0, 25.0, 40.0, 100.0, 1000.0])  # by the tokens of one turn
    found = Scaling(type="llama3", factor=8, low=1, high=4, length=100).slowed(rates) / rates
    blend = 1.5 / 3  # 2.5 turns lie half way between 1 and 4
    torch.testing.assert_close(found, torch.tensor([1, 1, blend + (1 - blend) / 8, 1 / 8, 1 / 8]))


# --- their folders ----------------------------------------------------------------------------------


@pytest.mark.parametrize("family", FAMILIES)
def test_a_folder_holds_the_vocabulary_without_what_pads_it(family: str) -> None:
    config, tensors = folder(family=family)
    assert config["vocab_size"] == V
    assert tensors["model.embed_tokens.weight"].shape == tensors["lm_head.weight"].shape == (V, 16)


def test_a_tied_readout_is_in_no_folder_and_not_minded_when_it_is() -> None:
    config, tensors = folder(tied=True)
    assert "lm_head.weight" not in tensors
    again = adopt(config, {**tensors, "lm_head.weight": tensors["model.embed_tokens.weight"].clone()})
    assert torch.equal(logits(again), logits(adopt(config, tensors)))
    assert again.output.weight is again.embedding.weight


def test_a_readout_that_differs_from_the_embedding_is_not_tied_to_it() -> None:
    config, tensors = folder(tied=True)
    again = adopt(config, {**tensors, "lm_head.weight": torch.ones(V, 16)})
    assert not again.config.tied
    assert again.output.weight[:V].eq(1).all()


def test_the_settings_come_back() -> None:
    asked: dict[str, Any] = {
        "family": "qwen3",
        "kv_heads": 2,
        "head_width": 6,
        "feedforward": 20,
        "theta": 500.0,
        "scaling": {"type": "llama3", "factor": 2, "low": 2, "high": 3, "length": 32},
        "window": 5,
        "window_layers": [1],
        "bias": True,
        "dropout": 0.2,
        "dropout_attention": 0.1,
        "eps": 1e-3,
        "tied": True,
    }
    assert adopt(*folder(**asked)).config == validate(LlamaConfig, {**SMALL, **asked})


OLD = {
    "default": ({}, {}),
    "theta": ({"rope_theta": 300.0}, {"theta": 300.0}),
    "linear": (
        {"rope_theta": 300.0, "rope_scaling": {"type": "linear", "factor": 2.0}},
        {"theta": 300.0, "scaling": {"type": "linear", "factor": 2}},
    ),
    "llama3": (
        {
            "rope_scaling": {
                "rope_type": "llama3",
                "factor": 8.0,
                "low_freq_factor": 1.0,
                "high_freq_factor": 4.0,
                "original_max_position_embeddings": 16,
            }
        },
        {"scaling": {"type": "llama3", "factor": 8, "length": 16}},
    ),
}


@pytest.mark.parametrize("case", OLD)
def test_folders_from_before_transformers_5_name_their_positions_otherwise(case: str) -> None:
    entries, asked = OLD[case]
    config, tensors = folder(**asked)
    old = {name: value for name, value in config.items() if not name.startswith("rope_")}
    assert torch.equal(logits(adopt({**old, **entries}, tensors)), logits(build(**asked)))


def test_the_angles_that_old_folders_hold_are_left_there() -> None:
    config, tensors = folder()
    more = {f"model.layers.{layer}.self_attn.rotary_emb.inv_freq": torch.ones(2) for layer in range(3)}
    assert torch.equal(logits(adopt(config, {**tensors, **more})), logits(build()))


def test_a_body_without_its_head_is_read_where_the_head_is_tied() -> None:
    config, tensors = folder(tied=True)
    bare = {name.removeprefix("model."): tensor for name, tensor in tensors.items()}
    assert torch.equal(logits(adopt(config, bare)), logits(build(tied=True)))


def test_a_window_that_is_not_used_is_none() -> None:
    config, tensors = folder(family="qwen2")
    config |= {"use_sliding_window": False, "sliding_window": 4, "max_window_layers": 1}
    del config["layer_types"]
    assert adopt(config, tensors).stack.windows == [None] * 3


def test_the_first_layers_of_qwen_may_see_everything() -> None:
    config, tensors = folder(family="qwen2")
    config |= {"use_sliding_window": True, "sliding_window": 4, "max_window_layers": 1}
    del config["layer_types"]
    assert adopt(config, tensors).stack.windows == [None, 4, 4]


# --- what is refused --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["dynamic", "yarn", "longrope"])
@pytest.mark.parametrize("entry", ["rope_scaling", "rope_parameters"])
def test_positions_that_we_lack_are_refused_by_name(kind: str, entry: str) -> None:
    config, tensors = folder()
    config = {name: value for name, value in config.items() if not name.startswith("rope_")}
    reason = f"folder/config.json: rotary positions of type '{kind}', which Legato does not have"
    assert reason in complaint({**config, entry: {"rope_type": kind, "factor": 2.0}}, tensors)


@pytest.mark.parametrize(
    ("family", "entries", "reason"),
    [
        ("llama", {"hidden_act": "gelu"}, "hidden_act=gelu is unknown; there is silu, swish"),
        ("llama", {"partial_rotary_factor": 0.5}, "partial_rotary_factor is 0.5; Legato has only 1.0"),
        ("llama", {"rope_scaling": {"rope_type": "linear"}}, "scaling.factor=None is not a number"),
        ("llama", {"rope_scaling": "linear"}, "'rope_scaling' should hold a JSON object, not 'linear'"),
        ("llama", {"num_key_value_heads": 3}, "kv_heads=3 does not divide heads=4"),
        ("llama", {"num_hidden_layers": 0}, "'num_hidden_layers' should be greater than or equal to 1, not 0"),
        ("mistral", {"sliding_window": 0}, "'sliding_window' should be greater than or equal to 1, not 0"),
        ("qwen2", {"layer_types": ["full_attention"]}, "for each of 3 layers"),
        ("qwen2", {"layer_types": ["full_attention"] * 2 + ["linear_attention"]}, "layer_types should name"),
        ("qwen2", {"layer_types": 3}, "'layer_types' should be a valid list, not 3"),
        ("llama", {"rope_theta": "x"}, "'rope_theta' should be a valid number, not 'x'"),
        ("llama", {"rope_parameters": {"rope_theta": -1}}, "'rope_parameters.rope_theta' should be greater than 0"),
        ("llama", {"rope_scaling": {"type": []}}, "'rope_scaling.type' should be a valid string, not []"),
        ("qwen3", {"layer_types": ["sliding_attention"] * 3}, "names sliding_attention, but there is no window"),
    ],
)
def test_entries_that_ask_for_what_we_lack_are_refused(family: str, entries: dict[str, Any], reason: str) -> None:
    config, tensors = folder(family=family)
    found = complaint({**config, **entries}, tensors)
    assert found.startswith("folder/config.json")
    assert reason in found


def test_a_missing_readout_is_named() -> None:
    config, tensors = folder()
    del tensors["lm_head.weight"]
    assert complaint(config, tensors) == "folder lacks the tensor 'lm_head.weight'"


def test_a_part_of_the_wrong_shape_is_named_with_both_shapes() -> None:
    config, tensors = folder(kv_heads=2)
    name = "model.layers.1.self_attn.k_proj.weight"
    tensors[name] = torch.zeros(16, 16)
    assert complaint(config, tensors) == f"folder: '{name}' should have shape (8, 16), but has (16, 16)"


def test_experts_are_named_as_what_we_lack() -> None:
    config, tensors = folder()
    tensors["model.layers.0.mlp.experts.0.gate_proj.weight"] = torch.zeros(2, 2)
    assert "holds a tensor that this architecture lacks: 'model.layers.0.mlp.experts" in complaint(config, tensors)
