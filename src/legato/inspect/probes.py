"""What each layer knows of words: linear probes on frozen states, beside control tasks.

    P(y | x) = softmax(W h_l + b)                   h_l: layer l's state of a word, or of a head and its dependent
    selectivity = accuracy − control                the control's label of a word is drawn once for its type, so only
                                                    remembering words helps with it (Hewitt & Liang 2019)
    h = Σ_l s_l h_l,  s = softmax(a)                a learned mix of the layers; its centre of gravity is Σ_l l s_l
    Δ_l = score(mix of 0 … l) − score(0 … l − 1)    the expected layer is Σ_l l Δ_l / Σ_l Δ_l, l from 1
                                                    (edge probing; Tenney et al. 2019)

Features have a spread of 1 in each layer, and the loss is minimised from zeros to where it is flat, so the same
states give the same probe. W and a have ridges. Without that of a (ELMo has one, too) all weight goes to one layer;
with it weights are more alike than layers are: compare tasks by them, and layers by their accuracy. A word's state is
the mean of its tokens'; layer 0 is what is embedded.

>>> train, test = (dependency_arcs(f"en_ewt-ud-{part}.conllu.gz") for part in ("train", "dev"))     # doctest: +SKIP
>>> found = probe_layers(legato.load("MODEL"), train[:300], test[:150])                             # doctest: +SKIP
>>> found.accuracy, found.selectivity, found.centre_of_gravity                                      # doctest: +SKIP
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from legato.data.formats.tagged_text import read_tagged
from legato.data.sources.files import FileOptions
from legato.errors import DataError, brief
from legato.folders.loaded import Loaded
from legato.inspect.senses import word_states
from legato.inspect.trace import Shaped
from legato.nn.pooling import ScalarMix

RIDGE: Final = 1e-3  # of W, where features have a spread of 1 and the loss is a mean
MIX_RIDGE: Final = 1e-2  # of a
STEPS: Final = 200  # of L-BFGS, at most
FLAT: Final = 3e-4  # the largest slope at its end; with less, accuracies changed by 0.7 percent at most (UD-EWT)
UNSEEN: Final = -1  # a label that the training sentences lack; no probe says it

Array = np.ndarray[Any, np.dtype[np.float64]]


@dataclass(frozen=True)
class LabelledSentence:
    """Words, and labels of some of them or of some pairs of them."""

    words: list[str]
    places: list[tuple[int, ...]]  # the words that each label is of: one, or a head and its dependent
    labels: list[str]


@dataclass(frozen=True, repr=False)
class Probes(Shaped):
    """How well each layer says the labels of held-out sentences: shares that are right, layer 0 first."""

    labels: list[str]
    examples: tuple[int, int]  # labels that were learned from, and that were asked
    left_out: int  # sentences that are longer than the model reads
    baseline: float  # of who always says the commonest label
    accuracy: Array  # (layers + 1,)
    control: Array  # (layers + 1,), the same with labels that were drawn for each word
    mixes: Array | None  # (layers + 1,), of a mix of the layers up to each; None: they are not of one width
    mix_control: float | None  # of the mix of all, with the labels that were drawn
    weights: Array | None  # (layers + 1,), s of the mix of all

    @property
    def selectivity(self) -> Array:
        return self.accuracy - self.control

    @property
    def centre_of_gravity(self) -> float | None:
        """Σ_l l s_l."""
        return None if self.weights is None else float(self.weights @ np.arange(len(self.weights)))

    @property
    def expected_layer(self) -> float | None:
        """Σ_l l Δ_l / Σ_l Δ_l; None where more layers are no better than the embedded words."""
        gains = np.zeros(0) if self.mixes is None else np.diff(self.mixes)
        return float(gains @ np.arange(1, len(gains) + 1) / gains.sum()) if gains.sum() > 0 else None


@dataclass(frozen=True)
class _Targets:
    """What a probe reads and should say."""

    layers: list[Tensor]  # (N, D) each; D is twice as much for pairs
    labels: list[str]
    words: list[str]  # whose type has the control's label: of a pair, the dependent
    left_out: int


def tagged_words(source: str, tag: str | int | None = None) -> list[LabelledSentence]:
    """A label for each word, of a file with tags: CoNLL-U's parts of speech, entities in columns (tagged_text.py)."""
    text = read_tagged(source, tag=tag)
    return [
        LabelledSentence(each.words, [(n,) for n in range(len(each.words))], each.tags) for each in text.sentences
    ]


def dependency_arcs(source: str) -> list[LabelledSentence]:
    """A relation for each pair of a head and its dependent, of a file in CoNLL-U; the root has no head."""
    files = FileOptions(format="conllu")
    heads, relations = (read_tagged(source, files, tag=name) for name in ("head", "deprel"))
    found = []
    for sentence, relation in zip(heads.sentences, relations.sentences, strict=True):
        places: list[tuple[int, ...]] = []
        labels = []
        for place, head in enumerate(sentence.tags):
            if not head.isdecimal() or int(head) > len(sentence.words):
                raise DataError(
                    f"{heads.where(sentence, place)}: the head '{brief(head)}' is no word's number; mend it"
                )
            if int(head):
                places.append((int(head) - 1, place))
                labels.append(relation.tags[place])
        found.append(LabelledSentence(sentence.words, places, labels))
    return found


