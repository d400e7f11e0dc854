"""How well texts are classified, by scikit-learn and SciPy, and what went wrong.

    classes       accuracy, macro_f1 (the mean of the classes' F1), matthews (correlation of guessed and true classes,
                  Matthews 1975); of two classes also f1, that of the second one, which is called the positive
    multilabel    micro_f1 (over all labels of all texts), macro_f1, exact (share of texts whose labels are all right)
    regression    pearson and spearman (correlation of the values and of their ranks)

All are shares or correlations, from 0 or -1 to 1. A class that is never guessed has precision and F1 of 0, and values
that are all alike correlate with nothing: 0.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from importlib.metadata import version
from typing import Any, Final

import numpy as np

from legato.data.formats.labels import NOT_LEARNED, Labels
from legato.evaluation.embedding import correlations
from legato.evaluation.metrics import DetailTable, metrics

Array = np.ndarray[Any, np.dtype[Any]]

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("accuracy", "f1", "macro_f1", "micro_f1", unit="fraction", better="up", headline=True),
    *metrics("matthews", "spearman", "pearson", unit="fraction", better="up", headline=True, points=True),
    *metrics("exact", "baseline_*", unit="fraction", better="up"),
    *metrics("precision", "recall", unit="fraction", better="up", eval_only=True),
)
DECIDING: Final = {  # of each kind of labels, what decides first
    "classes": ("accuracy", "f1", "macro_f1", "matthews"),
    "multilabel": ("micro_f1", "macro_f1", "exact"),
    "regression": ("spearman", "pearson"),
}
WIDEST: Final = 20  # classes whose confusion is shown whole
WORST: Final = 10  # errors that are shown
THRESHOLD: Final = 0.5  # probability from which a text has a label, where it may have several


def probabilities(kind: str, logits: Array) -> Array:
    """What a model's outputs (N, C) say: probabilities of classes or labels (N, C), or values (N,)."""
    logits = logits.astype(np.float64)
    if kind == "regression":
        return logits[:, 0]
    if kind == "multilabel":
        return 1.0 / (1.0 + np.exp(-logits.clip(-500, 500)))
    odds = np.exp(logits - logits.max(axis=1, keepdims=True))
    return odds / odds.sum(axis=1, keepdims=True)


def classification_scores(labels: Labels, found: Array, wanted: Sequence[Any]) -> dict[str, Any]:
    """The scores of probabilities or values `found` against the encoded labels, with a signature.

    What was not learned (`Labels.encode`) is never right.

    >>> scores = classification_scores(Labels("classes", ["no", "yes"]), np.array([[.9, .1], [.2, .8]]), [0, 1])
    >>> scores["accuracy"], scores["f1"]
    (1.0, 1.0)
    """
    if labels.kind == "regression":
        both = correlations(found, np.asarray(wanted, dtype=np.float64))
        signature = f"ties:mean rank|scipy:{version('scipy')}"
        return {"pearson": both["pearson"], "spearman": both["spearman"], "correlation_signature": signature}
    from sklearn import metrics

    signature = f"macro_f1:classes={labels.outputs}|zero_division:0|scikit-learn:{version('scikit-learn')}"
    if labels.kind == "multilabel":
        true = np.asarray(wanted) > THRESHOLD
        known = labels.outputs
        # Nothing is guessed in the place that stands for labels that were not learned.
        guessed = np.pad(found >= THRESHOLD, ((0, 0), (0, true.shape[1] - known)))
        return {
            "micro_f1": float(metrics.f1_score(true, guessed, average="micro", zero_division=0)),
            "macro_f1": float(
                metrics.f1_score(true[:, :known], guessed[:, :known], average="macro", zero_division=0)
            ),
            "exact": float((true == guessed).all(axis=1).mean()),
            "f1_signature": f"threshold:{THRESHOLD:g}|{signature}",
        }
    true, guessed = np.asarray(wanted, dtype=np.int64), found.argmax(axis=1)
    every = list(range(labels.outputs))
    scores = {
        "accuracy": float((true == guessed).mean()),
        "macro_f1": float(metrics.f1_score(true, guessed, labels=every, average="macro", zero_division=0)),
        "matthews": 0.0,  # where all is one class there is nothing to correlate
    }
    if len(set(true.tolist()) | set(guessed.tolist())) > 1:
        scores["matthews"] = float(metrics.matthews_corrcoef(true, guessed))
    if labels.outputs == 2:
        positive = labels.names[1]
        positives = (true == 1, guessed == 1)
        scores["f1"] = float(metrics.f1_score(*positives, average="binary", zero_division=0))
        signature = f"f1:positive={positive}|{signature}"
    return {**scores, "f1_signature": signature}


# --- what went wrong -------------------------------------------------------------------------------


