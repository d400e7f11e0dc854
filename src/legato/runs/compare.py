"""Comparing models fairly: the same data, the same number of training tokens, near-equal parameters.

What is compared is either several YAML files or recipes, or one task with settings of which some are
lists: each combination is one entry. Seeds are repeats of an entry, not entries.

Language models of different tokenizers are ranked by bits per byte, which charges each for what its tokens do not
spell (`evaluation/lm.py`): a model of words does not win by the words that it does not know.
"""

from __future__ import annotations

import itertools
import json
import math
import re
import statistics
from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from legato.config import SHORT_SECTIONS, read_yaml, settings_of
from legato.data.batching.batches import TOKENS
from legato.data.items import items_of
from legato.errors import ConfigError, FolderError, LegatoError, brief
from legato.evaluation.lm import PRICE
from legato.evaluation.metrics import Metrics, metric_of
from legato.folders.atomic import clear_errors, write_text
from legato.input_files import path_of
from legato.models.base import Sizes, count_parameters
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS, TASKS, require_extra
from legato.runs.aliases import resolved
from legato.runs.config import NAMES, RunConfig, check, dump, flat, settings_for
from legato.runs.curves import draw
from legato.runs.recipes import task_named
from legato.runs.train import Result, finished_result, plan_of, resume_run, start_run
from legato.schema import to_json
from legato.training.display import Display, speed_text
from legato.training.schedules import resolve_steps

# Settings whose value is a list by nature; everywhere else a list means one run each.
LISTS = (
    *("data.train", "data.valid", "data.test", "data.columns", "data.directions", "data.test_directions"),
    "data.valid_columns",
    *("data.toy.distance", "data.toy.length", "data.labels", "adapt.targets"),
)
BARE_LISTS = ("data", "train", "valid", "test", "columns", "directions", "labels", "targets")  # without their section
LORA = ("alpha", "rank", "rslora", "targets")
WIDEST = 16384
TOLERANCE = 0.1  # of the parameters, by which a model may miss the number that it should have
NUMBER = re.compile("[0-9]{1,15}")
PLOT = "compare.png"
# What every run tells of itself: the column's title, and how a value is shown. From `trainable` on, only where runs
# differ in how much they train.
MEASURED: dict[str, tuple[str, Callable[[float], str]]] = {
    "parameters": ("parameters", "{:,.0f}".format),
    "tokens": ("tokens", "{:,.0f}".format),
    "tokens_per_second": ("tokens/s", "{:,.0f}".format),
    "trainable": ("trainable", "{:,.0f}".format),
    "peak_memory": ("peak memory", lambda value: f"{value / 2**20:,.0f} MiB" if value else "–"),
    "seconds": ("minutes", lambda value: f"{value / 60:,.2f}"),
    "saved_bytes": ("file", lambda value: f"{value / 1e6:,.3g} MB"),
}


@dataclass
class ComparisonEntry:
    """One thing compared: its settings and the runs made with it."""

    label: str
    config: RunConfig = field(repr=False)
    own_width: bool = False  # a width that somebody wrote down is theirs; a default is ours to choose
    results: list[Result] = field(default_factory=list)

    def mean(self, figure: str) -> float:
        return statistics.fmean(self._values(figure))

    def spread(self, figure: str) -> float | None:
        """Standard deviation over seeds; None with a single one."""
        values = self._values(figure)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, figure: str) -> list[float]:
        values = []
        for result in self.results:
            value = {**vars(result), **result.metrics}.get(figure, 0.0)
            if isinstance(value, bool) or not isinstance(value, int | float | None):
                file = result.run / "result.json"
                raise FolderError(
                    f"{file}: 'metrics.{figure}' should be a number, not {brief(value)}; remove the file"
                )
            values.append(math.nan if value is None else float(value))  # None: it was not finite
        return values


