"""Peers in an environment of their own: llama.cpp, ONNX Runtime and OpenVINO, driven directly.

    side = PeerSide("/path/to/venv/bin/python", "llama_cpp", {"file": "model.gguf", "threads": 2, "tokens": 128})
    seconds, written = side([[1, 2, 3]])

`--peers` of the benchmarks says whose Python it is; left out, it is the one that runs them. This file is what runs
there, with nothing of Legato's: what a side is made of comes as JSON, and so do requests and answers, a line each.
What it needs: pip install llama-cpp-python (built here, for this processor), onnxruntime, onnx, openvino,
sentence-transformers.
"""

from __future__ import annotations

import contextlib
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

Ids = list[list[int]]
Answer = Callable[[Any], Any]


class PeerSide:
    """A process in another environment that answers when asked."""

    def __init__(self, python: str, name: str, given: dict[str, Any]) -> None:
        command = [python, str(Path(__file__).resolve()), name, json.dumps(given)]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def __call__(self, request: Any) -> Any:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        with contextlib.suppress(BrokenPipeError):
            print(json.dumps(request), file=self.process.stdin, flush=True)
        line = self.process.stdout.readline()
        if not line:
            raise SystemExit("a side failed; its error is above")
        return json.loads(line)


def timed(work: Answer) -> Answer:
    def answer(request: Any) -> tuple[float, Any]:
        started = time.perf_counter()
        made = work(request)
        return time.perf_counter() - started, made

    return answer


_KEPT: dict[str, Any] = {}  # what a library calls lives as long as it may

# ── llama.cpp ─────────────────────────────────────────────────────────────────────────────────────


def llama_cpp(file: str, threads: int, tokens: int) -> Answer:
    """Greedy, all rows in one batch, by llama.cpp's own functions: no sampler and no text stands between."""
    import ctypes

    import llama_cpp as c
    import numpy as np

    c.llama_log_set(_KEPT.setdefault("silent", c.llama_log_callback(lambda *_: None)), ctypes.c_void_p(0))
    c.llama_backend_init()
    model = c.llama_model_load_from_file(file.encode(), c.llama_model_default_params())
    vocabulary = c.llama_vocab_n_tokens(c.llama_model_get_vocab(model))

    def write(prompts: Ids) -> Ids:
        settings = c.llama_context_default_params()
        settings.n_ctx = settings.n_batch = (max(map(len, prompts)) + tokens + 1) * len(prompts)
        settings.n_ubatch, settings.n_seq_max = settings.n_batch, len(prompts)
        settings.n_threads = settings.n_threads_batch = threads
        context = c.llama_init_from_model(model, settings)
        batch = c.llama_batch_init(settings.n_batch, 0, 1)

        def advance(news: Ids, places: list[int]) -> list[int]:
            """The best token after the new ones of each row."""
            batch.n_tokens, ends = 0, []
            for row, (new, place) in enumerate(zip(news, places, strict=True)):
                for number, token in enumerate(new):
                    at = batch.n_tokens
                    batch.token[at], batch.pos[at] = token, place + number
                    batch.n_seq_id[at], batch.seq_id[at][0] = 1, row
                    batch.logits[at] = number + 1 == len(new)
                    batch.n_tokens += 1
                ends.append(batch.n_tokens - 1)
            if c.llama_decode(context, batch):
                raise SystemExit("llama_decode failed")
            logits = (c.llama_get_logits_ith(context, end) for end in ends)
            return [int(np.ctypeslib.as_array(each, shape=(vocabulary,)).argmax()) for each in logits]

        places = [0] * len(prompts)
        news, written = prompts, [list[int]() for _ in prompts]
        for _ in range(tokens):
            best = advance(news, places)
            places = [place + len(new) for place, new in zip(places, news, strict=True)]
            news = [[token] for token in best]
            for row, token in zip(written, best, strict=True):
                row.append(token)
        c.llama_batch_free(batch)
        c.llama_free(context)
        return written

    return timed(write)


# ── encoders ──────────────────────────────────────────────────────────────────────────────────────


