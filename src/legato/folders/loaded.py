"""What a model folder holds, once it is read."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from legato.data.text.tokenizers import AnyTokenizer
from legato.folders.chat_template import ChatTemplate
from legato.folders.sentence_encoder import SentenceEncoder
from legato.models.base import SequenceModel


@dataclass
class Loaded:
    """What a model folder holds."""

    folder: Path
    module: SequenceModel
    tokenizer: AnyTokenizer  # of what is read
    task: str
    about: dict[str, Any] = field(default_factory=dict)  # the "legato" key
    target: AnyTokenizer = None  # type: ignore[assignment]  # of what is written; left out: the same
    start: int = None  # type: ignore[assignment]  # what writing begins with; left out: the end mark
    ends: tuple[int, ...] = ()  # the tokens that end a continuation
    chat: ChatTemplate | None = None
    sentences: SentenceEncoder | None = None  # how a text becomes one vector, where the folder says it
    digest: str | None = None  # of the weights, where they are not all in the folder (adapters/)
    bases: tuple[Path, ...] = ()  # the folders of the models below, where it is an adapter

    def __post_init__(self) -> None:
        self.target = self.tokenizer if self.target is None else self.target
        self.start = self.target.eos_id if self.start is None else self.start
