"""The loop and its cache in blocks: a text is what it would be alone, whoever writes beside it and however few blocks
there are; beginnings are read once; long prompts and newcomers hold up nobody."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from tiny_searches import assert_same, options

from legato.decoding import runners
from legato.decoding.batch import GATHER_STEPS, Batch
from legato.decoding.engine import Engine
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.runner import Runner
from legato.errors import LegatoError
from legato.nn.block_cache import BLOCK, KVCache
from random_models import surer

V = 23
HOWS: list[dict[str, Any]] = [
    {},
    {"kind": "sample", "temperature": 0.7},
    {"kind": "sample", "top_k": 5, "top_p": 0.8, "seed": 2},
    {"repetition_penalty": 1.4},
    {"kind": "sample", "min_p": 0.1, "repetition_penalty": 1.2},
    {"kind": "sample", "nbest": 3},
    {"min_tokens": 5},
]
MODELS = {name: surer(name, V) for name in ("gpt2", "llama")}
TOLD = "".join(chr(97 + number) for number in range(26))


def text_of(tokens: Any) -> str:
    return "".join(TOLD[token] for token in tokens)


def engine_of(model: Any, **more: Any) -> Engine:
    return Engine(model, ends=[0], suppress=[5], suppress_first=[7], **{"recorded": True, "rows": 8, **more})


def prompt_of(number: int, length: int) -> list[int]:
    return [1 + (3 * number + 5 * at) % (V - 1) for at in range(length)]


def run_out(engine: Engine) -> None:
    while engine.step():
        pass


def alone(model: Any, prompt: list[int], how: Any, **more: Any) -> Any:
    engine = engine_of(model, recorded=False)
    [number] = engine.add([prompt], how, **more)
    run_out(engine)
    return engine.take(number)


def batch_of(engine: Engine) -> Batch:
    (batch,) = engine._lanes.values()
    assert isinstance(batch, Batch)
    return batch


@pytest.fixture
def read(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many tokens each step read in which some row reads its prompt."""
    counts: list[int] = []
    reads = Runner.read

    def watch(self: Runner, ids: Any, *more: Any) -> Any:
        counts.append(len(ids))
        return reads(self, ids, *more)

    monkeypatch.setattr(Runner, "read", watch)
    return counts


def with_blocks(monkeypatch: pytest.MonkeyPatch, count: int) -> None:
    monkeypatch.setattr(runners, "most_blocks", lambda *_: count)


requests = st.tuples(
    st.integers(0, 5),  # the prompt's beginning
    st.integers(1, 40),  # its length
    st.sampled_from(HOWS),
    st.integers(1, 20),  # tokens to write
    st.sampled_from(["", "ab", "c"]),  # a stop string
    st.integers(0, 6),  # steps until the next comes
    st.booleans(),  # whether it is cancelled
)


@given(
    asked=st.lists(requests, min_size=1, max_size=9),
    blocks=st.integers(4, 12),
    chunk=st.sampled_from([None, 5, 32]),
    name=st.sampled_from(["gpt2", "llama"]),
)
@example(
    asked=[(0, 33, {}, 1, "", 0, False), (0, 1, {}, 1, "", 0, False), (0, 2, {}, 5, "", 0, False),
           (0, 3, {}, 16, "", 0, False)],
    blocks=4, chunk=None, name="gpt2",
)  # fmt: skip
@settings(max_examples=25, deadline=None)
def test_a_text_is_what_it_would_be_alone(asked: Any, blocks: int, chunk: int | None, name: str) -> None:
    model = MODELS[name]
    model.__dict__.pop("_runners", None)
    expected, numbers, gone = {}, [], set()
    with pytest.MonkeyPatch.context() as monkeypatch:
        with_blocks(monkeypatch, blocks)
        engine = engine_of(model, chunk=chunk)
        for first, length, how, tokens, stop, steps, cancelled in asked:
            least = min(tokens, how.get("min_tokens", 0))
            chosen = options(**{**how, "max_tokens": tokens, "min_tokens": least, "stop": (stop,) if stop else ()})
            prompt = prompt_of(first, length)
            more = {"text_of": text_of} if stop else {}
            [number] = engine.add([prompt], chosen, **more)
            numbers.append(number)
            for _ in range(steps):
                engine.step()
            if cancelled:
                gone.add(number)
                engine.cancel(number)
            else:
                expected[number] = alone(model, prompt, chosen, **more)
        run_out(engine)
        assert not gone & set(engine.done())
        for number, texts in expected.items():
            assert_same(engine.take(number), texts)


