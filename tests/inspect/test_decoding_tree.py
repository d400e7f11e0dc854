"""The tree of a search: its hypotheses are the search's, its nodes all that was considered; and trees of parses."""

from __future__ import annotations

from collections import Counter
from pathlib import Path
from typing import Any

import pytest
import torch
from tiny_models import HEADS, QUICK

import legato
import tiny_pairs
from legato.data.batching.batch import Batch, Inputs
from legato.decoding import SearchOptions
from legato.errors import ConfigError, DataError, LegatoError
from legato.inspect.decoding_tree import DecodingTree, decoding_tree, parse_tree
from legato.inspect.report.tree_view import tree_view
from legato.model import Model
from tiny_adapted import shake
from tiny_pictures import captioner_model, pixels, talking_model
from tiny_sounds import RATE, SMALL, samples_of, write_sounds
from tiny_tasks import tiny
from tiny_whisper import whisper_folder

TRAINING_TEXT = "the dog runs and the cat sleeps\n" * 60
PICTURE = pixels("red")
SENTENCE = "the dog sees birds ."
SOUND = (samples_of("high low", 5), RATE)
RUNS: dict[str, dict[str, Any]] = {
    "lstm": {"task": "lm", "model": "lstm", "model.layers": 1},
    "gpt2": {"task": "lm", "model": "gpt2", "model.layers": 1, **HEADS},
    "llama": {"task": "lm", "model": "llama", "model.layers": 1, **HEADS},
    "bert": {"task": "mlm", "model": "bert", "model.layers": 1, **HEADS},
}
LANGUAGE = ["lstm", "gpt2", "llama"]
PAIRS: dict[str, dict[str, Any]] = {
    "seq2seq": {**tiny_pairs.SEQ2SEQ, "train__steps": 25},
    "transformer": {"train__steps": 25},
}
WRITERS = [*LANGUAGE, *PAIRS]
STEPS = 12
GIVEN = {**dict.fromkeys(RUNS, "the dog"), **dict.fromkeys(PAIRS, tiny_pairs.DOG)}


