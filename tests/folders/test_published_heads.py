"""Folders of Hugging Face's models for a task: predictions from them, training on from them, and what does not fit.

That every architecture gives the same numbers is in tests/models/test_head_parity.py.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import processors

import legato
from legato.data.batching.batch import Batch, Inputs
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import FolderError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes, count_parameters
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from tiny_published import byte_level, change, write
from tiny_reviews import settings as reviews
from tiny_tagged import small as tagged

transformers = pytest.importorskip("transformers")
transformers.logging.set_verbosity_error()
transformers.logging.disable_progress_bar()

TEXTS = ["the cat sat on the mat", "a dog barked at the moon , and all the birds heard it", "Anna sees New York City"]
TAGS = ["B-LOC", "O", "I-PER", "B-PER", "I-LOC"]  # not in the order that we would give them
BERT = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "intermediate_size": 40,
    "max_position_embeddings": 64,
}


def folder_of(
    folder: Path, architecture: str, labels: list[str] | None = None, extra: str = "", **asked: Any
) -> tuple[Path, Any]:
    """A model of theirs on random weights that have opinions, with a tokenizer, and the model."""
    torch.manual_seed(0)
    words = Tokenizer.train(TokenizerConfig(name="wordpiece", size=150, masked=True), [*TEXTS, extra])
    words.save(folder, segments=True)
    model = getattr(transformers, architecture)
    named = {} if labels is None else {"id2label": dict(enumerate(labels))}
    made = model(model.config_class(vocab_size=words.size, pad_token_id=words.pad_id, **BERT, **named, **asked))
    with torch.no_grad():
        for parameter in made.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    made.eval().save_pretrained(folder)
    return folder, made


@torch.no_grad()
def said(model: Any, folder: Path, *texts: Any, **given: Any) -> torch.Tensor:
    """What their model says of texts side by side."""
    read = transformers.AutoTokenizer.from_pretrained(folder)
    logits: torch.Tensor = model(**read(*texts, padding=True, return_tensors="pt", **given)).logits
    return logits


def complaint(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    assert str(folder) in str(caught.value)
    return str(caught.value)


# --- predictions -----------------------------------------------------------------------------------


def test_their_classifier_predicts_here_what_it_does_there(tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path, "BertForSequenceClassification", ["bad", "fine", "good"])
    shares = said(other, folder, TEXTS).softmax(-1)
    model = legato.load(folder, device="cpu")
    found = model.predictions(TEXTS, nbest=3)
    for prediction, row in zip(found, shares, strict=True):
        expected = dict(zip(["bad", "fine", "good"], row.tolist(), strict=True))
        assert {answer.text: answer.score for answer in prediction.answers} == pytest.approx(expected, abs=1e-4)
    pair = said(other, folder, [TEXTS[0]], [TEXTS[1]]).softmax(-1)[0]
    best = model.predictions([f"{TEXTS[0]}\t{TEXTS[1]}"])[0].answers[0]
    assert best.score == pytest.approx(pair.max().item(), abs=1e-4)


def test_their_several_labels_and_their_scales_are_known(tmp_path: Path) -> None:
    folder, other = folder_of(
        tmp_path / "multilabel",
        "BertForSequenceClassification",
        ["new", "old", "loud"],
        problem_type="multi_label_classification",
    )
    found = legato.load(folder, device="cpu").predictions(TEXTS)
    there = [
        [name for name, share in zip(["new", "old", "loud"], row, strict=True) if share > 0.5]
        for row in said(other, folder, TEXTS).sigmoid().tolist()
    ]
    assert [prediction.answers[0].more["labels"] for prediction in found] == there
    folder, other = folder_of(tmp_path / "scale", "BertForSequenceClassification", ["LABEL_0"])
    values = [prediction.answers[0].score for prediction in legato.load(folder, device="cpu").predictions(TEXTS)]
    assert values == pytest.approx(said(other, folder, TEXTS).flatten().tolist(), abs=1e-4)


def test_their_tagger_predicts_at_the_first_pieces_of_words(tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path, "BertForTokenClassification", ["NOUN", "VERB", "DET"])
    words = TEXTS[1].split()
    read = transformers.AutoTokenizer.from_pretrained(folder)(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = other(**read).logits[0].argmax(-1).tolist()
    first = [read.word_ids().index(number) for number in range(len(words))]
    found = legato.load(folder, device="cpu").predictions([TEXTS[1]])[0].answers[0].more["tags"]
    assert found == [["NOUN", "VERB", "DET"][best[place]] for place in first]


def test_tags_of_names_are_seen_to_be_such(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "BertForTokenClassification", TAGS)
    assert load_model(folder).about["scheme"] == "iob2"


@pytest.mark.parametrize("text", TEXTS[1:])
def test_names_may_begin_with_their_middle_where_labels_cannot_tell_the_scheme(tmp_path: Path, text: str) -> None:
    """The tags of CoNLL-2003 as published are iob1; a model that learned these says I- where it means a beginning."""
    folder, other = folder_of(tmp_path, "BertForTokenClassification", TAGS)
    with torch.no_grad():
        other.classifier.bias += torch.tensor([5.0 * tag.startswith("I-") for tag in TAGS])
    other.save_pretrained(folder)
    words = text.split()
    read = transformers.AutoTokenizer.from_pretrained(folder)(words, is_split_into_words=True, return_tensors="pt")
    with torch.no_grad():
        best = other(**read).logits[0].argmax(-1).tolist()
    first = [read.word_ids().index(number) for number in range(len(words))]
    tags = legato.load(folder, device="cpu").predictions([text])[0].answers[0].more["tags"]
    assert tags == [TAGS[best[place]] for place in first]
    assert tags[0].startswith("I-")


def test_their_answers_are_spans_of_the_text(tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path, "BertForQuestionAnswering")
    answer = legato.load(folder, device="cpu").predict(f"who sat\t{TEXTS[0]}")
    assert answer
    assert answer in TEXTS[0]
    read = transformers.AutoTokenizer.from_pretrained(folder)("who sat", TEXTS[0], return_tensors="pt")
    with torch.no_grad():
        found = other(**read)
    inside = torch.tensor([part == 1 for part in read.sequence_ids(0)])
    sums = found.start_logits[0][:, None] + found.end_logits[0][None, :]
    sums = sums.masked_fill(~(inside[:, None] & inside[None, :]).triu(), -1e9)
    start, end = divmod(int(sums.argmax()), sums.shape[1])
    assert answer == TEXTS[0][read.token_to_chars(start).start : read.token_to_chars(end).end]


@pytest.mark.parametrize("name", ["gpt2", "llama"])
def test_texts_side_by_side_are_padded_there_as_here(name: str, tmp_path: Path) -> None:
    """A decoder's last token is the last that is no padding, and its tokenizer has to have some."""
    words = Tokenizer.train(TokenizerConfig(name="bpe", size=300), TEXTS)
    assert words.pad_id is None
    torch.manual_seed(0)
    body = MODELS.get(name)(MODELS.get(name).Config(name=name, width=16, heads=2, layers=2), Sizes(words.size))
    module = ModelWithHead(body, HeadSpec(kind="classes", outputs=2))
    with torch.no_grad():
        module.head.weight.normal_()
    about = {"labels": ["bad", "good"], "kind": "classes"}
    save_model(tmp_path, module, Processors(words), task="classification", about=about, card="")
    other = transformers.AutoModelForSequenceClassification.from_pretrained(tmp_path).eval()
    shares = said(other, tmp_path, TEXTS).softmax(-1)
    found = legato.load(tmp_path, device="cpu").predictions(TEXTS)
    assert [p.answers[0].more["probabilities"]["good"] for p in found] == pytest.approx(
        shares[:, 1].tolist(), abs=1e-4
    )


