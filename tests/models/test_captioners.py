"""Encoder–decoders whose encoder reads pictures: seq2seq and transformer with `encoder=vit`."""

from __future__ import annotations

import math
from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions, search
from legato.errors import ConfigError, FolderError
from legato.folders.model_folder import load_model, refusal, save_model
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS
from legato.runs.config import check, describe_settings, settings_for
from legato.tasks.encoder_decoder import pair_loss

V, EOS, START = 11, 0, 1
VIT: dict[str, Any] = {"name": "vit", "layers": 1, "width": 12, "heads": 2, "feedforward": 20, "image": 8, "patch": 4}
GPT2: dict[str, Any] = {
    "norm": "pre",
    "positions": "learned",
    "activation": "gelu-tanh",
    "scale": False,
    "bias_readout": False,
}
SMALL: dict[str, dict[str, Any]] = {
    "bilinear": {"name": "seq2seq", "layers": 2, "width": 8, "dropout": 0.0},
    "mlp-fed": {
        "name": "seq2seq",
        "layers": 1,
        "width": 7,
        "cell": "gru",
        "attention": "mlp",
        "input_feeding": True,
        "context_gate": True,
        "dropout": 0.0,
    },
    "no-attention": {"name": "seq2seq", "layers": 1, "width": 8, "attention": "none", "dropout": 0.0},
    "transformer": {"name": "transformer", "layers": 2, "width": 8, "heads": 2, "length": 16, "dropout": 0.0},
    "same-width": {"name": "transformer", "layers": 1, "width": 12, "heads": 2, "length": 16, "dropout": 0.0},
    "gpt2": {"name": "transformer", "layers": 2, "width": 8, "heads": 2, "length": 16, "dropout": 0.0, **GPT2},
}
every_kind = pytest.mark.parametrize("kind", SMALL)
attentive_kinds = pytest.mark.parametrize("kind", [kind for kind in SMALL if kind != "no-attention"])


def build(kind: str, size: int = V, double: bool = True, **settings: Any) -> Any:
    """A small captioner with weights large enough to have opinions."""
    torch.manual_seed(0)
    given = {**SMALL[kind], "encoder": VIT, **settings}
    model = MODELS.get(given["name"])
    made = model(validate(model.Config, given), Sizes(size)).eval()
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return made.double() if double else made


def pictures(rows: int, seed: int = 0, size: int = 8) -> Inputs:
    drawn = torch.randn(rows, 3, size, size, generator=torch.Generator().manual_seed(seed))
    return Inputs(values=drawn.double())


def batch_of(source: Inputs, ids: Tensor, lengths: Tensor | None = None, targets: Tensor | None = None) -> Batch:
    return Batch(Inputs(ids, lengths=lengths), source=source, targets=targets)


def tokens(rows: int, length: int) -> Tensor:
    return torch.randint(V, (rows, length), generator=torch.Generator().manual_seed(length))


def some(source: Inputs, rows: slice) -> Inputs:
    assert source.values is not None
    return Inputs(values=source.values[rows])


@torch.no_grad()
def memory_of(model: SequenceModel, source: Inputs) -> Any:
    return model.encode(batch_of(source, torch.zeros(source.rows, 1, dtype=torch.long)))


@torch.no_grad()
def logits_of(model: SequenceModel, source: Inputs, ids: Tensor) -> Tensor:
    return model.readout(model(batch_of(source, ids)).hidden)  # (B, T, V)


def close(found: Any, expected: Any) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-8, atol=1e-9)


# --- reading and writing ---------------------------------------------------------------------------


@every_kind
@torch.no_grad()
def test_step_by_step_gives_what_the_whole_pass_gives(kind: str) -> None:
    model, source, ids = build(kind), pictures(3), tokens(3, 6)
    expected = logits_of(model, source, ids)
    state = model.start(3, 10, memory_of(model, source))
    close(model.prefill(Inputs(ids[:, :2]), state), expected[:, 1])
    for place in range(2, 6):
        close(model.step(ids[:, place], state), expected[:, place])


