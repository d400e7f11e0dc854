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
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from rich.table import Table

from legato.config import SHORT_SECTIONS, read_yaml, split_words
from legato.errors import ConfigError, FolderError, brief
from legato.evaluation.lm import PRICE
from legato.evaluation.metrics import Metric, Metrics, metric_of
from legato.folders.atomic import clear_errors, write_text
from legato.input_files import path_of
from legato.models.base import Sizes, measure
from legato.registry import MODELS, TASKS
from legato.runs.train import (
    Result,
    RunConfig,
    check,
    dump,
    find_recipe,
    finished_result,
    flat,
    plan_of,
    resume_run,
    settings_for,
    start_run,
)
from legato.schema import to_json

# Settings whose value is a list by nature; everywhere else a list means one run each.
LISTS = (
    *("data.train", "data.valid", "data.test", "data.columns", "data.directions", "data.test_directions"),
    "data.valid_columns",
    *("data.toy.distance", "data.toy.length", "data.labels", "adapt.targets"),
)
WIDEST = 16384
NUMBER = re.compile("[0-9]{1,15}")
PLOT = "compare.png"
# Measured of each run, shown where runs differ in how much they train: the column's title, and how a value is shown.
SAVINGS: dict[str, tuple[str, Callable[[float], str]]] = {
    "trainable": ("trainable", lambda value: f"{value:,.0f}"),
    "peak_memory": ("peak memory", lambda value: f"{value / 2**20:,.0f} MiB" if value else "–"),
    "seconds": ("minutes", lambda value: f"{value / 60:,.2f}"),
    "saved_bytes": ("file", lambda value: f"{value / 1e6:,.3g} MB"),
}


@dataclass
class Entry:
    """One thing compared: its settings and the runs made with it."""

    label: str
    config: RunConfig
    own_width: bool = False  # a width that somebody wrote down is theirs; a default is ours to choose
    results: list[Result] = field(default_factory=list)

    def mean(self, figure: str) -> float:
        return statistics.fmean(self._values(figure))

    def spread(self, figure: str) -> float | None:
        """Standard deviation over seeds; None with a single one."""
        values = self._values(figure)
        return statistics.stdev(values) if len(values) > 1 else None

    def _values(self, figure: str) -> list[float]:
        return [_figure_of(result, figure) for result in self.results]


def _figure_of(result: Result, figure: str) -> float:
    value = {**vars(result), **result.metrics}.get(figure, 0.0)
    if value is None:  # it was not finite
        return math.nan
    if isinstance(value, bool) or not isinstance(value, int | float):
        file = result.run / "result.json"
        raise FolderError(f"{file}: 'metrics.{figure}' should be a number, not {brief(value)}; remove the file")
    return float(value)


