"""The lectures' story in a few minutes on a CPU: language models, vanishing gradients, attention.

The fixed-window network, the Elman RNN, the GRU and the LSTM are trained on the built-in corpus (the
Python standard library's own documentation and source) with the same number of tokens and nearly the
same number of parameters. Then each is asked to remember one symbol over a growing distance, which is
where the vanishing gradient shows. Last, three models learn to translate a small invented language whose
word order differs from its source's: one has to squeeze each sentence into a state of fixed size, one
looks back at the source by attention, and one is made of attention alone. At the end an LSTM learns to say what is on
small drawn pictures, and a picture of where it looked for each word is saved; and a Conformer to write down
the digits that sounds tell. It ends with a report that opens in a browser: how far gradients reach, and where the
translator with attention looks.

    python examples/demo.py [--out FOLDER]
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.markup import escape
from rich.table import Table

import legato
from legato.cli.printing import show
from legato.data.audio.toy_sounds import SOUNDS, ToySounds, ToySoundsConfig
from legato.data.image.scenes import Scenes, ScenesConfig
from legato.data.image.scenes import picture as draw_scene
from legato.inspect.pictures import attention_maps, attention_sheet
from legato.inspect.report.analysis_views import gradient_view
from legato.inspect.report.build import report_of
from legato.interrupts import Stopped
from legato.runs.compare import Comparison, table_of

MODELS = ["window", "elman", "gru", "lstm"]
DISTANCES = (5, 20, 80)
ATTENTIVE = "LSTM with attention"
TRANSLATORS = {
    "LSTM, no attention": {"model": "seq2seq", "model.attention": "none", "model.width": 96},
    ATTENTIVE: {"model": "seq2seq", "model.attention": "bilinear", "model.width": 96},
    "Transformer": {"model": "transformer", "model.width": 64, "model.layers": 2},
}
LENGTHS = (3, 6, 9, 12)


def language(out: Path, tell: Callable[[str], None]) -> Comparison:
    """The four models on text."""
    settings = {
        "model": MODELS,
        "model.layers": 1,
        "model.dropout": 0,
        "data.train": "builtin:stdlib",
        "data.forget": 0.02,
        "tokenizer": "char",
        "train.steps": 500,
        "train.batch_tokens": 1024,
        "train.lr": 0.015,
        "train.warmup": 20,
        "train.validate_every": 250,
        "train.samples": 0,
        "match": 150_000,
    }
    return legato.compare("lm", settings, out=out, quiet=True, tell=tell)


def recall(out: Path, tell: Callable[[str], None]) -> Comparison:
    """The four models on remembering one of eight symbols over 1 to 80 others."""
    settings = {
        "model": MODELS,
        "model.layers": 1,
        "model.dropout": 0,
        "data.train": "toy:recall",
        "data.toy.distance": [1, max(DISTANCES)],
        "train.steps": 500,
        "train.batch_tokens": 1024,
        "train.lr": 0.005,
        "train.validate_every": 250,
        "train.samples": 0,
        "match": 36_000,
    }
    return legato.compare("lm", settings, out=out, quiet=True, tell=tell)


def accuracy_at(run: Path, distance: int) -> float:
    """How many of 200 new questions at this distance the run's model answers."""
    model = legato.load(run)
    score: float = model.evaluate(test="toy:recall", toy={"distance": distance, "valid_count": 200})["accuracy"]
    return score


def translate(out: Path, tell: Callable[[str], None]) -> dict[str, Path]:
    """The three models on sentences of 3 to 12 words: the same sentences, the same number of them."""
    settings = {
        "data.train": "toy:language",
        "data.toy.length": [3, max(LENGTHS)],
        "model.layers": 1,
        "model.dropout": 0,
        "train.steps": 400,
        "train.batch_tokens": 1024,
        "train.lr": 0.005,
        "train.warmup": 60,
        "train.schedule": "cosine",
        "train.label_smoothing": 0,
        "train.validate_every": 400,
        "train.samples": 0,
        "data.scored": 100,
    }
    runs = {}
    for number, (label, own) in enumerate(TRANSLATORS.items()):
        tell(f"{label}: training …")
        result = legato.train("translation", {**settings, **own}, out=out / str(number), quiet=True)
        tell(f"{label}: {result.parameters:,} parameters, {result.seconds:.0f} seconds")
        runs[label] = result.run
    return runs