def test_where_blocks_run_out_the_newest_row_waits_and_nothing_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    model, restarted = MODELS["llama"], []
    model.__dict__.pop("_runners", None)
    with_blocks(monkeypatch, 5)
    restart = Batch._restart
    monkeypatch.setattr(Batch, "_restart", lambda self, row: (restarted.append(row.request), restart(self, row))[1])
    engine, how = engine_of(model), options(max_tokens=30, min_tokens=30)
    numbers = [engine.add([prompt_of(number, 10)], how)[0] for number in range(4)]
    run_out(engine)
    assert restarted
    assert numbers[0] not in restarted
    for number in numbers:
        assert_same(engine.take(number), alone(model, prompt_of(number, 10), how))


@pytest.mark.parametrize("how", [{}, {"kind": "sample", "top_k": 4}, {"min_tokens": 4}])
def test_what_a_constraint_leaves_is_written_beside_others(how: dict[str, Any]) -> None:
    model = MODELS["llama"]

    def rising(prompt: int, tokens: list[int]) -> Any:  # and the third prompt's text ends after three
        if prompt == 2 and len(tokens) == 3:
            return []
        return [0, *range(max(tokens, default=0) + 1, V)] if prompt else None

    prompts, chosen = [prompt_of(number, 3 + 9 * number) for number in range(3)], options(**{"max_tokens": 8, **how})
    reference = engine_of(model, recorded=False)
    expected = reference.add(prompts, chosen, constraint=rising)
    run_out(reference)
    engine = engine_of(model, chunk=7)
    numbers = engine.add(prompts, chosen, constraint=rising)
    [free] = engine.add([prompts[0]], chosen, ends=[3] if not how else None)
    engine.step()
    batch_of(engine)
    run_out(engine)
    for number, other in zip(numbers, expected, strict=True):
        assert_same(engine.take(number), reference.take(other))
    assert_same(engine.take(free), alone(model, prompts[0], chosen, ends=[3] if not how else None))


def test_what_could_never_fit_is_refused_in_a_line(monkeypatch: pytest.MonkeyPatch) -> None:
    model = MODELS["gpt2"]
    model.__dict__.pop("_runners", None)
    with_blocks(monkeypatch, 2)
    engine = engine_of(model)
    engine.add([prompt_of(1, 30)], options(max_tokens=20))
    with pytest.raises(LegatoError, match=r"a text of 64 tokens needs .* GiB of memory"):
        run_out(engine)


@pytest.mark.parametrize("recorded", [True, None])
def test_a_row_without_room_is_refused_though_others_read(recorded: bool | None) -> None:
    model = MODELS["gpt2"]
    engine = engine_of(model, recorded=recorded, rows=2, chunk=1)
    engine.add([prompt_of(1, 60)], options(max_tokens=20, min_tokens=20))
    for _ in range(70):
        engine.step()
        if any(row is not None and row.launched == 5 for row in batch_of(engine)._rows):
            break
    engine.add([prompt_of(2, 40)], options(max_tokens=2))
    with pytest.raises(LegatoError, match="a sequence of 65 tokens is too long: this model goes up to 64"):
        run_out(engine)


def test_what_prompts_begin_with_is_read_once_and_is_in_memory_once(read: list[int]) -> None:
    model = MODELS["llama"]
    engine, how = engine_of(model), options(max_tokens=4)
    beginning = prompt_of(1, 2 * BLOCK)
    prompts = [[*beginning, *range(1, 2 + number)] for number in range(4)]
    numbers = engine.add(prompts, how)
    engine.step()
    assert read == [2 * BLOCK + 1 + 2 + 3 + 4]
    assert batch_of(engine)._runner.cache.in_use == 2 + 4  # type: ignore[union-attr]
    run_out(engine)
    for number, prompt in zip(numbers, prompts, strict=True):
        assert_same(engine.take(number), alone(model, prompt, how))


