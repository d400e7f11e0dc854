"""Which unit follows what: correlations, what is read, what is chosen and confirmed, features of texts."""

from __future__ import annotations

import io
import tokenize
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from tiny_models import HEADS

from legato.errors import DataError, LegatoError
from legato.inspect import units
from legato.inspect.text_features import FEATURES, bracket, comment, indentation, matching, quote
from legato.inspect.units import at_tokens, correlations, find_units, read_units
from legato.model import Model

CODE = 'def f(a):\n    # a "note"\n    return {"x": [a, \'y\']}  # done\n\nprint("it\\"s")\n'
TRAINING_TEXT = CODE * 20
SMALL = {"task": "lm", "tokenizer": "char", "model.layers": 2, "model.width": 12}
RUNS: dict[str, dict[str, Any]] = {
    **{name: {**SMALL, "model": name} for name in ("lstm", "elman", "window")},
    "gpt2": {**SMALL, "model": "gpt2", **HEADS},
}


def test_strings_and_comments_are_pythons_own() -> None:
    text = Path(io.__file__).read_text(encoding="utf-8")
    begins = np.cumsum([0, *(len(each) for each in text.splitlines(keepends=True))])
    found = {tokenize.STRING: np.zeros(len(text)), tokenize.COMMENT: np.zeros(len(text))}
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type in found:
            first = begins[token.start[0] - 1] + token.start[1]
            found[token.type][first : begins[token.end[0] - 1] + token.end[1]] = 1
    assert (quote(text) == found[tokenize.STRING]).mean() > 0.999  # but for letters before a string
    assert (comment(text) == found[tokenize.COMMENT]).all()


def test_features_of_a_text() -> None:
    assert bracket(")([a)").tolist() == [0, 1, 1, 1, 0]
    assert bracket("(it's :] fine)").tolist() == [*[1] * 13, 0]
    assert bracket("([)]").tolist() == [1, 1, 0, 0]
    assert quote("don't").sum() == 0
    assert indentation("\ta\n b").tolist() == [8, 8, 8, 1, 1]
    assert all(len(feature("")) == 0 for feature in FEATURES.values())
    with pytest.raises(LegatoError, match="is no regular expression"):
        matching("(")


def test_correlations_are_pearsons() -> None:
    draw = np.random.default_rng(0)
    values, wanted = draw.normal(size=(50, 3)), draw.normal(size=50)
    values[:, 2] = 1.5
    found = correlations(values, wanted)
    assert found[:2] == pytest.approx([np.corrcoef(values[:, i], wanted)[0, 1] for i in range(2)])
    assert found[2] == 0


@pytest.mark.parametrize("name", ["lstm", "elman"])
def test_a_state_is_carried_from_chunk_to_chunk(
    models: dict[str, Model], name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    held = models[name].loaded
    whole = read_units(held.module, held.tokenizer, CODE)
    monkeypatch.setattr(units, "CHUNK", 7)
    parts = read_units(held.module, held.tokenizer, CODE)
    np.testing.assert_allclose(parts.values, whole.values, atol=1e-5)
    assert whole.text == CODE
    assert whole.ends == list(range(1, len(CODE) + 1))
    kinds = 2 if name == "lstm" else 1  # cells and hidden states
    assert whole.values.shape == (len(CODE), 2 * kinds * 12)
    assert len(whole.names) == whole.values.shape[1]


def test_a_unit_that_follows_is_found_and_confirmed(
    models: dict[str, Model], monkeypatch: pytest.MonkeyPatch
) -> None:
    model = models["lstm"]
    held = model.loaded
    read = read_units(held.module, held.tokenizer, CODE * 3)
    wanted = matching("return")
    ordinary = units.read_units

    def knowing(module: Any, tokenizer: Any, text: str) -> units.Read:
        found = ordinary(module, tokenizer, text)
        if module is held.module:
            noise = np.random.default_rng(len(text)).normal(size=len(found.ends))
            found.values[:, 7] = -at_tokens(found.text, found.ends, wanted) + 0.05 * noise
        return found

    monkeypatch.setattr(units, "read_units", knowing)
    found = find_units(model, CODE * 3, CODE * 2, {"return": wanted})["return"]
    first = found.best[0]
    assert (first.name, first.unit) == read.names[7]
    assert first.correlation < -0.95
    assert first.confirmed < -0.95
    assert abs(found.untrained.correlation) < 0.9
    assert found.probe > 0.9
    assert len(found.best) == units.TOP


def test_every_feature_is_looked_for_and_those_that_are_not_there_are_left_out(models: dict[str, Model]) -> None:
    found = find_units(models["gpt2"], CODE, CODE * 2)
    assert set(found) == set(FEATURES)
    again = find_units(models["gpt2"], CODE, CODE * 2)
    assert again == found  # whatever was drawn before
    assert "quote" not in find_units(models["elman"], "a(b)\n c = d\n", "(x)\n  y\n")
    with pytest.raises(DataError, match="the texts have none of digit"):
        find_units(models["elman"], "a(b)", "(xy)", {"digit": matching("[0-9]")})


def test_what_follows_nothing_is_said(models: dict[str, Model]) -> None:
    held = models["window"].loaded
    with pytest.raises(LegatoError, match="window has no states that could follow anything"):
        read_units(held.module, held.tokenizer, CODE)
    lstm = models["lstm"].loaded
    with pytest.raises(DataError, match="fewer than three tokens"):
        read_units(lstm.module, lstm.tokenizer, "a")
    assert torch.is_grad_enabled()


def test_documents_are_read_each_from_its_beginning(models: dict[str, Model]) -> None:
    documents = ["x = ''' never closed\n" * 3, CODE * 2]
    found = find_units(models["lstm"], documents, [CODE * 2, CODE])
    held = models["lstm"].loaded
    reads = [read_units(held.module, held.tokenizer, each) for each in documents]
    values = np.concatenate([read.values for read in reads])
    wanted = np.concatenate([quote(each) for each in documents])
    best = found["quote"].best[0]
    place = reads[0].names.index((best.name, best.unit))
    assert best.correlation == pytest.approx(correlations(values, wanted)[place])
    with pytest.raises(DataError, match="no document"):
        find_units(models["lstm"], [], [CODE])


def test_documents_that_are_too_short_are_passed_over(models: dict[str, Model]) -> None:
    found = find_units(models["lstm"], ["", CODE * 2, "ab"], [CODE, ""])
    assert found == find_units(models["lstm"], [CODE * 2], [CODE])
    with pytest.raises(DataError, match="no document of three tokens or more in one of the texts"):
        find_units(models["lstm"], [CODE], ["", "ab"])


def test_a_long_text_is_read_in_stretches(models: dict[str, Model], monkeypatch: pytest.MonkeyPatch) -> None:
    held = models["lstm"].loaded
    monkeypatch.setattr(units, "STRETCH", 20)
    text = (CODE * 4)[:89]
    read = read_units(held.module, held.tokenizer, text)  # four rows of 23, the last one filled up
    assert read.values.shape[0] == len(read.ends) == 89
    for begin in (0, 23, 46, 69):
        part = read_units(held.module, held.tokenizer, text[begin : begin + 19])
        assert np.allclose(read.values[begin : begin + 19], part.values, atol=1e-6)
