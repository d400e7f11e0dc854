"""The HTTP server: an application, and what is mounted on it. All of it needs the extra `serve`."""

from legato.registry import require_extra

for _package in ("fastapi", "uvicorn"):  # before any file here imports them
    require_extra("serve", _package)