@dataclass
class Comparison:
    """The entries with their runs, and where everything was kept."""

    entries: list[Entry]
    out: Path
    plot: Path
    figures: list[str]

    @property
    def metrics(self) -> Metrics:
        """What the task says of its figures."""
        return _metrics(self.entries)

    @property
    def measured(self) -> tuple[str, ...]:
        """What every run tells of itself; where not all train everything, what that saves."""
        told = ("parameters", "tokens", "tokens_per_second")
        differ = len({entry.config.adapt for entry in self.entries}) > 1
        return (*told, *SAVINGS) if differ else told

    def summary(self) -> dict[str, Any]:
        rows = []
        for entry in self.entries:
            row: dict[str, Any] = {"label": entry.label, "runs": [str(r.run) for r in entry.results]}
            for figure in (*self.measured, *self.figures):
                row[figure] = {"mean": entry.mean(figure), "spread": entry.spread(figure)}
            rows.append(row)
        return {"out": str(self.out), "plot": str(self.plot), "entries": rows}


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
    given = {**(settings or {}), **more}
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
    from legato.training.display import Display

    if (out / "compare.json").exists():
        raise FolderError(f"{out} already holds a comparison; choose another out=…")
    if (out / PLOT).exists():  # ours comes last
        raise FolderError(f"{out / PLOT} is there already, and is of no comparison; choose another out=…")
    match = given.pop("match", "parameters")
    if match not in ("parameters", "none", None) and not NUMBER.fullmatch(str(match)):
        raise ConfigError(f"match={brief(match)} is not known; use parameters, none, or a number of parameters")
    seeds = given.pop("seed", [])
    seeds = seeds if isinstance(seeds, list) else [seeds]
    names = [what] if isinstance(what, str) else list(what)
    display = Display(quiet)
    entries = _entries(names, given)
    for seed in seeds:  # before the data is read
        check({**dump(entries[0].config), "seed": seed})
    _same_data(entries)
    sizes = _all_sizes(entries)
    _same_budget(entries, [tokens for _, tokens, _ in sizes], [rows for *_, rows in sizes])
    _match_parameters(entries, [size for size, *_ in sizes], match)
    for entry in entries:
        for seed in seeds or [entry.config.seed]:
            folder = out / (_slug(entry.label) + (f"-seed{seed}" if len(seeds) > 1 else ""))
            config = check({**dump(entry.config), "seed": seed, "out": str(folder)})
            display.say(f"── {entry.label}" + (f", seed {seed}" if len(seeds) > 1 else ""))
            tell(f"{entry.label}: training …")
            result = _run(config, folder, Display(quiet, lambda text: tell(f"  {text}")))
            entry.results.append(result)
            tell(f"{entry.label}: {result.parameters:,} parameters, {result.seconds:.0f} seconds")
    comparison = Comparison(entries, out, out / PLOT, _figures(entries))
    out.mkdir(parents=True, exist_ok=True)
    write_text(out / "compare.json", to_json(comparison.summary(), indent=1))
    draw(comparison)
    return comparison


def compare_words(words: Iterable[str], quiet: bool = False) -> Comparison:
    """`compare` from the words of a command line."""
    words = list(words)
    names = [word for word in words if "=" not in word]
    given = split_words(word for word in words if "=" in word)
    if not names:
        raise ConfigError("what should be compared? name a task, or recipes or YAML files")
    return compare(names, given, quiet=quiet)


def _entries(names: list[str], given: dict[str, Any]) -> list[Entry]:
    swept = {k: v for k, v in given.items() if isinstance(v, list) and k not in LISTS}
    fixed = {k: v for k, v in given.items() if k not in swept}
    entries = []
    for name in names:
        for values in itertools.product(*swept.values()):
            chosen = dict(zip(swept, values, strict=True))
            parts = [Path(name).stem if name not in TASKS else ""] if len(names) > 1 else []
            parts += [str(value) if key in SHORT_SECTIONS else f"{key}={value}" for key, value in chosen.items()]
            alike = TASKS.get(name).compared if name in TASKS else {}
            settings = {**alike, **fixed, **chosen}
            if (
                "adapt" in chosen and chosen["adapt"] != "lora"
            ):  # what is said of LoRA is for the entries that have it
                settings = {key: value for key, value in settings.items() if not key.startswith("adapt.")}
            config = check(settings_for(name, settings))
            label = " ".join(part for part in parts if part) or Path(name).stem
            own_width = "model.width" in given or "width" in (_written(name).get("model") or {})
            entries.append(Entry(label, config, own_width))
    if len({entry.label for entry in entries}) < len(entries):
        raise ConfigError("two of the things to compare have the same name; rename one of the files")
    if len(entries) < 2:
        raise ConfigError("there is only one thing to compare; give a list, as in model=[elman,lstm], or two files")
    return entries


def _written(name: str) -> dict[str, Any]:
    if name in TASKS:
        return {}
    return find_recipe(name) or settings_for(name)


def _run(config: RunConfig, folder: Path, display: Any) -> Result:
    """The run in `folder`: made, or gone on with where an earlier attempt at this comparison stopped."""
    if not (folder / "config.yaml").exists():
        return start_run(config, display)
    if check(read_yaml(folder / "config.yaml")).model_dump(exclude={"out"}) != config.model_dump(exclude={"out"}):
        raise FolderError(f"{folder} holds a run with other settings; choose another out=…")
    return finished_result(folder) or resume_run(folder, {}, display)