@dataclass(frozen=True)
class Prepared:
    """What a run's data fix of its model, and how much of them the run would read."""

    sizes: Sizes
    settings: dict[str, Any]  # of the model, those that follow from the data
    tokens: int
    rows: int | None  # texts or pictures, where these are counted
    head: HeadSpec | None  # what the task puts on the model in place of its readout


@dataclass(repr=False)
class Comparison:
    """The entries with their runs, and where everything was kept."""

    entries: list[ComparisonEntry]
    out: Path
    plot: Path | None  # the picture of the learning curves, where Matplotlib is installed
    warnings: list[str] = field(default_factory=list)

    def __repr__(self) -> str:
        figure = next(iter(self.figures), "tokens_per_second")
        means = ", ".join(f"{entry.label} {entry.mean(figure):.4g}" for entry in self.entries)
        return f"Comparison({str(self.out)!r}, {figure}: {means})"

    @property
    def metrics(self) -> Metrics:
        """What the task says of its figures."""
        metrics: Metrics = TASKS.get(self.entries[0].config.task).metrics
        return metrics

    @property
    def measured(self) -> tuple[str, ...]:
        """What every run tells of itself; where not all train everything, what that saves."""
        differ = len({entry.config.adapt for entry in self.entries}) > 1
        return tuple(MEASURED)[: None if differ else 3]

    @property
    def figures(self) -> list[str]:
        """The scores that a table shows: the task's headlines that all runs have, or else the loss."""
        first, *others = (entry.results[0].metrics for entry in self.entries)
        shared = [name for name in first if all(name in metrics for metrics in others)]
        common = [
            name
            for split in ("valid.", "test.")
            for metric in self.metrics
            for name in shared
            if metric.headline and name.startswith(split) and metric_of(self.metrics, name) is metric
        ]
        common = [name for name in common if not name.endswith(".loss")] or common
        hidden = "valid.unknown_share"  # of the tokens to be predicted, which bits per byte alone makes up for
        has_hidden = any(hidden in result.metrics for entry in self.entries for result in entry.results)
        return [*common, hidden] if has_hidden else common

    def summary(self) -> dict[str, Any]:
        rows = []
        for entry in self.entries:
            row: dict[str, Any] = {"label": entry.label, "runs": [str(r.run) for r in entry.results]}
            for figure in (*self.measured, *self.figures):
                row[figure] = {"mean": entry.mean(figure), "spread": entry.spread(figure)}
            rows.append(row)
        plot = self.plot and str(self.plot)
        return {"out": str(self.out), "plot": plot, "entries": rows, "warnings": self.warnings}


def compare(
    what: str | Iterable[str],
    settings: Mapping[str, Any] | None = None,
    *,
    quiet: bool = False,
    tell: Callable[[str], None] = lambda text: None,
    **more: Any,
) -> Comparison:
    """Train and tabulate. The same as `legato compare WHAT … key=value …`; lists mean one run each.

    `tell` hears a line before and after each run and, of quiet ones, a line at each validation.

    >>> legato.compare("lm", {"model": ["elman", "lstm"], "data.train": "a.txt"}, seed=[1, 2])  # doctest: +SKIP
    """
    given = {**settings_of(settings), **more}
    named = given.pop("out", None)
    if named:
        return _compare(what, given, path_of(str(named), error=ConfigError), quiet, tell)
    out = _make_next()
    try:
        return _compare(what, given, out, quiet, tell)
    finally:
        with suppress(OSError):  # it holds something, as it should
            out.rmdir()


