"""What a run is asked for by: a task's name, a recipe of the package or a YAML file. It imports no PyTorch."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterable, Mapping
from importlib import resources
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from pydantic import model_validator

from legato.config import Section, joined, merge, nested, parse_words, read_yaml, split_words
from legato.errors import ConfigError, brief, suggest
from legato.input_files import near_path, path_of
from legato.other_names import ELSEWHERE, note_name
from legato.registry import MODELS, TASKS

if TYPE_CHECKING:
    from legato.evaluation.metrics import Metric

RECIPES: Final = Path(str(resources.files("legato"))) / "recipes"


class Expectation(Section):
    """A figure that a recipe promises: a bound, and what was measured when it was written."""

    at_most: float | None = None
    at_least: float | None = None
    measured: float | None = None

    @model_validator(mode="after")
    def _is_bounded(self) -> Expectation:
        if self.at_most is None and self.at_least is None:
            raise ValueError("an expectation has a bound; write at_most or at_least")
        return self

    def met(self, value: float) -> bool:
        return (self.at_most is None or value <= self.at_most) and (self.at_least is None or value >= self.at_least)

    def bound(self, metric: Metric) -> str:
        """The bound as it is printed."""
        if self.at_most is not None:
            return f"≤ {metric.printed(self.at_most):g}{metric.sign}"
        return f"≥ {metric.printed(self.at_least or 0.0):g}{metric.sign}"


# What tasks are called on Hugging Face's hub and by their common short names.
TASK_NAMES: Final = {
    "asr": "speech",
    "audio": "audio-classification",
    "automatic-speech-recognition": "speech",
    "causal-lm": "lm",
    "conversational": "chat",
    "feature-extraction": "embedding",
    "fill-mask": "mlm",
    "image": "image-classification",
    "image-captioning": "captioning",
    "image-text-to-text": "visual-chat",
    "image-to-text": "captioning",
    "images": "image-classification",
    "language-modeling": "lm",
    "language-modelling": "lm",
    "masked-lm": "mlm",
    "ner": "tagging",
    "object-detection": "detection",
    "photos": "image-classification",
    "pictures": "image-classification",
    "pos-tagging": "tagging",
    "question-answering": "qa",
    "sentence-similarity": "embedding",
    "sentiment-analysis": "classification",
    "sounds": "audio-classification",
    "speech-recognition": "speech",
    "summarization": "translation",
    "text-classification": "classification",
    "text-generation": "lm",
    "text2text-generation": "translation",
    "token-classification": "tagging",
    "visual-question-answering": "vqa",
    "zero-shot-image-classification": "image-text",
}


# Settings of no section, and files, by their names in Hugging Face's scripts.
WHOLE_NAMES: Final = {
    "dataset_name": "data.train",
    "model_name_or_path": "from",
    "output": "out",
    "output_dir": "out",
    "pretrained_model_name_or_path": "from",
    "test_file": "data.test",
    "train_file": "data.train",
    "validation_file": "data.valid",
}
SECTIONS: Final = ("data", "tokenizer", "model", "train", "head", "adapt")
ASSIGNED: Final = (*SECTIONS, "from", "resume", "out", "seed", "device", "task")  # what has a value behind it
TO_BE_NAMED: Final = "???"  # what a recipe has where its user must say something


def settings_for(what: str | None, words: Iterable[str] | Mapping[str, Any] = ()) -> dict[str, Any]:
    """The unchecked settings of a task's name, a recipe or a YAML file, with `words` laid over them."""
    over = _spelled_as_ours(nested(words) if isinstance(words, Mapping) else parse_words(words))
    for name, section in over.items():
        both = name if not isinstance(section, Mapping) else None
        places = [key for key, group in over.items() if isinstance(group, Mapping) and both in group]
        if places:
            raise ConfigError(f"'{brief(name)}' and '{places[0]}.{brief(name)}' are both set; leave one of them out")
    base = _base_of(what)
    settings = _names_in_our_case(merge(_without(base, over), over))
    task = settings.get("task")
    return {**settings, "task": task_named(task) or task} if isinstance(task, str) else settings


def _base_of(what: str | None) -> dict[str, Any]:
    """The settings that a task's name, a recipe or a YAML file stands for."""
    if what is None:
        return {}
    task = task_named(what)
    if task is not None:
        return {"task": task}
    recipe = find_recipe(what)
    if recipe is not None:
        return recipe
    if what.endswith((".yaml", ".yml")):
        from legato.runs.run_folder import read_settings

        return _spelled_as_ours(read_settings(path_of(what, error=ConfigError)))
    if what.lower() in MODELS:
        raise ConfigError(f"'{brief(what)}' is a model, and a task comes first: legato train lm model={what.lower()}")
    recipes = [recipe for recipe in list_recipes() if recipe.partition("/")[2] == what.lower()]
    if recipes:
        raise ConfigError(f"a recipe is named with its task: legato train {recipes[0]}")
    near = suggest(what, [*TASKS.names(), *list_recipes()])
    if not near.startswith("did you mean"):
        near = f"{suggest(what, TASKS.names())}; legato recipes lists the recipes"
    raise ConfigError(f"'{brief(what)}' is no task, recipe or YAML file; {near}")


