"""Bad pairs, and settings that do not suit them: one clear line, exit code 2, and nothing left behind."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.data.text.tokenizers import Tokenizer
from refusals import is_one_line
from tiny_pairs import SEQ2SEQ, in_words, small_translation, train_translation
from tiny_runs import snapshot

QUICK: dict[str, Any] = {**SEQ2SEQ, "model__width": 8, "train__steps": 1}


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with good pairs and a run that knows nothing."""
    home = tmp_path_factory.mktemp("home")
    train_translation(home, "run", small_translation(home, **QUICK))
    return home


@pytest.fixture
def train(command: Any, home: Path, tmp_path: Path) -> Any:
    """`legato train translation` with these settings over the small ones, into `tmp_path/run`."""

    def run(*over: str, **changes: Any) -> Any:
        settings = small_translation(home, **{**QUICK, **changes})
        return command("train", "translation", *in_words(settings), f"out={tmp_path}/run", *over)

    return run


@pytest.fixture
def refused(train: Any, tmp_path: Path) -> Any:
    """The same, and nothing may be left behind."""

    def run(*over: str, **changes: Any) -> Any:
        before = snapshot(tmp_path)
        answer = train(*over, **changes)
        after = {name: data for name, data in snapshot(tmp_path).items() if not name.startswith("legato-cache/")}
        assert after == before
        assert not (tmp_path / "run").exists()
        return answer

    return run


def write(path: Path, *lines: str) -> str:
    path.write_text("".join(f"{line}\n" for line in lines))
    return str(path)


# ── aligned files ─────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("key", ["data__train", "data__valid", "data__test"])
def test_files_of_different_length_are_named_with_the_first_line_that_is_alone(
    key: str, refused: Any, tmp_path: Path
) -> None:
    files = [write(tmp_path / "a.en", "one", "two", "three"), write(tmp_path / "a.de", "eins", "zwei")]
    is_one_line(refused(**{key: files}), f"{files[0]} has 3 lines, {files[1]} 2: line 3 of {files[0]} has no partner")


def test_one_line_more_on_the_other_side_is_named_too(refused: Any, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "one"), write(tmp_path / "a.de", "eins", "zwei")]
    is_one_line(refused(data__train=files), "line 2 of", "a.de has no partner")


@pytest.mark.parametrize("key", ["data__train", "data__valid", "data__test"])
def test_a_missing_file_is_named(key: str, refused: Any, home: Path, tmp_path: Path) -> None:
    is_one_line(
        refused(**{key: [f"{tmp_path}/no.en", f"{home}/train.de"]}), f"there is no file {tmp_path}/no.en", "data.root"
    )