@pytest.fixture(scope="module")
def held(models: dict[str, Model], tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    """Models of which some have learned a little; the others have opinions, and one word that ends a text."""
    torch.manual_seed(0)
    for model in models.values():
        shake(model.module, 0.4)
        model.loaded.ends = (int(model.tokenizer.encode("runs")[0]),)
    folder = tmp_path_factory.mktemp("pairs")
    for name, run in PAIRS.items():
        settings = tiny_pairs.small_translation(folder, **run)
        models[name] = legato.load(tiny_pairs.train_translation(folder, name, settings), "cpu")
    return models


@pytest.fixture(scope="module")
def parser(tmp_path_factory: pytest.TempPathFactory) -> Model:
    folder = tmp_path_factory.mktemp("parser")
    (folder / "data").mkdir()
    legato.train("parsing", tiny("parsing", folder / "data"), out=folder / "run", quiet=True)
    return legato.load(folder / "run", "cpu")


def tree_of(model: Model, name: str, **how: Any) -> DecodingTree:
    return decoding_tree(model, GIVEN[name], steps=STEPS, **how)


def searched(model: Model, name: str, beams: int, nbest: int) -> list[tuple[str, float, float, bool]]:
    """What the model's own path writes, with scores."""
    if name in LANGUAGE:
        how: dict[str, Any] = {"search": "beam", "beams": beams} if beams > 1 else {"search": "greedy"}
        found = model.hypotheses([GIVEN[name]], SearchOptions(**how, nbest=nbest, max_tokens=STEPS))[0]
        return [(each.text, each.score, each.logprob, each.finished) for each in found]
    [prediction] = model.predictions([GIVEN[name]], beams=beams, nbest=nbest, max_tokens=STEPS)
    return [(each.text, each.score, each.more["logprob"], each.more["finished"]) for each in prediction.answers]


def told(tree: DecodingTree, nbest: int) -> list[tuple[str, float, float, bool]]:
    return [(each.text, each.score, each.logprob, each.finished) for each in tree.hypotheses[:nbest]]


# --- the same search ---------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", WRITERS)
@pytest.mark.parametrize(("width", "nbest"), [(4, 1), (4, 4), (3, 2), (1, 1)])
def test_a_beam_finds_what_the_search_finds(held: dict[str, Model], name: str, width: int, nbest: int) -> None:
    tree = tree_of(held[name], name, width=width, nbest=nbest)
    assert told(tree, nbest) == searched(held[name], name, width, nbest)


@pytest.mark.parametrize("name", WRITERS)
def test_greedy_search_takes_the_best_each_time(held: dict[str, Model], name: str) -> None:
    tree = tree_of(held[name], name, strategy="greedy")
    assert told(tree, 1) == searched(held[name], name, 1, 1)
    assert all(node.rank == 1 for node in tree.nodes if node.kept)
    assert len(tree.hypotheses) == 1


@pytest.mark.parametrize("name", LANGUAGE)
def test_samples_are_those_of_generate(held: dict[str, Model], name: str) -> None:
    tree = tree_of(held[name], name, strategy="sample", nbest=3, temperature=1.5, seed=4)
    options = SearchOptions(search="sample", nbest=3, temperature=1.5, seed=4, max_tokens=STEPS)
    found = held[name].hypotheses([GIVEN[name]], options)[0]
    assert [each.tokens for each in tree.hypotheses] == [each.tokens for each in found]
    other = tree_of(held[name], name, strategy="sample", nbest=3, temperature=1.5, seed=5)
    assert [each.tokens for each in other.hypotheses] != [each.tokens for each in tree.hypotheses]


def test_a_parser_writes_the_same_tree(parser: Model) -> None:
    tree = decoding_tree(parser, SENTENCE, width=4, nbest=4)
    answers = parser.predictions([SENTENCE], beams=4, nbest=4)[0].answers
    assert [(each.text, each.score) for each in tree.hypotheses[:4]] == [(each.text, each.score) for each in answers]
    assert decoding_tree(parser, SENTENCE, strategy="greedy").hypotheses[0].text == parser.predict(SENTENCE, beams=1)


def test_a_captioner_says_the_same_of_a_picture(tmp_path: Path) -> None:
    model = legato.load(captioner_model(tmp_path / "model"), "cpu")
    tree = decoding_tree(model, PICTURE, width=3, nbest=3)
    [prediction] = model.predictions([PICTURE], beams=3, nbest=3)
    assert [(h.text, h.score) for h in tree.hypotheses[:3]] == [(a.text, a.score) for a in prediction.answers]


def test_who_sees_answers_the_same(tmp_path: Path) -> None:
    model = legato.load(talking_model(tmp_path / "model"), "cpu")
    tree = decoding_tree(model, (PICTURE, "what is it"), strategy="greedy", steps=5)
    assert tree.hypotheses[0].text == model.chat("what is it", image=PICTURE, max_tokens=5)


@pytest.mark.parametrize("languages", [True, False])
def test_whisper_writes_the_same(languages: bool, tmp_path: Path) -> None:
    whisper_folder(tmp_path, languages=languages)
    model = legato.load(tmp_path, "cpu")
    tree = decoding_tree(model, SOUND, width=3, nbest=3)
    [prediction] = model.predictions([SOUND], beams=3, nbest=3)
    assert [h.text for h in tree.hypotheses[:3]] == [answer.text for answer in prediction.answers]
    assert decoding_tree(model, SOUND, strategy="greedy").hypotheses[0].text == model.predict([SOUND])[0]


@pytest.mark.slow
def test_a_decoder_beside_ctc_writes_the_same(tmp_path: Path) -> None:
    encoder = {f"model.encoder.{key.partition('.')[2]}": value for key, value in SMALL.items() if "model." in key}
    decoder = {"model": "transformer", "model.layers": 1, "model.width": 8, "model.heads": 2, "data.batch_seconds": 3}
    joint = {**encoder, **decoder, "model.encoder.name": "conformer", "model.encoder.ctc": 0.3, "tokenizer": "word"}
    legato.train("speech", {**write_sounds(tmp_path, 2), **joint, **QUICK}, out=tmp_path / "run", quiet=True)
    model = legato.load(tmp_path / "run", "cpu")
    tree = decoding_tree(model, SOUND, width=3, nbest=3)
    [prediction] = model.predictions([SOUND], beams=3, nbest=3)
    assert [h.text for h in tree.hypotheses[:3]] == [answer.text for answer in prediction.answers]
    assert [h.score for h in tree.hypotheses[:3]] == pytest.approx([a.score for a in prediction.answers])


# --- nodes -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_nodes_are_a_tree_whose_scores_are_sums(held: dict[str, Model], name: str) -> None:
    tree = tree_of(held[name], name, width=3)
    root, *nodes = tree.nodes
    assert (root.parent, root.step, root.score) == (None, 0, 0.0)
    assert [node.id for node in tree.nodes] == list(range(len(tree.nodes)))
    for node in nodes:
        assert node.parent is not None
        parent = tree.nodes[node.parent]
        assert parent.step == node.step - 1
        assert parent.kept
        assert not parent.finished
        assert node.score == pytest.approx(parent.score + node.logprob, abs=1e-4)
        assert node.logprob <= 0
    keys = Counter((node.parent, node.token) for node in nodes)
    assert keys.most_common(1)[0][1] == 1
    best = tree.hypotheses[0]
    path = tree.path(best.node)
    assert [node.token for node in path][: len(best.tokens)] == best.tokens
    assert path[-1].score == pytest.approx(best.logprob, abs=1e-4)
    assert best.score == pytest.approx(best.logprob / len(path) ** tree.options.length_penalty, abs=1e-4)


@pytest.mark.parametrize("name", WRITERS)
def test_what_is_kept_is_the_best_of_each_step(held: dict[str, Model], name: str) -> None:
    width = 3
    tree = tree_of(held[name], name, width=width, candidates=5)
    for step in range(1, tree.steps + 1):
        here = [node for node in tree.nodes if node.step == step]
        going = [node for node in here if node.kept and not node.finished]
        others = [node for node in here if not node.kept]
        assert len(going) <= width
        assert others
        # The best that go on, and an end among the first of all.
        ends = set(held[name].loaded.ends or (held[name].loaded.target.eos_id,))
        worst = min(node.score for node in going) if going else float("inf")
        assert all(node.score <= worst for node in others if node.token not in ends)
        assert all(node.rank <= width for node in here if node.finished)
        assert sorted(node.rank for node in here)[:width] == list(range(1, width + 1))


def test_pruned_branches_are_the_likeliest_of_each_hypothesis(held: dict[str, Model]) -> None:
    model = held["gpt2"]
    tree = tree_of(model, "gpt2", strategy="greedy", candidates=3)
    ids = model.prompt_ids(GIVEN["gpt2"])
    for node in tree.path(tree.hypotheses[0].node)[:-1]:
        before = [*ids, *(each.token for each in tree.path(node.id))]
        with torch.no_grad():
            logits = model.module.readout(model.module(Batch(Inputs.of([before]))).hidden)[0, -1]
        values, tokens = logits.log_softmax(-1).topk(4)
        children = sorted((each for each in tree.nodes if each.parent == node.id), key=lambda each: each.rank)
        assert [each.token for each in children] == tokens.tolist()
        assert [each.logprob for each in children] == pytest.approx(values.tolist(), abs=1e-4)
        assert [each.rank for each in children] == [1, 2, 3, 4]
        assert [each.kept for each in children] == [True, False, False, False]


def test_nothing_pruned_is_kept_where_nobody_wants_it(held: dict[str, Model]) -> None:
    tree = tree_of(held["seq2seq"], "seq2seq", candidates=0)
    assert all(node.kept for node in tree.nodes)


def test_walks_that_go_the_same_way_share_their_nodes(held: dict[str, Model]) -> None:
    tree = tree_of(held["lstm"], "lstm", strategy="sample", nbest=12, temperature=0.5)
    paths = [tuple(node.token for node in tree.path(each.node)) for each in tree.hypotheses]
    assert len({node.id for each in tree.hypotheses for node in tree.path(each.node)}) == len(
        {path[:length] for path in paths for length in range(1, len(path) + 1)}
    )
    assert all(node.kept for each in tree.hypotheses for node in tree.path(each.node))


# --- another branch ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", WRITERS)
def test_a_prefix_is_followed_and_scored(held: dict[str, Model], name: str) -> None:
    model, free = held[name], tree_of(held[name], name)
    ends = set(model.loaded.ends or (model.loaded.target.eos_id,))
    other = next(node for node in free.nodes if node.step == 1 and not node.kept and node.token not in ends)
    tree = tree_of(model, name, prefix=[other.token])
    assert tree.forced == 1
    assert all(each.tokens[0] == other.token for each in tree.hypotheses)
    first = [node for node in tree.nodes if node.step == 1 and node.kept]
    assert [(node.token, node.rank) for node in first] == [(other.token, other.rank)]
    assert first[0].logprob == pytest.approx(other.logprob, abs=1e-4)
    seen = {node.token for node in tree.nodes if node.step == 1}
    assert {node.token for node in free.nodes if node.step == 1 and node.rank <= 3} <= seen  # what would have come


@pytest.mark.parametrize("name", ["gpt2", "transformer"])
def test_a_prefix_that_the_search_would_take_changes_nothing(held: dict[str, Model], name: str) -> None:
    free = tree_of(held[name], name, strategy="greedy")
    begun = free.hypotheses[0].tokens[:2]
    again = tree_of(held[name], name, strategy="greedy", prefix=begun)
    assert told(again, 1) == told(free, 1)


def test_a_prefix_is_a_text_behind_the_prompt(held: dict[str, Model]) -> None:
    tree = decoding_tree(held["gpt2"], "the dog", prefix=" sleeps and", steps=5, strategy="greedy")
    assert tree.hypotheses[0].text.startswith(" sleeps and")
    assert tree.forced == 2


def test_a_prefix_of_a_parse_is_brackets_and_words(parser: Model) -> None:
    tree = decoding_tree(parser, SENTENCE, prefix="(NP (S the dog")
    assert tree.forced == 4
    assert tree.hypotheses[0].text.startswith("(NP (S the dog ")
    assert parse_tree(tree.hypotheses[0].text)[0].label == "NP"


# --- what is refused ---------------------------------------------------------------------------------

REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"width": 0}, "width=0: a search is 1 to 1,024 hypotheses wide"),
    ({"width": 100_000}, "width=100000: a search is 1 to"),
    ({"steps": 0}, "steps=0: a search takes 1 step at least"),
    ({"strategy": "stochastic"}, "there is no strategy 'stochastic'; use one of beam, greedy, sample"),
    ({"candidates": -1}, "candidates=-1: 0 to 100"),
    ({"nbest": 5}, "nbest=5: it is 1 to width=4"),
    ({"nbest": 0}, "nbest=0"),
    ({"nbest": 2, "strategy": "greedy"}, "nbest=2: it is 1, greedy search finds one"),
    ({"temperature": 0.5}, "temperature=0.5 is for strategy='sample'"),
    ({"temperature": 0.0, "strategy": "sample"}, "temperature"),
    ({"seed": -1, "strategy": "sample"}, "seed"),
]