@pytest.mark.parametrize(
    "template",
    [("<s> $A", "<s> $A <s> $B"), ("<s> $A </s>", "<s> $A </s> <s> $B </s>"), ("$A </s>", "$A $B </s>"), None],
)
def test_a_published_decoder_reads_texts_and_pairs_with_the_marks_of_its_file(
    template: tuple[str, str] | None, tmp_path: Path
) -> None:
    library = byte_level()
    if template is not None:
        marks = [(name, library.token_to_id(name)) for name in ("<s>", "</s>")]
        library.post_processor = processors.TemplateProcessing(*template, special_tokens=marks)
    library.save(str(tmp_path / "tokenizer.json"))
    roles = {"bos_token": "<s>", "eos_token": "</s>", "pad_token": "<pad>"}
    write(tmp_path / "tokenizer_config.json", {"tokenizer_class": "PreTrainedTokenizerFast", **roles})
    torch.manual_seed(0)
    sizes = {"hidden_size": 16, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 32}
    sizes |= {"vocab_size": library.get_vocab_size() + 1, "pad_token_id": library.get_vocab_size()}
    other = transformers.LlamaForSequenceClassification(transformers.LlamaConfig(**sizes)).eval()
    with torch.no_grad():
        for parameter in other.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    other.save_pretrained(tmp_path)
    model = legato.load(tmp_path, device="cpu")
    for texts in [TEXTS[:1], TEXTS[:2]]:
        share = said(other, tmp_path, *texts).softmax(-1)[0]
        found = model.predictions(["\t".join(texts)])[0].answers[0]
        assert found.score == pytest.approx(float(share.max()), abs=1e-5)


