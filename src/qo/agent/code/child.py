"""The process of one version, in which its modules have their own names.

    python -m qo.agent.code.child

The first line of the standard input has the options; each further one starts or stops an attempt. The outcome of each
attempt is a line on the original standard output; everything that is printed goes to the log instead.
"""

from __future__ import annotations

import asyncio
import faulthandler
import json
import logging
import os
import pickle
import sys
from base64 import b64decode
from collections.abc import Mapping
from io import TextIOWrapper
from pathlib import Path
from typing import Any, cast

from qo.agent.agent import Agent
from qo.agent.code.loaded_version import VersionCode, enter
from qo.agent.code.version_processes import LINE_MAX
from qo.agent.service import open_agent
from qo.api.contract.task import Claimed
from qo.config.settings import Settings
from qo.telemetry.log_context import install_handler
from qo.worker.loop.cancel import CancelToken, Why
from qo.worker.loop.outcome import Acked


class _Attempt:
    """The context of an attempt whose worker is another process."""

    def __init__(self, key: str, reply: _Reply) -> None:
        self.cancel = CancelToken()
        self._key = key
        self._reply = reply

    def free_slot(self) -> None:
        self._reply({"of": self._key, "freed": True})


class _Reply:
    """Sends messages to the worker on the original standard output. Whatever else is printed goes to the log."""

    def __init__(self) -> None:
        self._descriptor = os.dup(1)
        os.dup2(2, 1)
        cast("TextIOWrapper", sys.stdout).reconfigure(line_buffering=True)

    def __call__(self, message: Mapping[str, Any]) -> None:
        os.write(self._descriptor, json.dumps(message).encode() + b"\n")


async def serve(reply: _Reply) -> None:
    lines = asyncio.StreamReader(limit=LINE_MAX)
    loop = asyncio.get_running_loop()
    await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(lines), sys.stdin.buffer)
    options = json.loads(await lines.readline())
    settings = cast("Settings", pickle.loads(b64decode(options["settings"])))
    _start_logging(settings)
    root = Path(options["root"])
    enter(root)
    async with open_agent(settings, options["executor"], VersionCode(root)) as agent:
        await _handle_messages(lines, agent, reply)


async def _handle_messages(lines: asyncio.StreamReader, agent: Agent, reply: _Reply) -> None:
    """Handle messages until the worker is gone, then release what runs."""
    running: dict[str, tuple[asyncio.Task[None], _Attempt]] = {}
    while line := await lines.readline():
        message = json.loads(line)
        if "stop" in message:
            stopped = running.get(message["stop"])
            if stopped is not None:
                _stop(*stopped, Why[message["why"]])
            continue
        key = message["run"]
        attempt = _Attempt(key, reply)
        work = asyncio.create_task(_run(agent, Claimed.model_validate(message["claimed"]), attempt, key, reply))
        running[key] = (work, attempt)
        work.add_done_callback(lambda _, key=key: running.pop(key, None))
        await asyncio.sleep(0)  # A task that is cancelled before it starts would report nothing.
    remaining = list(running.values())
    for work, attempt in remaining:
        _stop(work, attempt, Why.SHUTDOWN)
    await asyncio.gather(*(work for work, _ in remaining), return_exceptions=True)


async def _run(agent: Agent, claimed: Claimed, attempt: _Attempt, key: str, reply: _Reply) -> None:
    answer: str | Acked = "stopped"
    try:
        answer = await agent.attempt(claimed, attempt)
    finally:
        failed = isinstance(answer, Acked)
        text = str(answer.output) if isinstance(answer, Acked) else answer
        reply({"of": key, "text": text, "failed": failed})


def _stop(work: asyncio.Task[None], attempt: _Attempt, why: Why) -> None:
    attempt.cancel.request(why)
    work.cancel()


def _start_logging(settings: Settings) -> None:
    install_handler(settings.log_level.upper())
    for chatty in ("aiohttp", "asyncio", "botocore", "httpcore", "httpx", "py4j", "urllib3"):
        logging.getLogger(chatty).setLevel(logging.WARNING)


def main() -> int:
    faulthandler.enable()
    asyncio.run(serve(_Reply()))
    return 0


if __name__ == "__main__":
    sys.exit(main())
