"""`legato generate`: let a model write."""

from __future__ import annotations

import json
import sys
from typing import Annotated, Any

import typer


def command(
    model: Annotated[str, typer.Argument(help="A model folder or a run folder.")],
    prompt: Annotated[str, typer.Argument(help="The text to go on from; empty starts a new one.")] = "",
    file: Annotated[str | None, typer.Option("--file", help="Prompts, one a line; '-' for standard input.")] = None,
    search: Annotated[str, typer.Option("--search", help="greedy, beam, sample or beam-sample.")] = "greedy",
    max_tokens: Annotated[int, typer.Option("--max-tokens", help="Longest continuation.")] = 200,
    min_tokens: Annotated[int, typer.Option("--min-tokens", help="No end mark before this many.")] = 0,
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
    seed: Annotated[int, typer.Option("--seed", help="Same seed, same text.")] = 0,
    scores: Annotated[bool, typer.Option("--scores", help="Show each text's score.")] = False,
    device: Annotated[str, typer.Option("--device")] = "auto",
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a prompt.")] = False,
) -> None:
    """Continue a text.

    [dim]legato generate runs/x "The " --search sample --top-p 0.9 --seed 1[/dim]
    [dim]legato generate runs/x "The " --search beam --beams 5 --nbest 3 --scores[/dim]
    """
    from legato.config import validate
    from legato.decoding import SearchOptions
    from legato.model import load

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
            "stop": [text.replace("\\n", "\n") for text in stop or []],
            "seed": seed,
        },
    )
    held = load(model, device)
    held.check_generates()
    prompts = _prompts(prompt, file)
    for text in prompts:
        if held.tokenizer.unk_id is not None and held.tokenizer.unk_id in held.prompt_ids(text):
            print(f"legato: note: the model does not know all of '{text}'; it sees <unk> there", file=sys.stderr)
    streaming = (
        options.search in ("greedy", "sample") and nbest == 1 and len(prompts) == 1 and not (as_json or scores)
    )
    if streaming:
        _write(prompts[0])
        held.write(prompts[0], options, _write)
        _write("\n")
        return
    for text, found in zip(prompts, held.hypotheses(prompts, options), strict=True):
        if as_json:
            print(json.dumps({"prompt": text, "results": [vars(g) for g in found]}, ensure_ascii=False))
            continue
        for generated in found:
            score = f"{generated.score:9.4f}  " if scores else ""
            print(f"{score}{text}{generated.text}")


def _prompts(prompt: str, file: str | None) -> list[str]:
    from pathlib import Path

    from legato.errors import DataError

    if file is None:
        return [prompt]
    if prompt:
        raise DataError("give a prompt or --file, not both")
    try:
        text = sys.stdin.read() if file == "-" else Path(file).read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as problem:
        raise DataError(f"{file} cannot be read: {problem}") from None
    if not text:
        raise DataError(f"{file} is empty; write one prompt a line")
    return text.splitlines()


def _write(text: Any) -> None:
    sys.stdout.write(text)
    sys.stdout.flush()
