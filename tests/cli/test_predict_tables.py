"""`legato predict --file` of a table: its texts are read as the task reads tables, its header and labels are none."""

from __future__ import annotations

import itertools
import json
from pathlib import Path
from typing import Any

import pytest

import legato
from tiny_reviews import settings, write_pairs
from tiny_runs import write_text

TEXTS = ["a lovely film and song", "a grim play and book", "a merry story and play"]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier of texts, `run`, and one of pairs, `pairs`."""
    folder = tmp_path_factory.mktemp("reviews")
    legato.train("classification", settings(folder, model__layers=1), out=folder / "run", quiet=True)
    tables = {"data.train": str(write_pairs(folder / "p.tsv", seed=1)), "data.valid": str(folder / "p.tsv")}
    changes = {**settings(folder, model__layers=1, train__steps=3), **tables}
    legato.train("classification", changes, out=folder / "pairs", quiet=True)
    return folder


def inputs(command: Any, *words: object) -> list[str]:
    """What was predicted from, line by line."""
    answer = command("predict", *words, "--json")
    assert answer.code == 0, answer.err
    return [json.loads(line)["input"] for line in answer.out.splitlines()]


def test_a_table_with_a_header_and_labels_gives_its_texts(command: Any, folder: Path, tmp_path: Path) -> None:
    table = tmp_path / "new.tsv"
    table.write_text("id\tsentence\tlabel\n" + "".join(f"{n}\t{text}\tgood\n" for n, text in enumerate(TEXTS)))
    answer = command("predict", folder / "run", "--file", table)
    assert (answer.code, answer.err) == (0, "")
    assert [line.split("\t")[0] for line in answer.out.splitlines()] == ["good", "bad", "good"]
    assert inputs(command, folder / "run", "--file", table) == TEXTS


def test_a_table_needs_no_labels(command: Any, folder: Path, tmp_path: Path) -> None:
    for name, between in (("a.tsv", "\t"), ("a.csv", ",")):
        (tmp_path / name).write_text(f"index{between}sentence\n" + "".join(f"7{between}{text}\n" for text in TEXTS))
        assert inputs(command, folder / "run", "--file", tmp_path / name) == TEXTS
    (tmp_path / "a.jsonl").write_text("".join(json.dumps({"sentence": text}) + "\n" for text in TEXTS))
    assert inputs(command, folder / "run", "--file", tmp_path / "a.jsonl") == TEXTS


def test_other_columns_than_those_of_training_are_guessed_and_said(
    command: Any, folder: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.tsv").write_text("review\tstars\n" + "".join(f"{text}\t5\n" for text in TEXTS))
    answer = command("predict", folder / "run", "--file", tmp_path / "a.tsv")
    assert answer.err == f"legato: note: {tmp_path}/a.tsv: reading 'review' as text\n"
    assert len(answer.out.splitlines()) == 3


def test_columns_that_nothing_tells_are_asked_for(command: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.tsv").write_text("eins\tzwei\n" + "".join(f"{text}\tx\n" for text in TEXTS))
    answer = command("predict", folder / "run", "--file", tmp_path / "a.tsv", "--columns", "eins")
    assert len(answer.out.splitlines()) == 3
    (tmp_path / "b.tsv").write_text("eins\tzwei\n" + "".join(f"{text}\t{text} again\n" for text in TEXTS))
    refused = command("predict", folder / "run", "--file", tmp_path / "b.tsv")
    assert refused.code == 2
    assert "has the columns eins, zwei; say which is the text: --columns eins" in refused.err


def test_pairs_have_two_texts_with_or_without_a_header(command: Any, folder: Path, tmp_path: Path) -> None:
    rows = "".join(f"{text}\t{TEXTS[0]}\n" for text in TEXTS)
    expected = [f"{text}\t{TEXTS[0]}" for text in TEXTS]
    for number, head in enumerate(("", "sentence1\tsentence2\n", "premise\thypothesis\n")):
        (tmp_path / f"{number}.tsv").write_text(head + rows)
        assert inputs(command, folder / "pairs", "--file", tmp_path / f"{number}.tsv") == expected


def test_a_csv_of_tabs_is_read_as_training_reads_it(command: Any, folder: Path, tmp_path: Path) -> None:
    texts = ["a lovely film, and song", "a grim play, and book"]
    (tmp_path / "a.csv").write_text("sentence\tlabel\n" + "".join(f"{text}\tgood\n" for text in texts))
    assert inputs(command, folder / "run", "--file", tmp_path / "a.csv") == texts


def test_columns_that_training_was_told_by_number_are_read_again(command: Any, tmp_path: Path) -> None:
    rows = [f"{n % 2}\tsource {n}\t{TEXTS[n % 2]} {n}\tnote {n} of many words\n" for n in range(24)]
    (tmp_path / "a.tsv").write_text("".join(rows))
    source, table = tmp_path / "a.tsv", settings(tmp_path, model__layers=1, train__steps=2)
    columns = {"data.train": str(source), "data.valid": str(source), "data.columns": [3, 1]}
    legato.train("classification", {**table, **columns}, out=tmp_path / "run", quiet=True)
    assert inputs(command, tmp_path / "run", "--file", source)[0] == f"{TEXTS[0]} 0"


@pytest.mark.slow
def test_a_translator_reads_the_columns_that_it_was_trained_on(command: Any, tmp_path: Path) -> None:
    source = tmp_path / "a.tsv"
    source.write_text("".join(f"ein hund {n}\ta dog {n}\n" for n in range(30)))
    shape = {"model": "seq2seq", "model.width": 8, "tokenizer": "word", "train.steps": 2, "data.valid_share": 0.3}
    told = {"data.train": str(source), "data.columns": [2, 1], **shape}
    legato.train("translation", told, out=tmp_path / "run", quiet=True)
    assert inputs(command, tmp_path / "run", "--file", source)[0] == "a dog 0"


def test_a_plain_text_is_read_line_by_line(command: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("sentence\tlabel\n" + "\n".join(TEXTS) + "\n")
    assert inputs(command, folder / "run", "--file", tmp_path / "a.txt") == ["sentence\tlabel", *TEXTS]


def test_a_row_that_cannot_be_read_is_named(command: Any, folder: Path, tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text(f'sentence,label\n{TEXTS[0]},good\n" ",bad\n')
    answer = command("predict", folder / "run", "--file", tmp_path / "a.csv")
    assert answer.code == 2
    assert answer.err.splitlines()[0] == "legato: row 2: the text is empty"


def test_every_task_reads_its_own_tables(tmp_path: Path) -> None:
    from legato.registry import TASKS

    (tmp_path / "p.tsv").write_text("en\tde\nA dog.\tEin Hund.\n")
    assert TASKS.get("translation").read_inputs(str(tmp_path / "p.tsv"), {}).texts == ["A dog."]
    (tmp_path / "s.csv").write_text("source\nA dog.\n")
    assert TASKS.get("translation").read_inputs(str(tmp_path / "s.csv"), {}, ["source"]).texts == ["A dog."]
    (tmp_path / "q.jsonl").write_text(json.dumps({"question": "Who?", "context": "She did.", "answer": "She"}))
    for alone, expected in ((False, "Who?\tShe did."), (True, "Who?")):
        assert TASKS.get("qa").read_inputs(str(tmp_path / "q.jsonl"), {}, alone=alone).texts == [expected]
    (tmp_path / "e.tsv").write_text("sentence1\tsentence2\tscore\na dog\ta cat\t0.5\na bird\ta cow\t0.1\n")
    assert TASKS.get("embedding").read_inputs(str(tmp_path / "e.tsv"), {}).texts == ["a dog\ta cat", "a bird\ta cow"]
    (tmp_path / "t.tsv").write_text("EU\tB-ORG\nrejects\tO\n\nPeter\tB-PER\n")
    about = {"columns": {"word": None, "tag": None}}
    assert TASKS.get("tagging").read_inputs(str(tmp_path / "t.tsv"), about).texts == ["EU rejects", "Peter"]
    (tmp_path / "m.csv").write_text("id,text\n1,He ate <mask>.\n")
    assert TASKS.get("mlm").read_inputs(str(tmp_path / "m.csv"), {}).texts == ["He ate <mask>."]


# --- texts that are cut --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def short(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A classifier that reads eight tokens."""
    folder = tmp_path_factory.mktemp("short")
    changes = settings(folder, model__layers=1, train__steps=2, data__max_length=8)
    legato.train("classification", changes, out=folder / "run", quiet=True)
    return folder


