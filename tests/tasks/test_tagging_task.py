"""The tagging task: what is learned from, windows, rules, losses."""

from __future__ import annotations

import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from legato.data.batching.examples import Example, collate_examples
from legato.data.formats.tag_schemes import Scheme, labels_of, transitions
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, DataError
from legato.models.base import Sizes
from legato.models.bert import BertConfig, BertModel
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.recurrent import RecurrentModel
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.tagging.tagger import Tagger, pad_characters
from legato.tasks.tagging.task import Tagging, TaggingJob, tagging_loss
from tiny_tagged import sentences, small, write_columns

LABELS = labels_of(["LOC", "PER"], "iob2")


def job_of(folder: Path, say: Any = lambda text: None, **changes: Any) -> TaggingJob:
    config = check(settings_for("tagging", small(folder, **changes)))
    return Tagging.prepare(plan_of(config, torch.device("cpu")), say)


def tiny(length: int = 12, crf: bool = False, scheme: Scheme = "iob2", rules: bool = True) -> Tagger:
    """An untrained encoder of few positions, over letters: every word has as many tokens as letters."""
    tokenizer = Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), ["abcdefgh a b c d"])
    torch.manual_seed(0)
    config = BertConfig(layers=1, width=8, heads=2, length=length, dropout=0.0)
    allowed = transitions(LABELS, scheme).tolist() if crf and rules else None
    shape = HeadSpec(kind="tags", outputs=len(LABELS), crf=crf, dropout=0.0, allowed=allowed)
    model = ModelWithHead(BertModel(config, Sizes(tokenizer.size)), shape).eval()
    torch.nn.init.normal_(model.head.weight, std=5.0)
    return Tagger(model, model.config.text_reader(tokenizer), LABELS, scheme, rules)


def test_every_word_of_a_long_sentence_gets_a_tag() -> None:
    tagger = tiny(length=12)
    long = ["a", "b", "c", "dcba"] * 30
    found = tagger.emissions(tagger.read([["a", "b"], long, []]))
    assert [len(one) for one in found] == [2, len(long), 0]
    assert all(one.any(-1).all() for one in found if len(one))
    assert [len(guess.tags) for guess in tagger.choose(found)] == [2, len(long), 0]


def test_of_two_windows_the_one_counts_that_sees_more_around_a_word() -> None:
    tagger, words = tiny(length=10), list("abcdefgh" * 2)  # 8 words a window, 2 of them shared
    whole = tagger.emissions(tagger.read([words]))[0]
    torch.testing.assert_close(whole[:7], tagger.emissions(tagger.read([words[:8]]))[0][:7])
    torch.testing.assert_close(whole[7:13], tagger.emissions(tagger.read([words[6:14]]))[0][1:7])
    torch.testing.assert_close(whole[13:], tagger.emissions(tagger.read([words[12:]]))[0][1:])


def test_a_word_longer_than_the_model_reads_is_tagged_by_its_beginning() -> None:
    guess = tiny(length=6).predict(["a " + "b" * 50 + " c"])[0]
    assert len(guess.answers[0].more["tags"]) == 3


@pytest.mark.parametrize("crf", [False, True])
def test_only_tags_are_chosen_that_may_follow_each_other(crf: bool) -> None:
    allowed = transitions(LABELS, "iob2")
    words = [list("abcdefgh")[:n] for n in range(1, 9)] * 3
    broken = 0
    for rules in (True, False):
        tagger = tiny(length=12, crf=crf, rules=rules)
        emissions = [3 * torch.randn(len(one), len(LABELS)) for one in words]
        for guess in tagger.choose(emissions):
            path = [len(LABELS), *map(LABELS.index, guess.tags), len(LABELS) + 1]
            legal = all(allowed[a, b] for a, b in itertools.pairwise(path))
            assert legal or not rules
            broken += not legal
    assert broken