@pytest.mark.parametrize(("how", "said"), REFUSED)
def test_settings_that_make_no_search_are_refused(held: dict[str, Model], how: dict[str, Any], said: str) -> None:
    with pytest.raises(ConfigError, match=said) as problem:
        decoding_tree(held["gpt2"], "the dog", **how)
    assert "\n" not in str(problem.value)


PREFIXES: list[tuple[str, Any, str]] = [
    ("gpt2", "elephants", "the prefix 'elephants': token 1 is none that .* can write"),
    ("lstm", "and elephants", "the prefix 'and elephants': token 2 is none that .* can write"),
    ("transformer", [10**6], "token 1 is none that"),
    ("gpt2", "the dog and the cat sleeps " * 2, "has 12 tokens, and the search 12 steps; shorten it"),
    ("gpt2", "the dog runs", "token 3, runs, is never written there"),
    ("transformer", "\ud800", "half a surrogate pair"),
]


@pytest.mark.parametrize(("name", "prefix", "said"), PREFIXES)
def test_a_prefix_that_nobody_can_write_is_refused(held: dict[str, Model], name: str, prefix: Any, said: str) -> None:
    with pytest.raises(DataError, match=said) as problem:
        tree_of(held[name], name, prefix=prefix)
    assert "\n" not in str(problem.value)


