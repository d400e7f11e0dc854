"""What the studio's view "tree" is given: searches of one input as trees, and the tree that a parser wrote."""

from __future__ import annotations

from dataclasses import asdict
from typing import Any, Final

from legato.folders.loaded import Loaded
from legato.inspect.decoding_tree import DecodingTree, decoding_tree, parse_tree
from legato.inspect.search_start import STEPS, writes_tokens
from legato.tasks.encoder_decoder import beam_options

MOST_STEPS: Final = 120  # of a task that says itself when it ends; a picture has no room for more
SAMPLES: Final = 3  # walks in one tree
CANDIDATES: Final = 3  # of each open hypothesis, that were pruned
DIGITS: Final = 4

View = dict[str, Any]


def tree_view(
    loaded: Loaded,
    given: Any,
    *,
    width: int | None = None,
    nbest: int = 1,
    length_penalty: float | None = None,
    samples: int = SAMPLES,
    steps: int | None = None,
    temperature: float = 1.0,
    seed: int = 0,
    candidates: int = CANDIDATES,
    prefix: str | None = None,
) -> View | None:
    """A beam search, a greedy one and some samples, and the parse of what is one; None where nothing is written.

    `width` left out is that of `predict`: what the model's folder says, or 4, and no less than `nbest`. `prefix` is
    what each begins with.
    """
    if not writes_tokens(loaded):
        return None
    usual = MOST_STEPS if loaded.module.is_encoder_decoder else STEPS
    shared: dict[str, Any] = {"steps": usual if steps is None else steps, "candidates": candidates, "prefix": prefix}
    shared["length_penalty"] = length_penalty
    wide = beam_options(loaded.about, width, nbest=nbest).width
    beam = decoding_tree(loaded, given, strategy="beam", width=wide, nbest=nbest, **shared)
    greedy = decoding_tree(loaded, given, strategy="greedy", **shared)
    drawn = decoding_tree(
        loaded, given, strategy="sample", nbest=samples, temperature=temperature, seed=seed, **shared
    )
    titles = f"beam of {wide}", "greedy", "1 sample" if samples == 1 else f"{samples} samples"
    trees = [_told(tree, title) for tree, title in zip((beam, greedy, drawn), titles, strict=True)]
    # The position of the other views whose guess is the first step.
    view: View = {"strategies": trees, "position": beam.before - 1}
    if loaded.task == "parsing" and beam.hypotheses[0].finished:
        view["parse"] = [asdict(node) for node in parse_tree(beam.hypotheses[0].text)]
    return view


def _told(tree: DecodingTree, title: str) -> View:
    """A tree in columns, which are shorter than rows."""
    nodes, options = tree.nodes, tree.options
    return {
        "name": tree.strategy,
        "title": title,
        "length_penalty": options.length_penalty,
        "temperature": options.temperature,
        "steps": tree.steps,
        "most": options.max_tokens,
        "forced": tree.forced,
        "nodes": {
            "parent": [-1 if node.parent is None else node.parent for node in nodes],
            "step": [node.step for node in nodes],
            "token": [node.token for node in nodes],
            "text": [node.text for node in nodes],
            "logprob": [round(node.logprob, DIGITS) for node in nodes],
            "score": [round(node.score, DIGITS) for node in nodes],
            "rank": [node.rank for node in nodes],
            "state": [2 if node.finished else int(node.kept) for node in nodes],  # 0: pruned
        },
        "hypotheses": [
            {
                "node": each.node,
                "text": each.text,
                "score": round(each.score, DIGITS),
                "logprob": round(each.logprob, DIGITS),
                "finished": each.finished,
            }
            for each in tree.hypotheses
        ],
    }