def test_without_rules_and_crf_each_word_has_its_most_probable_tag() -> None:
    tagger = tiny(rules=False)
    emissions = [torch.randn(5, len(LABELS)), torch.randn(2, len(LABELS))]
    for guess, one in zip(tagger.choose(emissions), emissions, strict=True):
        assert guess.tags == [LABELS[index] for index in one.argmax(-1)]
        assert guess.chances == pytest.approx(one.softmax(-1).amax(-1).tolist())


@pytest.mark.parametrize("crf", [False, True])
def test_the_loss_in_training_is_that_of_validation(crf: bool) -> None:
    tagger = tiny(length=32, crf=crf)
    words = [["a", "b", "cd"], ["abc"]]
    gold = [["B-LOC", "I-LOC", "O"], ["B-PER"]]
    rows = tagger.reader.sentences(words)
    for row, tags in zip(rows, gold, strict=True):
        row.targets = [LABELS.index(tag) for tag in tags]
    loss = tagging_loss(tagger.model, collate_examples(rows, pad=tagger.reader.padding))
    scores, _ = tagger.score(tagger.read(words), gold)
    assert float(loss.reported) == pytest.approx(4 * scores["loss"], rel=1e-4)


def test_a_tag_unheard_of_is_wrong_and_without_loss() -> None:
    tagger = tiny(length=32)
    plain, _ = tagger.score(tagger.read([["a", "b"]]), [["O", "O"]])
    both, _ = tagger.score(tagger.read([["a", "b"], ["c"]]), [["O", "O"], ["B-NEW"]])
    assert both["loss"] == pytest.approx(plain["loss"])
    assert both["words"] == 3


def test_loss_counts_no_padding_and_no_row_of_nothing() -> None:
    tagger = tiny(length=32)
    row = tagger.reader.words(["a", "bc"])
    row.targets = [0, 1]
    nothing = Example([0], positions=[], targets=[])
    alone = tagging_loss(tagger.model, collate_examples([row]))
    padded = tagging_loss(tagger.model, collate_examples([row, nothing], pad_to=8))
    torch.testing.assert_close(alone.total, padded.total)


def test_iob1_is_learned_as_iob2_and_said(tmp_path: Path) -> None:
    told: list[str] = []
    job = job_of(tmp_path, told.append)
    assert job.scheme == "iob2"
    assert job.labels == LABELS
    assert job.metric == "f1"
    assert "reading column 1 as words and 3 as tags, names in IOB1, learned as IOB2" in told[0]
    assert any("60 train, 12 valid sentences" in line for line in told)


def test_iobes_can_be_learned_instead(tmp_path: Path) -> None:
    job = job_of(tmp_path, data__scheme="iobes", head__crf=True)
    assert "S-LOC" in job.labels
    assert job.head.allowed == transitions(job.labels, "iobes").tolist()
    assert {tag for tags in job.tags["train"] for tag in tags} <= set(job.labels)


def test_other_columns_are_plain_tags(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="one tag, 'X', so there is nothing to learn"):
        job_of(tmp_path, data__tag=2)
    job = job_of(tmp_path, data__tag=1)  # every word is its own tag
    assert job.scheme == "plain"
    assert job.metric == "accuracy"
    assert job.head.allowed is None


def test_tags_out_of_order_are_repaired_and_counted(tmp_path: Path) -> None:
    rows = sentences(20, 1)
    rows[0] = (["Anna", "in", "Rome", "Rome"], ["I-PER", "O", "B-LOC", "I-PER"])
    write_columns(tmp_path / "train.txt", rows)
    write_columns(tmp_path / "valid.txt", sentences(3, 2))
    told: list[str] = []
    job = job_of(tmp_path, told.append)
    assert job.tags["train"][0] == ["B-PER", "O", "B-LOC", "B-PER"]
    note = next(line for line in told if "repaired" in line)
    assert "2 tags" in note
    assert "line 3: I-PER after the beginning" in note


