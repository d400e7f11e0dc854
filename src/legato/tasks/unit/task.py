"""Many tasks in one model (UniT): boxes, questions about pictures, statements, classes of pictures and of texts.

Each of them is read, taught and scored as where it is trained by itself; `data.tasks` says which there are, with the
data of each, and how often each is trained beside the others (`members.py`, `rounds.py`). Of them all, the mean of
what decides in each decides which model is best.

    legato train tasks.yaml out=runs/u
    legato train tasks.yaml data.only=films out=runs/films        one of them alone: as large, and as many steps of it
    legato predict runs/u photo.jpg "What is on the table?" --task questions
    legato eval runs/u data.tasks.films.test=films.tsv
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cached_property, partial
from typing import Any, Final

from legato.config import Section, merge, validate
from legato.data.batching.batch import Batch
from legato.data.batching.batches import SpeedUnit
from legato.data.cache import cached_tokenizer
from legato.data.image.image_processor import ImageProcessor
from legato.data.image.scenes import SCENES
from legato.data.positions import Reading
from legato.data.processors import Processors
from legato.errors import ConfigError, FolderError, brief, suggest
from legato.evaluation.metrics import Metric, metric_of
from legato.folders.loaded import Loaded
from legato.models.base import ModelConfig
from legato.models.model_with_head import HeadConfig
from legato.models.unit import TaskConfig, UnitConfig, UnitModel
from legato.registry import MODELS, TASKS
from legato.tasks.base import Plan, Say, Task, TaskJob
from legato.tasks.defaults import Defaults, Given, row_training, scratch_tokenizer
from legato.tasks.picture_data import encoder_model, encoder_processor
from legato.tasks.predictions import Prediction
from legato.tasks.unit.members import KINDS, UnitData, named, training_texts
from legato.tasks.unit.rounds import Rounds
from legato.training.job import Loss

SCORE: Final = "score"
LENGTH: Final = 128  # tokens of a text


def _metrics() -> tuple[Metric, ...]:
    """The mean that decides, and every figure of every task, behind the task's name."""
    own = (Metric(SCORE, "fraction", "up", headline=True, points=True), Metric("loss", better="down", headline=True))
    names = dict.fromkeys(metric for task in KINDS for metric in TASKS.get(task).metrics)
    return *own, *(replace(metric, name=f"*/{metric.name}", headline=_shown(metric)) for metric in names)


def _shown(metric: Metric) -> bool:
    return metric.headline and metric.name != "loss"


class UnitOptions(Section):
    """A task is asked by itself, with its own."""


