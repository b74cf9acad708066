"""What is asked of the processes while faults happen, at a steady pace, and what of it was promised to be done.

Whoever asks here gets no answer now and then. So it asks again, under the same key, until it has one: from then on the
task or the partition must not be lost.
"""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

from chaos import expected
from chaos.ground import Ground
from chaos.handlers import new_task
from chaos.plan import LEASE_S
from qo.errors import QoError
from qo.queue.options import build
from qo.queue.queue import Queue
from support.dispatcher.sites import job, pipeline
from support.spark.sites import land, orders_of, shop

BATCH = 5
BEHIND_MAX = 200  # So many tasks may wait; who cannot keep up is not buried.
DAYS_MAX = 99
SALES = "sales"  # The pipeline on Spark; the other one is the site's own.
SPARK_JOBS = ("orders", "clean", "daily", "ledger")
SETTLED_WITHIN_S = 400.0


class Load:
    def __init__(self, ground: Ground, *, spark: bool) -> None:
        self.numbers: list[int] = []
        self.partitions: list[str] = []
        self.files: list[str] = []
        self.days: list[str] = []
        self._ground, self._spark = ground, spark
        self._incoming, self._landing = ground.directory / "incoming", ground.directory / "landing"
        self._ended: set[str] = set()
        self._seen = 0  # Of the notes.

    @property
    def wanted(self) -> dict[str, Sequence[str]]:
        """By job of the pipelines: its partitions."""
        wanted: dict[str, Sequence[str]] = dict.fromkeys(("first", "second"), self.partitions)
        wanted["counted"] = self.files
        return wanted | (dict.fromkeys(SPARK_JOBS, self.days) if self._spark else {})

    # Before

    async def deploy(self) -> None:
        self._incoming.mkdir()
        site = self._ground.site
        await _insist(lambda: site.deploy(self._pipeline()))
        if self._spark:
            source = _patient(json.loads(shop(SALES, self._landing, adding=2)))
            await _insist(lambda: site.client.post(f"/v1/dags/{SALES}/versions", {"source": source}))

    def _pipeline(self) -> str:
        config = {"notes": str(self._ground.notes), "group": "python"}
        files = {"kind": "files", "path": str(self._incoming), "pattern": "*.txt", "poll_seconds": 1}
        dropped = {"name": "dropped", "activation": "source", "outputs": 1, "source": files}

        def copying(name: str, reads: str) -> dict[str, Any]:
            return {**job(name, reads, config=config), "operator": "chaos.operators:copy"}

        jobs = (dropped, copying("first", "feed"), copying("second", "first"), copying("counted", "dropped"))
        return _patient(json.loads(pipeline(*jobs)))

    # Meanwhile

    async def feed(self, seconds: float) -> None:
        async with asyncio.TaskGroup() as group:
            group.create_task(self._every(1.0, seconds, self._submit))
            group.create_task(self._every(1.5, seconds, self._emit))
            group.create_task(self._every(3.0, seconds, self._drop))
            if self._spark:
                group.create_task(self._every(max(6.0, seconds / DAYS_MAX), seconds, self._sell))

    async def _every(self, every_s: float, seconds: float, once: Callable[[int], Awaitable[None]]) -> None:
        """What took longer is not made up for."""
        number, until = 0, time.monotonic() + seconds
        while (began := time.monotonic()) < until:
            await once(number)
            number += 1
            await asyncio.sleep(max(0.0, began + every_s - time.monotonic()))

    async def _submit(self, number: int) -> None:
        if len(self.numbers) - len(self._look()) > BEHIND_MAX:
            return
        first = len(self.numbers)
        numbers = range(first, first + BATCH)
        new = [new_task(expected.kind_of(each), str(each), str(self._ground.notes)) for each in numbers]

        async def submit() -> None:
            async with self._ground.queue(routed=numbers[0] // BATCH % 2 == 1) as queue:
                await queue.submit_many(new)

        await _insist(submit)
        self.numbers += numbers

    async def _emit(self, number: int) -> None:
        await _insist(lambda: self._ground.site.emit(f"part-{number:04}"))
        self.partitions.append(f"part-{number:04}")

    async def _drop(self, number: int) -> None:
        name = f"file-{number:04}.txt"
        beside = self._incoming / f".{name}"
        beside.write_text("\n".join(expected.dropped_lines(name)) + "\n")
        beside.replace(self._incoming / name)
        self.files.append(name)

    async def _sell(self, number: int) -> None:
        if number >= DAYS_MAX:
            return
        day = f"2024-03-{number + 1:02}"  # Its last digits make the numbers of its orders.
        land(self._landing, orders_of(day))
        body = {"idempotency_key": day, "events": [{"output": 0, "partition_key": day}]}
        await _insist(lambda: self._ground.site.client.post(f"/v1/sources/{SALES}/feed/events", body))
        self.days.append(day)

    def _look(self) -> set[str]:
        """Tasks that a handler has come to the end of."""
        if self._ground.notes.exists():
            with self._ground.notes.open() as notes:
                notes.seek(self._seen)
                text = notes.read()
            self._seen += len(text)
            lines = (line.split() for line in text.splitlines())
            self._ended |= {words[0] for words in lines if words[3] == "end" and words[2] != "python"}
        return self._ended

    # Afterwards

    async def settled(self) -> bool:
        """Wait until everything is done; False: it is not, and nothing happens any more."""
        return all(await asyncio.gather(self._queue_settled(), self._pipelines_settled()))

    async def _queue_settled(self) -> bool:
        async with self._ground.queue(direct=True) as queue:
            left = await self._task_ids(queue)
            until = time.monotonic() + SETTLED_WITHIN_S
            while left and time.monotonic() < until:
                for some in [left[at : at + 32] for at in range(0, len(left), 32)]:
                    tasks = await asyncio.gather(*(queue.store.get(queue.tasks.key(each)) for each in some))
                    over = (b'"status":"completed"', b'"status":"failed"')
                    gone = {
                        each
                        for each, stored in zip(some, tasks, strict=True)
                        if stored is not None and any(word in stored.body for word in over)
                    }
                    left = [each for each in left if each not in gone]
                    until = time.monotonic() + SETTLED_WITHIN_S if gone else until
                await asyncio.sleep(0.5)
        return not left

    async def _task_ids(self, queue: Queue) -> list[str]:
        now = await queue.store.now()
        tasks = (new_task(kind, number, "") for kind, number in expected.outputs_of(self.numbers))
        return [build(each, now=now, prefix_len=queue.prefix_len, ambient=queue.ambient).id for each in tasks]

    async def _pipelines_settled(self) -> bool:
        counts = {name: len(partitions) for name, partitions in self.wanted.items()}
        before = ""
        while True:
            try:
                await self._ground.site.completed(counts)
            except AssertionError as error:
                if str(error) == before:
                    return False
                before = str(error)
            else:
                return True


def _patient(source: Mapping[str, Any]) -> str:
    """The pipeline with short leases, and with more attempts than there are faults."""
    defaults = {"heartbeat_timeout_seconds": int(LEASE_S), "max_attempts": 100}
    return json.dumps({**source, "defaults": defaults})


async def _insist(ask: Callable[[], Awaitable[Any]]) -> None:
    while True:
        try:
            await ask()
        except QoError:
            await asyncio.sleep(0.2)
        else:
            return