def test_long_sentences_are_cut_for_training_with_tags_in_order(tmp_path: Path) -> None:
    told: list[str] = []
    changes = {"model": "bert", "model__heads": 2, "model__layers": 1, "tokenizer__size": 200, "model__length": 8}
    write_columns(tmp_path / "train.txt", [(["New", "York", "City", "in"] * 8, ["B-LOC", "I-LOC", "I-LOC", "O"] * 8)])
    write_columns(tmp_path / "valid.txt", sentences(2, 2))
    settings = {**small(tmp_path), **{key.replace("__", "."): value for key, value in changes.items()}}
    settings = {key: value for key, value in settings.items() if key != "model.embedding"}
    config = check(settings_for("tagging", {**settings, "head.crf": True, "data.unseen_tags": "wrong"}))
    job = Tagging.prepare(plan_of(config, torch.device("cpu")), told.append)
    assert any("8 tokens were cut" in line for line in told)
    batch = job.batches.at(0)
    assert batch.inputs.ids.shape[1] <= 8
    allowed = transitions(job.labels, "iob2")
    assert batch.targets is not None
    for row in batch.targets.tolist():
        assert allowed[len(job.labels), row[0]]


def test_without_validation_data_some_is_held_out(tmp_path: Path) -> None:
    job = job_of(tmp_path, data__valid=None, data__valid_share=0.25)
    assert [len(job.texts[split].sentences) for split in ("train", "valid")] == [45, 15]


def test_words_as_tokens_have_zeros_for_digits_and_hidden_rare_words(tmp_path: Path) -> None:
    rows = [([*words, f"19{n:02}"], [*tags, "O"]) for n, (words, tags) in enumerate(sentences(30, 1))]
    write_columns(tmp_path / "train.txt", rows)
    write_columns(tmp_path / "valid.txt", sentences(3, 2))
    job = job_of(tmp_path)
    assert job.zero_digits
    assert job.tokenizer.id_of("0000") is not None
    assert job.tokenizer.id_of("1901") is None
    kept = job_of(tmp_path, data__zero_digits="false")
    assert kept.tokenizer.id_of("1901") is not None


def test_what_does_not_go_together_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"data\.metric=f1 is for tags of names"):
        job_of(tmp_path, data__tag=1, data__metric="f1")
    with pytest.raises(ConfigError, match=r"data\.scheme=iobes is for tags of names"):
        job_of(tmp_path, data__tag=1, data__scheme="iobes")
    with pytest.raises(ConfigError, match="reads the letters of whole words"):
        job_of(tmp_path, tokenizer="bpe", model__characters=8)
    with pytest.raises(ConfigError, match="model=transformer reads one text and writes another"):
        check(settings_for("tagging", {"model": "transformer"}))


def test_vectors_from_elsewhere_begin_the_embedding_and_bring_words(tmp_path: Path) -> None:
    write_columns(tmp_path / "train.txt", sentences(20, 1))
    write_columns(tmp_path / "valid.txt", [(["Bern", "sees", "Oslo"], ["B-LOC", "O", "B-LOC"])])
    (tmp_path / "v.txt").write_text(
        "".join(f"{word} {' '.join([str(n)] * 12)}\n" for n, word in enumerate(["rome", "Bern"]))
    )
    told: list[str] = []
    job = job_of(tmp_path, told.append, data__vectors=tmp_path / "v.txt", model__characters=0)
    bern = job.tokenizer.id_of("Bern")
    assert bern is not None
    assert job.tokenizer.id_of("Oslo") is None
    assert not job.zero_digits
    model = ModelWithHead(RecurrentModel(job.plan.model, job.sizes), job.head)
    job.initialise(model)
    weight = model.body.embedding.weight  # type: ignore[union-attr]
    assert (weight[bern] == 1).all()  # type: ignore[index]
    assert (weight[job.tokenizer.id_of("Rome")] == 0).all()  # type: ignore[index]


def test_words_are_spelt_alike_for_steps_that_are_recorded() -> None:
    rows = [Example([1, 2], characters=np.ones((2, 3))), Example([1], characters=np.ones((1, 7))), Example([1])]
    pad_characters(rows)
    assert [None if row.characters is None else row.characters.shape for row in rows] == [(2, 7), (1, 7), None]
    assert rows[0].characters is not None
    assert rows[0].characters.sum() == 6
