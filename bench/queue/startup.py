"""How long a person waits for the command line."""

from __future__ import annotations

import asyncio
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

from bench.harness import Family, Result, Target, by_turns, median, result
from qo.config.origins import load
from qo.queue.queue import Queue
from qo.store.opening import open_store

RUNS = 10
QO = str(Path(sys.executable).with_name("qo"))


def _seconds(command: Sequence[str], directory: str) -> float:
    began = time.perf_counter()
    done = subprocess.run(command, cwd=directory, capture_output=True, text=True, check=False)
    seconds = time.perf_counter() - began
    if done.returncode != 0:
        raise RuntimeError(f"{' '.join(command)} broke: {done.stderr[-2000:]}")
    return seconds


async def _submitted(store: str) -> str:
    opened, _ = await open_store(load({"store": store}))
    async with Queue(opened) as queue:
        return (await queue.submit("noop", {"number": 0})).id


def measure() -> Iterator[Result]:
    with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
        task_id = asyncio.run(_submitted(f"local:{directory}/.qo"))  # Where the command looks by default.
        helps, statuses, nothings = by_turns(
            RUNS,
            lambda: _seconds([QO, "--help"], directory),
            lambda: _seconds([QO, "status", task_id], directory),
            lambda: _seconds([sys.executable, "-c", ""], directory),
        )
    python_s = median(nothings)
    for name, runs, bound, command in (
        ("startup_help_s", helps, 0.3, "qo --help"),
        ("startup_status_s", statuses, 0.5, "qo status ID, embedded store"),
    ):
        target = Target("value", "<=", bound)
        yield result(
            name,
            median(runs),
            "s",
            baseline=python_s,
            of=runs,
            baseline_of=nothings,
            target=target,
            command=command,
            against="an empty Python program",
            rounds=RUNS,
        )


FAMILIES = [Family(["startup_help_s", "startup_status_s"], measure)]
