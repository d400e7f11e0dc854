"""`legato generate`: let a model write."""

from __future__ import annotations

import math
import sys
from collections.abc import Iterator
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import print_note
from legato.cli.widths import Dtype, Quantize
from legato.errors import ConfigError, DataError, LegatoError, brief

if TYPE_CHECKING:
    from legato.decoding import SearchOptions
    from legato.decoding.emitter import Generated
    from legato.model import Model


def command(
    called: typer.Context,
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    prompt: Annotated[
        str | None,
        typer.Argument(
            help="The text to go on from; left out, or '-': each line of standard input, where that is no terminal; "
            "else a new text begins."
        ),
    ] = None,
    file: Annotated[str | None, typer.Option(help="Prompts, one a line; '-' for standard input.")] = None,
    search: Annotated[str, typer.Option(help="greedy, beam, sample or beam-sample.")] = "greedy",
    max_tokens: Annotated[int, typer.Option(help="Longest continuation.")] = 200,
    min_tokens: Annotated[int, typer.Option(help="No EOS token before this many.")] = 0,
    beams: Annotated[int | None, typer.Option(help="Width of the beam.", show_default="4 for beam")] = None,
    nbest: Annotated[int, typer.Option(help="Texts to show for each prompt.")] = 1,
    length_penalty: Annotated[float, typer.Option(help="Scores are log p / length^this.")] = 1.0,
    temperature: Annotated[float, typer.Option(help="Below 1: bolder; above: wilder.")] = 1.0,
    top_k: Annotated[int, typer.Option(help="Draw from the k most probable; 0 for all.")] = 0,
    top_p: Annotated[float, typer.Option(help="Draw from the smallest set with this probability.")] = 1.0,
    min_p: Annotated[float, typer.Option(help="Drop tokens below this share of the best one's.")] = 0.0,
    repetition_penalty: Annotated[float, typer.Option(help="Above 1: repeats less.")] = 1.0,
    stop: Annotated[list[str] | None, typer.Option(help="Stop before this string; may be repeated.")] = None,
    slide: Annotated[
        bool, typer.Option("--slide", help="Where the model's context is full, go on from the last tokens.")
    ] = False,
    json_schema: Annotated[
        str | None,
        typer.Option(metavar="<file|json>", help="Write JSON that fits this schema: a file, or the schema itself."),
    ] = None,
    chat: Annotated[
        bool, typer.Option("--chat", help="Talk: the prompt is a message, or each line of standard input in turn.")
    ] = False,
    system: Annotated[str | None, typer.Option(help="With --chat: what the model is told first.")] = None,
    images: Annotated[
        list[str] | None,
        typer.Option("--image", metavar="<str>", help="With --chat: the picture that the dialogue is about."),
    ] = None,
    seed: Annotated[int, typer.Option(help="Same seed and prompt, same text, alone or among others.")] = 0,
    scores: Annotated[bool, typer.Option("--scores", help="Show each text's score.")] = False,
    device: Annotated[str, typer.Option()] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a prompt.")] = False,
) -> None:
    """Continue a text.

    [dim]legato generate runs/x "The " --search sample --top-p 0.9 --seed 1[/dim]
    [dim]legato generate runs/x "The " --search beam --beams 5 --nbest 3 --scores[/dim]
    [dim]legato generate runs/x < prompts.txt[/dim]
    [dim]legato generate org/model --chat "Who are you?" --system "Be brief."[/dim]
    [dim]legato generate runs/v --chat "Describe the picture." --image photo.jpg[/dim]
    """
    from legato.config import validate
    from legato.folders.finding import check_place
    from legato.schema import to_json

    if system is not None and not chat:
        raise ConfigError("--system is what a model is told before a dialogue; it needs --chat")
    image = images[0] if images else None
    if images and len(images) > 1:
        raise ConfigError(f"a dialogue is about one picture, and there are {len(images)}; give --image once")
    check_place(model)
    with importing():
        from legato.decoding import SearchOptions
        from legato.decoding.constraints import constraint_of
        from legato.loading import load
        from legato.tasks.file_inputs import refuse_files
    given = {name: called.params[name] for name in SearchOptions.model_fields}
    given["json_schema"] = _schema(json_schema)
    options = validate(SearchOptions, {**given, "stop": [text.replace("\\n", "\n") for text in stop or []]})
    held = load(model, device, dtype=dtype, quantize=quantize)
    held.check_generates()
    constraint_of(held.loaded, options, [options.max_tokens])  # refused before anything is printed
    if image is not None and "image" not in held.loaded.processors.others:
        raise ConfigError(f"{held.folder} reads no pictures; leave out --image")
    if image is not None and not chat:
        raise ConfigError("--image is the picture that a dialogue is about; it needs --chat")
    first = [] if system is None else [{"role": "system", "content": system}]
    streaming = options.search in ("greedy", "sample") and nbest == 1 and not (as_json or scores)
    if chat and prompt is None and file is None:
        if not streaming:
            raise ConfigError("a dialogue is written as it comes: give a message, or leave out --json and the like")
        _talk(held, options, first, image)
        return
    if prompt is not None:
        refuse_files([prompt], "legato generate", "to go on from its lines: --file {}")
    prompts = _prompts(prompt, file)
    file = file or ("standard input" if len(prompts) > 1 else None)
    asked: list[Any] = list(prompts)
    if chat:
        if not all(text.strip() for text in prompts):
            raise ConfigError("an empty message has no answer; write one, or leave it out to talk")
        told = [[*first, {"role": "user", "content": text}] for text in prompts]
        asked = [held.chat_ids(messages, about_picture=image is not None) for messages in told]
    starts = [_begin(held, text, options, file, line) for line, text in enumerate(asked, start=1)]
    for text, start in zip(prompts, starts, strict=True):
        if held.tokenizer.unk_id is not None and held.tokenizer.unk_id in start:
            print_note(f"legato: note: the model does not know all of '{brief(text)}'; it sees <unk> there")
    seen = [] if image is None else [image] * len(prompts)
    if streaming and len(prompts) == 1:
        _write("" if chat else prompts[0])
        try:
            written = [held.write(starts[0], options, _write, images=seen)]
        finally:  # what went wrong is said on a line of its own
            _write("\n")
        _note_full(held, written, options)
        return
    for text, found in zip(prompts, held.hypotheses(starts, options, images=seen), strict=True):
        _note_full(held, found, options)
        if as_json:
            print(to_json({"prompt": text, "results": [vars(g) for g in found]}, ensure_ascii=False))
            continue
        for generated in found:
            score = f"{generated.score:9.4f}  " if scores else ""
            print(f"{score}{'' if chat else text}{generated.text}")


