"""What settings and options are called in other toolkits, above all in Hugging Face's Trainer and `generate`.

A name that means one thing here is translated, and a note says so. One whose values are of another kind, or that
means something else, is answered with the words to write.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Collection, Iterable, Mapping
from typing import Any, Final

from legato.errors import suggest, warn

# What a setting is called here, and in other toolkits; of several that may be meant, the first that a section has.
ELSEWHERE: Final[dict[str, tuple[str, ...]]] = {
    "accumulate": ("gradient_accumulation_steps",),
    "alpha": ("lora_alpha",),
    "batch_rows": ("batch_size", "per_device_train_batch_size"),
    "batch_tokens": ("batch_size", "per_device_train_batch_size"),
    "beams": ("beam_size", "num_beams"),
    "checkpoint_every": ("save_steps",),
    "clip": ("max_grad_norm",),
    "columns": ("label_column", "text_column"),
    "device": ("device_map",),
    "dropout": ("lora_dropout",),
    "dtype": ("torch_dtype",),
    "embedding": ("embedding_dim",),
    "epochs": ("max_epochs", "num_epochs", "num_train_epochs"),
    "eps": ("adam_epsilon",),
    "heads": ("num_attention_heads", "num_heads"),
    "html": ("o", "out", "output"),
    "layers": ("num_hidden_layers", "num_layers"),
    "log_every": ("logging_steps",),
    "lr": ("learning_rate",),
    "max_length": ("max_seq_length",),
    "max_tokens": ("max_completion_tokens", "max_new_tokens"),
    "min_tokens": ("min_new_tokens",),
    "nbest": ("num_return_sequences", "top_k"),
    "patience": ("early_stopping", "early_stopping_patience"),
    "out": ("o", "output"),
    "precision": ("bf16", "dtype", "fp16"),
    "rank": ("r",),
    "recompute": ("gradient_checkpointing",),
    "rslora": ("use_rslora",),
    "schedule": ("lr_scheduler_type",),
    "size": ("vocab_size",),
    "steps": ("max_steps",),
    "stop": ("stop_strings",),
    "targets": ("target_modules",),
    "validate_every": ("eval_steps",),
    "warmup": ("warmup_ratio", "warmup_steps"),
    "width": ("hidden_dim", "hidden_size"),
    "window": ("max_seq_length",),
}
# Names whose values are others than ours, with an example of ours, made of theirs, where there is one to show.
OTHER_VALUES: Final = {
    "batch_size": "",
    "bf16": "bf16",
    "dtype": "bf16",
    "early_stopping": "3",
    "fp16": "bf16",
    "label_column": "[{text_column},{label_column}]",
    "per_device_train_batch_size": "",
    "text_column": "[{text_column},{label_column}]",
}
# Names of other toolkits that belong to one section, whatever others have of that name.
SECTION_OF: Final = {
    "adam_epsilon": "train",
    "label_column": "data",
    "lora_alpha": "adapt",
    "lora_dropout": "adapt",
    "max_seq_length": "data",
    "r": "adapt",
    "target_modules": "adapt",
    "text_column": "data",
    "use_rslora": "adapt",
}
# Switches of other programs, and the setting to write in their place: the first whose name there is.
SWITCHES: Final[dict[str, tuple[str, ...]]] = {
    "bf16": ("dtype=bfloat16", "train.precision=bf16"),
    "cpu": ("device=cpu",),
    "cuda": ("device=cuda",),
    "fp16": ("dtype=float16", "train.precision=bf16"),
    "gpu": ("device=cuda",),
    "half": ("dtype=float16", "train.precision=bf16"),
    "load_in_4bit": ("quantize=int4",),
    "load_in_8bit": ("quantize=int8",),
    "lora": ("adapt=lora",),
    "no_cuda": ("device=cpu",),
    "use_cpu": ("device=cpu",),
}
# Names that nothing here means: the setting that comes nearest, a value of it, and why it is another.
INSTEAD: Final = {
    "eos_token_id": ("stop", "TEXT", "the model's folder says which token ends a text"),
    "max_length": ("max_tokens", "N", "it counts the prompt, too"),
    "no_repeat_ngram_size": ("repetition_penalty", "1.2", "no search here forbids repeats"),
    "pad_token_id": ("max_tokens", "N", "prompts need no padding here"),
    **dict.fromkeys(
        ("proba", "probability", "probabilities", "return_all_scores"),
        ("nbest", "5", "the answers are printed with their probabilities where there are several, or all by --json"),
    ),
}
TRUE: Final = ("1", "true", "yes")


def note_name(theirs: str, ours: str) -> None:
    """Say what a setting is called here that has another name elsewhere."""
    warn(f"{theirs} is called {ours} here")


def our_names(name: str) -> list[str]:
    """What a setting of another toolkit may be called here."""
    return [ours for ours, theirs in ELSEWHERE.items() if name.lower() in theirs]


def switched(name: str, fields: Collection[str]) -> str | None:
    """The setting that a switch of another program stands for, of those whose names are among the fields.

    >>> switched("gpu", ["device", "seed"])
    'device=cuda'
    """
    choices = SWITCHES.get(name.lower(), ())
    return next((words for words in choices if words.partition("=")[0].rpartition(".")[2] in fields), None)


def instead(name: str, fields: Collection[str]) -> tuple[str, str, str] | None:
    """The setting that comes nearest to a name that nothing here means, with a value and the reason."""
    nearest = INSTEAD.get(name.lower())
    return nearest if nearest is not None and nearest[0] in fields else None


def renamed(
    settings: Mapping[str, Any], fields: Collection[str], note: Callable[[str, str], None] = note_name
) -> dict[str, Any]:
    """Settings under our names, where theirs mean one of the fields; others stay, to be refused by the check.

    >>> fields = ["search", "beams", "max_tokens", "temperature"]
    >>> renamed({"max_new_tokens": 5, "num_beams": 4}, fields, note=lambda theirs, ours: None)
    {'max_tokens': 5, 'beams': 4, 'search': 'beam'}
    """
    result: dict[str, Any] = {}
    for key, value in settings.items():
        names = [] if key in fields or key in OTHER_VALUES else [name for name in our_names(key) if name in fields]
        ours = names[0] if len(names) == 1 and names[0] not in settings else key
        if ours != key:
            note(key, ours)
        result[ours] = value
    if {"search", "temperature"} <= {*fields} and "search" not in settings:
        result = _with_search(result, "num_beams" in settings, note)
    return result


def _with_search(settings: dict[str, Any], wide: bool, note: Callable[[str, str], None]) -> dict[str, Any]:
    """The search that `num_beams` and `do_sample` mean in `generate`."""
    wide = wide and str(settings.get("beams")) != "1"
    if "do_sample" not in settings:
        return {**settings, "search": "beam"} if wide else settings
    drawn = str(settings["do_sample"]).lower() in TRUE
    search = ("beam-sample" if drawn else "beam") if wide else "sample" if drawn else "greedy"
    note("do_sample", f"search={search}")
    return {**{key: value for key, value in settings.items() if key != "do_sample"}, "search": search}


def suggest_key(word: str, fields: Iterable[str]) -> str:
    """`suggest` for a setting, which may have another name elsewhere.

    >>> suggest_key("learning_rate", ["lr", "lr_final"])
    "did you mean 'lr'?"
    >>> suggest_key("learning_rte", ["lr", "layers"])
    "did you mean 'lr'?"
    """
    names = list(fields)
    if (nearest := instead(word, names)) is not None:
        return "{2}; write {0}={1}".format(*nearest)
    if (words := switched(word, names)) is not None:
        return f"did you mean {words}?"
    ours = next((name for name in our_names(word) if name in names), None)
    near = suggest(word, names) if ours is None else f"did you mean '{ours}'?"
    if near.startswith("did you mean"):
        return near
    theirs = [other for name in names for other in ELSEWHERE.get(name, ())]
    slips = difflib.get_close_matches(word.lower(), theirs, n=1, cutoff=0.8)
    return suggest_key(slips[0], names) if slips else near