def test_an_empty_file_is_named(refused: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.de").write_text("")
    is_one_line(refused(data__train=[f"{home}/train.en", f"{tmp_path}/empty.de"]), f"{tmp_path}/empty.de is empty")


def test_a_binary_file_is_named(refused: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "bad.de").write_bytes(b"text\x00\x01")
    is_one_line(refused(data__train=[f"{home}/train.en", f"{tmp_path}/bad.de"]), f"{tmp_path}/bad.de is binary")


def test_a_file_in_another_encoding_is_named_with_its_line(refused: Any, tmp_path: Path) -> None:
    (tmp_path / "bad.de").write_bytes("Hund\nläuft\n".encode("latin-1"))
    files = [write(tmp_path / "a.en", "dog", "runs"), f"{tmp_path}/bad.de"]
    is_one_line(refused(data__train=files), f"{tmp_path}/bad.de, line 2", "data.encoding=latin-1")


@pytest.mark.parametrize(
    ("files", "part"),
    [
        ("[{home}/train.en]", "is not two files; aligned texts are two"),
        ("[{home}/train.en,{home}/train.de,{home}/train.fr]", "is not two files; aligned texts are two"),
        ("[]", "is not two files; aligned texts are two"),
        ("{home}/train.en", "is one text without columns; give two aligned files"),
        ("[{home},{home}/train.de]", "is a folder"),
        ("none", "'data.train' is needed"),
        ("toy:langage", "there is no toy:langage; did you mean 'toy:language'?"),
        ("{home}/train.{{}}", "stands for several languages; say which: data.directions"),
    ],
)
def test_files_that_are_no_pair_are_refused(files: str, part: str, refused: Any, home: Path) -> None:
    is_one_line(refused(f"data.train={files.format(home=home)}"), part)


# ── pairs without text ────────────────────────────────────────────────────────────────────────────


def test_a_pair_that_is_empty_on_one_side_is_left_out_counted_and_named(train: Any, tmp_path: Path) -> None:
    english = write(tmp_path / "a.en", "A dog", "", "A cat", "  ", "\x07", "A man", "The dog")
    german = write(tmp_path / "a.de", "Ein Hund", "Ein", "", "", "Das", "Ein Mann", "Das Hund")
    answer = train(data__train=[english, german])
    assert answer.code == 0, answer.err
    left_out = "left out 4 of 7 pairs: 3 empty on one side (first: line 2), 1 empty on both sides (line 4)"
    assert f"data.train: {left_out}\n" in answer.err
    assert "data: 3 train, 12 valid pairs" in answer.err


@pytest.mark.slow
def test_an_empty_cell_of_a_table_is_left_out_counted_and_named(train: Any, tmp_path: Path) -> None:
    rows = [{"en": "A dog", "de": "Ein Hund"}, {"en": "A cat", "de": None}, {"en": "", "de": "Das"}]
    table = write(tmp_path / "a.jsonl", *map(json.dumps, rows))
    answer = train(data__train=table)
    assert "data.train: left out 2 of 3 pairs: 2 empty on one side (first: line 2)\n" in answer.err


def test_pairs_that_are_all_empty_are_refused(refused: Any, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "one", "two"), write(tmp_path / "a.de", "", "")]
    is_one_line(refused(data__train=files), "no pair is left: left out 2 of 2 pairs: 2 empty on one side")


def test_what_is_left_out_of_an_evaluation_is_told(command: Any, home: Path, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "A dog", "A cat"), write(tmp_path / "a.de", "Ein Hund", "")]
    scores = json.loads(command("eval", home / "run", f"data.test=[{files[0]},{files[1]}]", "--json").out)
    assert scores["sentences"] == 1
    assert scores["left_out"] == "left out 1 of 2 pairs: 1 empty on one side (line 2)"


def test_control_characters_in_pairs_are_replaced_and_counted(train: Any, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "A\x07dog", "A \x1bcat"), write(tmp_path / "a.de", "Ein Hund", "Ein\x0bKatze")]
    answer = train(data__train=files)
    assert answer.code == 0, answer.err
    assert "data.train: 3 control characters replaced by a space\n" in answer.err


@pytest.mark.slow
def test_pairs_in_any_script_are_learned_from(train: Any, command: Any, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "狗跑", "🐶🏃‍♀️", "كلب"), write(tmp_path / "a.de", "собака", "कुत्ता", "\u2028x")]
    answer = train(data__train=files)
    assert answer.code == 0, answer.err
    assert "data: 3 train" in answer.err
    assert command("predict", tmp_path / "run", "狗 🐶 كلب").code == 0


# ── lengths ───────────────────────────────────────────────────────────────────────────────────────


def test_long_and_badly_proportioned_pairs_are_left_out_counted_and_named(train: Any, tmp_path: Path) -> None:
    english = write(tmp_path / "a.en", "A dog", "A dog " * 60, "A cat", "A")
    german = write(tmp_path / "a.de", "Ein Hund", "Ein", "Ein Katze", "Ein Hund " * 9)
    answer = train("data.max_length=50", "data.max_ratio=3", data__train=[english, german])
    assert answer.code == 0, answer.err
    said = next(line for line in answer.err.splitlines() if line.startswith("data.train: left out"))
    assert said.startswith("data.train: left out 2 of 4 pairs: 1 longer than ")
    assert "(line 2)" in said
    assert said.endswith("1 more than 3 times longer on one side (line 4)")


def test_pairs_that_are_all_too_long_are_refused(refused: Any) -> None:
    is_one_line(refused("data.max_length=2"), "no pair is left: left out 400 of 400 pairs", "(first: line 1)")


def test_a_batch_too_small_for_a_pair_is_named(refused: Any) -> None:
    is_one_line(refused("train.batch_tokens=4"), "more than train.batch_tokens=4; raise that")