def test_a_dialogue_goes_on_from_what_was_read_and_written(read: list[int]) -> None:
    model = MODELS["gpt2"]
    engine, how = engine_of(model, prefixes=PrefixCache(1)), options(max_tokens=20, min_tokens=20)
    prompt = prompt_of(2, 20)
    [number] = engine.add([prompt], how)
    run_out(engine)
    longer = [*prompt, *engine.take(number)[0].tokens, 3]
    [number] = engine.add([longer], options(max_tokens=5))
    run_out(engine)
    assert read == [20, len(longer) - 2 * BLOCK]
    assert_same(engine.take(number), alone(model, longer, options(max_tokens=5)))


def test_no_block_is_kept_of_who_has_left() -> None:
    model = MODELS["gpt2"]
    engine = engine_of(model, rows=4)
    for number in range(9):
        engine.add([prompt_of(number, 5 + number)], options(max_tokens=6))
    engine.step()
    cache = batch_of(engine)._runner.cache  # type: ignore[union-attr]
    assert 4 <= cache.in_use <= 8
    engine.cancel(2)
    run_out(engine)
    assert cache.in_use == 0


def test_newcomers_wait_for_one_another_while_others_write(read: list[int]) -> None:
    model, told = MODELS["gpt2"], []
    engine, how = engine_of(model, chunk=64), options(max_tokens=40, min_tokens=40)
    engine.add([[1, 2]], how, on_token=lambda row, token: told.append(token))
    engine.step()
    for number in range(3):
        engine.add([prompt_of(number, 3)], how)
        engine.step()
    while len(read) < 2:
        engine.step()
    assert read == [2, 1 + 9]  # with the one that writes
    assert len(told) <= GATHER_STEPS + 2
    run_out(engine)


def test_a_long_prompt_is_read_in_parts_while_others_write(read: list[int]) -> None:
    model, told = MODELS["llama"], []
    engine, how = engine_of(model, chunk=6), options(max_tokens=30, min_tokens=30)
    engine.add([[1, 2]], how, on_token=lambda row, token: told.append(token))
    for _ in range(GATHER_STEPS + 1):
        engine.step()
    [number] = engine.add([prompt_of(3, 20)], how)
    before = len(told)
    for _ in range(5):
        engine.step()
    assert read[1:] == [6, 6, 6, 6]
    assert len(told) > before + 3
    run_out(engine)
    assert_same(engine.take(number), alone(model, prompt_of(3, 20), how))


def test_who_goes_away_before_being_read_is_not_read(read: list[int]) -> None:
    model = MODELS["gpt2"]
    engine, how = engine_of(model, chunk=6), options(max_tokens=20, min_tokens=20)
    [first] = engine.add([[1, 2]], how)
    engine.step()
    [gone] = engine.add([[3]], how)
    engine.step()
    engine.cancel(gone)
    run_out(engine)
    assert read == [2]
    assert engine.done() == [first]


def test_blocks_are_taken_as_tokens_come_and_the_oldest_beginning_goes_first() -> None:
    cache = KVCache(1, 1, 8, blocks=4, rows=2, capacity=64, like=torch.empty(0))
    tokens = list(range(40))
    assert cache.begin(0, tokens) == 0
    assert cache.reserve(0, 17)
    assert cache.in_use == 2
    assert cache.reserve(0, 40)
    cache.name_blocks(0, tokens)
    cache.leave(0)
    assert (cache.in_use, cache.free) == (0, 4)
    assert cache.begin(1, tokens, kind=1) == 0  # an adapter reads the same tokens in another way
    assert cache.begin(1, tokens) == 32  # what nobody uses is there still
    cache.leave(1)
    assert cache.begin(0, [9] * 60) == 0
    assert cache.reserve(0, 48)  # of the beginning the end was taken
    assert cache.begin(1, tokens) == 16
    assert not cache.reserve(1, 32)
    cache.forget()
    assert cache.free == 4
    assert cache.begin(0, tokens) == 0
