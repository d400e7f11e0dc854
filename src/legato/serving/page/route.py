"""The page at `/` of a server, where a person tries each model: one file that asks for nothing but this API."""

from __future__ import annotations

import base64
import hashlib
import re
from importlib.resources import files
from typing import Any, Final

from fastapi import APIRouter
from starlette.responses import HTMLResponse, Response

from legato.registry import TASKS
from legato.serving.models import Served
from legato.serving.predict_types import predictable_kinds

INLINE: Final = re.compile(r"<(script|style)>(.*?)</\1>", re.DOTALL)


def page_route() -> APIRouter:
    router = APIRouter()
    page = files("legato.serving.page").joinpath("page.html").read_text(encoding="utf-8")
    headers = {"content-security-policy": policy_of(page)}

    @router.get("/", include_in_schema=False)
    async def show_page() -> Response:
        return HTMLResponse(page, headers=headers)

    return router


def policy_of(page: str) -> str:
    """What a page may do: run the one script that is in it, and ask this server."""
    hashes: dict[str, str] = {}
    for kind, content in INLINE.findall(page):
        digest = base64.b64encode(hashlib.sha256(content.encode()).digest()).decode("ascii")
        hashes[kind] = f"{kind}-src 'sha256-{digest}'"
    fixed = ("connect-src 'self'", "base-uri 'none'", "form-action 'none'", "frame-ancestors 'none'")
    return "; ".join(("default-src 'none'", *hashes.values(), *fixed))


def about_model(served: Served) -> dict[str, Any]:
    """What a model does, for its card: its task, the route that it is for, and what it reads there."""
    model = served.model
    limits = served.prompt_limits if model.generates else served.input_limits
    about: dict[str, Any] = {"task": model.task, "use": None, "input": "a text", "member": None}
    about |= {"max_input_tokens": limits.tokens, "max_input_characters": limits.characters}
    if model.task == "embedding":
        return {**about, "use": "embeddings"}
    kinds = predictable_kinds(served)
    if model.generates and "image" not in TASKS.get(model.task).processors:
        return {**about, "use": "completions" if model.loaded.chat is None else "chat"}
    if kinds:
        member, kind = next(iter(kinds.items()))
        return {**about, "use": "predict", "input": kind, "member": member}
    if model.generates:
        return {**about, "use": "chat"}
    return {**about, "use": "embeddings"} if model.task == "mlm" else about
