"""Generated tasks: right answers, the same rows for the same seed, and nothing held out that trains."""

from __future__ import annotations

import subprocess
import sys

import pytest

from legato.config import validate
from legato.data.sources.toys import ADJECTIVES, NOUNS, TOYS, VERBS, ToyConfig, toy_rows
from legato.errors import ConfigError

CLOSING = {"(": ")", "[": "]", "{": "}"}
SMALL = ToyConfig(count=300, valid_count=50)


def test_copy_repeats_the_source() -> None:
    assert all(source == target for source, target in toy_rows("copy", SMALL, "train", 0))


def test_reverse_reads_backwards() -> None:
    rows = toy_rows("reverse", SMALL, "train", 0)
    assert all(source.split() == target.split()[::-1] for source, target in rows)


def test_sort_puts_letters_in_order() -> None:
    rows = toy_rows("sort", SMALL, "train", 0)
    assert all(sorted(source.split()) == target.split() for source, target in rows)


def test_brackets_end_balanced() -> None:
    for source, target in toy_rows("brackets", SMALL, "train", 0):
        still_open: list[str] = []
        for bracket in f"{source} {target}".split():
            if bracket in CLOSING:
                still_open.append(CLOSING[bracket])
            else:
                assert still_open.pop() == bracket
        assert not still_open


@pytest.mark.parametrize("length", [1, 2, 7])
def test_brackets_always_leave_something_to_close(length: int) -> None:
    config = ToyConfig(length=length, count=300)
    assert all(target for _, target in toy_rows("brackets", config, "train", 0))


@pytest.mark.parametrize("length", range(3, 41))
def test_a_sentence_of_the_language_has_the_asked_number_of_words_on_both_sides(length: int) -> None:
    for source, target in toy_rows("language", ToyConfig(length=length, count=20), "train", 0):
        assert len(source.split()) == len(target.split()) == length


def test_the_language_puts_adjectives_behind_nouns_and_verbs_last() -> None:
    rows = toy_rows("language", ToyConfig(length=5, count=500), "train", 0)
    for source, target in rows:
        words = [(NOUNS | ADJECTIVES | VERBS)[word] for word in source.split()]
        assert sorted(words) == sorted(target.split())
        assert target.split()[-1] in VERBS.values()
        assert target.split()[0] in NOUNS.values()


def test_recall_asks_for_the_first_letter() -> None:
    for source, target in toy_rows("recall", SMALL, "train", 0):
        first, *filler, query = source.split()
        assert target == first
        assert query == "?"
        assert first not in filler


def test_recall_keeps_its_distance() -> None:
    rows = toy_rows("recall", ToyConfig(distance=17, count=20), "train", 0)
    assert {len(source.split()) for source, _ in rows} == {17 + 2}


def test_a_span_of_distances_is_drawn_from_whole() -> None:
    rows = toy_rows("recall", ToyConfig(distance=[2, 4], count=200), "train", 0)  # type: ignore[arg-type]
    assert {len(source.split()) - 2 for source, _ in rows} == {2, 3, 4}


def test_lengths_stay_in_their_span() -> None:
    rows = toy_rows("copy", ToyConfig(length=(3, 5), count=200), "train", 0)
    assert {len(source.split()) for source, _ in rows} == {3, 4, 5}


def test_only_the_asked_symbols_appear() -> None:
    rows = toy_rows("copy", ToyConfig(symbols=3, count=200), "train", 0)
    assert {letter for source, _ in rows for letter in source.split()} == {"a", "b", "c"}


@pytest.mark.parametrize("name", TOYS)
@pytest.mark.parametrize(("split", "count"), [("train", 300), ("valid", 50), ("test", 50)])
def test_a_split_has_the_asked_number_of_rows(name: str, split: str, count: int) -> None:
    assert len(toy_rows(name, SMALL, split, 0)) == count


@pytest.mark.parametrize("name", TOYS)
def test_held_out_rows_never_train(name: str) -> None:
    config = ToyConfig(length=(6, 12), count=2000)
    train = set(toy_rows(name, config, "train", 0))
    assert train.isdisjoint(toy_rows(name, config, "valid", 0))
    assert train.isdisjoint(toy_rows(name, config, "test", 0))


def test_a_space_too_small_to_hold_out_still_gives_rows() -> None:
    assert len(toy_rows("copy", ToyConfig(symbols=2, length=1), "valid", 0)) == 500


def test_validation_and_test_differ() -> None:
    assert toy_rows("copy", SMALL, "valid", 0) != toy_rows("copy", SMALL, "test", 0)


def test_another_seed_gives_other_rows() -> None:
    assert toy_rows("copy", SMALL, "train", 0) != toy_rows("copy", SMALL, "train", 1)


def test_a_longer_training_set_begins_with_the_shorter() -> None:
    longer = toy_rows("sort", ToyConfig(count=400), "train", 0)
    assert longer[:300] == toy_rows("sort", SMALL, "train", 0)


def test_rows_are_the_same_in_another_process() -> None:
    call = "toy_rows('recall', ToyConfig(count=300, valid_count=50), 'valid', 3)"
    script = f"from legato.data.sources.toys import ToyConfig, toy_rows; print({call})"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == str(toy_rows("recall", SMALL, "valid", 3))


def test_an_unknown_task_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'reverse'"):
        toy_rows("revers", SMALL, "train", 0)


def test_an_unknown_split_gets_a_suggestion() -> None:
    with pytest.raises(ConfigError, match="did you mean 'train'"):
        toy_rows("copy", SMALL, "trian", 0)


def test_words_of_the_command_line_are_understood() -> None:
    config = validate(ToyConfig, {"symbols": "5", "length": "3", "distance": [2, 9]})
    assert (config.symbols, config.length, config.distance) == (5, (3, 3), (2, 9))


@pytest.mark.parametrize(
    "settings",
    [
        {"symbols": 1},
        {"symbols": 27},
        {"length": 0},
        {"length": [5, 3]},
        {"length": [1, 2, 3]},
        {"distance": "far"},
        {"count": 0},
        {"valid_count": -1},
    ],
)
def test_a_size_out_of_range_is_refused(settings: dict[str, object]) -> None:
    with pytest.raises(ConfigError, match=f"^toy.{next(iter(settings))}="):
        validate(ToyConfig, settings, "toy")


def test_a_saved_config_gives_the_same_rows() -> None:
    config = ToyConfig(length=5, count=10)
    again = validate(ToyConfig, config.model_dump(mode="json"))
    assert toy_rows("copy", again, "train", 0) == toy_rows("copy", config, "train", 0)
