"""Real commands on small examples: every verb, every task, every model, every published family.

A scenario is a folder of files and a command that reads them. `lacking` says what is registered and has none: whoever
adds a task, a model, a family or a verb adds its scenario here, and everything that the scenario reads is damaged
from then on.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from fuzzing import sounds, stock
from fuzzing.jobs import ATTENDING, FILE, HEARING, JOBS, LSTM, SEEING, TABLE, TEXT, VIT, WINDOWED, Make
from fuzzing.stock import QUICK, RELATIVES, words_of


@dataclass(frozen=True)
class Scenario:
    """A command, and how the folder is made that it runs in."""

    name: str
    words: tuple[str, ...]
    makes: tuple[Make, ...] = ()
    first: tuple[tuple[str, ...], ...] = ()  # commands whose results it starts from, such as a trained model
    covers: frozenset[str] = frozenset()  # "task:lm", "model:lstm", "family:gpt2"
    stdin: str = ""
    own: tuple[str, ...] = ("out",)  # what the command may write to, beside its cache
    texts: str | int | None = None  # how many answers there are to be: a number, or a file with one text a line
    keys: tuple[str, ...] = ()  # which of its settings are damaged, too: those that begin so
    options: bool = False  # whether its options are
    keep: tuple[str, ...] = ("*",)  # what of the folder is left of the first commands; the cache is not, unless named
    reads: str = ""  # what of the files that it reads is damaged: those whose names begin so
    code: int = 0

    @property
    def verb(self) -> str:
        return self.words[0]


def scenarios() -> dict[str, Scenario]:
    """Every scenario by its name."""
    made: list[Scenario] = []
    for part in (_of_tasks, _of_models, _of_pictures, _of_sounds, _of_families, _of_formats, _of_adapting, _of_verbs):
        made += part()
    return {scenario.name: scenario for scenario in made}


def lacking() -> list[str]:
    """What is registered and has no scenario."""
    from legato.registry import MODELS, PUBLISHED, TASKS

    covered = {name for scenario in scenarios().values() for name in scenario.covers}
    covered |= {f"verb:{scenario.verb}" for scenario in scenarios().values()}
    wanted = [f"task:{name}" for name in TASKS.names()] + [f"model:{name}" for name in MODELS.names()]
    wanted += [f"family:{name}" for name in PUBLISHED.names()] + [f"verb:{name}" for name in verbs()]
    return [name for name in wanted if name not in covered]


def verbs() -> dict[str, Any]:
    """Every verb of the command line, with click's own declaration of it."""
    import typer

    from legato.cli import app

    group: Any = typer.main.get_command(app)
    return dict(group.commands)


def _train(task: str, settings: dict[str, Any], *, steps: int = 1, out: str = "out") -> tuple[str, ...]:
    return ("train", task, *words_of({**QUICK, **settings, "train.steps": steps, "out": out}), "--json")


def _of_tasks() -> Iterator[Scenario]:
    for task, job in JOBS.items():
        covers = frozenset({f"task:{task}"})
        trained = _train(task, {**job.settings, "train.schedule": "constant"}, out="run")
        keys = (
            "data.",
            "tokenizer.",
            "train.",
            "head.",
            "adapt.",
            "model.name",
            "from",
            "quantize",
            "seed",
            "device",
            "out",
        )
        yield Scenario(
            f"train-{task}", _train(task, job.settings), job.makes, covers=covers, keys=keys, options=task == "lm"
        )
        yield Scenario(
            f"train-{task}-again",
            _train(task, job.settings),
            job.makes,
            (trained,),
            covers,
            keep=("*", "cache"),
            reads="cache/",
        )
        yield Scenario(
            f"resume-{task}",
            ("train", "resume=run", "train.steps=2", "--json"),
            job.makes,
            (trained,),
            covers,
            own=("run",),
            keys=("data.", "train.", "from", "out", "seed", "device", "resume") if task in ("lm", "chat") else (),
        )
        yield Scenario(
            f"{job.verb}-{task}",
            (job.verb, "run", *job.asks),
            job.makes,
            (trained,),
            covers,
            texts=job.answers,
            options=True,
        )
        test = words_of(job.test if isinstance(job.test, dict) else {"data.test": job.test})
        yield Scenario(
            f"eval-{task}",
            ("eval", "run/best", *test, "device=cpu", "--json"),
            job.makes,
            (trained,),
            covers,
            keys=("data.", "device"),
            options=task == "lm",
        )


