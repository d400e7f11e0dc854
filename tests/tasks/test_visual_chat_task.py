"""Dialogues about pictures: what is learned, in which stages, and asked; parts that begin with trained models."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch

import legato
from legato.data.image.image_processor import ImageProcessor
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.errors import ConfigError, DataError, LegatoError
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.clip import CLIPConfig, CLIPModel
from legato.models.llava import LlavaModel
from legato.registry import TASKS
from legato.runs.config import check, settings_for
from legato.runs.train import plan_of
from legato.tasks.visual_chat.picture_talk import rows_within
from tiny_pictures import SIDE, pixels, talking_model, write_jsonl, write_picture
from tiny_published import CHATML, change, gpt2_folder
from tiny_runs import weights_digest

VISION = {"image": SIDE, "patch": 4, "width": 16, "layers": 2, "heads": 2}
TEXT = {"width": 32, "layers": 2, "heads": 2, "length": 64}
TINY: dict[str, Any] = {
    **{f"model.vision.{key}": value for key, value in VISION.items()},
    **{f"model.text.{key}": value for key, value in TEXT.items()},
    "tokenizer": "word",
    "tokenizer.min_count": 1,
    "train.steps": 6,
    "train.batch_rows": 4,
    "train.validate_every": 3,
    "train.samples": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}
PATCHES = (SIDE // 4) ** 2
QUESTION = "what colour is it ?"


def dialogues(folder: Path, count: int = 12) -> str:
    """A table of pictures with a dialogue each, and the pictures beside it."""
    rows = []
    for number in range(count):
        colour = ("red", "blue")[number % 2]
        write_picture(folder / f"{number}.png", colour, number)
        said = [("user", QUESTION), ("assistant", f"it is {colour}"), ("user", "sure ?"), ("assistant", "yes")]
        messages = [{"role": role, "content": content} for role, content in said]
        rows.append({"image": f"{number}.png", "messages": messages})
    return write_jsonl(folder / "dialogues.jsonl", rows)


def settings(table: str, **changes: Any) -> dict[str, Any]:
    given = {"data.train": table, "data.valid": table}
    return {**TINY, **given, **{key.replace("__", "."): value for key, value in changes.items()}}


def going_on(table: str, **changes: Any) -> dict[str, Any]:
    """The same for a model that is there already."""
    given = settings(table, **changes)
    return {key: value for key, value in given.items() if not key.startswith(("model.", "tokenizer"))}


def prepared(given: dict[str, Any]) -> Any:
    config = check(settings_for("visual-chat", given))
    return TASKS.get("visual-chat").prepare(plan_of(config, torch.device("cpu")), lambda text: None)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model that knows red from blue, `run`, and its table."""
    folder = tmp_path_factory.mktemp("dialogues")
    learned = {"train.steps": 80, "train.lr": 0.005, "train.validate_every": 40}
    legato.train("visual-chat", settings(dialogues(folder), **learned), out=folder / "run", quiet=True)
    return folder


def test_it_learns_to_answer_about_the_picture(home: Path) -> None:
    held = legato.load(home / "run")
    for colour in ("red", "blue"):
        assert held.chat(QUESTION, image=pixels(colour, 77)).strip() == f"it is {colour}"
        asked = [("user", QUESTION), ("assistant", f"it is {colour}"), ("user", "sure ?")]
        messages = [{"role": role, "content": content} for role, content in asked]
        assert held.chat(messages, image=home / "0.png", search="beam", beams=2).strip() == "yes"
    scores = held.evaluate(test=str(home / "dialogues.jsonl"))
    assert scores["loss"] < 0.1
    assert scores["tokens"] == 12 * (3 + 1 + 1 + 1)  # the words of two answers, and the end of each