def _same_data(entries: list[Entry]) -> None:
    """Refuse to compare runs on different data, or that may stop when they like."""
    first = entries[0]
    for entry in entries[1:]:
        for key in ("train", "valid", "root", "column"):
            mine, theirs = (flat(dump(e.config)["data"]).get(key) for e in (entry, first))
            if mine != theirs:
                raise ConfigError(
                    f"'{entry.label}' has data.{key}={brief(mine)}, '{first.label}' {brief(theirs)}; set one for all"
                )
    if any(entry.config.train.patience for entry in entries):
        raise ConfigError("train.patience would stop each run at another length; leave it out of a comparison")


def _same_budget(entries: list[Entry], tokens: list[int], rows: list[int | None]) -> None:
    """Refuse to compare runs that read different numbers of tokens or, where all count those, of texts.

    The same texts are more tokens to one tokenizer than to another.
    """
    first = entries[0]
    counted = [count for count in rows if count is not None]
    if len(counted) == len(rows):
        for entry, count in zip(entries, counted, strict=True):
            if count != counted[0]:
                raise ConfigError(
                    f"'{entry.label}' would train on {count:,} texts, '{first.label}' on {counted[0]:,}; "
                    "set train.batch_rows and train.epochs, or train.steps, for all"
                )
        return
    for entry, count in zip(entries, tokens, strict=True):
        if count != tokens[0]:
            raise ConfigError(
                f"'{entry.label}' would train on {count:,} tokens, '{first.label}' on {tokens[0]:,}; "
                "set train.steps and train.batch_tokens for all, the latter a multiple of every data.window"
            )


def _match_parameters(entries: list[Entry], sizes: list[Sizes], match: Any) -> None:
    """Choose each entry's width so that its parameters come closest to the first one's, or to a number."""
    if match in ("none", None):
        return
    target = int(match) if match != "parameters" else _parameters(entries[0].config, sizes[0])
    for entry, size in zip(entries, sizes, strict=True):
        fixed = entry.own_width or entry.config.start_from is not None
        if not fixed and "width" in type(entry.config.model).model_fields:
            entry.config = _with_width(entry.config, _closest_width(entry.config, size, target))


def _all_sizes(entries: list[Entry]) -> list[tuple[Sizes, int, int | None]]:
    """`_sizes` of each; entries that differ only in what is put on a model or trained of it read the data once."""
    known: dict[str, tuple[Sizes, int, int | None]] = {}
    found = []
    for entry in entries:
        key = json.dumps({k: v for k, v in dump(entry.config).items() if k not in ("head", "adapt", "expect")})
        if key not in known:
            known[key] = _sizes(entry.config)
        found.append(known[key])
    return found


def _sizes(config: RunConfig) -> tuple[Sizes, int, int | None]:
    """What the data fixes of the model, and how many tokens, and texts where these are counted, a run would read."""
    import torch

    from legato.training.schedules import resolve_steps

    job = TASKS.get(config.task).prepare(plan_of(config, torch.device("cpu")), lambda text: None)
    steps = resolve_steps(config.train, job.batches.steps_per_epoch)
    rows = config.train.batch_rows
    return job.sizes, steps * job.batches.tokens_per_step, None if rows is None else steps * rows


def _parameters(config: RunConfig, sizes: Sizes) -> int:
    return measure(MODELS.get(config.model.name), config.model, sizes)


def _with_width(config: RunConfig, width: int) -> RunConfig:
    return check({**dump(config), "model": {**config.model.model_dump(), "width": width}})


def _closest_width(config: RunConfig, sizes: Sizes, target: int) -> int:
    step = config.model.width_multiple
    low, high = 1, WIDEST // step
    while low < high:  # parameters grow with the width
        middle = (low + high) // 2
        if _parameters(_with_width(config, middle * step), sizes) < target:
            low = middle + 1
        else:
            high = middle
    around = [w * step for w in (low - 1, low) if w >= 1]
    return min(around, key=lambda w: abs(_parameters(_with_width(config, w), sizes) - target))