def _of_models() -> Iterator[Scenario]:
    """A model that is registered is trained on what it can be trained on, and used."""
    from legato.registry import MODELS

    for name in MODELS.names():
        model = MODELS.get(name)
        fields = model.Config.model_fields
        if "image" in model.processors or "audio" in model.processors or name == "vqa":
            continue  # those of pictures and sounds are below
        task = "word2vec" if name == "word2vec" else "translation" if model.is_encoder_decoder else "lm"
        if task == "lm" and not _writes(model) and name != "elmo":
            task = "mlm"
        job = JOBS[task]
        settings = {key: value for key, value in job.settings.items() if not key.startswith("model")}
        small = {"width": 8, "layers": 1, "heads": 2, "feedforward": 16, "length": 64, "embedding": 8}
        settings |= {"model": name, **{f"model.{key}": value for key, value in small.items() if key in fields}}
        if name == "elmo":
            settings |= {"tokenizer": "word"}
        covers = frozenset({f"model:{name}"})
        yield Scenario(f"train-{task}-{name}", _train(task, settings), job.makes, covers=covers, keys=("model.",))
        trained = _train(task, settings, out="run")
        use = ("predict", "run", *FILE, "--max-tokens", "8") if model.is_encoder_decoder else ("embed", "run", *FILE)
        yield Scenario(f"use-{name}", use, (*job.makes, stock.texts), (trained,), covers, texts="texts.txt")


def _of_sounds() -> Iterator[Scenario]:
    """Models that read sound."""
    job = JOBS["speech"]
    data = {key: value for key, value in job.settings.items() if not key.startswith("model")}
    for name in ("conformer", "deepspeech"):
        sizes = {key: value for key, value in HEARING.items() if name == "conformer" or key != "heads"}
        settings = {**data, "model": name, **{f"model.{key}": value for key, value in sizes.items()}}
        covers = frozenset({f"model:{name}"})
        yield Scenario(f"train-{name}-model", _train("speech", settings), job.makes, covers=covers, keys=("model.",))
        trained = _train("speech", settings, out="run")
        use = ("predict", "run", "sound.wav", "--json")
        yield Scenario(f"use-{name}", use, job.makes, (trained,), covers, texts=1)
    heard = {f"model.encoder.{key}": value for key, value in HEARING.items()}
    writing = {**data, "model": "seq2seq", "model.width": 8, "model.layers": 1, "model.encoder": "conformer", **heard}
    writing |= {"model.encoder.ctc": 0.3}
    yield Scenario("train-speech-decoder", _train("speech", writing), job.makes, keys=("model.",))
    use = ("predict", "run", "sound.wav", "--beams", "2", "--timestamps", "--json")
    yield Scenario("use-speech-decoder", use, job.makes, (_train("speech", writing, out="run"),), texts=1)
    windows = {"layers": 1, "width": 8, "heads": 2, "features": 8, "source_length": 50, "length": 16}
    settings = {**data, "model": "whisper", **{f"model.{key}": value for key, value in windows.items()}}
    settings |= {"train.batch_rows": 4}
    del settings["data.batch_seconds"]
    covers = frozenset({"model:whisper"})
    yield Scenario("train-whisper-model", _train("speech", settings), job.makes, covers=covers, keys=("model.",))
    use = ("predict", "run", "sound.wav", "--json")
    yield Scenario("use-whisper", use, job.makes, (_train("speech", settings, out="run"),), covers, texts=1)
    covers, makes = frozenset({"family:whisper"}), (sounds.sounds, sounds.whisper)
    use = ("predict", "whisper", "sound.wav", "--timestamps", "--json")
    yield Scenario("use-published-whisper", use, makes, covers=covers, texts=1)
    settings = {**data, "from": "whisper", "data.language": "en", "train.batch_rows": 4}
    del settings["data.batch_seconds"]
    yield Scenario("train-from-whisper", _train("speech", settings), makes, covers=covers)
    for family in ("parakeet_ctc", "parakeet_encoder"):
        covers, makes = frozenset({f"family:{family}"}), (sounds.sounds, sounds.of_sounds(family))
        if family == "parakeet_ctc":
            use = ("predict", family, "sound.wav", "--json")
            yield Scenario(f"use-{family}", use, makes, covers=covers, texts=1)
        settings = {**data, "from": family}
        yield Scenario(f"train-from-{family}", _train("speech", settings), makes, covers=covers)


