"""Batches of many clients' requests: who shares one, who is refused, and that everybody gets their own answers."""

from __future__ import annotations

import asyncio
import threading
import time
import weakref
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import CancelledError, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import legato
from legato.errors import LegatoError
from legato.model import Model
from legato.serving.app import Refusal
from legato.serving.batcher import Batcher
from legato.serving.models import Served
from legato.serving.scheduler import DeadlineExceeded, QueueFull
from legato.serving.transport.log import writer
from serving.api_client import api_of, refusal_of
from tiny_tasks import tiny


class Lengths:
    """A run that is held until it is let go, and remembers its batches; of "bad" it knows nothing."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.free = threading.Event()
        self.begun = threading.Event()

    def __call__(self, texts: list[str]) -> list[int]:
        self.batches.append(list(texts))
        self.begun.set()
        assert self.free.wait(20)
        if "bad" in texts:
            raise LegatoError("bad is no text")
        return [len(text) for text in texts]


@pytest.fixture
def run() -> Iterator[Lengths]:
    made = Lengths()
    yield made
    made.free.set()


@pytest.fixture
def batcher(run: Lengths) -> Iterator[Batcher]:
    made = Batcher("test", rows=4, queue=10)
    yield made
    run.free.set()
    made.close(drain=False)


def held(batcher: Batcher, run: Lengths) -> None:
    """Let the thread be busy, so that what comes now waits."""
    batcher.submit(["first"], "texts", run)
    assert run.begun.wait(20)


async def never() -> None:
    await asyncio.Event().wait()


async def at_once() -> None:
    return


def outcome(batcher: Batcher, request: Any, gone: Callable[[], Awaitable[None]] = never) -> Any:
    return asyncio.run(batcher.outcome(request, gone))


def test_what_came_meanwhile_shares_batches_of_like_length(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    requests = [batcher.submit(texts, "texts", run) for texts in (["aaaaaa", "a"], ["aa", "aaaaa"], ["aaa", "aaaa"])]
    assert batcher.load() == (1, 6)
    run.free.set()
    assert [request.future.result(20) for request in requests] == [[6, 1], [2, 5], [3, 4]]
    assert run.batches[1:] == [["a", "aa", "aaa", "aaaa"], ["aaaaa", "aaaaaa"]]


def test_a_batch_is_bounded_by_its_work(run: Lengths) -> None:
    run.free.set()
    batcher = Batcher("test", work=8, gather=20.0)
    try:
        request = batcher.submit(["aaaa", "a", "aa", "a", "aa", "a"], "texts", run, [16, 1, 4, 1, 4, 1])
        batcher.close()
        assert request.future.result(20) == [4, 1, 2, 1, 2, 1]
        assert run.batches == [["a", "a", "a"], ["aa", "aa"], ["aaaa"]]  # 3 × 1, 2 × 4, and one alone
    finally:
        batcher.close(drain=False)


def test_shorter_inputs_that_join_a_batch_count_as_its_longest(batcher: Batcher, run: Lengths) -> None:
    batcher.work = 6
    held(batcher, run)
    requests = [batcher.submit(texts, "texts", run) for texts in (["a", "a", "a", "a"], ["aaa"])]
    run.free.set()
    assert [request.future.result(20) for request in requests] == [[1, 1, 1, 1], [3]]
    assert run.batches[1:] == [["a", "aaa"], ["a", "a", "a"]]  # 2 × 3, 3 × 1


def test_others_have_their_turn_between_the_batches_of_a_request(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    many, one, other = (batcher.submit(texts, "texts", run) for texts in (["a"] * 6, ["bbbb"], ["cc"]))
    run.free.set()
    assert [len(each.future.result(20)) for each in (many, one, other)] == [6, 1, 1]
    # The least left, the oldest, the least left, each with others of like length.
    assert run.batches[1:] == [["a", "a", "cc", "bbbb"], ["a", "a", "a", "a"]]


def test_who_goes_away_between_two_batches_is_not_computed_further(batcher: Batcher, run: Lengths) -> None:
    gone = batcher.submit(["a"] * 10, "texts", run)
    assert run.begun.wait(20)
    with pytest.raises(Refusal, match="the client has gone"):
        outcome(batcher, gone, at_once)
    assert batcher.load() == (4, 0)
    run.free.set()
    assert batcher.submit(["other"], "texts", run).future.result(20) == [5]
    assert run.batches == [["a"] * 4, ["other"]]


def test_other_options_are_another_batch(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    requests = [batcher.submit(["a"], kind, run) for kind in ("one", "other", "one")]
    run.free.set()
    assert [request.future.result(20) for request in requests] == [[1], [1], [1]]
    assert run.batches[1:] == [["a", "a"], ["a"]]


def test_requests_that_come_together_share_a_batch(run: Lengths) -> None:
    run.free.set()
    batcher = Batcher("test", rows=2, gather=20.0)
    try:
        requests = [batcher.submit([text], "texts", run) for text in ("a", "aa")]
        assert [request.future.result(10) for request in requests] == [[1], [2]]
        assert run.batches == [["a", "aa"]]
    finally:
        batcher.close()


def test_a_thread_that_waits_keeps_nothing_of_what_it_computed(batcher: Batcher, run: Lengths) -> None:
    run.free.set()
    request = batcher.submit(["a"], "texts", run)
    assert request.future.result(20) == [1]
    computed = weakref.ref(request)
    del request
    until = time.monotonic() + 20
    while computed() is not None and time.monotonic() < until:
        time.sleep(0.001)
    assert computed() is None


def test_a_bad_input_fails_its_own_request_alone(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    good, bad, last = (batcher.submit(texts, "texts", run) for texts in (["a"], ["bad", "b"], ["cc"]))
    run.free.set()
    assert good.future.result(20) == [1]
    assert last.future.result(20) == [2]
    with pytest.raises(LegatoError, match="bad is no text"):
        bad.future.result(20)
    assert batcher.submit(["later"], "texts", run).future.result(20) == [5]


def test_what_is_no_exception_ends_a_request_and_not_the_thread(batcher: Batcher, run: Lengths) -> None:
    def broken(texts: list[str]) -> list[int]:
        raise SystemExit(3)

    with pytest.raises(LegatoError):
        batcher.submit(["a"], "broken", broken).future.result(20)
    run.free.set()
    assert batcher.submit(["later"], "texts", run).future.result(20) == [5]


def test_a_thread_that_breaks_says_so_to_everybody(
    batcher: Batcher, run: Lengths, model: Model, capfd: pytest.CaptureFixture[str]
) -> None:
    held(batcher, run)
    waiting = batcher.submit(["a"], "other", lambda texts: [])  # fewer answers than texts: a fault of ours
    behind = batcher.submit(["b"], "texts", run)
    run.free.set()
    for request in (waiting, behind):
        with pytest.raises(Refusal, match="has stopped by a fault of ours"):
            request.future.result(20)
    with pytest.raises(Refusal, match="has stopped by a fault of ours"):
        batcher.submit(["later"], "texts", run)
    writer().close(10)
    assert "legato: the batches of 'test' have stopped: ValueError" in capfd.readouterr().err
    served = Served("films", model)
    served._batchers[0] = batcher
    ready = api_of(served).get("/ready")
    assert (ready.status_code, ready.json()) == (503, {"ready": False, "stopped": ["films"]})


def test_too_many_are_told_when_to_come_again(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    batcher.submit(["a"] * 25, "texts", run)  # nobody else waits, so it may be of any size
    with pytest.raises(QueueFull) as caught:
        batcher.submit(["b"], "texts", run)
    assert caught.value.seconds >= 1


def test_who_waits_too_long_is_told_so(run: Lengths) -> None:
    batcher = Batcher("test", patience=0.05)
    try:
        held(batcher, run)
        with pytest.raises(DeadlineExceeded, match=r"0\.05 s"):
            outcome(batcher, batcher.submit(["a"], "texts", run))
        late = batcher.submit(["b"], "texts", run)
        time.sleep(0.1)
        run.free.set()
        with pytest.raises(DeadlineExceeded):
            late.future.result(20)
        assert run.batches == [["first"]]
    finally:
        run.free.set()
        batcher.close()


def test_who_goes_away_is_not_computed(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    gone, other = batcher.submit(["gone"], "texts", run), batcher.submit(["other"], "texts", run)
    with pytest.raises(Refusal) as caught:
        outcome(batcher, gone, at_once)
    assert caught.value.status == 499
    assert batcher.load() == (1, 1)
    run.free.set()
    assert other.future.result(20) == [5]
    assert run.batches[1:] == [["other"]]


def test_what_waits_is_done_before_the_end_and_nothing_more_is_taken_in(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    request = batcher.submit(["a", "bb"], "texts", run)
    ending = threading.Thread(target=batcher.close)
    ending.start()
    while not batcher._closing:
        time.sleep(0.005)
    with pytest.raises(Refusal, match="stopping"):
        batcher.submit(["c"], "texts", run)
    run.free.set()
    ending.join(20)
    assert request.future.result(0) == [1, 2]
    assert batcher.load() == (0, 0)


def test_without_draining_who_waits_is_told_that_it_ends(batcher: Batcher, run: Lengths) -> None:
    held(batcher, run)
    request = batcher.submit(["a"], "texts", run)
    batcher.close(drain=False, seconds=0)
    with pytest.raises(CancelledError):
        request.future.result(20)
    with pytest.raises(Refusal, match="stopping"):
        outcome(batcher, request)


# ── through the API ───────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Model:
    home: Path = tmp_path_factory.mktemp("batched")
    legato.train("classification", tiny("classification", home / "data"), out=home / "run", quiet=True)
    return legato.load(home / "run", "cpu")


@pytest.mark.slow
def test_answers_are_the_same_alone_and_among_others(model: Model) -> None:
    served = Served("films", model)
    client = api_of(served)
    texts = ["a gem of a film " * (1 + number % 5) + "bad " * (number % 3) for number in range(24)]

    def predict(number: int) -> Any:
        some, nbest = texts[number : number + 3], 1 + number % 2
        answer = client.post("/v1/predict", json={"model": "films", "inputs": some, "nbest": nbest})
        return answer.json()["predictions"]

    def embed(number: int) -> Any:
        answer = client.post("/v1/embeddings", json={"model": "films", "input": texts[number]})
        return answer.json()["data"][0]["embedding"]

    alone = [model.predictions(texts[number : number + 3], nbest=1 + number % 2) for number in range(20)]
    vectors = [model.embed(texts[number]) for number in range(20)]
    try:
        with ThreadPoolExecutor(10) as pool:
            predicted, embedded = pool.map(predict, range(20)), pool.map(embed, range(20))
            for found, expected in zip(predicted, alone, strict=True):
                for each, other in zip(found, expected, strict=True):
                    assert each["input"] == other.input
                    assert [answer["text"] for answer in each["answers"]] == [a.text for a in other.answers]
                    scores = [answer["score"] for answer in each["answers"]]
                    assert scores == pytest.approx([a.score for a in other.answers], abs=1e-5)
            for vector, beside in zip(embedded, vectors, strict=True):
                assert np.allclose(vector, beside, atol=1e-5)
    finally:
        served.close()
    assert served.load() == (0, 0)


def test_a_full_queue_is_429_and_a_late_answer_504(model: Model, monkeypatch: pytest.MonkeyPatch) -> None:
    free = threading.Event()
    original = Model.predictions

    def slow(self: Model, inputs: Any, **options: Any) -> Any:
        assert free.wait(20)
        return original(self, inputs, **options)

    monkeypatch.setattr(Model, "predictions", slow)
    served = Served("films", model, queue=1, patience=0.5)
    client, body = api_of(served), {"model": "films", "inputs": ["a film"]}
    try:
        with ThreadPoolExecutor(2) as pool:
            first = pool.submit(client.post, "/v1/predict", json=body)
            while served.load() != (1, 0):
                time.sleep(0.005)
            second = pool.submit(client.post, "/v1/predict", json=body)
            while served.load() != (1, 1):
                time.sleep(0.005)
            busy = client.post("/v1/predict", json=body)
            assert "wait already" in refusal_of(busy, 429)
            assert int(busy.headers["retry-after"]) >= 1
            for late in (first, second):
                assert "longer than 0.5 s" in refusal_of(late.result(20), 504)
    finally:
        free.set()
        served.close()
