"""What turns a person's input into what a model reads, and is saved with it: processors.

Text has a tokenizer, and another one where what is written has its own. Each other kind of input has a class with
`save`, `load` and a `fingerprint`, registered under the kind's name (`registry.PROCESSORS`); models and tasks name
the kinds that they read. What belongs together travels as one `Processors`.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import ClassVar, Protocol

from legato.data.text.any_tokenizer import AnyTokenizer
from legato.errors import LegatoError

TEXT = "tokenizer"  # the kind of processor that text has
SHARED_FILE = "processor_config.json"  # where a published folder may keep all its processors but the tokenizer


def is_for_sound(entries: Mapping[str, object]) -> bool:
    """Whether a preprocessor_config.json is a feature extractor's for sound: it says a rate, and nothing of pictures.

    >>> is_for_sound({"feature_extractor_type": "ViTFeatureExtractor", "size": 224})  # as image processors once were
    False
    """
    return entries.get("sampling_rate") is not None and entries.get("image_processor_type") is None


class Processor(Protocol):
    """Reads one kind of input that is not text."""

    file: ClassVar[str]  # that it is kept in, as Hugging Face names it: preprocessor_config.json

    @classmethod
    def load(cls, folder: Path) -> Processor: ...

    def save(self, folder: Path) -> None: ...

    def fingerprint(self) -> str:
        """A hash of all that changes what is read."""
        ...


class Processors:
    """What a model reads and writes with.

    >>> Processors().has_text
    False
    """

    def __init__(
        self,
        tokenizer: AnyTokenizer | None = None,
        target: AnyTokenizer | None = None,
        others: Mapping[str, Processor] | None = None,
    ) -> None:
        self._tokenizer, self._target = tokenizer, target
        self.others = dict(others or {})  # by kind

    @property
    def has_text(self) -> bool:
        return self._tokenizer is not None

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the text that is read."""
        if self._tokenizer is None:
            kinds = ", ".join(self.others) or "nothing"
            raise LegatoError(f"this model reads no text but {kinds}, so it has no tokenizer")
        return self._tokenizer

    @property
    def target(self) -> AnyTokenizer:
        """Of the text that is written; mostly the same."""
        return self.tokenizer if self._target is None else self._target

    @property
    def own_target(self) -> AnyTokenizer | None:
        """The same, where it is another than that of what is read."""
        return None if self._target is self._tokenizer else self._target

    def fingerprints(self) -> dict[str, str]:
        """Those of all, by kind."""
        text = {TEXT: self.tokenizer.fingerprint()} if self.has_text else {}
        return text | {kind: processor.fingerprint() for kind, processor in self.others.items()}


class HasProcessors:
    """What reads and writes text with its processors."""

    processors: Processors

    @property
    def tokenizer(self) -> AnyTokenizer:
        """Of the text that is read."""
        return self.processors.tokenizer

    @property
    def target(self) -> AnyTokenizer:
        """Of the text that is written."""
        return self.processors.target
