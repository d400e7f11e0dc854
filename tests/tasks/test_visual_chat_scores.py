"""What a model writes in place of last answers: many side by side as one by one, and how that is scored."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.config import validate
from legato.data.formats.captions import captioned_scenes
from legato.data.formats.picture_dialogues import read_picture_dialogues, talked_scenes
from legato.data.formats.visual_questions import questioned_scenes
from legato.data.image.scenes import ScenesConfig
from legato.data.sources.files import FileOptions
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.errors import ConfigError, DataError
from legato.evaluation.captioning import caption_scores
from legato.evaluation.visual_chat import by_kind, dialogue_details, dialogue_scores, is_short
from legato.folders.chat_template import ChatTemplate, plain_chat
from legato.models.llava import LlavaConfig, LlavaModel
from legato.registry import TASKS
from legato.runs.config import check, dump, settings_for
from legato.runs.train import plan_of
from legato.tasks.visual_chat import picture_talk
from legato.tasks.visual_chat.picture_talk import choose_image_token, write_answers
from tiny_pictures import SIDE, write_jsonl, write_picture
from tiny_published import CHATML, gpt2_folder

VISION = {"image": SIDE, "patch": 4, "width": 16, "layers": 2, "heads": 2}
TEXT = {"width": 32, "layers": 2, "heads": 2, "length": 32}
SMALL: dict[str, Any] = {
    **{f"model.vision.{key}": value for key, value in VISION.items()},
    **{f"model.text.{key}": value for key, value in TEXT.items()},
    "tokenizer": "word",
    "tokenizer.min_count": 1,
    "train.steps": 2,
    "train.batch_rows": 4,
    "train.validate_every": 1,
    "train.samples": 1,
    "train.tensorboard": "false",
    "data.max_tokens": 6,
    "device": "cpu",
}
DESCRIBE = "describe it"


def row(number: int, question: str, answer: str, references: Sequence[str] | None = None) -> dict[str, Any]:
    return {"image": f"{number}.png", "question": question, "answer": answer, "references": references}


def table(folder: Path, rows: Sequence[dict[str, Any]] = (), name: str = "talk.jsonl") -> str:
    """Six pictures, each with a question and with a description."""
    for number in range(6):
        write_picture(folder / f"{number}.png", ("red", "blue")[number % 2], number)
    made = []
    for number in range(6):
        colour = ("red", "blue")[number % 2]
        said = [f"a {colour} square in the middle", f"all of it is {colour}"]
        made += [row(number, "what colour ?", colour), row(number, DESCRIBE, said[0], said)]
    return write_jsonl(folder / name, rows or made)


def prepared(given: dict[str, Any]) -> Any:
    config = check(settings_for("visual-chat", given))
    return TASKS.get("visual-chat").prepare(plan_of(config, torch.device("cpu")), lambda text: None)


def settings(file: str, **changes: Any) -> dict[str, Any]:
    given = {"data.train": file, "data.valid": file}
    return {**SMALL, **given, **{key.replace("__", "."): value for key, value in changes.items()}}


def strong(model: torch.nn.Module) -> Any:
    """The model with weights large enough to have opinions."""
    torch.manual_seed(1)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
    return model.eval()


@pytest.mark.slow
@pytest.mark.parametrize("options", [{}, {"search": "beam", "beams": 3}], ids=["greedy", "beam"])
def test_answers_written_side_by_side_are_those_written_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any]
) -> None:
    job = prepared(settings(table(tmp_path)))
    model = strong(LlavaModel(validate(LlavaConfig, {"vision": VISION, "text": TEXT}), job.sizes))
    monkeypatch.setattr(picture_talk, "FEW_ROWS", 5)
    search = SearchOptions(max_tokens=8, **options)
    data, pixels = job.dialogues["valid"], job.pixels["valid"]
    prompts = [job.talk.asked(data, number) for number in range(len(data))]
    assert len({len(prompt) for prompt in prompts}) > 1
    assert len(pixels) == 6
    numbers = data.album()[1]
    ends = [job.tokenizer.eos_id]
    together = write_answers(model, job.talk, prompts, numbers, pixels, search, ends)
    alone = [
        write_answers(model, job.talk, [prompt], [number], pixels, search, ends)[0]
        for prompt, number in zip(prompts, numbers, strict=True)
    ]
    assert together == alone
    assert len(set(together)) > 4  # they depend on picture and prompt
    other = write_answers(model, job.talk, prompts, numbers[2:] + numbers[:2], pixels, search, ends)
    assert other != together


def test_a_prompt_that_leaves_no_room_has_no_answer(tmp_path: Path) -> None:
    job = prepared(settings(table(tmp_path)))
    torch.manual_seed(0)
    model = LlavaModel(validate(LlavaConfig, {"vision": VISION, "text": TEXT}), job.sizes).eval()
    prompt, pixels = job.talk.asked(job.dialogues["valid"], 0), job.pixels["valid"]
    longer = [*prompt, *prompt[-1:] * 32]
    found = write_answers(model, job.talk, [longer, [], prompt], [0, 0, 0], pixels, SearchOptions(max_tokens=3), ())
    assert found[:2] == ["", ""]
    assert found[2] != ""


# --- scores ----------------------------------------------------------------------------------------


def test_several_references_or_a_long_one_are_descriptions() -> None:
    assert is_short("red")
    assert is_short("night_stand, lamp, two red books")
    assert is_short("bottle of hand wash liquid")
    assert not is_short("a dog runs on the grass")
    assert by_kind([["red"], ["red", "blue"], ["it is a dog on grass"], ["two cups, a plate"]]) == ([1, 2], [0, 3])
    written, references = ["red", "a dog", "Blue."], [["red"], ["a dog", "the dog"], ["red"]]
    scores = dialogue_scores(written, references)
    assert (scores["accuracy"], scores["descriptions"], scores["questions"]) == (0.5, 1, 2)
    assert scores["bleu_1"] == caption_scores(["a dog"], [["a dog", "the dog"]])["bleu_1"]
    titles = [title for title, _, _ in dialogue_details(written, references, ["a", "b", "c"])]
    assert titles == ["worst captions, 1 of 1", "most frequent confusions, 1 of 1"]
    assert "bleu_4" not in dialogue_scores(["red"], [["red"]])
    assert "accuracy" not in dialogue_scores(["red"], [["red", "all is red"]])


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows red from blue, `run`, and its table."""
    folder = tmp_path_factory.mktemp("scores")
    learned = {"train.steps": 60, "train.lr": 0.01, "train.validate_every": 60, "data.metric": "accuracy"}
    file = table(folder)
    legato.train("visual-chat", settings(file, **learned, data__test=file), out=folder / "run", quiet=True)
    return folder


