"""One word, two senses: a vector for each type has no choice, a vector for each place in a text has.

    python examples/senses.py runs/w MODEL

prints, for each model, the cosine of a word's vectors in two sentences: 1.00 where they are one and the same, as in
word2vec (`legato train word2vec data.train=T.txt out=runs/w`), and less the more a model tells the senses apart.
"""

from __future__ import annotations

import sys

import legato
from legato.errors import LegatoError
from legato.inspect.senses import word_senses

# A word, twice in one sense and once in another.
SENSES = {
    "die": ("many of the animals die in winter", "without water the trees die", "he threw the die and got a six"),
    "great": ("it was a great film", "she gave a great performance", "the great auk was a bird of the north"),
    "rock": ("the rock fell from the cliff", "there was a rock in the river", "the band played rock and jazz"),
}


def main(places: list[str]) -> None:
    if not places:
        raise SystemExit("give models: python examples/senses.py runs/w MODEL")
    models = {place: legato.load(place) for place in places}
    print("cosine of a word with itself, in the same sense and in another")
    for word, sentences in SENSES.items():
        for place, model in models.items():
            cosines = word_senses(model, word, sentences).cosines
            print(f"{word:>8}  same {cosines[0, 1]:.2f}  other {cosines[0, 2]:.2f}  {place}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LegatoError as problem:
        raise SystemExit(f"senses: {problem}") from None
