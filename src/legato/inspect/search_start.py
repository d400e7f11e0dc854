"""What a search of one input begins with, as the model's own task searches: for who looks at the search itself.

The input is read as for every other look inside (`inspect/readings.py`). What a search has beyond that (a limit,
a constraint, tokens that are never written, CTC's say) the task says itself (`Task.search_start`). Tests hold both
searches equal.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from legato.data.text.tokenizers import StreamDecoder
from legato.decoding.options import MAX_TOKENS
from legato.decoding.search_start import SearchStart
from legato.errors import LegatoError
from legato.folders.loaded import Loaded
from legato.inspect.readings import reading_of
from legato.registry import TASKS
from legato.tasks.encoder_decoder import TargetTokens, beam_options
from legato.tasks.translation.translator import Translator

STEPS: Final = 24  # tokens that a language model goes on for, where nobody says


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
    found: SearchStart = TASKS.get(loaded.task).search_start(loaded, given, start)
    return found
