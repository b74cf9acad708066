"""`python -m bench.profile local|s3 [tasks]`: where a drain by one worker spends its time.

Shows the functions of the event loop's thread by own time, and the CPU time of every thread.
"""

from __future__ import annotations

import argparse
import asyncio
import cProfile
import os
import pstats
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from bench.lab import seaweed
from bench.peers import qo
from bench.process import run

CONCURRENCY = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("store", choices=["local", "s3"])
    parser.add_argument("tasks", nargs="?", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=30)
    arguments = parser.parse_args()
    if arguments.store == "local":
        with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
            _profile({"store": f"local:{Path(directory) / 'store'}"}, arguments.tasks, arguments.rows)
        return
    with seaweed() as server:
        bucket = server.make_bucket()
        os.environ.update(server.environment(bucket))
        _profile({"store": f"s3://{bucket}"}, arguments.tasks, arguments.rows)


def _profile(settings: Mapping[str, Any], tasks: int, rows: int) -> None:
    job = {"settings": settings, "tasks": tasks, "way": "submit_many", "task_type": "noop"}
    run("bench.peers.qo", {**job, "do": "enqueue"})
    worker = {"worker_id": "bench", "worker": {"concurrency": CONCURRENCY}}
    profile = cProfile.Profile()
    began, used = time.perf_counter(), os.times()
    profile.enable()
    answer = asyncio.run(qo.drain_async({**job, **worker}, _threads_after))
    profile.disable()
    passed, now = time.perf_counter() - began, os.times()
    pstats.Stats(profile).sort_stats("tottime").print_stats(rows)
    print(
        f"{answer['completed'] / answer['seconds']:.0f} tasks/s under the profiler; requests {answer['requests']}"
    )
    print(f"{passed:.2f} s passed, CPU {now.user - used.user:.2f} s user, {now.system - used.system:.2f} s system")
