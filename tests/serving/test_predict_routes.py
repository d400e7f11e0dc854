"""`/v1/predict`: of every task it answers what `Model.predictions` does, and OpenAPI says how to ask."""

from __future__ import annotations

import io
import json
import struct
import types
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args, get_origin

import numpy as np
import pytest
from fastapi.testclient import TestClient
from PIL import Image

import legato
import tiny_sounds
from legato.model import Model
from legato.registry import TASKS
from legato.serving.media import MOST_CLIP_PIXELS, MOST_PIXELS, picture_of, sound_of
from legato.serving.models import Served
from legato.serving.predict_types import MOST_INPUTS, OF_FILES
from serving.api_client import api_of, coded, data_url, png, refusal_of
from tiny_tasks import all_tasks, tiny

PICTURE, SOUND = png(), tiny_sounds.encoded(tiny_sounds.samples_of("low high", 5))
ASKED = {"image": data_url(PICTURE), "question": "what colour is it?"}
# What is sent for each task, what that is for `Model.predictions`, and options; other tasks read the text below.
TEXT = ("the dog runs", "the dog runs")
SENT: dict[str, Any] = {
    "qa": (["who runs?", "the dog runs"], "who runs?\tthe dog runs", {"nbest": 2}),
    "embedding": (["the dog", "the cat"], "the dog\tthe cat", {}),
    "mlm": ("the <mask> runs", "the <mask> runs", {"nbest": 3}),
    "word2vec": ("the", "the", {"nbest": 2}),
    "translation": (*TEXT, {"beams": 2, "nbest": 2, "max_tokens": 5, "alignments": True}),
    "parsing": (*TEXT, {"beams": 2}),
    "classification": (*TEXT, {"nbest": 2}),
    "chat": (*TEXT, {"max_tokens": 4}),
    "image-classification": (data_url(PICTURE), PICTURE, {"nbest": 2}),
    "captioning": (coded(PICTURE), PICTURE, {"max_tokens": 5}),
    "detection": (data_url(PICTURE), PICTURE, {"threshold": 0.0, "nbest": 3}),
    "image-text": (data_url(PICTURE), PICTURE, {"labels": ["red", "blue"], "nbest": 2}),
    "vqa": (ASKED, (PICTURE, "what colour is it?"), {"nbest": 2}),
    "speech": (data_url(SOUND, "audio/wav"), SOUND, {"timestamps": True}),
    "audio-classification": (coded(SOUND), SOUND, {"nbest": 2}),
}
MEMBERS = {"colours": SENT["vqa"], "boxes": SENT["detection"], "films": SENT["classification"]}
GENERATE = ("lm", "visual-chat")


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Model]:
    home, made = tmp_path_factory.mktemp("tasks"), {}
    for task in all_tasks():
        legato.train(task, tiny(task, home / task, train__steps=1), out=home / task / "run", quiet=True)
        made[task] = legato.load(home / task / "run", "cpu")
    return made


@pytest.fixture(scope="module")
def client(models: dict[str, Model]) -> Iterator[TestClient]:
    served = [Served(f"my-{task}", model, most_tokens=40) for task, model in models.items()]
    yield api_of(*served)
    for each in served:
        each.close(drain=False)


@pytest.fixture(scope="module")
def schemas(client: TestClient) -> dict[str, Any]:
    found: dict[str, Any] = client.get("/openapi.json").json()["components"]["schemas"]
    return found


def same(left: Any, right: Any) -> bool:
    """Equal, numbers but for rounding."""
    if isinstance(left, float):
        return bool(left == pytest.approx(right, rel=1e-4, abs=1e-5))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(same(left[key], right[key]) for key in left)
    if isinstance(left, list):
        return len(left) == len(right) and all(map(same, left, right))
    return bool(left == right)


def predicted(client: TestClient, **body: Any) -> list[dict[str, Any]]:
    answer = client.post("/v1/predict", json=body)
    assert answer.status_code == 200, answer.text
    found: list[dict[str, Any]] = answer.json()["predictions"]
    return found


@pytest.mark.parametrize("task", [task for task in all_tasks() if task not in (*GENERATE, "unit")])
def test_every_task_answers_as_its_model_does(
    task: str, client: TestClient, models: dict[str, Model], schemas: dict[str, Any]
) -> None:
    sent, given, options = SENT.get(task, (*TEXT, {}))
    found = predicted(client, model=f"my-{task}", inputs=[sent, sent], **options)
    expected = [each.as_json() for each in models[task].predictions([given, given], **options)]
    assert same(found, json.loads(json.dumps(expected)))
    assert all(each["answers"] for each in found)
    known = schemas["PredictedAnswer"]["properties"]
    for answer in found[0]["answers"]:
        assert set(answer) <= set(known), "an answer says what OpenAPI does not"


