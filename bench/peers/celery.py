"""Celery on Redis: enqueue tasks. Its own command runs the worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from celery import Celery

from bench.peers.stamps import NAP_S, stamp
from bench.process import Go, serve

app = Celery("bench", broker=os.environ["REDIS_URL"])
app.conf.task_ignore_result = True


@app.task(name="noop")
def noop(number: int) -> None:
    stamp(number)


@app.task(name="nap")
def nap(number: int) -> None:
    time.sleep(NAP_S)
    stamp(number)


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    task = app.tasks[job["task_type"]]
    go()
    with app.producer_pool.acquire(block=True) as producer:
        for number in range(job["tasks"]):
            task.apply_async((number,), producer=producer)
    return {}


if __name__ == "__main__":
    serve({"enqueue": enqueue})
