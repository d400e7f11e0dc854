"""The search: greedy, beam, random walk and drawn beams, as one loop over any model that generates.

Each prompt has a frontier of `width` hypotheses. A step asks the model for every row's next-token logits,
lets `candidates.py` take or draw (row, token) pairs, and selects from them:

- of the first `width` candidates, those that are an end token close their hypothesis;
- the first `width` candidates that are no end are the next frontier.

Width 1 taken is greedy search, width 1 drawn is the random walk, so there is nothing else to write.
`frontier.py` keeps the hypotheses and says when a prompt is done; the loop is the engine's (`engine.py`), which also
lets requests come and go.

The model sees only `nn/state.py`'s protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

from legato.decoding.engine import Engine
from legato.decoding.frontier import Constraint, Hypothesis, LogitsProcessor
from legato.decoding.options import SearchOptions
from legato.decoding.requests import SearchObserver
from legato.nn.state import Generates

__all__ = ["SearchObserver", "search"]


def search(
    model: Generates,
    prompts: Sequence[Sequence[int]],
    options: SearchOptions,
    *,
    eos: int | None,
    stop_tokens: Collection[int] = (),
    suppress: Collection[int] = (),
    suppress_first: Collection[int] = (),
    limits: Sequence[int] | None = None,
    memory: Any = None,
    sources: Sequence[Sequence[int]] | None = None,
    constraint: Constraint | None = None,
    processor: LogitsProcessor | None = None,
    normalised: bool = False,
    text_of: Callable[[Sequence[int]], str] | None = None,
    on_token: Callable[[int, int], None] | None = None,
    observer: SearchObserver | None = None,
) -> list[list[Hypothesis]]:
    """The best continuations of each prompt, best first.

    `eos` and `stop_tokens` end a hypothesis and are left out of its tokens; `options.min_tokens` forbids
    them for a while. A stop string, looked for in `text_of(generated tokens)`, ends it and is left in:
    `cut_at_stop` cuts the text. The last tokens alone must read as they do in the whole text, but for a
    space or half a character where they begin. Of the n best of a beam no two have the same text, where `text_of`
    tells it: the better one counts. Tokens in `suppress` are never written, those in `suppress_first` not as the
    first. `limits` are the most tokens of each prompt where they differ; none is above `options.max_tokens`. `memory`
    is what `model.encode` gave of `sources`, one row a prompt. `processor` changes the logits of
    rows, by what they have written; `normalised`: what it gives are log-probabilities, which need not sum to 1.

    `on_token(row, token)` is called as tokens are settled: at each step for a width of 1, where row is
    prompt × nbest + walk; for beams when a prompt is done, with the tokens of its best hypothesis. `observer` sees
    every step.

    What is drawn depends on `options.seed`, the prompt (and its source) and the number of the walk, and on nothing
    else in the batch.

    >>> search(model, [[5, 2]], SearchOptions(search="beam"), eos=0)[0][0].tokens  # doctest: +SKIP
    [7, 3]
    """
    if not prompts:
        return []
    engine = Engine(
        model,
        ends={*stop_tokens} | (set() if eos is None else {eos}),
        suppress=suppress,
        suppress_first=suppress_first,
        normalised=normalised,
    )
    numbers = engine.add(
        prompts,
        options,
        limits=limits,
        memory=memory,
        sources=sources,
        constraint=constraint,
        processor=processor,
        text_of=text_of,
        on_token=on_token,
        observer=observer,
    )
    while engine.step():
        pass
    return [engine.take(number) for number in numbers]
