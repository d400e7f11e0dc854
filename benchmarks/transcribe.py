"""Whisper: Legato, Hugging Face's transformers and faster-whisper write down the same sounds, side by side.

    python benchmarks/transcribe.py --model WHISPER --root DATA/librispeech-dev
    python benchmarks/transcribe.py … --ct2 FOLDER            and faster-whisper: the same weights for CTranslate2
    python benchmarks/transcribe.py … --limit 64 --rounds 3   fewer sounds, more rounds

`--root` holds a table of sounds and transcripts, `dev.tsv`, and its sounds. All sides get samples at 16 kHz, decoded
before; measured is what follows: features, encoder, greedy search without times, text. Weights are float32. Nobody
looks for silence or leaves anything out, and each sound is a window of 30 seconds, as Whisper was trained. Each side
reads as many sounds at once as suits it: transformers the best of `--batches`, found in the first pass;
faster-whisper one, as it has no way to read several files at once.

Printed: seconds of sound per second in the median round; word error rates as they are (`raw`: upper or lower case and
punctuation count), in lower case without punctuation, and after Whisper's own normaliser; how many texts are equal to
Legato's. The last line is JSON. Needs the peers: pip install -e ".[bench]"
"""

from __future__ import annotations

import argparse
import importlib.util
import json
import multiprocessing
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sides import Side

RATE = 16_000
Request = int  # sounds at once; 0: as the side likes
Written = tuple[float, list[str]]  # seconds, texts


def timed(write: Callable[[int], list[str]]) -> Callable[[Request], Written]:
    def answer(request: Request) -> Written:
        started = time.perf_counter()
        texts = write(request)
        return time.perf_counter() - started, [" ".join(text.split()) for text in texts]

    return answer


def legato_side(model: str, sounds: list[Any], threads: int) -> Callable[[Request], Written]:
    import torch

    import legato

    torch.set_num_threads(threads)
    held = legato.load(model, device="cpu")
    given = [{"array": sound, "sampling_rate": RATE} for sound in sounds]
    return timed(lambda _: held.predict(given))


def transformers_side(model: str, sounds: list[Any], threads: int) -> Callable[[Request], Written]:
    import torch
    import transformers

    from legato.data.text.tokenizers import Tokenizer

    torch.set_num_threads(threads)
    transformers.logging.set_verbosity_error()
    transformers.logging.disable_progress_bar()
    net = transformers.WhisperForConditionalGeneration.from_pretrained(model, dtype=torch.float32).eval()
    extractor = transformers.WhisperFeatureExtractor.from_pretrained(model)
    tokenizer = Tokenizer.load(Path(model))
    prompt = prompt_of(model)

    def write(rows: int) -> list[str]:
        texts: list[str] = []
        for first in range(0, len(sounds), rows):
            some = sounds[first : first + rows]
            features = extractor(some, sampling_rate=RATE, return_tensors="pt").input_features
            ids = torch.tensor([prompt] * len(some))
            with torch.inference_mode():
                found = net.generate(
                    features, decoder_input_ids=ids, do_sample=False, num_beams=1, max_new_tokens=400
                )
            special = tokenizer.special_ids
            rows_of = [[token for token in row if token not in special] for row in found.tolist()]
            texts += [tokenizer.decode([token for token in row if token < tokenizer.size]) for row in rows_of]
        return texts

    return timed(write)


def faster_whisper_side(model: str, sounds: list[Any], threads: int) -> Callable[[Request], Written]:
    from faster_whisper import WhisperModel

    net = WhisperModel(model, device="cpu", compute_type="float32", cpu_threads=threads)
    how: dict[str, Any] = {"beam_size": 1, "best_of": 1, "temperature": 0.0, "without_timestamps": True}
    how |= {"vad_filter": False}
    how |= {"condition_on_previous_text": False, "suppress_tokens": [], "suppress_blank": False}
    how |= {"no_speech_threshold": None, "log_prob_threshold": None, "compression_ratio_threshold": None}

    def write(_: int) -> list[str]:
        return [" ".join(part.text for part in net.transcribe(sound, language="en", **how)[0]) for sound in sounds]

    return timed(write)