def test_only_answers_are_learned_behind_a_token_for_each_patch(home: Path) -> None:
    job = prepared(settings(str(home / "dialogues.jsonl")))
    row, tokenizer, token = job.rows["train"][3], job.tokenizer, job.talk.token
    assert tokenizer.token(token) == "<image>"
    assert row.ids.count(token) == PATCHES
    first = row.ids.index(token)
    assert row.ids[first : first + PATCHES] == [token] * PATCHES
    assert row.picture == 3
    learned = tokenizer.decode([target for target in row.targets if target not in tokenizer.special_ids])
    assert learned.split() == ["it", "is", "blue", "yes"]
    places = dict(zip(row.positions, row.targets, strict=True))
    assert all(row.ids[place + 1] == target for place, target in places.items() if place + 1 < len(row.ids))
    batch = job.batches.at(0)
    assert batch.images.values.shape == (4, SIDE, SIDE, 3)
    assert batch.image_rows.tolist() == [0, 1, 2, 3]


@pytest.mark.slow
@pytest.mark.parametrize("frozen", [("vision", "text"), ("vision",)])
def test_a_stage_trains_what_is_not_frozen(home: Path, tmp_path: Path, frozen: tuple[str, ...]) -> None:
    given = going_on(str(home / "dialogues.jsonl"), **{"from": str(home / "run"), "train.frozen": list(frozen)})
    legato.train("visual-chat", {**given, "train.lr": 0.01}, out=tmp_path / "run", quiet=True)
    before, after = (load_model(folder / "run" / "best").module.state_dict() for folder in (home, tmp_path))
    moved = {name.partition(".")[0] for name in before if not torch.equal(before[name], after[name])}
    assert moved == {"vision", "text", "projector"} - set(frozen)


@pytest.mark.rare  # tests/slow/test_kills.py does this with every task
def test_a_stage_that_is_interrupted_ends_with_the_same_weights(home: Path, tmp_path: Path) -> None:
    more = {"from": str(home / "run"), "train.frozen": "vision", "train.schedule": "constant", "train.samples": 0}
    given = going_on(str(home / "dialogues.jsonl"), **more)
    legato.train("visual-chat", given, out=tmp_path / "whole", quiet=True)
    legato.train("visual-chat", {**given, "train.steps": 3}, out=tmp_path / "part", quiet=True)
    legato.train(None, {"train.steps": 6}, resume=tmp_path / "part", quiet=True)
    assert weights_digest(tmp_path / "whole") == weights_digest(tmp_path / "part")


@pytest.mark.slow
def test_lora_is_for_the_language_model_and_the_projector_learns_beside_it(home: Path, tmp_path: Path) -> None:
    more = {"from": str(home / "run"), "adapt": "lora", "adapt.rank": 4, "train.lr": 0.05}
    legato.train("visual-chat", going_on(str(home / "dialogues.jsonl"), **more), out=tmp_path / "run", quiet=True)
    before, after = (load_model(folder / "run" / "best").module.state_dict() for folder in (home, tmp_path))
    moved = {name for name in before if not torch.equal(before[name], after[name])}
    joint = {name for name in before if name.startswith("projector.")}
    assert moved == joint | {f"text.stack.layers.{number}.attention.qkv.weight" for number in (0, 1)}


def test_a_part_that_is_not_there_cannot_be_frozen(home: Path, tmp_path: Path) -> None:
    table = str(home / "dialogues.jsonl")
    with pytest.raises(
        ConfigError, match=r"train\.frozen=encoder: model=llava has no such part; it has vision and text"
    ):
        legato.train("visual-chat", settings(table, train__frozen="encoder"), out=tmp_path / "run", quiet=True)


# --- parts that begin with trained models ----------------------------------------------------------


def clip_folder(folder: Path) -> CLIPModel:
    """A CLIP, whose vision tower is a part of it."""
    folder.mkdir()
    tokenizer = Tokenizer.train(TokenizerConfig(name="word"), ["a red dog\n"])
    towers = {"layers": 2, "width": 16, "heads": 2}
    config = {"vision": VISION, "text": {**towers, "length": 8, "eos": tokenizer.eos_id}, "projection": 8}
    torch.manual_seed(5)
    model = CLIPModel(CLIPConfig.model_validate(config), Sizes(tokenizer.size))
    processor = ImageProcessor((SIDE, SIDE), mean=(0.1, 0.2, 0.3))
    processors = Processors(tokenizer, others={"image": processor})
    save_model(folder, model, processors, task="image-text", about={}, card="")
    return model