@every_kind
@torch.no_grad()
def test_a_picture_is_read_alone_as_beside_others(kind: str) -> None:
    model, source, ids = build(kind), pictures(3), tokens(3, 5)
    whole = logits_of(model, source, ids)
    for row in range(3):
        one = slice(row, row + 1)
        close(logits_of(model, some(source, one), ids[one]), whole[one])
    options = SearchOptions(search="beam", beams=3, max_tokens=5)
    together = search(model, [[START]] * 3, options, eos=EOS, memory=memory_of(model, source))
    for row in range(3):
        alone = search(model, [[START]], options, eos=EOS, memory=memory_of(model, some(source, slice(row, row + 1))))
        assert alone[0][0].tokens == together[row][0].tokens


@every_kind
@torch.no_grad()
def test_other_pictures_give_other_words(kind: str) -> None:
    model, ids = build(kind), tokens(2, 4)
    assert not torch.allclose(logits_of(model, pictures(2), ids), logits_of(model, pictures(2, seed=1), ids))


@every_kind
@torch.no_grad()
def test_a_wide_beam_finds_the_best_of_all_captions(kind: str) -> None:
    size, most = 4, 3
    model, source = build(kind, size=size), pictures(1)
    memory = memory_of(model, source)
    best: tuple[float, list[int]] = (-math.inf, [])
    for length in range(most + 1):
        for words in product(range(1, size), repeat=length):
            row = torch.tensor([[START, *words]])
            logs = logits_of(model, source, row).log_softmax(-1)[0]
            ended = [*words, EOS] if length < most else [*words]
            best = max(best, (float(sum(logs[place, word] for place, word in enumerate(ended))), list(words)))
    options = SearchOptions(search="beam", beams=size**most, max_tokens=most, length_penalty=0.0)
    found = search(model, [[START]], options, eos=EOS, memory=memory)[0][0]
    assert found.tokens == best[1]
    assert found.logprob == pytest.approx(best[0], abs=1e-5)


@attentive_kinds
def test_weights_over_the_picture_sum_to_one(kind: str) -> None:
    model, source = build(kind), pictures(2)
    rows, columns = model.source_encoder.grid(8, 8)
    weights = model.align(batch_of(source, tokens(2, 5)))
    assert weights.shape == (2, 5, model.source_encoder.before_grid + rows * columns) == (2, 5, 5)
    close(weights.sum(-1), torch.ones(2, 5, dtype=torch.double))
    assert weights.std(-1).min() > 0


def test_without_attention_only_the_first_state_knows_the_picture() -> None:
    model, source, ids = build("no-attention"), pictures(2), tokens(2, 4)
    memory = memory_of(model, source)
    state = model.start(2, 8, memory)
    expected = model.prefill(Inputs(ids), state)
    memory.states.fill_(math.nan)
    close(model.prefill(Inputs(ids), model.start(2, 8, memory)), expected)


def test_the_first_state_is_made_of_the_mean_over_the_picture() -> None:
    model, source = build("bilinear"), pictures(2)
    memory = memory_of(model, source)
    for depth, (hidden, cell) in enumerate(memory.initial):
        of_hidden, of_cell = model.bridge.layers[depth]
        close(hidden, torch.tanh(of_hidden(memory.states.mean(1))))
        close(cell, of_cell(memory.states.mean(1)))


@torch.no_grad()
def test_a_shut_gate_hides_the_context() -> None:
    model, ids = build("bilinear", context_gate=True), tokens(2, 4)
    memory = memory_of(model, pictures(2))

    def written() -> Tensor:
        return model.prefill(Inputs(ids), model.start(2, 8, memory))

    open_gate = written()
    model.gate.weight.zero_()
    model.gate.bias.fill_(-1e4)
    shut = written()
    assert not torch.allclose(open_gate, shut)
    memory.states = memory.states.flip(0)  # what is attended to; the first states are as they were
    close(written(), shut)


