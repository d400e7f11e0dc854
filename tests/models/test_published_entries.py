"""Schemas of published config.json files: what the library writes and the hub has fits, odd as some of it is."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, ClassVar

import pytest

from legato.errors import FolderError
from legato.models.published.entries import ACTIVATIONS, Entries, Entry, Size
from legato.models.published.family import Published, refuse_unless
from legato.registry import PUBLISHED
from legato.schema import parse_json

CLASSES = {
    "bert": "BertConfig",
    "roberta": "RobertaConfig",
    "xlm-roberta": "XLMRobertaConfig",
    "camembert": "CamembertConfig",
    "distilbert": "DistilBertConfig",
    "gpt2": "GPT2Config",
    "llama": "LlamaConfig",
    "mistral": "MistralConfig",
    "qwen2": "Qwen2Config",
    "qwen3": "Qwen3Config",
    "marian": "MarianConfig",
}
# As they are on the hub: what an entry of another kind would be elsewhere, and what nobody here reads.
ODD: dict[str, dict[str, Any]] = {
    "bert": {"classifier_dropout": None, "id2label": {"0": 0, "1": "b"}, "max_length": 10**30, "torch_dtype": None},
    "gpt2": {"n_inner": None, "n_ctx": 1024, "task_specific_params": {"text-generation": {"do_sample": True}}},
    "llama": {
        "pad_token_id": -1,
        "eos_token_id": [128001, 128009],
        "head_dim": None,
        "attention_dropout": 0,
        "rope_scaling": {
            "factor": 8,
            "low_freq_factor": 1.0,
            "high_freq_factor": 4,
            "original_max_position_embeddings": 8192,
            "rope_type": "llama3",
        },
        "time_step_limit": [0.0, float("inf")],
    },
    "mistral": {"sliding_window": None, "rope_scaling": None, "architectures": None},
    "marian": {"scale_embedding": 1, "num_beams": 6, "bad_words_ids": [[58100]], "decoder_vocab_size": None},
    "qwen2": {"use_sliding_window": False, "sliding_window": 131072, "max_window_layers": 28, "layer_types": None},
}


@pytest.mark.parametrize("family", CLASSES)
def test_what_the_library_writes_of_itself_fits(family: str, tmp_path: Path) -> None:
    transformers = pytest.importorskip("transformers")
    getattr(transformers, CLASSES[family])().save_pretrained(tmp_path)
    written = json.loads((tmp_path / "config.json").read_text())
    found = parse_json(json.dumps({**written, **ODD.get(family, {})}), schema_of(family), "f.json", loose=True)
    assert found["model_type"] == family


@pytest.mark.parametrize("family", CLASSES)
@pytest.mark.parametrize("value", [[], {}, "x", -1, 10**25, float("nan"), True])
def test_a_size_that_is_none_is_named(family: str, value: Any) -> None:
    schema = schema_of(family)
    sizes = sorted(schema.__required_keys__)
    assert "vocab_size" in sizes
    for name in sizes:
        text = json.dumps({**dict.fromkeys(sizes, 8), name: value})
        with pytest.raises(FolderError, match=rf"^f\.json: '{name}'( should be |: 1e\+25 is too large a number)"):
            parse_json(text, schema, "f.json", loose=True)


def schema_of(family: str) -> Any:
    schema = PUBLISHED.get(family).Entries
    assert set(Entries.__annotations__) <= set(schema.__annotations__)
    return schema


NESTED = {
    "text_config.hidden_size": Entry(Size, "text.width", 512),
    "vision_config.hidden_size": Entry(Size, "vision.width"),
    "vision_config.hidden_act": Entry(str, "vision.activation", "gelu", ACTIVATIONS),
    "projection_dim": Entry(Size, "projection", 512),
}


class TwoTowers(Published):
    """A family whose config.json has a section for each of two parts."""

    entries: ClassVar[Mapping[str, Entry]] = NESTED
    fixed: ClassVar[Mapping[str, Any]] = {"vision_config.num_channels": 3}
    words = False


@pytest.mark.parametrize("text", [{}, {"text_config": None}, {"text_config": {"anything": [1]}}])
def test_entries_of_a_section_are_read_by_dotted_names(text: dict[str, Any]) -> None:
    file = json.dumps({"vision_config": {"hidden_size": 8, "hidden_act": "gelu_new"}, "projection_dim": 4, **text})
    config = parse_json(file, TwoTowers.Entries, "f.json")
    towers = {"text": {"width": 512}, "vision": {"width": 8, "activation": "gelu-tanh"}, "projection": 4}
    assert TwoTowers.settings(config, {}, "f") == towers


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({}, "f.json lacks 'vision_config'"),
        ({"vision_config": {}}, "f.json lacks 'vision_config.hidden_size'"),
        ({"vision_config": {"hidden_size": "8"}}, "f.json: 'vision_config.hidden_size' should be a valid integer"),
        ({"vision_config": None}, "f.json: 'vision_config' should"),
        ({"vision_config": {"hidden_size": 8}, "text_config": 3}, "f.json: 'text_config' should"),
    ],
)
def test_a_mistake_in_a_section_is_named_with_it(config: dict[str, Any], message: str) -> None:
    with pytest.raises(FolderError) as problem:
        parse_json(json.dumps(config), TwoTowers.Entries, "f.json")
    assert str(problem.value).startswith(message)


def test_what_a_section_fixes_is_refused_otherwise() -> None:
    with pytest.raises(FolderError, match=r"vision_config\.num_channels is 1; Legato has only 3"):
        refuse_unless({"vision_config": {"num_channels": 1}}, TwoTowers.fixed, "f")
