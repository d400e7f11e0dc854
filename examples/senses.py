"""One word, two senses: a vector for each type has no choice, a vector for each place in a text has.

    python examples/senses.py runs/w MODEL

prints, for each model, the cosine of a word's vectors in two sentences: 1.00 where they are one and the same, as in
word2vec (`legato train word2vec data.train=T.txt out=runs/w`), and less the more a model tells the senses apart.
"""

from __future__ import annotations

import sys

import torch

import legato
from legato.data.batching.examples import collate_examples
from legato.errors import LegatoError

# A word, twice in one sense and once in another.
SENSES = {
    "die": ("many of the animals die in winter", "without water the trees die", "he threw the die and got a six"),
    "great": ("it was a great film", "she gave a great performance", "the great auk was a bird of the north"),
    "rock": ("the rock fell from the cliff", "there was a rock in the river", "the band played rock and jazz"),
}


@torch.no_grad()
def vector(model: legato.Model, sentence: str, word: str) -> torch.Tensor:
    """The last layer's state of a word in a sentence."""
    words = sentence.split()
    row = model.module.config.text_reader(model.tokenizer).words(words)
    assert row.positions is not None
    place = row.positions[words.index(word)]
    if row.ids[place] == model.tokenizer.unk_id:
        raise SystemExit(f"{model.folder} does not know '{word}'")
    return model.module.states(collate_examples([row]).to(model.device))[-1][0, place]


def main(places: list[str]) -> None:
    if not places:
        raise SystemExit("give models: python examples/senses.py runs/w MODEL")
    models = {place: legato.load(place) for place in places}
    print("cosine of a word with itself, in the same sense and in another")
    for word, sentences in SENSES.items():
        for place, model in models.items():
            first, same, other = (vector(model, sentence, word) for sentence in sentences)
            alike, apart = (float(torch.cosine_similarity(first, found, dim=0)) for found in (same, other))
            print(f"{word:>8}  same {alike:.2f}  other {apart:.2f}  {place}")


if __name__ == "__main__":
    try:
        main(sys.argv[1:])
    except LegatoError as problem:
        raise SystemExit(f"senses: {problem}") from None
