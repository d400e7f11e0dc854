"""The search's settings, and one clear line for each that does not fit."""

from __future__ import annotations

from typing import Any

import pytest

from legato.config import validate
from legato.decoding import SearchOptions
from legato.errors import ConfigError


def test_a_beam_search_has_four_beams_unless_told():
    assert SearchOptions(search="beam").width == 4
    assert SearchOptions(search="beam-sample").width == 4


def test_a_beam_search_has_as_many_beams_as_asked_for():
    assert SearchOptions(search="beam", beams=7).width == 7


@pytest.mark.parametrize("search", ["greedy", "sample"])
def test_a_search_without_beams_has_one_row(search: Any):
    assert SearchOptions(search=search).width == 1


def test_nbest_of_a_sample_is_a_number_of_walks():
    assert SearchOptions(search="sample", nbest=3).samples == 3
    assert SearchOptions(search="beam", nbest=3).samples == 1


def test_one_stop_string_needs_no_list():
    assert validate(SearchOptions, {"stop": "."}).stop == (".",)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"beams": 4}, "beams=4 needs --search beam (or beam-sample)"),
        ({"search": "sample", "beams": 2}, "beams=2 needs --search beam (or beam-sample)"),
        ({"nbest": 2}, "nbest=2 needs --search beam or sample: greedy search finds one hypothesis"),
        ({"search": "beam", "nbest": 5}, "nbest=5 is more than the 4 beams; ask for --beams 5"),
        ({"search": "beam", "beams": 2, "nbest": 3}, "nbest=3 is more than the 2 beams; ask for --beams 3"),
        ({"top_p": 0.9}, "top_p=0.9 needs --search sample (or beam-sample)"),
        ({"top_k": 5}, "top_k=5 needs --search sample (or beam-sample)"),
        ({"min_p": 0.1}, "min_p=0.1 needs --search sample (or beam-sample)"),
        ({"search": "beam", "temperature": 0.5}, "temperature=0.5 needs --search sample (or beam-sample)"),
        ({"min_tokens": 201}, "min_tokens=201 is more than max_tokens=200"),
        ({"stop": [""]}, "stop=[''] holds an empty string, which would stop at once"),
        ({"search": "sample", "temperature": 0}, "temperature=0 should be greater than 0"),
        ({"search": "sample", "top_p": 1.5}, "top_p=1.5 should be less than or equal to 1"),
        ({"max_tokens": 0}, "max_tokens=0 should be greater than or equal to 1"),
        ({"beem": 3}, "unknown key 'beem'; did you mean 'beams'?"),
    ],
)
def test_a_setting_that_does_not_fit_gets_one_line(settings: dict[str, Any], message: str):
    with pytest.raises(ConfigError) as caught:
        validate(SearchOptions, settings)
    assert str(caught.value) == message
