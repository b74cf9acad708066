"""The main program of a child process: dispatcher, scheduler, sink, dashboard, or the worker of a runtime.

    python -m qo.up.child_main ROLE LIFELINE OPTIONS

It ends with its parent, however that ends: the lifeline is a pipe whose other end only the parent holds. Its messages,
an address or an error, are lines of JSON on its original standard output. Everything else that is printed goes to the
log, as standard error does: operators may print what they like.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import os
import sys
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from qo.config import origins
from qo.config.settings import Settings
from qo.errors import QoError
from qo.telemetry.log_context import install_handler
from qo.worker.lifeline import end_with_parent

log = logging.getLogger(__name__)

Send = Callable[[dict[str, Any]], None]

DASHBOARD = "dashboard"
SINK = "sink"
WORKER = "worker:"  # The prefix of a worker's role, before the name of its runtime.
SPARK_UI = "spark_ui"  # The field of a worker's message that has the address of Spark's UI.
ERROR_MAX = 8_000  # Characters of an error: escaped in any way, they fit into a line that the parent can read.
GC_THRESHOLDS = (10_000, 20, 100)  # As in qo.cli.entry: the start takes a fifth less time.
ORPHAN_S = 2.0  # Time to give tasks back after the parent has died; then the process is killed.


def main(args: list[str]) -> int:
    faulthandler.enable()  # If the process crashes, its log shows where.
    gc.set_threshold(*GC_THRESHOLDS)
    send = _open_channel()
    role, lifeline, options = args[0], int(args[1]), json.loads(args[2])
    end_with_parent(lifeline, kill_after_s=ORPHAN_S)
    try:
        config = options["config"]
        settings = origins.load(options["flags"], config_path=None if config is None else Path(config))
        _start_logging(settings)
        asyncio.run(_run(role, settings, send))
    except QoError as error:
        text = "\n".join((str(error), *getattr(error, "__notes__", ())))
        send({"error": text[:ERROR_MAX], "code": error.exit_code})
        return error.exit_code
    return 0


def _open_channel() -> Send:
    """Return a function that sends messages to the parent, and redirect standard output to the log."""
    channel = os.dup(1)  # Processes that are started from here do not inherit it.
    os.dup2(2, 1)
    cast("TextIOWrapper", sys.stdout).reconfigure(
        line_buffering=True
    )  # So that a killed process has written everything.

    def send(message: dict[str, Any]) -> None:
        os.write(channel, json.dumps(message).encode() + b"\n")

    return send


async def _run(role: str, settings: Settings, send: Send) -> None:
    if role == "dispatcher":
        await _dispatcher(settings, send)
    elif role == "scheduler":
        await _scheduler(settings)
    elif role == SINK:
        await _sink(settings)
    elif role == DASHBOARD:
        await _dashboard(settings, send)
    else:
        await _worker(settings, role.removeprefix(WORKER), send)


async def _dispatcher(settings: Settings, send: Send) -> None:
    from qo.dispatcher.service import run_dispatcher

    await run_dispatcher(
        settings, on_start=lambda addresses: send({"public": addresses.public, "internal": addresses.internal})
    )


async def _scheduler(settings: Settings) -> None:
    from qo.api.internal_client import DispatcherClient, internal_url
    from qo.dispatcher.auth.local_tokens import worker_tokens
    from qo.scheduler.emitter import RemoteEmitter
    from qo.scheduler.service import run_scheduler
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    token = worker_tokens(settings.dispatcher)[-1]
    async with DispatcherClient(internal_url(settings.dispatcher), token) as client:
        await run_scheduler(RemoteEmitter(client), stop, settings)


async def _sink(settings: Settings) -> None:
    from qo.api.internal_client import DispatcherClient, internal_url
    from qo.dispatcher.auth.local_tokens import worker_tokens
    from qo.sink.service import open_follower
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    token = worker_tokens(settings.dispatcher)[-1]
    async with (
        DispatcherClient(internal_url(settings.dispatcher), token) as client,
        open_follower(client, settings) as follower,
    ):
        await follower.run(stop)


async def _dashboard(settings: Settings, send: Send) -> None:
    from qo.dispatcher.auth.local_tokens import page_token
    from qo.store.secret_files import read_secret
    from qo.ui.forwarding import Upstream
    from qo.ui.serving import serve
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    target = settings.dispatcher
    assert target.url is not None  # The dashboard is started once that is known.
    # The token of this dispatcher: the one in the settings may be for another.
    admin = read_secret(Path(target.secrets_dir, "admin.token")).decode().strip()
    dispatcher = Upstream(target.url, page_token(admin, "writer"))
    await serve(settings, stop, on_start=lambda served: send({"link": served.link}), dispatcher=dispatcher)


async def _worker(settings: Settings, runtime: str, send: Send) -> None:
    from qo.agent.service import PLAIN, run_runtime
    from qo.spark import SPARK

    await run_runtime(settings, runtime, {**PLAIN, **SPARK}, kills=True, on_ui=lambda url: send({SPARK_UI: url}))


def _start_logging(settings: Settings) -> None:
    install_handler(settings.log_level.upper())
    for chatty in ("aiohttp", "alembic", "asyncio", "botocore", "httpcore", "httpx", "py4j", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
