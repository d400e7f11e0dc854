"""A translator's score by the length of what it reads, and what wider beams do to its outputs.

    python examples/lengths.py MODEL SOURCE.txt REFERENCE.txt [--beams 1,4,16]

The first table says where a model that squeezes a sentence into one vector gives out; the second, that a better
search is not always a better translation.
"""

import argparse
from pathlib import Path

import legato
from legato.errors import LegatoError
from legato.inspect.lengths import beam_sweep, scores_by_length


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a translator: a run, or a model folder")
    parser.add_argument("source", help="a sentence a line")
    parser.add_argument("reference", help="their translations")
    parser.add_argument("--edges", default="10,15,20", help="where one bucket of lengths ends and the next begins")
    parser.add_argument("--beams", default="1,4,16", help="widths of the beam")
    given = parser.parse_args()
    model = legato.load(given.model)
    sources, references = (
        Path(file).read_text(encoding="utf-8").splitlines() for file in (given.source, given.reference)
    )
    pairs = list(zip(sources, references, strict=True))
    print(f"{'words':>8}{'pairs':>7}{'BLEU':>7}{'chrF':>7}{'length':>8}")
    for found in scores_by_length(model, pairs, [int(edge) for edge in given.edges.split(",")]):
        print(f"{found.name:>8}{found.count:7}{found.bleu:7.1f}{found.chrf:7.1f}{found.ratio:8.3f}")
    print(f"{'beam':>8}{'BLEU':>7}{'chrF':>7}{'length':>8}{'repeated':>10}{'log p':>8}{'seconds':>9}")
    for swept in beam_sweep(model, pairs, [int(width) for width in given.beams.split(",")]):
        print(
            f"{swept.beams:8}{swept.bleu:7.1f}{swept.chrf:7.1f}{swept.ratio:8.3f}{swept.repeated:10.3%}"
            f"{swept.logprob:8.2f}{swept.seconds:9.1f}"
        )


if __name__ == "__main__":
    try:
        main()
    except (LegatoError, OSError, ValueError) as problem:
        raise SystemExit(f"lengths: {problem}") from None
