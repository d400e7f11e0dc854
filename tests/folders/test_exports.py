"""Exports: CTranslate2 writes the same tokens, and what cannot leave is refused in one line."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from legato.config import validate
from legato.data.processors import Processors
from legato.data.text.tokenizers import Tokenizer
from legato.decoding import SearchOptions
from legato.folders.model_folder import load_model, save_model
from legato.models.base import Sizes
from legato.models.model_with_head import HeadSpec, ModelWithHead
from legato.registry import MODELS
from legato.tasks.translation.translator import Translator
from tiny_exports import JOINT, READ, TEXTS, WRITTEN, is_one_line, saved

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
        (("--to", "onnx"), "no form 'onnx' to export to; there is ctranslate2, gguf, hf"),
        (("--to", "hf", "--quantize", "int8"), "--quantize is for legato, ctranslate2 and gguf"),
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


def test_without_its_package_the_way_to_install_it_is_told(
    export: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(__import__("sys").modules, "ctranslate2.specs", None)
    folder = saved(tmp_path / "model")
    answer = export(folder, "--to", "ctranslate2", "--out", tmp_path / "out")
    is_one_line(answer, "ctranslate2 is not installed", 'pip install "legato-nn[export]"')
    assert not (tmp_path / "out").exists()


def test_vectors_of_a_model_with_two_vocabularies_are_of_what_it_writes(export: Any, tmp_path: Path) -> None:
    folder = saved(tmp_path / "model", apart=True)
    assert export(folder, "--to", "vectors", "--out", tmp_path / "v.txt")[0] == 0
    lines = (tmp_path / "v.txt").read_text(encoding="utf-8").splitlines()
    words = {line.split(" ")[0] for line in lines[1:]}
    assert words <= {WRITTEN.token_name(number) for number in range(WRITTEN.size)}
    assert int(lines[0].split()[0]) == len(words)
