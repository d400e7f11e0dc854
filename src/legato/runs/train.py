"""From settings to a trained model: what `legato train` does.

A run is described by a `RunConfig`, which `config.py` makes.
"""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch

from legato.config import merge, nested, settings_of, validate
from legato.data.batching.batches import TOKENS
from legato.data.text.tokenizers import TokenizerConfig
from legato.data.text.word_bytes import vocabulary_bytes
from legato.errors import CheckpointError, ConfigError, FolderError, brief, listed
from legato.evaluation.metrics import metric_of, printed_scores
from legato.folders.finding import find_model
from legato.folders.finite_scores import finite_scores
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model, read_config, read_model
from legato.input_files import path_of
from legato.interrupts import CTRL_C
from legato.models.base import SequenceModel, count_parameters
from legato.models.building import refuse_too_large, undrawn, within_memory
from legato.models.model_with_head import HeadConfig, ModelWithHead, body_of, refuse_blind, resolved
from legato.models.published.heads import head_note
from legato.nn.characters import tell_spelling
from legato.nn.quantized import is_quantized
from legato.registry import MODELS, TASKS
from legato.runs.config import RunConfig, check, dump, flat, part_inside, settings_for
from legato.runs.provenance import began_with_folders_pool, refuse_other_data, warn_of_other_device, write_provenance
from legato.runs.run_folder import NO_TABLES, RunFolder, Tables
from legato.schema import fields_of, fit, read_json, to_json
from legato.tasks.base import Plan
from legato.training.adapt import Base, adapt, store_frozen, trainable_line
from legato.training.checkpoint_files import list_checkpoints
from legato.training.config import TrainConfig
from legato.training.devices import choose_device, why_bf16
from legato.training.display import Display, memory_used
from legato.training.loop import Trainer
from legato.training.optimizers import freeze_parts, rated_parts
from legato.training.schedules import Schedule, lengthened, resolve_steps

# What may change when a run goes on; anything else would make it another run.
RESUMABLE = (
    "train.steps",
    "train.epochs",
    "train.min_steps",
    "train.validate_every",
    "train.checkpoint_every",
    "train.keep",
    "train.log_every",
    "train.layers_every",
    "train.patience",
    "train.samples",
    "train.tensorboard",
    "train.graph",
    "train.compile",
    "train.recompute",
    "device",
    # The texts may have moved; their hashes must be what they were. So may the model that it began with.
    "from",
    "data.train",
    "data.valid",
    "data.test",
    "data.root",
    "data.images",
    "data.audio",
)


@dataclass(repr=False)
class Result:
    """What a finished run leaves, in `result.json` too."""

    run: Path
    metrics: dict[str, Any]  # figures, and the signatures of those that have one
    parameters: int
    steps: int
    tokens: int
    seconds: float
    tokens_per_second: float
    trainable: int = 0  # of the parameters, those that were trained
    peak_memory: int = 0  # bytes of a GPU, while training
    saved_bytes: int = 0  # of the weights in the best model's folder
    reached: dict[str, bool] = field(default_factory=dict)  # of what the recipe expects
    speed: float = 0.0  # in what people count the task's data in: pictures, or seconds of sound; 0: tokens
    speed_unit: str = TOKENS.name

    def __post_init__(self) -> None:
        self.speed = self.speed or self.tokens_per_second

    def __repr__(self) -> str:
        figures = {name: value for name, value in self.metrics.items() if isinstance(value, float)}
        shown = "".join(f", {name} {value:.4g}" for name, value in list(figures.items())[:3])
        size = f"{self.steps:,} steps, {self.parameters:,} parameters"
        return f"{type(self).__name__}({str(self.run)!r}, {size}{shown})"


def train(
    what: str | Mapping[str, Any] | None = None,
    settings: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    tables: Tables = NO_TABLES,
    **more: Any,
) -> Result:
    """Train a model, on `tables` in memory for the splits that they are of.

    The same as `legato train WHAT key=value …`; settings alone must name the task.

    >>> legato.train("lm", {"data.train": "a.txt", "model": "lstm"}, out="runs/x")  # doctest: +SKIP
    >>> legato.train({"task": "lm", "data.train": "a.txt"}, out="runs/x")  # doctest: +SKIP
    """
    _check_alone()
    if isinstance(what, Mapping):
        settings, what = {**what, **settings_of(settings)}, None
    given = {**settings_of(settings), **more}
    display = Display(quiet)
    if "resume" in given:
        if what is not None:
            raise ConfigError(
                f"resume={brief(given['resume'])} goes on with a run as it is; leave out '{brief(what)}'"
            )
        if tables:
            raise ConfigError(
                f"resume={brief(given['resume'])} goes on with the run's own copy of its data; leave out "
                f"{next(iter(tables))}="
            )
        return resume_run(path_of(str(given.pop("resume")), error=ConfigError), settings_for(None, given), display)
    given = merge(nested(given), {"data": dict.fromkeys(tables, "a table in memory")}) if tables else given
    return start_run(check(settings_for(what, given)), display, tables)