def translated_at(run: Path, length: int) -> float:
    """How many of 100 new sentences of so many words are translated without a mistake."""
    scores = legato.load(run).evaluate(test="toy:language", toy={"length": length, "valid_count": 100})
    accuracy: float = scores["accuracy"]
    return accuracy


def describe(out: Path, tell: Callable[[str], None]) -> Path:
    """An LSTM that looks at drawn scenes and says what is on them."""
    settings = {
        "data.train": "toy:scenes",
        "data.scenes.size": 48,
        "data.scenes.most_shapes": 1,
        "data.scenes.count": 6000,
        "data.scenes.valid_count": 100,
        "data.beams": 1,
        "model": "seq2seq",
        "model.attention": "bilinear",  # quicker than the usual one
        "model.encoder": "resnet",
        "model.encoder.embedding": 32,
        "model.encoder.widths": [64],  # one stage: a place of the grid knows what is near it, and nothing else
        "model.encoder.depths": [1],
        "model.layers": 1,
        "model.width": 128,
        "model.dropout": 0.1,
        "train.steps": 350,
        "train.batch_rows": 32,
        "train.lr": 0.003,
        "train.warmup": 30,
        "train.label_smoothing": 0,
        "train.validate_every": 350,
        "train.samples": 0,
    }
    result = legato.train("captioning", settings, out=out, quiet=True)
    tell(f"{result.parameters:,} parameters, {result.seconds:.0f} seconds, CIDEr {result.metrics['valid.cider']:.0f}")
    return result.run


def show_attended(run: Path, picture: Path, tell: Callable[[str], None]) -> None:
    """What the model says of some scenes that it has not seen, and where it looked in the first of them."""
    model = legato.load(run)
    scenes = Scenes(ScenesConfig(size=48, most_shapes=1), "test", seed=0)[:3]
    for scene, said in zip(scenes, model.predict([draw_scene(scene) for scene in scenes]), strict=True):
        (shape,) = scene.shapes
        tell(f"{shape.size} {shape.name}: {said}")
    attention_sheet(attention_maps(model, draw_scene(scenes[0]))).save(picture)
    tell(f"Where it looked for each word of the first: {picture}")


def listen(out: Path, tell: Callable[[str], None]) -> Path:
    """A Conformer that learns to write down the digits of sounds that are made."""
    settings: dict[str, Any] = {
        "data.train": SOUNDS,
        "data.sounds.count": 1500,
        "data.sounds.valid_count": 50,
        "data.batch_seconds": 8,
        "tokenizer": "word",
        "model.layers": 2,
        "model.width": 64,
        "model.channels": 16,
        "model.kernel": 7,
        "model.dropout": 0,
        "model.dropout_attention": 0,
        "train.steps": 220,
        "train.optimizer": "muon",
        "train.lr": 0.003,
        "train.warmup": 20,
        "train.validate_every": 220,
        "train.samples": 0,
    }
    result = legato.train("speech", settings, out=out, quiet=True)
    tell(f"{result.parameters:,} parameters, {result.seconds:.0f} seconds, WER {result.metrics['valid.wer']:.1f} %")
    return result.run


def show_heard(run: Path, tell: Callable[[str], None]) -> None:
    """What the model writes of some sounds that it has not heard, and when it heard each digit of the first."""
    model = legato.load(run)
    sounds = ToySounds(ToySoundsConfig(), "test", seed=0)[:3]
    heard = model.predictions([each.sound for each in sounds], timestamps=True)
    for sound, prediction in zip(sounds, heard, strict=True):
        tell(f"{sound.text}: {prediction.answers[0].text}")
    words = heard[0].answers[0].more["words"]
    tell("Of the first: " + ", ".join(f"{word['word']} at {word['start']:.2f} s" for word in words))


