"""A browser without a network that opens pages, and what is to be seen in them."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")


class Page:
    """A page without a network, and what it complained of."""

    def __init__(self, browser: Any, **options: Any) -> None:
        sizes = {"viewport": {"width": 1280, "height": 800}, **options}
        self.page = browser.new_context(offline=True, **sizes).new_page()
        self.problems: list[str] = []
        self.asked: list[str] = []
        self.page.on("console", lambda said: said.type == "error" and self.problems.append(said.text))
        self.page.on("pageerror", lambda problem: self.problems.append(str(problem)))
        self.page.on("request", lambda request: self.asked.append(request.url))

    def open(self, file: Path, address: str = "") -> Any:
        self.page.goto("about:blank")
        self.asked.clear()
        self.page.goto(f"file://{file}{address}")
        self.page.wait_for_selector("main h1")
        return self.page

    def settle(self) -> None:
        """Until nothing is on its way."""
        self.page.wait_for_function("!document.querySelector('main p.quiet')?.textContent?.startsWith('…')")
        self.page.wait_for_timeout(60)

    def clean(self, file: Path) -> None:
        assert self.problems == []
        outside = [url for url in self.asked if not url.startswith((f"file://{file}", "data:", "blob:"))]
        assert outside == []


def drawn(page: Any) -> list[int]:
    """How many colours each canvas has."""
    return page.evaluate(
        """() => [...document.querySelectorAll('main canvas')].map((canvas) => {
            const {data} = canvas.getContext('2d').getImageData(0, 0, canvas.width, canvas.height);
            const found = new Set();
            for (let i = 0; i < data.length; i += 4) found.add(data[i] << 16 | data[i + 1] << 8 | data[i + 2]);
            return found.size;
        })"""
    )