def _compare(
    what: str | Iterable[str], given: dict[str, Any], out: Path, quiet: bool, tell: Callable[[str], None]
) -> Comparison:
    if (out / "compare.json").exists():
        raise FolderError(f"{out} already holds a comparison; choose another out=…")
    if (out / PLOT).exists():  # ours comes last
        raise FolderError(f"{out / PLOT} is there already, and is of no comparison; choose another out=…")
    match = given.pop("match", "parameters")
    if match not in ("parameters", "none", None) and not NUMBER.fullmatch(str(match)):
        raise ConfigError(f"match={brief(match)} is not known; use parameters, none, or a number of parameters")
    seeds = given.pop("seed", [])
    seeds = seeds if isinstance(seeds, list) else [seeds]
    names = [what] if isinstance(what, str) else items_of(what, "task", alone=True)
    display = Display(quiet)
    entries = _entries(names, given)
    checked = [check({**dump(entries[0].config), "seed": seed}).seed for seed in seeds]  # before the data is read
    if repeated := [seed for number, seed in enumerate(checked) if seed in checked[:number]]:
        raise ConfigError(
            f"seed={brief(seeds)} has {repeated[0]} more than once; each repeat needs a seed of its own"
        )
    _same_data(entries)
    prepared = _all_prepared(entries)
    _same_budget(entries, [each.tokens for each in prepared], [each.rows for each in prepared])
    warnings = _match_parameters(entries, prepared, match)
    plot: Path | None = out / PLOT
    try:
        require_extra("plots", "matplotlib")
    except LegatoError as problem:
        plot = None
        warnings.append(f"the learning curves are not drawn: {problem}")
    for line in warnings:
        display.warn(line)
        tell(f"warning: {line}")
    for entry in entries:
        for seed in seeds or [entry.config.seed]:
            folder = out / (re.sub(r"[^\w.-]", "-", entry.label) + (f"-seed{seed}" if len(seeds) > 1 else ""))
            config = check({**dump(entry.config), "seed": seed, "out": str(folder)})
            display.say(f"── {entry.label}" + (f", seed {seed}" if len(seeds) > 1 else ""))
            tell(f"{entry.label}: training …")
            result = _run(config, folder, Display(quiet, lambda text: tell(f"  {text}"), suggests=False))
            entry.results.append(result)
            tell(f"{entry.label}: {result.parameters:,} parameters, {result.seconds:.0f} seconds")
    comparison = Comparison(entries, out, plot, warnings)
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "compare.json", to_json(comparison.summary(), indent=1))
    if plot is not None:
        draw({entry.label: entry.results for entry in entries}, comparison.metrics, plot)
    return comparison


def _entries(names: list[str], given: dict[str, Any]) -> list[ComparisonEntry]:
    swept = {k: v for k, v in given.items() if isinstance(v, list) and k not in (*LISTS, *BARE_LISTS)}
    fixed = {k: v for k, v in given.items() if k not in swept}
    entries = []
    for name in [task_named(name) or name for name in names]:
        for values in itertools.product(*swept.values()):
            chosen = dict(zip(swept, values, strict=True))
            parts = [Path(name).stem if name not in TASKS else ""] if len(names) > 1 else []
            parts += [str(value) if key in SHORT_SECTIONS else f"{key}={value}" for key, value in chosen.items()]
            alike = TASKS.get(name).compared if name in TASKS else {}
            settings = {**alike, **fixed, **chosen}
            if chosen.get("adapt", "lora") != "lora":  # what is said of LoRA is for the entries that have it
                settings = {k: v for k, v in settings.items() if not k.startswith("adapt.") and k not in LORA}
            asked = settings_for(name, settings)
            config = check(asked)
            label = " ".join(part for part in parts if part) or Path(name).stem
            own_width = "width" in (resolved(asked, NAMES).get("model") or {})
            entries.append(ComparisonEntry(label, config, own_width))
    if len({entry.label for entry in entries}) < len(entries):
        raise ConfigError("two of the things to compare have the same name; rename one of the files")
    if len(entries) < 2:
        raise ConfigError("there is only one thing to compare; give a list, as in model=[elman,lstm], or two files")
    return entries


