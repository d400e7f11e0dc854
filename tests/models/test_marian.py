"""Marian: Hugging Face's weights in our model, and ours in theirs."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch import Tensor

from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions, search
from legato.errors import FolderError
from legato.models.base import Sizes
from legato.models.published.marian import Marian
from legato.models.transformer import TransformerConfig, TransformerModel

transformers = pytest.importorskip("transformers")

V, PAD, EOS = 23, 1, 0
TINY = {
    "vocab_size": V,
    "d_model": 16,
    "encoder_layers": 2,
    "decoder_layers": 1,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "encoder_ffn_dim": 24,
    "decoder_ffn_dim": 24,
    "max_position_embeddings": 64,
    "scale_embedding": True,
}
IDS = {"pad_token_id": PAD, "eos_token_id": EOS, "decoder_start_token_id": PAD, "forced_eos_token_id": None}
LENGTHS = torch.tensor([7, 3, 5])


def theirs(**asked: Any) -> Any:
    """Hugging Face's model on random weights that have opinions."""
    torch.manual_seed(0)
    model = transformers.MarianMTModel(transformers.MarianConfig(**{**TINY, **IDS, **asked})).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
        model.final_logits_bias.normal_()
    return model


def published(model: Any) -> tuple[dict[str, Any], dict[str, Tensor]]:
    """What a folder of theirs holds: the config, and every tensor, also those that are copies."""
    return model.config.to_dict(), {name: tensor.clone() for name, tensor in model.state_dict().items()}


def adopted(other: Any) -> TransformerModel:
    return Marian.load(*published(other), "folder").eval()


def ours(**asked: Any) -> TransformerModel:
    torch.manual_seed(1)
    small: dict[str, Any] = {"layers": 2, "width": 16, "heads": 4, "length": 64}
    model = TransformerModel(TransformerConfig(**{**small, **asked}), Sizes(V)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def tokens(rows: int, length: int, size: int = V) -> Tensor:
    return torch.randint(2, size, (rows, length), generator=torch.Generator().manual_seed(length))


def same_logits(mine: TransformerModel, other: Any, source_size: int = V) -> None:
    source, ids = tokens(3, 7, source_size), tokens(3, 6)
    attention = (torch.arange(7) < LENGTHS[:, None]).long()
    with torch.no_grad():
        found = mine.readout(mine(Batch(Inputs(ids), source=Inputs(source, lengths=LENGTHS))).hidden)
        expected = other(source, attention_mask=attention, decoder_input_ids=ids).logits
    torch.testing.assert_close(found, expected, rtol=1e-5, atol=1e-5)


# --- theirs in ours --------------------------------------------------------------------------------


@pytest.mark.parametrize("activation", ["relu", "gelu", "swish", "silu"])
def test_their_weights_give_their_logits(activation: str) -> None:
    other = theirs(activation_function=activation)
    same_logits(adopted(other), other)


def test_embeddings_are_scaled_only_where_they_say_so() -> None:
    other = theirs(scale_embedding=False)
    mine = adopted(other)
    assert not mine.config.scale
    same_logits(mine, other)


@pytest.mark.parametrize("tied", [True, False])
def test_source_and_target_may_have_embeddings_of_their_own(tied: bool) -> None:
    other = theirs(
        share_encoder_decoder_embeddings=False, vocab_size=31, decoder_vocab_size=V, tie_word_embeddings=tied
    )
    mine = adopted(other)
    assert mine.sizes == Sizes(V, source=31)
    same_logits(mine, other, source_size=31)


@pytest.mark.parametrize(
    "kept",
    [
        "model.shared.weight",
        "lm_head.weight",
        "model.encoder.embed_tokens.weight",
        "model.decoder.embed_tokens.weight",
    ],
)
def test_one_copy_of_the_embedding_is_enough(kept: str) -> None:
    other = theirs()
    config, tensors = published(other)
    copies = {n for n in tensors if n.endswith(("embed_tokens.weight", "shared.weight", "lm_head.weight"))}
    rest = {n: t for n, t in tensors.items() if n not in copies - {kept}}
    same_logits(Marian.load(config, rest, "folder").eval(), other)


def test_a_bias_that_is_left_out_is_zero() -> None:
    other = theirs()
    other.final_logits_bias.zero_()
    config, tensors = published(other)
    del tensors["final_logits_bias"]
    same_logits(Marian.load(config, tensors, "folder").eval(), other)


def test_half_precision_files_are_read() -> None:
    config, tensors = published(theirs())
    mine = Marian.load(config, {name: tensor.half() for name, tensor in tensors.items()}, "folder")
    assert mine.embedding.weight.dtype == torch.float32


# --- ours in theirs --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "settings", [{}, {"activation": "gelu", "decoder_layers": 1}, {"activation": "silu", "scale": False}]
)
def test_our_weights_give_our_logits_there(settings: dict[str, Any]) -> None:
    mine = ours(**settings)
    assert Marian.refusal(mine) is None
    entries, tensors = Marian.save(mine)
    other = transformers.MarianMTModel(transformers.MarianConfig(**entries, **IDS)).eval()
    tied = {"lm_head.weight", "model.encoder.embed_tokens.weight", "model.decoder.embed_tokens.weight"}
    made = {"model.encoder.embed_positions.weight", "model.decoder.embed_positions.weight"}
    loaded = other.load_state_dict(tensors, strict=False)
    assert loaded.unexpected_keys == []
    assert set(loaded.missing_keys) <= tied | made
    other.tie_weights()
    same_logits(mine, other)