def test_too_few_pairs_to_hold_any_out_are_named(refused: Any, tmp_path: Path) -> None:
    files = [write(tmp_path / "a.en", "A dog"), write(tmp_path / "a.de", "Ein Hund")]
    is_one_line(refused(data__train=files, data__valid=None), "has 1 different source, too few to hold out valid")


# ── tables ────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("name", "lines", "over", "parts"),
    [
        ("a.tsv", ("a dog\tein Hund", "a cat"), (), ("row 2 (line 2): 1 field, so there is no column 2",)),
        ("a.tsv", ("a dog ein Hund",), (), ("row 1 (line 1)", "are its columns separated by tabs?")),
        (
            "a.tsv",
            ("en\tde", "a dog\tein Hund", "a cat"),
            (),
            ("row 2 (line 3): 1 of 2 fields, so there is no 'de'",),
        ),
        ("a.csv", ("en,de", '"a dog,ein Hund'), (), ("line 2", "is a quotation mark missing?")),
        ("a.csv", ("en,de", "a dog,ein Hund"), ("data.columns=[en,dee]",), ("no column 'dee'; did you mean 'de'?",)),
        ("a.csv", ("en,de", "a,b"), ("data.columns=[en]",), ("data.columns names 1 of them; name two",)),
        ("a.csv", ("en,de", "a,b"), ("data.columns=[1,7]",), ("no column 7",)),
        ("a.csv", ("en,de", "a,b"), ("data.columns=[en,de]", "data.tag_column=lang"), ("no column 'lang'",)),
        ("a.jsonl", ('{"en": "a", "de": "b"}', "{"), (), ("line 2: not JSON",)),
        ("a.jsonl", ('{"en": "a", "de": "b"}', '{"en": "c"}'), (), ("line 2: there is no 'de'",)),
        ("a.jsonl", ('{"en": "a", "de": 5}',), ("data.columns=[en,de]",), ("line 1: 'de' is int, not text",)),
        ("a.jsonl", ('{"a": "x", "b": "y", "c": "z"}',), (), ("a, b, c; say which two are source and target",)),
        ("a.parquet", ("no parquet",), (), ("is not a parquet file, or is damaged",)),
        (
            "a.tsv",
            ("s\tt\tl", "a\tb\tde", "c\td\t"),
            ("data.columns=[s,t]", "data.tag_column=l"),
            ("line 3: 'l' is empty",),
        ),
        ("a.txt", ("one text",), ("data.format=tvs",), ("data.format=tvs should be",)),
    ],
)
def test_a_table_that_is_wrong_is_named_with_the_place(
    name: str, lines: tuple[str, ...], over: tuple[str, ...], parts: tuple[str, ...], refused: Any, tmp_path: Path
) -> None:
    is_one_line(refused(*over, data__train=write(tmp_path / name, *lines)), *parts)


# ── directions ────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("over", "part"),
    [
        (("data.directions=[ende]",), "'ende' is no direction; write source-target, such as en-de"),
        (("data.directions=[en-de,en-de]",), "names 'en-de' twice"),
        (("data.directions=[en-it]",), "there is no file"),
        (("data.directions=en-de",), "data.directions=en-de is not a list"),
        (("data.directions=[en-de]", "data.columns=[1,2]"), "which have no columns"),
        (("data.directions=[en-de]", "data.valid=[{home}/val.en,{home}/val.de]"), "has no {} for the language"),
    ],
)
def test_directions_that_make_no_sense_are_refused(
    over: tuple[str, ...], part: str, refused: Any, home: Path
) -> None:
    files = (f"data.train={home}/train.{{}}", f"data.valid={home}/val.{{}}")
    is_one_line(refused(*files, *(word.replace("{home}", str(home)) for word in over)), part)


# ── settings ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("words", "parts"),
    [
        ("model=gru", ("model=gru reads no source", "model=seq2seq model.cell=gru")),
        ("model=lstm model.heads=4", ("model=lstm reads no source", "model=seq2seq model.cell=lstm")),
        ("model=seqtoseq", ("no model 'seqtoseq'", "'seq2seq'")),
        ("data.jiont=false", ("'data.jiont'; did you mean 'joint'?",)),
        ("data.metric=chrf", ("data.metric=chrf should be 'bleu' or 'loss'",)),
        ("data.bpe_dropout=1", ("data.bpe_dropout=1 should be less than 1",)),
        ("data.beams=0", ("data.beams=0",)),
        ("tokenizer.size=100", ("size=100 is too small for bpe",)),
        ("tokenizer.path=no.json", ("there is no tokenizer no.json",)),
        ("model.attention=scaled", ("model.attention=scaled should be",)),
        ("train.label_smoothing=1", ("train.label_smoothing=1 should be less than 1",)),
    ],
)
def test_settings_that_make_no_sense_are_refused(words: str, parts: tuple[str, ...], refused: Any) -> None:
    is_one_line(refused(*words.split()), *parts)


