"""Bodies with heads: every body, every kind of head, what padding may not change, and folders."""

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

from legato.data.batching.batch import Batch
from legato.data.batching.examples import Example, collate_examples
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import ConfigError, LegatoError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import SequenceModel, Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.runs.train import with_head

TEXTS = ["the cat sat on the mat", "a dog barked at the moon", "birds sing"]
BODIES: dict[str, dict[str, Any]] = {
    "window": {"name": "window", "around": True, "context": 2, "width": 16, "embedding": 8},
    "elman": {"name": "elman", "width": 16, "bidirectional": True, "tied": False},
    "gru": {"name": "gru", "width": 16, "layers": 1},
    "lstm": {"name": "lstm", "width": 16, "layers": 4, "bidirectional": True, "tied": False},
    "bert": {"name": "bert", "width": 16, "heads": 2, "layers": 4, "length": 32},
    "roberta": {"name": "roberta", "width": 16, "heads": 2, "layers": 4, "length": 32},
    "distilbert": {"name": "distilbert", "width": 16, "heads": 2, "layers": 4, "length": 32},
    "gpt2": {"name": "gpt2", "width": 16, "heads": 2, "layers": 4, "length": 32},
    "llama": {"name": "llama", "width": 16, "heads": 2, "layers": 4, "length": 32, "tied": False},
}
DEEP = ("lstm", "bert", "gpt2")


def tokenizer() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), TEXTS)


def body(name: str, vocabulary: int = 40) -> SequenceModel:
    torch.manual_seed(0)
    model = MODELS.get(BODIES[name]["name"])
    made: SequenceModel = model(model.Config(**BODIES[name]), Sizes(vocabulary))
    return made


def rows() -> list[Example]:
    return [Example([3, 4, 5, 6, 7], positions=[0, 2, 4]), Example([8, 9], positions=[0, 1])]


def logits(model: ModelWithHead, batch: Batch) -> torch.Tensor:
    with torch.no_grad():
        found = model.eval()(batch).logits
    assert found is not None
    return found


@pytest.mark.parametrize("name", BODIES)
def test_every_layer_shows_its_states(name: str) -> None:
    model = body(name).eval()
    batch = collate_examples(rows())
    with torch.no_grad():
        states, output = model.states(batch), model(batch)
    assert torch.allclose(states[-1], output.hidden, atol=1e-6)
    assert len(states) == (1 if name == "window" else BODIES[name].get("layers", 2) + 1)


@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("kind", ["classes", "tags", "spans"])
def test_padding_changes_no_answer(name: str, kind: str) -> None:
    model = ModelWithHead(body(name), HeadSpec(kind=kind, outputs=2 if kind == "spans" else 3))  # type: ignore[arg-type]
    both = logits(model, collate_examples(rows()))
    for number, row in enumerate(rows()):
        alone = logits(model, collate_examples([row]))
        assert torch.allclose(both[number, : alone.shape[1]], alone[0], atol=1e-5)
    if kind == "spans":
        assert both[1, 2:].max() < -1e30


@pytest.mark.parametrize("name", DEEP)
@pytest.mark.parametrize("layers", ["first", "second-to-last", "sum-last-4", "concat-last-4", "sum-all", "mix"])
def test_any_layers_can_be_read(name: str, layers: str) -> None:
    model = ModelWithHead(body(name), HeadSpec(kind="tags", outputs=3, layers=layers, lstm=1, width=8))  # type: ignore[arg-type]
    found = model(collate_examples(rows()))
    assert found.logits.shape == (2, 3, 3)
    found.logits.sum().backward()
    assert model.head.weight.grad is not None


@pytest.mark.parametrize("pool", ["first", "last", "mean", "max", "attention"])
def test_any_pooling_can_be_asked_for(pool: str) -> None:
    model = ModelWithHead(body("lstm"), HeadSpec(kind="classes", outputs=2, pool=pool))  # type: ignore[arg-type]
    assert logits(model, collate_examples(rows())).shape == (2, 2)


def test_what_suits_a_body_is_chosen() -> None:
    shapes = {name: ModelWithHead(body(name), HeadSpec(kind="classes", outputs=2)).shape for name in BODIES}
    assert (shapes["bert"].pool, shapes["bert"].inner) == ("pooler", "none")
    assert (shapes["roberta"].pool, shapes["roberta"].inner) == ("first", "tanh")
    assert (shapes["distilbert"].pool, shapes["distilbert"].inner) == ("first", "relu")
    assert (shapes["gpt2"].pool, shapes["gpt2"].bias) == ("last", False)
    assert (shapes["gru"].pool, shapes["lstm"].pool, shapes["window"].pool) == ("last", "max", "mean")


@pytest.mark.parametrize("name", BODIES)
def test_a_headed_body_guesses_no_words(name: str) -> None:
    model = ModelWithHead(body(name), HeadSpec(kind="classes", outputs=2))
    assert not model.can_generate
    with pytest.raises(LegatoError, match=r"guesses no words|has no masked-word head"):
        model.body.readout(torch.zeros(1, 16))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("name", BODIES)
@pytest.mark.parametrize("kind", ["classes", "tags", "spans"])
def test_a_folder_gives_the_same_answers(tmp_path: Path, name: str, kind: str) -> None:
    words = tokenizer()
    lstm = {"lstm": 1, "width": 8} if name == "lstm" else {}
    shape = HeadSpec(kind=kind, outputs=2 if kind == "spans" else 3, **lstm)  # type: ignore[arg-type]
    model = ModelWithHead(body(name, words.size), shape)
    save_model(tmp_path, model, Processors(words), task="classification", about={"labels": ["a", "b", "c"]}, card="")
    loaded = load_model(tmp_path)
    assert isinstance(loaded.module, ModelWithHead)
    assert loaded.module.shape == model.shape
    assert loaded.about["labels"] == ["a", "b", "c"]
    batch = collate_examples(rows())
    assert torch.allclose(logits(model, batch), logits(loaded.module, batch), atol=1e-6)


def test_a_translator_takes_no_head() -> None:
    model = MODELS.get("transformer")
    made = model(model.Config(name="transformer", width=16, heads=2, layers=1), Sizes(20))
    with pytest.raises(ConfigError, match="reads one text and writes another"):
        ModelWithHead(made, HeadSpec(kind="classes", outputs=2))


@pytest.mark.parametrize("name", ["gru", "gpt2", "llama"])
def test_a_first_token_that_has_read_nothing_is_no_ground_for_a_class(name: str) -> None:
    shape = HeadSpec(kind="classes", outputs=2, pool="first")
    with pytest.raises(ConfigError, match=r"head\.pool=first: the first token of .* use head\.pool=last or mean"):
        with_head(body(name), SimpleNamespace(head=shape), None)
    assert with_head(body(name), SimpleNamespace(head=shape.model_copy(update={"lstm": 1})), None)  # it reads back
    assert with_head(body(name), SimpleNamespace(head=HeadSpec(kind="tags", outputs=2, pool="first")), None)


@pytest.mark.parametrize("name", ["window", "lstm", "bert"])
def test_one_that_has_read_more_is(name: str) -> None:
    shape = HeadSpec(kind="classes", outputs=2, pool="first")
    assert with_head(body(name), SimpleNamespace(head=shape), None)


def test_more_layers_than_there_are_is_told_at_once() -> None:
    with pytest.raises(LegatoError, match="layers=concat-last-4 needs 4 layers, and this model has 1"):
        ModelWithHead(body("gru"), HeadSpec(kind="tags", outputs=2, layers="concat-last-4"))
