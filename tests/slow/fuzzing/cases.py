"""Cases: a scenario and what is damaged in it, written on one line, so that any can be run again.

predict-lm run/best/config.json=json.value#3            a file
train-lm setting:model.width=word#17                    a setting
generate-greedy option:--top-k=word#4 gpt2/config.json=json.delete#2      two at once
"""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import random
import re
import shutil
import traceback
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, Final

from fuzzing import trial
from fuzzing.damage import damage, kinds_of, prepare_outside
from fuzzing.scenarios import Scenario, scenarios, verbs
from fuzzing.stock import copy_into
from fuzzing.values import word
from fuzzing.watch import Watch

# What somebody who asks for a great deal of gets: a long wait is what the command was told to do.
ASKED_FOR: Final = frozenset(
    {
        *("train.steps", "train.epochs", "--max-tokens", "train.samples", "data.toy.count", "data.toy.valid_count"),
        *("data.beams", "data.max_tokens", "--beams", "--nbest", "train.accumulate", "--min-tokens"),
        *("model.highways", "head.lstm"),
        *("--check",),  # without which a server goes on until somebody stops it
    }
)
WRITES: Final = frozenset(
    {"out", "--out", "--attention", "--draw", "--srt", "--save", "--html"}
)  # which name a place to write to
SERVES: Final = frozenset({"--serve", "--ray"})  # what goes on until somebody stops it, or starts a cluster for each
PLACE: Final = re.compile(r"(?P<target>\S+)=(?P<kind>[\w.-]+)#(?P<seed>\d+)")


@dataclass(frozen=True)
class Damage:
    """What is damaged, how, and which of the many ways to do that."""

    target: str
    kind: str
    seed: int

    def __str__(self) -> str:
        return f"{self.target}={self.kind}#{self.seed}"


@dataclass(frozen=True)
class Case:
    """A command on a damaged example."""

    scenario: str
    damages: tuple[Damage, ...]

    def __str__(self) -> str:
        return " ".join([self.scenario, *map(str, self.damages)])

    @classmethod
    def read(cls, line: str) -> Case:
        name, *rest = line.split()
        found = [PLACE.fullmatch(part) for part in rest]
        return cls(name, tuple(Damage(f["target"], f["kind"], int(f["seed"])) for f in found if f is not None))


@dataclass
class Example:
    """A scenario whose folder is made, and what it reads."""

    scenario: Scenario
    folder: Path  # as it is before the command
    targets: dict[str, list[str]]  # files, settings, options, arguments: each with its kinds of damage
    meanings: dict[str, str]
    figures: dict[str, Any]  # what it says of a model that it trains


