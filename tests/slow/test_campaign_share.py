"""Ten shares in a row are the whole campaign, and the same seed is the same share."""

from __future__ import annotations

import shutil
import subprocess
from datetime import date
from pathlib import Path

import pytest
from campaign_share import rounds, seed, select, share


def git(*words: str) -> str:
    if shutil.which("git") is None:
        return ""
    command = ["git", "-C", str(Path(__file__).parent), *words]
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout.strip()


@pytest.mark.parametrize(("part", "parts"), [("0.1", 10), ("0.25", 4), ("1", 1)])
@pytest.mark.parametrize("offset", [0, 7])
def test_seeds_in_a_row_take_every_case_once(
    part: str, parts: int, offset: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("LEGATO_CAMPAIGN", part)
    taken = []
    for number in range(500, 500 + parts):
        monkeypatch.setenv("LEGATO_CAMPAIGN_SEED", str(number))
        taken.append(select(range(1003), offset))
    assert sorted(case for cases in taken for case in cases) == list(range(1003))
    assert {len(cases) for cases in taken} <= {1003 // parts, 1003 // parts + 1}


def test_the_share_is_a_tenth_and_the_seed_counts_commits_where_nothing_else_is_set(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.delenv("LEGATO_CAMPAIGN", raising=False)
    monkeypatch.delenv("LEGATO_CAMPAIGN_SEED", raising=False)
    assert (float(share()), rounds(1000), rounds(3)) == (0.1, 100, 1)
    if git("rev-parse", "--is-shallow-repository") == "false":
        assert seed() == int(git("rev-list", "--count", "HEAD"))


def test_the_seed_is_the_day_where_no_commit_is_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("LEGATO_CAMPAIGN_SEED", raising=False)
    monkeypatch.setenv("PATH", "")  # where there is no git
    first = date.today().toordinal()
    assert first <= seed() <= date.today().toordinal()