def _of_pictures() -> Iterator[Scenario]:
    """Models and published families that read pictures."""
    convolutional = {"image": 8, "embedding": 8, "widths": ["8", "8"], "depths": ["1", "1"]}
    narrow = {"image": 32, "width_coefficient": 0.1, "depth_coefficient": 0.1}
    for name, sizes in {"vit": VIT, "clip-vision": VIT, "resnet": convolutional, "efficientnet-lite": narrow}.items():
        settings = {"data.train": "photos", "data.valid": "photos", "train.batch_rows": 4, "model": name}
        settings |= {f"model.{key}": value for key, value in sizes.items()}
        covers = frozenset({f"model:{name}"})
        words = _train("image-classification", settings)
        yield Scenario(f"train-{name}", words, (stock.pictures,), covers=covers, keys=("model.",))
        trained = _train("image-classification", settings, out="run")
        use = ("predict", "run", "photo.png", "--json")
        yield Scenario(f"use-{name}", use, (stock.pictures,), (trained,), covers, texts=1)
    for name, task in (("vqa", "vqa"), ("detr", "detection"), ("llava", "visual-chat"), ("unit", "unit")):
        job = JOBS[task]
        covers = frozenset({f"model:{name}"})
        yield Scenario(f"train-{name}-model", _train(task, job.settings), job.makes, covers=covers, keys=("model.",))
    drawn = ("predict", "run", "photo.png", "--threshold", "0", "--draw", "drawn", "--json")
    job = JOBS["detection"]
    trained = (_train("detection", job.settings, out="run"),)
    yield Scenario("draw-boxes", drawn, job.makes, trained, own=("drawn",), texts=1)
    yield from _of_clips()
    for family in ("vit", "resnet", "efficientnet-lite", "clip_vision_model"):
        covers = frozenset({f"family:{family}"})
        settings = {"data.train": "photos", "data.valid": "photos", "train.batch_rows": 4, "from": family}
        makes = (stock.pictures, stock.of_pictures(family))
        yield Scenario(f"train-from-{family}", _train("image-classification", settings), makes, covers=covers)
    makes = (stock.pictures, stock.of_pictures("vision-encoder-decoder"))
    yield Scenario(
        "use-vision-encoder-decoder",
        ("predict", "vision-encoder-decoder", "photo.png", "--max-tokens", "5", "--json"),
        makes,
        covers=frozenset({"family:vision-encoder-decoder"}),
        texts=1,
    )
    makes, covers = (stock.picture_dialogues, stock.of_pictures("llava")), frozenset({"family:llava"})
    asked = ("generate", "llava", *JOBS["visual-chat"].asks)
    yield Scenario("use-llava", asked, makes, covers=covers, texts=1)
    settings = {"data.train": "train.jsonl", "data.valid": "valid.jsonl", "train.batch_rows": 4, "from": "llava"}
    yield Scenario("train-from-llava", _train("visual-chat", settings), makes, covers=covers)
    makes = (stock.picture_dialogues, stock.of_pictures("clip"), stock.published("gpt2"))
    parts = {"from.vision": "clip", "from.text": "gpt2", "model.image_token": 3, "train.frozen": ["vision", "text"]}
    settings = {"data.train": "train.jsonl", "data.valid": "valid.jsonl", "train.batch_rows": 4, **parts}
    yield Scenario("train-from-two", _train("visual-chat", settings), makes, keys=("from", "model.", "train.frozen"))
    covers = frozenset({"model:clip", "family:clip"})
    exported = ("export", "clip", "--to", "hf", "--out", "out")
    yield Scenario("export-clip", exported, (stock.of_pictures("clip"),), covers=covers)
    makes = (stock.of_pictures("clip"), stock.pictures)
    yield Scenario("embed-picture", ("embed", "clip", "--image", "photo.png", "--json"), makes, texts=1, options=True)
    found = ("predict", "clip", "a big dog", "--search", "photos", "--json")
    yield Scenario("search-pictures", found, makes, texts=1)


