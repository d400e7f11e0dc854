"""Learning curves of runs that are compared, as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from legato.evaluation.metrics import Metric, Metrics
from legato.runs.run_folder import RunFolder
from legato.runs.train import Result


def draw(runs: Mapping[str, Sequence[Result]], metrics: Metrics, file: Path) -> None:
    """The validation figure over training tokens: a line for each run by its label, a mark for each validation."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot
    from matplotlib.ticker import EngFormatter

    figure, axes = pyplot.subplots(figsize=(7, 4.5), constrained_layout=True)
    metric = Metric("loss")
    headlines = [metric for metric in metrics if metric.headline and metric.name != "loss"]
    for number, (label, results) in enumerate(runs.items()):
        for result in results:
            lines = [line for line in RunFolder(result.run).metrics() if line["kind"] == "valid"]
            first = lines[0] if lines else {}
            metric = next((metric for metric in headlines if metric.name in first), metric)
            per_step = result.tokens / max(result.steps, 1)
            lines = [line for line in lines if isinstance(line.get(metric.name), int | float)]
            tokens = [line["step"] * per_step for line in lines]
            values = [metric.printed(line[metric.name]) for line in lines]
            name = label if result is results[0] else None
            axes.plot(tokens, values, color=f"C{number}", marker=".", label=name)
    axes.set_xlabel("training tokens")
    axes.xaxis.set_major_formatter(EngFormatter())
    axes.set_ylabel(f"validation {metric.name.replace('_', ' ')}" + f" ({metric.sign})" * bool(metric.sign))
    axes.legend()
    axes.grid(alpha=0.3)
    figure.savefig(file, dpi=130)
    pyplot.close(figure)