@pytest.mark.slow
def test_parts_begin_with_trained_models_and_the_tokenizer_is_the_text_models(home: Path, tmp_path: Path) -> None:
    clip = clip_folder(tmp_path / "clip")
    gpt2_folder(tmp_path / "gpt2", length=256, template=CHATML)
    begun = {"from.vision": str(tmp_path / "clip"), "from.text": str(tmp_path / "gpt2")}
    more = {**begun, "train.frozen": ["vision", "text"], "train.samples": 0}
    given = going_on(str(home / "dialogues.jsonl"), **more)
    given = {**given, "model.image_token": 3}  # <s>, which no dialogue has
    legato.train("visual-chat", given, out=tmp_path / "run", quiet=True)
    held = legato.load(tmp_path / "run")
    module, text = held.module, load_model(tmp_path / "gpt2")
    for part, expected in (("vision", clip.vision), ("text", text.module)):
        found = module.parts[part].state_dict()
        assert all(torch.equal(tensor, found[name]) for name, tensor in expected.state_dict().items())
    assert held.tokenizer.fingerprint() == text.tokenizer.fingerprint()
    assert held.loaded.processors.others["image"] == ImageProcessor((SIDE, SIDE), mean=(0.1, 0.2, 0.3))
    assert 2 in held.loaded.ends  # <|im_end|>
    assert "<|im_start|>user\n<s>" in held.tokenizer.full_library.decode(
        held.chat_ids(QUESTION, about_picture=True), skip_special_tokens=False
    )
    assert isinstance(held.chat(QUESTION, image=home / "0.png", max_tokens=3), str)
    with pytest.raises(ConfigError, match=r"model\.image_token=299, is no special token of the tokenizer"):
        prepared({**given, "model.image_token": 299})
    with pytest.raises(ConfigError, match=r"model\.image_token=0 is the EOS token"):
        prepared({**given, "model.image_token": 0})


# --- what is refused -------------------------------------------------------------------------------


def refused(folder: Path, row: dict[str, Any], **changes: Any) -> str:
    write_picture(folder / "0.png")
    table = write_jsonl(folder / "bad.jsonl", [row, row])
    with pytest.raises((DataError, ConfigError)) as caught:
        prepared(settings(table, **changes))
    assert "\n" not in str(caught.value)
    return str(caught.value)


def test_dialogues_that_will_not_do_are_refused(tmp_path: Path) -> None:
    asked, answered = {"role": "user", "content": "what ?"}, {"role": "assistant", "content": "red"}
    assert "line 1: nobody answers" in refused(tmp_path, {"image": "0.png", "messages": [asked]})
    assert "line 1: no user speaks" in refused(tmp_path, {"image": "0.png", "messages": [answered]})
    held = {"role": "user", "content": "see <image>"}
    message = refused(tmp_path, {"image": "0.png", "messages": [held, answered]})
    assert "line 1: the text holds <image>, which stands for the picture" in message
    assert "1.png" in refused(tmp_path, {"image": "1.png", "messages": [asked, answered]})
    assert "no column looks like the picture" in refused(tmp_path, {"messages": [asked, answered]})
    for none in ("", None):
        message = refused(tmp_path, {"image": none, "messages": [asked, answered]})
        assert "line 1: there is no picture; give a file's name, or remove the row" in message
    assert "'question' is empty" in refused(tmp_path, {"image": "0.png", "question": " ", "answer": "red"})
    row = {"image": "0.png", "messages": [asked, answered]}
    message = refused(tmp_path, row, model__text__length=4)
    assert "a picture has 4 image tokens, and a dialogue at most 4 tokens" in message


