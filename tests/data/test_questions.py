"""Questions from SQuAD's JSON and from tables, what is wrong with them, and how they are split."""

from __future__ import annotations

import csv
import gzip
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from legato.data.formats.question_splits import split_questions, told_shared
from legato.data.formats.questions import AnswerSpan, Question, QuestionFiles, Questions, read_questions
from legato.errors import DataError

TEXT = "Anna drinks tea. Bert drinks milk, and Anna sleeps."


def squad(path: Path, *qas: dict[str, Any], context: str = TEXT) -> Path:
    data = [{"title": "Drinks", "paragraphs": [{"context": context, "qas": list(qas)}]}]
    path.write_text(json.dumps({"version": "1.1", "data": data}), encoding="utf-8")
    return path


def asked(*answers: tuple[str, int], question: str = "What does Bert drink?", **more: Any) -> dict[str, Any]:
    told = [{"text": text, "answer_start": start} for text, start in answers]
    return {"question": question, "id": "q1", "answers": told, **more}


def table(path: Path, names: list[str], *rows: list[Any]) -> Path:
    with path.open("w", newline="", encoding="utf-8") as file:
        writer = csv.writer(file, delimiter="\t" if path.suffix == ".tsv" else ",")
        writer.writerows([names, *rows])
    return path


def read(path: Path, **reading: Any) -> Questions:
    return read_questions(str(path), QuestionFiles(**reading))


# --- SQuAD's JSON -----------------------------------------------------------------------------------


def test_squad_has_articles_and_several_answers(tmp_path: Path) -> None:
    file = squad(tmp_path / "a.json", asked(("milk", 29), ("drinks milk", 22), ("milk", 29)))
    (question,) = read(file).questions
    assert question.answers == [AnswerSpan(29, "milk"), AnswerSpan(22, "drinks milk"), AnswerSpan(29, "milk")]
    assert question.common == AnswerSpan(29, "milk")
    assert question.rights == ["milk", "drinks milk"]
    assert question.article == "Drinks"


def test_white_space_around_a_question_is_left_out_and_that_of_a_context_stays(tmp_path: Path) -> None:
    context = f" {TEXT}\n"
    file = squad(tmp_path / "a.json", asked(("milk", 30), question="  What does Bert drink? "), context=context)
    rows = [["What does Bert drink?\t", context, "milk"], [" What does Bert drink?", context, "tea"]]
    (first,) = read(file).questions
    (second,) = read(table(tmp_path / "a.csv", ["question", "context", "answer"], *rows)).questions
    for question in (first, second):
        assert (question.question, question.context) == ("What does Bert drink?", context)
    assert second.rights == ["milk", "tea"]  # one question


def test_a_gzip_reads_the_same(tmp_path: Path) -> None:
    plain = squad(tmp_path / "a.json", asked(("milk", 29)))
    packed = tmp_path / "a.json.gz"
    packed.write_bytes(gzip.compress(plain.read_bytes()))
    assert read(packed).questions == read(plain).questions
    assert read(packed).sha256 == read(plain).sha256


def test_version_two_has_questions_without_an_answer(tmp_path: Path) -> None:
    silent = asked(is_impossible=True, plausible_answers=[{"text": "tea", "answer_start": 12}])
    held = read(squad(tmp_path / "a.json", silent, asked(("tea", 12), is_impossible=False)))
    assert [question.answerable for question in held.questions] == [False, True]
    assert held.questions[0].rights == [""]
    assert held.unanswerable == 1


def test_an_answer_that_is_elsewhere_is_named(tmp_path: Path) -> None:
    file = squad(tmp_path / "a.json", asked(("milk", 30)))
    with pytest.raises(
        DataError, match=r"a.json, question q1: the answer 'milk' is not at character 30, where 'ilk,'"
    ):
        read(file)


def test_a_question_that_says_nothing_of_answers_is_not_taken_for_one_without(tmp_path: Path) -> None:
    lacking = asked()
    del lacking["answers"]
    with pytest.raises(DataError, match=r"question q1: there are no 'answers'.*data\.skip_bad=true"):
        read(squad(tmp_path / "a.json", lacking))
    held = read(squad(tmp_path / "a.json", lacking, asked(), {**lacking, "is_impossible": True}), skip_bad=True)
    assert [question.answers for question in held.questions] == [[None], [None]]
    assert "1 left out" in held.notes[0]


def test_such_questions_can_be_left_out_and_are_counted(tmp_path: Path) -> None:
    file = squad(tmp_path / "a.json", asked(("milk", 30)), asked(("tea", 12), question="And Anna?"))
    held = read(file, skip_bad=True)
    assert [question.question for question in held.questions] == ["And Anna?"]
    assert "1 left out" in held.notes[0]
    assert "question q1" in held.notes[0]


