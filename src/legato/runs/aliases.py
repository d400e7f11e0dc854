"""Settings as people type them: without their section, or by the name that other toolkits have for them.

`lr=3e-5` is `train.lr=3e-5`, and so is `learning_rate=3e-5`, which a note says. A name that may mean several settings
is refused with the choices.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from legato.config import field_names, merge, nested
from legato.data.processors import TEXT
from legato.data.text.tokenizers import TokenizerConfig
from legato.errors import ConfigError, brief, suggest
from legato.folders.model_folder import read_config
from legato.models.model_with_head import HeadConfig
from legato.other_names import OTHER_VALUES, SECTION_OF, note_name, our_names, suggest_key, switched
from legato.registry import MODELS, TASKS
from legato.runs.recipes import TO_BE_NAMED
from legato.training.adapt import AdaptConfig
from legato.training.config import TrainConfig


def resolved(settings: Mapping[str, Any], known: Collection[str]) -> dict[str, Any]:
    """The settings with every name in its section and spelled as ours; `known` are the names of no section.

    >>> resolved({"task": "lm", "lr": 1e-3, "train": {"steps": 3}}, ["task", "train"])
    {'task': 'lm', 'train': {'steps': 3, 'lr': 0.001}}
    """
    task = settings.get("task")
    if not isinstance(task, str) or task not in TASKS:
        return dict(settings)
    unknown = [key for key in settings if key not in known]
    sections = _Sections(TASKS.get(task), settings)
    result: dict[str, Any] = {}
    for key, value in settings.items():
        if key not in unknown:
            result[key] = sections.translated(key, value) if isinstance(value, Mapping) else value
    for key in unknown:
        result = merge(result, nested({_place(key, sections, known): settings[key]}))
    return result


class _Sections:
    """The sections that the settings of a task have, with the names in them."""

    def __init__(self, task: Any, settings: Mapping[str, Any]) -> None:
        self._task, self.settings = task, settings
        self._model: Any = ...

    def fields(self, section: str) -> Collection[str]:
        """The names of a section's settings."""
        kinds = {"train": TrainConfig, "adapt": AdaptConfig, "head": HeadConfig, "tokenizer": TokenizerConfig}
        kind = {**kinds, "data": self._task.Data}.get(section)
        if section == "model":
            self._model = self._model_config() if self._model is ... else self._model
            kind = self._model
        return [] if kind is None else field_names(kind)

    def _model_config(self) -> Any:
        given, start = self.settings.get("model"), self.settings.get("from")
        name = given.get("name") if isinstance(given, Mapping) else None
        if name is None and isinstance(start, str) and start != TO_BE_NAMED:
            return type(read_config(start))
        name = name or self._task.default_model
        return MODELS.get(name).Config if isinstance(name, str) and name in MODELS else None

    def used(self) -> list[str]:
        """The sections that a name without one may belong to."""
        adapt = self.settings.get("adapt")
        lora = (adapt.get("name") if isinstance(adapt, Mapping) else adapt) == "lora"
        optional = {"tokenizer": TEXT in self._task.processors, "head": self._task.headed, "adapt": lora}
        return ["train", "data", "model", *(name for name, there in optional.items() if there)]

    def translated(self, section: str, group: Mapping[str, Any]) -> dict[str, Any]:
        """A section's settings by our names."""
        strange = [key for key in group if isinstance(key, str) and _ours(key, section)]
        if not strange:
            return dict(group)
        fields, result = self.fields(section), dict(group)
        for key in strange:
            names = [name for name in _ours(key, section) if name in fields]
            if key not in fields and len(names) == 1 and key not in OTHER_VALUES:
                note_name(f"{section}.{key}", f"{section}.{names[0]}")
                result[names[0]] = result.pop(key)
        return result


def _place(key: str, sections: _Sections, known: Collection[str]) -> str:
    """The dotted name that a name without a section stands for."""
    used = sections.used()
    fields = {section: [name for name in sections.fields(section) if name != "name"] for section in used}
    own = [f"{section}.{key}" for section in used if key in fields[section]]
    theirs = [f"{section}.{name}" for section in used for name in _ours(key, section) if name in fields[section]]
    choices = own or theirs
    if len(choices) == 1 and key not in OTHER_VALUES:
        if not own:
            note_name(key, choices[0])
        return choices[0]
    if choices:
        columns = {"text_column": "TEXT", "label_column": "LABEL", **sections.settings}
        example = OTHER_VALUES.get(key, "").format_map({name: brief(value) for name, value in columns.items()})
        several = " or ".join(f"{choice}={example}" if example else choice for choice in choices)
        reason = "may mean several settings" if len(choices) > 1 else "has values of another kind here"
        raise ConfigError(f"'{brief(key)}' {reason}; write {several}")
    if (words := switched(key, [*known, *fields["train"]])) is not None:
        raise ConfigError(f"'{brief(key)}' is no setting here; write {words}")
    unused = [
        f"adapt.{name}" for name in (key, *_ours(key, "adapt")) if name in AdaptConfig.model_fields and name != "name"
    ]
    if unused:
        raise ConfigError(f"unknown key '{brief(key)}'; did you mean '{unused[0]}'? It belongs to adapt=lora")
    near = suggest(key, known)
    if not near.startswith("did you mean"):
        for section in used:
            guess = suggest_key(key, fields[section])
            if guess.startswith("did you mean '"):
                near = guess.replace("did you mean '", f"did you mean '{section}.", 1)
                break
    raise ConfigError(f"unknown key '{brief(key)}'; {near}")


def _ours(name: str, section: str) -> list[str]:
    """What a setting of another toolkit may be called in a section."""
    if SECTION_OF.get(name.lower(), section) != section:
        return []
    return our_names(name)
