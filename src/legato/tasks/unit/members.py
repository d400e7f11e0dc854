"""The tasks that one model has: what `data.tasks` says of each, which the task's own data section checks.

    data:
      tasks:
        shapes: {task: detection, weight: 20, train: shapes.jsonl, size: [100, 400], queries: 60}
        films: {task: classification, weight: 40, train: films.tsv, columns: [text, label]}

Beside `task` and `weight`, a task's settings are those of its `data` where it is trained by itself.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Annotated, Any, ClassVar, Final, Literal

from pydantic import Field, SerializeAsAny, field_validator, model_validator

from legato.config import ChosenByName, Section
from legato.data.formats.text import Text
from legato.data.image.image_processor import Side
from legato.errors import ConfigError, LegatoError, brief, suggest
from legato.registry import TASKS
from legato.tasks.base import Plan
from legato.tasks.classification.task import ClassificationData
from legato.tasks.classification.task import read_split as read_texts
from legato.tasks.detection.task import DetectionData
from legato.tasks.image_classification.task import ImageClassificationData
from legato.tasks.vqa.task import VQAData, questions

SETTING: Final = re.compile(r"(?<![\w/.-])data\.(?=[a-z])")  # as messages of a task by itself name its settings
NAME: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9_-]*")


class Member(Section):
    """What is said of one of the tasks, beside its data."""

    reads_text: ClassVar[bool] = False
    reads_pictures: ClassVar[bool] = False
    may_be_blind: ClassVar[bool] = False  # something is left to read without an encoder of pictures

    task: str
    weight: int = Field(
        1, ge=1, le=1 << 20, description="steps of each round, which is an epoch of all tasks, that it has"
    )
    rows: int | None = Field(None, ge=1, description="of its steps; left out: train.batch_rows")
    root: str | None
    train: str | None
    test: str | None
    metric: str


class PictureMember(Member):
    """… where it reads pictures."""

    reads_pictures: ClassVar[bool] = True

    size: tuple[Side, Side] | None = Field(
        None, description="height and width that its pictures are brought to; left out: model.size"
    )


class DetectionMember(DetectionData, PictureMember):
    """Boxes."""

    task: Literal["detection"]
    queries: int | None = Field(None, ge=1, description="boxes of a picture, at most; left out: model.queries")


class ImageClassificationMember(ImageClassificationData, PictureMember):
    """Classes of pictures."""

    task: Literal["image-classification"]


class VQAMember(VQAData, PictureMember):
    """Questions about pictures, and statements that are true or false."""

    reads_text: ClassVar[bool] = True
    may_be_blind: ClassVar[bool] = True

    task: Literal["vqa"]


class ClassificationMember(ClassificationData, Member):
    """Classes of texts and of pairs of texts."""

    reads_text: ClassVar[bool] = True

    task: Literal["classification"]


KINDS: Final[dict[str, type[Member]]] = {
    "detection": DetectionMember,
    "vqa": VQAMember,
    "image-classification": ImageClassificationMember,
    "classification": ClassificationMember,
}


def member_class(task: str) -> type[Member]:
    if task not in KINDS:
        why = "is no task of a model of many" if task in TASKS else "is no task"
        raise ConfigError(f"'{brief(task)}' {why}; {suggest(task, KINDS)}")
    return KINDS[task]


class UnitData(Section):
    """Which tasks there are, and where the data of each is."""

    tasks: dict[str, Annotated[SerializeAsAny[Member], ChosenByName(member_class, key="task")]] = Field(
        default_factory=dict,
        description="for each name a task (detection, vqa, image-classification or classification), its weight, and "
        "the settings of its data",
    )
    only: list[str] | None = Field(
        None, description="train these of the tasks alone, as often as beside the others; left out: all"
    )
    root: str | None = Field(None, description="folder that relative names lie in")

    @field_validator("only", mode="before")
    @classmethod
    def _one_is_a_list(cls, value: Any) -> Any:
        return [value] if isinstance(value, str) else value

    @model_validator(mode="after")
    def _names_are_names(self) -> UnitData:
        for name in self.tasks:
            if not NAME.fullmatch(name):
                raise ValueError(
                    f"tasks has '{brief(name)}', which is no name of a task: it has letters, digits, - and _"
                )
        for name in self.only or []:
            if name not in self.tasks:
                raise ValueError(
                    f"only names '{brief(name)}', which is none of the tasks; {suggest(name, self.tasks)}"
                )
        return self

    @property
    def chosen(self) -> dict[str, Any]:
        """The tasks that are trained or scored, each with what is said of all."""
        names = self.tasks if self.only is None else self.only
        return {name: self.whole(name) for name in self.tasks if name in names}

    def whole(self, name: str) -> Any:
        member = self.tasks[name]
        return member if member.root is not None else member.model_copy(update={"root": self.root})


def named(name: str, make: Callable[[], Any]) -> Any:
    """What `make` gives; what is wrong with it is said of this task."""
    try:
        return make()
    except LegatoError as problem:
        said, count = SETTING.subn(f"data.tasks.{name}.", str(problem))
        raise type(problem)(said if count else f"data.tasks.{name}: {said}") from None


def training_texts(plan: Plan) -> Text:
    """The training texts of all tasks, also of those that are not trained: the tokenizer is made of these."""
    sources, documents = [], []
    for name in plan.data.tasks:
        member = plan.data.whole(name)
        if member.reads_text and member.train is not None:
            rows = named(name, partial(READ[member.task], member, plan.seed))
            sources.append(rows.source)
            documents += [*rows.texts, *(rows.seconds or [])]
    return Text.of(", ".join(sources), documents)


READ: Final[dict[str, Callable[[Any, int], Any]]] = {
    "classification": lambda data, seed: read_texts(data, data.train, "train"),
    "vqa": lambda data, seed: questions(data.choices, data.statements).read(data, data.train, "train", seed),
}
