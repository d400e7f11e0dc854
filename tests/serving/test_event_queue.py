"""What a thread tells an event loop of texts: nothing is lost, and pieces that came meanwhile are one."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

from legato.decoding.emitter import Generated
from legato.decoding.logprobs import TokenLogprob
from legato.serving.openai_routes import _EventQueue, _joined
from legato.serving.scheduler import Done, Piece


def token(number: int) -> TokenLogprob:
    return TokenLogprob(number, -1.0, [])


DONE = Done([Generated("x", [1], 0.0, 0.0, True)])


def test_pieces_of_a_text_that_came_meanwhile_are_one() -> None:
    events = [(0, Piece(0, "a")), (1, Piece(0, "b")), (0, Piece(1, "c")), (0, Piece(0, "d")), (0, Piece(1, "e"))]
    assert _joined([*events]) == [(0, Piece(0, "ad")), (1, Piece(0, "b")), (0, Piece(1, "ce"))]


def test_their_tokens_stay_in_order() -> None:
    events = [(0, Piece(0, "a", [token(1)])), (0, Piece(0, "b", [])), (0, Piece(0, "c", [token(2), token(3)]))]
    assert _joined([*events]) == [(0, Piece(0, "abc", [token(1), token(2), token(3)]))]


def test_nothing_passes_an_end() -> None:
    events = [(0, Piece(0, "a")), (1, DONE), (0, Piece(0, "b")), (0, DONE)]
    assert _joined([*events]) == events


def test_all_that_threads_tell_arrives_in_order() -> None:
    many, pieces = 4, 500

    async def hear() -> dict[int, str]:
        events, heard = _EventQueue(), dict.fromkeys(range(many), "")

        def tell(number: int) -> None:
            listener = events.listener(number)
            for n in range(pieces):
                listener(Piece(0, f"{n} "))
            listener(DONE)

        threads = [threading.Thread(target=tell, args=[number]) for number in range(many)]
        for thread in threads:
            thread.start()
        left = many
        while left:
            for number, event in await asyncio.wait_for(events.next_events(), 30):
                if isinstance(event, Piece):
                    heard[number] += event.text
                else:
                    left -= 1
        for thread in threads:
            thread.join()
        return heard

    expected = "".join(f"{n} " for n in range(pieces))
    assert asyncio.run(hear()) == dict.fromkeys(range(many), expected)


def test_a_loop_that_has_ended_is_not_kept() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> _EventQueue:
        return _EventQueue()

    queue = loop.run_until_complete(begin())
    loop.close()
    queue.listener(0)(DONE)  # nobody hears it
    kept = weakref.ref(loop)
    del loop, queue
    gc.collect()
    assert kept() is None
