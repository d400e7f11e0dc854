"""From sound to what a model reads: frames of log-mel energies, as `preprocessor_config.json` says.

A frame is the power of a windowed piece of the sound, summed by mel filters W, in logarithms:

    p = |FFT(window · x)|²          e = W p

WhisperFeatureExtractor       max(log₁₀ e, max log₁₀ e - 8) / 4 + 1, of windows of 30 seconds with silence at the end
ParakeetFeatureExtractor      ln(e + 2⁻²⁴) of x_n - 0.97 x_{n-1}; each filter minus its mean, by its spread
Speech2TextFeatureExtractor   Kaldi's: ln e of x · 2¹⁵, each piece without its mean and with x_n - 0.97 x_{n-1}; each
                              filter minus its mean, by its spread

The file is Hugging Face's, and so is what comes out. Means and spreads are those of a row's own frames, and a row's
last frame ends in its own samples mirrored or in silence: what stands beside a row in its batch changes nothing.

Folders may have the entries in `processor_config.json` instead, under `feature_extractor`.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Annotated, Any, ClassVar, Final

import numpy as np
import torch
import torch.nn.functional as F
from pydantic import Field
from torch import Tensor

from legato.data.audio.mel import kaldi_filters, slaney_filters
from legato.data.batching.batch import Inputs
from legato.data.processors import SHARED_FILE, is_for_sound
from legato.errors import DataError, brief
from legato.schema import OPEN, TypedDict, read_json, with_config, write_json

WHISPER: Final = "WhisperFeatureExtractor"
PARAKEET: Final = "ParakeetFeatureExtractor"
SPEECH2TEXT: Final = "Speech2TextFeatureExtractor"

HIGHEST: Final = 8000.0  # hertz that Whisper's filters reach, at any rate
LOWEST: Final = 20.0  # and from which Kaldi's begin
KALDI_SCALE: Final = 2.0**15  # Kaldi reads whole numbers of 16 bits
WHISPER_FLOOR, PARAKEET_FLOOR, KALDI_FLOOR = 1e-10, 2.0**-24, 1.192092955078125e-07  # of energies
SPREAD_FLOOR: Final = 1e-5  # added to Parakeet's spreads

Count = Annotated[int, Field(ge=1, le=1 << 16)]
Rate = Annotated[int, Field(ge=100, le=1_000_000)]  # samples for a second


@with_config(OPEN)
class AudioEntries(TypedDict, total=False):
    """preprocessor_config.json."""

    feature_extractor_type: str | None
    sampling_rate: Rate | None
    feature_size: Annotated[int, Field(ge=1, le=1024)] | None
    num_mel_bins: Annotated[int, Field(ge=1, le=1024)] | None
    hop_length: Count | None
    n_fft: Count | None
    win_length: Count | None
    chunk_length: Annotated[int, Field(ge=1, le=3600)] | None
    preemphasis: Annotated[float, Field(ge=0, le=1)] | None
    do_ceptral_normalize: bool | None
    normalize_means: bool | None
    normalize_vars: bool | None
    dither: float | None
    padding_value: float | None


@with_config(OPEN)
class SharedEntries(TypedDict, total=False):
    """processor_config.json."""

    feature_extractor: AudioEntries


@dataclass(frozen=True)
class FeatureExtractor:
    """Mono sounds (B, N) at `sampling_rate` to frames (B, T, F)."""

    file: ClassVar[str] = "preprocessor_config.json"

    kind: str = WHISPER  # what Hugging Face calls it
    bins: int = 80  # mel filters, F
    sampling_rate: int = 16_000
    hop: int = 160  # samples from one frame to the next
    fft: int = 400
    window: int = 400  # samples of a frame
    preemphasis: float | None = None
    seconds: int | None = 30  # of the windows that a model reads; None: sounds are as long as they are
    means: bool = False  # whether each filter's is taken off, over a row's frames …
    spreads: bool = False  # … and whether it is divided by its spread

    @classmethod
    def of_kind(cls, kind: str, **changes: Any) -> FeatureExtractor:
        """Hugging Face's of this name, as it is where nothing else is said.

        >>> FeatureExtractor.of_kind("ParakeetFeatureExtractor", bins=128).fft
        512
        """
        if kind not in KINDS:
            raise DataError(f"there is no feature extractor '{brief(kind)}' here; those are {', '.join(KINDS)}")
        return replace(KINDS[kind], **changes)

    @classmethod
    def load(cls, folder: Path) -> FeatureExtractor:
        file, shared = folder / cls.file, folder / SHARED_FILE
        entries: dict[str, Any] = {**read_json(file, AudioEntries, loose=True)} if file.is_file() else {}
        if not is_for_sound(entries) and shared.is_file():
            file, entries = shared, {**read_json(shared, SharedEntries, loose=True).get("feature_extractor", {})}
        if not is_for_sound(entries):
            if not file.is_file():
                raise DataError(f"{folder} lacks {cls.file}, the feature extractor that sounds are read with")
            raise DataError(
                f"{file} has no entries of a feature extractor for sound; give that of a model that hears"
            )
        given = {key: value for key, value in entries.items() if value is not None}
        kind = given.get("feature_extractor_type", WHISPER)
        if kind not in KINDS:
            raise DataError(f"{file}: '{brief(kind)}' is not read here; feature extractors are {', '.join(KINDS)}")
        for name in ("dither", "padding_value"):
            if given.get(name, 0):
                raise DataError(f"{file}: {name} is {given[name]}, and only 0 is read here; set it to 0")
        changes = {name: given[key] for key, name in NAMES[kind].items() if key in given}
        if kind == WHISPER:
            changes["window"] = changes.get("fft", cls.window)
        if kind == PARAKEET and entries.get("preemphasis", 0) is None:
            changes["preemphasis"] = None
        if kind == SPEECH2TEXT and not given.get("do_ceptral_normalize", True):
            changes |= {"means": False, "spreads": False}
        found = cls.of_kind(kind, **changes)
        if not 2 <= found.window <= found.fft or found.hop > found.window:
            raise DataError(
                f"{file}: hop_length {found.hop} ≤ win_length {found.window} ≤ n_fft {found.fft} should hold"
            )
        return found

    def save(self, folder: Path) -> None:
        entries: dict[str, Any] = {
            "feature_extractor_type": self.kind,
            **{key: getattr(self, name) for key, name in NAMES[self.kind].items()},
            "feature_size": self.bins,
            "padding_side": "right",
            "padding_value": 0.0,
            "return_attention_mask": self.kind != WHISPER,
        }
        if self.kind == WHISPER and self.seconds is not None:
            samples = self.seconds * self.sampling_rate
            entries |= {"n_samples": samples, "nb_max_frames": samples // self.hop}
        if self.kind == SPEECH2TEXT:
            entries["do_ceptral_normalize"] = self.means or self.spreads
        write_json(folder / self.file, entries)

    def fingerprint(self) -> str:
        return hashlib.sha256(json.dumps(asdict(self), sort_keys=True).encode()).hexdigest()

    def read(self, sounds: Sequence[np.ndarray[Any, Any]], *, padded: bool = True) -> Inputs:
        """Sounds of one channel at the rate of this extractor (`Sound.load`) as a batch."""
        lengths = torch.tensor([len(sound) for sound in sounds])
        samples = torch.zeros(len(sounds), int(lengths.max()))
        for row, sound in zip(samples, sounds, strict=True):
            row[: len(sound)] = torch.from_numpy(np.ascontiguousarray(sound, np.float32))
        values, counts = self.extract(samples, lengths, padded=padded)
        full = self.is_windowed(padded) or int(counts.min()) == values.shape[1]
        return Inputs(values=values, lengths=None if full else counts)

    def is_windowed(self, padded: bool = True) -> bool:
        """Whether every row has `seconds`, which a model reads to the end, silence and all."""
        return padded and self.seconds is not None

    def frames(self, samples: int, *, padded: bool = True) -> int:
        """How many frames a sound of so many samples has.

        >>> FeatureExtractor().frames(16_000), FeatureExtractor().frames(16_000, padded=False)
        (3000, 100)
        """
        if self.seconds is not None and padded:
            return self.seconds * self.sampling_rate // self.hop
        return int(self._counts(torch.tensor(samples)))

    @torch.no_grad()
    def extract(self, sound: Tensor, lengths: Tensor | None = None, *, padded: bool = True) -> tuple[Tensor, Tensor]:
        """Samples (B, N), `lengths` (B,) of them a row's, to frames (B, T, F) and how many of those are sound, (B,).

        With `padded` rows have `seconds` where an extractor has such windows: shorter ones are followed by silence,
        of longer ones the beginning is read. Without, they are as long as they are, and 0 beyond their lengths. A row
        has one frame at least.
        """
        lengths = torch.full((len(sound),), sound.shape[1], device=sound.device) if lengths is None else lengths
        with torch.autocast(sound.device.type, enabled=False):
            inside = torch.arange(sound.shape[1], device=sound.device) < lengths[:, None]  # (B, N)
            sound = sound.float().masked_fill(~inside, 0)
            if self.seconds is not None and padded:
                window = self.seconds * self.sampling_rate
                sound = F.pad(sound, (0, window - sound.shape[1]))  # or cut off
                counts = (-(-lengths // self.hop)).clamp(1, window // self.hop)
                return self._whisper(sound, lengths, None), counts
            counts = self._counts(lengths)
            total = self.frames(sound.shape[1], padded=False)
            valid = (torch.arange(total, device=sound.device) < counts[:, None])[..., None]  # (B, T, 1)
            if self.kind == WHISPER:
                return self._whisper(sound, lengths, valid), counts
            logs = self._parakeet(sound, inside, total) if self.kind == PARAKEET else self._kaldi(sound, total)
            return self._normalised(logs, valid, counts).float(), counts

    def _counts(self, samples: Tensor) -> Tensor:
        if self.kind == SPEECH2TEXT:
            samples = samples - self.window + self.hop  # a frame has to lie within the sound
        return (samples // self.hop).clamp(min=1)

    def _whisper(self, sound: Tensor, lengths: Tensor, valid: Tensor | None) -> Tensor:
        margin = self.fft // 2
        if valid is None:
            mirrored = F.pad(sound[:, None], (margin, margin), mode="reflect")[:, 0]
        else:
            mirrored = _mirrored(sound, lengths, margin)
        total = max(1, sound.shape[1] // self.hop)
        logs = self._energies(_power(self._stft(mirrored, total))).clamp(min=WHISPER_FLOOR).log10()  # (B, T, F)
        loudest = (logs if valid is None else logs.masked_fill(~valid, -torch.inf)).amax((1, 2), keepdim=True)
        logs = (torch.maximum(logs, loudest - 8) + 4) / 4
        return (logs if valid is None else logs.masked_fill(~valid, 0)).contiguous()

    def _parakeet(self, sound: Tensor, inside: Tensor, total: int) -> Tensor:
        if self.preemphasis:
            before = F.pad(sound, (1, -1))
            sound = (sound - self.preemphasis * before).masked_fill(~inside, 0)
        silent = F.pad(sound, (self.fft // 2, self.fft // 2))
        return (self._energies(_power(self._stft(silent, total))) + PARAKEET_FLOOR).log()

    def _kaldi(self, sound: Tensor, total: int) -> Tensor:
        # In float64: far from a tone's own frequency its energies are rounding otherwise, and logarithms show it.
        sound = F.pad(sound.double() * KALDI_SCALE, (0, max(0, self.window - sound.shape[1])))
        pieces = sound.unfold(1, self.window, self.hop)[:, :total]  # (B, T, window)
        pieces = pieces - pieces.mean(-1, keepdim=True)
        before = torch.cat((pieces[..., :1], pieces[..., :-1]), -1)
        pieces = (pieces - (self.preemphasis or 0) * before) * self._tensors(sound)[0]
        return self._energies(_power(torch.fft.rfft(pieces, self.fft))).clamp(min=KALDI_FLOOR).log()

    def _normalised(self, logs: Tensor, valid: Tensor, counts: Tensor) -> Tensor:
        """Each filter minus its mean, by its spread, over the frames of its row."""
        many = counts[:, None, None].to(logs.dtype)
        means = (logs * valid).sum(1, keepdim=True) / many  # (B, 1, F)
        centred = logs - means
        unbiased = self.kind == PARAKEET
        variances = (centred.square() * valid).sum(1, keepdim=True) / (many - int(unbiased)).clamp(min=1)
        if self.means:
            logs = centred
        if self.spreads:
            spreads = variances.sqrt()
            # A filter that hears nothing new in a row has a spread of 0.
            logs = logs / (spreads + SPREAD_FLOOR if unbiased else spreads.masked_fill(spreads == 0, 1))
        return logs.masked_fill(~valid, 0)

    def _stft(self, sound: Tensor, total: int) -> Tensor:
        """(B, T, 1 + fft / 2) of sounds with half a frame before and behind."""
        window = self._tensors(sound)[0]
        spectrum = torch.stft(sound, self.fft, self.hop, self.window, window, center=False, return_complex=True)
        return spectrum[..., :total].transpose(1, 2)

    def _energies(self, power: Tensor) -> Tensor:
        """By mel filters, (B, T, F)."""
        # Products of float32 may be rounded to 10 bits on a GPU (TF32), which logarithms would show.
        exact = power.double() if power.is_cuda else power
        return (exact @ self._tensors(exact)[1]).to(power.dtype)

    def _tensors(self, like: Tensor) -> tuple[Tensor, Tensor]:
        """The window and the mel filters, in the precision and on the device of another tensor."""
        return _tensors_of(self, like.dtype, like.device)

    def _window(self, dtype: torch.dtype) -> Tensor:
        """Hann's: periodic (Whisper), symmetric, or to the power of 0.85 (Kaldi's, called Povey's)."""
        # Computed in the precision that it has, as theirs is: the power of what is nearly silent depends on it.
        window = torch.hann_window(self.window, periodic=self.kind == WHISPER, dtype=dtype)
        return window**0.85 if self.kind == SPEECH2TEXT else window

    def _filters(self) -> np.ndarray[Any, Any]:
        rate = self.sampling_rate
        if self.kind == SPEECH2TEXT:
            return kaldi_filters(self.bins, self.fft, rate, LOWEST, rate // 2)
        return slaney_filters(self.bins, self.fft, rate, HIGHEST if self.kind == WHISPER else rate / 2)


KINDS: Final = {
    WHISPER: FeatureExtractor(),
    PARAKEET: FeatureExtractor(PARAKEET, fft=512, preemphasis=0.97, seconds=None, means=True, spreads=True),
    SPEECH2TEXT: FeatureExtractor(SPEECH2TEXT, fft=512, preemphasis=0.97, seconds=None, means=True, spreads=True),
}
NAMES: Final = {  # Hugging Face's of the entries that each kind has
    WHISPER: {
        "feature_size": "bins",
        "sampling_rate": "sampling_rate",
        "hop_length": "hop",
        "n_fft": "fft",
        "chunk_length": "seconds",
    },
    PARAKEET: {
        "feature_size": "bins",
        "sampling_rate": "sampling_rate",
        "hop_length": "hop",
        "n_fft": "fft",
        "win_length": "window",
        "preemphasis": "preemphasis",
    },
    SPEECH2TEXT: {
        "num_mel_bins": "bins",
        "sampling_rate": "sampling_rate",
        "normalize_means": "means",
        "normalize_vars": "spreads",
    },
}


@lru_cache(maxsize=16)
@torch.inference_mode(False)
def _tensors_of(extractor: FeatureExtractor, dtype: torch.dtype, device: torch.device) -> tuple[Tensor, Tensor]:
    window, filters = extractor._window(dtype), torch.from_numpy(extractor._filters())
    return window.to(device), filters.to(device, dtype)


def _power(spectrum: Tensor) -> Tensor:
    return torch.view_as_real(spectrum).square().sum(-1)


def _mirrored(sound: Tensor, lengths: Tensor, margin: int) -> Tensor:
    """(B, margin + N + margin), each row mirrored at its first sample and at its own last one, again and again."""
    places = torch.arange(-margin, sound.shape[1] + margin, device=sound.device)
    last = (lengths[:, None] - 1).clamp(min=0)
    there = places % (2 * last).clamp(min=1)  # (B, …); a row goes forth and back
    return sound.gather(1, torch.minimum(there, 2 * last - there))