def _check_alone() -> None:
    """Refuse one of several processes, as `torchrun` starts them: each would train the whole model by itself."""
    count = os.environ.get("WORLD_SIZE", "1")
    if "RANK" in os.environ and count.isdecimal() and int(count) > 1:
        raise ConfigError(
            f"WORLD_SIZE is {brief(count)}, but training on several GPUs is not supported yet: "
            "start legato train without torchrun"
        )


def start_run(config: RunConfig, display: Display, tables: Tables = NO_TABLES) -> Result:
    """A new run from its beginning; it keeps a copy of `tables`, its data in memory."""
    choose_device(config.device)  # before anything is written
    config.train.writes_events()
    if config.out:
        run = RunFolder.create(path_of(config.out, error=ConfigError), dump(config), tables)
    else:
        run = RunFolder.create_next(Path("runs") / f"{config.task}-{config.model.name}", dump(config), tables)
    try:
        config = check(run.settings) if tables else config
        return _carry_out(config, run, display, resuming=False)
    except Exception:
        run.withdraw()
        raise
    finally:
        run.release()


def resume_run(path: Path, changes: dict[str, Any], display: Display) -> Result:
    """Go on with the run in `path`; `changes` may lengthen it, but not make it another run."""
    run = RunFolder.open(path)
    _resumed(run.settings, changes, path).train.writes_events()  # before anything is touched there
    run.claim()
    try:
        after = _resumed(run.settings, changes, path)  # again, since nobody else can change it now
        run.put_right()
        if not changes and (path / "result.json").exists():
            raise _finished(path)
        if not list_checkpoints(run.checkpoints):
            if not run.starting:
                raise CheckpointError(f"{path} has no checkpoint to go on from; start a new run with another out=…")
            display.say(f"{path} was stopped before its first checkpoint; beginning again")
            run.save_settings(dump(after))
            return _carry_out(after, run, display, resuming=False)
        return _carry_out(after, run, display, resuming=True)
    finally:
        run.release()


def _resumed(settings: dict[str, Any], changes: dict[str, Any], path: Path) -> RunConfig:
    """The settings with which a run goes on."""
    begun = {**settings, "from": changes["from"]} if "from" in changes else settings  # it may have moved
    after = check(merge(settings, changes))
    old, new = flat(dump(check(begun))), flat(dump(after))
    for key in sorted({*old, *new}.difference(RESUMABLE)):
        if old.get(key) != new.get(key):
            raise ConfigError(
                f"{key} is {brief(old.get(key))} in {path} and cannot become {brief(new.get(key))}: a resumed run "
                "keeps its settings; start a new run for that"
            )
    return after


def finished_result(path: Path) -> Result | None:
    """What the run in `path` left, if it has come to its end."""
    file = path / "result.json"
    if not file.is_file():
        return None
    try:
        found = {**read_json(file, dict[str, Any], loose=True), "run": path}
        fit(found, fields_of(Result), str(file))
    except FolderError as problem:
        raise FolderError(f"{problem}; remove it, and train resume={path} measures the run again") from None
    return Result(**found)


def _finished(path: Path) -> ConfigError:
    return ConfigError(f"{path} is finished; raise train.steps, or the train.patience that ended it, to go on")


def plan_of(config: RunConfig, device: Any) -> Plan:
    """What a task prepares itself from."""
    loaded = None
    if config.whole_from is not None:
        frozen = config.adapt.name == "lora"
        loaded = read_model(config.whole_from, sketched=True, quantize=config.quantize, frozen=frozen)
    parts = {part: _read_part(place, part) for part, place in config.parts_from.items()}
    head = config.head or HeadConfig()
    tokenizer = config.tokenizer or TokenizerConfig()
    return Plan(config.data, tokenizer, config.model, config.train, config.seed, device, loaded, head, parts)


def _read_part(place: str, part: str) -> Loaded:
    """The model that a part begins with: what `place` holds, or the part of that name in it."""
    inside = part_inside(read_config(place), part)
    if inside is None:
        return read_model(place, sketched=True)
    loaded = read_model(place)
    if is_quantized(loaded.module):
        raise FolderError(f"{place} holds quantised weights, which cannot be trained; take the original model")
    return replace(loaded, module=body_of(loaded.module).parts[inside])