def test_a_run_ends_with_the_scores_of_what_it_writes(home: Path) -> None:
    found = json.loads((home / "run" / "result.json").read_text())["metrics"]
    for split in ("valid", "test"):
        assert found[f"{split}.accuracy"] == 1.0
        assert found[f"{split}.bleu_4"] > 95
        assert (found[f"{split}.descriptions"], found[f"{split}.questions"]) == (6, 6)
        assert found[f"{split}.search"] == "greedy"
        assert "nrefs:2" in found[f"{split}.bleu_signature"]
    lines = [json.loads(line) for line in (home / "run" / "metrics.jsonl").read_text().splitlines()]
    assert any(line.get("accuracy") == 1.0 for line in lines)


def test_evaluation_scores_what_is_written_by_the_search_that_it_is_told(home: Path) -> None:
    held, file = legato.load(home / "run"), str(home / "talk.jsonl")
    scores = held.evaluate(test=file, beams=2)
    assert scores["search"] == "beam 2"
    assert (scores["accuracy"], scores["questions"], scores["pictures"]) == (1.0, 6, 6)
    assert {title.split(",")[0] for title, _, _ in scores["details"]} == {
        "worst captions",
        "most frequent confusions",
    }
    few = held.evaluate(test=file, scored=2)
    assert few["questions"] + few["descriptions"] == 2
    assert few["loss"] == scores["loss"]
    assert "questions" not in held.evaluate(test=file, scored=0)
    plain = write_jsonl(home / "plain.jsonl", [{"image": "0.png", "question": "what colour ?", "answer": "blue"}])
    scores = held.evaluate(test=plain)
    assert (scores["accuracy"], scores["questions"]) == (0.0, 1)
    assert "bleu_4" not in scores


def test_what_decides_must_be_there(tmp_path: Path) -> None:
    asked = write_jsonl(tmp_path / "asked.jsonl", [row(number, "what ?", "red") for number in range(6)])
    table(tmp_path)
    with pytest.raises(ConfigError, match=r"data\.metric=cider is of dialogues that end with a description, and of"):
        prepared(settings(asked, data__metric="cider"))
    described = write_jsonl(tmp_path / "d.jsonl", [row(n, DESCRIBE, "a", ["a", "b"]) for n in range(6)])
    with pytest.raises(ConfigError, match=r"data\.metric=accuracy is of dialogues that end with a short answer"):
        prepared(settings(described, data__metric="accuracy"))
    with pytest.raises(ConfigError, match=r"data\.scored=0\); use data\.metric=loss"):
        prepared(settings(asked, data__metric="accuracy", data__scored=0))


