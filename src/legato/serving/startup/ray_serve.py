"""`legato serve --ray`: the API by several replicas, behind Ray Serve's proxies, on one machine or on many.

    legato serve runs/chat --ray --replicas 4                        # a cluster of Ray's own on this machine
    RAY_ADDRESS=10.0.0.5:6379 legato serve runs/chat --ray           # the cluster there

Ray Serve starts the replicas (replica.py), gives each request to one that has few, and starts anew those that die.
Its proxies take HTTP on every machine that has a replica. This process starts all that, repeats the replicas' log
lines, and at its end lets what was asked for be written and takes away what it started.
"""

from __future__ import annotations

import http.client
import io
import logging
import os
import re
import secrets
import socket
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stderr, redirect_stdout, suppress
from pathlib import Path
from typing import Any, Final

from legato.errors import ConfigError, LegatoError, brief
from legato.interrupts import Interrupt
from legato.registry import require_extra
from legato.serving.server import DRAIN, ServerOptions, listen
from legato.serving.startup import ray_proxy
from legato.serving.startup.replica import APPLICATION, DEPLOYMENT, Replica
from legato.serving.startup.spec import ServeSpec
from legato.serving.transport.connections import STALL
from legato.serving.transport.log import writer

LOOK: Final = 1.0  # seconds between two looks at the replicas
TAKEN_UP: Final = 10.0  # that a proxy here has to hear of the replicas
REACHED: Final = 5.0  # that a cluster has to answer
ENDED: Final = 15.0  # that Ray has to end, beside what is still written
AT_ONCE: Final = 100_000  # requests of a replica: its own queues say when it has too many
MIDDLEWARES: Final = f"{ray_proxy.__name__}.{ray_proxy.middlewares.__name__}"
ENVIRONMENT: Final = {  # of Ray in this process
    "RAY_USAGE_STATS_ENABLED": "0",  # nothing is sent anywhere
    "RAY_DEDUP_LOGS": "0",  # lines that are alike are no repetition
    "RAY_COLOR_PREFIX": "0",
}
REPEATED: Final = re.compile(r"\((?:(ServeReplica:legato\S*|ProxyActor) pid=|\S+ pid=|raylet|autoscaler)[^)]*\) (.*)")


def serve_with_ray(spec: ServeSpec, options: ServerOptions, replicas: int, say: Callable[[str], None]) -> None:
    """Answer by replicas until SIGTERM or Ctrl-C; then what was asked for is written, and nothing more taken in."""
    for name, value in ENVIRONMENT.items():
        os.environ.setdefault(name, value)
    if not os.environ.get("RAY_ADDRESS"):  # Ray's own ports, through which it runs what it is sent, ask for a token
        os.environ.setdefault("RAY_AUTH_MODE", "token")
        os.environ.setdefault("RAY_AUTH_TOKEN", secrets.token_hex(32))
    ray, serve = require_extra("ray", "ray"), require_extra("ray", "ray.serve")
    logging.getLogger("ray.serve").setLevel(logging.ERROR)
    opened = listen(options.host, options.port)  # one that is in use is said before anything takes long
    port = opened.getsockname()[1]
    opened.close()
    with only_our_lines(), _cluster(ray, options), Interrupt() as stop:
        if (status := serve.status()).proxies or status.applications:
            raise LegatoError(
                "Ray Serve runs on this cluster already, with a port of its own; end it there (serve shutdown), or "
                "name another cluster by RAY_ADDRESS"
            )
        try:
            _start(ray, serve, spec, options, port, replicas)
            if _replicas_are_ready(ray, serve, options, port, stop, say):
                names = serve.get_app_handle(APPLICATION).names.remote().result()
                where = f"{options.address(port)} by {replicas} replica{'s' if replicas > 1 else ''}"
                if options.check:
                    say(f"{', '.join(names)} would be served at {where}")
                else:
                    options.announce(say, names, where)
                    _watch(serve, replicas, stop, say)
        finally:
            ending = threading.Thread(target=_end, args=(serve,), daemon=True)  # Ray may wait for ever
            ending.start()
            ending.join(DRAIN + ENDED)
    if not options.check:
        lines = writer()
        lines.say("the server has stopped")
        lines.close()


