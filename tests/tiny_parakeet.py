"""Parakeet's folders as `transformers` writes them, small enough for a test: random weights, letters for tokens."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import tokenizers
import torch
import transformers
from tokenizers import decoders, models, pre_tokenizers

from legato.data.audio.feature_extractor import PARAKEET, FeatureExtractor

SMALL: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 24,
    "conv_kernel_size": 5,
    "subsampling_factor": 8,
    "subsampling_conv_channels": 6,
    "num_mel_bins": 16,
}
BLANK, LETTERS = "<pad>", ["<unk>", "▁", *"abcdefgh"]


@torch.no_grad()
def scramble(model: Any) -> Any:
    """In evaluation, with biases, norms and averages that are not what they start as."""
    torch.manual_seed(0)
    for name, tensor in model.state_dict().items():
        if tensor.is_floating_point():
            tensor.normal_(0.0, 0.3)
            if name.endswith("running_var"):
                tensor.abs_().add_(0.5)
    return model.eval()


def letters(counts_blank: bool = True) -> Any:
    """A library tokenizer of letters; the blank may be the last of its tokens."""
    library: Any = tokenizers.Tokenizer(
        models.BPE({token: n for n, token in enumerate(LETTERS)}, [], unk_token="<unk>")
    )
    library.pre_tokenizer = pre_tokenizers.Metaspace()
    library.decoder = decoders.Metaspace()
    library.add_special_tokens([BLANK] if counts_blank else ["<unk>"])
    return library


def parakeet_folder(folder: Path, *, counts_blank: bool = True, tokenizer: bool = True, **entries: Any) -> Any:
    """ParakeetForCTC with all its files; theirs, that it was saved from."""
    outputs = len(LETTERS) + 1
    config = transformers.ParakeetCTCConfig(
        vocab_size=outputs, pad_token_id=outputs - 1, encoder_config={**SMALL, **entries}
    )
    model = scramble(transformers.ParakeetForCTC(config))
    model.save_pretrained(folder)
    bins = config.encoder_config.num_mel_bins
    FeatureExtractor.of_kind(PARAKEET, bins=bins).save(folder)  # theirs needs another package
    if tokenizer:
        letters(counts_blank).save(str(folder / "tokenizer.json"))
        roles = {"unk_token": "<unk>", "pad_token": BLANK if counts_blank else "<unk>"}
        settings = {"tokenizer_class": "ParakeetTokenizer", **roles}
        (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    return model
