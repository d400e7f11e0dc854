"""Parakeet: Hugging Face's folders both ways, what they write, what is refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load_file, save_file
from torch import Tensor

import legato
from legato.data.audio.feature_extractor import PARAKEET, FeatureExtractor
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer
from legato.data.text.vocabularies import TokenizerConfig
from legato.errors import FolderError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.conformer import ConformerConfig, ConformerModel
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.published.parakeet import ParakeetCTC, ParakeetEncoder
from legato.schema import parse_json
from legato.tasks.speech.recognizer import Recognizer
from tiny_parakeet import LETTERS, parakeet_folder, scramble
from tiny_sounds import RATE, samples_of, write_sounds

LENGTHS = torch.tensor([61, 24, 40])
TOKENIZER = Tokenizer.train(TokenizerConfig(name="char"), ["low high"])


def frames(bins: int = 16) -> Tensor:
    made = torch.randn(3, 61, bins, generator=torch.Generator().manual_seed(0))
    return made * inside(LENGTHS, 61)[..., None]


def inside(lengths: Tensor, length: int) -> Tensor:
    return torch.arange(length) < lengths[:, None]


def same_logits(ours: Any, theirs: Any) -> None:
    """Of the states of each row, with padding behind it."""
    found = ours(Batch(Inputs(values=frames(), lengths=LENGTHS)))
    expected = theirs(input_features=frames(), attention_mask=inside(LENGTHS, 61).long())
    states = ours.state_lengths(Inputs(values=frames(), lengths=LENGTHS))
    valid = inside(states, found.hidden.shape[1])
    left = found.hidden if found.logits is None else found.logits
    right = expected.last_hidden_state if found.logits is None else expected.logits
    torch.testing.assert_close(left[valid], right[valid], rtol=1e-4, atol=1e-4)


def conformer(**changes: Any) -> ConformerModel:
    settings = {"layers": 2, "width": 16, "heads": 2, "features": 16, "channels": 6, "kernel": 5, "subsampling": 8}
    return ConformerModel(ConformerConfig(**{**settings, **changes}), Sizes(TOKENIZER.size))


def with_ctc(body: ConformerModel, **changes: Any) -> Any:
    return scramble(ModelWithHead(body, HeadSpec(kind="ctc", outputs=TOKENIZER.size + 1, **changes)))


def saved(folder: Path, module: Any) -> dict[str, Any]:
    """What config.json says of it."""
    processors = Processors(TOKENIZER, others={"audio": FeatureExtractor.of_kind(PARAKEET, bins=16)})
    save_model(folder, module, processors, task="speech", about={}, card="")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def changed(folder: Path, **entries: Any) -> None:
    file = folder / "config.json"
    file.write_text(json.dumps({**json.loads(file.read_text()), **entries}))


# --- theirs, read here -------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "entries",
    [
        {},
        {"subsampling_factor": 4, "scale_input": False},
        {"subsampling_factor": 2, "attention_bias": False, "convolution_bias": False},
    ],
)
@torch.no_grad()
def test_their_folder_gives_their_logits(entries: dict[str, Any], tmp_path: Path) -> None:
    theirs = parakeet_folder(tmp_path, **entries)
    loaded = load_model(tmp_path)
    assert loaded.task == "speech"
    assert loaded.module.shape.kind == "ctc"
    same_logits(loaded.module, theirs)


@torch.no_grad()
def test_their_encoder_gives_their_states(tmp_path: Path) -> None:
    theirs = parakeet_folder(tmp_path).encoder
    theirs.save_pretrained(tmp_path)
    assert json.loads((tmp_path / "config.json").read_text())["model_type"] == "parakeet_encoder"
    same_logits(load_model(tmp_path).module, theirs)


@torch.no_grad()
def test_their_folder_is_theirs_again(tmp_path: Path) -> None:
    theirs = parakeet_folder(tmp_path)
    loaded = load_model(tmp_path)
    save_model(tmp_path, loaded.module, loaded.processors, task=loaded.task, about=loaded.about, card="")
    again = transformers.ParakeetForCTC.from_pretrained(tmp_path).eval()
    for name, tensor in theirs.state_dict().items():
        torch.testing.assert_close(again.state_dict()[name], tensor)
    same_logits(load_model(tmp_path).module, theirs)


# --- ours, read there --------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "changes", [{}, {"subsampling": 4, "feedforward": 20, "bias": False}, {"scale_input": False}]
)
@torch.no_grad()
def test_our_folder_is_theirs(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = with_ctc(conformer(**changes))
    config = saved(tmp_path, ours)
    assert (config["model_type"], config["architectures"]) == ("parakeet_ctc", ["ParakeetForCTC"])
    assert (config["vocab_size"], config["pad_token_id"]) == (TOKENIZER.size + 1, TOKENIZER.size)
    theirs, told = transformers.ParakeetForCTC.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(told[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    same_logits(ours, theirs.eval())
    again = load_model(tmp_path)
    same_logits(again.module, theirs)
    assert again.module.config.model_dump(exclude={"feedforward"}) == ours.config.model_dump(exclude={"feedforward"})


@torch.no_grad()
def test_a_body_without_their_head_is_their_encoder(tmp_path: Path) -> None:
    ours = with_ctc(conformer(), lstm=1, width=8)
    config = saved(tmp_path, ours)
    assert (config["model_type"], config["architectures"]) == ("parakeet_encoder", ["ParakeetEncoder"])
    same_logits(ours.body, transformers.ParakeetEncoder.from_pretrained(tmp_path).eval())
    inputs = Batch(Inputs(values=frames(), lengths=LENGTHS))
    torch.testing.assert_close(load_model(tmp_path).module(inputs).logits, ours(inputs).logits)


@pytest.mark.parametrize("changes", [{"features": 12}, {"width": 15, "heads": 3}, {"window": 2}])
@torch.no_grad()
def test_what_they_cannot_have_is_saved_as_ours(changes: dict[str, Any], tmp_path: Path) -> None:
    ours = with_ctc(conformer(**changes))
    assert saved(tmp_path, ours)["model_type"] == "legato-conformer"
    inputs = Batch(Inputs(values=frames(ours.config.features), lengths=LENGTHS))
    torch.testing.assert_close(load_model(tmp_path).module(inputs).logits, ours(inputs).logits)


# --- what is said ------------------------------------------------------------------------------------


@pytest.mark.parametrize("counts_blank", [True, False])
@torch.no_grad()
def test_their_folder_writes_what_they_write(counts_blank: bool, tmp_path: Path) -> None:
    theirs = parakeet_folder(tmp_path, counts_blank=counts_blank)
    held = legato.load(tmp_path)
    assert Recognizer.of(held.loaded).blank == len(LETTERS)
    samples = samples_of("low high low low high", 1)
    read = FeatureExtractor.load(tmp_path).read([samples])
    tokens = theirs(read.values).logits[0].argmax(-1)
    tokens = [token for token in tokens.unique_consecutive().tolist() if token != len(LETTERS)]
    [text] = held.predict([(samples, RATE)])
    assert text == " ".join(held.loaded.tokenizer.decode(tokens).split()) != ""
    assert held.predictions([(samples, RATE)], beams=3, timestamps=True)[0].answers


@torch.no_grad()
def test_our_folder_writes_there_what_it_writes_here(tmp_path: Path) -> None:
    saved(tmp_path, with_ctc(conformer(subsampling=2)))
    samples = samples_of("low high low low high", 1)
    read = FeatureExtractor.load(tmp_path).read([samples])
    path = transformers.ParakeetForCTC.from_pretrained(tmp_path).eval().generate(read.values)
    [text] = legato.load(tmp_path).predict([(samples, RATE)])
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert " ".join(theirs.batch_decode(path, skip_special_tokens=True)[0].split()) == text != ""


@pytest.mark.slow
@torch.no_grad()
def test_an_adapter_of_ours_is_one_of_theirs(tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    theirs = parakeet_folder(tmp_path / "theirs", subsampling_factor=2)
    quick = {"train.steps": 2, "train.lr": 0.01, "train.tensorboard": "false", "device": "cpu"}
    settings = {**write_sounds(tmp_path), **quick, "from": str(tmp_path / "theirs"), "adapt": "lora"}
    with torch.enable_grad():
        legato.train("speech", settings, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run").loaded
    same_logits(held.module, peft.PeftModel.from_pretrained(theirs, held.folder).eval())


@pytest.mark.slow
@pytest.mark.parametrize("counts_blank", [True, False])
def test_it_learns_on_with_the_head_that_it_has(counts_blank: bool, tmp_path: Path) -> None:
    parakeet_folder(tmp_path / "theirs", counts_blank=counts_blank, subsampling_factor=2)
    quick = {"train.steps": 1, "train.tensorboard": "false", "device": "cpu", "data.batch_seconds": 3}
    settings = {**write_sounds(tmp_path), **quick, "from": str(tmp_path / "theirs")}
    legato.train("speech", settings, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.loaded.module.shape.outputs == len(LETTERS) + 1
    before = load_model(tmp_path / "theirs").module.head.weight
    torch.testing.assert_close(held.loaded.module.head.weight.cpu(), before, rtol=0, atol=0.01)
    held.predict([(samples_of("low", 1), RATE)])


@pytest.mark.slow
def test_their_encoder_learns_to_write_letters(tmp_path: Path) -> None:
    parakeet_folder(tmp_path / "theirs", tokenizer=False, subsampling_factor=2).encoder.save_pretrained(
        tmp_path / "theirs"
    )
    with pytest.raises(FolderError, match="no head for speech"):
        legato.load(tmp_path / "theirs").predict([(samples_of("low", 1), RATE)])
    quick = {"train.steps": 1, "train.tensorboard": "false", "device": "cpu", "data.batch_seconds": 3}
    settings = {**write_sounds(tmp_path), **quick, "from": str(tmp_path / "theirs")}
    legato.train("speech", settings, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    assert held.loaded.tokenizer.name == "char"
    assert type(transformers.AutoModelForCTC.from_pretrained(held.loaded.folder)).__name__ == "ParakeetForCTC"


def test_what_they_leave_out_is_what_it_is_there(tmp_path: Path) -> None:
    transformers.ParakeetCTCConfig().save_pretrained(tmp_path)
    whole = json.loads((tmp_path / "config.json").read_text())
    config: dict[str, Any] = parse_json(json.dumps(whole), ParakeetCTC.Entries, "f.json", loose=True)
    settings = ParakeetCTC.settings(config, {}, "f")
    assert settings == ParakeetCTC.settings({**config, "encoder_config": None}, {}, "f")
    assert settings == ParakeetEncoder.settings(whole["encoder_config"], {}, "f")
    assert ConformerConfig(**settings).inner == 4096


# --- refused -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({"hidden_act": "relu"}, "encoder_config.hidden_act is relu; Legato has only silu"),
        ({"subsampling_conv_stride": 3}, "encoder_config.subsampling_conv_stride is 3; Legato has only 2"),
        ({"convolution_bias": False}, "needs encoder_config.attention_bias and encoder_config.convolution_bias"),
        ({"conv_kernel_size": 4}, "a kernel of 4 states has no middle"),
        ({"subsampling_factor": 16}, "subsampling"),
        ({"intermediate_size": 25}, "feed_forward1.linear1.weight' should have shape"),
        ({"num_hidden_layers": 3}, "lacks the tensor 'encoder.layers.2"),
        ({"num_hidden_layers": 1}, "holds a tensor that this architecture lacks: 'encoder.layers.1"),
    ],
)
def test_an_encoder_that_we_lack_is_refused_in_a_line(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    parakeet_folder(tmp_path)
    told = json.loads((tmp_path / "config.json").read_text())["encoder_config"]
    changed(tmp_path, encoder_config={**told, **entries})
    with pytest.raises(FolderError) as problem:
        load_model(tmp_path)
    assert message in str(problem.value)
    assert "\n" not in str(problem.value)


@pytest.mark.parametrize(
    ("entries", "message"),
    [({"pad_token_id": 0}, "pad_token_id, the blank, is 0"), ({"vocab_size": 9, "pad_token_id": 8}, "has 11 rows")],
)
def test_another_blank_or_size_is_refused_in_a_line(entries: dict[str, Any], message: str, tmp_path: Path) -> None:
    parakeet_folder(tmp_path)
    changed(tmp_path, **entries)
    with pytest.raises(FolderError, match=message):
        load_model(tmp_path)


@pytest.mark.parametrize("name", ["ctc_head.weight", "ctc_head.bias", "encoder.layers.0.conv.pointwise_conv1.weight"])
def test_a_tensor_that_is_missing_or_of_another_shape_is_named(name: str, tmp_path: Path) -> None:
    parakeet_folder(tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    held = tensors.pop(name)
    save_file(tensors, file, metadata={"format": "pt"})
    with pytest.raises(FolderError, match=f"lacks the tensor '{name}'"):
        load_model(tmp_path)
    save_file({**tensors, name: held[..., None].contiguous()}, file, metadata={"format": "pt"})
    with pytest.raises(FolderError, match=f"'{name}' should have shape"):
        load_model(tmp_path)


def test_a_tokenizer_of_another_size_is_refused(tmp_path: Path) -> None:
    parakeet_folder(tmp_path)
    TOKENIZER.save(tmp_path)
    with pytest.raises(FolderError, match="the tokenizer has"):
        legato.load(tmp_path).predict([(samples_of("low", 1), RATE)])
    (tmp_path / "tokenizer.json").unlink()
    with pytest.raises(FolderError, match="there is no tokenizer"):
        legato.load(tmp_path)
