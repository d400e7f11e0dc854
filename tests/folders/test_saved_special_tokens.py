"""What a saved tokenizer puts around texts is what the model reads, also where it was a language model before."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

import legato
from legato.data.batching.qa_windows import QuestionReader
from legato.data.processors import Processors
from legato.data.text.text_reader import template_tokens
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.folders.exports import export
from legato.folders.model_folder import load_model, save_model
from legato.folders.sentence_encoder import SentenceEncoder, told_sentences
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.tasks.embedding.text_vectors import TextVectors
from tiny_published import byte_level, gpt2_folder
from tiny_reviews import settings, write_pairs
from tiny_runs import small

transformers = pytest.importorskip("transformers")

TEXTS = ["a merry film and song", "dull", "a grim story, and a weak play"]


def lm(folder: Path, name: str, start: Path | None = None) -> Path:
    given = small(folder, model=name, model__heads=2, model__length=64, tokenizer="bpe", train__steps=2)
    given = {**given, "tokenizer.size": 280} if start is None else {**given, "from": str(start)}
    if start is not None:
        given = {key: value for key, value in given.items() if not key.startswith(("model", "tokenizer"))}
    out = folder / ("lm" if start is None else "lm-again")
    legato.train("lm", given, out=out, quiet=True)
    return out


@pytest.fixture(scope="module", params=["gpt2", "llama"])
def trained(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A language model trained here."""
    folder = tmp_path_factory.mktemp(request.param)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(folder / "cache"))
        return lm(folder, request.param)


def classifier(base: Path, folder: Path, **changes: Any) -> Path:
    given = settings(folder, train__steps=6, train__lr=0.01, **changes)
    given = {key: value for key, value in given.items() if not key.startswith("model")}
    legato.train("classification", {**given, "from": str(base)}, out=folder / "run", quiet=True)
    return folder / "run" / "best"