def test_a_model_of_several_tasks_is_asked_for_each(client: TestClient, models: dict[str, Model]) -> None:
    for name, (sent, given, options) in MEMBERS.items():
        found = predicted(client, model="my-unit", task=name, inputs=[sent], **options)
        expected = [each.as_json() for each in models["unit"].for_task(name).predictions([given], **options)]
        assert same(found, json.loads(json.dumps(expected)))
    line = refusal_of(client.post("/v1/predict", json={"model": "my-unit", "inputs": ["x"]}), 400)
    assert "say which" in line
    line = refusal_of(client.post("/v1/predict", json={"model": "my-unit", "task": "flms", "inputs": ["x"]}), 400)
    assert "did you mean 'films'?" in line


@pytest.mark.parametrize(("task", "route"), [("lm", "/v1/completions"), ("visual-chat", "/v1/chat/completions")])
def test_a_model_that_generates_has_another_route(task: str, route: str, client: TestClient) -> None:
    line = refusal_of(client.post("/v1/predict", json={"model": f"my-{task}", "inputs": ["x"]}), 400)
    assert line.endswith(f"use {route}")


def test_every_task_is_described(schemas: dict[str, Any]) -> None:
    choices = {each["$ref"].rpartition("/")[2] for each in schemas["PredictBody"]["oneOf"]}
    for task in (task for task in all_tasks() if task not in (*GENERATE, "unit")):
        name = "".join(part.capitalize() for part in task.split("-")) + "Request"
        assert name in choices
        options = set(TASKS.get(task).Options.model_fields) - set(OF_FILES)
        assert set(schemas[name]["properties"]) == {"model", "inputs", *options}
        assert schemas[name]["properties"]["model"]["const"] == f"my-{task}"
        assert schemas[name]["properties"]["inputs"]["minItems"] == 1
    assert {"MyUnitColoursRequest", "MyUnitBoxesRequest", "MyUnitFilmsRequest"} <= choices
    assert schemas["PictureQuestion"]["required"] == ["image", "question"]
    assert schemas["Predictions"]["properties"]["predictions"]["items"]


def test_every_option_that_is_a_text_is_known_to_name_no_file() -> None:
    harmless = {"to", "language", "context", "template", "labels"}
    for task in all_tasks():
        options = TASKS.get(task).Options
        fields = {} if options is None else options.model_fields
        texts = {name for name, field in fields.items() if str in _types(field.annotation)}
        assert texts <= {*harmless, *OF_FILES}, f"{task}: say whether these name files of the server"


def _types(annotation: Any) -> set[Any]:
    if get_origin(annotation) is None and not isinstance(annotation, types.UnionType):
        return {annotation}
    return {inner for part in get_args(annotation) for inner in _types(part)}


BAD: list[tuple[dict[str, Any], str]] = [
    ({"model": "my-tagging", "inputs": []}, "at least 1 item"),
    ({"model": "my-tagging", "inputs": ["x"] * (MOST_INPUTS + 1)}, f"at most {MOST_INPUTS} items"),
    ({"model": "my-tagging", "inputs": "x"}, "inputs: Input should be a valid list"),
    ({"model": "my-tagging", "inputs": [3]}, "inputs.0"),
    ({"model": "my-tagging"}, "inputs: Field required"),
    ({"model": "my-classification", "inputs": ["x", None]}, "inputs.1"),
    ({"model": "my-classification", "inputs": [["a", "b", "c"]]}, "inputs.0"),
    ({"model": "my-classification", "inputs": ["x"], "nbset": 2}, "did you mean 'nbest'?"),
    ({"model": "my-classification", "inputs": ["x"], "nbest": 0}, "nbest: "),
    ({"model": "my-classification", "inputs": ["x"], "nbest": 2**40}, "nbest"),
    ({"model": "my-classification", "inputs": ["x"], "nbest": "many"}, "nbest: "),
    ({"model": "my-classification", "inputs": ["x"], "task": "films"}, "no option 'task'"),
    ({"model": "my-classification", "inputs": ["\ud800"]}, "half a surrogate pair"),
    ({"model": "my-translation", "inputs": ["x"], "max_tokens": 41}, "40 at most"),
    ({"model": "my-translation", "inputs": ["x"], "beams": 65}, "64 at most"),
    ({"model": "my-translation", "inputs": ["x"], "nbest": 65}, "64 at most"),
    ({"model": "my-embedding", "inputs": ["x"], "search": "/etc/passwd"}, "'search' names files of the server"),
    ({"model": "my-image-text", "inputs": [coded(PICTURE)], "search": "/"}, "'search' names files of the server"),
    ({"model": "my-speech", "inputs": [coded(SOUND)], "lm": "/"}, "'lm' names files of the server"),
    ({"model": "my-captioning", "inputs": ["http://127.0.0.1/x.png"]}, "nothing is fetched"),
    ({"model": "my-captioning", "inputs": ["file:///etc/passwd"]}, "nothing is fetched"),
    ({"model": "my-captioning", "inputs": ["//host/x.png"]}, "nothing is fetched"),
    ({"model": "my-captioning", "inputs": ["/etc/passwd"]}, "no base64"),
    ({"model": "my-captioning", "inputs": ["photo.jpg"]}, "no base64"),
    ({"model": "my-captioning", "inputs": [""]}, "inputs.0"),
    ({"model": "my-captioning", "inputs": ["data:image/png;base64,"]}, "inputs.0 is empty"),
    ({"model": "my-captioning", "inputs": ["data:image/png;base64,@@@"]}, "no base64"),
    ({"model": "my-captioning", "inputs": ["data:image/png,abc"]}, "without base64"),
    ({"model": "my-captioning", "inputs": [coded(b"no picture")]}, "inputs.0 is no picture"),
    ({"model": "my-captioning", "inputs": [coded(SOUND)]}, "inputs.0 is no picture"),
    ({"model": "my-speech", "inputs": [coded(PICTURE)]}, "inputs.0 is no sound"),
    ({"model": "my-vqa", "inputs": ["what?"]}, "inputs.0"),
    ({"model": "my-vqa", "inputs": [{**ASKED, "image": "http://x/y.png"}]}, "inputs.0.image is an address"),
    ({"model": "my-vqa", "inputs": [{**ASKED, "choice": []}]}, "inputs.0.choice"),
    ({"inputs": ["x"]}, "model: name the model to ask; there is my-"),
    ({"model": ["my-vqa"], "inputs": ["x"]}, "model: "),
]


