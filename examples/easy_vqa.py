"""easy-VQA as tables of pictures, questions and answers, from the package that holds it.

    pip download --no-deps easy-vqa==1.0
    python examples/easy_vqa.py easy_vqa-1.0-py3-none-any.whl data/easy-vqa
    legato train vqa/easy-vqa data.root=data out=runs/easy-vqa

writes data/easy-vqa/train.jsonl and test.jsonl, and beside them the pictures: 4,000 to train on and 1,000 to test on,
64 × 64 pixels with one shape each, and 38,575 and 9,673 questions about them (Zhou 2019, MIT licence).
"""

from __future__ import annotations

import json
import sys
import zipfile
from pathlib import Path

DATA = "easy_vqa/data"  # in the package


def write_split(package: zipfile.ZipFile, split: str, out: Path) -> int:
    """The pictures of a split, and a table of its questions; how many there are."""
    rows = []
    pictures = set()
    for question, answer, number in json.loads(package.read(f"{DATA}/{split}/questions.json")):
        image = f"{split}/{int(number)}.png"
        rows.append({"image": image, "question": question, "answer": answer})
        pictures.add(int(number))
    (out / split).mkdir(parents=True, exist_ok=True)
    for number in sorted(pictures):
        (out / split / f"{number}.png").write_bytes(package.read(f"{DATA}/{split}/images/{number}.png"))
    text = "".join(json.dumps(row) + "\n" for row in rows)
    (out / f"{split}.jsonl").write_text(text, encoding="utf-8")
    return len(rows)


def main() -> None:
    if len(sys.argv) != 3:
        sys.exit("usage: python examples/easy_vqa.py easy_vqa-1.0-py3-none-any.whl FOLDER")
    out = Path(sys.argv[2])
    try:
        with zipfile.ZipFile(sys.argv[1]) as package:
            for split in ("train", "test"):
                print(f"{out / split}.jsonl: {write_split(package, split, out):,} questions")
    except (OSError, KeyError, ValueError, zipfile.BadZipFile) as problem:
        sys.exit(f"{sys.argv[1]} is not the package easy-vqa 1.0 ({problem}); get it with pip download")


if __name__ == "__main__":
    main()
