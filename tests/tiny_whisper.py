"""Folders of a tiny Whisper as others publish it: a second a window, times of 20 ms, perhaps two languages."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch

from legato.data.audio.feature_extractor import FeatureExtractor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer
from legato.folders.model_folder import save_model
from legato.models.base import Sizes
from legato.models.whisper import WhisperConfig, WhisperModel

EOS, START, EN, DE, TRANSLATE, TRANSCRIBE, NO_TIMES = 4, 5, 6, 7, 8, 9, 10
SPECIAL = ("<|endoftext|>", "<|startoftranscript|>", "<|en|>", "<|de|>", "<|translate|>", "<|transcribe|>")
VOCABULARY = NO_TIMES + 1 + 51  # times from 0.00 to 1.00


def whisper_tokenizer() -> Tokenizer:
    words = {"[UNK]": 0, "low": 1, "high": 2, "mid": 3}
    library = tokenizers.Tokenizer(tokenizers.models.WordLevel(words, unk_token="[UNK]"))
    library.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    library.add_special_tokens([*SPECIAL, "<|notimestamps|>"])
    return Tokenizer(library, "<|endoftext|>")


def whisper_folder(folder: Path, *, languages: bool = False, seed: int = 0, **entries: Any) -> WhisperModel:
    """A model of random weights that have opinions, in a folder without our key; `entries` are of
    generation_config.json."""
    torch.manual_seed(seed)
    config = WhisperConfig(layers=1, width=16, heads=2, features=8, source_length=50, length=24)
    model = WhisperModel(config, Sizes(VOCABULARY)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    folder.mkdir(exist_ok=True)
    extractor = FeatureExtractor(bins=8, seconds=1)
    processors = Processors(whisper_tokenizer(), others={"audio": extractor})
    save_model(folder, model, processors, task="speech", about={"published": True}, card="", start=START)
    told = json.loads((folder / "config.json").read_text())
    del told["legato"]
    (folder / "config.json").write_text(json.dumps(told))
    generation = {"decoder_start_token_id": START, "eos_token_id": EOS, "no_timestamps_token_id": NO_TIMES}
    if languages:
        generation |= {"lang_to_id": {"<|en|>": EN, "<|de|>": DE}, "is_multilingual": True}
        generation |= {"task_to_id": {"transcribe": TRANSCRIBE, "translate": TRANSLATE}}
    (folder / "generation_config.json").write_text(json.dumps({**generation, **entries}))
    return model
