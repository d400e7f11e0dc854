"""The words of a command as people type them: what is translated, and what is answered with the words to type.

Verbs that take text have options; a word without a hyphen is a text or a path. `--max_tokens`, `--Max-Tokens` and
Hugging Face's `--max_new_tokens` are `--max-tokens`; `max_tokens=5` behind a text is a slip.
"""

from __future__ import annotations

import os
import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, Final

from typer.core import TyperCommand

from legato.errors import ConfigError, brief

STYLE: Final[dict[str, Any]] = {
    "add_completion": False,
    "pretty_exceptions_enable": False,
    "rich_markup_mode": "rich",
    "context_settings": {"help_option_names": ["-h", "--help"]},
}
LONG: Final = 240  # characters of a command in a message
# Verbs whose first word is a place (a model, an index), and a text comes behind it.
PLACED: Final = ("generate", "predict", "embed", "inspect", "eval", "search", "ask")
SETTING: Final = re.compile(r"([A-Za-z][\w-]*)=(\S*)")
# What marks a folder as a model, a run or an index.
MARKS: Final = ("config.json", "config.yaml", "modules.json", "adapter_config.json", "best", "last", "manifest.json")
# Names that a text has as an option elsewhere.
TEXTS: Final = ("--input", "--inputs", "--prompt", "--question", "--text", "--texts")

# Verbs of other programs: the words to type, `{}` for those that followed, and what stands for them where none did.
OTHER_VERBS: Final[dict[str, tuple[str, str]]] = {
    **dict.fromkeys(("evaluate", "evaluation", "score", "test", "validate"), ("eval {}", "RUN data.test=FILE")),
    **dict.fromkeys(("fit", "learn", "pretrain", "run", "start"), ("train {}", "TASK data.train=FILE")),
    **dict.fromkeys(("adapt", "fine-tune", "finetune", "sft", "tune"), ("train TASK from=MODEL data.train=FILE", "")),
    **dict.fromkeys(("chat", "talk"), ("generate {} --chat", "MODEL")),
    **dict.fromkeys(("complete", "sample", "write"), ("generate {}", "MODEL TEXT")),
    **dict.fromkeys(
        ("caption", "classify", "detect", "infer", "inference", "parse", "tag", "transcribe", "translate"),
        ("predict {}", "RUN TEXT"),
    ),
    **dict.fromkeys(("encode", "vectors"), ("embed {}", "MODEL TEXT")),
    **dict.fromkeys(("explain", "trace", "visualize"), ("inspect {}", "RUN TEXT")),
    **dict.fromkeys(("dashboard", "gui", "studio", "ui", "web"), ("inspect {} --serve", "RUN")),
    **dict.fromkeys(("api", "server"), ("serve {}", "MODEL")),
    **dict.fromkeys(("convert", "merge"), ("export {} --to hf", "RUN")),
    **dict.fromkeys(("history", "list", "ls"), ("runs {}", "")),
    **dict.fromkeys(("delete", "remove", "rm"), ("runs delete {}", "RUN")),
    **dict.fromkeys(("continue", "resume"), ("train resume={}", "RUN")),
    **dict.fromkeys(("config", "params", "settings"), ("train TASK --keys", "")),
    **dict.fromkeys(("check", "env", "info"), ("doctor", "")),
    **dict.fromkeys(("download", "pull"), ("generate {} TEXT", "ORG/NAME")),
    "help": ("{} --help", ""),
    "rag": ("ask {}", "INDEX QUESTION --model MODEL"),
    "version": ("--version", ""),
}


class LazyCommands(Mapping[str, Any]):
    """Commands by their names, each made when it is asked for: their options take most of the time."""

    def __init__(self, names: Collection[str], make: Callable[[str], Any]) -> None:
        self._names, self._make = names, make

    def __getitem__(self, name: str) -> Any:
        if name not in self._names:
            raise KeyError(name)
        return self._make(name)

    def __iter__(self) -> Iterator[str]:
        return iter(self._names)

    def __len__(self) -> int:
        return len(self._names)