def _carry_out(config: RunConfig, run: Any, display: Display, *, resuming: bool) -> Result:
    device = choose_device(config.device)
    if device.type == "cuda":
        torch.cuda.set_device(device)  # generators and graphs belong to the current device
        torch.set_float32_matmul_precision("high")
        torch.cuda.reset_peak_memory_stats(device)
    plan = plan_of(config, device)
    job = TASKS.get(config.task).prepare(plan, display.say)
    _tell_same(job.hashes, display)
    torch.manual_seed(config.seed)
    kind = MODELS.get(config.model.name)
    # On a CPU there is a gradient beside each weight; optimisers that keep more are not counted.
    whole = config.whole_from is None or config.adapt.name == "full"
    narrow = plan.loaded is not None and is_quantized(plan.loaded.module)
    if not narrow:
        refuse_too_large(kind, job.model_config, job.sizes, copies=2 if device.type == "cpu" and whole else 1)
    model, drawn = _begun(lambda: kind(job.model_config, job.sizes), plan.loaded, narrow=narrow)
    base = None
    if config.whole_from is not None and plan.loaded is not None and not whole:
        base = Base.of(config.whole_from, plan.loaded, config.quantize)
    for part, held in plan.parts.items():
        held.put_into(model.parts[part])
    if job.head is not None:
        as_folder = not resuming or began_with_folders_pool(run)
        model = with_head(model, job, plan.loaded, config.adapt.name, display.say, as_folder=as_folder)
    drawn &= {name for name, _ in body_of(model).named_parameters()}
    if drawn:
        display.say(f"not in from={config.whole_from}, so drawn at random: {listed(sorted(drawn))}")
    if plan.loaded is not None:
        plan.loaded.module = model  # nothing holds the other one any longer, which may be large
    if not resuming or base is not None:  # what is frozen is in no checkpoint
        job.initialise(model)
    if model.config.reads_characters:
        tell_spelling(model, torch.from_numpy(vocabulary_bytes(job.tokenizer)))
    model = model.to(device)
    parameters = count_parameters(model)
    display.say(f"model: {config.model.name}, {parameters:,} parameters, on {device}")
    fast, why = why_bf16(device)
    if config.train.precision == "auto" and fast and device.type == "cpu":
        display.say(f"precision: bf16, since {why}; train.precision=float32 is the other")
    if base is not None:
        adapt(model, config.adapt, base, display.warn)
        store_frozen(model, device, config.train.precision)
    still = [tower for tower, rate in rated_parts(model, config.train) if rate == 0]
    for tower in still:
        tower.requires_grad_(False)
    freeze_parts(model, config.train.frozen)
    if config.start_from is not None or still or config.train.frozen:
        display.say(trainable_line(model))
    ways = _shorter(config, job)
    trainer = Trainer(model, job, config.train, run, seed=config.seed, device=device, display=display, shorter=ways)
    if resuming:
        refuse_other_data(run, plan, job.hashes, base)
        warn_of_other_device(run, device, display)
        trainer.resume()
        if trainer.finished:
            if not (run.path / "result.json").exists():  # killed between the last step and the last word
                return _conclude(config, trainer, parameters)
            raise _finished(run.path)
        trained = validate(TrainConfig, run.settings.get("train") or {}, "train")
        before = Schedule(trained, resolve_steps(trained, job.batches.steps_per_epoch))
        before.cut = trainer.schedule.cut
        trainer.progress.finished = ""
        (run.path / "result.json").unlink(missing_ok=True)  # of the shorter run that this one was
        run.save_settings(dump(config))
        display.say(f"going on from step {trainer.step} of {trainer.steps}")
        if note := lengthened(before, trainer.schedule, trainer.step):
            display.say(f"note: {note}")
    else:
        write_provenance(run, plan, job, base, model)
    trainer.fit()
    return _conclude(config, trainer, parameters)


def _shorter(config: RunConfig, job: Any) -> list[str]:
    """Settings that make this run take less time, beside fewer steps."""
    ways, model = [], config.model
    if config.whole_from is not None:
        if job.head is not None and config.adapt.name != "head" and config.quantize is None:
            ways.append("adapt=head")
        ways.append("a smaller from=MODEL")
    elif config.start_from is None:
        width = dict(model).get("width", 0) // 2 // model.width_multiple * model.width_multiple
        ways += [f"model.width={width}"] if width else []
        ways += ["model.image=64"] if dict(model).get("image", 0) > 64 else []
    return [*ways, "device=cuda"] if torch.cuda.is_available() else ways


def _begun(
    make: Callable[[], SequenceModel], loaded: Loaded | None, *, narrow: bool
) -> tuple[SequenceModel, set[str]]:
    """The model to train, with the weights of the one that it goes on from, and the names of what it has alone."""
    if loaded is not None and narrow:  # of its wide matrices nothing is ever used, so that they take no memory
        model = undrawn(make)
        drawn = loaded.put_into(model)
        if not drawn:
            return model, drawn
    model = make()
    return model, set() if loaded is None else loaded.put_into(model)