def _metrics(entries: list[Entry]) -> Metrics:
    found: Metrics = TASKS.get(entries[0].config.task).metrics
    return found


def _figures(entries: list[Entry]) -> list[str]:
    """The scores that a table shows: the task's headlines that all runs have, or else the loss."""
    headlines = [metric.name for metric in _metrics(entries) if metric.headline]
    wanted = [f"{split}.{name}" for split in ("valid", "test") for name in headlines]
    found = [name for name in wanted if all(name in e.results[0].metrics for e in entries)]
    found = [name for name in found if not name.endswith(".loss")] or found
    hidden = "valid.unknown_share"  # of the tokens that are to be predicted, which bits per byte alone makes up for
    return [*found, hidden] if any(hidden in r.metrics for e in entries for r in e.results) else found


def table_of(comparison: Comparison) -> Table:
    """The comparison as people read it."""
    table = Table(title_justify="left")
    names = [*comparison.measured, *comparison.figures]
    table.add_column("model", overflow="fold")
    for name in names:
        title = SAVINGS[name][0] if name in SAVINGS else name.replace("tokens_per_second", "tokens/s")
        table.add_column(title.replace("_", " ").replace(".", " "), justify="right")
    for entry in comparison.entries:
        cells = []
        for name in names:
            mean, spread = entry.mean(name), entry.spread(name)
            if name in SAVINGS:
                cells.append(SAVINGS[name][1](mean))
                continue
            if name in comparison.measured or not math.isfinite(mean):
                cells.append(f"{mean:,.0f}" if math.isfinite(mean) else "not finite")
                continue
            metric = metric_of(comparison.metrics, name)
            more = "" if spread is None else f" ± {metric.text(spread, '.3f')}"
            cells.append(metric.text(mean, ".3f") + more)
        table.add_row(entry.label, *cells)
    table.caption, table.caption_justify = "\n".join(_caveats(comparison)) or None, "left"
    return table


def _caveats(comparison: Comparison) -> list[str]:
    """What is to be known of figures of models that cut texts differently."""
    told = []
    results = [result for entry in comparison.entries for result in entry.results]
    if any("valid.unspelt_bytes" in result.metrics for result in results):
        told.append(f"bits per byte: what a model's tokens do not spell is charged at {PRICE:.3f} bits a byte")
    ways = {(str(entry.config.tokenizer), entry.config.start_from) for entry in comparison.entries}
    if "valid.perplexity" in comparison.figures and len(ways) > 1:
        told.append("perplexity is that of a token, which is not the same for each of these")
    return told


def draw(comparison: Comparison) -> None:
    """Learning curves: the validation figure over training tokens, one line an entry, one mark a validation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    from legato.runs.run_folder import RunFolder

    figure, axes = pyplot.subplots(figsize=(7, 4.5), constrained_layout=True)
    metric = Metric("loss")
    headlines = [metric for metric in comparison.metrics if metric.headline and metric.name != "loss"]
    for number, entry in enumerate(comparison.entries):
        for result in entry.results:
            lines = [line for line in RunFolder(result.run).metrics() if line["kind"] == "valid"]
            told = lines[0] if lines else {}
            metric = next((metric for metric in headlines if metric.name in told), metric)
            per_step = result.tokens / max(result.steps, 1)
            lines = [line for line in lines if isinstance(line.get(metric.name), int | float)]
            axes.plot(
                [line["step"] * per_step for line in lines],
                [metric.printed(line[metric.name]) for line in lines],
                color=f"C{number}",
                marker=".",
                label=entry.label if result is entry.results[0] else None,
            )
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_ylabel(f"validation {metric.name.replace('_', ' ')}")
    axes.legend()
    axes.grid(alpha=0.3)
    comparison.out.mkdir(parents=True, exist_ok=True)
    figure.savefig(comparison.plot, dpi=130)
    pyplot.close(figure)


def _slug(label: str) -> str:
    return "".join(c if c.isalnum() or c in "-._" else "-" for c in label)


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