def _schema(given: str | None) -> str | None:
    """A schema as it stands, or the text of the file that it is in."""
    from legato.input_files import path_of, read_bytes

    if given is None or given.lstrip().startswith("{"):
        return given
    try:
        return read_bytes(path_of(given)).decode("utf-8")
    except UnicodeDecodeError:
        raise DataError(f"{given} is not UTF-8 text") from None


def _begin(held: Model, prompt: Any, options: SearchOptions, file: str | None, line: int) -> list[int]:
    """The tokens to go on from, before anything is printed; a line of a file that does not fit is named."""
    try:
        return held.begin(prompt, options)
    except LegatoError as problem:
        raise problem if file is None else DataError(f"{file}, line {line}: {problem}") from None


def _note_full(held: Model, found: list[Generated], options: SearchOptions) -> None:
    """Say why a text ends early, where nothing else does."""
    if any(not text.finished and len(text.tokens) < options.max_tokens for text in found):
        full = f"the model's context of {held.module.max_length:,} tokens is full"
        print_note(f"legato: note: {full}; --slide goes on from the last ones")


def _prompts(prompt: str | None, file: str | None) -> list[str]:
    from legato.data.sources.files import unify_newlines
    from legato.input_files import path_of, read_bytes

    if prompt == "-" and file is None:
        prompt, file = None, "-"
    # Where standard input is a pipe or a file, prompts may come from it.
    ready = sys.stdin is not None and not sys.stdin.closed and not sys.stdin.isatty()
    unasked = prompt is None and file is None and ready
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


def _talk(model: Model, options: SearchOptions, first: list[dict[str, str]], image: str | None) -> None:
    """Answer every line of standard input, each a turn of the dialogue that begins with `first`, until it ends.

    It may be about a picture.
    """
    model.check_chats()
    most = model.module.max_length
    room = math.inf if most is None or options.slide else most - min(options.max_tokens, most // 4)
    turns: list[dict[str, str]] = []
    noted = False
    for line in _turns():
        turns.append({"role": "user", "content": line})
        # The last turns, as many as leave room for an answer; the newest one in any case.
        about = image is not None
        while len(asked := model.chat_ids([*first, *turns], about_picture=about)) > room and len(turns) > 1:
            turns = turns[2:]  # a question and its answer
            if not noted:
                print_note("legato: note: the model's context is full; the first messages are forgotten")
                noted = True
        try:
            answer = model.write(asked, options, _write, images=[] if image is None else [image])
        finally:
            _write("\n")
        turns.append({"role": "assistant", "content": answer.text})


def _turns() -> Iterator[str]:
    if sys.stdin is None or sys.stdin.closed:
        raise DataError("there is no prompt, and standard input is closed; give a prompt")
    typed = sys.stdin.isatty()
    if typed:
        print_note("one message a line; end with Ctrl-D")
    while True:
        if typed:
            print("> ", end="", file=sys.stderr, flush=True)
        try:
            line = sys.stdin.readline()
        except UnicodeDecodeError:
            raise DataError("standard input is not UTF-8 text") from None
        if not line:
            return
        if line.strip():
            yield line.rstrip("\r\n")


def _write(text: Any) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