def test_uneven_looks_cost_what_the_paper_says() -> None:
    model, source, ids = build("bilinear", attention_penalty=0.5).train(), pictures(2), tokens(2, 5)
    lengths = torch.tensor([5, 3])
    batch = batch_of(source, ids, lengths, targets=ids.masked_fill(torch.arange(5) >= lengths[:, None], -100))
    weights = model.align(batch)
    sums = [(1 - weights[row, :length].sum(0)).square().sum() for row, length in enumerate(lengths.tolist())]
    close(model(batch).auxiliary["attention"] * 8, 0.5 * sum(sums))
    penalised = pair_loss(model, batch)
    close(penalised.total - penalised.reported, 0.5 * sum(sums))
    assert not model.eval()(batch).auxiliary


# --- a frozen encoder ------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bilinear", "transformer"])
def test_a_frozen_encoder_gets_no_gradient_and_stays_in_evaluation(kind: str) -> None:
    model = build(kind, encoder={**VIT, "dropout": 0.5})
    source, ids = pictures(2), tokens(2, 4)
    expected = memory_of(model, source).states
    assert not torch.allclose(memory_of(model.train(), source).states, expected)  # its dropout
    model.source_encoder.requires_grad_(False)
    close(memory_of(model, source).states, expected)
    model.train()
    assert model.training
    assert not any(module.training for module in model.source_encoder.modules())
    model(batch_of(source, ids)).hidden.sum().backward()
    assert all(parameter.grad is None for parameter in model.source_encoder.parameters())
    assert model.encoder.projection.weight.grad.abs().sum() > 0
    model.source_encoder.requires_grad_(True)
    assert all(module.training for module in model.train().source_encoder.modules())
    model(batch_of(source, ids)).hidden.sum().backward()
    assert all(parameter.grad is not None for parameter in model.source_encoder.parameters())


@pytest.mark.parametrize("name", ["seq2seq", "transformer"])
def test_a_model_of_text_has_no_encoder_in_its_place(name: str) -> None:
    model = MODELS.get(name)(validate(MODELS.get(name).Config, {"width": 8}), Sizes(V))
    assert model.source_encoder is None
    assert model.processors_of(model.config) == ("tokenizer",)


# --- folders ---------------------------------------------------------------------------------------


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="word"), ["a red dog saw a big cat and ran off\n"])


def save(folder: Path, model: SequenceModel, held: Tokenizer) -> Processors:
    processors = Processors(held, others={"image": ImageProcessor(size=(8, 8))})
    save_model(folder, model, processors, task="captioning", about={"beams": 3}, card="# a captioner\n")
    return processors


@every_kind
def test_a_folder_gives_back_the_model_that_was_saved(kind: str, tmp_path: Path) -> None:
    held = tokenizer()
    model = build(kind, size=held.size, double=False)
    processors = save(tmp_path, model, held)
    again = load_model(tmp_path)
    assert again.task == "captioning"
    assert again.processors.fingerprints() == processors.fingerprints()
    assert again.module.config == model.config
    source, ids = Inputs(values=pictures(2).values.float()), tokens(2, 4)
    torch.testing.assert_close(logits_of(again.module, source, ids), logits_of(model, source, ids))


def test_a_folder_without_its_image_processor_is_refused(tmp_path: Path) -> None:
    held = tokenizer()
    save(tmp_path, build("bilinear", size=held.size, double=False), held)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(FolderError, match=r"lacks preprocessor_config\.json"):
        load_model(tmp_path)


# --- Hugging Face's VisionEncoderDecoder -----------------------------------------------------------

THEIR_VIT = {
    "hidden_size": 12,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 20,
    "image_size": 8,
    "patch_size": 4,
}
THEIR_GPT2 = {"n_embd": 8, "n_layer": 2, "n_head": 2, "n_positions": 16, "bos_token_id": START, "eos_token_id": EOS}


def theirs(size: int, vit: dict[str, Any] | None = None, **gpt2: Any) -> Any:
    torch.manual_seed(0)
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**{**THEIR_VIT, **(vit or {})}),
        transformers.GPT2Config(**{**THEIR_GPT2, "vocab_size": size, **gpt2}),
    )
    model = transformers.VisionEncoderDecoderModel(config).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model


