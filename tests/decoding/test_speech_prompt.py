"""What Whisper's writing begins with, and what it never writes."""

from __future__ import annotations

from typing import Any

import pytest
import torch

from legato.decoding.speech.speech_prompt import Segment, SpeechPrompt, Timestamps, segments
from legato.errors import ConfigError, FolderError

ENGLISH: dict[str, Any] = {"no_timestamps_token_id": 62}
START = 50
MANY: dict[str, Any] = {
    **ENGLISH,
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52},
    "task_to_id": {"transcribe": 58, "translate": 57},
}


def test_a_model_of_one_language_is_told_that_no_times_are_written() -> None:
    assert SpeechPrompt.of(ENGLISH, START).tokens == (50, 62)
    assert SpeechPrompt.of({}, START).tokens == (50,)


@pytest.mark.parametrize("places", [[[1, 62]], [[2, 62], [1, 60]]])
def test_a_prompt_that_is_spelt_out_is_taken_in_the_order_of_its_places(places: list[list[int]]) -> None:
    expected = (50, *(token for _, token in sorted(places)))
    assert SpeechPrompt.of({**ENGLISH, "forced_decoder_ids": places}, START).tokens == expected


def test_language_and_task_stand_before_what_says_that_no_times_are_written() -> None:
    assert SpeechPrompt.of(MANY, START, language="de").tokens == (50, 52, 58, 62)
    assert SpeechPrompt.of(MANY, START, language="en", task="translate").tokens == (50, 51, 57, 62)


def test_what_is_asked_for_counts_more_than_what_is_spelt_out() -> None:
    old = {**MANY, "forced_decoder_ids": [[1, 51], [2, 58]]}
    assert SpeechPrompt.of(old, START).tokens == (50, 51, 58, 62)
    assert SpeechPrompt.of(old, START, language="de").tokens == (50, 52, 58, 62)


def test_what_is_not_written_is_told() -> None:
    prompt = SpeechPrompt.of({**ENGLISH, "suppress_tokens": [9, -1, 3], "begin_suppress_tokens": [20, 0]}, START)
    assert (prompt.suppress, prompt.suppress_first) == ((3, 9), (0, 20))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({"language": "xx"}, "does not write 'xx'; it has de, en"),
        ({"language": "de", "task": "sing"}, "no task 'sing'; it has transcribe, translate"),
    ],
)
@pytest.mark.parametrize("left_open", [{}, {"forced_decoder_ids": [[1, None], [2, 58]]}])
def test_a_language_has_to_be_said_and_known(asked: dict[str, str], message: str, left_open: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeechPrompt.of({**MANY, **left_open}, START, **asked)


@pytest.mark.parametrize("left_open", [{}, {"forced_decoder_ids": [[1, None], [2, 58]]}])
def test_a_language_that_nobody_names_is_left_to_the_model(left_open: dict[str, Any]) -> None:
    prompt = SpeechPrompt.of({**MANY, **left_open}, START)
    assert (prompt.tokens, prompt.languages) == ((50, 58, 62), (51, 52))
    found = prompt.speaking(52)
    assert (found.tokens, found.languages) == ((50, 52, 58, 62), ())


def test_tokens_that_the_file_does_not_name_are_found_by_their_names() -> None:
    names = {"<|startoftranscript|>": 50, "<|notimestamps|>": 62}
    prompt = SpeechPrompt.of({}, START, names.get)
    assert (prompt.tokens, prompt.spaced) == ((50, 62), True)
    assert SpeechPrompt.of({}, 49, names.get).tokens == (49,)


def test_where_times_are_written_nothing_says_that_there_are_none() -> None:
    timed = SpeechPrompt.of(MANY, START, language="de").timed(70)
    assert timed is not None
    assert timed.tokens == (50, 52, 58)
    assert SpeechPrompt.of(ENGLISH, START).timed(63) is None
    assert SpeechPrompt.of({}, START).timed(70) is None


def test_a_model_of_one_language_is_asked_for_no_other() -> None:
    with pytest.raises(ConfigError, match="leave language and task out"):
        SpeechPrompt.of(ENGLISH, START, language="de")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({**ENGLISH, "forced_decoder_ids": [[2, 5]]}, "f.json: forced_decoder_ids leave places out"),
        ({**ENGLISH, "suppress_tokens": ["a"]}, "f.json: 'suppress_tokens"),
    ],
)
def test_entries_that_say_nothing_sensible_are_one_line(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(FolderError, match=message):
        SpeechPrompt.of(entries, START, where="f.json")


# --- times -------------------------------------------------------------------------------------------

EOS, PLAIN, SIZE = 4, 10, 40  # times are the tokens from 11 on


@pytest.mark.parametrize(
    "written", [[], [11], [13], [11, 2], [11, 2, 20], [11, 2, 20, 20], [11, 2, 20, 25], [11, 2, 3], [12, 2, 39, 39]]
)
def test_what_may_follow_times_is_what_their_rules_say(written: list[int]) -> None:
    logits_process = pytest.importorskip("transformers.generation.logits_process")
    generation = pytest.importorskip("transformers").GenerationConfig(
        eos_token_id=EOS, no_timestamps_token_id=PLAIN, max_initial_timestamp_index=5
    )
    theirs = logits_process.WhisperTimeStampLogitsProcessor(generation, begin_index=2)
    prompt = SpeechPrompt((5, 6), no_timestamps=PLAIN, first_at=5)
    for seed in range(20):
        logits = 3 * torch.randn(1, SIZE, generator=torch.Generator().manual_seed(seed))
        logits[:, PLAIN + 1 :] += seed % 5 - 2  # more or less time
        expected = theirs(torch.tensor([[5, 6, *written]]), logits.clone())
        found = Timestamps(prompt, EOS)(logits, [written])
        assert torch.equal(found > -1e29, expected > -torch.inf)
        assert torch.equal(found[found > -1e29], expected[expected > -torch.inf])


def test_passages_are_what_stands_between_times() -> None:
    two = [100, 7, 8, 150, 150, 9, 175]
    assert segments(two, 100, 30.0) == ([Segment(0.0, 1.0, [7, 8]), Segment(1.0, 1.5, [9])], 30.0)
    assert segments([100, 7, 150, 150], 100, 30.0) == ([Segment(0.0, 1.0, [7])], 1.0)
    assert segments([110, 7, 8], 100, 5.0)[0] == [Segment(pytest.approx(0.2), 5.0, [7, 8])]
    assert segments([100, 7, 150], 100, 5.0) == ([Segment(0.0, 1.0, [7])], 5.0)
    assert segments([7, 8], 100, 5.0) == ([Segment(0.0, 5.0, [7, 8])], 5.0)
    assert segments([], 100, 5.0) == ([Segment(0.0, 5.0, [])], 5.0)
