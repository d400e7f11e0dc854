"""The engine: steps on the device write what the host's do; requests come, go and are cancelled."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from tiny_searches import assert_same, options

from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions
from legato.decoding.candidates import Chooser
from legato.decoding.engine import Engine
from legato.decoding.lanes import device_lane, prefix_cache, search_steps
from legato.decoding.lanes.device_lane import DeviceLane
from legato.decoding.lanes.host_lane import HostLane
from legato.decoding.lanes.prefix_cache import PrefixCache
from legato.decoding.lanes.search_steps import SearchSteps
from legato.decoding.row_settings import Level
from legato.decoding.search import search
from legato.errors import LegatoError
from random_models import surer

V = 23
KINDS: dict[str, dict[str, Any]] = {
    "gpt2": {},
    "llama": {"kv_heads": 1},
    "windowed": {"name": "llama", "family": "mistral", "window": 4},
    "lstm": {},
    "gru": {},
    "elman": {},
    "window": {"context": 3},
    "transformer": {},
    "rotary": {"name": "transformer", "positions": "rotary", "norm": "pre", "window": 5},
    "seq2seq": {},
    "fed": {"name": "seq2seq", "cell": "gru", "attention": "mlp", "input_feeding": True},
    "blind": {"name": "seq2seq", "attention": "none"},
}
HOWS: dict[str, dict[str, Any]] = {
    "greedy": {},
    "penalised": {"repetition_penalty": 1.5},
    "sample": {"kind": "sample", "nbest": 2, "top_p": 0.9, "temperature": 1.3},
    "beam": {"kind": "beam", "beams": 3, "nbest": 2},
    "penalised beam": {"kind": "beam", "beams": 3, "repetition_penalty": 1.5},
    "beam-sample": {"kind": "beam-sample", "beams": 3, "top_k": 9},
    "at least four": {"kind": "beam", "beams": 2, "min_tokens": 4},
}
PROMPTS = [[1 + (i * j) % (V - 1) for j in range(1, 2 + i % 6)] for i in range(7)]


def made(kind: str) -> Any:
    return surer(**{"name": kind, "vocabulary": V, **KINDS[kind]})


def memory_of(model: Any, prompts: list[list[int]]) -> Any:
    if not model.is_encoder_decoder:
        return None
    # Made of the prompts, so that each has its own, of another length, wherever it stands.
    sources = [[1 + (3 * sum(prompt) + j) % (V - 1) for j in range(2 + (5 * sum(prompt)) % 7)] for prompt in prompts]
    target = Inputs.of(prompts, torch.device("cpu"))
    with torch.no_grad():
        return model.encode(Batch(target, source=Inputs.of(sources, torch.device("cpu"))))


def run_out(engine: Engine) -> None:
    while engine.step():
        pass


def run(model: Any, how: SearchOptions, recorded: bool, prompts: list[list[int]] = PROMPTS, **more: Any) -> Any:
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=recorded)
    numbers = engine.add(prompts, how, memory=memory_of(model, prompts), **more)
    engine.step()
    lane = next(iter(engine._lanes.values()), None)
    assert lane is None or isinstance(lane, HostLane) != recorded
    if isinstance(lane, DeviceLane):
        assert lane._steps is not None
    run_out(engine)
    return [engine.take(number) for number in numbers]


@pytest.mark.thinned(3)
@pytest.mark.parametrize("kind", [*KINDS])
@pytest.mark.parametrize("how", [*HOWS])
def test_steps_on_the_device_write_what_the_hosts_do(kind: str, how: str) -> None:
    model, chosen = made(kind), options(**{"max_tokens": 14, **HOWS[how]})
    limits = [1 + (5 * n) % 14 for n in range(len(PROMPTS))]
    ours = run(model, chosen, True, limits=limits)
    for left, right in zip(ours, run(model, chosen, False, limits=limits), strict=True):
        assert_same(left, right)


LATER = ["llama", "transformer", "seq2seq", "lstm", "window"], ["greedy", "sample", "beam", "beam-sample"]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.thinned(4)
@pytest.mark.parametrize("kind", LATER[0])
@pytest.mark.parametrize("how", LATER[1])
def test_requests_that_come_later_get_what_they_would_get_alone(kind: str, how: str, recorded: bool) -> None:
    model, chosen = made(kind), options(**{"max_tokens": 14, **HOWS[how]})
    alone = [run(model, chosen, False, [prompt])[0] for prompt in PROMPTS]
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=recorded, rows=12, capacity=24)
    waiting, numbers, found = list(enumerate(PROMPTS)), {}, {}
    for turn in range(400):
        if turn % 2 == 0 and waiting:
            place, prompt = waiting.pop(0)
            [number] = engine.add([prompt], chosen, memory=memory_of(model, [prompt]))
            numbers[number] = place
        alive = engine.step()
        found |= {numbers[number]: engine.take(number) for number in engine.done()}
        if not alive and not waiting:
            break
    assert sorted(found) == list(range(len(PROMPTS)))
    for place, expected in enumerate(alone):
        assert_same(found[place], expected)


MIXED = ["greedy", "beam", "sample", "penalised", "greedy", "beam-sample", "sample"]


MIXED_ROWS = ["greedy", "sample", "filtered", "penalised", "warm", "greedy", "penalised walk"]
WALKS: dict[str, dict[str, Any]] = {
    "warm": {"kind": "sample", "temperature": 0.6},
    "filtered": {"kind": "sample", "top_k": 6, "min_p": 0.02, "top_p": 0.8, "seed": 3},
    "penalised walk": {"kind": "sample", "repetition_penalty": 1.4, "top_k": 9},
}


@pytest.mark.thinned(3)
@pytest.mark.parametrize("chunk", [None, 2, 64])
@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("kind", ["llama", "windowed", "transformer", "lstm"])
def test_requests_that_are_searched_in_other_ways_share_a_batch(kind: str, recorded: bool, chunk: int | None) -> None:
    model = made(kind)
    names = MIXED_ROWS if recorded else MIXED
    hows = [
        options(**{"max_tokens": 14, **{**HOWS, **WALKS}[how], **({"nbest": 1} if recorded else {})}) for how in names
    ]
    alone = [run(model, how, False, [prompt])[0] for how, prompt in zip(hows, PROMPTS, strict=True)]
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=recorded, rows=40, chunk=chunk)
    numbers, found = {}, {}
    for turn in range(400):
        if turn < len(PROMPTS):
            [number] = engine.add([PROMPTS[turn]], hows[turn], memory=memory_of(model, [PROMPTS[turn]]))
            numbers[number] = turn
        alive = engine.step()
        assert len(engine._lanes) <= 1
        found |= {numbers[number]: engine.take(number) for number in engine.done()}
        if not alive and turn > len(PROMPTS):
            break
    for place, expected in enumerate(alone):
        assert_same(found[place], expected)


@pytest.mark.parametrize("kind", ["llama", "windowed", "gpt2", "lstm"])
def test_what_prompts_begin_with_is_read_once(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "LEAST", 3)
    model, how = made(kind), options(max_tokens=6)
    beginning = [3, 1, 4, 1, 5, 9, 2]
    alone = {tuple(prompt): run(model, how, False, [prompt])[0] for prompt in ([*beginning, 8], [*beginning, 6, 5])}
    prefixes = PrefixCache(1 << 20)
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=False, prefixes=prefixes, chunk=3)

    def answered(prompt: list[int]) -> Any:
        [number] = engine.add([prompt], how)
        run_out(engine)
        return engine.take(number)

    for prompt, expected in alone.items():
        assert_same(answered([*prompt]), expected)
    before = prefixes.reused
    assert before == (0 if kind == "lstm" else len(beginning))
    written = alone[*beginning, 8][0].tokens
    longer = [*beginning, 8, *written, 2]
    assert_same(answered(longer), run(model, how, False, [longer])[0])
    # The last token that was written need not have been taken in; that of the prompt has to be read.
    assert kind == "lstm" or prefixes.reused - before >= len(longer) - 2


def test_what_is_kept_of_prompts_stays_within_its_bytes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefix_cache, "LEAST", 3)
    model, how = made("llama"), options(max_tokens=2)
    one = PrefixCache(1 << 30)
    engine = Engine(model, ends=[0], recorded=False, prefixes=one)
    engine.add([[1, 2, 3, 4, 5, 6]], how)
    run_out(engine)
    few = PrefixCache(2 * one.bytes)
    engine = Engine(model, ends=[0], recorded=False, prefixes=few)
    for first in range(1, 9):
        engine.add([[first, 2, 3, 4, 5, 6]], how)
        run_out(engine)
        assert 0 < few.bytes <= few.most_bytes
    assert len(few) == 2
    assert few.bytes == sum(values.nbytes for _, values in few._kept.values())


def test_a_long_prompt_lets_others_write_on() -> None:
    model, told = made("llama"), []
    engine = Engine(model, ends=[], recorded=False, chunk=4)
    engine.add([[1, 2]], options(max_tokens=12), on_token=lambda row, token: told.append("short"))
    engine.step()
    engine.add([[3] * 30], options(max_tokens=2), on_token=lambda row, token: told.append("long"))
    run_out(engine)
    assert told.index("long") >= 7  # thirty tokens are eight chunks
    assert told.count("short") == 12


def test_a_short_prompt_does_not_wait_for_a_long_one_that_is_read_alone() -> None:
    engine = Engine(made("llama"), ends=[], recorded=False, chunk=4)
    long, *_ = engine.add([[3] * 60], options(max_tokens=2))
    engine.step()
    short, *_ = engine.add([[1, 2]], options(max_tokens=4))
    for _ in range(8):  # the sixty tokens take fifteen
        engine.step()
    assert engine.done() == [short]
    run_out(engine)
    assert {*engine.done()} == {short, long}


@pytest.mark.parametrize("ended", ["while it is read", "while it waits"])
def test_a_prompt_that_is_being_read_can_be_cancelled(ended: str) -> None:
    engine = Engine(made("llama"), ends=[], recorded=False, chunk=2)
    [stays] = engine.add([[1, 2]], options(max_tokens=9))
    engine.step()
    [goes] = engine.add([[3] * 30], options(max_tokens=2))
    if ended == "while it is read":
        engine.step()
    engine.cancel(goes)
    run_out(engine)
    assert engine.done() == [stays]


@pytest.mark.parametrize("recorded", [False, True])
@pytest.mark.parametrize("how", ["greedy", "beam", "sample"])
def test_a_request_that_is_cancelled_leaves_the_others_as_they_are(how: str, recorded: bool) -> None:
    model, chosen = made("llama"), options(**{"max_tokens": 20, **HOWS[how]})
    expected = run(model, chosen, False)
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=recorded)
    numbers = engine.add(PROMPTS, chosen)
    engine.step()
    engine.step()
    gone = [number for number in numbers[1:5:2] if number not in engine.done()]
    for number in gone:
        engine.cancel(number)
    [never] = engine.add([[3]], chosen)
    engine.cancel(never)
    run_out(engine)
    assert sorted(engine.done()) == sorted({*numbers} - {*gone})
    for number in engine.done():
        assert_same(engine.take(number), expected[number])


@pytest.mark.parametrize("recorded", [False, True])
def test_what_a_cancelled_request_had_found_is_dropped(recorded: bool) -> None:
    engine = Engine(made("gpt2"), ends=[0], recorded=recorded)
    first, second = engine.add([[3], [4]], options(max_tokens=3))
    run_out(engine)
    engine.cancel(first)
    engine.cancel(99)  # nobody
    assert engine.done() == [second]
    with pytest.raises(KeyError):
        engine.take(first)


@pytest.mark.parametrize("recorded", [False, True])
def test_who_waits_for_room_is_not_overtaken(recorded: bool) -> None:
    engine = Engine(made("lstm"), recorded=recorded, rows=4)
    begun: list[int] = []
    engine.add([[1]] * 3, options(max_tokens=12))
    for number, rows in enumerate((3, 1, 1)):
        tell = lambda row, token, number=number: begun.append(number)  # noqa: E731
        engine.add([[2]] * rows, options(max_tokens=2), on_token=tell)
    for _ in range(3):
        engine.step()
    assert not begun  # three of four rows are taken
    run_out(engine)
    assert list(dict.fromkeys(begun)) == [0, 1, 2]


GROWING = ["llama", "transformer", "seq2seq", "lstm", "window"], ["greedy", "penalised", "beam", "sample"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("kind", GROWING[0])
@pytest.mark.parametrize("how", GROWING[1])
def test_who_needs_more_room_than_there_is_gets_it_and_the_others_move(
    kind: str, how: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(device_lane, "SMALLEST", 4)
    model = made(kind)
    prompts = [[1 + n % (V - 1) for n in range(length)] for length in (1, 5, 20, 3)]
    hows = [options(**{**HOWS[how], "max_tokens": 9 if length > 5 else 14}) for length in map(len, prompts)]
    memories = [memory_of(model, prompt) for prompt in ([[2]], [[3, 4]], [[5] * 7], [[1]])]
    if model.is_encoder_decoder:
        sources = [Inputs.of([[1 + n % (V - 1) for n in range(length)]], model.device) for length in (2, 5, 30, 60)]
        batch = Inputs.of([[1]], model.device)
        with torch.no_grad():
            memories = [model.encode(Batch(batch, source=source)) for source in sources]
    alone = []
    for prompt, chosen, memory in zip(prompts, hows, memories, strict=True):
        engine = Engine(model, ends=[], recorded=False)
        [number] = engine.add([prompt], chosen, memory=memory)
        run_out(engine)
        alone.append(engine.take(number))
    engine = Engine(model, ends=[], recorded=True, rows=12)
    numbers, lanes = [], set()
    for prompt, chosen, memory in zip(prompts, hows, memories, strict=True):
        numbers += engine.add([prompt], chosen, memory=memory)
        engine.step()
        engine.step()
        lanes |= set(engine._lanes.values())
    assert len(lanes) == 1
    assert len([number for number in numbers if number not in engine.done()]) > 2  # side by side
    run_out(engine)
    for number, expected in zip(numbers, alone, strict=True):
        assert_same(engine.take(number), expected)


def test_who_needs_more_columns_than_there_is_memory_for_waits_for_others(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(device_lane, "SMALLEST", 8)
    model, longer = made("lstm"), [1 + n % (V - 1) for n in range(20)]
    [expected] = run(model, options(max_tokens=9), False, [longer])
    engine = Engine(model, ends=[0], suppress=[5], suppress_first=[7], recorded=True, rows=4)
    [first] = engine.add([[1]], options(max_tokens=6))
    engine.step()
    held = next(iter(engine._lanes.values()))
    assert isinstance(held, DeviceLane)
    tried = []
    monkeypatch.setattr(held, "_make", lambda *sizes: tried.append(sizes))
    [number] = engine.add([longer], options(max_tokens=9))
    while first not in engine.done():
        engine.step()
    assert len(tried) == 1  # and not at each step
    run_out(engine)
    assert_same(engine.take(number), expected)


@pytest.mark.parametrize("recorded", [False, True])
def test_tokens_are_told_in_order(recorded: bool) -> None:
    model, told = made("gpt2"), {}
    found = run(model, options(), recorded, on_token=lambda row, token: told.setdefault(row, []).append(token))
    assert [told.get(row, []) for row in range(len(found))] == [nbest[0].tokens for nbest in found]


@pytest.mark.parametrize("recorded", [False, True])
def test_who_stops_listening_stops_the_search_and_nothing_is_kept(recorded: bool) -> None:
    class Left(Exception):
        pass

    def leave(row: int, token: int) -> None:
        raise Left

    model = made("gpt2")
    engine = Engine(model, recorded=recorded)
    engine.add(PROMPTS, options(), on_token=leave)
    with pytest.raises(Left):
        run_out(engine)
    assert not engine._lanes
    assert not engine.step()
    assert [len(nbest[0].tokens) for nbest in run(model, options(), recorded)]


def test_what_does_not_fit_is_refused_in_a_line() -> None:
    engine = Engine(made("gpt2"), rows=4, capacity=16)
    with pytest.raises(LegatoError, match="room for 16 a row"):
        engine.add([[1] * 10], options(max_tokens=7))
    with pytest.raises(LegatoError, match="room for 4"):
        engine.add([[1]] * 2, options("beam", beams=3, max_tokens=3))
    assert not engine.step()


def test_stop_strings_of_one_row_are_found_between_looks() -> None:
    model = made("gpt2")
    text_of = lambda tokens: "".join(chr(97 + token) for token in tokens)  # noqa: E731
    plain = run(model, options(max_tokens=20), False, text_of=text_of)
    stop = text_of(plain[0][0].tokens[4:6])
    both = [run(model, options(max_tokens=20, stop=(stop,)), way, text_of=text_of) for way in (True, False)]
    for left, right in zip(*both, strict=True):
        assert_same(left, right)
    assert both[0][0][0].finished
    assert len(both[0][0][0].tokens) <= 6


def test_what_hooks_look_at_is_not_recorded() -> None:
    model, seen = made("gpt2"), []
    handle = model.output.register_forward_hook(lambda *_: seen.append(1))
    engine = Engine(model, recorded=True)
    engine.add(PROMPTS, options())
    engine.step()
    assert isinstance(next(iter(engine._lanes.values())), HostLane)
    run_out(engine)
    handle.remove()
    assert len(seen) > 5


class Pretended:
    """A device that is called CUDA."""

    type = "cuda"


def steps_of(model: Any) -> SearchSteps:
    state = model.start(1, 8)
    with torch.no_grad():
        model.prefill(Inputs.of([[1, 2]], torch.device("cpu")), state)
    slots = model.slots(1, 1, 16, state, 0)
    return SearchSteps(slots, Chooser(SearchOptions(), [], []), [], V, torch.device("cpu"))


def test_steps_that_cannot_be_recorded_run_as_they_are_and_that_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any) -> None:
        raise RuntimeError("operation not permitted when stream is capturing\nmore")

    monkeypatch.setattr(search_steps, "record", refuse)
    monkeypatch.setattr(search_steps, "_TOLD", set())
    steps = steps_of(made("gpt2"))
    steps._device = Pretended()  # type: ignore[assignment]
    with pytest.warns(UserWarning, match="not recorded as a CUDA graph: operation not permitted when stream is capt"):
        steps.prepare(Level.TAKEN)
    steps.prepare(Level.DRAWN)  # says nothing
    steps._device = torch.device("cpu")
    assert len(steps.advance(3)()) == 3


def test_where_memory_runs_out_what_is_kept_goes_and_then_the_host_looks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, tries = made("lstm"), []
    monkeypatch.setattr(search_steps, "_TOLD", set())

    def make() -> None:
        tries.append(len(search_steps._kept_for(model).free))
        raise torch.OutOfMemoryError("CUDA out of memory")

    search_steps._kept_for(model).give("before", steps_of(model))
    with (
        pytest.warns(UserWarning, match="memory does not hold it"),
        search_steps.search_steps(model, "key", make) as none,
    ):
        assert none is None
    assert tries == [1, 0]
    monkeypatch.setattr(type(model), "slots", lambda *_: make())
    monkeypatch.setattr(search_steps, "_TOLD", set())
    engine = Engine(model, recorded=True)
    [number] = engine.add([[3]], options())
    with pytest.warns(UserWarning, match="memory"):
        run_out(engine)
    assert engine.take(number)


def test_recordings_go_when_the_model_trains() -> None:
    model = made("gpt2")
    search_steps._kept_for(model).give("key", steps_of(model))
    model.train()
    assert not search_steps._kept_for(model).free


@pytest.mark.parametrize("how", ["greedy", "beam"])
@pytest.mark.parametrize("name", ["gpt2", "llama", "windowed", "lstm", "window"])
def test_what_prompts_of_a_call_begin_with_is_read_once(name: str, how: str, monkeypatch: pytest.MonkeyPatch) -> None:
    kind = KINDS[name]
    model = surer(kind.get("name", name), V, **{k: v for k, v in kind.items() if k != "name"})
    shots = [1 + n % 7 for n in range(18)]
    prompts = [[*shots, 9], [*shots, 9, 4, 2], [*shots, 5, 5]]
    chosen = options(**HOWS[how], max_tokens=4)
    alone = [search(model, [prompt], chosen, eos=0)[0] for prompt in prompts]
    read: list[tuple[int, ...]] = []
    prefill = model.prefill
    monkeypatch.setattr(
        model, "prefill", lambda inputs, state: read.append(tuple(inputs.token_ids.shape)) or prefill(inputs, state)
    )
    together = search(model, prompts, chosen, eos=0)
    assert read == [(1, 18), (3, 3)]
    assert [[each.tokens for each in found] for found in together] == [[h.tokens for h in found] for found in alone]