def _tell_same(hashes: Mapping[str, str], display: Display) -> None:
    """Say where what is scored is what was learned: that is sometimes meant, and sometimes a slip."""
    for split in ("valid", "test"):
        if hashes.get(split) and hashes[split] == hashes.get("train"):
            display.say(f"note: data.{split} holds what data.train does, so its scores say how well that was learned")


def with_head(
    body: SequenceModel,
    job: Any,
    loaded: Loaded | None,
    adapt: str = "full",
    say: Callable[[str], None] = lambda text: None,
    *,
    as_folder: bool = True,
) -> SequenceModel:
    """The body with the job's head; a head that gave the same answers before goes on with what it learned.

    With `head.pool=auto` it pools as the head before it did, or else as the folder says that a text's vector is made
    (`as_folder`; a frozen body is always read so), or else as suits the body.
    """
    shape, before = job.head, None if loaded is None else loaded.module
    was, frozen = before.shape if isinstance(before, ModelWithHead) else None, adapt == "head"
    if shape.pool == "auto" and was and (was.kind, was.layers, was.lstm) == (shape.kind, shape.layers, shape.lstm):
        shape = shape.model_copy(update=was.model_dump(include={"pool", "inner", "bias"}))
    elif shape.pool == "auto" and shape.kind == "classes" and loaded is not None and loaded.sentences is not None:
        pool = loaded.sentences.head_pool
        # Where the body's own head pools so, it is taken whole, be it with a dense layer.
        if frozen or (as_folder and resolved(body, shape).pool != pool):
            shape = shape.model_copy(update={"pool": pool})
    refuse_blind(body, shape)
    model = within_memory(lambda: ModelWithHead(body, shape), f"head.width={shape.width} and head.lstm={shape.lstm}")
    if isinstance(before, ModelWithHead) and loaded is not None:
        known, wanted = loaded.about.get("labels"), job.labels
        if not model.reuse_head(before, known, wanted):
            why = "the old one had another shape"
            if isinstance(known, list) and isinstance(wanted, list) and sorted(known) != sorted(wanted):
                knew, has = (listed(names, 4, quote="'") for names in (known, wanted))
                why = f"it knew {knew}, and the data has {has}"
            say(f"note: the head is a new one: {why}")
    if note := head_note(model):
        say(f"note: {note}")
    return model


def _conclude(config: RunConfig, trainer: Any, parameters: int) -> Result:
    """Score the best model on whole texts, and say whether the recipe's promise was kept."""
    run, job, progress, display = trainer.run, trainer.job, trainer.progress, trainer.display
    peak = memory_used(trainer.device) if trainer.device.type == "cuda" else 0
    trainable = count_parameters(trainer.model, trainable=True)
    folder = find_model(run.path)
    best = load_model(folder).module.to(trainer.device)
    display.say("scoring the best model …")
    with torch.no_grad():
        metrics = finite_scores(job.final(best), best, display.say)
    speed = progress.tokens / max(progress.training, 1e-9)
    minutes = progress.seconds / 60
    saved = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    result = Result(
        run.path, metrics, parameters, trainer.step, progress.tokens, progress.seconds, speed, trainable, peak, saved
    )
    result.speed, result.speed_unit = speed / job.speed_unit.positions, job.speed_unit.name
    figures = {**metrics, "minutes": minutes}
    for label, text in printed_scores(job.metrics, metrics, ".4g").items():
        display.say(f"{label}: {text}")
    for name, expectation in config.expect.items():
        metric = metric_of(job.metrics, name)
        if name not in figures:
            result.reached[name] = False
            display.say(f"expected {name} {expectation.bound(metric)}: not measured (is data.test set?)")
            continue
        met = result.reached[name] = figures[name] is not None and expectation.met(figures[name])
        verdict = "reached" if met else "NOT reached"
        got = metric.text(figures[name], ".4g")
        display.say(f"expected {name} {expectation.bound(metric)}: got {got}, {verdict}")
    CTRL_C.advice = ""
    run.write("result.json", to_json({**vars(result), "run": "."}, indent=1))
    seconds = round(progress.seconds)
    taken = f"{minutes:.1f} minutes" if minutes >= 1 else f"{seconds} second{'s' * (seconds != 1)}"
    display.say(f"done in {taken}; the best model is in {run.best if run.best.exists() else run.last}")
    if display.suggests:
        place = shlex.quote(str(run.path))
        lines = [job.use.replace("FOLDER", place), f"legato serve {place}", f"legato inspect {place} --serve"]
        display.say("next: " + "\n".join(lines).replace("\n", "\n      "))
    return result
