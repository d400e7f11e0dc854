"""What Whisper's writing begins with, and what it never writes."""

from __future__ import annotations

from typing import Any

import pytest

from legato.decoding.speech_prompt import SpeechPrompt
from legato.errors import ConfigError, FolderError

ENGLISH: dict[str, Any] = {"decoder_start_token_id": 50, "no_timestamps_token_id": 62}
MANY: dict[str, Any] = {
    **ENGLISH,
    "lang_to_id": {"<|en|>": 51, "<|de|>": 52},
    "task_to_id": {"transcribe": 58, "translate": 57},
}


def test_a_model_of_one_language_is_told_that_no_times_are_written() -> None:
    assert SpeechPrompt.of(ENGLISH).tokens == (50, 62)
    assert SpeechPrompt.of({"decoder_start_token_id": 50}).tokens == (50,)


@pytest.mark.parametrize("places", [[[1, 62]], [[2, 62], [1, 60]]])
def test_a_prompt_that_is_spelt_out_is_taken_in_the_order_of_its_places(places: list[list[int]]) -> None:
    expected = (50, *(token for _, token in sorted(places)))
    assert SpeechPrompt.of({**ENGLISH, "forced_decoder_ids": places}).tokens == expected


def test_language_and_task_stand_before_what_says_that_no_times_are_written() -> None:
    assert SpeechPrompt.of(MANY, language="de").tokens == (50, 52, 58, 62)
    assert SpeechPrompt.of(MANY, language="en", task="translate").tokens == (50, 51, 57, 62)


def test_what_is_asked_for_counts_more_than_what_is_spelt_out() -> None:
    old = {**MANY, "forced_decoder_ids": [[1, 51], [2, 58]]}
    assert SpeechPrompt.of(old).tokens == (50, 51, 58, 62)
    assert SpeechPrompt.of(old, language="de").tokens == (50, 52, 58, 62)


def test_what_is_not_written_is_told() -> None:
    prompt = SpeechPrompt.of({**ENGLISH, "suppress_tokens": [9, -1, 3], "begin_suppress_tokens": [20, 0]})
    assert (prompt.suppress, prompt.suppress_first) == ((3, 9), (0, 20))


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        ({}, "2 languages; say which one is spoken"),
        ({"language": "xx"}, "does not write 'xx'; it has de, en"),
        ({"language": "de", "task": "sing"}, "no task 'sing'; it has transcribe, translate"),
    ],
)
@pytest.mark.parametrize("left_open", [{}, {"forced_decoder_ids": [[1, None], [2, 58]]}])
def test_a_language_has_to_be_said_and_known(asked: dict[str, str], message: str, left_open: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=message):
        SpeechPrompt.of({**MANY, **left_open}, **asked)


def test_a_model_of_one_language_is_asked_for_no_other() -> None:
    with pytest.raises(ConfigError, match="leave language and task out"):
        SpeechPrompt.of(ENGLISH, language="de")


@pytest.mark.parametrize(
    ("entries", "message"),
    [
        ({}, "f.json names no decoder_start_token_id"),
        ({**ENGLISH, "forced_decoder_ids": [[2, 5]]}, "f.json: forced_decoder_ids leave places out"),
        ({**ENGLISH, "suppress_tokens": ["a"]}, "f.json: 'suppress_tokens"),
    ],
)
def test_entries_that_say_nothing_sensible_are_one_line(entries: dict[str, Any], message: str) -> None:
    with pytest.raises(FolderError, match=message):
        SpeechPrompt.of(entries, where="f.json")
