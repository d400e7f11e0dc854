"""What a task's figures are: the scale they are kept on, how they are printed, and which way is better.

Files, JSON and Python hold a figure as its scorer gives it: accuracies, the F1 of classes and correlations as
fractions (from 0, or -1, to 1), and so the precision of boxes; BLEU, chrF, CIDEr and the F1 of names, answers and
brackets in percent. Whatever prints one for people prints percent, with two decimals: an accuracy of 0.905 reads
90.50%. BLEU, chrF, CIDEr, correlations and reciprocal ranks are no shares: they are points, on the same scale without
a sign, as in the field's tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Literal

DetailTable = tuple[str, list[str], list[list[Any]]]
"""A title, the columns' names and the rows: what is shown below the figures."""
Unit = Literal["", "fraction", "percent"]


@dataclass(frozen=True)
class Metric:
    """One of a task's figures.

    >>> Metric("accuracy", "fraction").text(0.905), Metric("tokens").text(1200)
    ('90.50%', '1,200')
    >>> Metric("bleu", "percent", points=True).text(41.2)
    '41.20'
    """

    name: str  # or a pattern: `bleu_*`
    unit: Unit = ""  # how it is kept; fractions and percent are both printed in percent
    better: Literal["", "up", "down"] = ""
    headline: bool = False  # whether each validation shows it, and a comparison
    decoded: bool = False  # whether it is of what a search wrote, which the figure depends on
    eval_only: bool = False  # whether `legato eval` alone tells it, or has it in a table
    points: bool = False  # whether it is printed as percent is, but without the sign

    def printed(self, value: float) -> float:
        """The value on the scale on which it is printed."""
        return 100 * value if self.unit == "fraction" else value

    @property
    def sign(self) -> str:
        """What follows the printed value."""
        return "%" if self.unit and not self.points else ""

    def text(self, value: Any, digits: str = ".4f") -> str:
        """The value as people read it; `digits` are those of what is not in percent."""
        if value is None:
            return "not finite"
        if isinstance(value, str):
            return value
        if self.unit:
            return f"{self.printed(value):.2f}{self.sign}"
        return f"{value:,}" if isinstance(value, int) else f"{value:{digits}}"


Metrics = tuple[Metric, ...]


def metrics(*names: str, **rest: Any) -> Metrics:
    """Metrics that differ in nothing but their names; `rest` as in `Metric`."""
    return tuple(Metric(name, **rest) for name in names)


def metric_of(known: Iterable[Metric], name: str) -> Metric:
    """The metric of a figure's name, `accuracy` or `valid.accuracy`; a plain number where it is none of the known.

    >>> metric_of(metrics("bleu", "bleu_*", unit="percent"), "test.bleu_en-de").unit
    'percent'
    """
    bare = name.removeprefix("valid.").removeprefix("test.")
    return next((metric for metric in known if fnmatchcase(bare, metric.name)), Metric(bare))


def printed_scores(
    known: Iterable[Metric], scores: Mapping[str, Any], digits: str = ".4f", search: str = ""
) -> dict[str, str]:
    """Scores for people: each name in words, with what searched where the figure depends on that, and its text.

    What searched is said by a score of that name (`search`, `valid.search`, `test.search`), or by `search`.

    >>> printed_scores(metrics("wer", unit="percent", decoded=True), {"valid.wer": 4.2, "valid.search": "beam 4"})
    {'valid wer (beam 4)': '4.20%'}
    """
    known, told = tuple(known), {}
    for name, value in scores.items():
        split, metric = name[: -len(name.removeprefix("valid.").removeprefix("test."))], metric_of(known, name)
        searched = scores.get(f"{split}search", search) if metric.decoded and not isinstance(value, str) else ""
        if metric.name != "search":
            label = name.replace(".", " ").replace("_", " ")
            told[f"{label} ({searched})" if searched else label] = metric.text(value, digits)
    return told
