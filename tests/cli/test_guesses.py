"""What newcomers type first: it works, or one line says the words to type."""

from __future__ import annotations

import random
import shlex
import shutil
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.errors import ConfigError
from legato.runs.recipes import settings_for
from tiny_pictures import write_picture
from tiny_runs import WORDS

TINY = "model.width=8 model.layers=1 train.samples=0 train.tensorboard=false device=cpu -q"


@pytest.fixture(scope="module")
def desk(home: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a newcomer has it: tables, a text, pictures, and two runs."""
    desk = tmp_path_factory.mktemp("desk")
    draw = random.Random(0)
    rows = [(" ".join(draw.choices(WORDS, k=6)), draw.choice(["good", "bad"])) for _ in range(40)]
    (desk / "data.csv").write_text("text,label\n" + "".join(f"{text},{label}\n" for text, label in rows))
    (desk / "swapped.csv").write_text("label,text\n" + "".join(f"{text},{label}\n" for text, label in rows))
    for name in ("pets/cat/1.png", "pets/dog/2.png", "one/cat/1.png", "one/cat/2.png"):
        write_picture(desk / name)
    shutil.copytree(home / "run", desk / "runs" / "lm")
    settings = {"data.train": str(desk / "data.csv"), "model": "lstm", "model.width": 8, "train.steps": 1}
    quick = {"train.samples": 0, "train.tensorboard": False, "device": "cpu"}
    legato.train("classification", {**settings, **quick}, out=desk / "runs" / "c", quiet=True)
    return desk


WORKS = (
    # Settings under the names that other toolkits have for them, in capitals, and a task by its name on the hub.
    (
        f"train text-classification data.csv Model=LSTM --learning_rate 3e-5 --num_epochs 0.1 {TINY} out=runs/t",
        "learning_rate is called train.lr here",
    ),
    ("train LM --keys", "train.lr"),
    ("train pictures pets --keys", "model.image"),
    ("train sounds --keys", "data.augment"),
    ("generate runs/lm the --max_tokens 3", "the"),
    ("generate runs/lm the --max_new_tokens 3 --num_beams 2", "--max-new-tokens is called --max-tokens here"),
    ("generate runs/lm the --max-tokens=3 --do_sample --top_p 0.9", "--do-sample is called --search=sample here"),
    ("predict runs/c 'the cat' --num_return_sequences 2", "--num-return-sequences is called --nbest here"),
    ("predict runs/c nbest=2", "'nbest=2' is read as a text; the setting is --nbest 2"),
    ("embed runs/lm the -o v.npy", "-o is called --out here"),
    ("inspect runs/c 'the cat' --output c.html", "--output is called --html here"),
    ("eval runs/c data.csv --device cpu", "accuracy"),
    ("RUNS runs", "runs/lm"),
)
ANSWERED = (
    # The verbs of other programs.
    ("finetune bert-base-uncased data.csv", "type: legato train TASK from=MODEL data.train=FILE"),
    ("fit", "type: legato train TASK data.train=FILE"),
    ("evaluate runs/c data.csv", "type: legato eval runs/c data.csv"),
    ("run", "type: legato train TASK data.train=FILE"),
    ("chat runs/lm", "type: legato generate runs/lm --chat"),
    ("translate runs/t hello", "type: legato predict runs/t hello"),
    ("list", "type: legato runs"),
    ("help train", "type: legato train --help"),
    ("classification data.csv", "type: legato train classification data.csv"),
    ("runs/c hello", "type: legato predict runs/c hello"),
    ("--model lstm", "type: legato train TASK --model lstm"),
    ("tarin lm", "did you mean 'train'?"),
    # Training without a task, with a model for a task, or with another toolkit's settings.
    ("train", "legato train lm data.train=FILE"),
    ("train data.csv", "legato train classification data.csv"),
    ("train runs/c", "legato train resume=runs/c"),
    ("train gpt2", "legato train lm model=gpt2"),
    ("train lm gpt2", "write model=gpt2 for a new one, or from=gpt2"),
    ("train lm model gpt2", "write model=gpt2"),
    ("train resume runs/c", "write resume=runs/c"),
    ("train ptb-lstm", "legato train lm/ptb-lstm"),
    ("train classification dat.csv", "did you mean 'data.csv'?"),
    ("train classification data.csv batch_size=32", "write train.batch_rows or train.batch_tokens"),
    ("train classification data.csv --learning_rte 3e-5", "did you mean 'train.lr'?"),
    ("train classification data.csv --gpu", "write device=cuda"),
    ("train classification data.csv device=gpu", "auto takes a GPU where there is one"),
    ("train classification data.csv --fp16 true", "write train.precision=bf16"),
    ("train classification data.csv --text_column text --label_column mood", "write data.columns=[text,mood]"),
    ("train classification data.csv text_column=text", "write data.columns=[text,LABEL]"),
    ("train classification swapped.csv model=lstm", "set data.columns=[label,text]"),
    ("recipes lm", "its recipes are lm/ptb-lstm"),
    ("models LSTM", "did you mean 'lstm'?"),
    ("models lm", "legato train lm --keys"),
    # Pictures.
    ("train images one -o runs/one", "one class alone, 'cat', so there is nothing to tell apart; add a folder"),
    ("train images 'train=pets/*/*.png' -o runs/pets", "data.train=pets"),
    ("train images pets/cat/1.png pets/dog/2.png", "data.train=pets"),
    # Verbs that take a text.
    ("predict", "as in: legato predict"),
    ("predict 'the cat' runs/c", "type: legato predict runs/c 'the cat'"),
    ("predict runs/c --text 'the cat'", "type: legato predict runs/c 'the cat'"),
    ("predict runs/c 'the cat' nbest=2", "type: legato predict runs/c 'the cat' --nbest 2"),
    ("eval data.csv runs/c", "type: legato eval runs/c data.csv"),
    ("generate the --model gpt2", "type: legato generate gpt2 the"),
    ("generate runs/lm the max_tokens=5", "type: legato generate runs/lm the --max-tokens 5"),
    ("generate runs/lm the --max_length 5", "it counts the prompt, too; write --max-tokens N"),
    ("generate runs/lm the --no_repeat_ngram_size 2", "write --repetition-penalty 1.2"),
    ("embed runs/lm the batch_size=4", "type: legato embed runs/lm the --batch-size 4"),
    ("serve", "as in: legato serve runs/chat"),
    ("serve runs/c 9000", "type: --port 9000"),
    ("serve c", "did you mean 'runs/c'?"),
    ("predict c 'the cat'", "did you mean 'runs/c'?"),
    ("ask", "as in: legato ask runs/index"),
)


@pytest.mark.parametrize(("line", "words"), WORKS, ids=[line[:40] for line, _ in WORKS])
def test_a_first_guess_works(
    line: str, words: str, command: Any, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    answer = command(*shlex.split(line))
    assert answer.code == 0, answer.err
    assert words in answer.out + answer.err


@pytest.mark.parametrize(("line", "words"), ANSWERED, ids=[line[:40] for line, _ in ANSWERED])
def test_a_first_guess_is_answered_with_the_words_to_type(
    line: str, words: str, command: Any, desk: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(desk)
    answer = command(*shlex.split(line))
    assert (answer.code, answer.out) == (2, "")
    lines = answer.err.strip().splitlines()
    assert words in lines[-1]
    assert [row for row in lines if row.startswith("legato: ")] == lines[-1:]


@pytest.mark.filterwarnings("ignore:num_return_sequences")
def test_names_of_generate_are_translated_in_python(home: Path) -> None:
    model = legato.load(home / "run")
    with pytest.warns(UserWarning, match="max_new_tokens is called max_tokens here"):
        assert model.generate("the", max_new_tokens=3) == model.generate("the", max_tokens=3)
    with pytest.warns(UserWarning, match="num_beams is called beams here"):
        texts = model.generate("the", max_tokens=3, num_beams=2, num_return_sequences=2)
    assert texts == model.generate("the", max_tokens=3, search="beam", beams=2, nbest=2)
    with pytest.raises(ConfigError, match=r"it counts the prompt, too; write max_tokens=N"):
        model.generate("the", max_length=3)


def test_a_classifier_that_is_asked_to_classify_names_predict(desk: Path) -> None:
    with pytest.raises(ConfigError, match=r"it was trained for classification: use predict"):
        legato.load(desk / "runs" / "c").classify("the cat", ["good", "bad"])


def test_capitals_and_hyphens_are_read_as_our_names_and_a_persons_own_stay() -> None:
    settings = settings_for("LM", ["Model=LSTM", "Train.Weight-Decay=0.1", "Tokenizer=CHAR", "adapt=LoRA"])
    assert settings == {
        "task": "lm",
        "model": {"name": "lstm"},
        "train": {"weight_decay": "0.1"},
        "tokenizer": {"name": "char"},
        "adapt": {"name": "lora"},
    }
    assert settings_for("unit", ["data.tasks.My-Films.weight=2"])["data"] == {"tasks": {"My-Films": {"weight": "2"}}}