def _run(config: RunConfig, folder: Path, display: Any) -> Result:
    """The run in `folder`: made, or gone on with where an earlier attempt at this comparison stopped."""
    if not (folder / "config.yaml").exists():
        return start_run(config, display)
    different = {"out": True, "train": {"tensorboard"}}  # and still the same run
    saved = check(read_yaml(folder / "config.yaml"))
    if saved.model_dump(exclude=different) != config.model_dump(exclude=different):  # type: ignore[arg-type]
        raise FolderError(f"{folder} holds a run with other settings; choose another out=…")
    return finished_result(folder) or resume_run(folder, {}, display)


def _same_data(entries: list[ComparisonEntry]) -> None:
    """Refuse to compare runs on different data, or that may stop when they like."""
    first = entries[0]
    theirs = flat(dump(first.config)["data"])
    for entry in entries[1:]:
        mine = flat(dump(entry.config)["data"])
        nested = [key for key in mine if key in theirs and key.endswith((".train", ".valid"))]  # of one of many tasks
        for key in ("train", "valid", "root", "column", *nested):
            if mine.get(key) != theirs.get(key):
                raise ConfigError(
                    f"'{entry.label}' has data.{key}={brief(mine.get(key))}, '{first.label}' "
                    f"{brief(theirs.get(key))}; set one for all"
                )
    if any(entry.config.train.patience for entry in entries):
        raise ConfigError("train.patience would stop each run at another length; leave it out of a comparison")


def _same_budget(entries: list[ComparisonEntry], tokens: list[int], rows: list[int | None]) -> None:
    """Refuse to compare runs that read different numbers of tokens or, where all count those, of texts.

    The same texts are more tokens to one tokenizer than to another.
    """
    counts, unit = [count for count in rows if count is not None], "texts"
    advice = "set train.batch_rows and train.epochs, or train.steps, for all"
    if len(counts) < len(rows):
        counts, unit = tokens, "tokens"
        advice = "set train.steps and train.batch_tokens for all, the latter a multiple of every data.window"
    for entry, count in zip(entries, counts, strict=True):
        if count != counts[0]:
            first = f"'{entries[0].label}' on {counts[0]:,}"
            raise ConfigError(f"'{entry.label}' would train on {count:,} {unit}, {first}; {advice}")


def _match_parameters(entries: list[ComparisonEntry], prepared: list[Prepared], match: Any) -> list[str]:
    """Choose each entry's width so that its parameters come closest to the first one's, or to a number.

    A line for the user where that leaves some of them far apart.
    """
    if match in ("none", None):
        return []
    target = int(match) if match != "parameters" else _parameters(entries[0].config, prepared[0])
    unmatched, advice = [], ["set match=none"]
    for entry, data in zip(entries, prepared, strict=True):
        reason, remedy = _why_fixed(entry)
        if not reason:
            entry.config = _with_width(entry.config, _closest_width(entry.config, data, target))
            reason, remedy = "at the width that comes nearest", "set another match=NUMBER"
        count = _parameters(entry.config, data)
        if abs(count - target) > TOLERANCE * target:
            unmatched.append(f"'{entry.label}' {count:,} ({reason})")
            if remedy and remedy not in advice:
                advice.insert(0, remedy)
    if not unmatched:
        return []
    aim = f" for the {target:,} parameters of '{entries[0].label}'" if match == "parameters" else ""
    return [f"match={match} is not reached{aim}: {', '.join(unmatched)}; {', or '.join(advice)}"]


def _why_fixed(entry: ComparisonEntry) -> tuple[str, str]:
    """Why the entry's width cannot be chosen, and what to set so that it can; empty where it can."""
    if entry.config.start_from is not None:
        return f"it begins with from={brief(entry.config.start_from)}", ""
    if "width" not in type(entry.config.model).model_fields:
        return "it has no width", ""
    return ("its width is set", "leave out model.width") if entry.own_width else ("", "")


