"""Translation scores are sacreBLEU's own."""

from __future__ import annotations

import subprocess
import sys

import pytest
import sacrebleu
from sacrebleu.metrics import chrf

from legato.errors import LegatoError
from legato.evaluation.translation import translation_scores

REFERENCES = ["A dog runs on the beach.", "Two men are talking to each other.", "She isn't here, is she?"]
HYPOTHESES = ["A dog is running on the beach.", "two men talk to each other.", "She is not here."]


def test_identical_text_has_a_hundred():
    found = translation_scores(REFERENCES, REFERENCES)
    assert found["bleu"] == found["bleu_lower"] == pytest.approx(100)
    assert found["chrf"] == pytest.approx(100)
    assert found["hypothesis_ratio"] == 1


def test_the_scores_are_those_of_sacrebleu():
    found = translation_scores(HYPOTHESES, REFERENCES)
    bleu = sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES])
    assert found["bleu"] == bleu.score
    assert found["bleu_lower"] == sacrebleu.corpus_bleu(HYPOTHESES, [REFERENCES], lowercase=True).score
    assert found["chrf"] == sacrebleu.corpus_chrf(HYPOTHESES, [REFERENCES]).score
    assert found["hypothesis_ratio"] == bleu.sys_len / bleu.ref_len
    assert 0 < bleu.score < 100


def test_the_signatures_say_how_it_was_counted():
    found = translation_scores(HYPOTHESES, REFERENCES)
    version = f"version:{sacrebleu.__version__}"
    assert found["bleu_signature"] == f"nrefs:1|case:mixed|eff:no|tok:13a|smooth:exp|{version}"
    assert found["bleu_lower_signature"] == f"nrefs:1|case:lc|eff:no|tok:13a|smooth:exp|{version}"
    assert found["chrf_signature"] == f"nrefs:1|case:mixed|eff:yes|nc:6|nw:0|space:no|{version}"


def test_only_the_cased_score_sees_case():
    found = translation_scores([text.upper() for text in REFERENCES], REFERENCES)
    assert found["bleu_lower"] == pytest.approx(100)
    assert isinstance(found["bleu"], float)
    assert found["bleu"] < 50


def test_the_ratio_tells_short_translations():
    # Four tokens of seven: the full stop is one.
    assert translation_scores(["A dog runs."], [REFERENCES[0]])["hypothesis_ratio"] == pytest.approx(4 / 7)


def test_empty_translations_have_nothing():
    found = translation_scores(["", ""], REFERENCES[:2])
    assert found["bleu"] == found["chrf"] == found["hypothesis_ratio"] == 0


def test_no_translations_are_an_error():
    with pytest.raises(LegatoError, match="there are no translations to score"):
        translation_scores([], [])


def test_lists_of_different_lengths_are_an_error():
    with pytest.raises(LegatoError, match="there are 3 translations and 2 references"):
        translation_scores(HYPOTHESES, REFERENCES[:2])


def test_the_scorer_is_imported_only_when_it_scores():
    code = "import sys, legato.evaluation.translation; assert 'sacrebleu' not in sys.modules"
    subprocess.run([sys.executable, "-c", code], check=True)


def test_a_word_without_end_costs_no_more_than_a_long_one(monkeypatch: pytest.MonkeyPatch) -> None:
    read: list[int] = []
    extract = chrf.extract_all_char_ngrams
    monkeypatch.setattr(
        chrf, "extract_all_char_ngrams", lambda line, *rest: read.append(len(line)) or extract(line, *rest)
    )
    endless = "ab" * 50_000
    with pytest.warns(UserWarning, match="only the first 10,000 are scored"):
        scores = translation_scores(["the cat", f"the {endless} sat"], [endless, f"the {endless} sat"])
    assert sum(read) < 4 * 10_010
    long = ["ab" * 5_000, "a dog " * 4_000]  # that are no longer than scored are scored whole
    assert scores["chrf"] < 100 == round(translation_scores(long, long)["chrf"])
    read.clear()
    translation_scores(long, long)
    assert sum(read) == 2 * (10_000 + 24_000)