class Workshop:
    """Makes examples once, and runs cases on copies of them."""

    def __init__(self, home: Path) -> None:
        self.home = home
        self.examples: dict[str, Example] = {}

    def prepare(self, names: Iterable[str], workers: int = 2) -> None:
        """Make what these scenarios start from, run each whole, and see what it reads."""
        known = scenarios()
        shares: list[list[Scenario]] = [[] for _ in range(workers)]
        turns: dict[str, int] = {}
        for name in names:  # those that start from the same are made by the same process
            shares[turns.setdefault(_start_of(known[name]), len(turns)) % workers].append(known[name])
        results = [self.home / f"prepared-{number}" for number in range(workers)]
        _in_children([partial(self._prepare_all, *pair) for pair in zip(shares, results, strict=True)])
        broken: list[str] = []
        for result in results:
            found, problems = pickle.loads(result.read_bytes())
            broken += problems
            for name, parts in found.items():
                self.examples[name] = Example(known[name], *parts)
        if broken:
            raise AssertionError("\n".join(broken[:20]))

    def _prepare_all(self, share: list[Scenario], result: Path) -> None:
        found, broken = {}, []
        for scenario in share:
            try:
                found[scenario.name] = self._prepare(scenario, result.name)
            except AssertionError as problem:
                broken.append(str(problem))
        result.write_bytes(pickle.dumps((found, broken)))

    def _prepare(
        self, scenario: Scenario, worker: str
    ) -> tuple[Path, dict[str, list[str]], dict[str, str], dict[str, Any]]:
        made = self._made(scenario, f"making-{worker}")
        root = self._fresh(f"probe-{worker}", made)
        watch = Watch(root / "in")
        outcome = trial.run(root, list(scenario.words), scenario.stdin, scenario.own)
        opened = watch.opened()
        problem = self._judge(scenario, root, outcome, list(scenario.words))
        if problem is not None or outcome.code != scenario.code:
            raise AssertionError(f"{scenario.name} fails with nothing damaged: {problem}\n{outcome.err[-800:]}")
        files = [name for name in opened if (made / name).is_file()]
        targets = {name: kinds_of((made / name).read_bytes()) for name in files if name.startswith(scenario.reads)}
        meanings = _settings(scenario) | _options(scenario)
        targets |= {name: ["word", "word-2", "word-3"] for name in meanings}
        if scenario.options:
            targets |= {f"argument:{place}": ["word", "drop"] for place in range(1, min(len(scenario.words), 6))}
        return made, targets, meanings, _figures(outcome.out)

    def _made(self, scenario: Scenario, where: str) -> Path:
        """The folder before the command; scenarios that start from the same share it."""
        folder = self.home / "made" / _start_of(scenario)
        if folder.exists():
            return folder
        root = self.home / where
        trial.clean(root)
        inside = root / "in"
        inside.mkdir(parents=True)
        prepare_outside(root)
        _in_children([partial(make, inside) for make in scenario.makes])
        for words in scenario.first:
            outcome = trial.run(root, list(words), "", ("",))
            if outcome.code != 0:
                raise AssertionError(f"{scenario.name} cannot be prepared: {' '.join(words)}\n{outcome.err}")
        if "cache" not in scenario.keep:
            shutil.rmtree(inside / "cache", ignore_errors=True)
        folder.parent.mkdir(exist_ok=True)
        inside.rename(folder)
        return folder

    def _fresh(self, name: str, made: Path) -> Path:
        root = self.home / name
        trial.clean(root)
        (root / "in").mkdir(parents=True)
        copy_into(made, root / "in")
        prepare_outside(root)
        return root

    def run(self, case: Case, where: str = "case") -> tuple[trial.Outcome, str | None]:
        """What the case left, and why that may not be, if it may not."""
        example = self.examples[case.scenario]
        scenario = example.scenario
        root = self._fresh(where, example.folder)
        words = list(scenario.words)
        free = False
        for part in case.damages:
            draw = random.Random(f"{case.scenario} {part}")
            kind, _, name = part.target.partition(":")
            if kind in ("setting", "option", "argument") and name:
                words = _reworded(words, kind, name, part.kind, draw, example.meanings.get(part.target, ""))
                free = free or name in WRITES or kind == "argument"
            elif (root / "in" / part.target).is_file():
                try:
                    damage(root / "in" / part.target, part.kind, draw)
                except Exception as problem:
                    raise AssertionError(f"the fuzzer cannot do this: {case}") from problem
        outcome = trial.run(root, words, scenario.stdin, scenario.own)
        if free:  # a place that it was told to write to; what was there before is not its own
            outcome.changed = [
                name for name in outcome.changed if (example.folder / name.removeprefix("in/")).exists()
            ]
        problem = self._judge(scenario, root, outcome, words)
        cached = all(part.target.startswith("cache/") for part in case.damages)
        if problem is None and outcome.code == 0 and cached and _figures(outcome.out) != example.figures:
            problem = "a damaged cache makes another model"
        return outcome, problem

    def _judge(self, scenario: Scenario, root: Path, outcome: trial.Outcome, words: list[str]) -> str | None:
        reworded = words != list(scenario.words)
        counts = None if reworded else _answers(scenario, root)
        json_lines = "--json" in words and outcome.code == 0 and "--keys" not in words and "--help" not in words
        return trial.failure(outcome, root, json_lines=json_lines, answers=counts, verb=scenario.verb)

    def cases(self, count: int, seed: int = 0) -> Iterator[Case]:
        """Every target once, each in a way of its own, then once more in another way, until there are `count`.

        Files take turns four times as often as words: there is more that can be wrong with one.
        """
        turn = 0
        while count > 0:
            found = []
            for name, example in self.examples.items():
                for target, kinds in example.targets.items():
                    turns, rest = divmod(turn, 4 if _is_word(target) else 1)
                    if rest == 0:
                        order = _mixed(kinds, random.Random(f"{seed} {name} {target}"))
                        number, place = divmod(turns, len(order))
                        found.append(Case(name, (Damage(target, order[place], 1000 * seed + number),)))
            yield from random.Random(f"{seed} {turn}").sample(found, len(found))[:count]
            count -= len(found)
            turn += 1


def _is_word(target: str) -> bool:
    return target.startswith(("setting:", "option:", "argument:"))


