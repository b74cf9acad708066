"""The app of the worker processes that tests start, well behaved and otherwise.

A handler that misbehaves does so in the worker called "culprit" only; any other worker answers at once, with its
name.
"""

from __future__ import annotations

import asyncio
import os
import signal
import threading
import time
from pathlib import Path
from typing import Any

import qo

app = qo.App()

CULPRIT = "culprit"
FOR_EVER_S = 600


def note(path: str, *words: object) -> None:
    """One line of a file that many processes write: none is torn, and their order is the order of events."""
    line = " ".join(map(str, words)) + "\n"
    file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
    try:
        os.write(file, line.encode())
    finally:
        os.close(file)


@app.task("work")
async def work(input: Any, ctx: Any) -> str:
    await asyncio.sleep(input["s"])
    return ctx.worker_id


@app.task("noted")
async def noted(input: Any, ctx: Any) -> str:
    note(input["notes"], ctx.task_id, "begin", ctx.worker_id)
    await asyncio.sleep(input["s"])
    note(input["notes"], ctx.task_id, "end", ctx.worker_id)
    return ctx.worker_id


@app.task("noted_plain")
def noted_plain(input: Any, ctx: Any) -> str:
    note(input["notes"], ctx.task_id, "begin", ctx.worker_id)
    time.sleep(input["s"])
    note(input["notes"], ctx.task_id, "end", ctx.worker_id)
    return ctx.worker_id


@app.task("gated")
async def gated(input: Any, ctx: Any) -> str:
    """Runs until the gate is there."""
    note(input["notes"], ctx.worker_id, "begun")
    try:
        while not Path(input["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - other processes make it.
            await asyncio.sleep(0.02)
    except asyncio.CancelledError:
        note(input["notes"], ctx.worker_id, "cancelled")
        raise
    return ctx.worker_id


@app.task("gated_plain")
def gated_plain(input: Any, ctx: Any) -> str:
    note(input["notes"], ctx.worker_id, "begun")
    while not Path(input["gate"]).exists():
        time.sleep(0.02)
    return ctx.worker_id


@app.task("lethal")
async def lethal(input: Any, ctx: Any) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# What keeps a process from ending


@app.task("waits")
async def waits(input: Any, ctx: Any) -> str:
    """This one does not: it can be cancelled."""
    if ctx.worker_id == CULPRIT:
        await asyncio.sleep(FOR_EVER_S)
    return ctx.worker_id


@app.task("hangs")
def hangs(input: Any, ctx: Any) -> str:
    if ctx.worker_id == CULPRIT:
        time.sleep(FOR_EVER_S)
    return ctx.worker_id


@app.task("swallows")
async def swallows(input: Any, ctx: Any) -> str:
    while ctx.worker_id == CULPRIT:
        try:
            await asyncio.sleep(FOR_EVER_S)
        except asyncio.CancelledError:
            continue
    return ctx.worker_id


@app.task("blocks")
async def blocks(input: Any, ctx: Any) -> str:
    if ctx.worker_id == CULPRIT:
        time.sleep(FOR_EVER_S)  # noqa: ASYNC251 - that is the point.
    return ctx.worker_id


@app.task("spins", kind="process")
def spins(input: Any, ctx: Any) -> str:
    if "notes" in input:
        note(input["notes"], os.getpid())
    while ctx.worker_id == CULPRIT:
        pass
    return ctx.worker_id


@app.task("leaves_a_thread")
async def leaves_a_thread(input: Any, ctx: Any) -> str:
    if ctx.worker_id == CULPRIT:
        threading.Thread(target=time.sleep, args=(FOR_EVER_S,), daemon=False).start()
    return ctx.worker_id
