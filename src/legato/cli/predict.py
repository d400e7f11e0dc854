"""`legato predict`: whatever the model's task is, on texts of your own."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Any

import typer

from legato.cli.imports import importing
from legato.cli.printing import notes
from legato.cli.widths import Dtype, Quantize

if TYPE_CHECKING:
    from legato.cli.lines import Items, Lines, Texts
    from legato.inspect.picture_folder import BoxFolder
    from legato.inspect.pictures import AttentionFolder
    from legato.inspect.report.predictions import PredictionPage
    from legato.inspect.subtitles import SubtitleFile
    from legato.model import Model
    from legato.tasks.predictions import Prediction

BLOCK = 512  # lines read ahead, so that those of like length can go together
ITEMS = 64  # pictures or sounds, which take longer, and show one by one at first
# What is handed on where it is given: to the model's task, and to prompting for labels.
OPTIONS = (
    *("beams", "length_penalty", "nbest", "max_tokens", "to", "search", "alignments", "context", "threshold"),
    *("timestamps", "language", "lm", "lm_weight", "length_bonus"),
)
PROMPTING = ("labels", "shots", "columns", "template", "normalize", "calibrate")


def command(
    called: typer.Context,
    model: Annotated[str, typer.Argument(help="A model folder, a run folder, a GGUF file or a name on the hub.")],
    texts: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="[TEXT]...", help="Texts, or files of pictures or sounds; left out: --file, or standard input."
        ),
    ] = None,
    file: Annotated[
        str | None,
        typer.Option(
            help="One text a line, or a table: .tsv, .csv, .jsonl or .parquet; '-' for standard input. Of pictures "
            "or sounds: a folder, a .tar, names of files, one a line, or a table."
        ),
    ] = None,
    beams: Annotated[
        int | None, typer.Option(help="Width of the beam; 1 is greedy.", show_default="the model's own")
    ] = None,
    length_penalty: Annotated[
        float | None, typer.Option(help="Scores are log p / length^this.", show_default="the model's own")
    ] = None,
    nbest: Annotated[
        int | None,
        typer.Option(
            help="Answers a text; above 1 each line begins with the number of its text, from 0, and a tab.",
            show_default="1; for hidden words and search 5, for words 10, for boxes all",
        ),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Longest answer.", show_default="twice the text and some")
    ] = None,
    to: Annotated[
        str | None,
        typer.Option(help="Language to write, for a model of many; a text that begins >>de<< says its own."),
    ] = None,
    search: Annotated[
        str | None,
        typer.Option(
            help="Find the lines of this file most like each text; of CLIP also of each picture, and of a folder its "
            "pictures."
        ),
    ] = None,
    context: Annotated[str | None, typer.Option(help="File in which questions find their answers.")] = None,
    task: Annotated[
        str | None,
        typer.Option(help="Which task of a model of several; classification: ask a model that writes for --labels."),
    ] = None,
    labels: Annotated[
        str | None, typer.Option(help="Labels to choose from: a,b,c.", show_default="those of --shots")
    ] = None,
    shots: Annotated[str | None, typer.Option(help="File of examples for the prompt: text and label.")] = None,
    columns: Annotated[
        str | None,
        typer.Option(
            help="Of a table in --file: TEXT, or FIRST,SECOND of pairs, by name or number; of --shots: TEXT,LABEL.",
            show_default="those of training, else guessed, and said",
        ),
    ] = None,
    template: Annotated[
        str | None,
        typer.Option(
            help="Of the prompt, with {text} and {label}; for pictures {label} alone.",
            show_default="Text: … Label: …",
        ),
    ] = None,
    normalize: Annotated[bool, typer.Option("--normalize", help="Divide a label's score by its tokens.")] = False,
    calibrate: Annotated[
        bool, typer.Option("--calibrate", help="Take from labels what a text that says nothing gives them.")
    ] = False,
    scores: Annotated[bool, typer.Option("--scores", help="Show each answer's score.")] = False,
    alignments: Annotated[
        bool, typer.Option("--alignments", help="Show which source word each word looked at, as in '0-0 1-2'.")
    ] = False,
    timestamps: Annotated[
        bool,
        typer.Option(
            "--timestamps", help="Of a sound, a line for each word (Whisper: passage) and when it begins and ends."
        ),
    ] = False,
    partial: Annotated[
        bool, typer.Option("--partial", help="Of one long recording, print what is said while it is read.")
    ] = False,
    language: Annotated[
        str | None, typer.Option(help="Of a sound, what is spoken, of a model of several: en.", show_default="heard")
    ] = None,
    srt: Annotated[str | None, typer.Option(help="File that gets the subtitles of a recording.")] = None,
    lm: Annotated[
        str | None,
        typer.Option(help="Of a sound, a language model that the search asks, too: a folder or a hub name."),
    ] = None,
    lm_weight: Annotated[
        float | None, typer.Option(help="What its log probabilities are multiplied with.", show_default="0.3")
    ] = None,
    length_bonus: Annotated[
        float | None, typer.Option(help="Of a sound, added to a score for each token.", show_default="0")
    ] = None,
    attention: Annotated[
        str | None,
        typer.Option(help="Folder that gets a picture of where the model looked, for each picture that it reads."),
    ] = None,
    threshold: Annotated[
        float | None, typer.Option(help="How sure a box has to be, from 0 to 1.", show_default="0.5")
    ] = None,
    draw: Annotated[
        str | None, typer.Option(help="Folder that gets each picture with the boxes that were found in it.")
    ] = None,
    html: Annotated[
        str | None,
        typer.Option(
            help="File that gets a report of what is written: alignments, the search, the tree of a parser; of the "
            "first 8, of which the page shows the one that is chosen in it."
        ),
    ] = None,
    device: Annotated[str, typer.Option(help="auto, cpu, cuda or mps.")] = "auto",
    dtype: Dtype = "float32",
    quantize: Quantize = None,
    as_json: Annotated[bool, typer.Option("--json", help="One line of JSON a text.")] = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Let many workers share --file; what was done before a kill is kept.")
    ] = False,
    out: Annotated[str | None, typer.Option(help="With --ray, the .jsonl or .parquet that gets the answers.")] = None,
) -> None:
    """Translate, parse, classify, guess hidden words, …: one answer a text, in order.

    [dim]legato predict runs/t "A dog runs." "Two men sit."[/dim]
    [dim]legato predict runs/t --file sentences.txt --beams 5 > translations.txt[/dim]
    [dim]cat sentences.txt | legato predict runs/t --nbest 3 --scores[/dim]
    [dim]legato predict runs/t "A dog runs." --alignments --html dog.html[/dim]
    [dim]legato predict runs/c --file reviews.tsv[/dim]
    [dim]legato predict runs/i photo.jpg[/dim]
    [dim]legato predict runs/i --file photos/ --attention looked/[/dim]
    [dim]legato predict runs/b photo.jpg --draw drawn/[/dim]
    [dim]legato predict runs/p photo.jpg --labels "a dog,a cat"[/dim]
    [dim]legato predict runs/s recording.wav --timestamps[/dim]
    [dim]legato predict runs/s lecture.mp3 --srt lecture.srt[/dim]
    [dim]legato predict runs/m "He ate the cake <mask> the fork."[/dim]

    Of a masked language model, each line is a word and its probability, behind the number of its mask where a text
    has several, and behind the number of its text, from 0, where there are several.

    Of a classifier, each line is a class and its probability (--json has those of all classes); a pair of texts is
    one text with a tab between the two.

    Of a model for embedding, the cosine of two texts with a tab between them; with --search lines and their cosines.

    A model that only writes classifies, too, by how likely each label is behind a prompt: --task classification
    --labels good,bad, with examples of a file before it (--shots).

    Of vectors of words, the words nearest to one, or to a sum such as 'king - man + woman', and their cosines.

    A question is answered from --context, or from what stands behind it and a tab; where there is no answer the line
    is empty.

    Of a model that reads pictures, each line is a class, or a caption; of the pictures of a folder (--file photos/),
    by name, each line begins with the picture's name and a tab. --attention saves where a captioner looked for each
    word, where a question looked, and where the heads of a Vision Transformer look. Of a model of clips, what is
    given is an animated GIF or WebP, or a folder of frames; --file then names a folder of such.

    Of a model of pictures and texts (CLIP), the likeliest of --labels, read in --template ("a photo of a {label}");
    or what is nearest to a picture or a text in --search: lines of a file, or pictures of a folder.

    Of a model that detects boxes, each line is a class, its score and the box, x0 y0 x1 y1 in pixels, a line for each
    box; --draw saves the pictures with them.

    Of a model for speech, each line is what is said in a sound; with --timestamps a line is a word, behind the
    seconds at which it begins and ends; --srt saves them as subtitles. With --partial a line comes as soon as its
    part of the recording is read: 30 seconds, or a passage.

    With --html, what a model with a decoder writes is drawn in one page, which needs no network, as legato inspect
    does: where it looked for each token, its search as a tree (as wide as --beams), and the tree that a parser wrote.

    A parser splits sentences into words as the Penn Treebank does, punctuation and n't apart; sentences that are
    split so already stay as they are, and brackets are written -LRB- and -RRB-. A tagger splits so, too, unless the
    words that it learned from had their punctuation glued to them: then at white space only.

    A line that cannot be read (it is too long, say) gives an empty line and a note; the others are done, and
    the exit code is 2. With --nbest above 1 that line, too, has its number before it. Where a model reads the
    beginning of a longer text, as classifiers do, a note says how many were cut.
    """
    from legato.cli.lines import FIRST, Items, Lines, Meter, Texts, leaving
    from legato.data.sources.files import load_text
    from legato.errors import DataError
    from legato.folders.finding import check_place
    from legato.input_files import path_of
    from legato.registry import TASKS
    from legato.schema import to_json

    if texts and file is not None:
        raise DataError("give texts or --file, not both")
    if ray != (out is not None) or (ray and file in (None, "-")):
        raise DataError("--ray, --file and --out belong together: legato predict MODEL --file F --ray --out G.jsonl")
    source: Texts | Items | Lines = Texts(texts) if texts else Lines(None if file in (None, "-") else file)
    check_place(model)
    with importing():
        from legato.loading import load
        from legato.tasks.file_inputs import refuse_files
    table = False
    if file is not None:
        from legato.tasks.table_inputs import is_table

        table = is_table(file)
    single = texts is not None and len(texts) == 1  # whose problem the last line says
    given = {name: value for name, value in called.params.items() if value is not None and value is not False}
    if context is not None:
        given["context"] = load_text(path_of(context), max_line=0)
    named = None  # the table's columns; otherwise they are those of the shots
    if table and shots is None and given.pop("columns", None) is not None:
        named = [int(name) if name.isdecimal() else name for name in str(columns).split(",")]
    options, prompting = ({name: given[name] for name in names if name in given} for names in (OPTIONS, PROMPTING))
    held = load(model, device, dtype=dtype, quantize=quantize)
    member = None
    if TASKS.get(held.task).members(held.loaded):
        held, task, member = held.for_task(task), None, task
    own = TASKS.get(held.task)
    if partial:
        said = [name for name in called.params if str(called.get_parameter_source(name)).endswith("COMMANDLINE")]
        _print_passages(
            held,
            texts,
            language,
            set(said) - {"model", "texts", "partial", "language", "device", "dtype", "quantize"},
        )
        return
    shown = TASKS.get(task) if task == "classification" else own
    listing = shown.lists_answers or search is not None
    note, names = "", None
    if texts and own.Input is not str:
        items = own.inputs_of(texts)
        source, single = Items(items, own.input_name), len(items) == 1
    elif texts:
        advice = "to read what is in it: --file {} (of a table, --columns names the texts)"
        refuse_files(texts, str(held.folder), advice)
    if file not in (None, "-"):
        alone = search is not None or context is not None
        inputs = own.read_file(file, held.about, named, alone=alone)
        if inputs is not None:
            whole = Texts if own.Input is str else Items
            source, note, names = whole(inputs.texts, inputs.unit), inputs.note, inputs.names
    if srt is not None:
        options["timestamps"] = True
    if ray:
        _predicting(held, task, options, prompting)  # which refuses what the model does not know
        unshared = [name for name in (*PROMPTING, "attention", "draw", "html", "srt", "search") if name in given]
        _predict_with_ray(
            source, str(file), str(out), held, (model, member, device, dtype, quantize), options, unshared
        )
        return
    noted = False
    failed: list[str] = []
    number = 0
    with leaving(source), Meter(enabled=not texts, unit=f"{source.unit}s") as meter, notes(meter.note):
        saved = _saving(held, attention, draw, srt)
        predict = _predicting(held, task, options, prompting)
        if html is not None:
            saved.append(_page(held, html, task, options))
        for block in source.blocks(ITEMS, 1) if isinstance(source, Items) else source.blocks(BLOCK, FIRST):
            if source.spoilt and not noted:
                noted = True
                bad = f"{source.unit} {source.spoilt}"
                meter.note(f"legato: note: {bad} is not valid UTF-8; bad bytes were replaced")
            predictions = predict(block)
            for folder in saved:
                folder.add(block, predictions)
            if note:  # now that they are made, for a refusal is said alone
                meter.note(f"legato: note: {note}")
                note = ""
            for prediction in predictions:
                number += 1
                if prediction.problem is not None:
                    failed.append(f"{source.unit} {number}: {prediction.problem}")
                    if not single:
                        meter.note(f"legato: {failed[-1]}")
                several = not single if listing else (nbest or 1) > 1
                before = f"{number - 1}\t" if several else ""
                if names is not None:
                    before = " ".join(names[number - 1].split()) + "\t"
                if as_json:
                    print(to_json(prediction.as_json(), ensure_ascii=False))
                    continue
                for line in shown.show(prediction, scores=scores, alignments=alignments) or [""]:
                    print(before + line)
            print(end="", flush=True)
            meter.advance(len(block))
        for folder in saved:
            meter.note(f"legato: note: {folder.summary()}")
    if single and failed:
        raise DataError(failed[0].partition(": ")[2])
    if failed:
        others = "; the rest is done" if len(failed) < number else ""
        raise DataError(f"{len(failed):,} of {number:,} could not be done{others}")


def _predict_with_ray(
    source: Texts | Items | Lines,
    file: str,
    out: str,
    held: Model,
    loaded: tuple[str, str | None, str, str, str | None],
    options: dict[str, Any],
    others: list[str],
) -> None:
    """Workers predict the rows of a file; `others` are options that they do not know."""
    from legato.cli.lines import Meter, leaving
    from legato.errors import ConfigError, DataError
    from legato.ray_predict import RayJob, check_out, predict_with_ray

    if others:
        raise ConfigError(f"with --ray the model's own task is done; leave out --{others[0]}")
    model, task, device, dtype, quantize = loaded
    loading = {"device": device, "dtype": dtype, "quantize": quantize}
    job = RayJob(model, file, check_out(out), BLOCK, task, options, loading)
    with leaving(source), Meter(enabled=True) as meter:
        rows, problems = predict_with_ray(source.blocks(BLOCK), job, held, meter.advance)
        for number, problem in problems:
            meter.note(f"legato: {source.unit} {number}: {problem}")
    if problems:
        others_done = "; the rest is done" if len(problems) < rows else ""
        raise DataError(f"{len(problems):,} of {rows:,} could not be done{others_done}")


def _print_passages(held: Model, sounds: list[str] | None, language: str | None, others: set[str]) -> None:
    """What is said in a recording, a line for each piece, while it is read; `others` are options that do nothing."""
    from legato.errors import DataError
    from legato.registry import TASKS

    task = TASKS.get(held.task)
    if held.task != "speech":
        raise DataError(f"{held.folder} is a model for {held.task}, which writes down no speech; leave out --partial")
    if sounds is None or len(sounds) != 1:
        raise DataError("--partial is for one recording; name one")
    if others:
        option = min(others).removeprefix("as_").replace("_", "-")
        raise DataError(f"--partial prints lines as they come; leave out --{option}")
    (sound,) = task.inputs_of(sounds)
    for text, start, end in task.passages(held.loaded, sound, language):
        print(f"{start:.2f}\t{end:.2f}\t{text}", flush=True)


def _saving(
    held: Model, attention: str | None, draw: str | None, srt: str | None
) -> list[AttentionFolder | BoxFolder | SubtitleFile | PredictionPage]:
    """What is written beside the answers."""
    from legato.errors import DataError
    from legato.input_files import path_of
    from legato.registry import TASKS

    own = TASKS.get(held.task)
    saved: list[AttentionFolder | BoxFolder | SubtitleFile | PredictionPage] = []
    if attention is not None:
        from legato.inspect.pictures import AttentionFolder

        saved.append(AttentionFolder(held, path_of(attention)))
    if draw is not None:
        from legato.inspect.picture_folder import BoxFolder

        if not own.any_number:
            raise DataError(f"{held.folder} is a model for {held.task}, which finds no boxes; leave out --draw")
        saved.append(BoxFolder(path_of(draw)))
    if srt is not None:
        from legato.inspect.subtitles import SubtitleFile

        if own.input_name != "sound":
            raise DataError(f"{held.folder} is a model for {held.task}, which hears nothing; leave out --srt")
        saved.append(SubtitleFile(path_of(srt)))
    return saved


def _page(held: Model, html: str, task: str | None, options: dict[str, Any]) -> PredictionPage:
    """The report of what is predicted with these options."""
    from legato.errors import DataError
    from legato.input_files import path_of
    from legato.inspect.report.predictions import PredictionPage

    if task not in (None, held.task):  # prompting
        raise DataError(
            f"--task {task} asks {held.folder} how likely each label is, and nothing is written token by token; "
            "leave out --html"
        )
    if held.task == "speech" and "language" in options:
        raise DataError("--html draws how a sound is heard by itself; leave out --language, or --html")
    drawn = ("beams", "nbest", "length_penalty", "max_tokens", "to", "alignments")
    return PredictionPage(held, path_of(html), **{name: options[name] for name in drawn if name in options})


def _predicting(
    held: Model, task: str | None, options: dict[str, Any], prompting: dict[str, Any]
) -> Callable[[list[str]], list[Prediction]]:
    """What makes predictions of texts: the model's task, or prompting for labels."""
    from legato.config import validate
    from legato.errors import ConfigError, brief
    from legato.registry import TASKS

    own = TASKS.get(held.task).Options
    known = () if own is None else own.model_fields
    if task == "classification" and held.task != task:
        others = [name for name in options if name != "nbest"]
        if others:
            raise ConfigError(f"asking for labels has no option '{others[0]}'; leave it out")
        from legato.tasks.classification.prompting import Prompter, PromptOptions

        return Prompter(held.loaded, validate(PromptOptions, {**options, **prompting})).predict
    if task not in (None, held.task):
        raise ConfigError(
            f"{held.folder} is a model for {held.task}, not for {brief(task)}; leave out --task {brief(task)}"
        )
    options = {**options, **{name: prompting[name] for name in prompting if name in known}}
    prompting = {name: value for name, value in prompting.items() if name not in known}
    if prompting:
        name = next(iter(prompting))
        raise ConfigError(f"--{name} is for asking a model that writes for labels: --task classification")
    return lambda texts: held.predictions(texts, **options)
