"""Models with heads: what Hugging Face's say, ours say, from folders of either."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.folders.loaded import Loaded
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.models.published.family import CLASSES
from legato.models.published.heads import names_of_head
from legato.models.published.matrices import names_of
from legato.registry import MODELS, PUBLISHED

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

T = 9
LENGTHS = torch.tensor([9, 4, 6])
INSIDE = torch.arange(T) < LENGTHS[:, None]  # (B, T)
LABELS = {"classes": ["bad", "good", "so so"], "tags": ["O", "B-PER", "I-PER", "B-LOC", "I-LOC"], "spans": []}
# Their configs, but for the vocabulary; llama's is for its relatives, too.
BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
}
SMALL: dict[str, dict[str, Any]] = {
    "bert": BERT,
    "roberta": BERT,
    "xlm-roberta": BERT,
    "camembert": BERT,
    "distilbert": {"dim": 24, "n_layers": 2, "n_heads": 4, "hidden_dim": 40, "max_position_embeddings": 16},
    "gpt2": {"n_embd": 24, "n_layer": 2, "n_head": 4, "n_positions": 16},
}
LLAMA = {**BERT, "num_key_value_heads": 2}
AUTO = {
    "classes": "AutoModelForSequenceClassification",
    "tags": "AutoModelForTokenClassification",
    "spans": "AutoModelForQuestionAnswering",
}
# Families that read pictures have tests of their own.
TEXTS = [
    family for family in sorted(PUBLISHED.builtin) if PUBLISHED.get(family).heads and PUBLISHED.get(family).words
]
CASES = [(family, kind) for family in TEXTS for kind in CLASSES]
OWN = {"mistral": "llama", "qwen2": "llama", "qwen3": "llama", "xlm-roberta": "roberta", "camembert": "roberta"}


@cache
def tokenizer(family: str) -> Tokenizer:
    texts = ["the cat sat on the mat", "a dog barked at the moon", "birds sing and the cat hears them sing"]
    if family in ("gpt2", "llama", "mistral", "qwen2", "qwen3"):
        return Tokenizer.train(TokenizerConfig(name="bpe", size=300), texts)
    return Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), texts)


@torch.no_grad()
def opinionated(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def theirs(family: str, kind: str, folder: Path, **asked: Any) -> Any:
    """A model of theirs on random weights, saved with a tokenizer."""
    torch.manual_seed(0)
    words = tokenizer(family)
    named = dict(enumerate(LABELS[kind])) if LABELS[kind] else {}
    labels = {"id2label": named, "label2id": {name: number for number, name in named.items()}} if named else {}
    told = {
        "vocab_size": words.size,
        "pad_token_id": words.eos_id if words.pad_id is None else words.pad_id,
        "bos_token_id": None,
        "eos_token_id": None,
    }
    config = transformers.AutoConfig.for_model(family, **{**SMALL.get(family, LLAMA), **told, **labels, **asked})
    model = opinionated(getattr(transformers, AUTO[kind]).from_config(config))
    model.save_pretrained(folder)
    words.save(folder)
    return model


def ours(family: str, kind: str, body: dict[str, Any] | None = None, **asked: Any) -> ModelWithHead:
    torch.manual_seed(1)
    model = MODELS.get(OWN.get(family, family))
    settings: dict[str, Any] = {"name": OWN.get(family, family), "layers": 2, "width": 24, "heads": 4, "length": 16}
    settings |= {"family": family} if family in OWN else {}
    settings |= {"padding": tokenizer(family).pad_id} if OWN.get(family, family) == "roberta" else {}
    words = Sizes(tokenizer(family).size)
    made = model(validate(model.Config, {**settings, **(body or {})}), words)
    shape = HeadSpec(kind=kind, outputs=len(LABELS[kind]) or 2, **asked)
    headed: ModelWithHead = opinionated(ModelWithHead(made, shape))
    table: Any = headed.body.embedding
    with torch.no_grad():  # what pads the vocabulary is zero
        table.weight[words.vocabulary :] = 0
    return headed


def save(module: ModelWithHead, folder: Path, family: str, **about: Any) -> dict[str, Any]:
    task = {"classes": "classification", "tags": "tagging", "spans": "qa"}[module.shape.kind]
    told = {"labels": LABELS[module.shape.kind], **about}
    save_model(folder, module, Processors(tokenizer(family)), task=task, about=told, card="")
    config: dict[str, Any] = json.loads((folder / "config.json").read_text())
    return config


def loaded_there(folder: Path, kind: str) -> Any:
    """Their model of our folder, which lacks nothing and holds nothing else."""
    model, report = getattr(transformers, AUTO[kind]).from_pretrained(folder, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    assert not report["mismatched_keys"]
    return model.eval()


@torch.no_grad()
def agree(mine: ModelWithHead, other: Any, kind: str, segments: int = 0) -> None:
    """The same logits, with padding, and with segments where there are several kinds."""
    ids = torch.randint(6, mine.vocabulary, (3, T), generator=torch.Generator().manual_seed(2))
    pad = other.config.pad_token_id
    kinds = torch.randint(max(segments, 1), (3, T), generator=torch.Generator().manual_seed(3))
    given: dict[str, Any] = {"attention_mask": INSIDE.long()} | ({"token_type_ids": kinds} if segments else {})
    found = other(torch.where(INSIDE, ids, pad), **given)
    logits = mine(Batch(Inputs(ids, lengths=LENGTHS, segments=kinds if segments else None))).logits
    assert logits is not None
    if kind == "classes":
        close(logits, found.logits)
    elif kind == "tags":
        close(logits[INSIDE], found.logits[INSIDE])
    else:
        close(logits[..., 0][INSIDE], found.start_logits[INSIDE])
        close(logits[..., 1][INSIDE], found.end_logits[INSIDE])
        assert (logits[~INSIDE] < -1e30).all()


def close(found: Tensor, expected: Tensor) -> None:
    torch.testing.assert_close(found, expected, rtol=1e-4, atol=1e-4)


def headed(loaded: Loaded) -> ModelWithHead:
    assert isinstance(loaded.module, ModelWithHead)
    return loaded.module


# --- theirs in ours --------------------------------------------------------------------------------


@pytest.mark.parametrize(("family", "kind"), CASES)
def test_their_folder_says_the_same_here(family: str, kind: str, tmp_path: Path) -> None:
    other = theirs(family, kind, tmp_path)
    loaded = load_model(tmp_path)
    agree(headed(loaded), other, kind, segments=2 if family == "bert" else 0)
    assert loaded.task == {"classes": "classification", "tags": "tagging", "spans": "qa"}[kind]
    assert loaded.about.get("labels", []) == LABELS[kind]


@pytest.mark.parametrize(
    ("family", "kind", "entry"),
    [
        ("distilbert", "classes", "seq_classif_dropout"),
        ("distilbert", "tags", "dropout"),
        ("distilbert", "spans", "qa_dropout"),
        ("bert", "spans", "hidden_dropout_prob"),
    ],
)
def test_a_heads_dropout_is_what_their_class_calls_it(family: str, kind: str, entry: str, tmp_path: Path) -> None:
    theirs(family, kind, tmp_path, **{entry: 0.3})
    assert headed(load_model(tmp_path)).shape.dropout == 0.3


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("kind", CLASSES)
def test_their_folder_comes_out_as_it_went_in(family: str, kind: str, tmp_path: Path) -> None:
    theirs(family, kind, tmp_path)
    loaded = load_model(tmp_path)
    (tmp_path / "again").mkdir()
    config = save(headed(loaded), tmp_path / "again", family, **loaded.about)
    before = json.loads((tmp_path / "config.json").read_text())
    assert config["architectures"] == before["architectures"]
    assert config.get("id2label") == before.get("id2label")
    held, saved = load_file(tmp_path / "model.safetensors"), load_file(tmp_path / "again" / "model.safetensors")
    assert set(held) == set(saved)
    assert all(torch.equal(tensor, saved[name]) for name, tensor in held.items())


# --- ours in theirs --------------------------------------------------------------------------------


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("kind", CLASSES)
def test_our_folder_says_the_same_there(family: str, kind: str, tmp_path: Path) -> None:
    mine = ours(family, kind, {"tied": False})
    config = save(mine, tmp_path, family)
    other = loaded_there(tmp_path, kind)
    assert [type(other).__name__] == config["architectures"]
    agree(mine, other, kind, segments=2 if family == "bert" else 0)
    if kind != "spans":
        assert other.config.id2label == dict(enumerate(LABELS[kind]))


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("kind", CLASSES)
def test_what_is_saved_loads_again_bit_by_bit(family: str, kind: str, tmp_path: Path) -> None:
    mine = ours(family, kind)
    save(mine, tmp_path, family, threshold=0.5)
    loaded = load_model(tmp_path)
    again = headed(loaded)
    assert again.shape == mine.shape
    assert loaded.about["threshold"] == 0.5
    for (name, left), (other, right) in zip(mine.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(left, right), name


@pytest.mark.thinned(3)
@pytest.mark.parametrize("family", TEXTS)
@pytest.mark.parametrize("kind", CLASSES)
def test_every_tensor_has_its_published_name(family: str, kind: str, tmp_path: Path) -> None:
    mine = ours(family, kind)
    save(mine, tmp_path, family)
    names = [their for source in names_of(mine).values() for their in source.names]
    assert sorted(names) == sorted(load_file(tmp_path / "model.safetensors"))
    assert set(names_of_head(mine)) <= set(mine.state_dict())


# --- a head that goes on ---------------------------------------------------------------------------


def test_a_head_goes_on_where_the_same_answers_are_wanted_in_whatever_order() -> None:
    before, after = ours("bert", "tags", dropout=0.3), ours("bert", "tags")
    with torch.no_grad():
        after.head.weight.zero_()
    after.body.load_state_dict(before.body.state_dict())
    wanted = sorted(LABELS["tags"])
    assert after.reuse_head(before, LABELS["tags"], wanted)
    ids = torch.tensor([[7, 8, 9]])
    with torch.no_grad():
        left, right = before(Batch(Inputs(ids))).logits, after(Batch(Inputs(ids))).logits
    assert left is not None
    assert right is not None
    close(right, left[..., [LABELS["tags"].index(label) for label in wanted]])


def test_a_head_of_another_shape_or_for_other_labels_begins_anew() -> None:
    labels = LABELS["tags"]
    plain, joined = ours("bert", "tags"), ours("bert", "tags", crf=True)
    held = plain.head.weight.clone()
    assert not plain.reuse_head(joined, labels, labels)
    assert not plain.reuse_head(ours("bert", "tags"), [*labels[:-1], "I-ORG"], labels)
    assert not ours("bert", "tags", crf=True).reuse_head(joined, labels, sorted(labels))  # its pairs are in order
    assert ours("bert", "tags", crf=True).reuse_head(joined, labels, labels)
    assert torch.equal(plain.head.weight, held)
