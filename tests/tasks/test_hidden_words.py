"""Texts with hidden words are read with the tokenizer's own numbers."""

from __future__ import annotations

import tokenizers

from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.tasks.mlm.fill_mask import MaskReader


def test_added_tokens_keep_their_numbers() -> None:
    trained = Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), ["the cat sat on a mat"] * 9)
    library = tokenizers.Tokenizer.from_str(trained.library.to_str())
    library.add_special_tokens(["[GONE]"])  # behind the vocabulary: what follows moves when it is left out
    library.add_tokens(["catnap", "matrix"])
    tokenizer = Tokenizer(library)
    text = "the matrix sat on a catnap"
    plain = tokenizer.encode(text).tolist()
    assert library.token_to_id("matrix") in plain
    reader = MaskReader(tokenizer)
    assert reader.read(text).tolist() == plain
    assert reader.read(f"{text} <mask>").tolist() == [*plain, tokenizer.mask_id]
    assert reader.read("[GONE]").tolist() == tokenizer.encode("[GONE]").tolist()
