"""A report of a comparison: the courses of its runs beside one another, its table, and the parts of its models.

comparison_report(legato.compare("lm", {"model": ["elman", "lstm"], …})).write_html("compared.html")
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from legato.errors import DataError, LegatoError
from legato.folders.model_folder import read_model
from legato.inspect.report.page import Report
from legato.inspect.report.run_view import MOST_ROWS, run_view
from legato.inspect.report.trace_views import map_view
from legato.runs.compare import Comparison, ComparisonEntry, table_of
from legato.runs.run_folder import RunFolder
from legato.runs.train import Result

LONGEST_NAME: Final = 60  # characters at the top of the page
LEAST_ROWS: Final = 400  # of training, of each of many runs
SCORED: Final = (
    "The table has the scores of each run's best model, taken once training was done; the charts have those of the "
    "validations on the way, so their last ones may differ."
)

View = dict[str, Any]


def comparison_report(comparison: Comparison) -> Report:
    """What the studio draws of a comparison; refused where its runs have left nothing to draw."""
    entries = comparison.entries
    most = max(LEAST_ROWS, MOST_ROWS // sum(len(entry.results) for entry in entries))
    runs = [
        {"name": _name(entry, result), "entry": number, **_course(result, most)}
        for number, entry in enumerate(entries)
        for result in entry.results
    ]
    models = [{"name": entry.label, **parts} for entry in entries if (parts := _parts(entry.results[0].run))]
    if not models and not any(run["rows"] for run in runs):
        raise DataError(
            f"{comparison.out}: its runs have left neither metrics nor models, so there is nothing to draw"
        )
    columns, rows, told = table_of(comparison)
    caption = "\n".join(part for part in (told, SCORED) if part)
    labels = ", ".join(entry.label for entry in entries)
    name = labels if len(labels) <= LONGEST_NAME else f"{len(entries)} compared"
    about: dict[str, str | int] = {"name": name, "task": entries[0].config.task, "folder": str(comparison.out)}
    report = Report(f"{labels} compared", str(comparison.out), {**about, "parameters": 0}, opens="runs")
    report.views["runs"] = {"runs": runs, "table": {"columns": columns, "rows": rows, "caption": caption}}
    if models:
        report.views["map"] = {"models": models}
    return report


def _name(entry: ComparisonEntry, result: Result) -> str:
    """A run's name: its entry's, and its seed where there are several."""
    return entry.label if len(entry.results) == 1 else f"{entry.label}, seed {RunFolder(result.run).settings['seed']}"


def _course(result: Result, most: int) -> View:
    """A run's rows, and how many tokens each of its steps read."""
    return {**run_view(result.run, most), "tokens_per_step": result.tokens / max(result.steps, 1)}


def _parts(run: Path) -> View | None:
    """What the run's model is made of, by shapes alone; None where it cannot be read any more."""
    with suppress(LegatoError):
        return map_view(read_model(run, sketched=True))
    return None
