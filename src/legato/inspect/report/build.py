"""A report of one input of one model, with every view that the model has.

report_of(legato.load("runs/x"), "A dog runs.").write_html("dog.html")
"""

from __future__ import annotations

from collections.abc import Mapping
from html import escape
from typing import Any, Final

from legato.data.positions import Reading
from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.inspect.report.analysis_views import gradient_view, layers_view, lens_view, positions_view
from legato.inspect.report.backdrops import add_backdrops, picture_in
from legato.inspect.report.page import Report
from legato.inspect.report.trace_views import Costs, alignment_view, attention_view, cells_view, head_view, map_view
from legato.inspect.report.tree_view import tree_view
from legato.inspect.trace import Trace, traced

MOST_TOKENS: Final = 512  # of an input whose gradients are looked at as well


def report_of(
    model: Any,
    given: Any,
    *,
    written: str | None = None,
    task: str | None = None,
    prefix: str | None = None,
    beside: Mapping[str, Any] | None = None,
    search: Mapping[str, Any] | None = None,
    **options: Any,
) -> Report:
    """What the studio draws of a model, which `legato.load` gave; `options` are those of `model.trace`.

    `prefix` is what the texts of the decoding tree begin with, `search` what else is asked of it (`tree_view`: its
    width, nbest, …); gradients of the models `beside`, by their names, are drawn with its own.
    """
    model = model.for_task(task)
    loaded: Loaded = model.loaded
    reading = reading_of(loaded, given, written)
    with Costs(loaded.module) as costs:
        trace = traced(loaded, reading, **options)
    report = trace_report(trace, given if isinstance(given, str) else "")
    add_backdrops(report, loaded, reading)
    report.views["map"] = map_view(loaded, costs)
    picture = picture_in(reading)
    size = None if picture is None else picture.shape[1:]
    more = {"layers": layers_view(report, trace, model=model), "positions": positions_view(report, model, size)}
    more["tree"] = tree_view(loaded, given, prefix=prefix, **(search or {}))
    more["lens"] = lens_view(report, model, given, written, reading=reading)
    more["gradient"] = _gradients(report, model, given, reading, beside or {})
    report.views |= {name: view for name, view in more.items() if view is not None}
    return report


def _gradients(
    report: Report, model: Any, given: Any, reading: Reading, beside: Mapping[str, Any]
) -> dict[str, Any] | None:
    """How far gradients reach back in a model, and in others beside it.

    That there is nothing to draw is said to who names others; that it is for the text alone, in the report.
    """
    loaded: Loaded = model.loaded
    count = list(reading.positions.values())[-1].count
    predicts = reading.written is not None and loaded.module.has_readout and not loaded.module.is_encoder_decoder
    if loaded.module.is_encoder_decoder:
        why = f"{loaded.folder} does not predict the next token of what it reads"
    elif count > MOST_TOKENS:
        why = f"the text has {count:,} tokens, and gradients are drawn of {MOST_TOKENS} at most"
    else:
        view = gradient_view(report, {str(loaded.module.config.name): model, **beside}, given)
        if view is not None:
            return view
        why = "none of the models predicts the next token"
        if predicts and count < 2:
            why = "the text has one token, and a loss is of one that follows another"
    if predicts and not 1 < count <= MOST_TOKENS:
        report.absent["gradient"] = why
    if beside:
        raise LegatoError(f"{why}, so there is no gradient to draw others beside; leave them out")
    return None


def named_apart(own: str, others: Mapping[str, Any]) -> dict[str, Any]:
    """Models by names that tell them from each other and from the one called `own`, given by what was asked for.

    One is called as its kind, or what was asked for where another is of that kind.
    """
    named: dict[str, Any] = {}
    for asked, model in others.items():
        words = (str(model.module.config.name), asked, str(model.folder))
        numbered = (f"{asked} ({number})" for number in range(2, len(others) + 4))
        named[next(word for word in (*words, *numbered) if word != own and word not in named)] = model
    return named


def trace_report(trace: Trace, given: str = "") -> Report:
    """What can be drawn of a trace alone."""
    report = Report.of_trace(trace, given)
    if any("frame" in each.axes for each in trace.values()):
        trace = trace.of_frame(0)  # of a clip, the first
    attention = attention_view(report, trace)
    views = {
        "attention": attention,
        "alignment": alignment_view(attention),
        "head": head_view(report, trace, attention),
        "cells": cells_view(report, trace),
    }
    report.views |= {name: view for name, view in views.items() if view is not None}
    return report


def notebook_html(trace: Trace) -> str:
    """The studio as the output of a notebook's cell: a page of its own inside of the notebook's."""
    page = escape(trace_report(trace).html(), quote=True)
    style = "width: 100%; height: 720px; border: 1px solid #8884; border-radius: 6px"
    return f'<iframe sandbox="allow-scripts allow-downloads" style="{style}" srcdoc="{page}"></iframe>'