CUT = "longer than the 8 tokens that the model reads; what is beyond was cut off"


def test_predicting_says_once_how_many_texts_were_cut(command: Any, short: Path, tmp_path: Path) -> None:
    long = "a lovely film and song and book and play and story"
    (tmp_path / "a.txt").write_text("".join(f"{long if n % 2 else 'a grim film'}\n" for n in range(200)))
    answer = command("predict", short / "run", "--file", tmp_path / "a.txt")
    assert answer.err == f"legato: note: 100 texts are {CUT}\n"
    assert command("predict", short / "run", "a lovely film", long).err == f"legato: note: 1 text is {CUT}\n"
    assert command("predict", short / "run", "a lovely film").err == ""


def test_evaluating_says_how_many_texts_were_cut(command: Any, short: Path, tmp_path: Path) -> None:
    long = "a lovely film and song and book and play and story"
    (tmp_path / "t.tsv").write_text(f"sentence\tlabel\n{long}\tgood\n{long}\tbad\na film\tbad\n")
    answer = command("eval", short / "run", f"data.test={tmp_path}/t.tsv")
    assert (answer.code, answer.err) == (0, f"legato: note: 2 texts are {CUT}\n")


def test_python_is_warned(short: Path) -> None:
    with pytest.warns(UserWarning, match="1 text is longer"):
        legato.load(short / "run", "cpu").predict("a lovely film and song and book and play and story")


def test_embedding_says_once_how_many_texts_were_cut(command: Any, tmp_path: Path) -> None:
    from tiny_published import gpt2_folder

    folder = gpt2_folder(tmp_path / "m")
    model = legato.load(folder, "cpu")
    most, fits = model.module.max_length, lambda text: len(model.tokenizer.encode_with_special_tokens(text)) <= most
    texts = ["a " * count + "a" for count in range(1, 200)]
    full, longer = next((a, b) for a, b in itertools.pairwise(texts) if fits(a) and not fits(b))
    (tmp_path / "a.txt").write_text(f"{full}\n{longer}\n{longer}\nthe cat\n")
    expected = f"legato: note: 2 texts are longer than the {most} tokens that the model reads"
    out = tmp_path / "v.npy"
    for more in (("--out", out), ("--json",)):
        told = command("embed", folder, "--file", tmp_path / "a.txt", *more).err
        assert (told.startswith(expected), told.count("\n")) == (True, 1), told


def test_a_table_beside_a_text_for_a_language_model_is_still_refused_in_one_line(
    command: Any, home: Path, tmp_path: Path
) -> None:
    (tmp_path / "a.tsv").write_text("text\na\n")
    write_text(tmp_path / "b.txt")
    for name in ("a.tsv", "b.txt"):
        answer = command("predict", home / "run", "--file", tmp_path / name)
        assert answer.code == 2
        assert len(answer.err.splitlines()) == 1
