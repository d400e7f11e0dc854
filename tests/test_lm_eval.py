"""Our models behind lm_eval's three methods, beside whole forward passes; lm_eval itself is a stand-in here."""

from __future__ import annotations

import importlib
import runpy
import sys
from dataclasses import dataclass
from types import ModuleType
from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions
from legato.errors import ConfigError
from tiny_published import gpt2_folder

TEXTS = ["the cat sat", "a dog that ran and ran", "it rains"]


class LM:
    """What `lm_eval.api.model.LM` has that a model of its own uses."""

    def __init__(self) -> None:
        self.cache_hook = Hook()


class Hook:
    def __init__(self) -> None:
        self.kept: list[tuple[str, Any, Any]] = []

    def add_partial(self, name: str, arguments: Any, answer: Any) -> None:
        self.kept.append((name, arguments, answer))


@dataclass
class Instance:
    args: tuple[Any, ...]


@pytest.fixture(scope="module")
def harness(tmp_path_factory: pytest.TempPathFactory) -> Any:
    """A model of 40 tokens behind our class, with lm_eval's base class and registry stood in for."""
    named: dict[str, Any] = {}
    modules = {
        name: ModuleType(name) for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model", "lm_eval.api.registry")
    }
    modules["lm_eval.api.model"].LM = LM  # type: ignore[attr-defined]
    modules["lm_eval.api.registry"].register_model = (  # type: ignore[attr-defined]
        lambda name: lambda kind: named.setdefault(name, kind)
    )
    before = {name: sys.modules.get(name) for name in [*modules, "legato.lm_eval"]}
    sys.modules.update(modules)
    sys.modules.pop("legato.lm_eval", None)
    try:
        importlib.import_module("legato.lm_eval")
    finally:
        for name, module in before.items():
            sys.modules.pop(name)
            if module is not None:
                sys.modules[name] = module
    folder = gpt2_folder(tmp_path_factory.mktemp("m"))
    return named["legato"](str(folder), device="cpu", batch_tokens=60, max_length=12)


def test_without_lm_eval_one_line_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("lm_eval", "lm_eval.api", "lm_eval.api.model"):
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.delitem(sys.modules, "legato.lm_eval", raising=False)
    with pytest.raises(SystemExit, match="pip install lm_eval"):
        runpy.run_module("legato.lm_eval", run_name="__main__")


@pytest.mark.skipif(torch.cuda.is_available(), reason="needs a machine without CUDA")
def test_cuda_that_lm_eval_asks_for_by_itself_is_no_wish(harness: Any) -> None:
    with pytest.warns(UserWarning, match="no CUDA here"):
        assert type(harness)(str(harness.model.folder), device="cuda:0").device.type != "cuda"


@torch.no_grad()
def passed(harness: Any, before: list[int], after: list[int]) -> tuple[float, bool]:
    """The same from one forward pass over what the last tokens of both leave room for."""
    module = harness.model.module
    ids = [*before, *after][-(harness.max_length + 1) :]
    hidden = module(Batch(Inputs(torch.tensor([ids[:-1]])))).hidden
    logp = module.readout(hidden)[0].float().log_softmax(-1)[-len(after) :]
    right = torch.tensor(after)
    return float(logp[range(len(after)), right].sum()), bool((logp.argmax(-1) == right).all())


def encoded(harness: Any, text: str) -> list[int]:
    ids: list[int] = harness.tokenizer.encode_with_special_tokens(text)
    return ids


def test_likelihoods_are_those_of_whole_passes(harness: Any) -> None:
    pairs = [(text, more) for text in TEXTS for more in (" a", " the rain", " dog")]
    found = harness.loglikelihood([Instance(pair) for pair in pairs])
    for (context, more), (logp, greedy) in zip(pairs, found, strict=True):
        before, whole = encoded(harness, context), encoded(harness, context + more)
        expected = passed(harness, before, whole[len(before) :])
        assert logp == pytest.approx(expected[0], abs=1e-4)
        assert greedy == expected[1]


