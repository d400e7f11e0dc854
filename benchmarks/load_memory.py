"""How much memory reading a model takes, beside the bytes that its weights have then.

    python benchmarks/load_memory.py MODEL [--widths float32,bfloat16,int8,int4] [--source OTHER/src]

Every width is read in a process of its own, which has read a tiny model and this one's tokenizer before, so that what
is imported does not count. The peak is what Linux calls VmHWM, from when it was set back; pages of mapped files count
in it as long as they are mapped. `own` is the most that the process's own pages (RssAnon) were found to be. `rest` is
what a model takes that has shapes and no weights: its tokenizer, mostly; shares are without it. `after` is what is
left: PyTorch's allocator may keep what was freed. `--source` measures another checkout's package, such as one from
before a change. The last line is JSON.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import threading
import time
from itertools import chain
from pathlib import Path
from typing import Any

WIDTHS = ("float32", "bfloat16", "int8", "int4")
TINY = {
    "model": "llama",
    "model.layers": "1",
    "model.width": "64",
    "model.heads": "2",
    "tokenizer": "char",
    "device": "cpu",
    "train.steps": "1",
    "train.batch_tokens": "256",
    "train.samples": "0",
    "train.tensorboard": "false",
}


def memory() -> dict[str, int]:
    """Bytes of this process, by Linux's names for them."""
    lines = (line.split(":") for line in Path("/proc/self/status").read_text().splitlines())
    return {name: int(value.split()[0]) * 1024 for name, value in lines if name.startswith(("Vm", "Rss"))}


def read(tiny: str, model: str, width: str) -> dict[str, Any]:
    """What reading a model takes, in this process."""
    import warnings

    import legato
    from legato.folders.model_folder import read_model

    warnings.simplefilter("ignore")  # of widths that the processor multiplies slowly
    given = {"quantize": width} if width.startswith("int") else {"dtype": width}
    legato.load(tiny, "cpu", **given)
    kept = [read_model(model, sketched=True)]
    start = memory()["RssAnon"]
    kept.append(read_model(model, sketched=True))
    rest = memory()["RssAnon"] - start
    Path("/proc/self/clear_refs").write_text("5")
    before, most, done = memory(), [0], threading.Event()

    def watch() -> None:
        while not done.wait(0.001):
            most[0] = max(most[0], memory()["RssAnon"])

    watching = threading.Thread(target=watch)
    watching.start()
    began = time.perf_counter()
    loaded = legato.load(model, "cpu", **given)
    seconds = time.perf_counter() - began
    done.set()
    watching.join()
    after = memory()
    kept.clear()
    tensors = {id(tensor): tensor for tensor in chain(loaded.module.parameters(), loaded.module.buffers())}
    return {
        "weights": sum(tensor.nbytes for tensor in tensors.values()),
        "rest": rest,
        "peak": after["VmHWM"] - before["VmRSS"],
        "own": max(most[0], after["RssAnon"]) - before["RssAnon"],
        "after": after["RssAnon"] - before["RssAnon"],
        "seconds": round(seconds, 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("--widths", default=",".join(WIDTHS))
    parser.add_argument("--source", help="the folder that another checkout's package is in")
    parser.add_argument("--tiny", help=argparse.SUPPRESS)  # of the process that measures
    asked = parser.parse_args()
    if asked.tiny:
        print(json.dumps(read(asked.tiny, asked.model, asked.widths)))
        return
    found = {}
    with tempfile.TemporaryDirectory() as folder:
        import legato

        text = Path(folder) / "a.txt"
        text.write_text("the cat sat on the mat and saw one more dog\n" * 60)
        job = {"data.train": str(text), "data.valid": str(text), **TINY}
        tiny = legato.train("lm", job, out=Path(folder) / "run", quiet=True).run
        around = {**os.environ, **({"PYTHONPATH": asked.source} if asked.source else {})}
        print(f"{'width':10}{'weights':>9}{'rest':>8}{'peak':>18}{'own':>18}{'after':>9}   MiB")
        for width in asked.widths.split(","):
            words = [sys.executable, __file__, asked.model, "--widths", width, "--tiny", str(tiny)]
            done = subprocess.run(words, capture_output=True, text=True, env=around)
            if done.returncode:
                sys.exit(done.stderr)
            each = found[width] = json.loads(done.stdout.splitlines()[-1])
            size, rest, after = (each[key] / 2**20 for key in ("weights", "rest", "after"))
            peak, own = (
                f"{each[key] / 2**20:,.0f} ({(each[key] / 2**20 - rest) / size:.2f} ×)" for key in ("peak", "own")
            )
            print(f"{width:10}{size:9,.0f}{rest:8,.0f}{peak:>18}{own:>18}{after:9,.0f}")
    print(json.dumps(found))


if __name__ == "__main__":
    main()