def test_a_folder_of_ours_loads_there(tmp_path: Any) -> None:
    from safetensors.torch import save_file

    mine = ours()
    entries, tensors = Marian.save(mine)
    assert entries["architectures"] == [Marian.architecture]
    transformers.MarianConfig(**entries, **IDS).save_pretrained(tmp_path)
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    other, report = transformers.MarianMTModel.from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    same_logits(mine, other.eval())


def test_what_is_saved_loads_again_bit_by_bit() -> None:
    mine = ours(activation="silu", decoder_layers=1, dropout_attention=0.25)
    again = Marian.load(*Marian.save(mine), "folder")
    assert again.config == mine.config.model_copy(update={"feedforward": 64})
    for (name, left), (other, right) in zip(mine.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(left, right)


def test_their_names_come_out_as_they_went_in() -> None:
    config, tensors = published(theirs())
    entries, saved = Marian.save(Marian.load(config, tensors, "folder"))
    same = set(entries) - {"activation_function", "architectures"}  # the one has two names, the other is the folder's
    assert {name: config[name] for name in same} == {name: entries[name] for name in same}
    assert all(torch.equal(saved[name], tensors[name]) for name in saved)


REFUSALS = {
    "norm": ({"norm": "pre"}, "norms come after"),
    "positions": ({"positions": "rotary"}, "sinusoidal, this model's rotary"),
    "window": ({"window": 4}, "a window of 4"),
    "activation": ({"activation": "swiglu"}, "no swiglu activation"),
    "tied": ({"tied": False}, "a readout of its own"),
    "shared": ({"shared": False}, "one embedding for source and target"),
}


@pytest.mark.parametrize("which", REFUSALS)
def test_what_is_not_marian_is_refused_with_the_reason(which: str) -> None:
    settings, reason = REFUSALS[which]
    said = Marian.refusal(ours(**settings))
    assert said is not None
    assert reason in said
    assert "\n" not in said


def test_a_source_numbered_apart_is_refused() -> None:
    said = Marian.refusal(TransformerModel(TransformerConfig(width=16), Sizes(V, source=V)))
    assert said is not None
    assert "this model has two" in said


# --- damaged folders -------------------------------------------------------------------------------


def complaint(config: dict[str, Any], tensors: dict[str, Tensor]) -> str:
    with pytest.raises(FolderError) as caught:
        Marian.load(config, tensors, "here")
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_a_missing_tensor_is_named() -> None:
    config, tensors = published(theirs())
    name = "model.decoder.layers.0.encoder_attn.k_proj.bias"
    assert complaint(config, {n: t for n, t in tensors.items() if n != name}) == f"here lacks the tensor '{name}'"
    copies = ("shared.weight", "embed_tokens.weight", "lm_head.weight")
    rest = {n: t for n, t in tensors.items() if not n.endswith(copies)}
    assert complaint(config, rest) == "here lacks the tensor 'model.shared.weight'"


def test_a_tensor_of_another_shape_is_named_with_both() -> None:
    config, tensors = published(theirs())
    tensors["model.encoder.layers.1.self_attn.v_proj.weight"] = torch.zeros(3, 16)
    said = complaint(config, tensors)
    assert (
        said == "here: 'model.encoder.layers.1.self_attn.v_proj.weight' should have shape (16, 16), but has (3, 16)"
    )


def test_a_tensor_too_many_is_named() -> None:
    config, tensors = published(theirs())
    assert "'model.encoder.layers.7.fc1.bias'" in complaint(
        config, {**tensors, "model.encoder.layers.7.fc1.bias": torch.zeros(24)}
    )


@pytest.mark.parametrize(
    ("entries", "said"),
    [
        ({"activation_function": "tanh"}, "activation_function=tanh is unknown"),
        ({"d_model": None}, "'d_model' should be a valid integer, not None"),
        (
            {"encoder_attention_heads": 8},
            "encoder_attention_heads and decoder_attention_heads to be equal, not 8 and 4",
        ),
        ({"encoder_attention_heads": 3, "decoder_attention_heads": 3}, "heads=3 does not divide width=16"),
        ({"normalize_before": True}, "normalize_before is set"),
        ({"dropout": 2}, "dropout"),
    ],
)
def test_a_config_that_cannot_be_is_refused(entries: dict[str, Any], said: str) -> None:
    config, tensors = published(theirs())
    answer = complaint({**config, **entries}, tensors)
    assert said in answer
    assert answer.startswith("here/config.json")


def test_a_size_that_is_left_out_is_named() -> None:
    config, tensors = published(theirs())
    del config["encoder_ffn_dim"]
    assert complaint(config, tensors) == "here/config.json lacks 'encoder_ffn_dim'"


# --- the same tokens -------------------------------------------------------------------------------


def test_greedy_search_writes_what_generate_writes() -> None:
    other = theirs()
    mine = adopted(other)
    source = tokens(3, 7)
    attention = (torch.arange(7) < LENGTHS[:, None]).long()
    asked = {"max_new_tokens": 40, "do_sample": False, "num_beams": 1}
    expected = other.generate(source, attention_mask=attention, **asked)[:, 1:]
    memory = mine.encode(Batch(Inputs(source), source=Inputs(source, lengths=LENGTHS)))
    found = search(mine, [[PAD]] * 3, SearchOptions(max_tokens=40), eos=EOS, memory=memory)
    for (best, *_), row in zip(found, expected.tolist(), strict=True):
        assert best.tokens == (row[: row.index(EOS)] if EOS in row else row)
    assert max(len(best.tokens) for best, *_ in found) == 40


@pytest.mark.parametrize("length", [6, 12])
def test_a_beam_of_four_writes_what_generate_writes(length: int) -> None:
    other = theirs()
    mine = adopted(other)
    source = tokens(3, 7)
    attention = (torch.arange(7) < LENGTHS[:, None]).long()
    # Without an end every hypothesis has one length, and nothing depends on how ends are scored.
    asked = {"max_new_tokens": length, "min_new_tokens": length, "do_sample": False, "num_beams": 4}
    expected = other.generate(source, attention_mask=attention, **asked)[:, 1:]
    memory = mine.encode(Batch(Inputs(source), source=Inputs(source, lengths=LENGTHS)))
    options = SearchOptions(search="beam", beams=4, max_tokens=length, min_tokens=length)
    found = search(mine, [[PAD]] * 3, options, eos=EOS, memory=memory)
    assert [best.tokens for best, *_ in found] == expected.tolist()
