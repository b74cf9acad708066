"""Operators for tests of the runner. What they do, their job's ``config`` says; what they did, ``SEEN``."""

from __future__ import annotations

import asyncio
import threading
import time
from collections import defaultdict
from typing import Any

import qo

SEEN: dict[str, list[Any]] = defaultdict(list)
GATES: dict[str, threading.Event] = defaultdict(threading.Event)


def copy(run: qo.Run) -> dict[str, int]:
    """Every line of the input, and the partition's name."""
    lines = [*run.input().lines(), str(run.partition_key)]
    run.output().write("lines.txt", "".join(f"{line}\n" for line in lines), rows=len(lines))
    return {"lines": len(lines)}


async def copy_async(run: qo.Run) -> None:
    await asyncio.sleep(0)
    run.output().write("lines.txt", f"{run.partition_key}\n", rows=1)


def count(run: qo.Run) -> None:
    SEEN["count"].append(sum(1 for _ in run.input().pieces))


def stumble(run: qo.Run) -> None:
    SEEN["stumble"].append(run.work.attempt)
    if run.work.attempt < 2:
        raise ValueError("not the first time")
    copy(run)


def refuse(run: qo.Run) -> None:
    raise qo.Reject("this can never work")


def wait(run: qo.Run) -> None:
    """Until its gate opens; looks at its cancel token, as a well-behaved function does."""
    SEEN["wait"].append(run.work.attempt)
    run.progress({"waiting": True})
    while not GATES["wait"].is_set():
        run.cancel.check()
        time.sleep(0.01)
    copy(run)


async def wait_async(run: qo.Run) -> None:
    SEEN["wait_async"].append(run.work.attempt)
    try:
        await asyncio.sleep(3600)
    except asyncio.CancelledError:
        SEEN["wait_async"].append(str(run.cancel.why))
        raise


def announce(run: qo.Run) -> None:
    """A source that says two things while it runs, and then is done."""
    SEEN["announce"] += [run.emit(partition_key=f"{run.partition_key}-{part}") for part in ("x", "y")]
    run.output().skip()


def steady(run: qo.Run) -> None:
    """An always-on source that never rests, and knows of the world what its commits tell it."""
    last = run.last_segment().cursor
    number = 0 if last is None else last + 1
    while True:
        SEEN["steady"].append(run.work.attempt)
        part = run.segment(number)
        part.write("rows.txt", f"{number}\n", rows=1)
        run.commit(part)
        number += 1
        time.sleep(0.01)


def astray(run: qo.Run) -> None:
    """Claims to have written where it must not."""
    run.output().prefix = "file:/etc"
    run.output().add("passwd")


def count_all(run: qo.Run) -> None:
    SEEN["count_all"].append(len({piece.partition_key for piece in run.input("orders").pieces}))


def leave(run: qo.Run) -> None:
    raise SystemExit(3)


async def leave_async(run: qo.Run) -> None:
    raise KeyboardInterrupt


def unspeakable(run: qo.Run) -> object:
    """Returns what no JSON can say."""
    return object()


def nonsense(run: qo.Run) -> None:
    run.output().write("x", "x", rows=-5)