def same_logits(ours: SequenceModel, other: Any, size: int) -> None:
    source, ids = Inputs(values=pictures(3).values.float()), tokens(3, 6) % size
    with torch.no_grad():
        expected = other(pixel_values=source.values, decoder_input_ids=ids).logits
    torch.testing.assert_close(logits_of(ours, source, ids), expected, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"n_embd": 12},
        {"activation_function": "relu", "layer_norm_epsilon": 1e-3, "n_inner": 20},
        {"tie_word_embeddings": False, "vit": {"qkv_bias": False}},
    ],
)
def test_their_folder_gives_their_logits(options: dict[str, Any], tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size, **options)
    other.save_pretrained(tmp_path)
    held.save(tmp_path)
    ImageProcessor(size=(8, 8)).save(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.task == "captioning"
    assert set(loaded.processors.others) == {"image"}
    same_logits(loaded.module, other, held.size)
    assert refusal(loaded.module) is None


@pytest.mark.parametrize(
    "options", [{}, {"width": 12, "activation": "relu", "eps": 1e-3}, {"tied": False, "decoder_layers": 1}]
)
def test_our_folder_gives_their_model_our_logits(options: dict[str, Any], tmp_path: Path) -> None:
    held = tokenizer()
    ours = build("gpt2", size=held.size, double=False, **options)
    save(tmp_path, ours, held)
    other = transformers.AutoModelForImageTextToText.from_pretrained(tmp_path).eval()
    assert type(other).__name__ == "VisionEncoderDecoderModel"
    same_logits(ours, other, held.size)
    same_logits(load_model(tmp_path).module, other, held.size)


@pytest.mark.parametrize("beams", [1, 3])
def test_captions_are_those_of_their_generate(beams: int, tmp_path: Path) -> None:
    held = tokenizer()
    other = theirs(held.size)
    other.save_pretrained(tmp_path)
    held.save(tmp_path)
    ImageProcessor(size=(8, 8)).save(tmp_path)
    loaded = load_model(tmp_path)
    assert (loaded.start, loaded.ends) == (START, (EOS,))  # from the decoder's section
    ours = loaded.module
    source = Inputs(values=pictures(12).values.float())
    options = SearchOptions(
        search="beam" if beams > 1 else "greedy",
        beams=beams if beams > 1 else None,
        max_tokens=10,
        length_penalty=1.0,
    )
    found = search(ours, [[START]] * 12, options, eos=EOS, memory=memory_of(ours, source))
    made = other.generate(
        pixel_values=source.values,
        decoder_start_token_id=START,
        eos_token_id=EOS,
        pad_token_id=EOS,
        num_beams=beams,
        do_sample=False,
        max_new_tokens=10,
        length_penalty=1.0,
    )
    for ids, hypotheses in zip(made.tolist(), found, strict=True):
        written = ids[1 : ids.index(EOS) if EOS in ids else None]
        assert hypotheses[0].tokens == written
    assert len({tuple(hypotheses[0].tokens) for hypotheses in found}) > 3


@pytest.mark.parametrize(
    ("settings", "reason"),
    [
        ({"norm": "post"}, "has norm=pre, this model post"),
        ({"positions": "sinusoidal"}, "has positions=learned"),
        ({"bias_readout": True}, "has bias_readout=False"),
        ({"activation": "swiglu"}, "has no activation=swiglu"),
    ],
)
def test_other_shapes_are_saved_as_ours(settings: dict[str, Any], reason: str, tmp_path: Path) -> None:
    held = tokenizer()
    model = build("gpt2", size=held.size, double=False, **settings)
    assert reason in str(refusal(model))
    save(tmp_path, model, held)
    assert '"model_type": "legato-transformer"' in (tmp_path / "config.json").read_text()
    assert load_model(tmp_path).module.config == model.config


def test_their_folder_of_other_parts_is_refused(tmp_path: Path) -> None:
    config = transformers.VisionEncoderDecoderConfig.from_encoder_decoder_configs(
        transformers.ViTConfig(**THEIR_VIT),
        transformers.BertConfig(hidden_size=8, num_hidden_layers=1, num_attention_heads=1, vocab_size=9),
    )
    config.save_pretrained(tmp_path)
    with pytest.raises(FolderError, match=r"decoder\.model_type.*gpt2") as caught:
        load_model(tmp_path)
    assert "\n" not in str(caught.value)


# --- settings --------------------------------------------------------------------------------------


def refused(*words: str, task: str = "translation") -> str:
    with pytest.raises(ConfigError) as caught:
        check(settings_for(task, ["data.train=x.tsv", *words]))
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("model", ["seq2seq", "transformer"])
def test_a_model_that_reads_no_pictures_is_no_encoder(model: str) -> None:
    message = refused(f"model={model}", "model.encoder=gru")
    assert message.startswith("model.encoder: gru reads neither pictures nor sound; use vit")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["model.encoder=vitt"], "model.encoder: there is no model 'vitt'; did you mean 'vit'?"),
        (["model.encoder=vit", "model.encoder.layrs=2"], "unknown key 'model.encoder.layrs'; did you mean 'layers'?"),
        (["model.encoder=vit", "model.encoder.patch=5"], "model.encoder: patch=5 does not divide image=224"),
        (["model.encoder=vit", "model.encoder.layers=x"], "model.encoder.layers=x is not a whole number"),
        (["model.encoder.layers=2"], "model.encoder: it needs a name beside its settings"),
        (["model.encodr=vit"], "unknown key 'model.encodr'; did you mean 'encoder'?"),
        (["model.encoder=[vit]"], "model.encoder"),
        (["model.encoder=vit"], "reads with tokenizer and image; translation has only tokenizer"),
        (["model.attention=none", "model.context_gate=true"], "context_gate needs attention"),
    ],
)
def test_bad_settings_get_one_line(words: list[str], message: str) -> None:
    assert message in refused("model=seq2seq", *words)