def _of_clips() -> Iterator[Scenario]:
    covers = frozenset({"model:frames"})
    settings = {"data.train": "clips", "data.valid": "clips", "train.batch_rows": 4, "data.frames": 3}
    settings |= {"model": "frames", "model.width": 8, "model.heads": 2, **SEEING}
    words = _train("image-classification", settings)
    yield Scenario("train-frames", words, (stock.clips,), covers=covers, keys=("model.", "data."))
    table = {**settings, "data.train": "moving.jsonl", "data.valid": "moving.jsonl", "model.over": "transformer"}
    yield Scenario("train-frames-table", _train("image-classification", table), (stock.clips,), covers=covers)
    trained = _train("image-classification", settings, out="run")
    use = ("predict", "run", "clip.gif", "--json")
    yield Scenario("use-frames", use, (stock.clips,), (trained,), covers, texts=1)
    every = ("predict", "run", "--file", "moving.jsonl", "--json")
    yield Scenario("use-frames-table", every, (stock.clips,), (trained,), covers, texts="moving.jsonl")


def _writes(model: Any) -> bool:
    from legato.models.base import SequenceModel

    return model.step is not SequenceModel.step


def _of_families() -> Iterator[Scenario]:
    from legato.registry import PUBLISHED

    for family in PUBLISHED.names():
        if family not in RELATIVES:
            continue
        covers, makes = frozenset({f"family:{family}"}), (stock.published(family), stock.texts)
        name = RELATIVES[family][0]
        if name in ("gpt2", "llama"):
            words: tuple[str, ...] = (
                "generate",
                family,
                *FILE,
                "--max-tokens",
                "5",
                "--search",
                "beam",
                "--beams",
                "2",
            )
            yield Scenario(f"use-published-{family}", words, makes, covers=covers, texts="texts.txt")
        elif family == "marian":
            words = ("predict", family, *FILE, "--max-tokens", "8")
            yield Scenario(f"use-published-{family}", words, makes, covers=covers, texts="texts.txt")
        else:
            words = ("embed", family, *FILE, "--pool", "cls")
            yield Scenario(
                f"use-published-{family}", words, makes, covers=covers, texts="texts.txt", options=family == "bert"
            )
        yield Scenario(
            f"export-published-{family}", ("export", family, "--to", "hf", "--out", "out"), makes, covers=covers
        )


def _of_formats() -> Iterator[Scenario]:
    """Every other kind of file that is read."""
    for ending in ("csv", "jsonl", "parquet", "tsv.gz"):
        files = {"data.train": f"train.{ending}", "data.valid": f"valid.{ending}", "train.batch_rows": 8}
        yield Scenario(f"train-classification-{ending}", _train("classification", {**files, **LSTM}), (stock.tables,))
    files = {"data.train": "train.csv", "data.valid": "valid.parquet", "data.column": "text"}
    small = {**LSTM, "tokenizer": "char", "data.window": 16, "train.batch_tokens": 64}
    yield Scenario("train-lm-tables", _train("lm", {**files, **small}), (stock.tables,))
    started = {**TABLE, "model": "lstm", "model.width": 8, "model.embedding": 8, "tokenizer": "word"}
    begun = {**started, "data.vectors": "vectors.txt", "data.baseline": "true"}
    yield Scenario("train-from-vectors", _train("classification", begun), (stock.reviews, stock.vectors))
    for task, file, more in (
        ("qa", "questions.jsonl", LSTM),
        ("qa", "questions.parquet", LSTM),
        ("tagging", "tagged.jsonl", LSTM),
        ("tagging", "tagged.parquet", LSTM),
        ("tagging", "tagged.conllu", LSTM),
        ("chat", "dialogues.parquet", {"from": "gpt2"}),
        ("chat", "told.jsonl", {"from": "gpt2"}),
    ):
        settings = {"data.train": file, "data.valid_share": 0.3, "train.batch_rows": 4, **more}
        makes = (stock.rows, stock.published("gpt2")) if task == "chat" else (stock.rows,)
        yield Scenario(f"train-{task}-{file}", _train(task, settings), makes)
    for file, columns in (("moved.tsv", ["1", "2"]), ("moved.parquet", ["translation.en", "translation.de"])):
        settings = {"data.train": file, "data.columns": columns, "data.valid_share": 0.3, "model": "transformer"}
        settings |= {**ATTENDING, "tokenizer.size": 300, "train.batch_tokens": 64}
        yield Scenario(f"train-translation-{file}", _train("translation", settings), (stock.rows,))
    own = {**TEXT, **LSTM, "tokenizer.path": "tokenizer.json", "data.window": 16, "train.batch_tokens": 64}
    yield Scenario("train-own-tokenizer", _train("lm", own), (stock.text, stock.tokenizer))
    yield Scenario(
        "generate-sharded",
        ("generate", "gpt2", *FILE, "--max-tokens", "5"),
        (stock.sharded, stock.texts),
        texts="texts.txt",
    )
    yield Scenario(
        "inspect-decoder",
        ("inspect", "gpt2", "some words and some words", "--layers", "0", "--json"),
        (stock.published("gpt2"),),
        options=True,
    )
    yield Scenario(
        "inspect-encoder",
        ("inspect", "bert", "some words", "--heads", "0", "--save", "traced", "--html", "report.html"),
        (stock.sentence_encoder,),
        own=("traced", "report.html"),
        options=True,
    )
    yield Scenario(
        "embed-sentences",
        ("embed", "bert", "--file", "texts.txt", "--json"),
        (stock.sentence_encoder, stock.texts),
        texts="texts.txt",
    )
    yield Scenario(
        "embed-to-file",
        ("embed", "bert", "--file", "texts.txt", "--out", "out.npz"),
        (stock.sentence_encoder, stock.texts),
        own=("out.npz",),
        options=True,
    )


