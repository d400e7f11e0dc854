"""What pages hold: the reports inside of an HTML file."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

SCRIPT = re.compile(r'<script type="application/json" id="report(?:-\d+)?">(.*?)</script>', flags=re.DOTALL)


def reports_in(page: Path) -> list[dict[str, Any]]:
    """The reports of a page, in their order."""
    return [json.loads(found) for found in SCRIPT.findall(page.read_text(encoding="utf-8"))]