# --- rows ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "asked",
    [
        {"from": "human", "value": "<image>\nWhat is it?"},
        {"from": "human", "value": "What is it?\n<image>"},
        {"role": "user", "content": [{"type": "image"}, {"type": "text", "text": "What is it?"}]},
        {"role": "user", "content": [{"type": "text", "text": "What is it?"}, {"type": "image"}]},
        {"role": "user", "content": "What is it?"},
    ],
)
def test_dialogues_as_others_publish_them_are_read(asked: dict[str, Any], tmp_path: Path) -> None:
    """The picture's place is marked by a line of its own, or by a piece; here it stands before what is asked."""
    write_picture(tmp_path / "0.png")
    rows = [{"id": "7", "image": "0.png", "conversations": [asked, {"from": "gpt", "value": "A square."}]}]
    (tmp_path / "published.json").write_text(json.dumps(rows, indent=1))
    found = read_picture_dialogues(str(tmp_path / "published.json"))
    assert found.rows == [[{"role": "user", "content": "What is it?"}, {"role": "assistant", "content": "A square."}]]


def test_references_stand_beside_the_answer(tmp_path: Path) -> None:
    found = read_picture_dialogues(table(tmp_path))
    assert found.references[:2] == [["red"], ["a red square in the middle", "all of it is red"]]
    assert found.note == (
        "reading 'image' as picture and 'question' as question and 'answer' as answer and 'references' as references"
    )
    album, numbers = found.album()
    assert len(album) == 6
    assert numbers[:4] == [0, 0, 1, 1]
    told = [{"role": "user", "content": "what ?"}, {"role": "assistant", "content": "red"}]
    rows = [{"image": "0.png", "messages": told, "references": several} for several in (["a", " b "], None, [])]
    assert read_picture_dialogues(table(tmp_path, rows)).references == [["a", "b"], ["red"], ["red"]]
    named = read_picture_dialogues(table(tmp_path, rows), columns=["image", "messages"])
    assert named.references == [["red"]] * 3
    numbered = read_picture_dialogues(table(tmp_path), columns=[1, 2, 3, 4])
    assert numbered.references == found.references
    assert named.sha256 != found.sha256


@pytest.mark.parametrize("value", ["red", [1], [["red"]], {"a": 1}, 3])
def test_references_are_a_list_of_texts(tmp_path: Path, value: Any) -> None:
    rows = [row(0, "what ?", "red"), {**row(1, "what ?", "red"), "references": value}]
    with pytest.raises(DataError, match=r"line 2: .* is no list of references, which are texts"):
        read_picture_dialogues(table(tmp_path, rows))


def test_columns_that_are_no_dialogue_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"no columns look like a dialogue, among image, question; say which"):
        read_picture_dialogues(table(tmp_path, [{"image": "0.png", "question": "what ?"}]))


def test_captions_are_dialogues_that_begin_alike(tmp_path: Path) -> None:
    said = [["a red square", "all red"], ["a blue square"]]
    rows = [{"image": f"{number}.png", "captions": captions} for number, captions in enumerate(said)]
    path = table(tmp_path, rows)
    learned = read_picture_dialogues(path, FileOptions(split="train"), prompt="what is it?", system="be brief")
    assert [[message["content"] for message in row] for row in learned.rows] == [
        ["be brief", "what is it?", text] for text in ("a red square", "all red", "a blue square")
    ]
    assert [message["role"] for message in learned.rows[0]] == ["system", "user", "assistant"]
    assert learned.references == [said[0], said[0], said[1]]
    assert learned.lines == [1, 1, 2]
    scored = read_picture_dialogues(path, FileOptions(split="test"))
    assert [row[-1]["content"] for row in scored.rows] == ["a red square", "a blue square"]
    assert scored.rows[0][0]["content"] == "Describe the picture."
    assert scored.references == said
    assert scored.names == [learned.names[0], learned.names[2]]
    named = read_picture_dialogues(path, FileOptions(split="test"), columns=["image", "captions"])
    assert named.sha256 == scored.sha256


def test_captions_are_known_by_what_stands_there(tmp_path: Path) -> None:
    told = [{"role": "user", "content": "what ?"}, {"role": "assistant", "content": "red"}]
    rows = [{"image": "0.png", "blurb": "a red square", "text": json.dumps(told), "talk": told}]
    path = table(tmp_path, rows)
    for column, asked in (("blurb", "Describe the picture."), ("text", "what ?"), ("talk", "what ?")):
        found = read_picture_dialogues(path, columns=["image", column])
        assert found.rows[0][0]["content"] == asked
    for other in ("question", "answer"):
        rows = [{"image": "0.png", "caption": "a red square", other: "red"}]
        with pytest.raises(DataError, match=r"no columns look like a dialogue"):
            read_picture_dialogues(table(tmp_path, rows))