def show_inside(
    remembered: Comparison, translator: Path, asked: str, page: Path, tell: Callable[[str], None]
) -> None:
    """A report: where a translator looks, and how far each model's gradient reaches back on one question."""
    letters = [chr(ord("A") + number % 8) for number in range(0, 7 * max(DISTANCES), 7)]
    question = " ".join(["c", *letters, "?", "=", "c"])
    models = {entry.label: legato.load(entry.results[0].run) for entry in remembered.entries}
    report = report_of(legato.load(translator), asked)
    report.views["gradient"] = gradient_view(report, models, question)
    report.write_html(page)
    tell(f"How far their gradients reach, and where the translator looks: open {page} in a browser.")


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--out", type=Path, help="keep the runs here; left out: a temporary folder")
    parser.add_argument("--picture", type=Path, default=Path("attended.png"), help="of where the last model looked")
    parser.add_argument("--report", type=Path, default=Path("demo.html"), help="of what is inside of some of them")
    options = parser.parse_args()
    console = Console(highlight=False)
    started = time.monotonic()
    with tempfile.TemporaryDirectory() as temporary:
        out = options.out or Path(temporary)
        console.print("Training four language models on the built-in corpus …")
        text = language(out / "language", console.print)
        columns, rows, caption = table_of(text)
        show(columns, rows, caption=caption, right=range(1, len(columns)))
        console.print("\nWhat each writes after 'The ' (the same seed for all):")
        for entry in text.entries:
            model = legato.load(entry.results[0].run)
            sample = model.generate("The ", search="sample", temperature=0.6, max_tokens=150, seed=1)
            console.print(f"\n[bold]{entry.label}[/bold]: The {escape(sample.rstrip())}")
        console.print("\nTraining the same four to recall one of eight symbols over a distance …")
        table = Table("model", *[f"recall at {d}" for d in DISTANCES])
        remembered = recall(out / "recall", console.print)
        for entry in remembered.entries:
            cells = [f"{accuracy_at(entry.results[0].run, d):.0%}" for d in DISTANCES]
            table.add_row(entry.label, *cells)
        console.print(table)
        console.print(
            "Guessing is right in 12%. The window sees 8 tokens, so at 20 and 80 it can only guess. The Elman RNN "
            f"could look back, but little gradient comes back from far (see Gradient in {options.report}), so it "
            "learns this slowly: docs/inspect.md has one that was trained longer. Gates let GRU and LSTM keep what "
            "matters."
        )
        console.print("\nTraining three models to translate an invented language with another word order …")
        table = Table("sentences without a mistake", *[f"{length} words" for length in LENGTHS])
        runs = translate(out / "translation", console.print)
        for label, run in runs.items():
            table.add_row(label, *[f"{translated_at(run, length):.0%}" for length in LENGTHS])
        console.print(table)
        asked = "young old dog sees red horse"
        for label, run in runs.items():
            console.print(f"{label}: {asked} → {legato.load(run).predict(asked)}")
        console.print(
            "The longer the sentence, the less of it fits into a state of fixed size: that is the bottleneck. "
            "Attention looks back at the source instead. (The Transformer gets there too, with more training.)"
        )
        console.print("\nTraining an LSTM to say what is on drawn scenes, looking at a grid of places …")
        show_attended(describe(out / "captioning", console.print), options.picture, console.print)
        console.print("\nTraining a Conformer to write down digits that tones and chirps tell …")
        show_heard(listen(out / "speech", console.print), console.print)
        console.print()
        show_inside(remembered, runs[ATTENTIVE], asked, options.report, console.print)
    console.print(f"\n{time.monotonic() - started:.0f} seconds. Next: legato train lm data.train=YOUR.txt model=lstm")


if __name__ == "__main__":
    try:
        main()
    except Stopped:
        print("stopped")
