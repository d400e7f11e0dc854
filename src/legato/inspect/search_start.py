"""What a search of one input begins with, as the model's own task searches: for who looks at the search itself.

The input is read as for every other look inside (`inspect/readings.py`). What a task's search has beyond that is told
here: a limit, a constraint, tokens that are never written, CTC's say. Tests hold both searches equal.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from legato.data.formats.text_pairs import tidy
from legato.data.formats.trees import WORD, escape, fill, flatten
from legato.data.text.tokenizers import AnyTokenizer, StreamDecoder
from legato.decoding.ctc_prefix import JointScores
from legato.decoding.frontier import LogitsProcessor
from legato.decoding.options import MAX_TOKENS
from legato.decoding.tree_constraint import TreeConstraint
from legato.errors import DataError, LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.tasks.captioning.captioner import Captioner
from legato.tasks.encoder_decoder import TargetTokens, beam_options
from legato.tasks.parsing.task import Parser, split_words
from legato.tasks.speech.writer import MORE, Writer, encoded_texts, recognizer_of
from legato.tasks.translation.translator import Translator

STEPS: Final = 24  # tokens that a language model goes on for, where nobody says


@dataclass(frozen=True)
class SearchStart:
    """What a search of one input begins with, as its task searches."""

    model: Any
    prompt: list[int]
    tokenizer: AnyTokenizer  # of what is written
    limit: int  # the most tokens
    usual: int  # how many there are where nobody says
    ends: tuple[int, ...]
    written: Callable[[Sequence[int]], str]  # tokens as the task's answer
    encoded: Callable[[str], list[int]]  # a text to begin with as tokens
    length_penalty: float = 1.0
    memory: Any = None
    source: list[int] | None = None  # its tokens, where it has any
    suppress: tuple[int, ...] = ()
    suppress_first: tuple[int, ...] = ()
    allowed: Callable[[list[int]], Collection[int]] | None = None  # what may follow
    processor: LogitsProcessor | None = None
    normalised: bool = False
    text_of: Callable[[Sequence[int]], str] | None = None  # by which the search tells that two read the same


def writes_tokens(loaded: Loaded) -> bool:
    """Whether a model writes token by token, so that there is a search."""
    module = loaded.module
    return module.is_encoder_decoder or (module.can_generate and module.has_readout)


def search_start(loaded: Loaded, given: Any) -> SearchStart:
    """What a search of one input begins with; refused where the model writes nothing token by token."""
    if not writes_tokens(loaded):
        raise LegatoError(
            f"{loaded.folder} holds a model for {loaded.task} that writes nothing token by token, so there is no "
            "search to look at; take one that generates or translates"
        )
    return _from_source(loaded, given) if loaded.module.is_encoder_decoder else _after_prompt(loaded, given)


def _after_prompt(loaded: Loaded, given: Any) -> SearchStart:
    """Of a model that goes on from what it has read, words and maybe a picture."""
    module, tokenizer, memory = loaded.module, loaded.tokenizer, None
    if isinstance(given, str) and not given.strip():  # it may begin with nothing
        prompt = tokenizer.prompt(given)
    else:
        batch = reading_of(loaded, given).batch.to(module.device)
        prompt = batch.inputs.token_ids[0].tolist()
        memory = None if batch.images is None else module.encode(batch)

    def written(tokens: Sequence[int]) -> str:
        decoder = StreamDecoder(tokenizer, after=prompt)
        return "".join(decoder.push(token) for token in tokens) + decoder.finish()

    def encoded(prefix: str) -> list[int]:
        """As the text would go on, if its tokens stay what they are."""
        whole = tokenizer.prompt(f"{given}{prefix}") if isinstance(given, str) and memory is None else []
        if whole[: len(prompt)] == prompt:
            return whole[len(prompt) :]
        return [int(token) for token in tokenizer.encode(prefix)]

    return SearchStart(
        model=module,
        prompt=prompt,
        tokenizer=tokenizer,
        limit=MAX_TOKENS if module.max_length is None else module.max_length - len(prompt) + 1,
        usual=STEPS,
        ends=loaded.ends,
        written=written,
        encoded=encoded,
        memory=memory,
        text_of=tokenizer.decode,
    )


def _from_source(loaded: Loaded, given: Any) -> SearchStart:
    """Of an encoder–decoder."""
    module, target = loaded.module, loaded.target
    batch = reading_of(loaded, given, "").batch.to(module.device)
    assert batch.source is not None
    prompt = batch.inputs.token_ids[0].tolist()
    tokens = TargetTokens.of(target, loaded.start)
    source = None if batch.source.ids is None else batch.source.token_ids[0].tolist()
    translator = Translator(module, loaded.tokenizer, target, loaded.start)
    limit = translator.limit(np.asarray(prompt if source is None else source))
    start = SearchStart(
        model=module,
        prompt=prompt,
        tokenizer=target,
        limit=limit,
        usual=limit,
        ends=(tokens.eos,),
        written=target.decode,
        encoded=lambda prefix: [int(token) for token in target.encode(prefix)],
        length_penalty=beam_options(loaded.about).length_penalty,
        memory=module.encode(batch),
        source=source,
        suppress=tokens.suppress,
        text_of=target.decode,
    )
    others = {"captioning": _of_picture, "parsing": _of_sentence, "speech": _of_sound}
    return others[loaded.task](start, loaded, given) if loaded.task in others else start


def _of_picture(start: SearchStart, loaded: Loaded, given: Any) -> SearchStart:
    longest = Captioner.of(loaded).longest
    return replace(start, limit=longest, usual=longest)


def _of_sentence(start: SearchStart, loaded: Loaded, given: str) -> SearchStart:
    parser = Parser(loaded.module, loaded.tokenizer, loaded.target)
    words = [escape(word) for word in split_words(tidy(given))]
    limit = parser.limit(len(words))
    rules = TreeConstraint(parser.opens, parser.closes, parser.word, parser.target_tokens.eos, limit)

    def written(tokens: Sequence[int]) -> str:
        symbols = [parser.target.token(index) for index in tokens]
        try:
            return " ".join(flatten(fill(symbols, words)))
        except DataError:  # not yet a tree
            left = iter(words)
            return " ".join(next(left, symbol) if symbol == WORD else symbol for symbol in symbols)

    def encoded(prefix: str) -> list[int]:
        symbols = (symbol if symbol[0] in "()" else WORD for symbol in prefix.split())
        found = [parser.target.id_of(symbol) for symbol in symbols]
        return [-1 if index is None else index for index in found]

    allowed = rules.for_sentence(len(words))
    return replace(start, limit=limit, usual=limit, written=written, encoded=encoded, allowed=allowed, text_of=None)


def _of_sound(start: SearchStart, loaded: Loaded, given: Any) -> SearchStart:
    writer = recognizer_of(loaded)
    assert isinstance(writer, Writer), "an encoder–decoder of sound writes with its decoder"
    prompt = replace(writer.begins, tokens=tuple(start.prompt), languages=())
    tokens = writer.target_tokens(prompt)
    counts, logits = start.memory.lengths, loaded.module.ctc_logits(start.memory)
    limit = writer.longest if counts is None else min(writer.longest, int(counts[0]) + MORE)
    found = replace(
        start,
        limit=limit,
        usual=limit,
        written=writer.text,
        encoded=lambda prefix: encoded_texts(writer.tokenizer, [prefix], spaced=prompt.spaced)[0],
        suppress=tokens.suppress,
        suppress_first=tokens.suppress_first,
        length_penalty=1.0,
        text_of=writer.tokenizer.decode,
    )
    if logits is None:
        return found
    said = logits.float().log_softmax(-1)
    joint = JointScores(said, counts, blank=writer.blank, eos=tokens.eos, weight=writer.share)
    return replace(found, processor=joint, normalised=True, length_penalty=0.0)
