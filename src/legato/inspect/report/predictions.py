"""A page about what a model wrote: where it looked for each token, and the search that found it.

    page = PredictionPage(model, Path("dog.html"), beams=4)
    page.add(["A dog runs."], model.predictions(["A dog runs."], beams=4))

It holds a report of each of the first inputs, the one that `legato inspect` makes, of what was predicted: the best
answer is what the decoder reads back, and the tree is that of a search as wide as the one that was asked for. Of a
parser, the tree that it wrote is drawn, too.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from legato.data.formats.text_pairs import tidy
from legato.errors import DataError, LegatoError
from legato.inspect.decoding_tree import parse_tree
from legato.inspect.report.build import report_of
from legato.inspect.report.page import Report, checked_place, write_page
from legato.inspect.report.tree_view import MOST_STEPS
from legato.registry import TASKS
from legato.tasks.predictions import Prediction
from legato.tasks.translation.translator import TAG, tag_token

MOST: Final = 8  # inputs of a page, which has all views of each


class PredictionPage:
    """A file that gets a report of each of the first inputs that a model writes something of."""

    def __init__(
        self,
        model: Any,
        path: Path,
        *,
        beams: int | None = None,
        nbest: int = 1,
        length_penalty: float | None = None,
        max_tokens: int | None = None,
        to: str | None = None,
        alignments: bool = False,
    ) -> None:
        """`model` is what `legato.load` gave, the options are those of its predictions."""
        self.model, self.path, self.to = model, checked_place(path), to
        if TASKS.get(model.task).Options is None:
            model.predictions([])  # which says what it is for instead
        if not model.module.is_encoder_decoder:
            raise DataError(
                f"{model.folder} is a model for {model.task}, which writes nothing token by token; leave out --html, "
                "and look inside with legato inspect"
            )
        steps = None if max_tokens is None else min(max_tokens, MOST_STEPS)
        self.search = {"width": beams, "nbest": nbest, "length_penalty": length_penalty, "steps": steps}
        asks_for_tree = not alignments and (model.task == "parsing" or beams is not None)
        self.first = ("tree", "alignment") if asks_for_tree else ("alignment", "tree")
        self.reports: list[Report] = []
        self.count = 0  # of inputs, drawn or not
        self.problem: str | None = None  # of the first that could not be drawn

    def add(self, inputs: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Draw what was predicted of these, as far as there is room, and write the page."""
        drawn = len(self.reports)
        for given, prediction in zip(inputs, predictions, strict=True):
            self.count += 1
            if len(self.reports) == MOST:
                continue
            try:
                self.reports.append(self._report(given, prediction))
            except LegatoError as problem:
                self.problem = self.problem or str(problem)
        if len(self.reports) > drawn:
            write_page(self.path, self.reports)

    def _report(self, given: Any, prediction: Prediction) -> Report:
        if prediction.problem is not None:
            raise DataError(prediction.problem)
        if not prediction.input.strip():
            raise DataError("the text is empty; give one that has words")
        if not prediction.answers:
            raise DataError("nothing was written of it")
        answer = prediction.answers[0]
        report = report_of(self.model, self._tagged(given), written=answer.text, search=self.search)
        report.given = report.given or prediction.input
        report.trace = None  # which is larger than all that is drawn of it
        report.opens = next((name for name in self.first if name in report.views), None)
        if self.model.task == "parsing":
            report.views["tree"]["parse"] = [asdict(node) for node in parse_tree(answer.text)]
        return report

    def _tagged(self, given: Any) -> Any:
        """A text that says itself which language is to be written of it."""
        return given if self.to is None or TAG.match(tidy(given)) else f"{tag_token(self.to)} {given}"

    def summary(self) -> str:
        """What there is, in a line; refused where nothing was given that could be drawn."""
        if self.count == 0:
            raise DataError(f"there is nothing to draw, so {self.path} was not written; give a text")
        if not self.reports:
            raise DataError(f"no report was written: {self.problem}")
        drawn, unit = len(self.reports), TASKS.get(self.model.task).input_name
        said = (
            f"{drawn} {unit}{'' if drawn == 1 else 's'}"
            if drawn == self.count
            else f"{drawn} of {self.count:,} {unit}s"
        )
        return f"the report is in {self.path}: {said}"
