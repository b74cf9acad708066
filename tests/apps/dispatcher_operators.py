"""The operators of the pipelines that real worker processes run in tests. They run in the site's directory."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from process_handlers import note

import qo

NOTES = "notes"  # One line for each thing that operators of this site did.


def copy(run: qo.Run) -> str:
    """What it reads, and a line of its own. Read twice or written twice, the lines would say so."""
    _note(run, "begin")
    time.sleep(run.config.get("s", 0.0))
    lines = [*run.input().lines(), f"{run.work.job} {run.partition_key}"]
    run.output().write("lines.txt", "\n".join(lines) + "\n", rows=len(lines))
    _note(run, "end")
    return "copied"


async def gated(run: qo.Run) -> None:
    """As ``copy``, once the gate is open."""
    _note(run, "begin")
    while not Path(run.config["gate"]).exists():  # noqa: ASYNC110, ASYNC240 - the test makes it.
        await asyncio.sleep(0.02)
    text = f"{run.work.job} {run.partition_key} by attempt {run.work.attempt}\n"
    await asyncio.to_thread(run.output().write, "lines.txt", text)
    _note(run, "end")


def chatter(run: qo.Run) -> None:
    """Says what it does; between its beginning and its end it waits for the gate."""
    print(f"begin {run.partition_key}, attempt {run.work.attempt}")
    run.log.warning("a warning of %s", run.partition_key)
    subprocess.run(["sh", "-c", "echo from a child; echo $SHOP_PASSWORD"], check=True)
    _note(run, "begin")
    while not Path(run.config["gate"]).exists():
        run.cancel.check()
        time.sleep(0.02)
    print(f"end {run.partition_key}", file=sys.stderr)
    if run.work.attempt <= run.config.get("failures", 0):
        raise ValueError("not this time")
    run.output().write("lines.txt", "x", rows=1)


def deliver(run: qo.Run) -> dict[str, Any]:
    """A side effect that fails a few times before it happens."""
    _note(run, "begin")
    if run.work.attempt <= run.config["failures"]:
        raise qo.Retry(f"the other side refused attempt {run.work.attempt}", delay_s=0.1)
    _note(run, "effect")
    return {"delivered": run.partition_key}


def flow(run: qo.Run) -> None:
    """A source that announces more than its readers take, and then nothing until it is told to wait and to go on."""
    for number in range(run.config["first"]):
        run.emit(partition_key=f"p{number}")
    while not run.paused:  # Nothing is emitted here: only a heartbeat can say it.
        run.cancel.check()
        time.sleep(0.02)
    _note(run, "held")
    run.wait_for_readers()
    _note(run, "resumed")
    run.emit(partition_key="last")
    run.cancel.wait(600.0)


def _note(run: qo.Run, what: str) -> None:
    note(NOTES, run.work.job, run.partition_key, run.work.attempt, what)
