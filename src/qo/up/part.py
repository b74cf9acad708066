"""One process of an installation: dispatcher, scheduler, dashboard, or the worker of a runtime.

    python -m qo.up.part ROLE LIFELINE OPTIONS

It ends with who started it, however that ends: the lifeline is a pipe whose other end only the starter holds. What it
has to tell, an address or why it cannot work, is one line of JSON on what was its standard output when it began. From
then on that is the log, as standard error is: operators print what they like.
"""

from __future__ import annotations

import asyncio
import faulthandler
import gc
import json
import logging
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from qo.config import sources
from qo.config.settings import Settings
from qo.errors import QoError

log = logging.getLogger(__name__)

Tell = Callable[[dict[str, Any]], None]

DASHBOARD = "dashboard"
WORKER = "worker:"  # Before the name of a runtime.
SPARK_UI = "spark_ui"  # Under which a worker tells where Spark's own interface is.
ERROR_MAX = 8_000  # Characters of an error that are told: however they are written, who reads lines takes as many.
COLLECT_AFTER = (10_000, 20, 100)  # As of the program ``qo``: it starts a fifth sooner.
ORPHAN_S = 2.0  # What may be given back, is given back in this time; the rest is as after any crash.


def main(args: list[str]) -> int:
    faulthandler.enable()  # Should the process crash, its log says where.
    gc.set_threshold(*COLLECT_AFTER)
    tell = _teller()
    role, lifeline, options = args[0], int(args[1]), json.loads(args[2])
    threading.Thread(target=_follow, args=(lifeline,), name="qo-lifeline", daemon=True).start()
    try:
        config = options["config"]
        settings = sources.load(options["flags"], config_path=None if config is None else Path(config))
        _start_logging(settings)
        asyncio.run(_run(role, settings, tell))
    except QoError as error:
        said = "\n".join((str(error), *getattr(error, "__notes__", ())))
        tell({"error": said[:ERROR_MAX], "code": error.exit_code})
        return error.exit_code
    return 0


def _teller() -> Tell:
    """Keeps the way to the starter to ourselves: what else is printed here, by whomever, goes to the log."""
    way = os.dup(1)  # Not handed on to processes that are started from here.
    os.dup2(2, 1)
    cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)  # Also of who is killed, it is all there.

    def tell(said: dict[str, Any]) -> None:
        os.write(way, json.dumps(said).encode() + b"\n")

    return tell


async def _run(role: str, settings: Settings, tell: Tell) -> None:
    if role == "dispatcher":
        await _dispatcher(settings, tell)
    elif role == "scheduler":
        await _scheduler(settings)
    elif role == DASHBOARD:
        await _dashboard(settings, tell)
    else:
        await _worker(settings, role.removeprefix(WORKER), tell)


async def _dispatcher(settings: Settings, tell: Tell) -> None:
    from qo.dispatcher.service import run_dispatcher

    await run_dispatcher(
        settings, on_start=lambda found: tell({"public": found.public, "internal": found.internal})
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


async def _dashboard(settings: Settings, tell: Tell) -> None:
    from qo.dispatcher.auth.local_tokens import page_token
    from qo.store.secret_files import read_secret
    from qo.ui.forwarding import Upstream
    from qo.ui.serving import serve
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    stop_on_signals(stop)
    chosen = settings.dispatcher
    assert chosen.url is not None  # It is started once that is known.
    # Its own: a token in the settings may be meant for another dispatcher.
    admin = read_secret(Path(chosen.secrets_dir, "admin.token")).decode().strip()
    dispatcher = Upstream(chosen.url, page_token(admin, "writer"))
    await serve(settings, stop, on_start=lambda served: tell({"link": served.link}), dispatcher=dispatcher)


async def _worker(settings: Settings, runtime: str, tell: Tell) -> None:
    from qo.agent.service import PLAIN, run_runtime
    from qo.spark import SPARK

    await run_runtime(settings, runtime, {**PLAIN, **SPARK}, kills=True, on_ui=lambda url: tell({SPARK_UI: url}))


def _follow(lifeline: int) -> None:
    """Blocks until nobody holds the other end any more, then ends this process: politely, and if that takes too long,
    at once."""
    os.read(lifeline, 1)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(ORPHAN_S)
    os.kill(os.getpid(), signal.SIGKILL)


def _start_logging(settings: Settings) -> None:
    logging.basicConfig(
        format="%(asctime)s %(levelname)-7s %(name)s: %(message)s", level=settings.log_level.upper()
    )
    for chatty in ("aiohttp", "alembic", "asyncio", "botocore", "httpcore", "httpx", "py4j", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
