"""The search: greedy, beam, random walk and drawn beams, as one loop over any model that generates.

Each prompt has a frontier of `width` hypotheses. A step asks the model for every row's next-token logits,
lets `candidates.py` take or draw (row, token) pairs, and selects from them:

- of the first `width` candidates, those that are an end token close their hypothesis;
- the first `width` candidates that are no end are the next frontier.

Width 1 taken is greedy search, width 1 drawn is the random walk, so there is nothing else to write.
`frontier.py` keeps the hypotheses and says when a prompt is done.

The model sees only `nn/state.py`'s protocol; the host waits for the device once a step.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from itertools import chain
from typing import Any, Protocol

import numpy as np
import torch
from torch import Tensor

from legato.data.batching.batch import Inputs
from legato.data.batching.batches import mix_seed
from legato.decoding.candidates import Candidates, Chooser, SearchRandom
from legato.decoding.frontier import Constraint, Frontier, Hypothesis, LogitsProcessor, ranked
from legato.decoding.options import SearchOptions
from legato.decoding.sliding import Sliding
from legato.errors import LegatoError
from legato.folders.finite_scores import not_finite
from legato.nn.pooling import inside
from legato.nn.state import Generates


class SearchObserver(Protocol):
    """Sees every step of a search, and changes nothing (inspect/decoding_tree.py)."""

    def scored(self, logits: Tensor, forbidden: Tensor, frontier: Frontier) -> None:
        """Before candidates are chosen: logits (G · W, V), not to be kept, and the tokens that nobody may write."""

    def advanced(self, candidates: Candidates, frontier: Frontier) -> None:
        """After what ended has closed and the rest has become the next frontier."""


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
    ends = sorted({*stop_tokens} | (set() if eos is None else {eos}))
    _check(prompts, ends, model.vocabulary, options, text_of)
    limits = [options.max_tokens] * len(prompts) if limits is None else limits
    most, device = max(limits), model.device
    groups = len(prompts) * options.samples
    seeds = _seeds(prompts, sources, options) if options.drawn else []
    chooser = Chooser(
        options, ends, sorted(suppress), SearchRandom(seeds, device), sorted(suppress_first), normalised
    )
    frontier = Frontier(np.repeat(limits, options.samples), options, ends, model.vocabulary, on_token, text_of)

    # Not inference mode: tables that a model keeps for later, made here, must still serve its training.
    with torch.no_grad():
        inputs = Inputs.of(prompts, device)
        state = model.start(len(prompts), inputs.token_ids.shape[1] + most, memory)
        logits = model.prefill(inputs, state)  # (B, V)
        penalised = options.repetition_penalty != 1
        seen = _tokens_in(inputs, model.vocabulary) if penalised else None  # (B, V)
        if groups * options.width > len(prompts):
            rows = torch.arange(len(prompts), device=device).repeat_interleave(options.samples * options.width)
            state.reorder(rows)
            logits = logits[rows]  # (B · samples · width, V)
            seen = None if seen is None else seen[rows]

        for step in range(most):
            may_end = step >= options.min_tokens
            allowed = None if constraint is None else frontier.allowed(constraint, may_end)
            if processor is not None:
                written = [frontier.history(row)[0] for row in range(len(logits))]
                logits = processor(logits, written, [frontier.prompt_of(row) for row in range(len(logits))])
            if observer is not None:
                observer.scored(logits, chooser.forbidden[step == 0, may_end], frontier)
            candidates = chooser(
                logits,
                frontier.scores,
                frontier.groups,
                seen,
                None if allowed is None else torch.from_numpy(allowed).to(device),
                may_end,
                first=step == 0,
            )
            if (where := frontier.broken(candidates)) is not None:
                raise not_finite(_module_of(model), where)
            frontier.advance(candidates)
            if observer is not None:
                observer.advanced(candidates, frontier)
            if text_of is not None and options.stop:
                frontier.close_at_stop(text_of)
            frontier.close_spent()
            frontier.settle()
            if frontier.done.all():
                break
            frontier.shrink()
            chosen = torch.from_numpy(frontier.steps[-1].tokens).to(device)  # (G · W,)
            if frontier.moved:
                rows = torch.from_numpy(frontier.steps[-1].parents).to(device)
                state.reorder(rows)
                seen = None if seen is None else seen[rows]
            if seen is not None:
                seen.scatter_(-1, chosen[:, None], True)
            logits = model.step(chosen, state)  # (G · W, V)

    of_groups = [closed.values() for closed in frontier.closed]
    of_prompt = [of_groups[i * options.samples : (i + 1) * options.samples] for i in range(len(prompts))]
    return [ranked(chain(*closed))[: options.nbest] for closed in of_prompt]


def _check(
    prompts: Sequence[Sequence[int]],
    ends: Sequence[int],
    vocabulary: int,
    options: SearchOptions,
    text_of: Callable[[Sequence[int]], str] | None,
) -> None:
    for number, prompt in enumerate(prompts, start=1):
        if not prompt:
            raise LegatoError(f"prompt {number} is empty; a prompt needs at least one token")
        if not 0 <= min(prompt) <= max(prompt) < vocabulary:
            raise LegatoError(f"prompt {number} holds a token outside the model's vocabulary of {vocabulary}")
    if ends and not 0 <= ends[0] <= ends[-1] < vocabulary:
        raise LegatoError(f"end tokens {list(ends)}: not all are in the model's vocabulary of {vocabulary}")
    if options.stop and text_of is None:
        raise LegatoError("stop strings need text; give the search text_of, from tokens to text")


def _seeds(
    prompts: Sequence[Sequence[int]], sources: Sequence[Sequence[int]] | None, options: SearchOptions
) -> list[tuple[int, int]]:
    """For each group what its draws are made from: seed and prompt, and the walk."""
    found = []
    for number, prompt in enumerate(prompts):
        read = () if sources is None else sources[number]
        seed = mix_seed("drawn", options.seed, [int(token) for token in read], [int(token) for token in prompt])
        found += [(seed, walk) for walk in range(options.samples)]
    return found


def _module_of(model: Any) -> Any:
    """The model whose weights are searched with."""
    return model.model if isinstance(model, Sliding) else model


def _tokens_in(inputs: Inputs, vocabulary: int) -> Tensor:
    """Which tokens each prompt holds, (B, V)."""
    tokens = inputs.token_ids
    own = inside(tokens.unsqueeze(-1), inputs.lengths).squeeze(-1)  # (B, T)
    counts = torch.zeros(len(tokens), vocabulary, dtype=torch.int64, device=tokens.device)
    return counts.scatter_add_(-1, tokens, own.long()) > 0
