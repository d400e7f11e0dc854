"""Folders that others published, with no key of ours: a hidden word is guessed as `transformers` guesses it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers, processors, trainers

import legato
from answers import Command
from legato.errors import ConfigError
from tiny_published import TEXT

transformers = pytest.importorskip("transformers")

SIZES = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 32}
SENTENCES = ["the cat {} on the mat", "{} dog ran", "hello {}.", "{} and {} saw The rain"]


def bert_tokenizer() -> Any:
    marks = {"pad": "[PAD]", "unk": "[UNK]", "cls": "[CLS]", "sep": "[SEP]", "mask": "[MASK]"}
    library: Any = tokenizers.Tokenizer(models.WordPiece(unk_token="[UNK]"))
    library.normalizer = normalizers.BertNormalizer(lowercase=True)
    library.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    library.decoder = decoders.WordPiece()
    trainer = trainers.WordPieceTrainer(vocab_size=90, special_tokens=list(marks.values()), show_progress=False)
    library.train_from_iterator(TEXT, trainer)
    library.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B:1 [SEP]:1", [("[CLS]", 2), ("[SEP]", 3)]
    )
    names = {f"{role}_token": mark for role, mark in marks.items()}
    return transformers.PreTrainedTokenizerFast(tokenizer_object=library, **names)


def roberta_tokenizer() -> Any:
    marks = ["<s>", "<pad>", "</s>", "<unk>"]
    library: Any = tokenizers.Tokenizer(models.BPE())
    library.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    library.decoder = decoders.ByteLevel()
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    trainer = trainers.BpeTrainer(
        vocab_size=300, initial_alphabet=alphabet, special_tokens=marks, show_progress=False
    )
    library.train_from_iterator(TEXT, trainer)
    library.add_special_tokens([tokenizers.AddedToken("<mask>", lstrip=True, normalized=False)])
    library.post_processor = processors.RobertaProcessing(("</s>", 2), ("<s>", 0), add_prefix_space=False)
    names = {"bos_token": "<s>", "eos_token": "</s>", "cls_token": "<s>", "sep_token": "</s>", "unk_token": "<unk>"}
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=library, pad_token="<pad>", mask_token="<mask>", **names
    )


def published(kind: str, folder: Path) -> Path:
    tokenizer = roberta_tokenizer() if kind == "roberta" else bert_tokenizer()
    torch.manual_seed(0)
    size = {"vocab_size": len(tokenizer)}
    if kind == "bert":
        model = transformers.BertForMaskedLM(transformers.BertConfig(**SIZES, **size))
    elif kind == "roberta":
        config = transformers.RobertaConfig(**SIZES, **size, max_position_embeddings=66, type_vocab_size=1)
        model = transformers.RobertaForMaskedLM(config)
    else:
        config = transformers.DistilBertConfig(dim=16, n_layers=2, n_heads=2, hidden_dim=32, **size)
        model = transformers.DistilBertForMaskedLM(config)
    with torch.no_grad():  # or all words would be nearly as likely
        model.get_input_embeddings().weight.mul_(20)
    model.save_pretrained(folder)
    tokenizer.save_pretrained(folder)
    return folder


@pytest.mark.parametrize("kind", ["bert", "roberta", "distilbert"])
def test_words_and_probabilities_are_theirs(kind: str, tmp_path: Path) -> None:
    folder = published(kind, tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    theirs = transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    texts = [text.replace("{}", "<mask>") for text in SENTENCES]
    ours = legato.load(folder, "cpu").predictions(texts, nbest=3)
    for text, found in zip(texts, ours, strict=True):
        inputs = tokenizer(text.replace("<mask>", tokenizer.mask_token), return_tensors="pt")
        if kind != "bert":
            inputs.pop("token_type_ids", None)
        with torch.no_grad():
            likely = theirs(**inputs).logits[inputs["input_ids"] == tokenizer.mask_token_id].softmax(-1)
        likely[:, tokenizer.all_special_ids] = -1
        expected = likely.topk(3).values.flatten().tolist()
        assert [answer.score for answer in found.answers] == pytest.approx(expected, abs=1e-5)


def test_a_published_folder_is_scored_and_guesses_from_the_command_line(command: Command, tmp_path: Path) -> None:
    folder = published("bert", tmp_path)
    (tmp_path / "text.txt").write_text("the cat sat on the mat\nhello world\n" * 3)
    done = command("predict", folder, "the cat <mask> on the mat", "--nbest", 2)
    assert done.code == 0, done.err
    assert len(done.out.splitlines()) == 2
    scored = command("eval", folder, f"data.test={tmp_path / 'text.txt'}")
    assert scored.code == 0, scored.err
    assert "pseudo perplexity" in scored.out


def test_training_goes_on_from_a_published_folder(tmp_path: Path) -> None:
    folder = published("bert", tmp_path / "theirs")
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nhello world\n\nthe dog ran\none more cat\n\n" * 20)
    settings = {"data.train": str(text), "data.window": 16, "train.batch_tokens": 64, "train.steps": 2}
    legato.train("mlm", {**settings, "from": str(folder), "device": "cpu"}, out=tmp_path / "run", quiet=True)
    again = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "run" / "best")
    assert again.config.hidden_size == 16


def go_on(folder: Path, tmp_path: Path, **more: Any) -> Path:
    text = tmp_path / "text.txt"
    text.write_text("the cat sat on the mat\nhello world\n\nthe dog ran\none more cat\n\n" * 20)
    settings = {"data.train": str(text), "data.window": 16, "train.batch_tokens": 64, "train.steps": 2, **more}
    legato.train("mlm", {**settings, "from": str(folder), "device": "cpu"}, out=tmp_path / "run", quiet=True)
    return tmp_path / "run" / "best"


@pytest.mark.parametrize("kind", ["XLMRoberta", "Camembert"])
def test_a_relative_of_roberta_goes_on_under_its_own_name(kind: str, tmp_path: Path) -> None:
    tokenizer = roberta_tokenizer()
    config = getattr(transformers, f"{kind}Config")(
        **SIZES, vocab_size=len(tokenizer), max_position_embeddings=66, type_vocab_size=1, pad_token_id=1
    )
    getattr(transformers, f"{kind}ForMaskedLM")(config).save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    again = transformers.AutoModelForMaskedLM.from_pretrained(go_on(tmp_path / "theirs", tmp_path))
    assert type(again).__name__ == f"{kind}ForMaskedLM"


def test_an_encoder_alone_goes_on_with_a_new_head(tmp_path: Path) -> None:
    tokenizer = bert_tokenizer()
    body = transformers.BertModel(transformers.BertConfig(**SIZES, vocab_size=len(tokenizer)))
    body.save_pretrained(tmp_path / "theirs")
    tokenizer.save_pretrained(tmp_path / "theirs")
    with pytest.raises(ConfigError, match=r"model\.masked_words=true"):
        go_on(tmp_path / "theirs", tmp_path)
    more = {"model.masked_words": "true", "model.next_sentence": "true", "train.lr": 1e-12}
    again = transformers.BertForPreTraining.from_pretrained(go_on(tmp_path / "theirs", tmp_path, **more))
    for name, weight in body.state_dict().items():
        torch.testing.assert_close(again.bert.state_dict()[name], weight, rtol=0, atol=1e-6)
