"""What a thread tells an event loop of texts: nothing is lost, and pieces that came meanwhile are one."""

from __future__ import annotations

import asyncio
import gc
import threading
import weakref

from legato.decoding import Hypothesis
from legato.decoding.logprobs import TokenLogprob
from legato.serving.scheduler import Done, Piece
from legato.serving.texts.event_queue import EventQueue, joined


def token(number: int) -> TokenLogprob:
    return TokenLogprob(number, -1.0, [])


DONE = Done([Hypothesis([1], 0.0, 0.0, True, [])])


def test_pieces_of_a_text_that_came_meanwhile_are_one() -> None:
    events = [
        (0, Piece(0, [1])),
        (1, Piece(0, [2])),
        (0, Piece(1, [3])),
        (0, Piece(0, [4])),
        (0, Piece(1, [5, 6])),
    ]
    assert joined([*events]) == [(0, Piece(0, [1, 4])), (1, Piece(0, [2])), (0, Piece(1, [3, 5, 6]))]


def test_what_was_held_of_their_tokens_stays_in_order() -> None:
    events = [(0, Piece(0, [1], [token(1)])), (0, Piece(0, [2, 3], [token(2), token(3)]))]
    assert joined([*events]) == [(0, Piece(0, [1, 2, 3], [token(1), token(2), token(3)]))]


def test_nothing_passes_an_end() -> None:
    events = [(0, Piece(0, [1])), (1, DONE), (0, Piece(0, [2])), (0, DONE)]
    assert joined([*events]) == events


def test_all_that_threads_tell_arrives_in_order() -> None:
    many, pieces = 4, 500

    async def hear() -> dict[int, list[int]]:
        events = EventQueue()
        heard: dict[int, list[int]] = {number: [] for number in range(many)}

        def tell(number: int) -> None:
            listener = events.listener(number)
            for n in range(pieces):
                listener(Piece(0, [n]))
            listener(DONE)

        threads = [threading.Thread(target=tell, args=[number]) for number in range(many)]
        for thread in threads:
            thread.start()
        left = many
        while left:
            for number, event in await asyncio.wait_for(events.next_events(), 30):
                if isinstance(event, Piece):
                    heard[number] += event.tokens
                else:
                    left -= 1
        for thread in threads:
            thread.join()
        return heard

    assert asyncio.run(hear()) == {number: [*range(pieces)] for number in range(many)}


def test_a_loop_that_has_ended_is_not_kept() -> None:
    loop = asyncio.new_event_loop()

    async def begin() -> EventQueue:
        return EventQueue()

    queue = loop.run_until_complete(begin())
    loop.close()
    queue.listener(0)(DONE)  # nobody hears it
    kept = weakref.ref(loop)
    del loop, queue
    gc.collect()
    assert kept() is None
