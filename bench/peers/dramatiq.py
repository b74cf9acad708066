"""Dramatiq on Redis: enqueue tasks. Its own command runs the workers."""

from __future__ import annotations

import os
import time
from collections.abc import Mapping
from typing import Any

import dramatiq
from dramatiq.brokers.redis import RedisBroker

from bench.peers.stamps import NAP_S, stamp
from bench.process import Go, serve

broker = RedisBroker(url=os.environ["REDIS_URL"])
dramatiq.set_broker(broker)


@dramatiq.actor
def noop(number: int) -> None:
    stamp(number)


@dramatiq.actor
def nap(number: int) -> None:
    time.sleep(NAP_S)
    stamp(number)


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    actor = broker.get_actor(job["task_type"])
    go()
    for number in range(job["tasks"]):
        actor.send(number)
    return {}


if __name__ == "__main__":
    serve({"enqueue": enqueue})