class VerbCommand(TyperCommand):
    """A verb's command, which understands names of other toolkits and answers slips with the words to type."""

    def parse_args(self, ctx: Any, args: list[str]) -> list[str]:
        if not ctx.resilient_parsing:
            args = _Words(self, ctx.command_path, args).spelled()
        try:
            return super().parse_args(ctx, args)
        except Exception as problem:
            if not hasattr(problem, "format_message"):
                raise
            raise ConfigError(
                f"{brief(problem.format_message(), LONG).rstrip('.')}; {self._example(ctx.command_path)}"
            ) from None

    def _example(self, path: str) -> str:
        """The first example of the verb's help."""
        lines = re.findall(r"\[dim\](legato .*)\[/dim\]", self.help or "")
        shown = lines[0].replace("\\[", "[") if lines else f"{path} --help"
        return f"as in: {shown} ({path} --help shows all)"


class _Words:
    """The words behind a verb: which are options, and which stand for themselves."""

    def __init__(self, command: Any, path: str, args: Sequence[str]) -> None:
        self.verb, self.path = command.name, path
        self.free = bool(command.context_settings.get("ignore_unknown_options"))  # settings may be options
        options = [param for param in command.params if param.param_type_name == "option"]
        self.options = {name: param for param in options for name in (*param.opts, *param.secondary_opts)}
        self.fields = [name[2:].replace("-", "_") for name in self.options if name.startswith("--")]
        self.places = [param for param in command.params if param.param_type_name == "argument"]
        self.args = list(args)
        self.words: list[str] = []  # as typer is to read them
        self.texts: list[int] = []  # where among those a text or a path stands

    def spelled(self) -> list[str]:
        """The words with every option under our name."""
        foreign: dict[str, Any] = {}
        rest = list(self.args)
        while rest:
            word = rest.pop(0)
            if word == "--":
                self.texts += range(len(self.words) + 1, len(self.words) + 1 + len(rest))
                self.words += [word, *rest]
                break
            if not word.startswith("-") or len(word) == 1 or word[1].isdigit():
                self.texts.append(len(self.words))
                self.words.append(word)
                continue
            name, equals, value = word.partition("=")
            name = self._ours(name)
            option = self.options.get(name)
            if option is None and (name.startswith("--") or name == "-o") and not self.free:
                translated = self._foreign(name, value if equals else None, rest)
                if translated is not None:
                    foreign |= translated
                    continue
            self.words.append(name + equals + value)
            if option is not None and not equals and not option.is_flag and not option.count and rest:
                self.words.append(rest.pop(0))
        end = self.words.index("--") if "--" in self.words else len(self.words)
        self.words[end:end] = _as_options(self._renamed(foreign))
        self._check_order()
        if self.verb in PLACED and not self.free:
            self._check_settings()
        return self.words

    def _ours(self, name: str) -> str:
        """An option's name as ours are written: `--max_tokens` is `--max-tokens`."""
        folded = name.lower().replace("_", "-")
        return folded if name not in self.options and folded in self.options else name

    def _foreign(self, name: str, value: str | None, rest: list[str]) -> dict[str, str] | None:
        """An option of another toolkit and its value, which leaves the rest; None where it has no meaning."""
        from legato.other_names import instead, note_name, our_names, switched

        key = name.lstrip("-").lower().replace("-", "_")
        if (nearest := instead(key, self.fields)) is not None:
            field, example, reason = nearest
            raise ConfigError(f"{name}: {reason}; write {shlex.join(_as_options({field: example}))}")
        setting = switched(key, self.fields)
        if setting is not None and value is None:
            ours, _, value = setting.partition("=")
            note_name(name, f"--{ours.replace('_', '-')} {value}")
            return {ours: value}
        if key == "do_sample" and "temperature" in self.fields:
            ahead = rest[0].lower() if rest else ""
            return {key: (rest.pop(0) if ahead in ("true", "false") else "true") if value is None else value}
        if any(ours in self.fields for ours in our_names(key)):
            if value is None and not rest:
                raise ConfigError(f"{name} needs a value, as in {name} 1")
            return {key: rest.pop(0) if value is None else value}
        if name == "--model" and self.places and (value is not None or rest):
            value = rest.pop(0) if value is None else value
            words = [value, *self.words, *rest]
            raise ConfigError(f"the model stands first, without --model; type: {self._command(words)}")
        if name in TEXTS and self.verb in PLACED and (value is not None or rest):
            value = rest.pop(0) if value is None else value
            raise ConfigError(
                f"a text stands by itself, without {name}; type: {self._command([*self.words, *rest, value])}"
            )
        return None

    def _renamed(self, foreign: Mapping[str, Any]) -> dict[str, Any]:
        from legato.other_names import note_name, renamed

        def note(theirs: str, ours: str) -> None:
            note_name("-o" if theirs == "o" else f"--{theirs.replace('_', '-')}", f"--{ours.replace('_', '-')}")

        return renamed(foreign, self.fields, note) if foreign else {}

    def _check_order(self) -> None:
        """Refuse a text before the model that it is for."""
        if self.verb not in PLACED or len(self.texts) < 2:
            return
        first, *others = (self.words[place] for place in self.texts)
        if os.path.isdir(first) or first.endswith(".gguf") or "://" in first:
            return
        places = [word for word in others if _is_place(word)]
        if places:
            rest = list(self.words)
            rest.remove(places[0])
            what = "index" if self.verb in ("search", "ask") else "model"
            raise ConfigError(f"the {what} stands first; type: {self._command([places[0], *rest])}")

    def _check_settings(self) -> None:
        """Refuse `max_tokens=5` beside a text; alone it is a text, and a note says how it is set."""
        behind = [place for place in self.texts[1:] if not os.path.exists(self.words[place])]
        slips = {place: words for place in behind if (words := self._setting(self.words[place]))}
        if not slips:
            return
        several = any(place.nargs == -1 for place in self.places)
        if len(slips) == len(behind) and (several or len(behind) < len(self.places)):
            from legato.cli.printing import print_note

            word, options = next((self.words[place], words) for place, words in slips.items())
            print_note(f"legato: note: '{brief(word)}' is read as a text; the setting is {shlex.join(options)}")
            return
        words = [part for place, word in enumerate(self.words) for part in slips.get(place, [word])]
        slip = self.words[next(iter(slips))]
        raise ConfigError(f"'{brief(slip)}' is a setting, and a text stands there; type: {self._command(words)}")

    def _setting(self, word: str) -> list[str]:
        """The option that `key=value` is meant to be; empty where it is none."""
        match = SETTING.fullmatch(word)
        if match is None:
            return []
        key = match[1].lower().replace("-", "_")
        if key not in self.fields:
            from legato.other_names import our_names

            key = next((name for name in our_names(key) if name in self.fields), "")
        return _as_options({key: match[2]}) if key else []

    def _command(self, words: Sequence[str]) -> str:
        return brief(f"{self.path} {shlex.join(words)}", LONG)


