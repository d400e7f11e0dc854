"""One of several servers of the same models: an actor that Ray Serve starts, and starts anew when it dies.

It reads the models itself, so that nothing large is sent, and answers with the application of `legato serve`. What
`/metrics` shows is gathered from all replicas, each series with the `replica` that it is of: whoever asks is answered
by any of them, and the counts of one alone would jump from one time to the next.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from fastapi import FastAPI
from prometheus_client import Metric, generate_latest
from prometheus_client.parser import text_string_to_metric_families

from legato.errors import LegatoError, reason_of
from legato.serving.api import Metrics, make_api
from legato.serving.models import ServedModels
from legato.serving.server import ServerOptions
from legato.serving.startup.spec import ServeSpec

APPLICATION: Final = "legato"
DEPLOYMENT: Final = "api"
GATHERING: Final = 5.0  # seconds that the others have to tell their numbers


class Replica:
    """The models, and the API before them."""

    def __init__(self, spec: ServeSpec, options: ServerOptions, port: int, folder: Path) -> None:
        with suppress(OSError):  # on a machine that has no such folder
            os.chdir(folder)  # where the command was given, so that its paths mean the same
        try:
            self.models, self.indexes = spec.read()
            for served in self.models:
                served.warm_up()
        except Exception as problem:  # one line, which the command finds in what Ray says of it
            line = str(problem) if isinstance(problem, LegatoError) else reason_of(problem)
            raise LegatoError(line or f"this is a fault of ours: {type(problem).__name__}: {problem}") from None
        self.metrics = AllMetrics(self.models)
        self.application = make_api(self.models, options.guards(port), self.indexes, self.metrics)

    def __serve_build_asgi_app__(self) -> FastAPI:
        return self.application

    def names(self) -> list[str]:
        return [*(served.name for served in self.models), *(f"index {name}" for name in self.indexes)]

    def numbers(self) -> tuple[str, bytes]:
        """Which replica this is, and its own numbers."""
        from ray import serve

        return str(serve.get_replica_context().replica_id.unique_id), self.metrics.text()


class AllMetrics(Metrics):
    """A replica's numbers, which are shown among those of the others."""

    def __init__(self, models: ServedModels) -> None:
        super().__init__(models)
        self._handle: Any = None

    async def shown(self) -> bytes:
        from ray import serve

        if self._handle is None:
            self._handle = serve.get_deployment_handle(DEPLOYMENT, APPLICATION)
        asked = self._handle.broadcast("numbers")
        told = await asked.results_async(timeout_s=GATHERING, return_exceptions=True)
        return together([each for each in told if isinstance(each, tuple)])  # one may die while it is asked


def together(told: Iterable[tuple[str, bytes]]) -> bytes:
    """The numbers of several replicas, each series with whose it is.

    >>> up = b"# HELP up Whether it runs\\n# TYPE up gauge\\nup 1.0\\n"
    >>> print(together([("a", up), ("b", up)]).decode().rstrip())
    # HELP up Whether it runs
    # TYPE up gauge
    up{replica="a"} 1.0
    up{replica="b"} 1.0
    """
    families: dict[str, Metric] = {}
    for replica, text in sorted(told):
        for found in text_string_to_metric_families(text.decode()):
            family = families.setdefault(found.name, Metric(found.name, found.documentation, found.type))
            family.samples += [each._replace(labels={**each.labels, "replica": replica}) for each in found.samples]
    return bytes(generate_latest(_Collected(families)))


class _Collected:
    """What Prometheus's library takes for a registry."""

    def __init__(self, families: dict[str, Metric]) -> None:
        self._families = families

    def collect(self) -> Iterator[Metric]:
        yield from self._families.values()
