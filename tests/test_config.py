"""Settings: how they are written, laid over each other, checked and kept."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from pydantic import Field, model_validator

from legato.config import Section, merge, nested, parse_value, parse_words, read_yaml, to_yaml, validate
from legato.errors import ConfigError, suggest
from legato.runs.config import RunConfig, check, dump, flat, settings_for
from legato.runs.recipes import named_and_set


class Inner(Section):
    depth: int = Field(1, ge=1)


class Outer(Section):
    width: int = Field(4, ge=1)
    share: float = 0.5
    tied: bool = True
    label: str = "x"
    inner: Inner = Inner()
    named: dict[str, Inner] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _together(self) -> Outer:
        if self.width == 13 and self.tied:
            raise ValueError("13 is never tied")
        return self


def refused(settings: Any, where: str = "") -> str:
    with pytest.raises(ConfigError) as caught:
        validate(Outer, settings, where)
    assert "\n" not in str(caught.value)
    return str(caught.value)


def refused_run(*words: str) -> str:
    with pytest.raises(ConfigError) as caught:
        check(settings_for("lm", words))
    assert "\n" not in str(caught.value)
    return str(caught.value)


# --- words -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("5", "5"),
        ("1e-3", "1e-3"),
        ("runs/x", "runs/x"),
        ("[a,b]", ["a", "b"]),
        ("[a.en, a.de]", ["a.en", "a.de"]),
        ("[1,2]", [1, 2]),
        ("{a: 1}", {"a": 1}),
        ("none", None),
        ("null", None),
        ("", None),
        ("a=b", "a=b"),
    ],
)
def test_a_value_is_text_unless_it_is_a_list_or_nothing(text: str, value: Any) -> None:
    assert parse_value(text) == value


def test_a_list_that_does_not_end_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"'\[a,b' is not a list; write \[a,b,c\]"):
        parse_value("[a,b")


def test_dots_lead_into_sections() -> None:
    words = ["model.width=5", "out=runs/x", "data.toy.length=[2,4]", "model.layers=2"]
    assert parse_words(words) == {
        "model": {"width": "5", "layers": "2"},
        "out": "runs/x",
        "data": {"toy": {"length": [2, 4]}},
    }


@pytest.mark.parametrize("section", ["model", "tokenizer"])
def test_a_section_set_to_a_word_is_its_name(section: str) -> None:
    assert parse_words([f"{section}=x", f"{section}.size=5"]) == {section: {"name": "x", "size": "5"}}


def test_a_section_set_to_a_mapping_is_that_mapping() -> None:
    assert parse_words(["model={name: gru, width: 5}"]) == {"model": {"name": "gru", "width": 5}}


def test_only_the_first_equals_sign_separates() -> None:
    assert parse_words(["data.train=a=b.txt"]) == {"data": {"train": "a=b.txt"}}


def test_the_last_word_wins() -> None:
    assert parse_words(["seed=1", "seed=2"]) == {"seed": "2"}


@pytest.mark.parametrize("word", ["lstm", "=5", ""])
def test_a_word_that_is_no_setting_is_named(word: str) -> None:
    with pytest.raises(ConfigError, match=f"'{word}' is not a setting; settings are written key=value"):
        parse_words([word])


def test_a_value_cannot_become_a_section() -> None:
    with pytest.raises(ConfigError, match=r"'from\.encoder' is set inside 'from', which is already the value 'x'"):
        parse_words(["from=x", "from.encoder=y"])


def test_dotted_keys_make_the_sections_they_need() -> None:
    assert nested({"a": {"b": 1}, "a.c.d": 2}) == {"a": {"b": 1, "c": {"d": 2}}}


# --- laying over -----------------------------------------------------------------------------------


def test_merging_goes_section_by_section() -> None:
    base = {"model": {"name": "lstm", "width": 5}, "seed": 1, "data": {"toy": {"rows": 3}}}
    over = {"model": {"width": 6}, "data": {"toy": {"distance": 2}}, "out": "x"}
    assert merge(base, over) == {
        "model": {"name": "lstm", "width": 6},
        "seed": 1,
        "data": {"toy": {"rows": 3, "distance": 2}},
        "out": "x",
    }


def test_merging_changes_neither_side() -> None:
    base, over = {"model": {"width": 5}}, {"model": {"layers": 2}}
    merge(base, over)["model"]["width"] = 9
    assert (base, over) == ({"model": {"width": 5}}, {"model": {"layers": 2}})


@pytest.mark.parametrize(("base", "over"), [(5, {"a": 1}), ({"a": 1}, 5), ({"a": 1}, None)])
def test_what_is_laid_over_wins_where_only_one_is_a_section(base: Any, over: Any) -> None:
    assert merge({"x": base}, {"x": over}) == {"x": over}


def test_a_list_replaces_a_list() -> None:
    assert merge({"x": [1, 2]}, {"x": [3]}) == {"x": [3]}


# --- checking --------------------------------------------------------------------------------------


def test_words_take_the_type_of_their_field() -> None:
    checked = validate(Outer, {"width": "7", "share": "1e-3", "tied": "false", "inner": {"depth": "2"}})
    assert (checked.width, checked.share, checked.tied, checked.inner.depth) == (7, 0.001, False, 2)


def test_an_unknown_key_suggests_the_nearest() -> None:
    assert refused({"widht": 5}, "model") == "unknown key 'model.widht'; did you mean 'width'?"


def test_an_unknown_key_far_from_all_lists_what_there_is() -> None:
    known = "inner, label, named, share, tied, width"
    assert refused({"zzz": 5}, "model") == f"unknown key 'model.zzz'; there is {known}"


def test_an_unknown_key_in_a_nested_section_suggests_that_sections_keys() -> None:
    assert refused({"inner": {"dpeth": 5}}) == "unknown key 'inner.dpeth'; did you mean 'depth'?"


def test_an_unknown_key_in_a_section_that_the_user_named_suggests_too() -> None:
    assert refused({"named": {"mine": {"dpeth": 5}}}) == "unknown key 'named.mine.dpeth'; did you mean 'depth'?"


def test_the_unknown_key_is_told_before_other_mistakes() -> None:
    assert "widht" in refused({"width": "x", "widht": 5})


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"width": "five"}, "width=five is not a whole number"),
        ({"width": "2.5"}, "width=2.5 is not a whole number"),
        ({"width": 2.5}, "width=2.5 is not a whole number"),
        ({"width": [1]}, "width=[1] is not a whole number"),
        ({"width": None}, "width=None is not a whole number"),
        ({"width": {"a": 1}}, "width: is not a whole number"),
        ({"share": "much"}, "share=much is not a number"),
        ({"tied": "maybe"}, "tied=maybe is neither true nor false"),
        ({"label": 5}, "label=5 is not text"),
        ({"width": 0}, "width=0 should be greater than or equal to 1"),
        ({"inner": {"depth": -1}}, "inner.depth=-1 should be greater than or equal to 1"),
        ({"share": "nan"}, "share=nan should be a finite number"),
        ({"share": "inf"}, "share=inf should be a finite number"),
    ],
)
def test_a_wrong_value_is_named_with_its_key(settings: dict[str, Any], message: str) -> None:
    assert refused(settings) == message


def test_settings_that_do_not_go_together_name_their_section() -> None:
    assert refused({"width": 13}, "model") == "model: 13 is never tied"
    assert refused({"width": 13}) == "13 is never tied"


@pytest.mark.parametrize("settings", [5, "lstm", [1], None])
def test_what_is_no_section_is_refused(settings: Any) -> None:
    assert refused(settings, "model") == f"model should be a group of settings, not '{settings}'"


def test_a_checked_section_passes_as_it_is() -> None:
    section = Outer(width=9)
    assert validate(Outer, section) is section


def test_a_checked_section_does_not_change() -> None:
    with pytest.raises(ValueError, match="frozen"):
        Outer().width = 5  # type: ignore[misc]


def test_a_suggestion_from_nothing_says_so() -> None:
    assert suggest("x", []) == "there is none"


# --- files -----------------------------------------------------------------------------------------


def test_short_forms_in_a_file_are_spelled_out(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: lm\nmodel: gru\nmodel.width: 5\ntokenizer: {name: char}\n")
    assert read_yaml(file) == {"task": "lm", "model": {"name": "gru", "width": 5}, "tokenizer": {"name": "char"}}


def test_what_is_written_is_read_back(tmp_path: Path) -> None:
    settings = {"task": "lm", "about": "Zürich: 漢字", "data": {"train": "123"}, "expect": {}, "seed": 0}
    (tmp_path / "a.yaml").write_text(to_yaml(settings), encoding="utf-8")
    assert read_yaml(tmp_path / "a.yaml") == settings


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"there is no file .*a\.yaml"):
        read_yaml(tmp_path / "a.yaml")


@pytest.mark.parametrize(
    "content",
    ["model: [lstm\n", "a: b: c\n", "\tmodel: lstm\n", b"\xff\xfe\x00"],
    ids=["open-list", "two-colons", "tab", "binary"],
)
def test_a_file_that_is_no_yaml_is_named_in_one_line(tmp_path: Path, content: str | bytes) -> None:
    file = tmp_path / "a.yaml"
    file.write_bytes(content if isinstance(content, bytes) else content.encode())
    with pytest.raises(ConfigError, match=r"a\.yaml is not readable YAML: ") as caught:
        read_yaml(file)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("kind", ["bool", "int", "float"])
def test_a_value_that_is_not_of_its_tag_is_named_with_its_line(tmp_path: Path, kind: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(f"task: lm\nabout: !!{kind} x\n")
    with pytest.raises(ConfigError, match=rf"a\.yaml: line 2: 'x' is no {kind}; write another value"):
        read_yaml(file)


@pytest.mark.parametrize("content", ["", "just words\n", "- a\n- b\n", "5\n"])
def test_a_file_without_settings_is_refused(tmp_path: Path, content: str) -> None:
    file = tmp_path / "a.yaml"
    file.write_text(content)
    with pytest.raises(ConfigError, match=r"a\.yaml holds no settings; it should be a YAML mapping"):
        read_yaml(file)


# --- a run -----------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("model.widht=5", "unknown key 'model.widht'; did you mean 'width'?"),
        ("modle=lstm", "unknown key 'modle'; did you mean 'model'?"),
        ("model=lstn", "there is no model 'lstn'; did you mean 'lstm'?"),
        ("data.toy.distnace=5", "unknown key 'data.toy.distnace'; did you mean 'distance'?"),
        ("train.stpes=5", "unknown key 'train.stpes'; did you mean 'steps'?"),
        ("expect.minutes.at_mots=5", "unknown key 'expect.minutes.at_mots'; did you mean 'at_most'?"),
        ("model.width=wide", "model.width=wide is not a whole number"),
        ("model.width=0", "model.width=0 should be greater than or equal to 1"),
        ("model.layers=0", "model.layers=0 should be greater than or equal to 1"),
        ("train.batch_tokens=0", "train.batch_tokens=0 should be greater than or equal to 1"),
        ("train.steps=0", "train.steps=0 should be greater than or equal to 1"),
        ("train.lr=inf", "train.lr=inf should be a finite number"),
        ("data.window=0", "data.window=0 should be greater than or equal to 1"),
        ("tokenizer.size=0", "tokenizer.size=0 should be greater than 0"),
        ("seed=x", "seed=x is not a whole number"),
        ("head=5", "'head' is a group of settings, such as head.name=…, not '5'"),
        ("widht=5", "unknown key 'widht'; did you mean 'model.width'?"),
        ("batch_size=8", "'batch_size' may mean several settings; write train.batch_rows or train.batch_tokens"),
        ("bf16=true", "'bf16' has values of another kind here; write train.precision=bf16"),
        ("lora_alpha=8", "unknown key 'lora_alpha'; did you mean 'adapt.alpha'? It belongs to adapt=lora"),
        ("train.early_stopping=1", "unknown key 'train.early_stopping'; did you mean 'patience'?"),
    ],
)
def test_a_mistake_in_a_run_is_one_line_with_its_key(word: str, message: str) -> None:
    assert refused_run(word) == message


def test_a_task_that_is_a_list_is_no_task() -> None:
    assert refused_run("task=[lm]").startswith("task should be a name, such as task=NAME, not ['lm']")


def test_a_run_without_a_task_is_asked_for_one() -> None:
    with pytest.raises(ConfigError, match="which task"):
        check({})


def test_something_that_is_neither_task_recipe_nor_file_is_named() -> None:
    with pytest.raises(ConfigError, match="'lmm' is no task, recipe or YAML file; did you mean 'lm'"):
        settings_for("lmm")


def test_the_model_s_name_chooses_what_checks_it() -> None:
    assert check(settings_for("lm", ["model=window", "model.context=3"])).model.context == 3  # type: ignore[attr-defined]
    assert refused_run("model=lstm", "model.context=3").startswith("unknown key 'model.context'")


def test_words_lie_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: lm\nmodel: gru\nmodel.width: 5\nseed: 3\n")
    config = check(settings_for(str(file), ["model.width=7"]))
    assert (config.model.name, config.model.width, config.seed) == ("gru", 7, 3)  # type: ignore[attr-defined]


def test_a_mapping_from_python_is_as_good_as_words() -> None:
    from_words = check(settings_for("lm", ["model=gru", "model.width=5", "data.train=a.txt"]))
    assert check(settings_for("lm", {"model": "gru", "model.width": 5, "data.train": "a.txt"})) == from_words


RUNS: dict[str, list[str]] = {
    "bare": [],
    "lstm": ["data.train=123", "model.width=8", "train.lr=1e-3", "model.dropout_input=0.2", "out=runs/x"],
    "window": ["data.train=a.txt", "model=window", "tokenizer=char", "tokenizer.min_count=2", "seed=-5"],
    "toy": ["data.train=toy:recall", "data.toy.length=[2,4]", "data.toy.distance=7", "model=elman"],
    "expecting": ["expect.minutes.at_most=70", "expect.minutes.measured=68.5", "about=a: b", "train.optimizer=asgd"],
}


@pytest.mark.parametrize("name", RUNS)
def test_a_resolved_config_saved_and_read_back_is_the_same(name: str, tmp_path: Path) -> None:
    config: RunConfig = check(settings_for("lm", RUNS[name]))
    (tmp_path / "config.yaml").write_text(to_yaml(dump(config)), encoding="utf-8")
    assert check(read_yaml(tmp_path / "config.yaml")) == config.model_copy(update={"out": None})


def test_a_resolved_config_holds_every_setting() -> None:
    keys = set(flat(dump(check(settings_for("lm")))))
    assert {"model.width", "train.lr", "data.window", "tokenizer.name", "seed", "device"} <= keys


def test_flat_settings_have_dotted_keys() -> None:
    assert flat({"a": {"b": {"c": 1}}, "d": [2]}) == {"a.b.c": 1, "d": [2]}


@pytest.mark.parametrize(
    ("word", "ours"),
    [
        ("train.learning_rate=0.5", "train.lr"),
        ("learning_rate=0.5", "train.lr"),
        ("max_grad_norm=0.5", "train.clip"),
        ("hidden_size=5", "model.width"),
        ("model.num_layers=2", "model.layers"),
        ("vocab_size=300", "tokenizer.size"),
        ("train_file=a.txt", "data.train"),
    ],
)
def test_a_setting_s_name_elsewhere_is_translated_with_a_note(word: str, ours: str) -> None:
    theirs, _, value = word.partition("=")
    with pytest.warns(UserWarning, match=f"{theirs} is called {ours} here"):
        config = check(settings_for("lm", [word]))
    assert config == check(settings_for("lm", [f"{ours}={value}"]))


@pytest.mark.parametrize(
    "words", [["lr=0.5"], ["--lr", "0.5"], ["--lr=0.5"], ["--train.lr", "0.5"], ["train.lr=0.5"]]
)
def test_a_setting_may_be_written_without_its_section_and_as_an_option(words: list[str]) -> None:
    assert check(settings_for("lm", words)).train.lr == 0.5


def test_a_name_without_a_section_lies_over_a_file(tmp_path: Path) -> None:
    file = tmp_path / "a.yaml"
    file.write_text("task: lm\ntrain.lr: 0.1\ndata: a.txt\n")
    config = check(settings_for(str(file), ["lr=0.5"]))
    assert (config.train.lr, config.data.train) == (0.5, "a.txt")  # type: ignore[attr-defined]


@pytest.mark.parametrize("words", [["classification", "a.csv"], ["a.csv", "Text_Classification", "--steps", "3"]])
def test_a_file_beside_the_task_is_what_it_trains_on(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    what, settings = named_and_set(words)
    assert settings_for(what, settings)["task"] == "classification"
    assert settings["data.train"] == "a.csv"
    with pytest.raises(ConfigError, match=r"'b\.csv' is not a setting, and no file is called so"):
        named_and_set(["lm", "b.csv"])


def test_a_model_s_name_in_a_task_s_place_is_answered_with_the_words_to_type() -> None:
    with pytest.raises(ConfigError, match="'lstm' is a model, and a task comes first: legato train lm model=lstm"):
        settings_for("lstm")


def test_an_option_without_a_value_is_named() -> None:
    with pytest.raises(ConfigError, match="--lr needs a value, as in --lr 1"):
        parse_words(["--lr", "--steps", "3"])


def test_settings_that_could_not_be_read_again_are_not_written() -> None:
    with pytest.raises(
        ConfigError, match="the settings have 80,008 bytes, and can have 65,536; shorten their longest"
    ):
        to_yaml({"labels": ["ab"] * 16_000})


@pytest.mark.parametrize(
    ("content", "word"),
    [
        ("lr: 0.1\n", "train.lr=0.5"),
        ("learning_rate: 0.1\n", "lr=0.5"),
        ("train: {learning_rate: 0.1}\n", "train.lr=0.5"),
    ],
)
def test_words_lie_over_a_file_however_each_spells_a_name(tmp_path: Path, content: str, word: str) -> None:
    (tmp_path / "a.yaml").write_text(f"task: text-classification\n{content}")
    config = check(settings_for(str(tmp_path / "a.yaml"), [word]))
    assert (config.task, config.train.lr) == ("classification", 0.5)


@pytest.mark.parametrize("words", [["lr=1", "train.lr=2"], ["a.csv", "data.train=b.csv"], ["a.csv", "data=b.csv"]])
def test_one_setting_is_not_set_twice(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "a.csv").touch()
    with pytest.raises(ConfigError, match=r"are both (set; leave one of them out|to train on; name one)"):
        settings_for(*named_and_set(["lm", *words]))


def test_names_of_lora_elsewhere_belong_to_lora() -> None:
    with pytest.raises(
        ConfigError, match=r"'lora_dropout'; did you mean 'adapt\.dropout'\? It belongs to adapt=lora"
    ):
        check(settings_for("lm", ["lora_dropout=0.1"]))


def test_a_recipe_that_needs_a_model_asks_for_it_whatever_else_is_set() -> None:
    with pytest.raises(ConfigError, match="name it: from=MODEL"):
        check(settings_for("classification/sst2", ["epochs=1"]))