def test_where_all_are_left_out_nothing_is_left(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no questions that can be used"):
        read(squad(tmp_path / "a.json", asked(("milk", 30))), skip_bad=True)


@pytest.mark.parametrize(
    ("content", "words"),
    [
        ('{"rows": [1]}', "is no SQuAD file: .* has rows"),
        ("[1, 2]", "is no SQuAD file: .* has list"),
        ('{"data": [', "is not valid JSON"),
        ('{"data": [{"title": "x"}]}', "article 1: there is no 'paragraphs'"),
        ('{"data": [{"paragraphs": [{"qas": []}]}]}', "article 1 .1., paragraph 1: there is no 'context'"),
        ('{"data": []}', "holds no questions"),
        ("", "is empty"),
    ],
)
def test_a_json_that_is_no_squad(tmp_path: Path, content: str, words: str) -> None:
    file = tmp_path / "a.json"
    file.write_text(content)
    with pytest.raises(DataError, match=words):
        read(file)


def test_an_empty_context_is_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="question q1: the context is empty"):
        read(squad(tmp_path / "a.json", asked(), context=" \n"))


# --- tables -----------------------------------------------------------------------------------------


def test_columns_are_guessed_and_said(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", ["n", "Context", "question", "answer"], ["1", TEXT, "And Bert?", "milk"])
    held = read(file)
    assert held.questions[0].answers == [AnswerSpan(29, "milk")]  # where it stands first
    assert "'question' as question, 'Context' as context, 'answer' as answer" in held.notes[0]


def test_columns_can_be_named_or_numbered(tmp_path: Path) -> None:
    file = tmp_path / "a.tsv"
    file.write_text(f"And Bert?\t29\t{TEXT}\tmilk\n")
    assert read(file, columns=[1, 3, 4, 2]).questions[0].answers == [AnswerSpan(29, "milk")]


def test_columns_that_cannot_be_guessed_are_asked_for(tmp_path: Path) -> None:
    file = table(tmp_path / "a.csv", ["question", "story", "answer"], ["And Bert?", TEXT, "milk"])
    with pytest.raises(DataError, match="no column looks like the context, among question, story, answer"):
        read(file)


def test_a_pair_of_places_counts_more_than_the_text(tmp_path: Path) -> None:
    """SubjQA's texts are written apart and leave out words; its contexts end in the mark for no answer."""
    names = ["item_id", "question", "review", "human_ans_spans", "human_ans_indices"]
    review = TEXT + " ANSWERNOTFOUND"
    place = str((review.index("ANSWER"), len(review)))
    file = table(
        tmp_path / "a.csv",
        names,
        ["1", "And Bert?", review, "Bert drinks milk , sleeps", str((17, 51))],
        ["1", "And Carl?", review, "ANSWERNOTFOUND", place],
    )
    first, second = read(file).questions
    assert first.answers == [AnswerSpan(17, TEXT[17:])]
    assert second.answers == [None]
    assert first.article == "1"
    assert "NOTFOUND" not in second.context


def test_a_pair_of_places_that_holds_something_else_is_named(tmp_path: Path) -> None:
    names = ["question", "context", "answer", "start"]
    file = table(tmp_path / "a.csv", names, ["And Bert?", TEXT, "milk", "(0, 4)"])
    with pytest.raises(DataError, match=r"a.csv, line 2: the answer 'milk' is not between 0 and 4, where 'Anna'"):
        read(file)


def test_rows_that_ask_the_same_are_one_question(tmp_path: Path) -> None:
    rows = [["And Bert?", TEXT, "milk"], ["And Bert?", TEXT, "drinks milk"], ["And Anna?", TEXT, ""]]
    held = read(table(tmp_path / "a.csv", ["question", "context", "answer"], *rows))
    assert [question.rights for question in held.questions] == [["milk", "drinks milk"], [""]]
    assert "3 rows ask 2 questions" in held.notes[-1]


def test_that_one_annotator_found_nothing_counts_only_where_all_did(tmp_path: Path) -> None:
    rows = [["And Bert?", TEXT, answer] for answer in ("", "", "milk", "drinks milk", "milk")]
    held = read(table(tmp_path / "a.csv", ["question", "context", "answer"], *rows, ["And Anna?", TEXT, ""]))
    one, other = held.questions
    assert one.rights == ["milk", "drinks milk"]
    assert one.common == AnswerSpan(29, "milk")
    assert (other.rights, other.common, other.found) == ([""], None, [None])
    assert held.unanswerable == 1


def test_questions_that_were_taught_already_are_told() -> None:
    def some(*pairs: tuple[str, str]) -> Questions:
        asked = [Question("1", question, context, [None]) for question, context in pairs]
        return Questions(source="a file", questions=asked)

    train = some(("Who?", "text 1"), ("When?", "text 2"))
    assert told_shared(train, {"valid": some(("Who?", "text 3"))}) == []
    assert told_shared(train, {"test": some(("Who?", "text 2"), ("Who?", "text 3"))}) == [
        "note: the texts of 1 of the 2 test questions stand in data.train, too"
    ]
    (note,) = told_shared(train, {"valid": some(("Who?", "text 1"), ("Who?", "text 3"))})
    assert "1 of the 2 valid questions stand in data.train, too" in note
    assert "leave out data.valid" in note


ROW = {"id": "7", "title": "Drinks", "question": "And Bert?", "context": TEXT}


def _jsonl(path: Path, row: dict[str, Any]) -> Path:
    path = path.with_suffix(".jsonl")
    path.write_text(json.dumps(row) + "\n")
    return path


def _one_object(path: Path, row: dict[str, Any]) -> Path:
    path = path.with_suffix(".json")
    path.write_text(json.dumps(row))
    return path


def _parquet(path: Path, row: dict[str, Any]) -> Path:
    import pyarrow
    import pyarrow.parquet

    path = path.with_suffix(".parquet")
    pyarrow.parquet.write_table(pyarrow.Table.from_pylist([row]), path)
    return path


def _csv(path: Path, row: dict[str, Any]) -> Path:
    return table(path.with_suffix(".csv"), list(row), [str(value) for value in row.values()])


@pytest.mark.parametrize("write", [_jsonl, _one_object, _parquet, _csv])
def test_answers_as_the_hub_keeps_them(tmp_path: Path, write: Callable[..., Path]) -> None:
    two = {**ROW, "answers": {"text": ["milk", "drinks milk"], "answer_start": [29, 22]}}
    (question,) = read(write(tmp_path / "a", two)).questions
    assert question.answers == [AnswerSpan(29, "milk"), AnswerSpan(22, "drinks milk")]
    assert question.article == "Drinks"


def test_no_answer_as_the_hub_keeps_it(tmp_path: Path) -> None:
    (question,) = read(_jsonl(tmp_path / "a", {**ROW, "answers": {"text": [], "answer_start": []}})).questions
    assert question.answers == [None]


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"answers": {"text": ["milk"], "answer_start": [29, 22]}}, "1 answers, but 2 places"),
        ({"answers": {"answer_start": [29]}}, "the answer has no 'text'"),
        ({"answers": "cocoa"}, "line 1: the answer 'cocoa' does not stand in the context"),
        ({"question": ""}, "line 1: the question is empty"),
        ({"context": None}, "line 1: the context is NoneType, not text"),
        ({"answers": {"text": ["milk"], "answer_start": ["x"]}}, "begins at 'x', which is no number"),
        ({"answers": {"text": ["milk"], "answer_start": [-3]}}, "is not at character -3"),
    ],
)
def test_what_is_wrong_with_a_row(tmp_path: Path, change: dict[str, Any], words: str) -> None:
    with pytest.raises(DataError, match=words):
        read(_jsonl(tmp_path / "a", {**ROW, "answers": "milk", **change}))


