"""RQ on Redis: enqueue tasks. Its own command runs the worker."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

from redis import Redis
from rq import Queue

from bench.peers.stamps import NAP_S, stamp
from bench.process import Go, serve


def noop(number: int) -> None:
    stamp(number)


def nap(number: int) -> None:
    time.sleep(NAP_S)
    stamp(number)


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    queue = Queue(connection=Redis.from_url(os.environ["REDIS_URL"]))
    function = f"bench.peers.rq.{job['task_type']}"
    go()
    queue.enqueue_many(
        [Queue.prepare_data(function, (number,), **job["options"]) for number in range(job["tasks"])]
    )
    return {}


if __name__ == "__main__":
    serve({"enqueue": enqueue})
