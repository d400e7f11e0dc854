"""Exports: CTranslate2 writes the same tokens, and what cannot leave is refused in one line."""

from __future__ import annotations

import errno
import json
import os
import random
from pathlib import Path
from typing import Any

import pytest
import torch

from legato.cli import main
from legato.config import validate
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer, TokenizerConfig
from legato.decoding import SearchOptions
from legato.folders import exports
from legato.folders.exports import RECORD
from legato.folders.model_folder import load_model, save_model
from legato.models.base import SequenceModel, Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.tasks.translation.translator import Translator
from tiny_pairs import sentences
from tiny_runs import snapshot

MADE = sentences(random.Random(4), 30)
ENGLISH, GERMAN = ([each[language] for each in MADE] for language in ("en", "de"))
JOINT = Tokenizer.train(TokenizerConfig(name="bpe", size=300), [*ENGLISH, *GERMAN]).with_special_tokens(
    ["<pad>", ">>de<<"]
)
READ = Tokenizer.train(TokenizerConfig(name="bpe", size=290), ENGLISH).with_special_tokens(["<pad>"])
WRITTEN = Tokenizer.train(TokenizerConfig(name="word"), GERMAN).with_special_tokens(["<pad>"])
TEXTS = ["A dog runs.", "The cat eats and A man sleeps.", "dog", "🐶 — 狗", "The man runs and The man runs."]
NEVER = -1e4
SMALL: dict[str, Any] = {"name": "transformer", "width": 16, "layers": 2, "heads": 2, "length": 48}


def saved(folder: Path, apart: bool = False, ends: bool = True, **settings: Any) -> Path:
    """A model on random weights that have opinions, in a folder; as a trained one it hardly thinks of marks."""
    torch.manual_seed(0)
    model: type[SequenceModel] = MODELS.get(settings.get("name", "transformer"))
    chosen = settings if "name" in settings else {**SMALL, **settings}
    read, written = (READ, WRITTEN) if apart else (JOINT, JOINT)
    sizes = Sizes(written.size, read.size if apart else None)
    module = model(validate(model.Config, chosen), sizes)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.add_(0.3 * torch.randn_like(parameter))
        if module.is_encoder_decoder:
            bias: Any = module.output.bias  # type: ignore[union-attr]
            bias[sorted(written.special_ids - {written.eos_id})] = NEVER
            bias[written.eos_id] = 1.0 if ends else NEVER
    folder.mkdir(parents=True)
    task = "translation" if module.is_encoder_decoder else "lm"
    save_model(folder, module, Processors(read, written), task=task, about={}, card="# card\n")
    return folder


