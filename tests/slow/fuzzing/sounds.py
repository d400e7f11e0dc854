"""What scenarios of sound start from: tables of sounds, and models that read them."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path


def sounds(folder: Path) -> None:
    """Tables of sounds and transcripts, beside files and members of a .tar, and a sound to be heard."""
    from tiny_sounds import write_sounds

    write_sounds(folder)


def whisper(folder: Path) -> None:
    """A folder of Whisper that writes two languages, without our key."""
    from tiny_whisper import whisper_folder

    whisper_folder(folder / "whisper", languages=True)


def of_sounds(family: str) -> Callable[[Path], None]:
    """A folder of a published family that reads sounds, named after it, without our key."""

    def make(folder: Path) -> None:
        import torch

        from legato.data.processors import Processors
        from legato.data.text.tokenizers import Tokenizer
        from legato.data.text.vocabularies import TokenizerConfig
        from legato.folders.model_folder import save_model
        from legato.models.base import SequenceModel, Sizes
        from legato.models.conformer import ConformerConfig, ConformerModel
        from legato.models.model_with_head import HeadSpec, ModelWithHead

        torch.manual_seed(0)
        made = folder / family
        made.mkdir()
        config = ConformerConfig(layers=1, width=8, heads=2, features=8, channels=2, kernel=3)
        module: SequenceModel = ConformerModel(config, Sizes(0))
        tokenizer = None
        if family == "parakeet_ctc":
            tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["low high"])
            module = ModelWithHead(module, HeadSpec(kind="ctc", outputs=tokenizer.size + 1))
        processors = Processors(tokenizer, others={"audio": config.feature_extractor()})
        save_model(made, module, processors, task="speech", about={}, card="")
        entries = json.loads((made / "config.json").read_text())
        assert entries["model_type"] == family
        del entries["legato"]
        (made / "config.json").write_text(json.dumps(entries))

    return make