def test_a_dialogue_whose_picture_lies_beyond_the_window_is_left_out(tmp_path: Path) -> None:
    table = Path(dialogues(tmp_path, 4))
    first = {"role": "assistant", "content": "red " * 60}
    rows = [json.loads(line) for line in table.read_text().splitlines()]
    rows[1]["messages"] = [first, *rows[1]["messages"]]
    write_jsonl(table, rows)
    plan = plan_of(check(settings_for("visual-chat", settings(str(table)))), torch.device("cpu"))
    said: list[str] = []
    job = TASKS.get("visual-chat").prepare(plan, said.append)
    assert len(job.rows["train"]) == 3
    assert any("1 are left out, their pictures beyond the window" in line for line in said)
    write_jsonl(table, [rows[1]])
    with pytest.raises(DataError, match="leaves out the image token"):
        TASKS.get("visual-chat").prepare(plan, said.append)


def test_a_template_that_does_not_write_what_is_said_is_no_template_for_pictures(home: Path) -> None:
    model = legato.load(home / "run")
    assert model.loaded.chat is not None
    model.loaded.chat = replace(model.loaded.chat, source="{% for m in messages %}{{ m['role'] }}{% endfor %}")
    with pytest.raises(DataError, match="leaves out the image token"):
        model.chat(QUESTION, image=pixels("red", 1))


def test_fewer_dialogues_are_answered_side_by_side_where_each_takes_much_memory(
    home: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = legato.load(home / "run").module
    assert isinstance(model, LlavaModel)
    assert rows_within(model, 10) > 1000
    monkeypatch.setattr("legato.tasks.visual_chat.picture_talk.KEPT", 3 * 10 * 2 * 2 * 32 * 4)
    assert rows_within(model, 10) == 3
    assert rows_within(model, 1000) == 1


def test_a_model_without_eyes_is_not_asked_about_pictures(home: Path, tmp_path: Path) -> None:
    held = legato.load(gpt2_folder(tmp_path / "gpt2", template=CHATML))
    with pytest.raises(LegatoError, match="reads no pictures among words"):
        held.chat(QUESTION, image=home / "0.png")
    with pytest.raises(LegatoError, match="is no picture"):
        legato.load(home / "run").chat(QUESTION, image=home / "dialogues.jsonl")
    with pytest.raises(LegatoError, match="forgets its picture; leave out --slide"):
        legato.load(home / "run").chat(QUESTION, image=home / "0.png", slide=True)
    seeing = legato.load(home / "run")
    ids = seeing.chat_ids(QUESTION, about_picture=True)
    with pytest.raises(LegatoError, match="row 1 has 4 image tokens and no picture; give it one"):
        seeing.generate(ids)
    photos = [home / "0.png", home / "1.png"]
    with pytest.raises(LegatoError, match="there are 2 pictures for 1 prompts; give one for each"):
        seeing.hypotheses([ids], SearchOptions(), images=photos)
    with pytest.raises(LegatoError, match="row 1 has 0 image tokens for 1 pictures of 4 patches each"):
        seeing.hypotheses([seeing.chat_ids(QUESTION)], SearchOptions(), images=photos[:1])
    with pytest.raises(LegatoError, match="row 1 has 8 image tokens for 1 pictures of 4 patches each"):
        seeing.hypotheses([ids + [seeing.module.image_token] * PATCHES], SearchOptions(), images=photos[:1])


def test_a_processor_that_does_not_fit_the_tower_is_refused(home: Path, tmp_path: Path) -> None:
    folder = talking_model(tmp_path / "llava")
    assert isinstance(legato.load(folder).chat("a red dog", image=home / "0.png", max_tokens=2), str)
    size = {"height": SIDE + 2, "width": SIDE + 2}
    change(folder / "preprocessor_config.json", size=size, crop_size=size)
    with pytest.raises(LegatoError, match="its image processor is not the one that the model was trained with"):
        legato.load(folder)
    config = json.loads((folder / "config.json").read_text())
    del config["legato"]  # as of a folder that somebody publishes
    (folder / "config.json").write_text(json.dumps(config))
    said = r"llava: preprocessor_config\.json does not fit its model: a picture of 10 × 10 pixels is no patches of 4"
    with pytest.raises(LegatoError, match=said):
        legato.load(folder).chat("a red dog", image=home / "0.png")
    with pytest.raises(LegatoError, match=said):
        legato.load(folder).evaluate(test=str(home / "dialogues.jsonl"))
