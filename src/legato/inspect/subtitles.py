"""Subtitles: what was said in a recording and when, as a SubRip file (`.srt`).

    1
    00:00:00,480 --> 00:00:02,160
    go to sleep

A subtitle ends where it is full, where it has lasted long enough, and where nothing is said for a while.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Final

from legato.errors import DataError
from legato.output_files import replacing_file
from legato.tasks.predictions import Prediction

FULL: Final = 84  # characters: two lines of 42
LONGEST: Final = 7.0  # seconds that one lasts
PAUSE: Final = 0.8  # seconds in which nothing is said, after which another one begins


def subtitles(words: Sequence[Mapping[str, Any]]) -> str:
    """Words with their times, `word`, `start` and `end`, as SubRip has them.

    >>> print(subtitles([{"word": "go", "start": 0.5, "end": 1.0}]), end="")
    1
    00:00:00,500 --> 00:00:01,000
    go
    """
    shown: list[list[Mapping[str, Any]]] = []
    for word in words:
        last = shown[-1] if shown else None
        if (
            last is None
            or word["start"] - last[-1]["end"] > PAUSE
            or word["end"] - last[0]["start"] > LONGEST
            or sum(len(each["word"]) + 1 for each in last) + len(word["word"]) > FULL
        ):
            shown.append([])
        shown[-1].append(word)
    texts = [" ".join(word["word"] for word in each) for each in shown]
    times = [f"{_time(each[0]['start'])} --> {_time(each[-1]['end'])}" for each in shown]
    return "\n".join(
        f"{number}\n{time}\n{text}\n" for number, (time, text) in enumerate(zip(times, texts, strict=True), start=1)
    )


def _time(seconds: float) -> str:
    """As SubRip writes it: hours, minutes, seconds and, behind a comma, milliseconds."""
    whole = round(1000 * seconds)
    return f"{whole // 3_600_000:02}:{whole // 60_000 % 60:02}:{whole // 1000 % 60:02},{whole % 1000:03}"


class SubtitleFile:
    """A `.srt` file that gets what was said in one recording."""

    def __init__(self, path: Path) -> None:
        if path.is_dir() or not path.parent.is_dir():
            reason = "is a folder" if path.is_dir() else f"lies in {path.parent}, which is no folder"
            raise DataError(f"--srt {path} {reason}; name a file")
        self.path, self.count = path, 0

    def add(self, sounds: Sequence[Any], predictions: Sequence[Prediction]) -> None:
        """Write those of the recording, if it could be read."""
        if len(predictions) + self.count > 1:
            raise DataError("--srt is for one recording, and there are several; give one at a time")
        for prediction in predictions:
            self.count += 1
            if prediction.problem is None:
                with replacing_file(self.path) as fresh:
                    fresh.write_text(subtitles(prediction.answers[0].more["words"]), encoding="utf-8")

    def summary(self) -> str:
        """What there is, in a line."""
        return f"the subtitles are in {self.path}"
