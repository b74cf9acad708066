"""huey with its SQLite storage: enqueue no-op tasks, or drain them with its consumer."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from typing import Any

from huey import SqliteHuey, signals

from bench.process import Go, Stopwatch, serve


def _open(job: Mapping[str, Any]) -> tuple[SqliteHuey, Any]:
    huey = SqliteHuey(filename=job["path"], **job["options"])

    @huey.task()
    def noop(value: object) -> None:
        pass

    return huey, noop


async def enqueue(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    _, noop = _open(job)
    go()
    with Stopwatch() as watch:
        for number in range(job["tasks"]):
            noop({"number": number})
    return watch.answer()


async def drain(job: Mapping[str, Any], go: Go) -> Mapping[str, Any]:
    huey, _ = _open(job)
    finished = threading.Event()
    done: list[None] = []

    @huey.signal(signals.SIGNAL_COMPLETE)
    def count(*_: object) -> None:
        done.append(None)  # Appending is atomic, whatever the number of threads.
        if len(done) == job["tasks"]:
            finished.set()

    consumer = huey.create_consumer(workers=job["workers"], periodic=False)
    go()
    with Stopwatch() as watch:
        consumer.start()
        finished.wait()
    return watch.answer()


if __name__ == "__main__":
    serve({"enqueue": enqueue, "drain": drain})
