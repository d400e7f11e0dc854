"""How well texts are classified, by scikit-learn and SciPy, and what went wrong.

    classes       accuracy, macro_f1 (the mean of the classes' F1), matthews (correlation of guessed and true classes,
                  Matthews 1975); of two classes also f1, that of the second one, which is called the positive
    multilabel    micro_f1 (over all labels of all texts), macro_f1, exact (share of texts whose labels are all right)
    regression    pearson and spearman (correlation of the values and of their ranks)

All are shares or correlations, from 0 or -1 to 1. A class that is never guessed has precision and F1 of 0, and values
that are all alike correlate with nothing: 0.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from legato.data.formats.labels import NOT_LEARNED, Labels
from legato.evaluation.metrics import metrics

Array = np.ndarray[Any, np.dtype[Any]]
Detail = tuple[str, list[str], list[list[Any]]]  # a title, the names of columns, rows

METRICS: Final = (
    *metrics("loss", better="down", headline=True),
    *metrics("accuracy", "f1", "macro_f1", "micro_f1", unit="fraction", better="up", headline=True),
    *metrics("matthews", "spearman", "pearson", unit="fraction", better="up", headline=True),
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
    likely: Array = odds / odds.sum(axis=1, keepdims=True)
    return likely


def classification_scores(labels: Labels, found: Array, wanted: Sequence[Any]) -> dict[str, Any]:
    """The scores of probabilities or values `found` against the encoded labels, with a signature.

    What was not learned (`Labels.encode`) is never right.

    >>> scores = classification_scores(Labels("classes", ["no", "yes"]), np.array([[.9, .1], [.2, .8]]), [0, 1])
    >>> scores["accuracy"], scores["f1"]
    (1.0, 1.0)
    """
    if labels.kind == "regression":
        return _correlations(found, np.asarray(wanted, dtype=np.float64))
    import sklearn
    from sklearn import metrics

    signature = f"macro_f1:classes={labels.outputs}|zero_division:0|scikit-learn:{sklearn.__version__}"
    if labels.kind == "multilabel":
        true = np.asarray(wanted) > THRESHOLD
        guessed = _as_wide(found >= THRESHOLD, true)
        known = labels.outputs
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


def _as_wide(guessed: Array, true: Array) -> Array:
    """What was guessed (N, C), with nothing in the place that stands for labels that were not learned."""
    return np.pad(guessed, ((0, 0), (0, true.shape[1] - guessed.shape[1])))


def _correlations(found: Array, wanted: Array) -> dict[str, Any]:
    import scipy
    from scipy import stats

    moving = len(found) > 1 and np.ptp(found) > 0 and np.ptp(wanted) > 0
    scores = {
        "pearson": float(stats.pearsonr(found, wanted).statistic) if moving else 0.0,
        "spearman": float(stats.spearmanr(found, wanted).statistic) if moving else 0.0,
    }
    scores = {name: value if math.isfinite(value) else 0.0 for name, value in scores.items()}
    return {**scores, "correlation_signature": f"ties:mean rank|scipy:{scipy.__version__}"}


# --- what went wrong -------------------------------------------------------------------------------


def classification_details(
    labels: Labels, found: Array, wanted: Sequence[Any], texts: Sequence[str], places: Sequence[str]
) -> list[Detail]:
    """Scores per class, who was taken for whom, and the errors that were most certain.

    `places` says where each text stands.
    """
    if labels.kind == "regression":
        return [_worst_values(found, wanted, texts, places)]
    if labels.kind == "multilabel":
        true, guessed = np.asarray(wanted)[:, : labels.outputs] > THRESHOLD, found >= THRESHOLD
        return [_per_class(labels, true, guessed), _worst_labels(labels, found, true, texts, places)]
    classes = np.asarray(wanted, dtype=np.int64)
    every = np.arange(labels.outputs)
    true, guessed = classes[:, None] == every, found.argmax(axis=1)[:, None] == every
    return [
        _confusion(labels, true, guessed),
        _per_class(labels, true, guessed),
        _worst_classes(labels, found, classes, texts, places),
    ]


def _confusion(labels: Labels, true: Array, guessed: Array) -> Detail:
    counts = true.T.astype(np.int64) @ guessed.astype(np.int64)  # (true, guessed)
    if labels.outputs <= WIDEST:
        rows = [[name, *map(int, counts[place])] for place, name in enumerate(labels.names)]
        if not (known := true.any(axis=1)).all():
            rows.append([NOT_LEARNED, *map(int, guessed[~known].sum(axis=0))])
        return "confusion", ["true \\ guessed", *labels.names], rows
    off = counts - np.diag(np.diag(counts))
    order = sorted(zip(*np.nonzero(off), strict=True), key=lambda pair: (-off[pair], pair))[:WIDEST]
    pairs = [[labels.names[a], labels.names[b], int(off[a, b])] for a, b in order]
    return "most frequent confusions", ["true", "guessed", "texts"], pairs


def _per_class(labels: Labels, true: Array, guessed: Array) -> Detail:
    rows = []
    for place, name in enumerate(labels.names):
        right = int((true[:, place] & guessed[:, place]).sum())
        there, said = int(true[:, place].sum()), int(guessed[:, place].sum())
        precision, recall = right / max(said, 1), right / max(there, 1)
        rows.append([name, precision, recall, 2 * right / max(there + said, 1), there])
    return "scores per class", ["class", "precision", "recall", "f1", "texts"], rows


def _worst_classes(
    labels: Labels, found: Array, classes: Array, texts: Sequence[str], places: Sequence[str]
) -> Detail:
    guessed = found.argmax(axis=1)
    wrong = np.flatnonzero(guessed != classes)
    worst = wrong[np.argsort(-found[wrong, guessed[wrong]], kind="stable")][:WORST]
    rows: list[list[Any]] = [
        [labels.shown(classes[n]), labels.names[guessed[n]], float(found[n, guessed[n]]), texts[n], places[n]]
        for n in worst
    ]
    title = f"worst errors, {len(rows)} of {len(wrong):,}"
    return title, ["true", "guessed", "probability", "text", "where"], rows


def _worst_labels(labels: Labels, found: Array, true: Array, texts: Sequence[str], places: Sequence[str]) -> Detail:
    missed = np.where(true, 1.0 - found, found)  # how sure it was of the opposite
    wrong = np.argwhere(true != (found >= THRESHOLD))
    worst = sorted(map(tuple, wrong), key=lambda pair: (-missed[pair], pair))[:WORST]
    rows: list[list[Any]] = [
        [labels.names[c], "yes" if true[n, c] else "no", float(found[n, c]), texts[n], places[n]] for n, c in worst
    ]
    title = f"worst errors, {len(rows)} of {len(wrong):,}"
    return title, ["label", "there", "probability", "text", "where"], rows


def _worst_values(found: Array, wanted: Sequence[Any], texts: Sequence[str], places: Sequence[str]) -> Detail:
    off = np.abs(found - np.asarray(wanted, dtype=np.float64))
    worst = np.argsort(-off, kind="stable")[:WORST]
    rows: list[list[Any]] = [[float(wanted[n]), float(found[n]), float(off[n]), texts[n], places[n]] for n in worst]
    return f"worst errors, {len(rows)} of {len(off):,}", ["true", "guessed", "off by", "text", "where"], rows


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
        found = self._found(list(texts))
        scores = classification_scores(self.labels, found, wanted)
        return {f"baseline_{name}": value for name, value in scores.items() if isinstance(value, float)}

    def _found(self, texts: list[str]) -> Array:
        if self.labels.kind == "regression":
            values: Array = np.asarray(self.pipeline.predict(texts), dtype=np.float64)
            return values
        likely = np.asarray(self.pipeline.predict_proba(texts))
        if self.labels.kind == "multilabel":
            return likely
        found = np.zeros((len(texts), self.labels.outputs))
        found[:, self.pipeline.classes_.astype(np.int64)] = likely  # a class without examples is never guessed
        return found