def probe_layers(
    model: Any,
    train: Sequence[LabelledSentence],
    held_out: Sequence[LabelledSentence],
    *,
    ridge: float = RIDGE,
    seed: int = 0,
) -> Probes:
    """Probes of a model that reads text, fitted to `train` and asked of `held_out`; `seed` draws the control."""
    learned, asked = (_targets(model.loaded, each, what) for each, what in ((train, "train"), (held_out, "held_out")))
    names, device = sorted(set(learned.labels)), learned.layers[0].device
    if len(names) < 2:
        raise DataError(f"all labels to learn from are '{brief(names[0])}'; there must be two at least")
    if learned.layers[0].shape[1] != asked.layers[0].shape[1]:
        raise DataError("train has labels of words and held_out of pairs, or the other way round; probe one kind")
    numbers = {name: number for number, name in enumerate(names)}
    right = [
        torch.tensor([numbers.get(label, UNSEEN) for label in each.labels], device=device)
        for each in (learned, asked)
    ]
    drawn = _control(learned, asked, right[0], len(names), seed)
    spread = [(layer.mean(0), layer.std(0, correction=0).clamp(min=1e-6)) for layer in learned.layers]
    seen, new = (
        [(layer - mean) / size for layer, (mean, size) in zip(each.layers, spread, strict=True)]
        for each in (learned, asked)
    )

    def asked_of(layers: slice, labels: Sequence[Tensor]) -> tuple[float, Tensor]:
        """A probe's accuracy, and its weights of the layers."""
        mix, probe = fit_probe(seen[layers], labels[0], len(names), ridge)
        with torch.no_grad():
            said = probe(mix(new[layers])).argmax(-1)
        return float((said == labels[1]).double().mean()), mix.weights.detach().softmax(0)

    count = len(seen)
    alone = [[asked_of(slice(n, n + 1), labels)[0] for n in range(count)] for labels in (right, drawn)]
    mixed = len({layer.shape[1] for layer in seen}) == 1
    mixes = [asked_of(slice(0, n + 1), right) for n in range(count)] if mixed else []
    return Probes(
        names,
        (len(learned.labels), len(asked.labels)),
        learned.left_out + asked.left_out,
        float((right[1] == right[0].mode().values).double().mean()),
        np.array(alone[0]),
        np.array(alone[1]),
        np.array([accuracy for accuracy, _ in mixes]) if mixed else None,
        asked_of(slice(0, count), drawn)[0] if mixed else None,
        mixes[-1][1].double().cpu().numpy() if mixed else None,
    )


def fit_probe(
    layers: Sequence[Tensor], labels: Tensor, classes: int, ridge: float = RIDGE
) -> tuple[ScalarMix, torch.nn.Linear]:
    """The mix of layers (N, D) and the linear probe over it that say the labels (N,) best."""
    mix = ScalarMix(len(layers)).to(labels.device)
    probe = torch.nn.utils.skip_init(torch.nn.Linear, layers[0].shape[1], classes, device=labels.device)
    mix.scale.requires_grad_(False)  # a larger scale would be a way around the ridge
    for parameter in probe.parameters():
        torch.nn.init.zeros_(parameter)
    learned = [mix.weights, *probe.parameters()]
    steps = torch.optim.LBFGS(learned, max_iter=STEPS, tolerance_grad=FLAT, line_search_fn="strong_wolfe")

    def loss() -> Tensor:
        steps.zero_grad()
        value = F.cross_entropy(probe(mix(layers)), labels)
        value = value + ridge / 2 * probe.weight.square().sum() + MIX_RIDGE / 2 * mix.weights.square().sum()
        value.backward()
        return value

    with torch.enable_grad():
        steps.step(loss)
    return mix, probe


def _targets(loaded: Loaded, sentences: Sequence[LabelledSentence], what: str) -> _Targets:
    """The states of what has labels."""
    used = [each for each in sentences if each.labels]
    if not used:
        raise DataError(f"{what} has no sentence with labels; give some")
    for number, each in enumerate(used, start=1):
        widths, last = {len(place) for place in each.places}, len(each.words) - 1
        outside = [n for place in each.places for n in place if not 0 <= n <= last]
        if len(each.places) != len(each.labels) or widths not in ({1}, {2}) or outside:
            raise DataError(
                f"{what}, sentence {number} with labels: {len(each.labels)} labels of the places "
                f"{brief(each.places)} in {last + 1} words; each is of one word, or each of two"
            )
    states = word_states(loaded, [each.words for each in used])
    fits = [(each, layers) for each, layers in zip(used, states, strict=True) if layers is not None]
    if not fits:
        raise DataError(f"{what}: every sentence is longer than {loaded.folder} reads; give shorter ones")
    parts = [[layer[np.array(each.places)] for layer in layers] for each, layers in fits]  # (N, 1 or 2, D) each
    if len({part[0].shape[1] for part in parts}) > 1:
        raise DataError(f"{what}: some labels are of words and others of pairs; probe one kind at a time")
    joined = [torch.from_numpy(np.concatenate(each)).flatten(1).float() for each in zip(*parts, strict=True)]
    labels = [label for each, _ in fits for label in each.labels]
    words = [each.words[place[-1]] for each, _ in fits for place in each.places]
    return _Targets([layer.to(loaded.module.device) for layer in joined], labels, words, len(used) - len(fits))


def _control(learned: _Targets, asked: _Targets, labels: Tensor, classes: int, seed: int) -> list[Tensor]:
    """Labels that depend on the word alone, drawn for each as the true ones are spread."""
    shares = np.bincount(labels.cpu().numpy(), minlength=classes) / len(labels)
    types = sorted({*learned.words, *asked.words})
    drawn = np.random.default_rng(seed).choice(classes, size=len(types), p=shares)
    of_type = dict(zip(types, drawn.tolist(), strict=True))
    return [torch.tensor([of_type[word] for word in each.words], device=labels.device) for each in (learned, asked)]
