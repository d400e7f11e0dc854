"""How a command starts and ends: what it imports, what it is refused for before it imports much, what it leaves."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

import legato
from legato.cli import VERBS
from legato.registry import MODELS, TASKS
from tiny_tasks import tiny

HEAVY = ("torch", "numpy", "rich", "yaml", "huggingface_hub", "datasets")  # for whom only says what is wrong
# What some verb, task, model or file needs, and a word with a model that is here does not.
UNNEEDED = (
    *("datasets", "pandas", "pyarrow", "scipy", "sklearn", "matplotlib", "PIL", "soundfile", "soxr", "transformers"),
    *("sacrebleu", "jiwer", "pycocotools", "seqeval", "torchmetrics", "tensorboard", "gguf", "yaml", "rich", "sympy"),
    *("huggingface_hub", "fastapi", "uvicorn", "torch._dynamo", "torch._inductor", "torch.utils.tensorboard"),
    *("legato.runs", "legato.inspect", "legato.serving", "legato.training.loop", "legato.folders.exports"),
    *("legato.folders.gguf", "legato.folders.adapters"),
)


def imported(*words: object, code: int = 0) -> set[str]:
    """The modules that `legato WORDS` has imported when it ends."""
    script = (
        "import json, sys\n"
        "from legato.cli import main\n"
        f"sys.argv = {['legato', *map(str, words)]!r}\n"
        "try:\n    main()\nexcept SystemExit as ended:\n"
        f"    assert (ended.code or 0) == {code}, ended.code\n"
        "print(json.dumps(sorted(sys.modules)))\n"
    )
    asked = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, timeout=120, stdin=subprocess.DEVNULL
    )
    assert asked.returncode == 0, asked.stderr
    return set(json.loads(asked.stdout.splitlines()[-1]))


@pytest.fixture(scope="module")
def classifier(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("classifier")
    settings: dict[str, Any] = tiny("classification", folder / "data")
    return legato.train("classification", settings, out=folder / "run", quiet=True).run


@pytest.mark.slow
@pytest.mark.parametrize(
    "words",
    [
        *(["predict", "/nowhere/run", "a"], ["generate", "/nowhere/at/all"], ["embed", ".", "a"]),
        *(["eval", "nowhere/x/y"], ["inspect", "/nowhere", "a"], ["train", "nothing"], ["train", "lm", "a"]),
        *(["recipes", "nothing"], ["predict", "x", "a", "--file", "b"], ["predict"], ["predict", "--colour", "red"]),
    ],
)
def test_a_slip_is_told_before_anything_heavy_is_imported(words: list[str]) -> None:
    assert not imported(*words, code=2) & set(HEAVY)


@pytest.mark.slow
@pytest.mark.parametrize("words", [["predict", "--help"], ["recipes", "lm/ptb-lstm"], ["recipes", "--json"]])
def test_what_needs_no_model_imports_no_pytorch(words: list[str]) -> None:
    assert not imported(*words) & {"torch", "numpy", "datasets"}


@pytest.mark.slow
def test_a_list_of_runs_imports_no_pytorch(home: Path) -> None:
    assert not imported("runs", "list", home) & {"torch", "numpy", "datasets"}


@pytest.mark.slow
def test_a_verb_imports_no_other_verb() -> None:
    assert imported("predict", "--help") & set(VERBS.values()) == {"legato.cli.predict"}


def registered(modules: set[str]) -> dict[str, set[str]]:
    """Those of our models and tasks that are among them."""
    places = {"models": MODELS.builtin.values(), "tasks": TASKS.builtin.values()}
    return {kind: {place.partition(":")[0] for place in known} & modules for kind, known in places.items()}


@pytest.mark.slow
def test_a_prediction_imports_what_its_model_and_task_need(classifier: Path) -> None:
    modules = imported("predict", classifier, "a fine film")
    assert not modules & set(UNNEEDED), modules & set(UNNEEDED)
    assert registered(modules) == {
        "models": {"legato.models.recurrent"},
        "tasks": {"legato.tasks.classification.task"},
    }


@pytest.mark.slow
def test_writing_imports_what_its_model_needs(home: Path) -> None:
    modules = imported("generate", home / "run", "the", "--max-tokens", "2")
    assert not modules & set(UNNEEDED), modules & set(UNNEEDED)
    assert registered(modules) == {"models": {"legato.models.recurrent"}, "tasks": set()}


@pytest.mark.slow
def test_vectors_of_texts_need_nothing_of_pictures(home: Path) -> None:
    modules = imported("embed", home / "run", "the")
    assert not modules & {*UNNEEDED, "legato.models.image_encoder", "legato.data.image.picture_files"}


def ended(folder: Path, run: str, name: str = "legato") -> subprocess.CompletedProcess[str]:
    """What comes of a script, such as the one that is installed, whose command is the function `run`."""
    script = folder / name
    script.write_text(
        "import atexit, os, sys, threading, time\nimport legato.cli\nfrom legato.__main__ import main\n"
        f"def run():\n{run}\nlegato.cli.main = run\n"
        "try:\n    main()\nfinally:\n    print('left', end=' ')\n"
    )
    return subprocess.run([sys.executable, str(script)], capture_output=True, text=True, timeout=60)


def test_what_asks_to_be_called_at_the_end_is_called_and_what_is_printed_arrives(tmp_path: Path) -> None:
    run = "    atexit.register(print, 'called')\n    print('printed', end=' ')\n    sys.exit(0)"
    end = ended(tmp_path, run)
    assert (end.returncode, end.stdout, end.stderr) == (0, "printed left called\n", "")


@pytest.mark.slow
def test_a_command_that_went_well_takes_nothing_apart(tmp_path: Path) -> None:
    run = (
        "    class Kept:\n        def __del__(self, write=os.write):\n            write(1, b'taken apart')\n"
        "    sys.kept = Kept()\n    sys.exit({code})"
    )
    assert ended(tmp_path, run.format(code=0)).stdout == "left "
    assert ended(tmp_path, run.format(code=2)).stdout == "left taken apart"
    assert ended(tmp_path, run.format(code=0), "theirs.py").stdout == "left taken apart"


def test_what_runs_beside_is_waited_for(tmp_path: Path) -> None:
    run = (
        "    def beside():\n        time.sleep(0.2)\n        print('beside')\n"
        "    threading.Thread(target=beside).start()\n    sys.exit(0)"
    )
    assert ended(tmp_path, run).stdout == "left beside\n"


@pytest.mark.parametrize("code", [1, 2, 130])
def test_what_did_not_go_well_says_so_by_its_code(code: int, tmp_path: Path) -> None:
    assert ended(tmp_path, f"    sys.exit({code})").returncode == code
