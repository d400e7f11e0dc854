"""What a family's classes for tasks call the parts of a head."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final, Literal

QA: Final = "qa_outputs"
# Entries of config.json that say a head's dropout, in BERT and its kin.
DROPOUT: Final = dict.fromkeys(("classes", "tags", "spans"), ("classifier_dropout", "hidden_dropout_prob"))


@dataclass(frozen=True)
class HeadNames:
    """What the heads of one architecture are like, in their classes for tasks."""

    pool: Literal["pooler", "first", "last"]
    classes: Mapping[str, str]  # our modules of a head for classes, and theirs
    inner: Literal["none", "tanh", "relu"] = "none"
    bias: bool = True
    tags: str = "classifier"
    body: str = ""  # how the body's tensors begin …
    body_of_spans: str = ""  # … and how where spans are found, if otherwise
    dropouts: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # entries that say it, of each kind of head

    def modules(self, kind: str) -> Mapping[str, str]:
        """Our modules of such a head, and theirs."""
        return {"classes": self.classes, "tags": {"head": self.tags}, "spans": {"head": QA}}[kind]
