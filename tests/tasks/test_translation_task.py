"""The translation task piece by piece: losses by hand, batches against singles, tags, alignments."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from legato.config import validate
from legato.data.batching.batch import IGNORE, Batch, Inputs
from legato.data.batching.pair_batches import collate_pairs
from legato.data.formats.text_pairs import Pairs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.errors import ConfigError
from legato.folders.loaded import Loaded
from legato.models.base import SequenceModel, Sizes
from legato.registry import MODELS, TASKS
from legato.runs.config import with_defaults
from legato.tasks.base import word_alignment, word_numbers
from legato.tasks.encoder_decoder import (
    TargetTokens,
    align,
    batches_of,
    beam_options,
    decode,
    mean_loss,
    pair_loss,
    require_source,
)
from legato.tasks.translation.task import Translation, TranslationOptions
from legato.tasks.translation.translator import Translator
from tiny_pairs import sentences

TEXTS = [each[language] for each in sentences(random.Random(2), 60) for language in ("en", "de")]
TAGS = (">>de<<", ">>fr<<")
JOINT = Tokenizer.train(TokenizerConfig(name="bpe", size=300), TEXTS).with_special_tokens(["<pad>"])
TAGGED = JOINT.with_special_tokens(TAGS)
# Of 16 different lengths, the longest ones first and last.
SOURCES = [" and ".join(["The dog eats", "A man sleeps", "A cat runs"] * 6)[: 8 + 7 * n] for n in (15, *range(15))]
SMALL: dict[str, dict[str, Any]] = {
    "transformer": {"width": 16, "layers": 2, "heads": 2, "length": 128, "tied": False},
    "seq2seq": {"width": 16, "layers": 1},
}


def build(name: str, tokenizer: Tokenizer = JOINT, **settings: Any) -> SequenceModel:
    """A model on random weights that have opinions, so that no two words are nearly as likely."""
    torch.manual_seed(3)
    model: type[SequenceModel] = MODELS.get(name)
    module = model(validate(model.Config, {"name": name, **SMALL[name], **settings}), Sizes(tokenizer.size))
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
            if parameter.dim() > 1 and name == "transformer":  # so that the source counts
                parameter.mul_(3)
        if name == "seq2seq":
            module.output.bias[tokenizer.eos_id] += 2  # type: ignore[union-attr, index, operator]
    return module.eval()


@pytest.fixture(scope="module", params=SMALL)
def translator(request: pytest.FixtureRequest) -> Translator:
    return Translator(build(request.param), JOINT, JOINT)


def asked(**options: Any) -> TranslationOptions:
    return TranslationOptions(**options)


# ── decoding ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.slow
@pytest.mark.parametrize("beams", [1, 4])
def test_a_batch_of_sixteen_equals_sixteen_singles(translator: Translator, beams: int) -> None:
    options = SearchOptions(search="beam", beams=beams)
    ids = [translator.source_ids(text) for text in SOURCES]
    together = translator.translate(ids, options, most=25)
    alone = [translator.translate([each], options, most=25)[0] for each in ids]
    assert [found[0].tokens for found in together] == [found[0].tokens for found in alone]
    assert len({tuple(found[0].tokens) for found in together}) > 4  # they do differ


@pytest.mark.slow
def test_predictions_of_sixteen_texts_equal_sixteen_single_ones(translator: Translator) -> None:
    together = translator.predict(SOURCES, asked(beams=3, nbest=2, max_tokens=20), {})
    alone = [translator.predict([text], asked(beams=3, nbest=2, max_tokens=20), {})[0] for text in SOURCES]
    assert [[a.text for a in p.answers] for p in together] == [[a.text for a in p.answers] for p in alone]
    for one, other in zip(together, alone, strict=True):
        assert one.answers[0].score == pytest.approx(other.answers[0].score, abs=1e-4)


def test_a_beam_of_one_is_greedy_search(translator: Translator) -> None:
    ids = [translator.source_ids(text) for text in SOURCES]
    greedy = translator.translate(ids, SearchOptions(), most=25)
    beam = translator.translate(ids, SearchOptions(search="beam", beams=1), most=25)
    assert [found[0].tokens for found in greedy] == [found[0].tokens for found in beam]


@pytest.mark.parametrize("rows", [1, 3, 16])
def test_however_many_rows_go_together_the_order_is_that_of_the_sources(translator: Translator, rows: int) -> None:
    ids = [translator.source_ids(text) for text in SOURCES]
    limits = [12] * len(ids)
    plain = decode(translator.model, ids, translator.target_tokens, SearchOptions(), limits=limits)
    other = decode(translator.model, ids, translator.target_tokens, SearchOptions(), limits=limits, rows=rows)
    assert [found[0].tokens for found in other] == [found[0].tokens for found in plain]


def test_a_translation_holds_no_marks_and_keeps_its_limit(translator: Translator) -> None:
    ids = [translator.source_ids(text) for text in SOURCES]
    for found in translator.translate(ids, SearchOptions(search="beam", beams=4), most=9):
        assert len(found[0].tokens) <= 9
        assert not set(found[0].tokens) & translator.target.special_ids


def test_no_translation_is_longer_than_the_models_positions() -> None:
    translator = Translator(build("transformer", length=20), JOINT, JOINT)
    source = translator.source_ids("A dog")
    assert translator.limit(source) == 19
    assert translator.limit(source, most=500) == 19
    assert len(translator.translate([source], SearchOptions(), most=500)[0][0].tokens) <= 19


def test_a_model_without_positions_has_a_limit_all_the_same() -> None:
    translator = Translator(build("seq2seq"), JOINT, JOINT)
    assert translator.limit(translator.source_ids("A dog runs.")) >= 24


def test_nothing_to_translate_gives_nothing(translator: Translator) -> None:
    assert translator.translate([], SearchOptions()) == []
    assert translator.predict([], asked(), {}) == []
    assert [answer.text for answer in translator.predict([" \t\x00"], asked(), {})[0].answers] == [""]


# ── how to search ─────────────────────────────────────────────────────────────────────────────────


def test_what_is_not_asked_for_is_as_the_folder_says() -> None:
    about = {"beams": 7, "length_penalty": 0.4}
    assert (beam_options(about).beams, beam_options(about).length_penalty) == (7, 0.4)
    chosen = beam_options(about, beams=2, length_penalty=0.0)
    assert (chosen.beams, chosen.length_penalty) == (2, 0.0)
    assert (beam_options({}).beams, beam_options({}).length_penalty) == (4, 1.0)


def test_more_answers_widen_the_folders_beam_but_not_the_one_asked_for() -> None:
    assert beam_options({"beams": 2}, nbest=5).beams == 5
    with pytest.raises(ConfigError, match="nbest=5 is more than the 3 beams; ask for --beams 5"):
        beam_options({"beams": 8}, beams=3, nbest=5)


def test_a_folder_that_says_nonsense_is_an_error_of_one_line() -> None:
    with pytest.raises(ConfigError, match="length_penalty=-1"):
        beam_options({"length_penalty": -1})


@pytest.mark.parametrize(("given", "penalty"), [({}, 0.7), ({"length_penalty": 0}, 0.0), ({"beams": 2}, 0.7)])
def test_evaluating_searches_as_asked_even_with_a_penalty_of_zero(
    given: dict[str, Any], penalty: float, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").write_text("A dog runs.\n")
    (tmp_path / "b").write_text("Ein Hund läuft.\n")
    module = build("seq2seq")
    loaded = Loaded(tmp_path, module, Processors(JOINT), "translation", {"beams": 3, "length_penalty": 0.7})
    used: list[SearchOptions] = []

    def spy(*args: Any, **more: Any) -> Any:
        used.append(args[3])
        return decode(*args, **more)

    monkeypatch.setattr("legato.tasks.translation.translator.decode", spy)
    data = validate(Translation.Data, {"test": [f"{tmp_path}/a", f"{tmp_path}/b"], **given})
    Translation.evaluate(loaded, data)
    assert [(options.beams, options.length_penalty) for options in used] == [(given.get("beams", 3), penalty)]


# ── losses ────────────────────────────────────────────────────────────────────────────────────────


def pairs_of(count: int) -> tuple[list[Any], list[Any]]:
    sources = [np.append(JOINT.encode(text), JOINT.eos_id).astype(np.int32) for text in TEXTS[0 : 2 * count : 2]]
    return sources, [JOINT.encode(text) for text in TEXTS[1 : 2 * count : 2]]


@pytest.mark.parametrize("smoothing", [0.0, 0.1, 0.5])
def test_smoothed_labels_cost_what_pytorch_says(translator: Translator, smoothing: float) -> None:
    batch = collate_pairs(*pairs_of(5), translator.target_tokens.start, translator.target_tokens.eos)
    loss = pair_loss(translator.model, batch, smoothing)
    assert batch.targets is not None
    logits = translator.model.readout(translator.model(batch).hidden)
    flat = logits.flatten(0, 1), batch.targets.flatten()
    expected = F.cross_entropy(*flat, ignore_index=IGNORE, reduction="sum", label_smoothing=smoothing)
    torch.testing.assert_close(loss.total, expected, rtol=1e-4, atol=1e-3)
    torch.testing.assert_close(
        loss.reported, F.cross_entropy(*flat, ignore_index=IGNORE, reduction="sum"), rtol=1e-4, atol=1e-3
    )


def test_the_mean_loss_is_that_of_a_loop_by_hand(translator: Translator) -> None:
    sources, targets = pairs_of(7)
    total, count = 0.0, 0
    for source, target in zip(sources, targets, strict=True):
        ids = [translator.target_tokens.start, *target.tolist()]
        batch = Batch(Inputs(torch.tensor([ids])), source=Inputs(torch.tensor([source.tolist()])))
        with torch.no_grad():
            logp = F.log_softmax(translator.model.readout(translator.model(batch).hidden)[0], -1)
        for place, token in enumerate([*target.tolist(), translator.target_tokens.eos]):
            total -= float(logp[place, token])
            count += 1
    assert mean_loss(translator.model, batches_of(sources, targets, translator.target_tokens)) == pytest.approx(
        total / count, rel=1e-5
    )


@pytest.mark.parametrize("tokens", [1, 40, 100_000])
def test_every_pair_is_scored_once_however_large_the_batches(translator: Translator, tokens: int) -> None:
    sources, targets = pairs_of(9)
    batches = list(batches_of(sources, targets, translator.target_tokens, tokens))
    assert sum(batch.rows for batch in batches) == 9
    assert sum(batch.tokens for batch in batches) == sum(len(target) + 1 for target in targets)
    assert mean_loss(translator.model, iter(batches)) == pytest.approx(
        mean_loss(translator.model, batches_of(sources, targets, translator.target_tokens)), rel=1e-5
    )


@pytest.mark.parametrize("filling", [0, 5])
def test_padding_changes_nothing(translator: Translator, filling: int) -> None:
    sources, targets = pairs_of(4)
    plain = collate_pairs(sources, targets, translator.target_tokens.start, translator.target_tokens.eos)
    assert plain.source is not None
    assert plain.targets is not None
    lengths = torch.tensor([len(source) for source in sources])
    wider = Batch(
        Inputs(
            F.pad(plain.inputs.token_ids, (0, 3), value=filling),
            lengths=torch.tensor([len(target) + 1 for target in targets]),
        ),
        F.pad(plain.targets, (0, 3), value=IGNORE),
        tokens=plain.tokens,
        source=Inputs(F.pad(plain.source.token_ids, (0, 6), value=filling), lengths=lengths),
    )
    losses = [float(pair_loss(translator.model, batch).total.detach()) for batch in (plain, wider)]
    assert losses[0] == pytest.approx(losses[1], rel=1e-5)


def test_alignments_sum_to_one_over_the_source(translator: Translator) -> None:
    source = translator.source_ids("The cat eats.")
    target = JOINT.encode("Das Katze isst.").tolist()
    weights = align(translator.model, source, target, translator.target_tokens)
    assert weights.shape == (len(target) + 1, len(source))
    torch.testing.assert_close(weights.sum(-1), torch.ones(len(target) + 1), rtol=1e-5, atol=1e-5)


# ── tags ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def polyglot() -> Translator:
    return Translator(build("seq2seq", TAGGED), TAGGED, TAGGED)


def test_a_tag_stands_before_the_source_and_the_end_behind_it(polyglot: Translator) -> None:
    ids = polyglot.source_ids("A dog", "fr").tolist()
    assert ids == [TAGGED.id_of(">>fr<<"), *TAGGED.encode("A dog").tolist(), TAGGED.eos_id]


def test_a_translator_knows_its_languages(polyglot: Translator, translator: Translator) -> None:
    assert polyglot.tags == ["de", "fr"]
    assert translator.tags == []


def test_a_tag_that_is_typed_is_the_same_as_one_that_is_asked_for(polyglot: Translator) -> None:
    [typed] = polyglot.predict([">>fr<< A dog runs."], asked(), {})
    [told] = polyglot.predict(["A dog runs."], asked(to="fr"), {})
    [other] = polyglot.predict(["A dog runs."], asked(to="de"), {})
    assert typed.answers == told.answers
    assert typed.answers[0].score != other.answers[0].score


def test_a_tag_in_the_middle_of_a_text_is_text(polyglot: Translator) -> None:
    ids = polyglot.source_ids("A >>fr<< dog", "de").tolist()
    assert ids.count(TAGGED.id_of(">>fr<<")) == 0


def test_pairs_of_each_language_are_scored_apart(polyglot: Translator) -> None:
    targets = ["Ein Hund läuft hier.", "Un chien court ici.", "Eine Katze frisst dort.", "Un chat mange ici."]
    pairs = Pairs(source="a.tsv", lines=[1, 2, 3, 4], sources=["x"] * 4, targets=targets, tags=["de", "fr"] * 2)
    scores = polyglot._scores_by_tag(pairs, [targets[0], "", targets[2], ""])
    found = [scores[f"{name}_{tag}"] for tag in ("de", "fr") for name in ("bleu", "chrf")]
    assert found == pytest.approx([100, 100, 0, 0])


def test_hundreds_of_languages_are_not_all_listed() -> None:
    many = JOINT.with_special_tokens([f">>l{n:03}<<" for n in range(300)])
    translator = Translator(build("seq2seq", many), many, many)
    with pytest.raises(ConfigError, match=r"l000, l001, .* and 288 more; say which, with --to l000") as caught:
        translator.predict(["A dog"], asked(), {})
    assert len(str(caught.value)) < 200


# ── words and their alignment ─────────────────────────────────────────────────────────────────────

UNUSUAL = ["A  dog   runs.", "dog", "The cat eats and A man sleeps.", "hundred-year-old", "🐶 läuft"]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("name", ["byte", "char", "word", "bpe", "unigram"])
@pytest.mark.parametrize("text", UNUSUAL)
def test_the_words_of_tokens_are_those_between_spaces(name: str, text: str) -> None:
    size = {"bpe": 300, "unigram": 60}.get(name)
    tokenizer = Tokenizer.train(TokenizerConfig(name=name, size=size), [*TEXTS, *UNUSUAL]).with_special_tokens(TAGS)  # type: ignore[arg-type]
    ids = [tokenizer.id_of(TAGS[0]) or 0, *tokenizer.encode(text).tolist(), tokenizer.eos_id]
    numbers = word_numbers(tokenizer, ids)
    assert (numbers[0], numbers[-1]) == (-1, -1)
    assert sorted(set(numbers[1:-1])) == list(range(len(text.split())))
    assert numbers[1:-1] == sorted(numbers[1:-1])


def test_pieces_that_go_on_a_word_belong_to_it() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="wordpiece", size=40), TEXTS)
    ids = tokenizer.encode("dog sleeps").tolist()
    assert any(tokenizer.token(index).startswith("##") for index in ids)
    assert sorted(set(word_numbers(tokenizer, ids))) == [0, 1]


def test_a_word_is_aligned_to_where_most_of_its_tokens_weight_lies() -> None:
    weights = torch.tensor(
        [
            [0.9, 0.0, 0.1, 0.0],  # target word 0: all on the tag, but for a little on source word 1
            [0.0, 0.3, 0.4, 0.3],  # target word 1 begins: source word 1 …
            [0.0, 0.7, 0.2, 0.1],  # … and goes on: together source word 0 has more
        ]
    )
    assert word_alignment(weights, [-1, 0, 1, -1], [0, 1, 1]) == [(1, 0), (0, 1)]


def test_no_words_have_no_alignment() -> None:
    assert word_alignment(torch.zeros(0, 2), [0, -1], []) == []
    assert word_alignment(torch.zeros(1, 1), [-1], [0]) == []


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


def test_defaults_are_those_of_the_transformer_but_nothing_that_was_said_is_changed() -> None:
    def filled_in(train: dict[str, Any]) -> dict[str, Any]:
        settings: dict[str, Any] = with_defaults(TASKS.get("translation"), {"train": train})["train"]
        return settings

    filled = filled_in({"steps": "500", "lr": 0.1})
    assert filled["warmup"] is None  # as many as the run allows
    assert (filled["lr"], filled["schedule"], filled["label_smoothing"]) == (0.1, "inverse-sqrt", 0.1)
    assert "schedule" not in filled_in({"optimizer": "sgd"})
    assert "warmup" not in filled_in({"schedule": "constant"})


@pytest.mark.parametrize(
    ("model", "parts"),
    [
        ("lstm", ("model=lstm reads no source", "seq2seq or transformer", "model=seq2seq model.cell=lstm")),
        ("window", ("model=window reads no source", "seq2seq or transformer")),
    ],
)
def test_a_model_without_an_encoder_is_refused(model: str, parts: tuple[str, ...]) -> None:
    with pytest.raises(ConfigError) as caught:
        require_source(model, "translation")
    assert all(part in str(caught.value) for part in parts)


def test_writing_begins_with_the_end_mark_and_never_holds_the_others() -> None:
    writing = TargetTokens.of(TAGGED)
    assert writing.start == writing.eos == TAGGED.eos_id
    assert set(writing.suppress) == {TAGGED.id_of(name) for name in ("<pad>", *TAGS)}
    assert TargetTokens.of(TAGGED, start=3).start == 3


def test_text_that_begins_with_arrows_is_no_tag() -> None:
    tagged = JOINT.with_special_tokens([">>de<<"])
    translator = Translator(build("seq2seq"), tagged, tagged)
    assert translator._split_tag(">>> print(x << 3)", "de") == ("de", ">>> print(x << 3)")
    assert translator._split_tag(">>de<< A dog.", None) == ("de", "A dog.")
