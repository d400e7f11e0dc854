"""Servers of one model, each a process of its own: Legato's, `transformers serve`, and llama.cpp's two.

    server = Server("legato", Place(model, threads=2))
    server.wait()

`transformers` is the one of this environment. The servers of llama.cpp have environments of their own:
`pip install "llama-cpp-python[server]"` (one text at a time, whoever waits) and `pip install xllamacpp` (llama.cpp's
own server, whose clients have a slot each).
"""

from __future__ import annotations

import http.client
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

READY = 600.0  # seconds until a server answers

# On a CPU transformers' batching has to hear how much room there is: without it, its first request waits for ever.
BLOCKS = ("--cb-num-blocks", "1024", "--cb-block-size", "32", "--cb-max-batch-tokens", "512")

SLOTS = """
import sys, time
import xllamacpp as x
file, port, slots, context, threads = sys.argv[1], *map(int, sys.argv[2:])
params = x.CommonParams()
params.model.path = file
if hasattr(params, "hostnames"):
    params.hostnames = ["127.0.0.1"]
else:  # older ones
    params.hostname = "127.0.0.1"
params.port = port
params.n_parallel, params.n_ctx, params.cont_batching = slots, context, True
params.cpuparams.n_threads = params.cpuparams_batch.n_threads = threads
params.verbosity = 0
server = x.Server(params)
while True:
    time.sleep(3600)
"""


@dataclass(frozen=True)
class Place:
    """What is served, and with what."""

    model: Path
    device: str = "cpu"
    dtype: str = "float32"
    threads: int = 2
    rows: int = 64
    context: int = 1024  # tokens of a text with its prompt, where a server has to know
    llama_cpp: str = sys.executable  # the Python that has llama-cpp-python
    xllamacpp: str = sys.executable
    more: tuple[str, ...] = ()  # words for `legato serve`

    def gguf(self, width: str) -> str:
        """The same weights as a GGUF file, written where there is none."""
        file = Path(tempfile.gettempdir()) / f"legato-{self.model.name}-{width}.gguf"
        if not file.exists():
            words = ["export", str(self.model), "--to", "gguf", "--quantize", width, "--out", str(file)]
            subprocess.run([sys.executable, "-m", "legato", *words], check=True, stdout=subprocess.DEVNULL)
        return str(file)


def _legato(place: Place, port: int, *words: str) -> tuple[list[str], str]:
    served = [f"chat={place.model}", "--port", str(port), "--device", place.device, "--max-rows", str(place.rows)]
    width = [] if "--quantize" in words else ["--dtype", place.dtype]
    return [sys.executable, "-m", "legato", "serve", *served, *width, *words, *place.more], "chat"


def _transformers(place: Place, port: int, *words: str) -> tuple[list[str], str]:
    code = "from transformers.cli.transformers import main; main()"
    if place.device != "cpu":
        words = tuple(word for word in words if word not in BLOCKS)
    served = ["serve", str(place.model), "--device", place.device, "--dtype", place.dtype, "--port", str(port)]
    return [sys.executable, "-c", code, *served, *words], str(place.model)


def _llama_cpp(place: Place, port: int, width: str) -> tuple[list[str], str]:
    about = ["--model", place.gguf(width), "--host", "127.0.0.1", "--port", str(port), "--n_ctx", str(place.context)]
    about += ["--n_threads", str(place.threads), "--n_threads_batch", str(place.threads)]
    # Else a request that comes ends the one that is being written.
    about += ["--interrupt_requests", "false", "--verbose", "false"]
    return [place.llama_cpp, "-m", "llama_cpp.server", *about], "chat"


def _slots(place: Place, port: int, width: str) -> tuple[list[str], str]:
    numbers = [port, place.rows, place.context * place.rows, place.threads]
    return [place.xllamacpp, "-c", SLOTS, place.gguf(width), *map(str, numbers)], "chat"


Command = Callable[[Place, int], tuple[list[str], str]]  # and what the model is called there
SIDES: dict[str, Command] = {
    "legato": lambda place, port: _legato(place, port),
    "legato-int8": lambda place, port: _legato(place, port, "--quantize", "int8"),
    "transformers": lambda place, port: _transformers(place, port),
    "transformers-batching": lambda place, port: _transformers(place, port, "--continuous-batching", *BLOCKS),
    "transformers-compiled": lambda place, port: _transformers(place, port, "--compile"),
    "llama-cpp-python-f32": lambda place, port: _llama_cpp(place, port, "f32"),
    "llama-cpp-python-q8_0": lambda place, port: _llama_cpp(place, port, "q8_0"),
    "llama.cpp-slots-f32": lambda place, port: _slots(place, port, "f32"),
    "llama.cpp-slots-q8_0": lambda place, port: _slots(place, port, "q8_0"),
}


class Server:
    """A process that answers at `port`, where the model is called `model`."""

    def __init__(self, name: str, place: Place) -> None:
        self.name, self.port = name, free_port()
        command, self.model = SIDES[name](place, self.port)
        self.log = tempfile.TemporaryFile()  # noqa: SIM115, as long as the process
        threads = {"OMP_NUM_THREADS": str(place.threads), "HF_HUB_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}
        self.process = subprocess.Popen(
            command, stdout=self.log, stderr=self.log, stdin=subprocess.DEVNULL, env={**os.environ, **threads}
        )

    def wait(self) -> None:
        """Until it answers."""
        end = time.monotonic() + READY
        while time.monotonic() < end:
            if self.process.poll() is not None:
                break
            try:
                connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=10)
                connection.request("GET", "/v1/models")
                if connection.getresponse().status != 503:  # while a model is being read
                    return
            except OSError:
                pass
            time.sleep(0.2)
        self.stop()
        self.log.seek(0)
        raise SystemExit(f"{self.name} does not answer:\n{self.log.read().decode(errors='replace')[-2000:]}")

    def seconds(self) -> float:
        """CPU time of the process so far."""
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    def resident(self) -> float:
        """MiB of memory that the process holds."""
        pages = int(Path(f"/proc/{self.process.pid}/statm").read_text().split()[1])
        return pages * os.sysconf("SC_PAGE_SIZE") / 2**20

    def stop(self) -> None:
        self.process.send_signal(signal.SIGTERM)
        try:
            self.process.wait(5)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])