def theirs(folder: Path, firsts: list[str], seconds: list[str] | None = None) -> torch.Tensor:
    """What `transformers` says of all of them, by nothing but the folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSequenceClassification.from_pretrained(folder).eval()
    read = tokenizer(firsts, seconds, padding=True, return_tensors="pt")
    with torch.no_grad():
        found: torch.Tensor = model(**read).logits.softmax(-1)
    return found


def ours(folder: Path, texts: list[str]) -> torch.Tensor:
    found = legato.load(folder, "cpu").predictions(texts)
    return torch.tensor([list(one.answers[0].more["probabilities"].values()) for one in found])


def test_a_classifier_tuned_from_a_language_model_answers_alike_in_transformers(
    trained: Path, tmp_path: Path
) -> None:
    run = classifier(trained, tmp_path)
    torch.testing.assert_close(theirs(run, TEXTS), ours(run, TEXTS), rtol=0, atol=1e-5)


def test_so_does_one_of_pairs(trained: Path, tmp_path: Path) -> None:
    files = {"data.train": write_pairs(tmp_path / "train.tsv"), "data.valid": write_pairs(tmp_path / "valid.tsv", 20)}
    run = classifier(trained, tmp_path, **{key: str(file) for key, file in files.items()})
    pairs = [f"{text}\tgrim" for text in TEXTS]
    torch.testing.assert_close(theirs(run, TEXTS, ["grim"] * 3), ours(run, pairs), rtol=0, atol=1e-5)


def test_so_does_an_adapter_once_it_is_merged(trained: Path, tmp_path: Path) -> None:
    run = classifier(trained, tmp_path, adapt="lora")
    merged = export(run, "hf", out=tmp_path / "merged")
    torch.testing.assert_close(theirs(merged, TEXTS), ours(run, TEXTS), rtol=0, atol=1e-5)
    assert not (merged / "target").exists()


@pytest.mark.parametrize("kind", ["tags", "spans"])
def test_words_and_questions_are_framed_as_they_are_read(kind: Any, trained: Path, tmp_path: Path) -> None:
    held = load_model(trained / "best")
    module = ModelWithHead(held.module, HeadSpec(kind=kind, outputs=2))
    save_model(tmp_path, module, Processors(held.tokenizer), task="tagging", about={"labels": ["A", "B"]}, card="")
    tokenizer = transformers.AutoTokenizer.from_pretrained(tmp_path)
    reader = module.config.text_reader(held.tokenizer)
    assert tokenizer(TEXTS[0]).input_ids == reader.texts([TEXTS[0]])[0].ids
    if kind == "spans":
        window = QuestionReader(reader).windows([("who did it?", "a dog.")])[0]
        assert tokenizer("who did it?", "a dog.").input_ids == window.row.ids


def test_vectors_are_made_of_the_tokens_that_the_file_gives(trained: Path, tmp_path: Path) -> None:
    held, how = load_model(trained / "best"), SentenceEncoder(normalise=True)
    about = {"sentences": told_sentences(how)}
    save_model(tmp_path, held.module, Processors(held.tokenizer), task="embedding", about=about, card="")
    again = load_model(tmp_path)
    read = transformers.AutoTokenizer.from_pretrained(tmp_path)(TEXTS[0]).input_ids
    assert TextVectors.of(again).rows(TEXTS[:1])[0].ids == read


@pytest.mark.slow
def test_a_language_model_goes_on_from_a_classifier_and_has_its_mark_again(trained: Path, tmp_path: Path) -> None:
    run = classifier(trained, tmp_path)
    again = lm(tmp_path, "", start=run) / "best"
    ids = transformers.AutoTokenizer.from_pretrained(again)("the cat").input_ids
    assert ids == legato.load(again, "cpu").loaded.tokenizer.prompt("the cat")


def test_vectors_of_a_language_model_are_those_of_its_folder_in_transformers(trained: Path) -> None:
    folder = trained / "best"
    found = legato.load(folder, "cpu").embed(TEXTS)
    model, tokenizer = (kind.from_pretrained(folder) for kind in (transformers.AutoModel, transformers.AutoTokenizer))
    with torch.no_grad():
        states = [model.eval()(**tokenizer(text, return_tensors="pt")).last_hidden_state[0].mean(0) for text in TEXTS]
    torch.testing.assert_close(torch.from_numpy(found), torch.stack(states), rtol=0, atol=1e-5)


def head_of_theirs(trained: Path) -> Any:
    model = transformers.AutoModelForSequenceClassification.from_pretrained(trained / "best", num_labels=2).eval()
    torch.manual_seed(0)
    torch.nn.init.normal_(model.score.weight)
    model.config.pad_token_id = transformers.AutoTokenizer.from_pretrained(trained / "best").eos_token_id
    return model


@pytest.mark.parametrize("pair", [False, True])
def test_a_head_that_was_put_on_it_elsewhere_reads_what_its_file_says(
    pair: bool, trained: Path, tmp_path: Path
) -> None:
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "best")
    tokenizer.pad_token = tokenizer.eos_token
    head_of_theirs(trained).save_pretrained(tmp_path)
    tokenizer.save_pretrained(tmp_path)
    texts = [f"{text}\tgrim" for text in TEXTS] if pair else TEXTS
    expected = theirs(tmp_path, TEXTS, ["grim"] * 3 if pair else None)
    torch.testing.assert_close(ours(tmp_path, texts), expected, rtol=0, atol=1e-5)


def test_so_does_an_adapter_of_peft(trained: Path, tmp_path: Path) -> None:
    peft = pytest.importorskip("peft")
    torch.manual_seed(0)
    asked = peft.LoraConfig(task_type="SEQ_CLS", r=2, target_modules="all-linear", init_lora_weights=False)
    model = peft.get_peft_model(head_of_theirs(trained), asked).eval()
    model.save_pretrained(tmp_path)
    tokenizer = transformers.AutoTokenizer.from_pretrained(trained / "best")
    with torch.no_grad():
        logits = [model(**tokenizer(text, return_tensors="pt")).logits for text in TEXTS]
    torch.testing.assert_close(ours(tmp_path, TEXTS), torch.cat(logits).softmax(-1), rtol=0, atol=1e-5)


def test_pairs_are_parted_where_a_published_file_does_not(tmp_path: Path) -> None:
    """In training; the folder that is then saved parts them, too."""
    base = gpt2_folder(tmp_path / "gpt2")
    files = {"data.train": write_pairs(tmp_path / "train.tsv"), "data.valid": write_pairs(tmp_path / "valid.tsv", 20)}
    run = classifier(base, tmp_path, **{key: str(file) for key, file in files.items()})
    tokenizer = transformers.AutoTokenizer.from_pretrained(run)
    eos = tokenizer.eos_token_id
    assert tokenizer("a dog").input_ids == transformers.AutoTokenizer.from_pretrained(base)("a dog").input_ids
    assert tokenizer("a dog", "a cat").input_ids.count(eos) == 1
    pairs = [f"{text}\tgrim" for text in TEXTS]
    torch.testing.assert_close(theirs(run, TEXTS, ["grim"] * 3), ours(run, pairs), rtol=0, atol=1e-5)


def test_where_tokens_stand_is_known_as_before() -> None:
    """A byte-level file says that the space before a word is no part of it."""
    library = byte_level()
    library.post_processor = processors.ByteLevel(trim_offsets=True)
    tokenizer = Tokenizer(library, "</s>")
    framed = tokenizer.with_template(([], []), ([], [tokenizer.eos_id], []))
    assert library.encode("a dog").offsets[1] == (2, 5)
    assert framed.library.encode("a dog").offsets == library.encode("a dog").offsets


def test_marks_are_found_where_the_letter_a_is_in_no_token() -> None:
    tokenizer = Tokenizer.train(TokenizerConfig(name="char"), ["xyz zyx"])
    framed = tokenizer.with_template(([tokenizer.eos_id], []), ([tokenizer.eos_id], [tokenizer.eos_id], []))
    assert template_tokens(framed, pair=False) == ([tokenizer.eos_id], [], [])
    assert template_tokens(framed, pair=True) == ([tokenizer.eos_id], [tokenizer.eos_id], [])
    assert template_tokens(tokenizer, pair=True) == ([], [], [])