def test_pictures_held_out_are_asked_once_and_as_in_training(tmp_path: Path) -> None:
    said = {number: [f"a square with the number {number}", "all of it is red", "a red one"] for number in range(6)}
    rows = [{"image": f"{number}.png", "captions": captions} for number, captions in said.items()]
    given = {**SMALL, "data.train": table(tmp_path, rows), "data.valid_share": 0.3, "data.prompt": "what ?"}
    job = prepared(given)
    valid, train = job.dialogues["valid"], job.dialogues["train"]
    assert len(valid.rows) == len(set(valid.names))
    assert len(train.rows) == 3 * len(set(train.names))
    assert not set(train.names) & set(valid.names)
    assert job.about({})["prompt"] == "what ?"


def test_scenes_are_described_and_asked_about() -> None:
    config = ScenesConfig(count=3)
    found = talked_scenes(config, "train", 0, prompt="say what is there")
    captions, questions = captioned_scenes(config, "train", 0), questioned_scenes(config, "train", 0)
    assert [row[0]["content"] for row in found.rows] == ["say what is there"] * 3 + questions.texts
    assert found.references == captions.captions + [[answer] for answer in questions.labels]
    album, numbers = found.album()
    assert [picture.name for picture in album] == captions.names
    assert [album[number].name for number in numbers[3:]] == questions.names
    assert found.sha256 != talked_scenes(config, "train", 0).sha256


@pytest.mark.slow
def test_a_model_of_scenes_is_tested_on_others(tmp_path: Path) -> None:
    few = {"data.train": "toy:scenes", "data.scenes.count": 6, "data.scenes.valid_count": 2, "data.scored": 2}
    settings = {**SMALL, **few, "train.steps": 1, "model.vision.name": "clip-vision", "model.text.length": 64}
    legato.train("visual-chat", settings, out=tmp_path / "run", quiet=True)
    scores = legato.load(tmp_path / "run").evaluate(test="toy:scenes", scored=2, scenes={"test_count": 3})
    assert scores["pictures"] == 3


def test_settings_with_a_trained_writer_are_read_again(tmp_path: Path) -> None:
    begun = {"data.train": "toy:scenes", "from.text": str(gpt2_folder(tmp_path / "gpt2"))}
    config = check(settings_for("visual-chat", begun))
    assert check(dump(config)) == config


# --- the image token -------------------------------------------------------------------------------


def specials(*names: str) -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="word"), ["a red dog\n"]).with_special_tokens(list(names))


def test_the_image_token_is_one_named_so_or_one_that_nobody_needs() -> None:
    def chosen(*names: str, ends: Sequence[str] = (), source: str = "{{ messages }}") -> str:
        tokenizer = specials(*names)
        chat = ChatTemplate(source, "here", plain_chat(tokenizer).tokens)
        numbers = [token for token in tokenizer.special_ids if tokenizer.token_name(token) in ends]
        return tokenizer.token_name(choose_image_token(tokenizer, chat, numbers))

    assert chosen("<image>", "<spare>") == "<image>"
    assert chosen("<a>", "<b>") == "<b>"
    assert chosen("<a>", "<b>", ends=["<b>"]) == "<a>"
    assert chosen("<a>", "<b>", source="<b>{{ messages }}") == "<a>"
    with pytest.raises(ConfigError, match="no special token left to stand for a picture"):
        chosen("<b>", ends=["<b>"])


@pytest.mark.slow
def test_a_model_made_of_two_others_remembers_its_image_token(tmp_path: Path) -> None:
    folder = gpt2_folder(tmp_path / "gpt2", length=64, template=CHATML)
    file = folder / "tokenizer.json"
    file.write_text(file.read_text().replace('"</s>"', '"<free>"'))
    given = {key: value for key, value in settings(table(tmp_path)).items() if "text" not in key}
    given = {key: value for key, value in given.items() if not key.startswith("tokenizer")}
    begun = {**given, "from.text": str(folder), "train.steps": 1, "train.schedule": "constant", "data.scored": 2}
    job = prepared(begun)
    assert job.talk.name == "<free>"
    legato.train("visual-chat", begun, out=tmp_path / "run", quiet=True)
    legato.train(None, {"train.steps": 2}, resume=tmp_path / "run", quiet=True)
    assert legato.load(tmp_path / "run").module.image_token == job.talk.token
