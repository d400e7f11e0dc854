"""Whisper's folders: the model, its tokenizer and its feature extractor, read and written as Hugging Face's."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.decoding import SearchOptions, search
from legato.errors import FolderError, LegatoError
from legato.folders.model_folder import load_model, save_model
from legato.model import Model
from legato.models.base import Sizes
from legato.models.whisper import WhisperConfig, WhisperModel
from tiny_pictures import word_tokenizer

transformers = pytest.importorskip("transformers")

WORDS = word_tokenizer()
EXTRACTOR = FeatureExtractor(bins=8, seconds=1)  # 100 frames
IDS = torch.tensor([[1, 4, 5, 2], [3, 3, 1, 6]])
SOUNDS = [np.random.default_rng(row).standard_normal(count) for row, count in enumerate((9000, 16000))]


def our_folder(folder: Path) -> Any:
    torch.manual_seed(0)
    config = WhisperConfig(layers=2, decoder_layers=1, width=16, heads=4, features=8, source_length=50, length=24)
    model = WhisperModel(config, Sizes(WORDS.size)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    processors = Processors(WORDS, others={"audio": EXTRACTOR})
    save_model(folder, model, processors, task="speech", about={"published": True}, card="")
    return model


def their_folder(folder: Path) -> Any:
    """A folder as Hugging Face's library writes it."""
    our_folder(folder)
    config = transformers.WhisperConfig.from_pretrained(folder)
    del config.legato
    torch.manual_seed(1)
    model = transformers.WhisperForConditionalGeneration(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "encoder.embed_positions" not in name:
                parameter.add_(0.3 * torch.randn_like(parameter))
    (folder / "config.json").unlink()
    model.save_pretrained(folder)
    their_extractor().save_pretrained(folder)
    return model


def their_extractor() -> Any:
    return transformers.WhisperFeatureExtractor(feature_size=8, chunk_length=1)


@torch.no_grad()
def test_our_folder_is_theirs(tmp_path: Path) -> None:
    ours = our_folder(tmp_path)
    theirs, about = transformers.WhisperForConditionalGeneration.from_pretrained(tmp_path, output_loading_info=True)
    assert not any(about[kind] for kind in ("missing_keys", "unexpected_keys", "mismatched_keys"))
    frames = EXTRACTOR.read(SOUNDS)
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(tmp_path)
    heard = extractor(SOUNDS, sampling_rate=16_000, return_tensors="pt").input_features
    torch.testing.assert_close(frames.content.transpose(1, 2), heard, rtol=1e-4, atol=1e-4)
    found = ours.readout(ours(Batch(Inputs(IDS), source=frames)).hidden)
    expected = theirs.eval()(input_features=heard, decoder_input_ids=IDS).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_their_folder_gives_their_logits(tmp_path: Path) -> None:
    theirs = their_folder(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.task == "speech"
    assert loaded.processors.others == {"audio": EXTRACTOR}
    heard = their_extractor()(SOUNDS, sampling_rate=16_000, return_tensors="pt").input_features
    found = loaded.module.readout(loaded.module(Batch(Inputs(IDS), source=EXTRACTOR.read(SOUNDS))).hidden)
    expected = theirs(input_features=heard, decoder_input_ids=IDS).logits
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


@torch.no_grad()
def test_what_is_saved_is_read_again(tmp_path: Path) -> None:
    ours = our_folder(tmp_path)
    loaded = load_model(tmp_path)
    assert loaded.module.config == ours.config.model_copy(update={"feedforward": 64})
    assert loaded.processors.fingerprints() == {"tokenizer": WORDS.fingerprint(), "audio": EXTRACTOR.fingerprint()}
    source = EXTRACTOR.read(SOUNDS)
    written = [
        search(
            model,
            [[loaded.start]] * 2,
            SearchOptions(search="beam", max_tokens=8),
            eos=None,
            memory=model.encode(Batch(source, source=source)),
        )
        for model in (ours, loaded.module)
    ]
    assert written[0] == written[1]


def test_a_folder_without_its_feature_extractor_is_refused(tmp_path: Path) -> None:
    our_folder(tmp_path)
    (tmp_path / "preprocessor_config.json").unlink()
    with pytest.raises(FolderError, match=r"lacks preprocessor_config\.json, the audio processor"):
        load_model(tmp_path)


def test_another_feature_extractor_is_refused(tmp_path: Path) -> None:
    our_folder(tmp_path)
    FeatureExtractor(bins=8, seconds=2).save(tmp_path)
    with pytest.raises(FolderError, match="its audio processor is not the one"):
        load_model(tmp_path)


def test_a_model_that_hears_continues_no_texts(tmp_path: Path) -> None:
    our_folder(tmp_path)
    model = Model(load_model(tmp_path), torch.device("cpu"))
    with pytest.raises(LegatoError, match="writes down what is said: use legato predict"):
        model.generate("a red dog")