def _all_prepared(entries: list[ComparisonEntry]) -> list[Prepared]:
    """`_prepared` of each; entries that differ only in what is put on a model or trained of it read the data once."""
    known: dict[str, Prepared] = {}
    found = []
    for entry in entries:
        key = json.dumps({k: v for k, v in dump(entry.config).items() if k not in ("head", "adapt", "expect")})
        if key not in known:
            known[key] = _prepared(entry.config)
        found.append(known[key])
    return found


def _prepared(config: RunConfig) -> Prepared:
    job = TASKS.get(config.task).prepare(plan_of(config, torch.device("cpu")), lambda text: None)
    steps = resolve_steps(config.train, job.batches.steps_per_epoch)
    rows = config.train.batch_rows
    given = dict(config.model)
    settings = {key: value for key, value in dict(job.model_config).items() if value != given[key]}
    tokens = steps * job.batches.tokens_per_step
    return Prepared(job.sizes, settings, tokens, None if rows is None else steps * rows, job.head)


def _parameters(config: RunConfig, data: Prepared) -> int:
    """How many the run's model has, counted without making it."""
    with torch.device("meta"):
        model = MODELS.get(config.model.name)(config.model.model_copy(update=data.settings), data.sizes)
        if data.head is not None:
            own = {} if config.head is None else config.head.model_dump()
            model = ModelWithHead(model, data.head.model_copy(update=own))
    return count_parameters(model)


def _with_width(config: RunConfig, width: int) -> RunConfig:
    return check({**dump(config), "model": {**config.model.model_dump(), "width": width}})


def _closest_width(config: RunConfig, data: Prepared, target: int) -> int:
    def parameters(width: int) -> int:
        return _parameters(_with_width(config, width), data)

    widths = range(0, WIDEST + 1, config.model.width_multiple)
    above = bisect_left(widths, target, lo=1, hi=len(widths) - 1, key=parameters)  # they grow with the width
    return min(widths[max(1, above - 1) : above + 1], key=lambda width: abs(parameters(width) - target))


def table_of(comparison: Comparison) -> tuple[list[str], list[list[str]], str]:
    """The comparison as people read it: a table's columns, its rows, and what is to be known of it."""
    names = [*comparison.measured, *comparison.figures]
    results = [result for entry in comparison.entries for result in entry.results]
    unit, *others = dict.fromkeys(result.speed_unit for result in results)
    if not others:  # all count their data in the same
        names[names.index("tokens_per_second")] = "speed"
    measured = {**MEASURED, "speed": (f"{unit}/s", speed_text)}
    if unit != TOKENS.name:
        measured["tokens"] = "positions", MEASURED["tokens"][1]
    titles = [measured[name][0] if name in measured else re.sub("[_.]", " ", name) for name in names]
    rows = []
    for entry in comparison.entries:
        cells = [entry.label]
        for name in names:
            mean, spread = entry.mean(name), entry.spread(name)
            if not math.isfinite(mean):
                cells.append("not finite")
            elif name in measured:
                cells.append(measured[name][1](mean))
            else:
                metric = metric_of(comparison.metrics, name)
                more = "" if spread is None else f" ± {metric.text(spread, '.3f')}"
                cells.append(metric.text(mean, ".3f") + more)
        rows.append(cells)
    told = list(comparison.warnings)  # and what is to be known of figures of models that cut texts differently
    if any("valid.unspelt_bytes" in result.metrics for result in results):
        told.append(f"bits per byte: what a model's tokens do not spell is charged at {PRICE:.3f} bits a byte")
    ways = {(str(entry.config.tokenizer), str(entry.config.start_from)) for entry in comparison.entries}
    if "valid.perplexity" in comparison.figures and len(ways) > 1:
        told.append("perplexity is that of a token, which is not the same for each of these")
    return ["model", *titles], rows, "\n".join(told)


def _make_next() -> Path:
    """A new folder of the next free number; of two that ask at one moment each gets its own."""
    for number in itertools.count(1):
        path = Path("runs") / f"compare-{number}"
        with clear_errors(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            with suppress(FileExistsError):
                path.mkdir()
                break
    return path