def test_the_name_alone_stands_for_the_encoder(tmp_path: Path) -> None:
    def encoder(what: str, *words: str) -> Any:
        return settings_for(what, words)["model"]["encoder"]

    assert encoder("translation", "model.encoder=vit", "model.encoder.layers=2") == {"name": "vit", "layers": "2"}
    recipe = tmp_path / "recipe.yaml"
    recipe.write_text("task: translation\nmodel: {name: seq2seq, encoder: vit}\n")
    assert encoder(str(recipe), "model.encoder.layers=2") == {"name": "vit", "layers": "2"}
    off = settings_for(str(recipe), ["model.encoder=none"])["model"]
    assert validate(MODELS.get("seq2seq").Config, off).encoder is None


def test_the_list_of_settings_has_those_of_the_encoder() -> None:
    def keys(*words: str) -> dict[str, str]:
        rows = describe_settings(settings_for("translation", ["model=seq2seq", *words]))
        return {row.key: row.default for row in rows if row.key.startswith("model.encoder")}

    assert keys() == {"model.encoder": "None"}
    listed = keys("model.encoder=vit", "model.encoder.layers=3")
    assert listed["model.encoder.name"] == "vit"
    assert listed["model.encoder.layers"] == "3"
    assert listed["model.encoder.patch"] == "16"


def test_settings_of_an_encoder_are_kept_in_full() -> None:
    config = validate(MODELS.get("transformer").Config, {"encoder": VIT})
    held = config.model_dump(mode="json")
    assert held["encoder"]["patch"] == 4
    assert validate(MODELS.get("transformer").Config, held) == config


@pytest.mark.parametrize("word", ["layers=9", "name=none", "dropout=0.1"])
def test_a_trained_captioner_keeps_its_encoder_but_for_dropouts(word: str, tmp_path: Path) -> None:
    held = tokenizer()
    save(tmp_path, build("bilinear", size=held.size, double=False), held)
    changed = f"model.encoder.{word} is not what from="
    message = refused(f"from={tmp_path}", f"model.encoder.{word}", task="lm")  # which reads no pictures at all
    assert (changed.lower() in message.lower()) == (not word.startswith("dropout"))