@contextmanager
def _cluster(ray: Any, options: ServerOptions) -> Iterator[None]:
    """The cluster that RAY_ADDRESS names, or one of this process's own, which ends with it."""
    address = os.environ.get("RAY_ADDRESS", "")
    variables = {
        "RAY_SERVE_HTTP_PROXY_CALLBACK_IMPORT_PATH": MIDDLEWARES,
        "RAY_SERVE_PROXY_PREFER_LOCAL_NODE_ROUTING": "0",  # else a proxy's own machine gets all that it can take
        "RAY_SERVE_PROXY_PREFER_LOCAL_AZ_ROUTING": "0",
        ray_proxy.BODY: str(options.body),
        ray_proxy.LOG: "1" if options.log else "",
    }
    how: dict[str, Any] = {"runtime_env": {"env_vars": variables}}  # of the proxies and the replicas
    if not address:
        how |= {"include_dashboard": False, "_node_ip_address": "127.0.0.1"}
    try:
        try:
            _check_reached(address)
            ray.init(address or "local", namespace=APPLICATION, logging_level=logging.ERROR, **how)
        except (OSError, RuntimeError, ValueError) as problem:
            where = f"no cluster of Ray answers at RAY_ADDRESS={address}" if address else "Ray does not start"
            raise LegatoError(f"{where}: {brief(problem, 200)}") from None
        yield
    finally:
        ray.shutdown()


def _check_reached(address: str) -> None:
    """Raise where nobody listens at an address: Ray would try for minutes."""
    host, _, port = address.rpartition("://")[2].rpartition(":")
    if port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), REACHED).close()


def _start(ray: Any, serve: Any, spec: ServeSpec, options: ServerOptions, port: int, replicas: int) -> None:
    """Have Ray Serve take HTTP, and begin to start the replicas."""
    machines = [machine["Resources"] for machine in ray.nodes() if machine["Alive"]]
    taken = actor_options(machines, replicas, spec.device)
    logs = {"log_level": "WARNING", "enable_access_log": False}  # Ray's own, in its folder
    http_options = {"host": options.host, "port": port, "request_timeout_s": spec.patience + STALL}
    try:
        serve.start(proxy_location="EveryNode", http_options=http_options, logging_config=logs)
    except Exception as problem:
        line = brief(str(problem).strip().splitlines()[-1], 200)
        raise LegatoError(f"Ray's proxy does not start at port {port} of {options.host}: {line}") from None
    deployment = serve.deployment(
        serve.ingress()(Replica),
        name=DEPLOYMENT,
        num_replicas=replicas,
        ray_actor_options=taken,
        max_ongoing_requests=AT_ONCE,
        max_constructor_retry_count=1,  # what cannot be read will not be the next time; one that ran is started anew
        health_check_period_s=2,
        graceful_shutdown_timeout_s=DRAIN,
        graceful_shutdown_wait_loop_s=0.2,
        logging_config=logs,
    )
    bound = deployment.bind(spec, options, port, Path.cwd())
    target = serve.RunTarget(target=bound, name=APPLICATION, route_prefix="/")
    serve.run_many([target], wait_for_ingress_deployment_creation=False, wait_for_applications_running=False)