def _spelled_as_ours(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which the names of `WHOLE_NAMES` are ours."""
    result = {key: value for key, value in settings.items() if key not in WHOLE_NAMES}
    for key in settings:
        if key in WHOLE_NAMES:
            note_name(key, WHOLE_NAMES[key])
            result = merge(result, nested({WHOLE_NAMES[key]: settings[key]}))
    return result


def _names_in_our_case(settings: Mapping[str, Any]) -> dict[str, Any]:
    """Settings in which the names that choose a section, as in `model=LSTM`, are written as ours."""
    result = dict(settings)
    for section in ("model", "tokenizer", "adapt"):
        group = settings.get(section)
        name = group.get("name") if isinstance(group, Mapping) else None
        if isinstance(group, Mapping) and isinstance(name, str) and (section != "model" or name not in MODELS):
            folded = name.lower()
            result[section] = {**group, "name": folded if section != "model" or folded in MODELS else name}
    return result


def _without(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """The settings of a file without those that are set over it by another spelling of their name."""
    sections = [group for group in over.values() if isinstance(group, Mapping)]
    kept: dict[str, Any] = {}
    for key, value in base.items():
        names = (key, *(ours for ours, theirs in ELSEWHERE.items() if key in theirs))
        if isinstance(value, Mapping):
            group = over.get(key)
            group = group if isinstance(group, Mapping) else {}
            kept[key] = {
                name: inner
                for name, inner in value.items()
                if not any(ours in group for ours, theirs in ELSEWHERE.items() if name in theirs)
            }
        elif not any(name in group for name in names for group in (over, *sections)):
            kept[key] = value
    return kept


def task_named(word: str) -> str | None:
    """The task of a name: ours, in any case and with any hyphen, or Hugging Face's.

    >>> task_named("Image_Classification"), task_named("token-classification"), task_named("runs/x")
    ('image-classification', 'tagging', None)
    """
    if not isinstance(word, str):
        raise ConfigError(f"a task, a recipe or a YAML file is a name, such as 'lm', not {brief(repr(word))}")
    if word in TASKS:
        return word
    name = word.lower().replace("_", "-").replace(" ", "-")
    return name if name in TASKS else TASK_NAMES.get(name)


def named_and_set(words: Iterable[str]) -> tuple[str | None, dict[str, Any]]:
    """What the words of `legato train` name, in any order, and the settings: files beside it are `data.train`.

    >>> named_and_set(["lm", "--lr", "3e-5"])
    ('lm', {'lr': '3e-5'})
    """
    names: list[str] = []
    assignments: list[str] = []
    for word in joined(words):
        (assignments if "=" in word else names).append(word)
    known = [name for name in names if task_named(name) or find_recipe(name) or name.endswith((".yaml", ".yml"))]
    others = [name for name in names if name not in known[:1]]
    what = known[0] if known else None
    files = [name for name in others if os.path.exists(name) or glob.has_magic(name)]
    strange = [name for name in others if name not in files]
    if strange and what is None and strange[0] not in ASSIGNED:
        return strange[0], split_words(assignments)  # which is refused by its name
    if strange:
        raise ConfigError(_why_strange(strange[0], names[names.index(strange[0]) + 1 :]))
    if files and what is None and not any(word.startswith(("task=", "resume=")) for word in assignments):
        raise ConfigError(_why_no_task(files[0]))
    settings = split_words(assignments)
    if files:
        other = next((key for key in ("data.train", "train", "data") if key in settings), None)
        if other is not None:
            raise ConfigError(
                f"{brief(files[0])} and {other}={brief(settings[other])} are both to train on; name one"
            )
        settings["data.train"] = files[0] if len(files) == 1 else files
    return what, settings


def _why_strange(word: str, behind: list[str]) -> str:
    """What to say of a word beside a task that is neither a setting nor a file; `behind` are the words after it."""
    name = brief(word)
    if word.lower() in MODELS:
        return f"'{name}' is a model; write model={word.lower()} for a new one, or from={name} for the published one"
    if word in ASSIGNED and behind:
        return f"'{name}' needs its value behind an equals sign; write {name}={brief(behind[0])}"
    near = near_path(path_of(word, error=ConfigError))
    meant = "settings are written key=value" if near is None else f"did you mean '{near}'?"
    return f"'{name}' is not a setting, and no file is called so; {meant}"


def _why_no_task(file: str) -> str:
    """What to say of a file that stands alone."""
    if os.path.exists(os.path.join(file, "config.yaml")):
        return f"{brief(file)} is a run; go on with it: legato train resume={brief(file)}"
    return f"which task? name it before the file: legato train classification {brief(file)}"


def list_recipes() -> list[str]:
    """The names of the recipes in the package, such as `lm/ptb-lstm`."""
    return sorted(f"{file.parent.name}/{file.stem}" for file in RECIPES.glob("*/*.yaml"))


def find_recipe(name: str) -> dict[str, Any] | None:
    return read_yaml(RECIPES / f"{name}.yaml") if name in list_recipes() else None