def test_what_greedy_search_writes_is_greedy(harness: Any) -> None:
    before = encoded(harness, "it")
    hypothesis = harness.model.hypotheses([before], SearchOptions(search="greedy", max_tokens=3))[0][0]
    assert passed(harness, before, hypothesis.tokens)[1]
    assert [greedy for _, greedy in harness._score([(before, hypothesis.tokens)])] == [True]


def test_spaces_behind_a_context_belong_to_the_continuation(harness: Any) -> None:
    (one,), (other,) = (
        harness.loglikelihood([Instance(pair)]) for pair in (("the cat ", "sat"), ("the cat", " sat"))
    )
    assert one == other


def test_without_a_context_the_begin_token_stands_there(harness: Any) -> None:
    ids = harness.tokenizer.encode_template("the cat")
    (found,) = harness.loglikelihood([Instance(("", "the cat"))])
    assert found[0] == pytest.approx(passed(harness, [harness.prefix], ids)[0], abs=1e-4)


def test_what_is_too_long_loses_its_beginning(harness: Any) -> None:
    context = "the cat sat and the dog ran and it rains"
    before, whole = encoded(harness, context), encoded(harness, context + " a")
    assert len(whole) > harness.max_length + 1
    (found,) = harness.loglikelihood([Instance((context, " a"))])
    assert found[0] == pytest.approx(passed(harness, before, whole[len(before) :])[0], abs=1e-4)
    with pytest.raises(ConfigError, match=r"a continuation has .* tokens, but the model reads 12 at most"):
        harness.loglikelihood([Instance(("a", " " + context))])


def test_choices_of_one_token_are_read_once(harness: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    rows: list[int] = []
    forward = harness.model.module.forward
    monkeypatch.setattr(
        harness.model.module, "forward", lambda batch, *rest: rows.append(batch.rows) or forward(batch, *rest)
    )
    before = encoded(harness, "the")
    harness._score([(before, [3]), (before, [5]), (before, [7])])
    assert rows == [1]


@pytest.mark.parametrize("count", [1, 12, 13, 30])
def test_each_token_of_a_text_is_scored_once_with_all_that_fits_before_it(harness: Any, count: int) -> None:
    ids = [(7 * n) % 20 + 3 for n in range(count)]
    windows = list(harness._windows(ids))
    assert [token for _, after in windows for token in after] == ids
    whole, done = [harness.prefix, *ids], 0
    for before, after in windows:
        done += len(after)
        assert [*before, *after] == whole[max(0, done - 12) : done + 1]


def test_a_text_is_the_sum_of_its_windows(harness: Any) -> None:
    text = "the cat sat and the dog ran and it rains"
    total = sum(passed(harness, *window)[0] for window in harness._windows(encoded(harness, text)))
    (found,) = harness.loglikelihood_rolling([Instance((text,))])
    assert found == pytest.approx(total, abs=1e-4)
    assert harness.cache_hook.kept[-1] == ("loglikelihood_rolling", (text,), found)


def test_what_is_written_is_what_generate_writes_up_to_a_stop(harness: Any) -> None:
    settings = {"until": ["zzz"], "max_gen_toks": 6, "do_sample": False, "temperature": 0.0}
    found = harness.generate_until([Instance((text, settings)) for text in TEXTS])
    cut = [encoded(harness, text)[-6:] for text in TEXTS]
    assert found == [harness.model.generate(ids, search="greedy", max_tokens=6) for ids in cut]
    text = next(text for text in found if text)
    (stopped,) = harness.generate_until([Instance((TEXTS[found.index(text)], {**settings, "until": text[-1]}))])
    assert text[-1] not in stopped
    assert text.startswith(stopped)
    with pytest.raises(ConfigError, match="max_gen_toks=12 leaves no room"):
        harness.generate_until([Instance(("a", {"max_gen_toks": 12}))])