def encoder(folder: str, engine: str, threads: int, batch: int) -> Answer:
    """Vectors of texts, the mean of the last layer's states. `engine`: onnxruntime, openvino, either with -int8."""
    import numpy as np
    import tokenizers

    tokenizer = tokenizers.Tokenizer.from_file(str(Path(folder) / "tokenizer.json"))
    tokenizer.no_padding()
    file = _onnx_file(Path(folder), engine)
    run = (_onnxruntime if engine.startswith("onnxruntime") else _openvino)(str(file), threads)

    def embed(texts: Sequence[str]) -> list[list[float]]:
        rows = [encoding.ids for encoding in tokenizer.encode_batch(texts)]
        order = sorted(range(len(rows)), key=lambda row: -len(rows[row]))
        found: list[Any] = [None] * len(rows)
        for start in range(0, len(order), batch):
            chosen = order[start : start + batch]
            longest = len(rows[chosen[0]])
            ids = np.zeros((len(chosen), longest), dtype=np.int64)
            seen = np.zeros_like(ids)
            for at, row in enumerate(chosen):
                ids[at, : len(rows[row])], seen[at, : len(rows[row])] = rows[row], 1
            states = run(ids, seen)
            mask = seen[:, :, None].astype(np.float32)
            for row, vector in zip(chosen, (states * mask).sum(1) / mask.sum(1), strict=True):
                found[row] = vector
        return [[float(number) for number in vector[:8]] for vector in found]  # enough to compare

    return timed(embed)


def _onnx_file(folder: Path, engine: str) -> Path:
    """The model as ONNX, with ONNX Runtime's own fusions, and for -int8 its dynamic quantisation."""
    place, narrow = folder.with_name(engine), engine.endswith("-int8")
    wide, file = place / "fused.onnx", place / "fused-int8.onnx"
    if not wide.exists():
        place.mkdir(exist_ok=True)  # other engines make theirs at the same time
        import onnxruntime.transformers.optimizer as fusing
        import torch
        import transformers

        class States(torch.nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.model = transformers.AutoModel.from_pretrained(folder, attn_implementation="eager").eval()

            def forward(self, ids: torch.Tensor, seen: torch.Tensor) -> torch.Tensor:
                return self.model(input_ids=ids, attention_mask=seen).last_hidden_state

        model = States()
        ids = torch.randint(5, 1000, (2, 16))
        axes = {name: {0: "rows", 1: "tokens"} for name in ("input_ids", "attention_mask", "states")}
        plain = place / "plain.onnx"
        torch.onnx.export(
            model,
            (ids, torch.ones_like(ids)),
            str(plain),
            input_names=["input_ids", "attention_mask"],
            output_names=["states"],
            dynamic_axes=axes,
            dynamo=False,
            opset_version=17,
        )
        heads, width = model.model.config.num_attention_heads, model.model.config.hidden_size
        fused = fusing.optimize_model(str(plain), model_type="bert", num_heads=heads, hidden_size=width, opt_level=1)
        fused.save_model_to_file(str(wide))
    if narrow and not file.exists():
        import onnx
        from onnxruntime.quantization import QuantType, quantize_dynamic

        floats = {"DefaultTensorType": onnx.TensorProto.FLOAT}
        quantize_dynamic(str(wide), str(file), weight_type=QuantType.QInt8, extra_options=floats)
    return file if narrow else wide


def _onnxruntime(file: str, threads: int) -> Callable[[Any, Any], Any]:
    import onnxruntime

    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.inter_op_num_threads = threads, 1
    session = onnxruntime.InferenceSession(file, options, providers=["CPUExecutionProvider"])
    return lambda ids, seen: session.run(None, {"input_ids": ids, "attention_mask": seen})[0]


def _openvino(file: str, threads: int) -> Callable[[Any, Any], Any]:
    """OpenVINO reads what was exported, not ONNX Runtime's own operators."""
    import openvino

    plain = file.replace("fused", "plain")
    if plain.endswith("-int8.onnx") and not Path(plain).exists():
        from onnxruntime.quantization import QuantType, quantize_dynamic

        quantize_dynamic(plain.replace("-int8", ""), plain, weight_type=QuantType.QInt8)
    settings = {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
    compiled = openvino.Core().compile_model(plain, "CPU", settings)
    return lambda ids, seen: compiled([ids, seen])[0]


def sentence_transformers(folder: str, threads: int, batch: int) -> Answer:
    import torch
    from sentence_transformers import SentenceTransformer

    torch.set_num_threads(threads)
    model = SentenceTransformer(folder, device="cpu")

    def embed(texts: Sequence[str]) -> list[list[float]]:
        found = model.encode(list(texts), batch_size=batch, show_progress_bar=False)
        return [[float(number) for number in vector[:8]] for vector in found]

    return timed(embed)


SIDES: dict[str, Callable[..., Answer]] = {
    "llama_cpp": llama_cpp,
    "encoder": encoder,
    "sentence_transformers": sentence_transformers,
}


def main() -> None:
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)  # what libraries print is no answer
    answer = SIDES[sys.argv[1]](**json.loads(sys.argv[2]))
    for line in sys.stdin:
        print(json.dumps(answer(json.loads(line))), file=answers, flush=True)


if __name__ == "__main__":
    main()
