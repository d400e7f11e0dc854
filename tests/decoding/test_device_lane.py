"""The lane on the device: searches of other settings in one recorded step, prompts read together, growing places."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_searches import assert_same, options

from legato.data.batching.batch import Inputs
from legato.decoding.engine import Engine
from legato.decoding.lanes import device_lane, prefill, prefix_cache
from legato.decoding.lanes.device_lane import DeviceLane
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.lanes.search_steps import SearchSteps
from legato.decoding.row_settings import Level
from random_models import surer

V = 23
DEVICES = ["cpu", pytest.param("cuda", marks=pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU"))]
HOWS: list[dict[str, Any]] = [
    {},
    {"kind": "sample", "temperature": 0.7},
    {"kind": "sample", "top_k": 5, "top_p": 0.8, "seed": 2},
    {"repetition_penalty": 1.4},
    {"kind": "sample", "min_p": 0.1, "repetition_penalty": 1.2},
    {},
]


def made(name: str, device: str) -> Any:
    return surer(name, V).to(device)


def engine_of(model: Any, **more: Any) -> Engine:
    return Engine(model, ends=[0], suppress=[5], **{"recorded": True, "rows": 8, **more})


def prompts(count: int) -> list[list[int]]:
    return [[1 + (3 * n + 5 * at) % (V - 1) for at in range(1 + n % 4)] for n in range(count)]


def alone(model: Any, prompt: list[int], how: Any, **more: Any) -> Any:
    engine = engine_of(model, recorded=False)
    [number] = engine.add([prompt], how, **more)
    while engine.step():
        pass
    return engine.take(number)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", ["gpt2", "llama", "lstm"])
def test_what_others_ask_for_later_changes_nothing(name: str, device: str) -> None:
    model, numbers = made(name, device), []
    engine, asked = engine_of(model), list(zip(prompts(len(HOWS)), HOWS, strict=True))
    lanes = set()
    for prompt, how in asked:
        numbers += engine.add([prompt], options(**{"max_tokens": 12, **how}))
        engine.step()
        lanes |= {id(lane) for lane in engine._lanes.values()}
    while engine.step():
        pass
    assert len(lanes) == 1
    for number, (prompt, how) in zip(numbers, asked, strict=True):
        assert_same(engine.take(number), alone(model, prompt, options(**{"max_tokens": 12, **how})))


@pytest.mark.thinned(2)
@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [{}, {"kind": "sample", "top_p": 0.9}, {"repetition_penalty": 1.3}, {"kind": "beam"}])
@pytest.mark.parametrize("name", ["gpt2", "lstm"])
def test_places_that_grow_keep_what_is_in_them(
    name: str, how: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lane, "SMALLEST", 4)
    model, chosen = made(name, device), options(**{"max_tokens": 12, **how})
    engine = engine_of(model)
    asked = [[1], [4, 3, 2], [1 + n % 20 for n in range(19)]]
    numbers = []
    for prompt in asked:
        numbers += engine.add([prompt], chosen)
        engine.step()
        engine.step()
    while engine.step():
        pass
    for number, prompt in zip(numbers, asked, strict=True):
        assert_same(engine.take(number), alone(model, prompt, chosen))


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("how", [{"kind": "beam"}])
@pytest.mark.parametrize("name", ["gpt2", "lstm"])
def test_a_beginning_that_all_have_is_read_once(
    name: str, how: dict[str, Any], device: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(prefill, "WORTH_OF_A_PASS", 1)
    model, chosen = made(name, device), options(**{"max_tokens": 10, **how})
    read = watched(model, monkeypatch)
    beginning = [1 + 7 * n % 20 for n in range(prefill.WORTH)]
    asked = [[*beginning, *range(1, 1 + count)] for count in (3, 1, 19, 8)]
    engine = engine_of(model, rows=None)
    numbers = engine.add(asked, chosen)
    while engine.step():
        pass
    assert read == [(1, 16), (4, 19)]
    for number, prompt in zip(numbers, asked, strict=True):
        assert_same(engine.take(number), alone(model, prompt, chosen))


def test_behind_a_beginning_that_all_have_tokens_stand_side_by_side() -> None:
    beginning = [1 + 7 * n % 20 for n in range(prefill.WORTH)]
    asked = [[*beginning, *range(1, 1 + count)] for count in (3, 1, 19, 8)]
    engine = engine_of(made("gpt2", "cpu"), recorded=False, rows=None)
    engine.add(asked, options(max_tokens=10, min_tokens=10))
    engine.step()
    (lane,) = engine._lanes.values()
    for row, prompt in enumerate(asked):  # as the C++ step and the cache of prompts need it
        assert lane._state.kept(row, len(prompt)) is not None  # type: ignore[union-attr]


@pytest.mark.parametrize("device", DEVICES)
def test_each_text_stops_at_its_own_strings(device: str) -> None:
    model = made("gpt2", device)
    text_of = lambda tokens: "".join(chr(97 + token) for token in tokens)  # noqa: E731
    plain = [alone(model, prompt, options(max_tokens=16))[0].tokens for prompt in prompts(3)]
    stops = [(text_of(plain[0][4:6]),), (text_of(plain[1][2:3]),), ()]
    engine = engine_of(model)
    numbers = []
    for prompt, stop in zip(prompts(3), stops, strict=True):
        chosen = options(max_tokens=16, stop=stop)
        numbers += engine.add([prompt], chosen, text_of=text_of if stop else None)
    while engine.step():
        assert len(engine._lanes) <= 1
    found = [engine.take(number)[0] for number in numbers]
    for hypothesis, prompt, stop in zip(found, prompts(3), stops, strict=True):
        assert_same([hypothesis], alone(model, prompt, options(max_tokens=16, stop=stop), text_of=text_of))
    assert len(found[0].tokens) <= 6
    assert len(found[1].tokens) <= 3
    assert found[2].tokens == plain[2]


def watched(model: Any, monkeypatch: pytest.MonkeyPatch) -> list[tuple[int, ...]]:
    """What prompts were read, rows and tokens of each pass."""
    read: list[tuple[int, ...]] = []
    prefill = model.prefill

    def watch(inputs: Inputs, state: Any) -> Any:
        read.append(tuple(inputs.token_ids.shape))
        return prefill(inputs, state)

    monkeypatch.setattr(model, "prefill", watch)
    return read


def test_newcomers_wait_for_one_another_and_are_read_together(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = made("lstm", "cpu"), options(max_tokens=40, min_tokens=40)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=64)
    told: list[int] = []
    engine.add([[1, 2]], how, on_token=lambda row, token: told.append(token))
    engine.step()
    for prompt in prompts(4)[1:]:
        engine.add([prompt], how)
        engine.step()
    while len(read) < 2:
        engine.step()
    assert read == [(1, 2), (3, 4)]
    assert len(told) <= device_lane.GATHER_STEPS + 2  # nobody waits for long
    while engine.step():
        pass
    assert len(engine.done()) == 4


def test_newcomers_wait_no_longer_where_nobody_streams(monkeypatch: pytest.MonkeyPatch) -> None:
    taken: list[int] = []
    advance = SearchSteps.advance

    def watch(self: SearchSteps, steps: int, level: Level = Level.TAKEN) -> Any:
        taken.append(steps)
        return advance(self, steps, level)

    monkeypatch.setattr(SearchSteps, "advance", watch)
    model, how = made("lstm", "cpu"), options(max_tokens=40, min_tokens=40)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=64)
    engine.add([[1, 2]], how)
    engine.step()
    engine.add([[3]], how)
    while len(read) < 2:
        before = sum(taken)
        engine.step()
    assert before == device_lane.GATHER_STEPS


@pytest.mark.parametrize("width", [1, 2])
def test_no_more_rows_write_than_are_allowed(width: int) -> None:
    how = options(max_tokens=9) if width == 1 else options(kind="beam", beams=2, max_tokens=9)
    model = made("lstm", "cpu")
    engine = engine_of(model, rows=5)
    numbers = [number for prompt in prompts(12) for number in engine.add([prompt], how)]
    alive = []
    while engine.step():
        alive += [lane._cohort.alive for lane in engine._lanes.values() if isinstance(lane, DeviceLane)]
    assert max(alive) == 5 // width * width
    assert sorted(numbers) == sorted(engine.done())


def test_long_prompts_are_read_in_parts_while_others_write(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = made("lstm", "cpu"), options(max_tokens=30, min_tokens=30)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=6)
    told: list[int] = []
    engine.add([[1, 2]], how, on_token=lambda row, token: told.append(token))
    for _ in range(device_lane.GATHER_STEPS + 2):
        engine.step()
    long = [1 + n % 20 for n in range(20)]
    [number] = engine.add([long], how)
    before = len(told)
    for _ in range(4):
        engine.step()
    assert read[1:] == [(1, 6), (1, 6), (1, 6), (1, 2)]
    assert len(told) > before + 2
    while engine.step():
        pass
    assert_same(engine.take(number), alone(model, long, how))


def test_who_goes_away_before_being_read_is_not_read(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = made("lstm", "cpu"), options(max_tokens=20, min_tokens=20)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=6)
    [first] = engine.add([[1, 2]], how)
    engine.step()
    [gone] = engine.add([[3]], how)
    [long] = engine.add([[1 + n % 20 for n in range(20)]], how)
    engine.step()
    engine.cancel(gone)
    while len(read) < 2:
        engine.step()
    engine.cancel(long)
    while engine.step():
        pass
    assert read == [(1, 2), (1, 6)]
    assert engine.done() == [first]


def test_a_long_beginning_that_is_known_is_not_read_again(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "LEAST", 3)
    monkeypatch.setattr(device_lane, "MIN_REUSED", 8)
    model, how = made("gpt2", "cpu"), options(kind="beam", beams=2, max_tokens=5)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=64, prefixes=PrefixCache(1 << 20))
    beginning = [1 + (7 * n) % 20 for n in range(12)]
    asked = [[*beginning, 3], [4, 2], [*beginning, 8, 9]]
    for group in (asked[:2], asked[2:]):
        numbers = [number for prompt in group for number in engine.add([prompt], how)]
        while engine.step():
            pass
        for number, prompt in zip(numbers, group, strict=True):
            assert_same(engine.take(number), alone(made("gpt2", "cpu"), prompt, how))
    assert read == [(2, 13), (1, 2)]


def test_a_lane_without_room_on_the_device_is_the_hosts(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = made("lstm", "cpu"), options(max_tokens=5)
    monkeypatch.setattr(model, "slots", lambda *_: None)
    engine = engine_of(model)
    numbers = [number for prompt in prompts(3) for number in engine.add([prompt], how)]
    engine.step()
    lane = next(iter(engine._lanes.values()))
    assert isinstance(lane, DeviceLane)
    while engine.step():
        pass
    for number, prompt in zip(numbers, prompts(3), strict=True):
        assert_same(engine.take(number), alone(made("lstm", "cpu"), prompt, how))


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_places_that_nobody_uses_stay_within_the_positions_of_the_model(name: str) -> None:
    model = made(name, "cpu")
    assert model.max_length is not None
    engine, how = engine_of(model), options(max_tokens=12)
    expected = alone(model, [3], how)
    numbers = []
    for _ in range(model.max_length // 6):  # somebody always writes, in one place of eight
        numbers += engine.add([[3]], how)
        for _ in range(7):
            engine.step()
    while engine.step():
        pass
    for number in numbers:
        assert_same(engine.take(number), expected)


def test_every_step_is_the_recorded_one_of_its_level(monkeypatch: pytest.MonkeyPatch) -> None:
    prepared: list[set[Level]] = []
    made_of: dict[int, set[Level]] = {}
    advance, prepare = SearchSteps.advance, SearchSteps.prepare

    def watch_prepare(self: SearchSteps, level: Level) -> None:
        made_of.setdefault(id(self), set()).add(level)
        prepare(self, level)

    def watch_advance(self: SearchSteps, steps: int, level: Level = Level.TAKEN) -> Any:
        assert level in made_of[id(self)]
        prepared.append(made_of[id(self)])
        return advance(self, steps, level)

    monkeypatch.setattr(SearchSteps, "prepare", watch_prepare)
    monkeypatch.setattr(SearchSteps, "advance", watch_advance)
    model = made("lstm", "cpu")
    for together in (
        [{"max_tokens": 40}, {"kind": "sample", "top_p": 0.9, "max_tokens": 3}],
        [{"kind": "beam", "beams": 2, "repetition_penalty": 1.2}],
        [{"kind": "beam-sample", "beams": 2, "top_k": 5}],
    ):
        engine = Engine(model, recorded=True, rows=8)  # nothing ends before its time
        for how in together:
            engine.add([[1, 2]], options(**{"max_tokens": 8, **how}))
        while engine.step():
            pass
    assert {Level.TAKEN, Level.FILTERED} in prepared
    assert {Level.TAKEN} in prepared


def test_a_part_is_no_more_tokens_than_it_may_be(monkeypatch: pytest.MonkeyPatch) -> None:
    model, how = made("gpt2", "cpu"), options(max_tokens=40, min_tokens=40)
    read = watched(model, monkeypatch)
    engine = engine_of(model, chunk=12)
    engine.add([[1, 2]], how)
    engine.step()
    for n in range(6):
        engine.add([[n + 1, *range(2, 7)]], how)
    per_step = []
    while engine._waiting or len(engine.done()) < 7:
        before = len(read)
        if not engine.step():
            break
        per_step.append(sum(rows * tokens for rows, tokens in read[before:]))
    assert max(per_step[1:]) <= 12


def test_larger_places_do_not_hold_up_who_came_first(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lane, "SMALLEST", 8)
    model, how = made("lstm", "cpu"), options(max_tokens=5)
    engine = engine_of(model)
    long = [1 + n % 20 for n in range(30)]
    numbers = [*engine.add([[1]], how), *engine.add([long], how)]
    engine.step()
    lane = next(iter(engine._lanes.values()))
    assert isinstance(lane, DeviceLane)
    assert lane._capacity == 8
    while engine.step():
        pass
    for number, prompt in zip(numbers, ([1], long), strict=True):
        assert_same(engine.take(number), alone(model, prompt, how))


@pytest.mark.parametrize("how", [{"top_k": 2**31 - 1, "kind": "sample"}, {"repetition_penalty": 1e-40}])
def test_settings_beyond_all_measure_end_nobody_elses_text(how: dict[str, Any]) -> None:
    model = made("gpt2", "cpu")
    engine = engine_of(model)
    [other] = engine.add([[3]], options(max_tokens=8))
    [number] = engine.add([[1, 2]], options(**{"max_tokens": 8, **how}))
    for _ in range(100):
        if not engine.step():
            break
    assert set(engine.done()) == {other, number}
    assert_same(engine.take(other), alone(model, [3], options(max_tokens=8)))
