"""Which units of a language model follow quotation marks, comments, brackets, indentation and the line.

    legato train lm/stdlib-lstm
    python examples/units.py runs/stdlib-lstm

Units are chosen on the Python files of the corpus's validation split and asked again on those of its test split.
Beside them: the best unit of a model of the same shape that has learned nothing, and a linear probe over all units.
"""

import argparse
import ast
from collections.abc import Iterator

import legato
from legato.data.formats.text import read_text
from legato.data.sources.files import FileOptions
from legato.inspect.units import find_units


def code(split: str, corpus: str = "builtin:stdlib") -> Iterator[str]:
    """The documents of a split that are Python; the others are chapters of its manual."""
    for document in read_text(corpus, FileOptions(split=split)).documents:
        try:
            ast.parse(document)
        except (SyntaxError, ValueError):
            continue
        yield document


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a run, or a model folder")
    parser.add_argument("--device", default="auto")
    given = parser.parse_args()
    found = find_units(legato.load(given.model, given.device), list(code("valid")), list(code("test")))
    print(f"{'':12}{'unit':>18}{'chosen':>9}{'test':>7}{'untrained':>11}{'probe':>7}")
    for feature, followed in found.items():
        best = followed.best[0]
        print(
            f"{feature:12}{best.name + '/' + str(best.unit):>18}{best.correlation:9.2f}{best.confirmed:7.2f}"
            f"{followed.untrained.confirmed:11.2f}{followed.probe:7.2f}"
        )


if __name__ == "__main__":
    main()