def _of_adapting() -> Iterator[Scenario]:
    for kind in ("full", "head", "lora", "bitfit"):
        settings = {**TABLE, "from": "bert", "adapt": kind}
        yield Scenario(
            f"adapt-{kind}",
            _train("classification", settings),
            (stock.reviews, stock.published("bert")),
            keys=("adapt.", "head.", "model."),
        )
    makes = (stock.adapter, stock.texts)
    yield Scenario("predict-adapter", ("predict", "adapter", *FILE), makes, texts="texts.txt")
    yield Scenario("export-adapter", ("export", "adapter", "--to", "hf", "--out", "out"), makes)
    further = {**TABLE, "from": "adapter", "adapt": "lora"}
    yield Scenario("adapt-adapter", _train("classification", further), (stock.adapter, stock.reviews))
    trained = _train(
        "classification", {**TABLE, "from": "bert", "adapt": "lora", "train.schedule": "constant"}, out="run"
    )
    resumed = ("train", "resume=run", "train.steps=2", "--json")
    yield Scenario("resume-adapted", resumed, (stock.reviews, stock.published("bert")), (trained,), own=("run",))


def _of_verbs() -> Iterator[Scenario]:
    made = stock.published("gpt2")
    for search in ("greedy", "sample", "beam-sample"):
        words = ("generate", "gpt2", "the cat", "--search", search, "--max-tokens", "5", "--json")
        yield Scenario(f"generate-{search}", words, (made,), texts=1, options=True)
    yield Scenario(
        "generate-talking", ("generate", "gpt2", "--chat", "--max-tokens", "5"), (made,), stdin="hello\nand?\n"
    )
    yield Scenario("serve", ("serve", "--check", "--port", "0", "a=gpt2", "gpt2"), (made,), options=True)
    # Not Lance's own files: they are called otherwise each time, so that no case could be run again.
    documents, manifest = (stock.documents,), "index/index.json"
    index = ("index", "docs", "--json", "--out", "index")
    yield Scenario("index-words", index, documents, own=("index",), options=True)
    yield Scenario("index-again", index, documents, (index,), own=("index",), reads=manifest)
    vectors = (*index, "--model", "bert")
    yield Scenario("index-vectors", vectors, (*documents, stock.sentence_encoder), own=("index",), reads="bert")
    words = ("search", "index", "who hunts at night?", "--json")
    yield Scenario("search-words", words, documents, (index,), options=True, reads=manifest)
    words = ("ask", "index", "who hunts at night?", "--model", "llama", "--max-tokens", "5", "--json")
    yield Scenario("ask", words, (*documents, stock.reader_model), (index,), options=True, reads="llama")
    asked = ("predict", "gpt2", "--task", "classification", "--shots", "train.tsv", "--labels", "good,bad", *FILE)
    yield Scenario("predict-prompting", asked, (made, stock.reviews, stock.texts), texts="texts.txt", options=True)
    yield Scenario("predict-typed", ("predict", "adapter", "--scores"), (stock.adapter,), stdin="a merry film\nsad\n")
    small = {**WINDOWED, **LSTM}
    compared = {**small, **QUICK, "model": "[elman,gru]", "out": "out"}
    yield Scenario(
        "compare-words",
        ("compare", "lm", *words_of(compared), "--json"),
        (stock.text,),
        keys=("data.", "model.name", "seed", "out"),
        options=True,
    )
    yield Scenario(
        "compare-files",
        ("compare", "a.yaml", "b.yaml", "out=out", "--html", "report.html", "--json"),
        (stock.recipe,),
        own=("out", "report.html"),
    )
    yield Scenario("train-recipe", ("train", "a.yaml", "out=out", "--json"), (stock.recipe,))
    pairs = {**JOBS["translation"].settings}
    yield Scenario(
        "predict-drawn",
        ("predict", "run", "a big dog", "--beams", "2", "--alignments", "--html", "report.html"),
        (stock.pairs,),
        (_train("translation", pairs, out="run"),),
        own=("report.html",),
        texts=1,
    )
    yield Scenario(
        "export-ctranslate2",
        ("export", "run", "--to", "ctranslate2", "--out", "out", "--quantize", "int8"),
        (stock.pairs,),
        (_train("translation", pairs, out="run"),),
        options=True,
    )
    yield Scenario(
        "export-vectors",
        ("export", "run", "--to", "vectors", "--out", "out.txt"),
        (stock.topics,),
        (_train("word2vec", JOBS["word2vec"].settings, out="run"),),
        own=("out.txt",),
    )
    yield Scenario(
        "export-gguf",
        ("export", "gpt2", "--to", "gguf", "--out", "out.gguf", "--quantize", "q8_0"),
        (made,),
        own=("out.gguf",),
        options=True,
    )
    file = (stock.gguf_model,)
    yield Scenario(
        "generate-gguf", ("generate", "model.gguf", "the cat", "--max-tokens", "5", "--chat", "--json"), file, texts=1
    )
    words = ("generate", "narrow", "the cat", "--max-tokens", "5", "--json")
    yield Scenario("generate-narrow", words, (stock.narrow_model,), texts=1)
    yield Scenario(
        "generate-int8",
        ("generate", "llama", "the cat", "--max-tokens", "5", "--quantize", "int8"),
        (stock.wide_model,),
        texts=1,
    )
    words = ("export", "llama", "--to", "legato", "--out", "out", "--quantize", "int4")
    yield Scenario("export-narrow", words, (stock.wide_model,), options=True)
    yield Scenario("export-gguf-hf", ("export", "model.gguf", "--to", "hf", "--out", "out"), file)
    tuned = {**TEXT, "data.window": 16, "train.batch_tokens": 64, "from": "model.gguf", "adapt": "lora"}
    yield Scenario("adapt-gguf", _train("lm", tuned), (*file, stock.text), reads="model.gguf")
    beside = _train("lm", {**tuned, "from": "narrow"})
    yield Scenario("adapt-narrow", beside, (stock.narrow_model, stock.text), reads="narrow")
    made_narrow = _train("lm", {**tuned, "from": "llama", "quantize": "int8"})
    yield Scenario("adapt-int8", made_narrow, (stock.wide_model, stock.text), keys=("adapt.", "quantize"))
    small = {
        **TEXT,
        "model": "lstm",
        "model.width": 32,
        "model.layers": 1,
        "data.window": 16,
        "train.batch_tokens": 64,
    }
    words = ("generate", "run", "the cat", "--max-tokens", "5", "--quantize", "int4")
    yield Scenario("generate-narrow-lstm", words, (stock.text,), (_train("lm", small, out="run"),), texts=1)
    yield Scenario("models", options=True, words=("models", "lstm", "--json"))
    yield Scenario("runs", words=("runs", ".", "--json"))
    yield Scenario("recipes", options=True, words=("recipes", "lm/ptb-lstm", "--json"))
    yield Scenario("doctor", options=True, words=("doctor", "--json"))