class UnitJob(TaskJob):
    """Training on several tasks in turn."""

    task = "unit"
    metric = SCORE
    likelihood = False
    speed_unit = SpeedUnit("positions")  # tokens of texts, patches of pictures
    use = 'legato predict FOLDER photo.jpg "What is on the table?" --task NAME'
    jobs: dict[str, Any]

    def __init__(self, plan: Plan, say: Say) -> None:
        super().__init__(plan, say)
        members = plan.data.chosen
        self.processors = self._processors(say)
        self.jobs = {name: self._job(name, member) for name, member in members.items()}
        self.hashes = {
            f"tasks.{name}.{split}": digest for name, job in self.jobs.items() for split, digest in job.hashes.items()
        }
        weights = {name: member.weight for name, member in members.items()}
        self.batches = Rounds({name: job.batches for name, job in self.jobs.items()}, weights, plan.seed)
        steps = ", ".join(f"{weight} of {name}" for name, weight in weights.items())
        say(f"a round, or epoch, has {self.batches.steps_per_epoch:,} steps: {steps}")

    def _processors(self, say: Say) -> Processors:
        """What all tasks read with, whichever of them are trained: the same for one of them as for all."""
        plan, data = self.plan, self.plan.data
        kinds = MODELS.get(plan.model.name).processors_of(plan.model)
        held = plan.parts.get("text")
        tokenizer = None if held is None else held.tokenizer
        if "tokenizer" in kinds and tokenizer is None:
            if not any(member.reads_text for member in data.tasks.values()):
                raise ConfigError("none of data.tasks reads text; leave out what does: model.text=none")
            tokenizer = cached_tokenizer(plan.tokenizer, training_texts(plan))
            say(f"vocabulary {tokenizer.size:,} ({tokenizer.name}) for all tasks")
        return Processors(tokenizer, others={"image": encoder_processor(plan)} if "image" in kinds else {})

    def _job(self, name: str, member: Any) -> TaskJob:
        plan = self.plan
        for reads, part in ((member.reads_text, "text"), (member.reads_pictures, "encoder")):
            if reads and dict(plan.model)[part] is None and not (part == "encoder" and member.may_be_blind):
                what = "text" if part == "text" else "pictures"
                raise ConfigError(
                    f"data.tasks.{name} has {what} to read; name what reads it: model.{part}="
                    f"{'bert' if part == 'text' else 'resnet'}"
                )
        model, given = _member_model(plan.model, member), dict(member)
        if given.get("vectors") is not None:
            raise ConfigError(f"data.tasks.{name}.vectors: the embedding is that of all tasks; leave it out")
        train = plan.train.model_copy(update={"batch_rows": member.rows or plan.train.batch_rows})
        shared = _sized(self.processors, model.size)
        own = replace(plan, data=member, model=model, train=train, head=HeadConfig(), shared=shared)
        job: TaskJob = named(
            name, lambda: TASKS.get(member.task).prepare(own, lambda text: self.say(f"{name}: {text}"))
        )
        if metric_of(job.metrics, job.metric).better != "up":
            raise ConfigError(
                f"data.tasks.{name}.metric={job.metric}: what decides is the mean of all tasks' scores, of which "
                "each is better when it is higher; choose another"
            )
        return job

    @cached_property
    def model_config(self) -> ModelConfig:
        tasks = {}
        for name, job in self.jobs.items():
            boxes = job.plan.data.task == "detection"
            outputs = len(job.labels) if boxes else job.head.outputs
            queries = job.plan.model.queries if boxes else 1
            kind, size = "boxes" if boxes else "classes", job.plan.model.size
            tasks[name] = TaskConfig(kind=kind, outputs=outputs, queries=queries, size=size)
        return self.plan.model.model_copy(update={"tasks": tasks})

    def initialise(self, model: Any) -> None:
        model.begin_statistics()

    # --- learning -------------------------------------------------------------------------------------

    def recordable(self, batch: Batch) -> bool:
        assert batch.task is not None
        may: bool = self.jobs[batch.task].recordable(batch)
        return may

    def loss(self, model: Any, batch: Batch, state: Any) -> Loss:
        assert batch.task is not None
        made: Loss = self.jobs[batch.task].loss(model.task(batch.task), batch, state)
        return made

    def validate(self, model: Any) -> dict[str, float]:
        found = {name: job.validate(model.task(name)) for name, job in self.jobs.items()}
        told = {f"{name}/{key}": value for name, scores in found.items() for key, value in scores.items()}
        losses = [scores["loss"] for scores in found.values()]
        return {SCORE: self._mean(found), "loss": sum(losses) / len(losses), **told}

    def final(self, model: Any) -> dict[str, Any]:
        """Each task's own figures, and of a split that all tasks have their mean."""
        found: dict[str, dict[str, dict[str, Any]]] = {}
        for name, job in self.jobs.items():
            for key, value in job.final(model.task(name)).items():
                split, _, figure = key.partition(".")
                found.setdefault(split, {}).setdefault(name, {})[figure] = value
        told: dict[str, Any] = {}
        for split, tasks in found.items():
            if len(tasks) == len(self.jobs):
                told[f"{split}.{SCORE}"] = self._mean(tasks)
            told |= {f"{split}.{name}/{key}": value for name, own in tasks.items() for key, value in own.items()}
        return told

    def _mean(self, found: Mapping[str, Mapping[str, Any]]) -> float:
        """The mean of what decides in each task, as a fraction."""
        each = [
            metric_of(job.metrics, job.metric).printed(found[name][job.metric]) for name, job in self.jobs.items()
        ]
        return sum(each) / len(each) / 100

    def samples(self, model: Any, count: int) -> list[str]:
        return [f"{name}: {text}" for name, job in self.jobs.items() for text in job.samples(model.task(name), count)]

    def about(self, metrics: dict[str, float]) -> dict[str, Any]:
        return {"tasks": {name: {"task": job.task, **job.about(metrics)} for name, job in self.jobs.items()}}


def _member_model(config: Any, member: Any) -> Any:
    """The model's settings as one of its tasks has them."""
    given = dict(member)
    return config.model_copy(
        update={"size": given.get("size") or config.size, "queries": given.get("queries") or config.queries}
    )


def _sized(processors: Processors, size: tuple[int, int] | None) -> Processors:
    """The same, with pictures brought to this height and width."""
    held = processors.others.get("image")
    if size is None or not isinstance(held, ImageProcessor):
        return processors
    sized = replace(held, size=size, crop=None)
    return Processors(processors.tokenizer if processors.has_text else None, others={"image": sized})