def test_a_prefix_does_not_end(held: dict[str, Model]) -> None:
    eos = held["transformer"].loaded.target.eos_id
    with pytest.raises(DataError, match="token 1, <eos>, is never written there"):
        tree_of(held["transformer"], "transformer", prefix=[eos])


@pytest.mark.parametrize("prefix", ["(S )S", "the", "(XYZ dog", "(S the the the the the the"])
def test_a_prefix_of_no_tree_is_refused(parser: Model, prefix: str) -> None:
    with pytest.raises(DataError, match="the prefix"):
        decoding_tree(parser, SENTENCE, prefix=prefix)


def test_a_model_that_writes_nothing_is_refused(held: dict[str, Model]) -> None:
    with pytest.raises(LegatoError, match="writes nothing token by token"):
        decoding_tree(held["bert"], "the dog")
    assert tree_view(held["bert"].loaded, "the dog") is None


def test_what_is_no_text_is_refused(held: dict[str, Model]) -> None:
    with pytest.raises(DataError, match="this model reads text"):
        decoding_tree(held["gpt2"], 3)
    with pytest.raises(DataError, match="there is no text"):
        decoding_tree(held["seq2seq"], " ")


def test_a_language_model_may_begin_with_nothing(held: dict[str, Model]) -> None:
    tree = decoding_tree(held["gpt2"], "", steps=3, strategy="greedy")
    assert tree.hypotheses[0].text == held["gpt2"].generate("", max_tokens=3)