@pytest.mark.parametrize(("body", "line"), BAD, ids=[str(number) for number in range(len(BAD))])
def test_what_does_not_fit_is_refused_in_a_line(client: TestClient, body: dict[str, Any], line: str) -> None:
    headers = {"content-type": "application/json"}
    answer = client.post("/v1/predict", content=json.dumps(body), headers=headers)
    assert line in refusal_of(answer, 400)


def test_a_model_that_is_served_alone_needs_no_name(models: dict[str, Model]) -> None:
    alone = api_of(Served("my-classification", models["classification"]))
    (answer,) = predicted(alone, inputs=["the dog runs"])
    assert answer == predicted(alone, model="my-classification", inputs=["the dog runs"])[0]


def test_models_that_are_not_served_are_not_found(client: TestClient) -> None:
    for name in ("other", "", "../../etc/passwd", "my-qa/../my-qa", "/etc", "my-qa\0"):
        refusal_of(client.post("/v1/predict", json={"model": name, "inputs": ["x"]}), 404)
    line = refusal_of(client.post("/v1/predict", json={"model": "my-qaa", "inputs": ["x"]}), 404)
    assert "did you mean 'my-qa'?" in line


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'"x"', b"\xff\xfe", b"null", b"[" * 100_000, b'{"a":' * 5000])
def test_a_body_that_is_no_request_is_refused(client: TestClient, body: bytes) -> None:
    headers = {"content-type": "application/json"}
    refusal_of(client.post("/v1/predict", content=body, headers=headers), 400)


def test_an_input_that_cannot_be_done_says_why(client: TestClient, models: dict[str, Model]) -> None:
    noise = np.random.default_rng(0).integers(0, 255, (40, 40, 3), dtype=np.uint8)
    file = io.BytesIO()
    Image.fromarray(noise).save(file, "PNG")
    damaged = file.getvalue()[:2000]
    good, bad = predicted(client, model="my-captioning", inputs=[coded(PICTURE), coded(damaged)])
    assert good["answers"]
    assert "damaged" in bad["problem"]
    (found,) = predicted(client, model="my-word2vec", inputs=["nowhere-in-it"])
    assert found == models["word2vec"].predictions(["nowhere-in-it"])[0].as_json()


# ── what would be large once it is unpacked ───────────────────────────────────────────────────────


def resized(picture: bytes, width: int, height: int) -> bytes:
    """A PNG that says that it is of another size."""
    head = struct.pack(">II", width, height) + picture[24:29]
    return picture[:16] + head + struct.pack(">I", zlib.crc32(b"IHDR" + head)) + picture[33:]


def test_a_picture_bomb_is_refused_before_it_is_unpacked(client: TestClient) -> None:
    for width, height in ((30_000, 30_000), (MOST_PIXELS, 2)):
        body = {"model": "my-captioning", "inputs": [coded(resized(PICTURE, width, height))]}
        assert "pixels" in refusal_of(client.post("/v1/predict", json=body), 400)


def test_a_clip_of_too_many_frames_is_refused(tmp_path: Path) -> None:
    frames = [Image.new("L", (1000, 1000), 10 * number) for number in range(4)]
    frames[0].save(tmp_path / "clip.gif", save_all=True, append_images=frames[1:])
    raw = (tmp_path / "clip.gif").read_bytes()
    assert picture_of(coded(raw), "it", clip=True) == raw
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("legato.serving.media.MOST_CLIP_PIXELS", 3_000_000)
        with pytest.raises(legato.LegatoError, match="in its frames"):
            picture_of(coded(raw), "it", clip=True)
    assert MOST_CLIP_PIXELS > MOST_PIXELS


def test_a_sound_that_is_too_long_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    assert sound_of(coded(SOUND), "it") == SOUND
    monkeypatch.setattr("legato.serving.media.MOST_SECONDS", 0)
    with pytest.raises(legato.LegatoError, match="so cut it"):
        sound_of(coded(SOUND), "it")