# --- what config.json says of labels ---------------------------------------------------------------


@pytest.mark.parametrize("kind", ["classes", "multilabel", "regression"])
def test_the_kind_of_labels_is_told_to_others(kind: str, tmp_path: Path) -> None:
    words = Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), TEXTS)
    settings = {"name": "bert", "width": 16, "heads": 2, "layers": 1, "pooler": True, "next_sentence": False}
    body = MODELS.get("bert")(MODELS.get("bert").Config(**settings), Sizes(words.size))
    labels = [] if kind == "regression" else ["a", "b"]
    module = ModelWithHead(body, HeadSpec(kind="classes", outputs=len(labels) or 1, dropout=0.25))
    about = {"labels": labels, "kind": kind}
    save_model(tmp_path, module, Processors(words), task="classification", about=about, card="")
    config = transformers.AutoConfig.from_pretrained(tmp_path)
    problems = {"classes": "single_label", "multilabel": "multi_label"}
    assert config.problem_type == f"{problems[kind]}_classification" if labels else "regression"
    assert config.num_labels == len(labels or [1])
    assert config.classifier_dropout == 0.25
    held = json.loads((tmp_path / "config.json").read_text())
    del held["legato"]
    (tmp_path / "config.json").write_text(json.dumps(held))  # as if somebody else had made it
    loaded = load_model(tmp_path)
    assert (loaded.task, loaded.about["labels"], loaded.about["kind"]) == ("classification", labels, kind)
    assert isinstance(loaded.module, ModelWithHead)
    assert loaded.module.shape == module.shape


@pytest.mark.parametrize(
    ("name", "asked"),
    [
        ("bert", {"kind": "classes", "pool": "mean"}),
        ("bert", {"kind": "tags", "crf": True}),
        ("roberta", {"kind": "classes", "layers": "mix"}),
        ("distilbert", {"kind": "spans", "lstm": 1, "width": 8}),
        ("gpt2", {"kind": "classes", "pool": "attention"}),
        ("llama", {"kind": "tags", "layers": "second-to-last"}),
    ],
)
def test_of_other_shapes_they_have_the_body(name: str, asked: dict[str, Any], tmp_path: Path) -> None:
    words = Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), TEXTS)
    body = MODELS.get(name)(MODELS.get(name).Config(name=name, width=16, heads=2, layers=2), Sizes(words.size))
    module = ModelWithHead(body, HeadSpec(outputs=2, **asked)).eval()
    save_model(tmp_path, module, Processors(words), task="classification", about={"labels": ["a", "b"]}, card="")
    other, report = transformers.AutoModel.from_pretrained(tmp_path, output_loading_info=True)
    assert json.loads((tmp_path / "config.json").read_text())["architectures"] == [type(other).__name__]
    assert all("pooler" in key for key in report["missing_keys"])
    assert all(key.startswith("head.") for key in report["unexpected_keys"])
    ids = torch.tensor([[5, 6, 7, 8]])
    batch = Batch(Inputs(ids))
    again = load_model(tmp_path).module
    with torch.no_grad():
        torch.testing.assert_close(other.eval()(ids).last_hidden_state, module.body(batch).hidden)
        torch.testing.assert_close(again(batch).logits, module(batch).logits)


