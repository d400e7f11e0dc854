"""What each layer of a model knows of words: linear probes for parts of speech and for dependency arcs.

    python examples/probes.py MODEL TRAIN.conllu DEV.conllu [--sentences 1000] [--html probes.html]

For each layer: how often a linear probe is right, and by how much more than with labels that were drawn at random for
each word (selectivity, Hewitt & Liang 2019). The centre of gravity is the mean layer by the weights of a learned mix,
the expected layer by what each adds (Tenney et al. 2019): in a pipeline, parts of speech have theirs below the arcs.
"""

import argparse

import legato
from legato.errors import LegatoError
from legato.inspect.probes import dependency_arcs, probe_layers, tagged_words
from legato.inspect.report.analysis_views import layers_view
from legato.inspect.report.build import report_of

SENTENCE = "The keys to the cabinet are on the table."


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("model", help="a run, a model folder, or a name on the hub")
    parser.add_argument("train", help="a CoNLL-U file")
    parser.add_argument("dev", help="another one, which the probes are asked on")
    parser.add_argument("--sentences", type=int, default=1000, help="of each file, at most")
    parser.add_argument("--html", help="write a report, too")
    given = parser.parse_args()
    model = legato.load(given.model)
    found = {}
    for name, read in {"parts of speech": tagged_words, "dependency arcs": dependency_arcs}.items():
        train, dev = (read(file)[: given.sentences] for file in (given.train, given.dev))
        found[name] = probes = probe_layers(model, train, dev)
        learned, asked = probes.examples
        print(f"{name}: {learned:,} labels learned from, {asked:,} asked; always the commonest {probes.baseline:.1%}")
        for layer, (right, drawn) in enumerate(zip(probes.accuracy, probes.control, strict=True)):
            print(f"  layer {layer:2}  {right:6.1%}  selectivity {right - drawn:6.1%}")
        if probes.centre_of_gravity is not None and probes.expected_layer is not None:
            print(f"  centre of gravity {probes.centre_of_gravity:.2f}, expected layer {probes.expected_layer:.2f}")
    if given.html:
        report = report_of(model, SENTENCE)
        report.views["layers"] = layers_view(report, model.trace(SENTENCE), found, model)
        report.write_html(given.html)


if __name__ == "__main__":
    try:
        main()
    except LegatoError as problem:
        raise SystemExit(f"probes: {problem}") from None