def test_an_answer_loses_the_white_space_around_it(tmp_path: Path) -> None:
    (question,) = read(squad(tmp_path / "a.json", asked((" milk", 28)))).questions
    assert question.answers == [AnswerSpan(29, "milk")]


# --- parts ------------------------------------------------------------------------------------------


def many(articles: int, named: bool = True) -> Questions:
    questions = [
        Question(f"{a}.{n}", "?", f"text {a} {n // 2}", [None], f"article {a}" if named else None)
        for a in range(articles)
        for n in range(4)
    ]
    return Questions(source="file", questions=questions)


def test_no_article_is_in_two_parts() -> None:
    parts, told = split_questions(many(20), "article", 0.2, 0.1)
    articles = [{question.article for question in parts[name].questions} for name in ("train", "valid", "test")]
    assert [len(some) for some in articles] == [14, 4, 2]
    assert len(set.union(*articles)) == 20
    assert told == ("file is split by article: 56 train (14 articles), 16 valid (4 articles), 8 test (2 articles)")


def test_without_articles_no_context_is_in_two_parts() -> None:
    parts, _ = split_questions(many(6, named=False), "auto", 0.3)
    contexts = [{question.context for question in part.questions} for part in parts.values()]
    assert sorted(parts) == ["train", "valid"]
    assert not set.intersection(*contexts)


def test_the_parts_depend_on_the_data_alone() -> None:
    every = many(20)
    once, again = (split_questions(every, "article", 0.2, 0.1)[0] for _ in range(2))
    turned = Questions(source="file", questions=every.questions[::-1])
    other = split_questions(turned, "article", 0.2, 0.1)[0]
    assert once == again
    assert {q.id for q in once["valid"].questions} == {q.id for q in other["valid"].questions}


def test_too_few_texts_to_hold_any_out() -> None:
    with pytest.raises(DataError, match=r"file has 1 contexts, too few to hold out valid; give data.valid"):
        split_questions(Questions(source="file", questions=many(1, named=False).questions[:2]), "auto", 0.1)


def test_a_split_by_article_needs_articles() -> None:
    with pytest.raises(DataError, match=r"does not say which article each text is from; set data.article"):
        split_questions(many(3, named=False), "article", 0.1)