def classification_details(
    labels: Labels,
    found: Array,
    wanted: Sequence[Any],
    texts: Sequence[str],
    places: Sequence[str],
    unit: str = "text",
) -> list[DetailTable]:
    """Scores per class, who was taken for whom, and the errors that were most certain.

    `places` says where each text stands; of pictures, which are another `unit`, `texts` are their names.
    """

    def worst(columns: list[str], errors: Iterable[tuple[int, list[Any]]], count: int) -> DetailTable:
        rows = [[*told, texts[number], places[number]] for number, told in errors]
        return f"worst errors, {len(rows)} of {count:,}", [*columns, unit, "where"], rows

    if labels.kind == "regression":
        off = np.abs(found - np.asarray(wanted, dtype=np.float64))
        furthest = np.argsort(-off, kind="stable")[:WORST]
        values = ((n, [float(wanted[n]), float(found[n]), float(off[n])]) for n in furthest)
        return [worst(["true", "guessed", "off by"], values, len(off))]
    if labels.kind == "multilabel":
        true, guessed = np.asarray(wanted)[:, : labels.outputs] > THRESHOLD, found >= THRESHOLD
        missed = np.where(true, 1.0 - found, found)  # how sure it was of the opposite
        errors = sorted(map(tuple, np.argwhere(true != guessed)), key=lambda pair: (-missed[pair], pair))
        said = ((n, [labels.names[c], "yes" if true[n, c] else "no", float(found[n, c])]) for n, c in errors[:WORST])
        return [_per_class(labels, true, guessed, unit), worst(["label", "there", "probability"], said, len(errors))]
    classes, best = np.asarray(wanted, dtype=np.int64), found.argmax(axis=1)
    sure, wrong = found.max(axis=1), np.flatnonzero(best != classes)
    surest = wrong[np.argsort(-sure[wrong], kind="stable")][:WORST]
    taken = ((n, [labels.shown(classes[n]), labels.names[best[n]], float(sure[n])]) for n in surest)
    every = np.arange(labels.outputs)
    true, guessed = classes[:, None] == every, best[:, None] == every
    return [
        _confusion(labels, true, guessed, unit),
        _per_class(labels, true, guessed, unit),
        worst(["true", "guessed", "probability"], taken, len(wrong)),
    ]


def _confusion(labels: Labels, true: Array, guessed: Array, unit: str) -> DetailTable:
    counts = true.T.astype(np.int64) @ guessed.astype(np.int64)  # (true, guessed)
    if labels.outputs <= WIDEST:
        rows = [[name, *map(int, counts[place])] for place, name in enumerate(labels.names)]
        if not (known := true.any(axis=1)).all():
            rows.append([NOT_LEARNED, *map(int, guessed[~known].sum(axis=0))])
        return "confusion", ["true \\ guessed", *labels.names], rows
    off = counts - np.diag(np.diag(counts))
    order = sorted(zip(*np.nonzero(off), strict=True), key=lambda pair: (-off[pair], pair))[:WIDEST]
    pairs = [[labels.names[a], labels.names[b], int(off[a, b])] for a, b in order]
    return "most frequent confusions", ["true", "guessed", f"{unit}s"], pairs


def _per_class(labels: Labels, true: Array, guessed: Array, unit: str) -> DetailTable:
    rows = []
    for place, name in enumerate(labels.names):
        right = int((true[:, place] & guessed[:, place]).sum())
        there, said = int(true[:, place].sum()), int(guessed[:, place].sum())
        precision, recall = right / max(said, 1), right / max(there, 1)
        rows.append([name, precision, recall, 2 * right / max(there + said, 1), there])
    return "scores per class", ["class", "precision", "recall", "f1", f"{unit}s"], rows


# --- the plain model beside it ---------------------------------------------------------------------


class Baseline:
    """TF-IDF of words and pairs of words, and logistic regression; for a scale, ridge regression.

    The texts of a pair are joined. It knows nothing of order beyond two words, and is what a model has to beat.
    """

    def __init__(self, labels: Labels, texts: Sequence[str], wanted: Sequence[Any]) -> None:
        from sklearn.feature_extraction.text import TfidfVectorizer
        from sklearn.linear_model import LogisticRegression, Ridge
        from sklearn.multiclass import OneVsRestClassifier
        from sklearn.pipeline import make_pipeline

        plain = LogisticRegression(max_iter=1000, C=10.0)
        learners = {"classes": plain, "multilabel": OneVsRestClassifier(plain), "regression": Ridge()}
        words = TfidfVectorizer(ngram_range=(1, 2), sublinear_tf=True, token_pattern=r"(?u)\b\w+\b")
        self.labels = labels
        self.pipeline = make_pipeline(words, learners[labels.kind])
        self.pipeline.fit(list(texts), np.asarray(wanted))

    def scores(self, texts: Sequence[str], wanted: Sequence[Any]) -> dict[str, float]:
        """The figures of `classification_scores`, each as `baseline_…`."""
        kind, pipeline = self.labels.kind, self.pipeline
        found = np.asarray((pipeline.predict if kind == "regression" else pipeline.predict_proba)(list(texts)))
        if kind == "classes":  # one without examples is never guessed
            likely, found = found, np.zeros((len(found), self.labels.outputs))
            found[:, pipeline.classes_.astype(np.int64)] = likely
        scores = classification_scores(self.labels, found, wanted)
        return {f"baseline_{name}": value for name, value in scores.items() if isinstance(value, float)}
