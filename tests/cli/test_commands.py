"""The commands from end to end, on texts and models small enough for a test."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from importlib import metadata
from pathlib import Path
from typing import Any

import pytest
import yaml

import legato
from legato.errors import FolderError
from legato.registry import MODELS, TASKS
from legato.runs import doctor as diagnosis
from legato.runs.config import TO_BE_NAMED
from legato.runs.run_folder import RunFolder
from legato.runs.train import check, describe_settings, list_recipes, settings_for
from tiny_adapted import published_folder
from tiny_runs import small, weights_digest, words


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with texts and a run, `home/run`."""
    home = tmp_path_factory.mktemp("home")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("LEGATO_CACHE", str(home / "cache"))
        legato.train("lm", small(home, train__steps=30, train__lr=0.02), out=home / "run", quiet=True)
    return home


def in_a_shell(*arguments: object, folder: Path) -> subprocess.CompletedProcess[str]:
    """`legato ARGUMENTS` as a person runs it."""
    return subprocess.run(
        [sys.executable, "-m", "legato", *map(str, arguments)],
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        timeout=120,
    )


# ── train ─────────────────────────────────────────────────────────────────────────────────────────


def test_training_from_a_shell_leaves_a_run_that_can_be_evaluated(home: Path, tmp_path: Path) -> None:
    trained = in_a_shell(
        *("train", "lm", f"data.train={home}/train.txt", f"data.valid={home}/valid.txt", "model=lstm"),
        *("tokenizer=char", "out=runs/x", "train.steps=3", "train.batch_tokens=256", "model.width=16"),
        folder=tmp_path,
    )
    assert trained.returncode == 0, trained.stderr
    assert trained.stdout == ""
    assert "the best model is in runs/x/best" in trained.stderr
    assert {path.name for path in (tmp_path / "runs" / "x").iterdir()} >= {
        "config.yaml",
        "metrics.jsonl",
        "provenance.json",
        "result.json",
        "checkpoints",
        "best",
        "last",
    }
    evaluated = in_a_shell("eval", "runs/x", f"data.test={home}/valid.txt", folder=tmp_path)
    assert evaluated.returncode == 0, evaluated.stderr
    assert "bits per byte" in evaluated.stdout


def piped(line: str) -> subprocess.CompletedProcess[str]:
    """`legato LINE` in a shell that fails where any part of a pipe does."""
    environment = {key: value for key, value in os.environ.items() if key != "PYTHONUNBUFFERED"}
    script = f'"{sys.executable}" -m legato {line}'
    return subprocess.run(
        ["bash", "-o", "pipefail", "-c", script], env=environment, capture_output=True, text=True, timeout=120
    )


def test_training_goes_on_to_its_end_when_nobody_reads_what_it_says(home: Path, tmp_path: Path) -> None:
    settings = " ".join(words(small(home, train__steps=3)))
    trained = piped(f"train lm {settings} out={tmp_path}/run --json 2>&1 | true")
    assert (trained.returncode, trained.stderr) == (0, "")
    assert (tmp_path / "run" / "result.json").is_file()


@pytest.mark.parametrize("line", ["generate {home}/run the --json", "models"])
def test_a_reader_that_leaves_early_ends_the_other_verbs_quietly(line: str, home: Path) -> None:
    ended = piped(line.format(home=home) + " | true")
    assert (ended.returncode, ended.stderr) == (0, "")