# --- training on -----------------------------------------------------------------------------------


def test_training_goes_on_with_their_head_whatever_the_order_of_its_labels(tmp_path: Path) -> None:
    settings = tagged(tmp_path, scheme="iob2")
    folder, other = folder_of(tmp_path / "bert", "BertForTokenClassification", TAGS, extra="Carl Orff Rome")
    kept = {key: value for key, value in settings.items() if not key.startswith("model.")}
    kept |= {"from": str(folder), "train.epochs": 1, "train.lr": 1e-12}
    legato.train("tagging", kept, out=tmp_path / "run", quiet=True)
    loaded = load_model(tmp_path / "run" / "best")
    assert loaded.about["labels"] == ["O", "B-LOC", "I-LOC", "B-PER", "I-PER"]
    assert isinstance(loaded.module, ModelWithHead)
    order = [TAGS.index(label) for label in loaded.about["labels"]]
    torch.testing.assert_close(loaded.module.head.weight, other.classifier.weight[order])
    torch.testing.assert_close(loaded.module.head.bias, other.classifier.bias[order])
    again = transformers.AutoModelForTokenClassification.from_pretrained(tmp_path / "run" / "best")
    assert again.config.id2label == dict(enumerate(loaded.about["labels"]))


def test_other_labels_take_the_body_and_get_a_head_of_their_own(tmp_path: Path) -> None:
    folder, other = folder_of(tmp_path / "bert", "BertForSequenceClassification", ["one", "two", "three"])
    settings = {key: value for key, value in reviews(tmp_path).items() if not key.startswith("model")}
    settings |= {"from": str(folder), "train.steps": 1, "train.lr": 1e-12}
    legato.train("classification", settings, out=tmp_path / "run", quiet=True)
    module = load_model(tmp_path / "run" / "best").module
    assert isinstance(module, ModelWithHead)
    assert module.shape.outputs == 2
    assert module.shape.pool == "pooler"
    pooler: Any = module.body.pooler
    torch.testing.assert_close(pooler.weight, other.bert.pooler.dense.weight)


def test_what_others_have_trained_on_is_what_they_say_it_is(tmp_path: Path) -> None:
    """Their library keeps our key as it was, whatever becomes of the model."""
    words = Tokenizer.train(TokenizerConfig(name="wordpiece", size=60, masked=True), TEXTS)
    settings = {"name": "bert", "width": 16, "heads": 2, "layers": 1}
    module = MODELS.get("bert")(MODELS.get("bert").Config(**settings), Sizes(words.size))
    save_model(tmp_path, module, Processors(words), task="mlm", about={"mask_share": 0.2}, card="")
    for labels in (["bad", "good"], ["ham", "spam"], ["a", "b", "c"]):
        named = {"id2label": dict(enumerate(labels)), "label2id": {name: n for n, name in enumerate(labels)}}
        model = transformers.AutoModelForSequenceClassification
        trained = model.from_pretrained(tmp_path, num_labels=len(labels), ignore_mismatched_sizes=True, **named)
        trained.save_pretrained(tmp_path)
        loaded = load_model(tmp_path)
        assert (loaded.task, loaded.about["labels"]) == ("classification", labels)
        about = {key: loaded.about[key] for key in ("labels", "kind")}
        save_model(tmp_path, loaded.module, Processors(words), task="classification", about=about, card="")
        assert load_model(tmp_path).about["labels"] == labels


