"""Files of prompts: one a line, whatever else they hold."""

from pathlib import Path

import pytest

from legato.cli.generate import _prompts
from legato.errors import DataError


def test_a_line_is_a_prompt_and_a_byte_order_mark_is_none(tmp_path: Path) -> None:
    file = tmp_path / "p.txt"
    file.write_bytes("\ufeffone\r\n\r\ntwo\u2028halves\x0c\n".encode())
    assert _prompts("", str(file)) == ["one", "", "two\u2028halves\x0c"]


def test_a_prompt_and_a_file_of_prompts_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="not both"):
        _prompts("a", str(tmp_path / "p.txt"))