def prompt_of(model: str) -> list[int]:
    from legato.folders.model_folder import read_model
    from legato.tasks.speech import writer

    return list(writer.prompt_of(read_model(model)).tokens)


def read(root: Path, limit: int) -> tuple[list[Any], list[str]]:
    """Samples and transcripts, of sounds from all over the table."""
    from legato.data.audio.transcripts import read_transcripts
    from legato.data.sources.files import FileOptions

    tar = root / "dev.tar"
    rows = read_transcripts(str(root / "dev.tsv"), FileOptions(), audio=str(tar) if tar.exists() else None)
    chosen = range(len(rows)) if not limit else [len(rows) * number // limit for number in range(limit)]
    return [rows.sounds[row].load(RATE) for row in chosen], [rows.texts[row] for row in chosen]


def error_rates(texts: list[str], truth: list[str]) -> dict[str, float]:
    from legato.evaluation.speech import speech_scores

    found = speech_scores(texts, truth, normalizer="whisper")
    return {name: round(found[name], 2) for name in ("wer", "wer_plain", "wer_whisper")}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--model", required=True, help="a folder of Whisper as Hugging Face keeps it")
    parser.add_argument("--ct2", help="the same weights as faster-whisper reads them")
    parser.add_argument("--root", type=Path, required=True)
    parser.add_argument("--limit", type=int, default=0, help="sounds; 0: all")
    parser.add_argument("--rounds", type=int, default=1)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--batches", default="1,4,16", help="sounds at once that transformers may choose from")
    options = parser.parse_args()
    for module in ("transformers", "jiwer", "whisper_normalizer", *(["faster_whisper"] if options.ct2 else [])):
        if importlib.util.find_spec(module) is None:
            raise SystemExit(f'{module} is not installed; the peers come with: pip install -e ".[bench]"')
    multiprocessing.set_start_method("spawn")
    sounds, truth = read(options.root, options.limit)
    seconds = sum(map(len, sounds)) / RATE
    print(f"{len(sounds)} sounds, {seconds:,.0f} seconds", flush=True)

    makers = {"legato": (legato_side, options.model), "transformers": (transformers_side, options.model)}
    if options.ct2:
        makers["faster-whisper"] = (faster_whisper_side, options.ct2)
    sides = {name: Side(make, model, sounds, options.threads) for name, (make, model) in makers.items()}
    sizes = [int(size) for size in options.batches.split(",")]
    tried = {size: sides["transformers"](size)[0] for size in sizes}
    best = min(tried, key=lambda size: tried[size])
    told = ", ".join(f"{size}: {seconds / spent:.1f}" for size, spent in tried.items())
    print(f"transformers, seconds of sound per second by batch: {told}", flush=True)

    speeds: dict[str, list[float]] = {name: [] for name in sides}
    texts: dict[str, list[str]] = {}
    for number in range(options.rounds + 1):
        for name, side in sides.items():
            if number or name != "transformers":  # the first pass warms up
                spent, texts[name] = side(best if name == "transformers" else 0)
                if number:
                    speeds[name].append(seconds / spent)
    figures: dict[str, Any] = {"batch_of_transformers": best}
    medians = {name: statistics.median(each) for name, each in speeds.items()}
    print(f"{'':16s}{'sound s/s':>10s}{'legato is':>11s}{'WER raw':>9s}{'plain':>7s}{'Whisper':>9s}  equal texts")
    for name, speed in medians.items():
        rates = error_rates(texts[name], truth)
        equal = sum(mine == other for mine, other in zip(texts["legato"], texts[name], strict=True))
        ratio = medians["legato"] / speed
        shown = "".join(f"{rate:{width}.2f}" for rate, width in zip(rates.values(), (9, 7, 9), strict=True))
        print(f"{name:16s}{speed:10.2f}{ratio:9.2f} ×{shown}  {equal} of {len(truth)}", flush=True)
        figures[name] = {
            "seconds_per_second": round(speed, 3),
            "legato_over": round(ratio, 3),
            **rates,
            "equal": equal,
        }
    print(json.dumps({"benchmark": "transcribe", **vars(options), "root": str(options.root), **figures}))


if __name__ == "__main__":
    main()