@pytest.fixture
def export(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> Any:
    """`export("MODEL", "--to", …)` is `legato export MODEL --to …`: its exit code and what it printed."""

    def run(*words: object) -> tuple[Any, str, str]:
        monkeypatch.setattr("sys.argv", ["legato", "export", *map(str, words)])
        capsys.readouterr()
        with pytest.raises(SystemExit) as ended:
            main()
        out, err = capsys.readouterr()
        return ended.value.code or 0, out, err

    return run


def is_one_line(answer: tuple[Any, str, str], *parts: str) -> None:
    code, out, err = answer
    assert (code, out) == (2, "")
    assert len(err.splitlines()) == 1, err
    for part in ("legato: ", *parts):
        assert part in err


# ── the same tokens ───────────────────────────────────────────────────────────────────────────────

VARIANTS: dict[str, dict[str, Any]] = {
    "post-norm": {},
    "pre-norm": {"norm": "pre"},
    "learned positions": {"positions": "learned"},
    "separate vocabularies": {"apart": True},
    "gelu, fewer decoder layers": {"activation": "gelu", "decoder_layers": 1},
    "silu, unscaled embeddings": {"activation": "silu", "scale": False},
    "a readout of its own": {"tied": False},
    "two embeddings": {"shared": False},
}


# In a beam no text ends: when engines stop differs, and is no matter of the weights.
@pytest.mark.parametrize(("beams", "ends"), [(1, True), (4, False)])
@pytest.mark.parametrize("which", VARIANTS)
def test_ctranslate2_writes_the_same_tokens(which: str, beams: int, ends: bool, export: Any, tmp_path: Path) -> None:
    ctranslate2 = pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model", ends=ends, **VARIANTS[which])
    code, out, err = export(folder, "--to", "ctranslate2", "--out", tmp_path / "ct2")
    assert (code, out, err) == (0, f"{tmp_path}/ct2\n", "")
    loaded = load_model(folder)
    translator = Translator(loaded.module, loaded.tokenizer, loaded.target, loaded.start)
    sources = [translator.source_ids(text) for text in TEXTS]
    named = [[loaded.tokenizer.token_name(int(index)) for index in ids] for ids in sources]
    engine = ctranslate2.Translator(str(tmp_path / "ct2"), device="cpu", inter_threads=1, intra_threads=1)
    how = {"beam_size": beams, "min_decoding_length": 0, "max_decoding_length": 12}
    there = [result.hypotheses[0] for result in engine.translate_batch(named, **how)]
    found = translator.translate(sources, SearchOptions(search="beam", beams=beams), most=12)
    assert [[loaded.target.token_name(index) for index in best[0].tokens] for best in found] == there
    assert any(there)


def test_an_export_has_the_tokenizers_that_its_user_needs(export: Any, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model", apart=True)
    assert export(folder, "--to", "ctranslate2", "--out", tmp_path / "ct2")[0] == 0
    assert Tokenizer.load(tmp_path / "ct2").encode("A dog").tolist() == READ.encode("A dog").tolist()
    assert Tokenizer.load(tmp_path / "ct2" / "target").decode([3, 4]) == WRITTEN.decode([3, 4])


def test_an_export_may_be_quantized(export: Any, tmp_path: Path) -> None:
    pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model")
    assert export(folder, "--to", "ctranslate2", "--out", tmp_path / "plain")[0] == 0
    assert export(folder, "--to", "ctranslate2", "--out", tmp_path / "int8", "--quantize", "int8")[0] == 0
    sizes = [(tmp_path / name / "model.bin").stat().st_size for name in ("plain", "int8")]
    assert sizes[1] < 0.7 * sizes[0]


def test_an_export_that_nobody_names_lies_beside_the_model(export: Any, tmp_path: Path) -> None:
    saved(tmp_path / "model")
    assert export(f"{tmp_path}/model/", "--to", "hf")[:2] == (0, f"{tmp_path}/model-hf\n")
    assert (tmp_path / "model-hf" / "config.json").is_file()


def test_an_export_is_json_also_where_its_model_is_only_pythons(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "m")
    file = folder / "generation_config.json"
    file.write_text('{"note": -Infinity, "other": [NaN, 1], "note": "Infinity", "pad_token_id": 1}')
    export(folder, "--to", "hf", "--out", tmp_path / "e")
    found = json.loads((tmp_path / "e" / "generation_config.json").read_text(), parse_constant=pytest.fail)
    assert found == {"note": "Infinity", "other": [None, 1], "pad_token_id": 1}


def test_the_folder_one_is_in_has_a_name_too(export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(saved(tmp_path / "model"))
    assert export(".", "--to", "hf")[0] == 0
    assert (tmp_path / "model-hf" / "config.json").is_file()


def headed(folder: Path, name: str, **head: Any) -> Path:
    """A classifier or tagger, in a folder."""
    kind = MODELS.get(name)
    settings = {"name": name, "width": 16, "layers": 4, "heads": 2, "length": 32}
    if name == "bert":
        settings["pooler"] = True
    shape = validate(HeadSpec, {"kind": "classes", "outputs": 2, **head})
    folder.mkdir(parents=True)
    module = ModelWithHead(kind(validate(kind.Config, settings), Sizes(JOINT.size)), shape)
    save_model(folder, module, Processors(JOINT), task="classification", about={"labels": ["a", "b"]}, card="")
    return folder


POOLER = "head.pool=pooler (where the model has one)"


@pytest.mark.parametrize(
    ("name", "head", "found", "wanted"),
    [
        ("bert", {"pool": "mean"}, "head.pool=mean", POOLER),
        ("bert", {"layers": "mix"}, "head.layers=mix and head.pool=mean", f"head.layers=last and {POOLER}"),
        ("bert", {"kind": "tags", "lstm": 1}, "head.lstm=1", "head.lstm=0"),
        ("bert", {"kind": "tags", "crf": True}, "head.crf=true", "head.crf=false"),
        ("roberta", {"pool": "first"}, "head.pool=first without a dense layer", "head.pool=model"),
        ("gpt2", {"pool": "last"}, "head.pool=last and a bias", "head.pool=model"),
        ("gpt2", {"pool": "max"}, "head.pool=max", "head.pool=model"),
    ],
)
def test_a_head_that_transformers_has_not_is_told(
    name: str, head: dict[str, Any], found: str, wanted: str, export: Any, tmp_path: Path
) -> None:
    folder, out = headed(tmp_path / "model", name, **head), tmp_path / "out"
    code, printed, err = export(folder, "--to", "hf", "--out", out)
    assert (code, printed) == (0, f"{out}\n")
    assert err == (
        f"legato: note: transformers loads the body in {out} alone, without its head: it has none with {found} "
        f"(Legato loads both); what it loads whole is trained with {wanted}\n"
    )
    assert load_model(out).module.shape == load_model(folder).module.shape


@pytest.mark.parametrize(
    ("name", "head"),
    [
        ("bert", {"pool": "pooler"}),
        ("bert", {"kind": "tags", "crf": False, "lstm": 0}),
        ("roberta", {"pool": "auto"}),
        ("distilbert", {"pool": "auto"}),
        ("gpt2", {"pool": "auto"}),
        ("llama", {"kind": "spans"}),
    ],
)
def test_of_a_head_that_it_has_nothing_is_said(name: str, head: dict[str, Any], export: Any, tmp_path: Path) -> None:
    folder = headed(tmp_path / "model", name, **head)
    assert export(folder, "--to", "hf", "--out", tmp_path / "out") == (0, f"{tmp_path}/out\n", "")
    assert "For" in (tmp_path / "out" / "config.json").read_text().partition('"architectures"')[2][:60]


# ── refusals ──────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    ("settings", "part"),
    [
        ({"positions": "rotary"}, "no positions=rotary"),
        ({"activation": "swiglu"}, "no activation=swiglu"),
        ({"window": 5}, "no window=5"),
        (
            {"name": "seq2seq", "width": 8, "layers": 1},
            "CTranslate2 knows Transformers",
        ),
        ({"name": "lstm", "width": 8, "layers": 1}, "CTranslate2 knows Transformers"),
    ],
)
def test_what_ctranslate2_lacks_is_named(settings: dict[str, Any], part: str, export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", **settings)
    is_one_line(export(folder, "--to", "ctranslate2", "--out", tmp_path / "out"), part, str(folder))
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["model"]


@pytest.mark.parametrize("name", ["seq2seq", "lstm"])
def test_what_hugging_face_lacks_is_named(name: str, export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", name=name, width=8, layers=1)
    is_one_line(export(folder, "--to", "hf", "--out", tmp_path / "out"), f"no architecture like '{name}'")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (("--to", "ctranslate"), "no form 'ctranslate' to export to; did you mean 'ctranslate2'?"),
        (("--to", "onnx"), "no form 'onnx' to export to; there is ctranslate2, hf"),
        (("--to", "hf", "--quantize", "int8"), "--quantize is for ctranslate2"),
        (("--to", "ctranslate2", "--quantize", "int9"), "int9 is not a valid quantization type"),
        ((), "Missing option '--to'"),
    ],
)
def test_a_slip_is_named(words: tuple[str, ...], part: str, export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    is_one_line(export(folder, *words), part)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["model"]


def test_a_model_that_is_not_there_is_named(export: Any, tmp_path: Path) -> None:
    is_one_line(export(tmp_path / "no", "--to", "hf"), f"there is no folder {tmp_path}/no")


def test_a_folder_that_is_there_is_left_alone_unless_forced(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "out").mkdir()
    (tmp_path / "out" / "mine.txt").write_text("mine")
    words = (folder, "--to", "hf", "--out", tmp_path / "out")
    is_one_line(export(*words), f"{tmp_path}/out is there already", "--force")
    assert snapshot(tmp_path / "out") == {"mine.txt": b"mine"}
    assert export(*words, "--force")[0] == 0
    assert exported(tmp_path / "out") == {**snapshot(folder), "mine.txt": b"mine"}


def exported(folder: Path) -> dict[str, bytes]:
    """The files of an export, without the list of them."""
    return {name: content for name, content in snapshot(folder).items() if name != RECORD}


@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_a_forced_export_takes_the_place_of_the_one_before_and_of_nothing_else(
    to: str, export: Any, tmp_path: Path
) -> None:
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    out = tmp_path / "out"
    one, other = saved(tmp_path / "one", apart=to != "hf"), saved(tmp_path / "other", width=8)
    (one / "added_tokens.json").write_text("{}")
    assert export(one, "--to", to, "--out", out)[0] == 0
    assert (out / ("added_tokens.json" if to == "hf" else "target/tokenizer.json")).is_file()
    mine = {"notes.txt": b"mine", "target/notes.txt": b"mine", "data/config.json": b"mine"}
    for name, content in mine.items():
        (out / name).parent.mkdir(exist_ok=True)
        (out / name).write_bytes(content)
    assert export(other, "--to", to, "--out", out, "--force")[0] == 0
    assert export(other, "--to", to, "--out", tmp_path / "plain")[0] == 0
    assert exported(out) == {**exported(tmp_path / "plain"), **mine}


@pytest.mark.parametrize(
    "name",
    ["model-00001-of-00002.safetensors", "pytorch_model.bin", "vocab.json", "target/tokenizer.json", "legato.json"],
)
def test_a_part_of_another_model_is_neither_removed_nor_mixed_in(name: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    (out / name).parent.mkdir(parents=True)
    (out / name).write_text("mine")
    before = snapshot(out)
    answer = export(folder, "--to", "hf", "--out", out, "--force")
    is_one_line(answer, f"{out}/{name} would be read as a part of the exported model", "give another --out")
    assert snapshot(out) == before
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == ["model", "out"]


def test_a_file_that_no_export_wrote_is_never_written_over(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    out.mkdir()
    (out / "README.md").write_text("# my project")
    answer = export(folder, "--to", "hf", "--out", out, "--force")
    is_one_line(answer, f"{out}/README.md is there, and no export wrote it")
    assert snapshot(out) == {"README.md": b"# my project"}


@pytest.mark.parametrize("change", ["edited", "a folder", "a link"])
def test_a_file_that_somebody_changed_since_its_export_is_kept(change: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    words = (folder, "--to", "hf", "--out", out)
    assert export(*words)[0] == 0
    card = out / "README.md"
    if change == "edited":
        card.write_text(card.read_text() + "\n# What I found out\n")
    else:
        card.unlink()
        card.mkdir() if change == "a folder" else card.symlink_to(folder / "README.md")
    before = snapshot(tmp_path)
    is_one_line(export(*words, "--force"), f"{card} was changed since it was exported", "move it away")
    assert snapshot(tmp_path) == before
    card.rename(tmp_path / "mine.md")
    assert export(*words, "--force")[0] == 0


def test_the_record_of_an_older_version_has_no_hashes(export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    words = (folder, "--to", "hf", "--out", out)
    assert export(*words)[0] == 0
    record = json.loads((out / RECORD).read_text())
    (out / RECORD).write_text(json.dumps({"files": list(record["files"])}))
    (out / "README.md").write_text("changed")
    assert export(*words, "--force")[0] == 0
    assert json.loads((out / RECORD).read_text()) == record
    (out / RECORD).write_text('{"files": 3}')
    is_one_line(export(*words, "--force"), str(out / RECORD), "files")


@pytest.mark.parametrize("name", [".new-out", ".old-out"])
def test_a_folder_beside_an_export_is_left_alone(name: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    (tmp_path / name).mkdir()
    (tmp_path / name / "notes.txt").write_text("mine")
    before = snapshot(tmp_path)
    is_one_line(export(folder, "--to", "hf", "--out", out), f"{tmp_path}/{name} is in the way", "move it away")
    assert snapshot(tmp_path) == before
    assert not out.exists()


def test_a_file_beside_exported_vectors_is_left_alone(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / ".new-v.txt").write_text("mine")
    assert export(folder, "--to", "vectors", "--out", tmp_path / "v.txt")[0] == 0
    assert (tmp_path / ".new-v.txt").read_text() == "mine"


@pytest.mark.parametrize("force", [[], ["--force"]])
def test_vectors_are_not_written_over_a_folder(force: list[str], export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "out"
    out.mkdir()
    answer = export(folder, "--to", "vectors", "--out", out, *force)
    is_one_line(answer, f"{out} is a folder; give --out the name of a file")


@pytest.mark.parametrize("kind", ["a pipe", "a link to a device", "a link to nothing"])
def test_vectors_only_take_the_place_of_files(kind: str, export: Any, tmp_path: Path) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "v.txt"
    if kind == "a pipe":
        os.mkfifo(out)
    else:
        out.symlink_to("/dev/null" if kind == "a link to a device" else "nowhere")
    before = out.lstat().st_mode, out.lstat().st_ino  # not when somebody last looked at it
    is_one_line(export(folder, "--to", "vectors", "--out", out, "--force"), f"{out} is a pipe, a device or")
    assert (out.lstat().st_mode, out.lstat().st_ino) == before


def test_a_folder_of_many_files_is_no_place_for_an_export(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(exports, "MOST", 3)
    folder, out = saved(tmp_path / "model"), tmp_path / "home"
    out.mkdir()
    for number in range(4):
        (out / str(number)).touch()
    is_one_line(export(folder, "--to", "hf", "--out", out, "--force"), f"{out} holds 3 files and more")


def test_the_folder_one_is_in_is_no_place_for_an_export(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "here" / "inner").mkdir(parents=True)
    monkeypatch.chdir(tmp_path / "here" / "inner")
    for out in (".", ".."):
        is_one_line(export(folder, "--to", "hf", "--out", out, "--force"), f"{out} is the folder that you are in")


def test_an_export_that_fails_leaves_the_one_before(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, other, out = saved(tmp_path / "one"), saved(tmp_path / "other", width=8), tmp_path / "out"
    assert export(one, "--to", "hf", "--out", out)[0] == 0
    before = snapshot(tmp_path)

    def full(*_: Any) -> None:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr("shutil.copyfile", full)
    is_one_line(export(other, "--to", "hf", "--out", out, "--force"), "the disk is full")
    assert snapshot(tmp_path) == before


def test_vectors_on_a_full_disk_leave_the_file_before(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder, out = saved(tmp_path / "model"), tmp_path / "vectors.txt"
    assert export(folder, "--to", "vectors", "--out", out)[0] == 0
    before = snapshot(tmp_path)
    write = exports.save_vectors

    def full(path: Path, *rest: Any) -> None:
        write(path, *rest)
        os.truncate(path, 10)
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(exports, "save_vectors", full)
    is_one_line(export(folder, "--to", "vectors", "--out", out, "--force"), "the disk is full", str(out))
    assert snapshot(tmp_path) == before
    is_one_line(export(folder, "--to", "vectors", "--out", tmp_path / "new.txt"), "the disk is full")
    assert snapshot(tmp_path) == before


def test_vectors_never_take_the_place_of_a_file_of_the_model(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    before = snapshot(folder)
    for name in ("config.json", "vectors.txt"):
        answer = export(folder, "--to", "vectors", "--out", folder / name, "--force")
        is_one_line(answer, f"{folder}/{name} lies in {folder}, the model itself")
    assert snapshot(folder) == before


def test_a_file_is_left_alone_even_when_forced(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "file").write_text("mine")
    is_one_line(export(folder, "--to", "hf", "--out", tmp_path / "file", "--force"), f"{tmp_path}/file is a file")
    assert (tmp_path / "file").read_text() == "mine"


@pytest.mark.parametrize("out", ["run/best", "run", ".", "link"])
def test_an_export_never_takes_the_place_of_its_model(
    out: str, export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    saved(tmp_path / "run" / "best")
    (tmp_path / "link").symlink_to("run")
    before = snapshot(tmp_path)
    monkeypatch.chdir(tmp_path)
    is_one_line(export("run", "--to", "ctranslate2", "--out", out, "--force"), "holds the model itself")
    assert snapshot(tmp_path) == before


def test_an_export_goes_where_a_link_that_somebody_named_leads(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model")
    (tmp_path / "large disk").mkdir()
    (tmp_path / "link").symlink_to("large disk")
    assert export(folder, "--to", "hf", "--out", tmp_path / "link", "--force")[0] == 0
    assert (tmp_path / "link").is_symlink()
    assert (tmp_path / "large disk" / "config.json").is_file()


@pytest.mark.parametrize("out", ["run/best/hf", "link/hf"])
def test_an_export_never_lies_in_its_model(out: str, export: Any, tmp_path: Path) -> None:
    saved(tmp_path / "run" / "best")
    (tmp_path / "link").symlink_to("run/best")
    before = snapshot(tmp_path)
    is_one_line(export(tmp_path / "run", "--to", "hf", "--out", tmp_path / out), "lies in", "the model itself")
    assert snapshot(tmp_path) == before


@pytest.mark.parametrize("out", ["x" * 300, "/dev/null/x", "/proc/x"])
@pytest.mark.parametrize("to", ["hf", "ctranslate2"])
def test_a_place_that_cannot_be_written_is_named(out: str, to: str, export: Any, tmp_path: Path) -> None:
    if out.startswith("/proc") and not Path("/proc/version").exists():
        pytest.skip("this system has no /proc")
    if to == "ctranslate2":
        pytest.importorskip("ctranslate2")
    folder = saved(tmp_path / "model")
    said = "the name is too long" if len(out) > 255 else f"{tmp_path / out} cannot be written: "
    is_one_line(export(folder, "--to", to, "--out", tmp_path / out), said)


def test_without_its_package_the_way_to_install_it_is_told(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    folder = saved(tmp_path / "model")
    answer = export(folder, "--to", "ctranslate2", "--out", tmp_path / "out")
    is_one_line(answer, "ctranslate2 is not installed", "pip install '.[export]'")
    assert not (tmp_path / "out").exists()


def test_vectors_of_a_model_with_two_vocabularies_are_of_what_it_writes(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", apart=True)
    assert export(folder, "--to", "vectors", "--out", tmp_path / "v.txt")[0] == 0
    lines = (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()
    words = {line.split(" ")[0] for line in lines[1:]}
    assert words <= {WRITTEN.token_name(number) for number in range(WRITTEN.size)}
    assert int(lines[0].split()[0]) == len(words)
