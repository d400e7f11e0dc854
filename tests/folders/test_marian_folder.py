"""Marian folders: ours in `transformers` as they are, published ones here, and what is wrong with some."""

from __future__ import annotations

import io
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import legato
from legato.cli import main
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.errors import FolderError
from legato.folders.model_folder import load_model, save_model
from legato.tasks.translation.translator import Translator
from tiny_pairs import WORDS, many_languages, small_translation, train_translation

transformers = pytest.importorskip("transformers")
pytestmark = pytest.mark.filterwarnings("ignore:Recommended. pip install sacremoses")

EARLY = False  # what `transformers` calls the way in which our search stops

TEXTS = [
    *("A dog runs.", "The cat eats and A man sleeps.", "The man runs and The man runs.", "A  cat   eats"),
    *("dog", "Zebra!", "🐶 läuft — 狗", "A dog runs and The cat eats."),
]


def translated_there(folder: Path, texts: list[str], **how: Any) -> list[str]:
    """What `transformers` makes of texts, by nothing but the folder."""
    tokenizer = transformers.AutoTokenizer.from_pretrained(folder)
    model = transformers.AutoModelForSeq2SeqLM.from_pretrained(folder).eval()
    found = model.generate(**tokenizer(texts, return_tensors="pt", padding=True), **how)
    return [text.strip() for text in tokenizer.batch_decode(found, skip_special_tokens=True)]


def translated_here(folder: Path, texts: list[str], **how: Any) -> list[str]:
    return [text.strip() for text in legato.load(folder, "cpu").predict(texts, **how)]