def test_training_says_what_it_sees_and_what_it_reached(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run")
    assert answer.code == 0
    for part in ("training and", "the model will see:", "parameters, on cpu", "step 12/12", "valid perplexity:"):
        assert part in answer.err


def test_training_quietly_says_nothing(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run", "--quiet")
    assert (answer.code, answer.out, answer.err) == (0, "", "")


def test_training_with_json_ends_in_one_line_of_figures(command: Any, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(tmp_path)), f"out={tmp_path}/run", "--json")
    figures = json.loads(answer.out)
    assert figures["run"] == f"{tmp_path}/run"
    assert figures["steps"] == 12
    assert figures["valid.perplexity"] > 1


def test_a_run_without_a_name_gets_the_next_free_one(
    command: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for _ in range(2):
        command("train", "lm", *words(small(tmp_path, train__steps=1)))
    assert sorted(path.name for path in (tmp_path / "runs").iterdir()) == ["lm-lstm-1", "lm-lstm-2"]


def test_without_a_validation_text_the_last_share_is_held_out(command: Any, home: Path, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(home)), "data.valid=none", f"out={tmp_path}/run")
    assert answer.code == 0
    assert (tmp_path / "run" / "best" / "model.safetensors").exists()


def test_a_test_text_is_scored_at_the_end(command: Any, home: Path, tmp_path: Path) -> None:
    answer = command("train", "lm", *words(small(home)), f"data.test={home}/valid.txt", f"out={tmp_path}/run")
    assert "test perplexity:" in answer.err
    result = json.loads((tmp_path / "run" / "result.json").read_text())["metrics"]
    assert result["test.loss"] == result["valid.loss"]


def test_the_saved_settings_of_a_run_repeat_it_to_the_same_bits(command: Any, home: Path, tmp_path: Path) -> None:
    assert command("train", home / "run" / "config.yaml", f"out={tmp_path}/again").code == 0
    assert weights_digest(tmp_path / "again") == weights_digest(home / "run")


def test_a_settings_file_is_overlaid_by_words(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(yaml.safe_dump({"task": "lm", **small(home)}))
    assert command("train", tmp_path / "a.yaml", "train.steps=2", f"out={tmp_path}/run").code == 0
    kept = yaml.safe_load((tmp_path / "run" / "config.yaml").read_text())
    assert (kept["train"]["steps"], kept["model"]["width"]) == (2, 16)


@pytest.mark.parametrize(("bound", "verdict"), [(1e9, "reached"), (1.0, "NOT reached")])
def test_a_recipe_says_whether_its_promise_was_kept(
    bound: float, verdict: str, command: Any, home: Path, tmp_path: Path
) -> None:
    recipe = {"task": "lm", **small(home, train__steps=1), "expect": {"valid.perplexity": {"at_most": bound}}}
    (tmp_path / "a.yaml").write_text(yaml.safe_dump(recipe))
    answer = command("train", tmp_path / "a.yaml", f"out={tmp_path}/run")
    lines = [line for line in answer.err.splitlines() if line.startswith("expected valid.perplexity ≤")]
    assert [line.endswith(f", {verdict}") for line in lines] == [True]


# ── toys ──────────────────────────────────────────────────────────────────────────────────────────

TOY = {"data__valid": None, "tokenizer": None, "data__toy__count": 300, "data__toy__valid_count": 20}


@pytest.mark.parametrize("toy", ["copy", "reverse", "sort", "brackets", "recall"])
def test_every_toy_trains_and_reports_accuracy(toy: str, command: Any, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(tmp_path, data__train=f"toy:{toy}", **TOY).items() if v is not None}
    answer = command("train", "lm", *words(settings), f"out={tmp_path}/run", "train.samples=1", "--json")
    assert 0 <= json.loads(answer.out)["valid.accuracy"] <= 1
    assert "(right: " in answer.err


def test_recall_is_learned_and_evaluated_at_another_distance(command: Any, tmp_path: Path) -> None:
    learn = {
        "train__steps": 500,
        "train__batch_tokens": 512,
        "train__lr": 0.02,
        "model__width": 32,
        "model__dropout": 0,
    }
    changes = {**learn, "train__validate_every": 500, "train__log_every": 100}
    toy = {**TOY, "data__toy__symbols": 3, "data__toy__distance": "[1,6]", "data__toy__count": 1000}
    settings = {k: v for k, v in small(tmp_path, data__train="toy:recall", **toy, **changes).items() if v is not None}
    assert command("train", "lm", *words(settings), f"out={tmp_path}/run").code == 0
    asked = ["data.test=toy:recall", "data.toy.distance=5", "data.toy.symbols=3", "data.toy.valid_count=50"]
    scores = json.loads(command("eval", tmp_path / "run", *asked, "--json").out)
    assert scores["accuracy"] > 0.6  # a guess is right one time in three


# ── eval ──────────────────────────────────────────────────────────────────────────────────────────


def test_evaluating_prints_every_figure(command: Any, home: Path) -> None:
    answer = command("eval", home / "run", f"data.test={home}/valid.txt")
    assert answer.code == 0
    for name in ("loss", "perplexity", "word perplexity", "bits per byte", "tokens"):
        assert name in answer.out


def test_evaluating_with_json_gives_what_training_found(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "run", f"data.test={home}/valid.txt", "--json").out)
    result = json.loads((home / "run" / "result.json").read_text())["metrics"]
    assert scores["loss"] == pytest.approx(result["valid.loss"], rel=1e-6)
    assert scores["model"] == f"{home}/run/best"
    assert len(scores["sha256"]) == 64


def test_python_gives_the_same_scores_as_the_command(command: Any, home: Path) -> None:
    scores = json.loads(command("eval", home / "run", f"data.test={home}/valid.txt", "--json").out)
    assert legato.load(home / "run").evaluate(test=f"{home}/valid.txt")["loss"] == scores["loss"]


# ── generate ──────────────────────────────────────────────────────────────────────────────────────


def test_the_same_seed_writes_the_same_text(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--search", "sample", "--top-p", "0.9", "--max-tokens", "40")
    first, second, other = (command(*words, "--seed", seed).out for seed in (1, 1, 2))
    assert first.startswith("the ")
    assert first == second != other


def test_a_prompt_is_continued_alone_as_it_is_among_others(command: Any, home: Path, tmp_path: Path) -> None:
    words = ("--search", "sample", "--max-tokens", "30", "--seed", "4")
    prompts = ["the cat", "a ", "one more", "the cat", "rain"]
    (tmp_path / "prompts.txt").write_text("\n".join(prompts) + "\n")
    together = command("generate", home / "run", "--file", tmp_path / "prompts.txt", *words).out
    assert together == "".join(command("generate", home / "run", prompt, *words).out for prompt in prompts)


def test_greedy_search_always_writes_the_same(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--max-tokens", "20")
    assert command(*words).out == command(*words, "--seed", 5).out


def test_a_beam_shows_its_best_texts_with_falling_scores(command: Any, home: Path) -> None:
    words = ("--search", "beam", "--beams", "5", "--nbest", "3", "--max-tokens", "12", "--scores")
    lines = command("generate", home / "run", "the ", *words).out.rstrip("\n").split("\n")
    scores = [float(line.split()[0]) for line in lines]
    assert len(scores) == 3
    assert scores == sorted(scores, reverse=True)


def test_generating_with_json_gives_texts_tokens_and_scores(command: Any, home: Path) -> None:
    words = ("--search", "beam", "--beams", "5", "--nbest", "3", "--max-tokens", "12", "--json")
    found = json.loads(command("generate", home / "run", "the ", *words).out)
    assert found["prompt"] == "the "
    assert len(found["results"]) == 3
    assert found["results"][0].keys() == {"text", "tokens", "score", "logprob", "finished"}


def test_each_line_of_a_prompt_file_is_continued(command: Any, home: Path, tmp_path: Path) -> None:
    (tmp_path / "prompts.txt").write_text("the cat\na\n")
    lines = command(
        "generate", home / "run", "--file", tmp_path / "prompts.txt", "--max-tokens", "3", "--stop", "\\n"
    ).out.splitlines()
    assert [line[: len(prompt)] for line, prompt in zip(lines, ("the cat", "a"), strict=True)] == ["the cat", "a"]


def test_a_stop_string_ends_the_text_before_it(command: Any, home: Path) -> None:
    words = ("generate", home / "run", "the ", "--search", "sample", "--max-tokens", "200", "--stop", "a")
    assert "a" not in command(*words).out


def test_streamed_text_is_the_text_that_python_gets(command: Any, home: Path) -> None:
    options: dict[str, Any] = {"search": "sample", "max_tokens": 30, "seed": 3}
    streamed = command(
        "generate", home / "run", "the ", "--search", "sample", "--max-tokens", "30", "--seed", "3"
    ).out
    assert streamed == "the " + legato.load(home / "run").generate("the ", **options) + "\n"


# ── compare ───────────────────────────────────────────────────────────────────────────────────────


def test_comparing_models_keeps_parameters_near_and_tokens_equal(command: Any, home: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(home, train__steps=4).items() if k not in ("model", "model.width")}
    answer = command(
        *("compare", "lm", "model=[elman,gru,lstm]", "match=20000", "seed=[1,2]", f"out={tmp_path}/c", "--quiet"),
        *words(settings),
    )
    assert answer.code == 0, answer.err
    assert all(name in answer.out for name in ("elman", "gru", "lstm", "parameters", "tokens/s", "bits per"))
    assert answer.out.count(" ± ") == 6  # two figures of three models
    kept = json.loads((tmp_path / "c" / "compare.json").read_text())
    sizes = [entry["parameters"]["mean"] for entry in kept["entries"]]
    assert max(sizes) / min(sizes) < 1.03
    assert {entry["tokens"]["mean"] for entry in kept["entries"]} == {4 * 128}
    assert all(entry["valid.bits_per_byte"]["spread"] > 0 for entry in kept["entries"])
    assert (tmp_path / "c" / "compare.png").read_bytes().startswith(b"\x89PNG")
    assert (tmp_path / "c" / "lstm-seed2" / "best" / "model.safetensors").exists()


def test_comparing_settings_files_names_them(command: Any, home: Path, tmp_path: Path) -> None:
    for name, model in (("plain", "elman"), ("gated", "lstm")):
        settings = {"task": "lm", **small(home, model=model, train__steps=2)}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(settings))
    answer = command("compare", tmp_path / "plain.yaml", tmp_path / "gated.yaml", f"out={tmp_path}/c", "--json")
    summary = json.loads(answer.out)
    assert [entry["label"] for entry in summary["entries"]] == ["plain", "gated"]
    assert summary["entries"][0]["valid.bits_per_byte"]["spread"] is None


def test_a_width_that_is_written_down_is_kept(command: Any, home: Path, tmp_path: Path) -> None:
    settings = {k: v for k, v in small(home, train__steps=1).items() if k != "model"}
    command("compare", "lm", "model=[elman,lstm]", *words(settings), f"out={tmp_path}/c", "--quiet")
    widths = {
        yaml.safe_load((tmp_path / "c" / name / "config.yaml").read_text())["model"]["width"]
        for name in ("elman", "lstm")
    }
    assert widths == {16}


# ── what there is ─────────────────────────────────────────────────────────────────────────────────


def test_every_model_is_listed(command: Any) -> None:
    assert all(name in command("models").out for name in MODELS.names())
    assert json.loads(command("models", "--json").out).keys() == set(MODELS.names())


@pytest.mark.parametrize("name", MODELS.names())
def test_every_model_shows_its_settings(name: str, command: Any) -> None:
    assert "model.width" in command("models", name).out
    assert json.loads(command("models", name, "--json").out)["width"] == {"word2vec": 100}.get(name, 256)


def test_every_recipe_is_listed(command: Any) -> None:
    assert json.loads(command("recipes", "--json").out).keys() == set(list_recipes())
    assert command("recipes").code == 0


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model for recipes that go on from one."""
    return str(published_folder(tmp_path_factory.mktemp("base") / "m", "bert", layers=4))


def complete(recipe: dict[str, Any], base: str) -> dict[str, Any]:
    return {**recipe, "from": base} if recipe.get("from") == TO_BE_NAMED else recipe


@pytest.mark.parametrize("name", list_recipes())
def test_every_recipe_is_valid_and_promises_a_score(name: str, base: str) -> None:
    recipe = check(complete(settings_for(name), base))
    assert recipe.task in TASKS
    assert recipe.about
    assert recipe.expect or "not measured yet" in recipe.about


@pytest.mark.parametrize("name", list_recipes())
def test_a_recipe_is_printed_as_a_file_that_can_be_run(name: str, command: Any, base: str) -> None:
    printed = yaml.safe_load(command("recipes", name).out)
    assert check(complete(printed, base)) == check(complete(settings_for(name), base))


def test_a_recipe_that_needs_a_model_says_so(command: Any) -> None:
    answer = command("train", "classification/sst2")
    assert (answer.code, answer.err) == (
        2,
        "legato: this recipe goes on from a trained model; name it: from=MODEL\n",
    )


def test_doctor_looks_at_this_machine(command: Any) -> None:
    found = json.loads(command("doctor", "--json").out)
    assert found["legato"] == legato.__version__
    assert {"python", "torch", "device", "free disk here"} <= found.keys()
    assert {"sacrebleu", "sentencepiece"} <= found.keys()
    assert "float32 matrix product" in command("doctor").out


def test_doctor_asks_for_no_package_that_is_optional(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def version(name: str) -> str:
        if name in ("ctranslate2", "transformers"):
            raise metadata.PackageNotFoundError(name)
        return "1.0"

    monkeypatch.setattr("legato.runs.doctor.metadata.version", version)
    found = {finding.name: finding for finding in diagnosis.diagnose()}
    assert found["ctranslate2"].good
    assert found["ctranslate2"].value == "not installed (optional: legato export --to ctranslate2)"


# ── help ──────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize("words", [["--help"], ["train", "--help"], ["generate", "-h"], [], ["--version"]])
def test_help_imports_no_pytorch(words: list[str]) -> None:
    script = (
        "import sys\n"
        "from legato.cli import main\n"
        f"sys.argv = ['legato', *{words!r}]\n"
        "try:\n    main()\nexcept SystemExit as ended:\n    assert not ended.code, ended.code\n"
        "print([name for name in ('torch', 'numpy', 'datasets', 'matplotlib') if name in sys.modules])\n"
    )
    asked = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, timeout=60)
    assert asked.returncode == 0, asked.stderr
    assert asked.stdout.splitlines()[-1] == "[]"


def test_every_verb_is_in_the_help(command: Any) -> None:
    shown = command("--help").out
    assert all(verb in shown for verb in ("train", "eval", "generate", "compare", "models", "recipes", "doctor"))


def test_debug_shows_the_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    from legato.cli import main
    from legato.errors import ConfigError

    monkeypatch.setattr(sys, "argv", ["legato", "train", "--debug", "nothing"])
    with pytest.raises(ConfigError):
        main()


def test_a_fault_of_ours_is_called_one(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise RuntimeError("it broke\nin two lines")

    monkeypatch.setattr("legato.runs.doctor.diagnose", fail)
    answer = command("doctor")
    assert answer.code == 1
    assert (
        answer.err == "legato: this is a fault of ours: RuntimeError: it broke in two lines (--debug shows where)\n"
    )


def test_every_setting_has_a_meaning() -> None:
    rows = describe_settings({"task": "lm", "model": {"name": "gru"}})
    named = [(key, meaning) for key, _, meaning in rows if key != "model.name"]
    assert all(meaning for _, meaning in named), [key for key, meaning in named if not meaning]


def test_train_lists_its_keys(command: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("COLUMNS", "200")
    answer = command("train", "lm", "model=window", "--keys")
    assert answer.code == 0
    assert "model.context" in answer.out
    assert "train.batch_tokens" in answer.out


def test_the_length_of_a_run_and_its_rate_are_explained_where_nobody_sets_them() -> None:
    meanings = {key: (default, meaning) for key, default, meaning in describe_settings({"task": "translation"})}
    assert meanings["train.lr"] == ("0.001", "the highest; none: 0.003 for adamw, 1 for sgd and asgd")
    assert meanings["train.epochs"] == ("None", "passes over the data, when train.steps is none; none: 10")


def test_a_quiet_comparison_tells_what_it_is_at(tmp_path: Path) -> None:
    told: list[str] = []
    settings = {**small(tmp_path, train__steps=4), "model": ["elman", "lstm"], "match": "none"}
    legato.compare("lm", settings, out=tmp_path / "c", quiet=True, tell=told.append)
    kinds = [line.split(":")[0] + line[-1] for line in told]
    assert kinds == ["elman…", "  valid at step 4)", "elmans", "lstm…", "  valid at step 4)", "lstms"]


def test_a_comparison_goes_on_where_it_was_stopped(home: Path, tmp_path: Path) -> None:
    settings = {**small(home, train__steps=4), "model": ["elman", "gru"], "model.width": 16}
    whole = legato.compare("lm", settings, out=tmp_path / "whole", quiet=True)
    stopped = legato.compare("lm", settings, out=tmp_path / "stopped", quiet=True)
    for name in ("compare.json", "compare.png"):
        (tmp_path / "stopped" / name).unlink()
    shutil.rmtree(stopped.entries[1].results[0].run)  # as if it had been killed before the second run
    again = legato.compare("lm", settings, out=tmp_path / "stopped", quiet=True)
    assert [e.results[0].metrics for e in again.entries] == [e.results[0].metrics for e in whole.entries]


def test_a_comparison_keeps_the_seed_of_a_file(home: Path, tmp_path: Path) -> None:
    for name in ("a", "b"):
        settings = {"task": "lm", "seed": 7, **small(home, train__steps=2)}
        (tmp_path / f"{name}.yaml").write_text(yaml.safe_dump(json.loads(json.dumps(settings, default=str))))
    found = legato.compare([str(tmp_path / "a.yaml"), str(tmp_path / "b.yaml")], out=tmp_path / "c", quiet=True)
    assert check(yaml.safe_load((found.entries[0].results[0].run / "config.yaml").read_text())).seed == 7


def test_a_toy_is_tested_as_it_was_trained(tmp_path: Path) -> None:
    settings = {"data.train": "toy:recall", "data.toy.distance": 3, "data.toy.count": 200, "train.steps": 2}
    legato.train("lm", {**settings, "model.width": 8}, out=tmp_path / "run", seed=5, quiet=True)
    about = legato.load(tmp_path / "run").about["toy"]
    assert about["seed"] == 5
    assert about["settings"]["distance"] == [3, 3]


def test_an_expectation_that_was_not_measured_was_not_reached(home: Path, tmp_path: Path) -> None:
    settings = {**small(home, train__steps=2), "expect": {"test.perplexity": {"at_most": 10}}}
    assert legato.train("lm", settings, out=tmp_path / "run", quiet=True).reached == {"test.perplexity": False}


def test_a_run_is_trained_by_one_process_at_a_time(home: Path, tmp_path: Path) -> None:
    run = RunFolder.create(tmp_path / "run", {"task": "lm"})
    with pytest.raises(FolderError, match="being trained by another process"):
        legato.train(resume=tmp_path / "run", quiet=True)
    run.release()


def test_hidden_words_are_told_beside_bits_per_byte(home: Path, tmp_path: Path) -> None:
    settings = {
        **small(home, train__steps=2),
        "tokenizer": "word",
        "tokenizer.min_count": 1000,
        "train.batch_tokens": 32,
        "data.window": 8,
    }
    assert legato.train("lm", settings, out=tmp_path / "run", quiet=True).metrics["valid.unknown_share"] > 0


def test_a_prompt_that_the_model_cannot_read_is_said_so(command: Any, home: Path) -> None:
    answer = command("generate", home / "run", "☃", "--max-tokens", "2")
    assert answer.code == 0
    assert "does not know all of '☃'" in answer.err
