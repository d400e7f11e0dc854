"""What a model folder holds, once it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.data.processors import Processors
from legato.data.text.any_tokenizer import AnyTokenizer
from legato.folders.chat_template import ChatTemplate
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import SequenceModel


@dataclass
class Loaded:
    """What a model folder holds."""

    folder: Path
    module: SequenceModel
    processors: Processors  # what it reads and writes with
    task: str
    about: dict[str, Any] = field(default_factory=dict)  # the "legato" key
    first_token: int | None = None  # that writing begins with; left out: the EOS token
    ends: tuple[int, ...] = ()  # the tokens that end a continuation
    chat: ChatTemplate | None = None
    sentences: SentenceEncoder | None = None  # how a text becomes one vector, where the folder says it
    digest: str | None = None  # of the weights, where they are not all in the folder (adapters/)
    bases: tuple[Path, ...] = ()  # the folders of the models below, where it is an adapter

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the text that is read."""
        return self.processors.tokenizer

    @property
    def target(self) -> AnyTokenizer:
        """Of the text that is written."""
        return self.processors.target

    @property
    def start(self) -> int:
        """The token that writing begins with."""
        return self.target.eos_id if self.first_token is None else self.first_token