class Unit(Task):
    """The `unit` task."""

    name = "unit"
    summary = "many tasks in one model: boxes, questions about pictures, classes of pictures and of texts"
    default_model = "unit"
    Job = UnitJob
    Data = UnitData
    metrics = _metrics()
    Options = UnitOptions
    Input = object
    input_name = "picture or text"
    processors = ("tokenizer", "image")
    rows = True

    @classmethod
    def defaults(cls, given: Given) -> Defaults:
        train = row_training(given, attention=5e-4, rows=32, epochs=10)
        tasks = given.data.get("tasks")
        members = [one for one in tasks.values() if isinstance(one, Mapping)] if isinstance(tasks, Mapping) else []
        kinds = [KINDS[str(one.get("task"))] for one in members if str(one.get("task")) in KINDS]
        fixed: dict[str, Any] = {}
        if not issubclass(given.config, UnitConfig):
            return Defaults(train=train)
        if any(kind.reads_pictures for kind in kinds) or given.model.get("encoder"):
            drawn = next((one for one in members if one.get("train") == SCENES), {})  # scenes are small
            fixed |= encoder_model(replace(given, data=drawn), "resnet")
        if any(kind.reads_text for kind in kinds) or given.model.get("text"):
            fixed |= _text_model(given)
        return Defaults(fixed=fixed, train=train, tokenizer={**scratch_tokenizer(given), "lowercase": True})

    @classmethod
    def prepare(cls, plan: Plan, say: Say) -> TaskJob:
        if not plan.data.chosen:
            raise ConfigError(
                "'data.tasks' is needed, with a task at least: data.tasks.NAME.task=vqa data.tasks.NAME.train=FILE"
            )
        if not isinstance(plan.model, UnitConfig):
            raise ConfigError(f"model={plan.model.name} has no heads for several tasks; use model=unit")
        return cls.Job(plan, say)

    @classmethod
    def members(cls, loaded: Loaded) -> dict[str, Loaded]:
        """The folder as that of each of its tasks: with the task's head, its processors and what it remembers."""
        model, told = loaded.module, loaded.about.get("tasks", {})
        if not isinstance(model, UnitModel) or set(told) != set(model.names):
            raise FolderError(f"{loaded.folder}: config.json does not say of each task of its model what it is")
        found = {}
        for name, about in told.items():
            if about.get("task") not in KINDS or model.task(name).detects != (about["task"] == "detection"):
                raise FolderError(f"{loaded.folder}: config.json has no task for '{brief(name)}' that its model has")
            processors = _sized(loaded.processors, model.config.tasks[name].size)
            found[name] = replace(
                loaded, module=model.task(name), task=about["task"], about=about, processors=processors
            )
        return found

    @classmethod
    def data_for(cls, loaded: Loaded, given: Mapping[str, Any]) -> Section:
        """What is said of tasks that the folder holds: their kinds are known."""
        tasks, known = given.get("tasks"), loaded.about.get("tasks", {})
        if not isinstance(tasks, Mapping) or not tasks:
            name = next(iter(known), "NAME")
            raise ConfigError(f"which data are scored? set data.tasks.{name}.test=FILE; tasks: {', '.join(known)}")
        for name in tasks:
            if name not in known:
                raise ConfigError(f"{loaded.folder} has no task '{brief(name)}'; {suggest(str(name), known)}")
        kinds = {name: {"task": known[name].get("task")} for name in tasks}
        return validate(cls.Data, {**given, "tasks": merge(kinds, tasks)}, "data")

    @classmethod
    def evaluate(cls, loaded: Loaded, data: Any) -> dict[str, Any]:
        """Each task's own scores, behind its name."""
        members, sources = cls.members(loaded), []
        scores: dict[str, Any] = {}
        details = []
        for name, member in data.chosen.items():
            own = members[name]
            task: type[Task] = TASKS.get(own.task)
            found = named(name, partial(task.evaluate, own, member))
            details += [(f"{name}: {title}", columns, rows) for title, columns, rows in found.pop("details", [])]
            sources.append(f"{name}: {found.pop('data')}")
            scores |= {f"{name}/{key}": value for key, value in found.items()}
        return {"data": ", ".join(sources), **scores, "details": details}

    @classmethod
    def predict(cls, loaded: Loaded, inputs: Sequence[Any], options: Any) -> list[Prediction]:
        raise cls._several(loaded)

    @classmethod
    def reading(cls, loaded: Loaded, given: Any, written: str | None = None) -> Reading:
        raise cls._several(loaded)

    @classmethod
    def _several(cls, loaded: Loaded) -> ConfigError:
        known = ", ".join(loaded.about.get("tasks", {}))
        return ConfigError(f"{loaded.folder} has the tasks {known}; ask one of them: --task NAME, or for_task(NAME)")


def _text_model(given: Given) -> dict[str, Any]:
    """Defaults of `model.text` where that is left out, or only named."""
    said = given.model.get("text")
    said = said if isinstance(said, Mapping) else {} if said is None else {"name": said}
    name = said.get("name", "bert")
    if name is None:
        return {}
    usual: dict[str, Any] = {"layers": 4, "length": LENGTH}
    usual |= {key: given.model[key] for key in ("width", "heads", "dropout") if key in given.model}
    if name in MODELS:
        config = MODELS.get(str(name)).Config
        usual |= dict.fromkeys(config.pretraining_heads, False)
        usual = {key: value for key, value in usual.items() if key in config.model_fields}
    return {"text": {"name": name, **usual, **said}}