def actor_options(machines: Sequence[Mapping[str, float]], replicas: int, device: str) -> dict[str, float]:
    """What a replica takes of its machine: a GPU, or as many cores as there are for each.

    >>> actor_options([{"CPU": 8.0}, {"CPU": 4.0}], 3, "auto")
    {'num_cpus': 4, 'num_gpus': 0}
    """
    if device.startswith("cuda:"):
        raise ConfigError(f"--device {device}: Ray gives each replica a GPU of its own; write --device cuda")
    gpus = sum(int(machine.get("GPU", 0)) for machine in machines)
    cores = [int(machine.get("CPU", 0)) for machine in machines]
    if device == "cuda" or (device == "auto" and gpus):
        if gpus < replicas:
            raise ConfigError(f"--replicas {replicas}: Ray has {gpus} GPUs, and each replica takes one")
        return {"num_cpus": 0, "num_gpus": 1}
    shares = range(1, max(cores, default=0) + 1)
    fitting = [share for share in shares if sum(count // share for count in cores) >= replicas]
    if not fitting:
        raise ConfigError(f"--replicas {replicas}: Ray has {sum(cores)} cores, and each replica takes one at least")
    return {"num_cpus": fitting[-1], "num_gpus": 0}


def _replicas_are_ready(
    ray: Any, serve: Any, options: ServerOptions, port: int, stop: Interrupt, say: Callable[[str], None]
) -> bool:
    """Wait until all replicas have read the models, and are asked; not where it is to stop before."""
    told = ""
    while stop.signal is None:
        status = serve.status()
        application = status.applications.get(APPLICATION)
        state = application.deployments.get(DEPLOYMENT) if application is not None else None
        if application is not None and application.status == "DEPLOY_FAILED":
            raise LegatoError(reason_in(state.message if state is not None else application.message))
        if application is not None and application.status == "RUNNING":
            here = ray.get_runtime_context().get_node_id() in status.proxies
            return not here or _is_asked(options, port, stop)
        if state is not None and state.message and state.message != told:  # as where there is no room for them yet
            told = state.message
            say(f"legato: note: {brief(told, 300)}")
        time.sleep(0.1)
    return False


def reason_in(message: str) -> str:
    """Why a replica did not start, in what Ray says of it: the line of its error.

    >>> reason_in("The deployment failed to start.\\n  File …\\nlegato.errors.LegatoError: there is no model in x")
    'there is no model in x'
    """
    lines = [line.strip() for line in message.splitlines() if line.strip()]
    ours = [line.partition(": ")[2] for line in lines if line.startswith("legato.errors.")]
    return ours[-1] if ours else f"no replica starts: {brief(lines[-1], 300) if lines else 'Ray does not say why'}"


def _is_asked(options: ServerOptions, port: int, stop: Interrupt) -> bool:
    """Wait until the proxy on this machine gives requests to a replica."""
    host = {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(options.host, options.host)
    until = time.monotonic() + TAKEN_UP
    while stop.signal is None and time.monotonic() < until:
        connection = http.client.HTTPConnection(host, port, timeout=TAKEN_UP)
        with suppress(OSError, http.client.HTTPException):
            connection.request("GET", "/ready")
            if connection.getresponse().status == 200:
                break
        connection.close()
        time.sleep(0.05)
    return stop.signal is None


def _watch(serve: Any, replicas: int, stop: Interrupt, say: Callable[[str], None]) -> None:
    """Until it is to stop, tell of replicas that have died or are there again."""
    before, next_look = replicas, 0.0
    while stop.signal is None:
        time.sleep(0.1)
        if time.monotonic() < next_look:
            continue
        next_look = time.monotonic() + LOOK
        try:
            application = serve.status().applications[APPLICATION]
        except Exception:  # of one kind or another
            raise LegatoError("Ray Serve has ended under this server, or somebody has ended it") from None
        running = application.deployments[DEPLOYMENT].replica_states.get("RUNNING", 0)
        if running != before:
            with suppress(OSError):
                say(f"legato: note: {running} of {replicas} replicas run")
        before = running


def _end(serve: Any) -> None:
    """Let what was asked for be written, and take away the replicas and the proxies."""
    for end in (lambda: serve.delete(APPLICATION), serve.shutdown):
        with suppress(Exception):  # where the cluster has gone nothing is left to end
            end()


# ── what is said ──────────────────────────────────────────────────────────────────────────────────


@contextmanager
def only_our_lines() -> Iterator[None]:
    """Of what Ray repeats from other processes, the log of the replicas and the proxies goes on, and nothing else."""
    with redirect_stdout(OurLines(sys.stdout)), redirect_stderr(OurLines(sys.stderr)):
        yield


class OurLines(io.TextIOBase):
    """A stream in front of another; each thread writes lines of its own."""

    def __init__(self, stream: Any) -> None:
        self._stream, self._parts = stream, threading.local()

    def write(self, text: str) -> int:
        *lines, self._parts.rest = (getattr(self._parts, "rest", "") + text).split("\n")
        for line in lines:
            found = REPEATED.match(line)
            if found is None:
                self._stream.write(f"{line}\n")
            elif found[1] and found[2].startswith(("{", "legato: ")):
                writer().say(found[2])
        return len(text)

    def flush(self) -> None:
        self._stream.flush()

    def fileno(self) -> int:
        return int(self._stream.fileno())
