"""Any model that writes, as EleutherAI's evaluation harness asks for it: `lm_eval --model legato`.

    python -m legato.lm_eval --model legato --model_args pretrained=runs/g,batch_tokens=4096 --tasks sst2

takes lm_eval's own command line (`pip install lm_eval`), with our models added to its. Three methods are all that it
needs of a model (lm_eval 0.4, `lm_eval/api/model.py`):

    loglikelihood(context, continuation)   log P(continuation | context), and whether greedy search would write it
    loglikelihood_rolling(text)            log P(text), in windows that do not overlap, each behind one token
    generate_until(context, settings)      what is written greedily (or drawn) up to a stop string

as its `hf` model computes them: what is too long loses its beginning, and spaces between context and continuation
belong to the continuation.

Notable: requests whose tokens are the same but for the last, as those of choices of one token each, are read once;
requests go side by side in order of their length; only what is scored is read out, since a vocabulary is wide.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import Any, Final

import torch
import torch.nn.functional as F
from tqdm import tqdm

from legato.data.batching.batch import Batch, Inputs
from legato.data.text.tokenizers import Tokenizer
from legato.errors import ConfigError, warn
from legato.folders.finite_scores import check_finite
from legato.loading import load
from legato.model import Model

try:
    from lm_eval.api.model import LM
    from lm_eval.api.registry import register_model
except ModuleNotFoundError:
    if __name__ != "__main__":
        raise
    sys.exit("legato: lm_eval is not installed here; pip install lm_eval")

BATCH_TOKENS: Final = 2048  # of requests that are read side by side
READ_OUT: Final = 256  # positions whose logits are made at once
NEW_TOKENS: Final = 256  # that are written, where a task does not say; lm_eval's own default

Continuation = tuple[list[int], list[int]]  # the tokens before, and those that are scored


@register_model("legato")
class LegatoLM(LM):
    """A model folder, a run, a GGUF file or a hub name as lm_eval's model.

    >>> LegatoLM("runs/g").loglikelihood(requests)                                # doctest: +SKIP
    [(-0.31, True), (-4.2, False)]
    """

    def __init__(
        self,
        pretrained: str | Model,
        *,
        batch_size: int | str = 16,
        batch_tokens: int | str = BATCH_TOKENS,
        max_length: int | str | None = None,
        device: str | None = None,
        dtype: str = "float32",
        quantize: str | None = None,
        max_batch_size: int | None = None,
    ) -> None:
        """At most `batch_size` requests write, and `batch_tokens` tokens are read, side by side."""
        super().__init__()
        if device == "cuda:0" and not torch.cuda.is_available():
            device = None  # that is what lm_eval asks for where it was told nothing
            warn("there is no CUDA here (cuda:0 was asked for, or nothing): reading elsewhere")
        width = {"dtype": dtype} | ({} if quantize is None else {"quantize": quantize})
        self.model = pretrained if isinstance(pretrained, Model) else load(pretrained, device or "auto", **width)
        self.model.check_generates()
        tokenizer = self.model.tokenizer
        if not isinstance(tokenizer, Tokenizer):
            raise ConfigError(f"{self.model.folder} reads no text, so lm_eval has nothing to ask of it")
        self.tokenizer: Tokenizer = tokenizer
        self.batch_size = 16 if str(batch_size).startswith("auto") else int(batch_size)
        self.batch_tokens = int(batch_tokens)
        own = self.model.module.max_length or 2048
        self.max_length = own if max_length is None else min(own, int(max_length))
        self.prefix = tokenizer.eos_id if tokenizer.bos_id is None else tokenizer.bos_id

    # --- the three methods --------------------------------------------------------------------------

    def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
        """log P of each continuation behind its context, and whether each of its tokens is the likeliest."""
        found = self._score([self._pair(*request.args) for request in requests], disable_tqdm)
        for request, answer in zip(requests, found, strict=True):
            self.cache_hook.add_partial("loglikelihood", request.args, answer)
        return found

    def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
        """log P of each text, every token of it scored once."""
        windows, owners = [], []
        for number, request in enumerate(requests):
            for window in self._windows(self._whole(request.args[0])):
                windows.append(window)
                owners.append(number)
        totals = [0.0] * len(requests)
        for number, (logp, _) in zip(owners, self._score(windows, disable_tqdm), strict=True):
            totals[number] += logp
        for request, total in zip(requests, totals, strict=True):
            self.cache_hook.add_partial("loglikelihood_rolling", request.args, total)
        return totals

    def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
        """The text behind each context up to the first stop string, which is left out."""
        texts = [""] * len(requests)
        kinds: dict[str, list[int]] = {}
        for number, request in enumerate(requests):
            kinds.setdefault(repr(sorted(request.args[1].items())), []).append(number)
        progress = tqdm(total=len(requests), desc="writing", disable=disable_tqdm)
        for numbers in kinds.values():
            settings = requests[numbers[0]].args[1]
            options = self._options(settings)
            room = self.max_length - options["max_tokens"]
            if room < 1:
                raise ConfigError(
                    f"max_gen_toks={options['max_tokens']:,} leaves no room in {self.max_length:,} tokens"
                )
            prompts = {number: self._encode(requests[number].args[0])[-room:] for number in numbers}
            order = sorted(numbers, key=lambda number: len(prompts[number]))
            for start in range(0, len(order), self.batch_size):
                part = order[start : start + self.batch_size]
                written = self.model.generate([prompts[number] or [self.prefix] for number in part], **options)
                for number, text in zip(part, written, strict=True):
                    texts[number] = text
                progress.update(len(part))
        progress.close()
        for request, text in zip(requests, texts, strict=True):
            self.cache_hook.add_partial("generate_until", request.args, text)
        return texts

    # --- scores -------------------------------------------------------------------------------------

    @torch.no_grad()
    def _score(self, pairs: Sequence[Continuation], quiet: bool = True) -> list[tuple[float, bool]]:
        """log P of each continuation, and whether each of its tokens is the likeliest."""
        rows: dict[tuple[int, ...], list[int]] = {}  # what is read, and whose it is
        for number, (before, after) in enumerate(pairs):
            if len(after) > self.max_length:
                raise ConfigError(
                    f"a continuation has {len(after):,} tokens, but the model reads {self.max_length:,} at most"
                )
            if after:
                rows.setdefault(tuple([*before, *after][-(self.max_length + 1) :][:-1]), []).append(number)
        found = [(0.0, True)] * len(pairs)  # of nothing
        order = sorted(rows, key=len)
        progress = tqdm(total=len(order), desc="reading", disable=quiet)
        start = 0
        while start < len(order):
            end = start + 1
            while end < len(order) and (end + 1 - start) * len(order[end]) <= self.batch_tokens:
                end += 1
            numbers = [number for row in order[start:end] for number in rows[row]]
            for number, answer in zip(numbers, self._read(order[start:end], rows, pairs), strict=True):
                found[number] = answer
            progress.update(end - start)
            start = end
        progress.close()
        return found

    def _read(
        self, read: Sequence[tuple[int, ...]], rows: dict[tuple[int, ...], list[int]], pairs: Sequence[Continuation]
    ) -> Iterator[tuple[float, bool]]:
        module = self.model.module
        inputs = Inputs.of(read, module.device, self.tokenizer.pad_id or 0)
        hidden = module(Batch(inputs)).hidden  # (B, T, D)
        scored = [(row, pairs[number][1]) for row, ids in enumerate(read) for number in rows[ids]]
        # Each position once, however many continuations end there.
        places: dict[tuple[int, int], int] = {}
        for row, after in scored:
            for place in range(len(read[row]) - len(after), len(read[row])):
                places.setdefault((row, place), len(places))
        at = torch.tensor(list(places), device=module.device)
        wanted = [
            (places[row, len(read[row]) - len(after) + n], token)
            for row, after in scored
            for n, token in enumerate(after)
        ]
        where, tokens = torch.tensor(wanted).T
        logps, bests = torch.empty(len(wanted)), torch.empty(len(wanted), dtype=torch.bool)
        for first in range(0, len(at), READ_OUT):
            part = at[first : first + READ_OUT]
            logp = F.log_softmax(module.readout(hidden[part[:, 0], part[:, 1]]).float(), -1).cpu()  # (N, V)
            chosen = (where >= first) & (where < first + READ_OUT)
            own = where[chosen] - first
            logps[chosen], bests[chosen] = logp[own, tokens[chosen]], logp.argmax(-1)[own] == tokens[chosen]
        check_finite(logps, module)
        begin = 0
        for _, after in scored:
            span = slice(begin, begin + len(after))
            yield float(logps[span].sum()), bool(bests[span].all())
            begin += len(after)

    # --- chat templates -----------------------------------------------------------------------------

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        self.model.check_chats()
        chat = self.model.loaded.chat
        assert chat is not None
        return chat.render(chat_history, answer=add_generation_prompt)

    def chat_template(self, chat_template: bool | str = False) -> str | None:
        chat = self.model.loaded.chat
        return None if chat is None or not chat_template else chat.source

    @property
    def tokenizer_name(self) -> str:
        return self.tokenizer.fingerprint()

    @property
    def device(self) -> torch.device:
        return self.model.module.device

    # --- tokens -------------------------------------------------------------------------------------

    def _encode(self, text: str) -> list[int]:
        """Tokens of a text with what the tokenizer puts before one, but where the text begins with that itself."""
        begins = self.tokenizer.token_name(self.prefix)
        if self.tokenizer.follows_own_template and begins and text.startswith(begins):
            return self.tokenizer.encode_template(text)
        if self.tokenizer.follows_own_template:
            return self.tokenizer.encode_with_special_tokens(text)
        return self.tokenizer.prompt(text)

    def _plain(self, text: str) -> list[int]:
        """Tokens of a text with nothing before it."""
        if self.tokenizer.follows_own_template:
            return self.tokenizer.encode_template(text)
        return self.tokenizer.prompt(text)[len(self.tokenizer.prompt("")) :]

    def _whole(self, text: str) -> list[int]:
        """Tokens of a text of which all are scored: those that a published tokenizer puts before it, too."""
        return self._encode(text) if self.tokenizer.follows_own_template else self._plain(text)

    def _pair(self, context: str, continuation: str) -> Continuation:
        """A context's tokens and its continuation's: those of both as one text, behind as many as the context has."""
        bare = context.rstrip()
        continuation = context[len(bare) :] + continuation
        if not bare:
            ids = self._plain(continuation)
            return (ids[:1], ids[1:]) if ids[:1] == [self.prefix] else ([self.prefix], ids)
        before, whole = self._encode(bare), self._encode(bare + continuation)
        return before, whole[len(before) :]

    def _windows(self, ids: list[int]) -> Iterator[Continuation]:
        """Each token once, behind as many others as fit: of the last window all before those that it scores."""
        done = 0
        while done < len(ids):
            count = min(len(ids) - done, self.max_length)
            end = done + count
            first = max(0, end - self.max_length)
            before = [self.prefix, *ids[:done]] if first == 0 else ids[first - 1 : done]
            yield before, ids[done:end]
            done = end

    def _options(self, settings: dict[str, Any]) -> dict[str, Any]:
        """lm_eval's settings of writing as ours."""
        until = settings.get("until") or []
        stop = [until] if isinstance(until, str) else [text for text in until if text]
        most = next(
            (settings[name] for name in ("max_gen_toks", "max_tokens", "max_new_tokens") if name in settings), 0
        )
        options: dict[str, Any] = {"max_tokens": int(most) or NEW_TOKENS, "stop": stop, "search": "greedy"}
        temperature = float(settings.get("temperature") or 0.0)
        if settings.get("do_sample", temperature > 0) and temperature > 0:
            drawn = {name: settings[name] for name in ("top_p", "top_k", "seed") if settings.get(name)}
            options |= {"search": "sample", "temperature": temperature, **drawn}
        return options


if __name__ == "__main__":
    from lm_eval.__main__ import cli_evaluate

    cli_evaluate()
