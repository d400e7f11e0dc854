"""What examples in a prompt are worth: accuracy of a model that only writes, with none, one, two, … before the text.

    python examples/few_shots.py MODEL train.tsv dev.tsv --labels negative,positive --shots 0,2,4,8

The files have columns of texts and labels, with names (text, label) or guessed. Examples are drawn from the first
file, alike from each class, three times for each number of them; the second file is what is scored.
"""

from __future__ import annotations

import argparse
import random
import statistics
from collections.abc import Sequence
from itertools import zip_longest

import legato
from legato.data.formats.labelled import read_labelled
from legato.errors import LegatoError


def draw(rows: Sequence[tuple[str, str]], labels: Sequence[str], count: int, seed: int) -> list[tuple[str, str]]:
    """So many different examples in a random order, as many of each label as can be."""
    choose = random.Random(seed)
    of_each = [choose.sample(own, len(own)) for label in labels if (own := [row for row in rows if row[1] == label])]
    dealt = [row for turn in zip_longest(*of_each) for row in turn if row is not None]
    return choose.sample(dealt[:count], min(count, len(dealt)))


def main() -> None:
    parse = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parse.add_argument("model")
    parse.add_argument("train")
    parse.add_argument("test")
    parse.add_argument("--labels", help="names for the labels, in the order of the files' own: a,b")
    parse.add_argument("--shots", default="0,2,4,8")
    parse.add_argument("--template", default="{text} It was {label}.")
    parse.add_argument("--most", type=int, default=200, help="texts that are scored")
    parse.add_argument("--calibrate", action="store_true")
    given = parse.parse_args()

    model = legato.load(given.model)
    train, test = read_labelled(given.train), read_labelled(given.test)
    own = sorted({str(label) for label in train.labels})
    labels = given.labels.split(",") if given.labels else own
    if len(labels) != len(own):
        raise SystemExit(f"{given.train} has the labels {', '.join(own)}; name as many: --labels {','.join(own)}")
    names = dict(zip(own, labels, strict=True))
    strange = sorted({str(label) for label in test.labels} - set(own))
    if strange:
        raise SystemExit(f"{given.test} has the label '{strange[0]}', which {given.train} lacks")
    rows = [(text, names[str(label)]) for text, label in zip(train.joined(), train.labels, strict=True)]
    texts, wanted = test.joined()[: given.most], [names[str(label)] for label in test.labels[: given.most]]
    how = {"template": given.template, "calibrate": given.calibrate}
    for count in map(int, given.shots.split(",")):
        right = []
        for seed in range(3 if count else 1):
            shots = draw(rows, labels, count, seed)
            found = model.classifications(texts, labels=labels, shots=shots, **how)
            guessed = [each.answers[0].text if each.answers else "too long" for each in found]
            right.append(statistics.mean(guess == true for guess, true in zip(guessed, wanted, strict=True)))
        spread = f" ± {100 * statistics.stdev(right):.2f}" if len(right) > 1 else ""
        print(f"{count:3} examples: accuracy {100 * statistics.mean(right):.2f}{spread} on {len(texts):,} texts")


if __name__ == "__main__":
    try:
        main()
    except LegatoError as problem:
        raise SystemExit(f"few_shots: {problem}") from None