def test_bpe_dropout_needs_merges(refused: Any) -> None:
    is_one_line(refused("data.bpe_dropout=0.1", tokenizer="word", tokenizer__size=None), "tokenizer=word has none")


def test_heads_that_do_not_divide_the_width_are_refused(refused: Any) -> None:
    shape = {"model": "transformer", "model__heads": 3, "model__width": 8}
    is_one_line(refused(**shape), "heads=3 does not divide width=8")


def test_resuming_with_other_pairs_under_the_same_name_is_refused(command: Any, tmp_path: Path) -> None:
    run = legato.train("translation", small_translation(tmp_path, **QUICK), out=tmp_path / "run", quiet=True).run
    pairs = (tmp_path / "train.en").read_text()
    (tmp_path / "train.en").write_text(pairs.replace("dog", "wolf"))
    before = snapshot(run)
    answer = command("train", f"resume={run}", "train.steps=3")
    assert answer.code == 2
    assert answer.err.splitlines()[-1].startswith(f"legato: data.train is not the text that {run} began with")
    assert snapshot(run) == before


# ── models that are wrong ─────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("verb", ["predict", "eval", "export"])
def test_a_vocabulary_that_does_not_match_the_weights_is_named_with_both_sizes(
    verb: str, command: Any, home: Path, tmp_path: Path
) -> None:
    model = Path(shutil.copytree(home / "run" / "best", tmp_path / "model"))
    size = Tokenizer.load(model).size
    Tokenizer.load(model).with_special_tokens(["<more>"]).save(model)
    rest = {"predict": ["A dog"], "eval": [f"data.test=[{home}/test.en,{home}/test.de]"], "export": ["--to", "hf"]}
    is_one_line(command(verb, model, *rest[verb]), f"the tokenizer has {size + 1} tokens, the model only {size}")


@pytest.mark.parametrize("name", ["model.safetensors", "tokenizer.json", "config.json"])
def test_a_model_folder_that_lacks_a_file_is_refused(name: str, command: Any, home: Path, tmp_path: Path) -> None:
    model = Path(shutil.copytree(home / "run" / "best", tmp_path / "model"))
    (model / name).unlink()
    is_one_line(command("predict", model, "A dog"), name)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--beams", "0"), "beams=0 should be greater than or equal to 1"),
        (("--nbest", "0"), "nbest=0 should be greater than or equal to 1"),
        (("--max-tokens", "0"), "max_tokens=0 should be greater than or equal to 1"),
        (("--length-penalty", "-1"), "length_penalty=-1.0 should be greater than or equal to 0"),
        (("--beams", "many"), "'--beams'"),
        (("--device", "tpu"), "device=tpu is not a device"),
        (("--best",), "--best"),
    ],
)
def test_options_that_make_no_sense_are_refused(words: tuple[str, ...], part: str, command: Any, home: Path) -> None:
    is_one_line(command("predict", home / "run", "A dog", *words), part)


@pytest.mark.parametrize(
    ("words", "part"),
    [
        ((), "'data.test' is needed; set data.test=[source file,target file], or a table"),
        (("data.test=[no.en,no.de]",), "there is no file no.en"),
        (("data.tset=x",), "'data.tset'; did you mean 'test'?"),
        (("train.steps=5",), "unknown key 'train'"),
        (("data.test=[{home}/test.en,{home}/train.de]",), "line 13 of {home}/train.de has no partner"),
        (("data.test={home}/test.{{}}", "data.directions=[en-de]"), "no language 'de'; it has one direction only"),
    ],
)
def test_an_evaluation_that_makes_no_sense_is_refused(
    words: tuple[str, ...], part: str, command: Any, home: Path
) -> None:
    there = [word.format(home=home) for word in words]
    is_one_line(command("eval", home / "run", *there), part.format(home=home))
