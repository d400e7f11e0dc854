"""`legato generate`: let a model write."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from legato.decoding import SearchOptions
    from legato.model import Generated, Model


def command(
    model: Annotated[str, typer.Argument(help="A model folder, a run folder or a name on the hub.")],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to go on from; left out, or '-': each line of standard input, where that is no terminal; "
            "else a new text begins.",
            show_default=False,
        ),
    ] = None,
    file: Annotated[str | None, typer.Option("--file", help="Prompts, one a line; '-' for standard input.")] = None,
    search: Annotated[str, typer.Option("--search", help="greedy, beam, sample or beam-sample.")] = "greedy",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest continuation.")] = 200,
    min_tokens: Annotated[int, typer.Option("--min-tokens", help="No EOS token before this many.")] = 0,
    beams: Annotated[
        int | None, typer.Option("--beams", help="Width of the beam.", show_default="4 for beam")
    ] = None,
    nbest: Annotated[int, typer.Option("--nbest", help="Texts to show for each prompt.")] = 1,
    length_penalty: Annotated[float, typer.Option("--length-penalty", help="Scores are log p / length^this.")] = 1.0,
    temperature: Annotated[float, typer.Option("--temperature", help="Below 1: bolder; above: wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option("--top-k", help="Draw from the k most probable; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option("--top-p", help="Draw from the smallest set with this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option("--min-p", help="Drop tokens below this share of the best one's.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option("--repetition-penalty", help="Above 1: repeats less.")] = 1.0,
    stop: Annotated[
        list[str] | None, typer.Option("--stop", help="Stop before this string; may be repeated.")
    ] = None,
    slide: Annotated[
        bool, typer.Option("--slide", help="Where the model's context is full, go on from the last tokens.")
    ] = False,
    chat: Annotated[
        bool,
        typer.Option("--chat", help="Talk: the prompt is a message, or each line of standard input in turn."),
    ] = False,
    system: Annotated[
        str | None, typer.Option("--system", help="With --chat: what the model is told first.", show_default=False)
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Same seed and prompt, same text, alone or among others.")] = 0,
    scores: Annotated[bool, typer.Option("--scores", help="Show each text's score.")] = False,
    device: Annotated[str, typer.Option("--device")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a prompt.")] = False,
) -> None:
    """Continue a text.

    [dim]legato generate runs/x "The " --search sample --top-p 0.9 --seed 1[/dim]
    [dim]legato generate runs/x "The " --search beam --beams 5 --nbest 3 --scores[/dim]
    [dim]legato generate runs/x < prompts.txt[/dim]
    [dim]legato generate org/model --chat "Who are you?" --system "Be brief."[/dim]
    """
    from legato.cli.chatting import opening, talk
    from legato.config import validate
    from legato.decoding import SearchOptions
    from legato.errors import ConfigError, brief
    from legato.model import load
    from legato.schema import to_json

    if system is not None and not chat:
        raise ConfigError("--system is what a model is told before a dialogue; it needs --chat")
    options = validate(
        SearchOptions,
        {
            "search": search,
            "beams": beams,
            "nbest": nbest,
            "length_penalty": length_penalty,
            "temperature": temperature,
            "top_k": top_k,
            "top_p": top_p,
            "min_p": min_p,
            "repetition_penalty": repetition_penalty,
            "max_tokens": max_tokens,
            "min_tokens": min_tokens,
            "slide": slide,
            "stop": [text.replace("\\n", "\n") for text in stop or []],
            "seed": seed,
        },
    )
    held = load(model, device)
    held.check_generates()
    streaming = options.search in ("greedy", "sample") and nbest == 1 and not (as_json or scores)
    if chat and prompt is None and file is None:
        if not streaming:
            raise ConfigError("a dialogue is written as it comes: give a message, or leave out --json and the like")
        talk(held, options, system, _write)
        return
    prompts = _prompts(prompt, file)
    file = file or ("standard input" if len(prompts) > 1 else None)
    asked: list[Any] = list(prompts)
    if chat:
        if not all(text.strip() for text in prompts):
            raise ConfigError("an empty message has no answer; write one, or leave it out to talk")
        asked = [held.chat_ids([*opening(system), {"role": "user", "content": text}]) for text in prompts]
    starts = [_begin(held, text, options, file, line) for line, text in enumerate(asked, start=1)]
    for text, start in zip(prompts, starts, strict=True):
        if held.tokenizer.unk_id is not None and held.tokenizer.unk_id in start:
            print(
                f"legato: note: the model does not know all of '{brief(text)}'; it sees <unk> there", file=sys.stderr
            )
    if streaming and len(prompts) == 1:
        _write("" if chat else prompts[0])
        try:
            written = [held.write(starts[0], options, _write)]
        finally:  # what went wrong is said on a line of its own
            _write("\n")
        _note_full(held, written, options)
        return
    for text, found in zip(prompts, held.hypotheses(starts, options), strict=True):
        _note_full(held, found, options)
        if as_json:
            print(to_json({"prompt": text, "results": [vars(g) for g in found]}, ensure_ascii=False))
            continue
        for generated in found:
            score = f"{generated.score:9.4f}  " if scores else ""
            print(f"{score}{'' if chat else text}{generated.text}")


def _begin(held: Model, prompt: Any, options: SearchOptions, file: str | None, line: int) -> list[int]:
    """The tokens to go on from, before anything is printed; a line of a file that does not fit is named."""
    from legato.errors import DataError, LegatoError

    try:
        return held.begin(prompt, options)
    except LegatoError as problem:
        raise problem if file is None else DataError(f"{file}, line {line}: {problem}") from None


def _note_full(held: Model, found: list[Generated], options: SearchOptions) -> None:
    """Say why a text ends early, where nothing else does."""
    if any(not text.finished and len(text.tokens) < options.max_tokens for text in found):
        full = f"the model's context of {held.module.max_length:,} tokens is full"
        print(f"legato: note: {full}; --slide goes on from the last ones", file=sys.stderr)


def _stands_ready() -> bool:
    """Whether standard input is a pipe or a file, from which prompts may come."""
    return sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()


def _prompts(prompt: str | None, file: str | None) -> list[str]:
    from legato.data.sources.files import unify_newlines
    from legato.errors import DataError
    from legato.input_files import path_of, read_bytes

    if prompt == "-" and file is None:
        prompt, file = None, "-"
    unasked = prompt is None and file is None and _stands_ready()
    if file is None and not unasked:
        return [prompt or ""]
    if prompt:
        raise DataError("give a prompt or --file, not both")
    try:
        if file is None or file == "-":
            text = sys.stdin.read()
        else:
            text = unify_newlines(read_bytes(path_of(file)).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{file or 'standard input'} cannot be read: {problem}") from None
    if not text and unasked:  # as under cron, where nothing is behind it
        return [""]
    if not text:
        raise DataError(f"{file} is empty; write one prompt a line")
    return text.removeprefix("\ufeff").removesuffix("\n").split("\n")  # a text may hold rarer kinds of line ends


def _write(text: Any) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
