"""Whatever is wrong with a file or a setting: a clear refusal or a right answer, soon, and no other file is touched.

What is run is in `fuzzing/`; `python tests/slow/fuzz.py --case LINE` repeats one case. Of all cases a share is run,
which `campaign_share` says.
"""

from __future__ import annotations

import gzip
import io
import json
import random
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest
from fuzzing import damage, trial
from fuzzing.campaign import told
from fuzzing.cases import Case, Damage
from fuzzing.scenarios import lacking
from hypothesis import given, settings
from hypothesis import strategies as st
from safetensors.numpy import save


def packed(structure: str) -> bytes:
    """Something small in a container."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    made = io.BytesIO()
    if structure == "zip":
        with zipfile.ZipFile(made, "w") as file:
            file.writestr("a/b.txt", "one\ntwo\n")
    elif structure == "parquet":
        pq.write_table(pa.table({"text": ["one", "two"], "label": [0, 1]}), made)
    elif structure == "npy":
        np.save(made, np.arange(5, dtype=np.uint16))
    elif structure == "gzip":
        return gzip.compress(b'{"a": 1}')
    else:
        tensors = {"w": np.ones((2, 3), dtype=np.float32)} if structure == "safetensors" else {}
        return save(tensors, {"format": "pt"})
    return made.getvalue()


CONTENTS = {
    "json": b'{"a": {"b": [1, 2.5, "x", null, true]}, "c": "d"}',
    "jsonl": b'{"a": 1}\n{"a": [2]}\n',
    "yaml": b"a: 1\nb: [c, d]\n",
    "text": b"one two\nthree\tfour\n",
    "bytes": b"\xff\xfe\x00\x01",
    **{structure: packed(structure) for structure in ("zip", "gzip", "parquet", "npy", "safetensors")},
}


def test_whatever_is_registered_has_a_scenario() -> None:
    assert lacking() == [], "add a scenario for it to tests/slow/fuzzing/scenarios.py"


def test_no_damage_brings_anything_but_a_refusal_or_a_right_answer(tmp_path: Path) -> None:
    script, report = Path(__file__).parent / "fuzz.py", tmp_path / "report.json"
    done = subprocess.run(
        [sys.executable, str(script), "--quiet", "--share", "--report", str(report)],
        capture_output=True,
        text=True,
    )
    assert report.exists(), done.stderr[-3000:]
    found = json.loads(report.read_text())
    print(told(found))
    assert found["whole"], done.stderr[-3000:]
    assert not found["failures"], told(found)


# --- the fuzzer itself -------------------------------------------------------------------------------


@pytest.mark.parametrize("structure", CONTENTS)
def test_what_a_file_holds_decides_how_it_is_damaged(structure: str) -> None:
    content = CONTENTS[structure]
    assert damage.content_of(content) == structure
    kinds = damage.kinds_of(content)
    assert "bytes.flip" in kinds
    assert "file.fifo" in kinds
    assert structure == "bytes" or any(kind.startswith(f"{structure}.") for kind in kinds)


@given(content=st.sampled_from([*CONTENTS.values(), b"", b"\n", packed("no tensors")]), number=st.integers(0, 10**6))
@settings(max_examples=1000, deadline=None)
def test_a_case_is_the_same_whenever_it_is_run(content: bytes, number: int) -> None:
    kinds = [kind for kind in damage.kinds_of(content) if not kind.startswith("file.") and "bomb" not in kind]
    kind = kinds[number % len(kinds)]
    one, other = (damage.changed(content, kind, random.Random(number)) for _ in range(2))
    assert one == other


def test_a_case_is_written_on_a_line_and_read_again() -> None:
    damages = Damage("run/best/config.json", "json.value", 3), Damage("option:--top-k", "word-2", 0)
    case = Case("predict-lm", damages)
    assert str(case) == "predict-lm run/best/config.json=json.value#3 option:--top-k=word-2#0"
    assert Case.read(str(case)) == case


@pytest.mark.parametrize(
    ("outcome", "reason"),
    [
        (trial.Outcome(2, "", "legato: x.txt is empty; give another\n", 1, 0), None),
        (trial.Outcome(2, "", "legato: line 2: too long\nlegato: 1 of 2 could not be done\n", 1, 0), None),
        (trial.Outcome(2, "", "legato: one\nlegato: two\n", 1, 0), "not one line"),
        (trial.Outcome(2, "", "", 1, 0), "not one line"),
        (trial.Outcome(2, "", f"legato: {'x' * 5000}\n", 1, 0), "a refusal of 5,008 characters"),
        (trial.Outcome(2, "", "x.py:3: UserWarning: hm\nlegato: no\n", 1, 0), "noise: UserWarning of x.py"),
        (trial.Outcome(1, "", "legato: this is a fault of ours: KeyError: 'x'\n", 1, 0), "fault"),
        (trial.Outcome(1, "", "", 1, 0), "exit code 1"),
        (trial.Outcome(-24, "", "", 10, 0), "killed: more than 10 s"),
        (trial.Outcome(-9, "", "", 30, 0), "killed: waits without end"),
        (trial.Outcome(0, "{}\n", "", 1, 3 << 30), "memory"),
        (trial.Outcome(0, "{}\n", "", 1, 0, changed=["in/train.txt"]), "changed: in/train.txt"),
        (trial.Outcome(0, '{"score": NaN}\n', "", 1, 0), "no JSON: NaN is no number"),
        (trial.Outcome(0, "{}\n{}\n", "", 1, 0), r"2 answers to \[1\] texts"),
        (trial.Outcome(0, "{}\n", "", 1, 0), None),
    ],
)
def test_what_may_be_and_what_may_not(outcome: trial.Outcome, reason: str | None, tmp_path: Path) -> None:
    found = trial.failure(outcome, tmp_path, json_lines=True, answers={1}, verb="predict")
    if reason is None:
        assert found is None
    else:
        with pytest.raises(AssertionError, match=reason):
            raise AssertionError(found)