# --- trees of sentences, and what the studio is given -------------------------------------------------


def test_the_nodes_of_a_parse(parser: Model) -> None:
    nodes = parse_tree(parser.predict(SENTENCE))
    below = [child for node in nodes for child in node.children]
    assert sorted(below) == list(range(1, len(nodes)))
    assert [node.label for node in nodes if not node.children] == SENTENCE.split()
    with pytest.raises(DataError, match="incomplete"):
        parse_tree("(S (NP dogs )NP")


def test_a_very_deep_parse() -> None:
    depth = 5000
    text = " ".join(["(A"] * depth + ["x"] + [")A"] * depth)
    assert len(parse_tree(text)) == depth + 1


def test_the_view_has_three_searches(held: dict[str, Model]) -> None:
    view = tree_view(held["transformer"].loaded, tiny_pairs.DOG, steps=STEPS, width=4)
    assert view is not None
    assert [each["title"] for each in view["strategies"]] == ["beam of 4", "greedy", "3 samples"]
    assert "parse" not in view
    assert view["position"] == 0
    for each in view["strategies"]:
        columns = each["nodes"]
        assert len({len(column) for column in columns.values()}) == 1
        assert columns["parent"][0] == -1
        assert columns["step"] == sorted(columns["step"])
        assert all(parent < place for place, parent in enumerate(columns["parent"]))
        assert {2} >= {columns["state"][one["node"]] for one in each["hypotheses"] if one["finished"]}


@pytest.mark.slow
def test_the_view_of_a_parser_has_its_tree(parser: Model) -> None:
    view = tree_view(parser.loaded, SENTENCE)
    assert view is not None
    labels = [node["label"] for node in view["parse"] if not node["children"]]
    assert labels == SENTENCE.split()