# --- folders that do not fit -----------------------------------------------------------------------


def retensored(folder: Path, changes: dict[str, Any]) -> None:
    held = {**load_file(folder / "model.safetensors"), **changes}
    kept = {name: tensor for name, tensor in held.items() if tensor is not None}
    save_file(kept, folder / "model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("changes", "reason"),
    [
        ({"classifier.weight": None}, "lacks the tensor 'classifier.weight'"),
        ({"classifier.bias": None}, "lacks the tensor 'classifier.bias'"),
        ({"classifier.bias": torch.zeros(4)}, "'classifier.bias' should have shape (3,), but has (4,)"),
        (
            {"classifier.weight": torch.zeros(3, 23)},
            "'classifier.weight' should have shape (3, 24), but has (3, 23)",
        ),
        ({"classifier.bias": torch.zeros(3, dtype=torch.long)}, "'classifier.bias' holds int64 numbers, not weights"),
        ({"classifier.weight": torch.zeros(4, 24)}, "id2label should name labels 0 to 3, as many as the head has"),
        ({"classifier.dense.weight": torch.zeros(24, 24)}, "that this architecture lacks: 'classifier.dense.weight'"),
        (
            {"bert.pooler.dense.weight": None, "bert.pooler.dense.bias": None},
            "lacks the tensor 'bert.pooler.dense.weight'",
        ),
    ],
)
def test_a_heads_tensor_that_does_not_fit_is_named(changes: dict[str, Any], reason: str, tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "BertForSequenceClassification", ["a", "b", "c"])
    retensored(folder, changes)
    assert reason in complaint(folder)


@pytest.mark.parametrize(
    ("entries", "reason"),
    [
        ({"id2label": {"0": "a", "2": "c", "3": "d"}}, "id2label should name labels 0 to 2"),
        ({"id2label": ["a", "b", "c"]}, "'id2label' should hold a JSON object, not ['a', 'b', 'c']"),
        ({"problem_type": "ranking"}, "problem_type=ranking is unknown; there is single_label_classification"),
        ({"problem_type": "regression"}, "its head gives 3 numbers at once; Legato has only one"),
        ({"classifier_dropout": 1.5}, "'classifier_dropout' should be less than 1, not 1.5"),
    ],
)
def test_an_entry_about_the_head_that_does_not_fit_is_named(
    entries: dict[str, Any], reason: str, tmp_path: Path
) -> None:
    folder, _ = folder_of(tmp_path, "BertForSequenceClassification", ["a", "b", "c"])
    change(folder / "config.json", **entries)
    assert reason in complaint(folder)


def test_a_head_for_spans_has_two_rows(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "BertForQuestionAnswering")
    retensored(folder, {"qa_outputs.weight": torch.zeros(3, 24), "qa_outputs.bias": torch.zeros(3)})
    assert "'qa_outputs.weight' has 3 rows, not one for the start and one for the end" in complaint(folder)


def test_a_folder_without_names_for_its_labels_numbers_them(tmp_path: Path) -> None:
    folder, _ = folder_of(tmp_path, "BertForSequenceClassification", ["a", "b", "c"])
    change(folder / "config.json", id2label=None)
    assert load_model(folder).about["labels"] == ["LABEL_0", "LABEL_1", "LABEL_2"]


def test_what_older_files_hold_beside_a_head_is_not_minded(tmp_path: Path) -> None:
    """A pooler that a tagger never read."""
    folder, other = folder_of(tmp_path, "BertForTokenClassification", TAGS)
    retensored(folder, {"bert.pooler.dense.weight": torch.zeros(24, 24), "bert.pooler.dense.bias": torch.zeros(24)})
    module = load_model(folder).module
    assert sum(p.numel() for p in other.parameters()) == count_parameters(module)
    assert not module.config.pooler