def complaint(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        load_model(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def change(file: Path, edit: Callable[[dict[str, Any]], object]) -> None:
    value = json.loads(file.read_text())
    edit(value)
    file.write_text(json.dumps(value))


# ── ours in transformers ──────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model that has not learned all, so that searches have to choose, and one of many languages."""
    home = tmp_path_factory.mktemp("home")
    few = {"train__steps": 40, "data__beams": 4}
    train_translation(home, "t", small_translation(home, **few))
    train_translation(home, "many", many_languages(home, **few))
    return home


def test_a_trained_model_is_saved_as_marian(home: Path) -> None:
    config = json.loads((home / "t" / "best" / "config.json").read_text())
    assert (config["model_type"], config["architectures"]) == ("marian", ["MarianMTModel"])
    assert config["legato"]["task"] == "translation"


def test_greedy_translations_are_the_same_there(home: Path) -> None:
    best = home / "t" / "best"
    there = translated_there(best, TEXTS, num_beams=1, early_stopping=False, length_penalty=1.0)
    assert there == translated_here(best, TEXTS, beams=1, max_tokens=47)
    assert len(set(there)) > 3


def test_beam_translations_are_the_same_there_with_nothing_said_but_the_folder(home: Path) -> None:
    best = home / "t" / "best"
    assert json.loads((best / "generation_config.json").read_text())["num_beams"] == 4
    assert translated_there(best, TEXTS) == translated_here(best, TEXTS, max_tokens=47)


@pytest.mark.slow
def test_a_tag_that_is_typed_is_understood_there_too(home: Path) -> None:
    best = home / "many" / "best"
    tagged = [f">>{tag}<< {text}" for text in TEXTS[:3] for tag in ("de", "fr")] + [">>en<<Ein Hund läuft."]
    assert translated_there(best, tagged) == translated_here(best, tagged, max_tokens=47)
    greedy = translated_there(best, tagged, num_beams=1, early_stopping=False, length_penalty=1.0)
    assert greedy == translated_here(best, tagged, beams=1, max_tokens=47)


def test_a_source_is_cut_there_as_here(home: Path) -> None:
    best = home / "many" / "best"
    loaded = load_model(best)
    translator = Translator(loaded.module, loaded.tokenizer, loaded.target, loaded.start)
    there = transformers.AutoTokenizer.from_pretrained(best)
    for text in TEXTS:
        assert there(f">>fr<< {text}")["input_ids"] == translator.source_ids(text, "fr").tolist()


def test_what_transformers_saves_again_comes_back_here(home: Path, tmp_path: Path) -> None:
    best = home / "t" / "best"
    transformers.AutoModelForSeq2SeqLM.from_pretrained(best).save_pretrained(tmp_path)
    transformers.AutoTokenizer.from_pretrained(best).save_pretrained(tmp_path)
    again, first = load_model(tmp_path), load_model(best)
    assert again.task == "translation"
    assert again.about["beams"] == 4
    state = again.module.state_dict()
    assert all(torch.equal(value, state[name]) for name, value in first.module.state_dict().items())
    assert translated_here(tmp_path, TEXTS) == translated_here(best, TEXTS)


def test_exporting_to_hugging_face_copies_the_folder(home: Path, tmp_path: Path) -> None:
    from legato.folders.exports import RECORD, export

    out = export(home / "t", "hf", out=tmp_path / "out")
    best = home / "t" / "best"
    assert {path.name: path.read_bytes() for path in out.iterdir() if path.name != RECORD} == {
        path.name: path.read_bytes() for path in best.iterdir()
    }


# ── published folders ─────────────────────────────────────────────────────────────────────────────


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as Marian models are published: `transformers`' own weights, two sentencepiece files, a table."""
    import sentencepiece

    folder = tmp_path_factory.mktemp("published")
    pieces: dict[str, int] = {"</s>": 0, "<unk>": 1, ">>de<<": 2, ">>fr<<": 3}
    for side, language in (("source", "en"), ("target", "de")):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter([" ".join(WORDS[language]), *WORDS[language]] * 5),
            model_writer=made,
            vocab_size=50,
            hard_vocab_limit=False,
            bos_id=-1,
            eos_id=0,
            unk_id=1,
            minloglevel=2,
        )
        (folder / f"{side}.spm").write_bytes(made.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
        for index in range(processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(index), len(pieces))
    pieces["<pad>"] = len(pieces)
    (folder / "vocab.json").write_text(json.dumps(pieces))
    tokenizer = transformers.MarianTokenizer(
        *(str(folder / name) for name in ("source.spm", "target.spm", "vocab.json")),
        source_lang="en",
        target_lang="de",
    )
    tokenizer.save_pretrained(folder)
    _marian(len(pieces)).save_pretrained(folder)
    return folder


def _marian(size: int) -> Any:
    """Their model on random weights that have opinions, and that end a text sooner or later."""
    torch.manual_seed(0)
    ids = {"pad_token_id": size - 1, "eos_token_id": 0, "decoder_start_token_id": size - 1}
    layers = {f"{side}_layers": 1 for side in ("encoder", "decoder")}
    shape = {
        f"{side}_{key}": 2 * n
        for side in ("encoder", "decoder")
        for key, n in (("attention_heads", 1), ("ffn_dim", 16))
    }
    config = transformers.MarianConfig(
        vocab_size=size, d_model=16, max_position_embeddings=64, scale_embedding=True, **ids, **layers, **shape
    )
    model = transformers.MarianMTModel(config).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "embed_positions" not in name:
                parameter.add_(0.4 * torch.randn_like(parameter))
        model.final_logits_bias[0, 0] = 3.0
        model.final_logits_bias[0, [2, 3, size - 1]] = -1e4  # tags and padding are never written
    model.generation_config.update(num_beams=3, early_stopping=EARLY, max_length=40, forced_eos_token_id=None)
    return model


@pytest.fixture
def folder(published: Path, tmp_path: Path) -> Path:
    """A copy to damage."""
    return Path(shutil.copytree(published, tmp_path / "marian"))


TAGGED = [f">>{tag}<< {text}" for text in TEXTS[:6] for tag in ("de", "fr")]


@pytest.mark.parametrize("beams", [1, 4])
def test_a_published_folder_translates_here_as_there(published: Path, beams: int) -> None:
    there = translated_there(published, TAGGED, num_beams=beams, early_stopping=EARLY and beams > 1)
    assert there == translated_here(published, TAGGED, beams=beams, max_tokens=39)
    assert len(set(there)) > 3


def test_a_published_folder_is_searched_as_its_makers_do(published: Path) -> None:
    assert load_model(published).about["beams"] == 3
    assert translated_there(published, TAGGED) == translated_here(published, TAGGED, max_tokens=39)


def test_published_pieces_are_numbered_here_as_there(published: Path) -> None:
    loaded = load_model(published)
    there = transformers.AutoTokenizer.from_pretrained(published)
    assert isinstance(there, transformers.MarianTokenizer)
    for text in TEXTS:
        ids = there(text)["input_ids"]
        assert [*loaded.tokenizer.encode(text).tolist(), loaded.tokenizer.eos_id] == ids
        written = there(text_target=text)["input_ids"][:-1]
        assert loaded.target.encode(text).tolist() == written
        assert loaded.target.decode(written) == there.decode(written, skip_special_tokens=True)


def test_a_published_folder_has_no_key_of_ours_and_is_a_translator(published: Path) -> None:
    loaded = load_model(published)
    assert loaded.task == "translation"
    assert loaded.start == loaded.target.pad_id
    assert Translator(loaded.module, loaded.tokenizer, loaded.target).tags == ["de", "fr"]


@pytest.mark.slow
def test_a_published_folder_that_is_saved_again_is_loaded_by_both(published: Path, tmp_path: Path) -> None:
    loaded = load_model(published)
    kept = {"start": loaded.start, "task": "translation", "about": loaded.about}
    save_model(tmp_path, loaded.module, loaded.processors, card="# card\n", **kept)
    assert (tmp_path / "source.spm").read_bytes() == (published / "source.spm").read_bytes()
    again = translated_here(tmp_path, TAGGED, max_tokens=39)
    assert again == translated_here(published, TAGGED, max_tokens=39)
    assert again == translated_there(tmp_path, TAGGED, max_length=40)


def test_weights_in_half_precision_are_read(folder: Path) -> None:
    tensors = {name: tensor.half() for name, tensor in load_file(folder / "model.safetensors").items()}
    save_file(tensors, folder / "model.safetensors", metadata={"format": "pt"})
    assert load_model(folder).module.embedding.weight.dtype == torch.float32  # type: ignore[union-attr]


# ── what is wrong with some ───────────────────────────────────────────────────────────────────────


def test_a_pickle_is_refused_with_the_reason(folder: Path) -> None:
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    said = complaint(folder)
    assert said.startswith(f"{folder} lacks model.safetensors; its pytorch_model.bin is a pickle")
    assert "safetensors" in said.rpartition(":")[2]


def test_weights_that_are_nowhere_are_said_to_be(folder: Path) -> None:
    (folder / "model.safetensors").unlink()
    assert complaint(folder) == f"{folder} lacks model.safetensors"


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json"])
def test_a_missing_file_of_the_vocabulary_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    assert complaint(folder) == f"{folder} lacks {name}; a Marian vocabulary is source.spm, target.spm, vocab.json"


@pytest.mark.parametrize("name", ["source.spm", "target.spm", "vocab.json"])
def test_a_damaged_file_of_the_vocabulary_is_named(folder: Path, name: str) -> None:
    (folder / name).write_bytes(b"\x00\xffnonsense")
    assert complaint(folder).startswith(f"{folder / name} is ")


def test_a_table_without_an_end_is_named(folder: Path) -> None:
    change(folder / "vocab.json", lambda table: table.pop("</s>"))
    assert complaint(folder).startswith(f"{folder / 'vocab.json'} is no vocabulary: ")


def test_a_table_larger_than_the_weights_is_named_with_both_sizes(folder: Path) -> None:
    size = load_model(folder).module.vocabulary
    change(folder / "vocab.json", lambda table: table.update({f"new{n}": size + n for n in range(5)}))
    assert complaint(folder) == f"{folder}: the tokenizer has {size + 5} tokens, the model only {size}"


def test_a_tokenizer_larger_than_the_weights_is_named_with_both_sizes(home: Path, tmp_path: Path) -> None:
    folder = Path(shutil.copytree(home / "t" / "best", tmp_path / "model"))
    size = load_model(folder).module.vocabulary
    Tokenizer.load(folder).with_special_tokens(["<a>", "<b>"]).save(folder, ends=True)
    assert complaint(folder) == f"{folder}: the tokenizer has {size + 2} tokens, the model only {size}"


def test_weights_smaller_than_the_config_says_are_named_with_both_shapes(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(vocab_size=config["vocab_size"] + 1))
    said = complaint(folder)
    assert "should have shape" in said
    assert "but has" in said


@pytest.mark.parametrize("value", [-1, 10**6])
def test_a_start_that_is_no_token_is_named(folder: Path, value: Any) -> None:
    change(folder / "config.json", lambda config: config.update(decoder_start_token_id=value))
    assert complaint(folder) == f"{folder / 'config.json'}: decoder_start_token_id is {value}"


@pytest.mark.parametrize("value", ["x", 1.5, [0], True])
def test_a_start_that_is_no_number_is_named(folder: Path, value: Any) -> None:
    change(folder / "config.json", lambda config: config.update(decoder_start_token_id=value))
    assert complaint(folder).startswith(
        f"{folder / 'config.json'}: 'decoder_start_token_id' should be a valid integer"
    )


def test_a_start_beyond_all_numbers_is_named(folder: Path) -> None:
    change(folder / "config.json", lambda config: config.update(decoder_start_token_id=10**25))
    assert complaint(folder).endswith("'decoder_start_token_id': 1e+25 is too large a number")


@pytest.mark.parametrize("entry", ["eos_token_id", "num_beams", "length_penalty"])
def test_an_entry_of_the_generation_config_that_is_none_is_named(folder: Path, entry: str) -> None:
    (folder / "generation_config.json").write_text(json.dumps({entry: {}}))
    assert complaint(folder).startswith(f"{folder / 'generation_config.json'}: '{entry}' should be a valid ")


def test_a_damaged_generation_config_is_named(folder: Path) -> None:
    (folder / "generation_config.json").write_text("{")
    assert complaint(folder).startswith(f"{folder / 'generation_config.json'} is not valid JSON")


# ── what is no Marian ─────────────────────────────────────────────────────────────────────────────

OTHERS: dict[str, tuple[dict[str, Any], str]] = {
    "pre-norm": ({"norm": "pre"}, "norms come after each sublayer"),
    "learned positions": ({"positions": "learned"}, "positions are sinusoidal, this model's learned"),
    "rotary positions": ({"positions": "rotary"}, "positions are sinusoidal, this model's rotary"),
    "a window": ({"window": 4}, "a window of 4"),
    "swiglu": ({"activation": "swiglu"}, "no swiglu activation"),
    "a readout of its own": ({"tied": False}, "a readout of its own"),
    "two embeddings": ({"shared": False}, "one embedding for source and target"),
}


@pytest.mark.parametrize("which", OTHERS)
def test_another_variant_is_saved_as_ours_and_not_exported(
    which: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from legato.models.base import Sizes
    from legato.models.transformer import TransformerConfig, TransformerModel

    changes, reason = OTHERS[which]
    tokenizer = Tokenizer.train(TokenizerConfig(name="byte"), [""]).with_special_tokens(["<pad>"])
    module = TransformerModel(
        TransformerConfig(width=8, layers=1, heads=2, length=16, **changes), Sizes(tokenizer.size)
    )
    folder = tmp_path / "model"
    folder.mkdir()
    save_model(folder, module, Processors(tokenizer), task="translation", about={}, card="# card\n")
    assert json.loads((folder / "config.json").read_text())["model_type"] == "legato-transformer"
    back = load_model(folder).module
    assert back.config == module.config
    assert all(torch.equal(value, back.state_dict()[name]) for name, value in module.state_dict().items())
    monkeypatch.setattr("sys.argv", ["legato", "export", str(folder), "--to", "hf", "--out", str(tmp_path / "out")])
    with pytest.raises(SystemExit) as ended:
        main()
    said = capsys.readouterr().err
    assert ended.value.code == 2
    assert said.startswith(f"legato: {folder} cannot be a folder that transformers loads: ")
    assert reason in said
    assert said.count("\n") == 1
    assert not (tmp_path / "out").exists()
