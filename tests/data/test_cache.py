"""The cache: the same ids with and without it, made anew when damaged, never in the way."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from legato.data import cache
from legato.data.cache import cached_ids, cached_tokenizer
from legato.data.formats.text import Text, read_text
from legato.data.text.tokenizers import NAMES, Tokenizer, TokenizerConfig
from legato.output_files import cache_folder


def text_of(folder: Path, *documents: str) -> Text:
    path = folder / "rows.jsonl"
    path.write_text("\n".join(f'{{"text": "{document}"}}' for document in documents))
    return read_text(str(path))


def byte() -> Tokenizer:
    return Tokenizer.train(TokenizerConfig(name="byte"), [])


def files() -> list[Path]:
    return sorted(cache_folder().glob("*"))


def test_documents_are_joined_by_the_end_of_text(tmp_path: Path) -> None:
    ids = cached_ids(text_of(tmp_path, "a", "b"), byte())
    assert ids.tolist() == [0, ord("a") + 1, 0, ord("b") + 1]


def test_a_line_end_of_words_is_not_doubled(tmp_path: Path) -> None:
    text = text_of(tmp_path, "a\\n", "b", "c\\n")
    tokenizer = cached_tokenizer(TokenizerConfig(name="word"), text)
    read = [tokenizer.token(index) for index in cached_ids(text, tokenizer)]
    assert read == ["<eos>", "a", "<eos>", "b", "<eos>", "c", "<eos>"]


def test_ids_that_fit_take_two_bytes(tmp_path: Path) -> None:
    assert cached_ids(text_of(tmp_path, "abc"), byte()).dtype == np.uint16


@pytest.mark.slow
def test_a_large_vocabulary_takes_four_bytes(tmp_path: Path) -> None:
    text = text_of(tmp_path, " ".join(f"w{number}" for number in range(70_000)))
    tokenizer = cached_tokenizer(TokenizerConfig(name="word"), text)
    ids = cached_ids(text, tokenizer)
    assert ids.dtype == np.int32
    assert len(np.unique(ids)) == 70_001


def test_the_second_time_is_mapped_from_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, tokenizer = text_of(tmp_path, "abc"), byte()
    first = cached_ids(text, tokenizer)
    monkeypatch.setattr(tokenizer, "encode_many", None)
    second = cached_ids(text, tokenizer)
    assert isinstance(second, np.memmap)
    assert first.tolist() == second.tolist()


def test_ids_cannot_be_written_to(tmp_path: Path) -> None:
    ids = cached_ids(text_of(tmp_path, "abc"), byte())
    with pytest.raises(ValueError, match="read-only"):
        ids[0] = 1


def test_another_text_or_tokenizer_has_a_file_of_its_own(tmp_path: Path) -> None:
    text, other = text_of(tmp_path, "abc"), text_of(tmp_path, "abd")
    lower = Tokenizer.train(TokenizerConfig(name="byte", lowercase=True), [])
    for source, tokenizer in [(text, byte()), (other, byte()), (text, lower)]:
        cached_ids(source, tokenizer)
    assert len(files()) == 3


def test_another_version_of_the_cache_has_a_file_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text = text_of(tmp_path, "abc")
    cached_ids(text, byte())
    monkeypatch.setattr(cache, "VERSION", cache.VERSION + 1)
    cached_ids(text, byte())
    assert len(files()) == 2


@pytest.mark.parametrize("kept", [0, 5, 100, -1])
def test_a_truncated_file_is_made_again(tmp_path: Path, kept: int) -> None:
    text = text_of(tmp_path, "some text")
    whole = cached_ids(text, byte()).tolist()
    data = files()[0].read_bytes()
    # A new file, as a copy cut short would be: shrinking a mapped one would pull the ground from under it.
    files()[0].unlink()
    (cache_folder() / "cut").write_bytes(data[:kept])
    name = next(iter(_names_asked_for(text)))
    (cache_folder() / "cut").rename(name)
    assert cached_ids(text, byte()).tolist() == whole
    assert name.read_bytes() == data


@pytest.mark.parametrize("damage", ["zeroed tail", "flipped bit", "flipped bit of the header", "another's content"])
def test_ids_that_were_damaged_on_the_disk_are_made_again(tmp_path: Path, damage: str) -> None:
    text, other = text_of(tmp_path, "some text"), text_of(tmp_path, "some tent")
    whole = cached_ids(text, byte()).tolist()
    file, sound = files()[0], files()[0].read_bytes()
    spoilt = bytearray(sound)
    if damage == "zeroed tail":
        spoilt[-cache.SEALED - 8 : -cache.SEALED] = bytes(8)
    elif damage == "another's content":
        cached_ids(other, byte())
        content = next(found for found in files() if found != file).read_bytes()
        spoilt[: -cache.SEALED] = content[: -cache.SEALED]
    else:
        spoilt[-cache.SEALED - 3 if damage == "flipped bit" else 70] ^= 4
    assert bytes(spoilt) != sound
    file.unlink()  # a new file, for the old one is mapped
    file.write_bytes(spoilt)
    assert cached_ids(text, byte()).tolist() == whole
    assert file.read_bytes() == sound


def test_a_file_is_synced_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    sync, rename = os.fsync, os.replace
    monkeypatch.setattr(os, "fsync", lambda handle: done.append("sync") or sync(handle))
    monkeypatch.setattr(os, "replace", lambda fresh, place: done.append("rename") or rename(fresh, place))
    text = text_of(tmp_path, "the fox")
    cached_ids(text, cached_tokenizer(TokenizerConfig(name="char"), text))
    assert done == ["sync", "rename", "sync"] * 2, "the name is synced, too"


def _names_asked_for(text: Text) -> list[Path]:
    asked: list[Path] = []
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(cache, "_mapped", lambda file, dtype: asked.append(file) or np.zeros(1))
        cached_ids(text, byte())
    return asked


def test_nothing_but_whole_files_is_left_behind(tmp_path: Path) -> None:
    cached_ids(text_of(tmp_path, "abc"), byte())
    assert [file.suffix for file in files()] == [".npy"]


def test_a_full_disk_only_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(np, "save", full)
    assert cached_ids(text_of(tmp_path, "a"), byte()).tolist() == [0, ord("a") + 1]
    assert files() == []


def test_a_cache_that_cannot_be_made_only_means_no_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("LEGATO_CACHE", str(tmp_path / "file" / "below"))
    text = text_of(tmp_path, "a b")
    assert cached_ids(text, byte()).tolist() == [0, *byte().encode("a b")]
    assert cached_tokenizer(TokenizerConfig(name="char"), text).name == "char"


@pytest.mark.parametrize("name", NAMES)
def test_a_cached_tokenizer_equals_a_trained_one(tmp_path: Path, name: str) -> None:
    text = text_of(tmp_path, "the quick brown fox " * 9, "the lazy dog\\n")
    config = TokenizerConfig(name=name)  # type: ignore[arg-type]
    trained = Tokenizer.train(config, text.documents).fingerprint()
    assert cached_tokenizer(config, text).fingerprint() == trained
    assert cached_tokenizer(config, text).fingerprint() == trained


def test_a_tokenizer_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    text, config = text_of(tmp_path, "the fox"), TokenizerConfig(name="char")
    cached_tokenizer(config, text)
    monkeypatch.setattr(Tokenizer, "train", None)
    assert cached_tokenizer(config, text).decode([2]) == " "


def test_another_setting_trains_another_tokenizer(tmp_path: Path) -> None:
    text = text_of(tmp_path, "The the fox")
    one = cached_tokenizer(TokenizerConfig(name="word"), text)
    two = cached_tokenizer(TokenizerConfig(name="word", lowercase=True), text)
    assert one.size != two.size


def test_a_damaged_tokenizer_is_trained_again(tmp_path: Path) -> None:
    text, config = text_of(tmp_path, "the fox"), TokenizerConfig(name="char")
    fingerprint = cached_tokenizer(config, text).fingerprint()
    files()[0].write_text('{"version":')
    assert cached_tokenizer(config, text).fingerprint() == fingerprint
    assert files()[0].stat().st_size > 100


def test_a_tokenizer_one_of_whose_letters_changed_is_trained_again(tmp_path: Path) -> None:
    text, config = text_of(tmp_path, "the fox"), TokenizerConfig(name="char")
    fingerprint = cached_tokenizer(config, text).fingerprint()
    sound = files()[0].read_text()
    files()[0].write_text(sound.replace('"x":', '"y":'))  # a whole tokenizer still, of other letters
    assert files()[0].read_text() != sound
    assert cached_tokenizer(config, text).fingerprint() == fingerprint
    assert files()[0].read_text() == sound


def test_a_tokenizer_with_a_path_is_not_cached(tmp_path: Path) -> None:
    byte().save(tmp_path / "own")
    config = TokenizerConfig(path=str(tmp_path / "own" / "tokenizer.json"))
    assert cached_tokenizer(config, text_of(tmp_path, "x")).name == "byte"
    assert files() == []


def test_the_folder_follows_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("LEGATO_CACHE", "/one")
    monkeypatch.setenv("XDG_CACHE_HOME", "/two")
    assert cache_folder() == Path("/one")
    monkeypatch.delenv("LEGATO_CACHE")
    assert cache_folder() == Path("/two/legato")
    monkeypatch.delenv("XDG_CACHE_HOME")
    assert cache_folder() == Path.home() / ".cache" / "legato"


@pytest.mark.slow
def test_two_processes_may_make_the_same_file_at_once(tmp_path: Path) -> None:
    text = text_of(tmp_path, "some words " * 5000)
    script = (
        "import sys; from legato.data.cache import *; from legato.data.formats.text import read_text\n"
        "text = read_text(sys.argv[1])\n"
        "tokenizer = cached_tokenizer(TokenizerConfig(name='word'), text)\n"
        "print(int(cached_ids(text, tokenizer).sum()))"
    )
    command = [sys.executable, "-c", script, text.source]
    both = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=os.environ) for _ in range(2)]
    answers = {process.communicate()[0] for process in both}
    assert len(answers) == 1
    assert {file.suffix for file in files()} == {".npy", ".json"}


def test_a_pipe_in_the_place_of_a_cached_file_is_not_waited_for(tmp_path: Path) -> None:
    text, tokenizer = text_of(tmp_path, "one", "two"), byte()
    before = cached_ids(text, tokenizer).tolist()
    [file] = files()
    file.unlink()
    os.mkfifo(file)
    assert cached_ids(text, tokenizer).tolist() == before
