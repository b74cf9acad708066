"""`python -m bench.profile local|s3 [tasks]`: where one worker spends its time while it drains a full queue.

Shows the functions of the event loop's thread by their own time, and the CPU that this thread and the others used.
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
from typing import Any

from bench.lab import seaweed
from bench.peers import qo
from bench.process import run

CONCURRENCY = 64


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("store", choices=["local", "s3"])
    parser.add_argument("tasks", nargs="?", type=int, default=2000)
    parser.add_argument("--rows", type=int, default=30, help="how many functions to show")
    arguments = parser.parse_args()
    if arguments.store == "local":
        with tempfile.TemporaryDirectory(prefix="qo-bench-") as directory:
            _profile({"store": f"local:{directory}/store"}, arguments.tasks, arguments.rows)
        return
    with seaweed() as server:
        bucket = server.make_bucket()
        os.environ.update(server.environment(bucket))
        _profile({"store": f"s3://{bucket}"}, arguments.tasks, arguments.rows)


def _profile(settings: Mapping[str, Any], tasks: int, rows: int) -> None:
    job = {
        "settings": settings,
        "tasks": tasks,
        "way": "submit_many",
        "task_type": "noop",
        "worker_id": "bench",
        "worker": {"concurrency": CONCURRENCY},
    }
    # Once without the profiler, which slows some functions more than others.
    for profile in (None, cProfile.Profile()):
        run("bench.peers.qo", {**job, "do": "enqueue"})
        loop_began = time.thread_time()
        answer = asyncio.run(qo.drain(job, profile.enable if profile else lambda: None))
        loop_s = time.thread_time() - loop_began
        if profile is not None:
            profile.disable()
            pstats.Stats(profile).sort_stats("tottime").print_stats(rows)
        rate = answer["completed"] / answer["seconds"]
        print(
            f"{rate:.0f} tasks/s {'with' if profile else 'without'} the profiler; "
            f"CPU per task {1000 * loop_s / tasks:.3f} ms in the event loop's thread, "
            f"{1000 * (answer['cpu_seconds'] - loop_s) / tasks:.3f} ms in others; {answer['requests']}"
        )


if __name__ == "__main__":
    main()