def _mixed(kinds: list[str], draw: random.Random) -> list[str]:
    """Kinds in any order, but of three, two that follow what is in the file and one that any file can take."""
    common = [kind for kind in kinds if kind.startswith(("bytes.", "file."))]
    own = [kind for kind in kinds if kind not in common]
    common, own = (draw.sample(part, len(part)) for part in (common, own))
    order = []
    while common or own:
        order += [*own[:2], *common[:1]]
        common, own = common[1:], own[2:]
    return order


def _answers(scenario: Scenario, root: Path) -> set[int] | None:
    """How many lines of answers there may be: as many as there are texts, by either idea of what a line is."""
    if scenario.texts is None or isinstance(scenario.texts, int):
        return None if scenario.texts is None else {scenario.texts}
    file = root / "in" / scenario.texts
    if file.is_symlink() or not file.is_file():
        return None
    content = file.read_bytes()
    plain = content.replace(b"\r\n", b"\n").replace(b"\r", b"\n")
    return {len(part.removesuffix(b"\n").split(b"\n")) for part in (content, plain)} | {content.count(b"\n")}


def _figures(out: str) -> dict[str, Any]:
    """The scores of a model, as `train --json` tells them."""
    try:
        told = json.loads(out.removesuffix("\n").split("\n")[-1])
    except (ValueError, IndexError):
        return {}
    return {key: value for key, value in told.items() if "." in key} if isinstance(told, dict) else {}


def _settings(scenario: Scenario) -> dict[str, str]:
    """The settings that the command takes, each with what it means."""
    from legato.config import parse_words
    from legato.runs.config import describe_settings

    if not scenario.keys:
        return {}
    task = scenario.words[1] if "=" not in scenario.words[1] else "lm"
    if scenario.verb == "eval":
        task = scenario.name.partition("-")[2]
    told = parse_words([part for part in scenario.words[2:] if "=" in part and not part.startswith("--")])
    told = {key: value for key, value in told.items() if key == "model" and not str(value).startswith("{'name': [")}
    found = describe_settings({"task": task, **told})
    found = [row for row in found if row.key.startswith(scenario.keys)]
    return {f"setting:{row.key}": f"{row.default} {row.meaning}" for row in found}


def _options(scenario: Scenario) -> dict[str, str]:
    """The options that the verb has, by click's own declaration."""
    found = {}
    for parameter in verbs()[scenario.verb].params if scenario.options else ():
        if parameter.param_type_name == "option":
            shape = "flag" if parameter.is_flag else ""
            for name in (*parameter.opts, *parameter.secondary_opts):
                if name not in SERVES:
                    found[f"option:{name}"] = shape or (parameter.help or "")
    return found


def _reworded(words: list[str], kind: str, name: str, how: str, draw: random.Random, meaning: str) -> list[str]:
    """The command's words with one that is something else."""
    if kind == "argument":
        place = int(name)
        if place < len(words) and not _asks(words[place].partition("=")[0]):
            words = words[:place] + ([] if how == "drop" else [word(draw)]) + words[place + 1 :]
        return words
    made = word(draw, meaning)
    if _asks(name) and _is_much(made):
        made = "3"
    if kind == "setting":
        return [*words, f"{name}={made}"]
    if meaning == "flag":
        return [*words, name]
    if name in words[:-1]:
        place = words.index(name)
        return [*words[: place + 1], made, *words[place + 2 :]]
    return [*words, name, made]


def _asks(name: str) -> bool:
    """Whether much of it is much to compute, and no fault."""
    return name in ASKED_FOR or name.endswith(".layers")


def _is_much(made: str) -> bool:
    try:
        return 50 < float(made) < 2**63
    except ValueError:
        return False


def _start_of(scenario: Scenario) -> str:
    """A name for what a scenario starts from; the same for those that start from the same."""
    makes = [(make.__qualname__, [cell.cell_contents for cell in make.__closure__ or ()]) for make in scenario.makes]
    key = repr((makes, scenario.first, scenario.keep))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def _in_children(works: Iterable[Callable[[], object]]) -> None:
    """Do this in forked processes side by side, so that this one starts no threads and draws no random numbers."""
    children = [_fork(work) for work in works]
    for child in children:
        if os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) != 0:
            raise AssertionError("the files of a scenario could not be made")


def _fork(work: Callable[[], object]) -> int:
    child = os.fork()
    if child == 0:
        code = 1
        try:
            work()
            code = 0
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(code)
    return child