def _as_options(settings: Mapping[str, Any]) -> list[str]:
    return [word for key, value in settings.items() for word in (f"--{key.replace('_', '-')}", str(value))]


def _is_place(word: str) -> bool:
    """Whether a word names a model, a run or an index that is here."""
    return os.path.isdir(word) and any(os.path.exists(os.path.join(word, mark)) for mark in MARKS)


def no_verb(name: str, rest: Sequence[str], verbs: Sequence[str]) -> ConfigError:
    """What to say of a verb that there is not."""
    from legato.errors import suggest
    from legato.runs.recipes import task_named

    words, blank = OTHER_VERBS.get(name.lower(), ("", ""))
    command = [name, *rest]
    if words:
        command = shlex.split(words.replace("{}", "\0").strip())
        behind = list(rest) or shlex.split(blank)
        command = [part for word in command for part in _filled(word, behind)]
    elif task_named(name) is not None or name.lower().endswith((".csv", ".tsv", ".yaml", ".txt", ".jsonl")):
        command = ["train", name, *rest]
    elif _is_place(name):
        command = ["predict", name, *(rest or ["TEXT"])]
    else:
        return ConfigError(f"there is no verb '{brief(name)}'; {suggest(name, verbs)}")
    return ConfigError(f"there is no verb '{brief(name)}'; type: {brief(shlex.join(['legato', *command]), LONG)}")


def _filled(word: str, behind: Sequence[str]) -> list[str]:
    """A word of `OTHER_VERBS` with what followed the verb in the place of its blank."""
    if word == "\0":
        return list(behind)
    return [word.replace("\0", behind[0] if behind else "")]
