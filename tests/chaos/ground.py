"""What is disturbed: an S3 server, PostgreSQL, links to them that can be bad, a disk, and all processes of qo."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

import sparks
from chaos.disk import Disk
from chaos.plan import LEASE_S
from chaos.supervised import Supervised, orphans
from postgres import LASTING, PostgresServer, start_postgres
from proxies import FickleProxy
from qo.queue.queue import Queue
from qo.store.retrying import Retrying
from servers import S3Server, start_seaweed
from sites import BucketSite, proven
from spark_sites import family_of

QUEUE_WORKERS, PYTHON_WORKERS, SPARK_WORKERS = ("w1", "w2", "w3"), ("p1", "p2"), ("s1", "s2")
STARTED_WITHIN_S = 300.0  # However slow the machine: that a server comes back is no promise of ours.
SETTINGS = {
    "QO_LEASE_S": f"{LEASE_S:g}",
    "QO_CONCURRENCY": "6",
    "QO_PROCESSES": "1",
    "QO_MONITOR_CHECK_INTERVAL": "0.5",
    "QO_MONITOR_SWEEP_INTERVAL": "15",
    "QO_LOG": "info",
}


class Ground:
    def __init__(
        self, directory: Path, s3: S3Server, postgres: PostgresServer, bucket: str, database: str, *, spark: bool
    ) -> None:
        self.directory, self.s3, self.postgres = directory, s3, postgres
        self.load_bucket = bucket
        self.notes = directory / "notes"
        self.site = BucketSite(directory, database, s3, s3.make_bucket())
        self.processes: dict[str, Supervised] = {}
        self.disk = Disk(directory / "work", self._writers)
        self.links: dict[str, FickleProxy] = {}
        self._database, self._spark = database, spark

    def connect(self) -> None:
        """The links, all fair."""
        s3 = urlsplit(self.s3.endpoint).port or 0
        targets = {
            "queue-s3": s3,
            "pipeline-s3": s3,
            "state": self.postgres.port,
            "dispatcher-http": self.site.ports[1],
        }
        self.links = {name: FickleProxy("127.0.0.1", port) for name, port in targets.items()}

    def start(self) -> None:
        """Every process of qo."""
        outside, inside = self.site.ports[:2]
        fleet = {"S3_BUCKET": self.load_bucket, "S3_ENDPOINT": self.links["queue-s3"].endpoint}
        state = self._database.replace(f":{self.postgres.port}/", f":{self.links['state'].port}/")
        flow = {
            "S3_ENDPOINT": self.links["pipeline-s3"].endpoint,
            "QO_DISPATCHER_INTERNAL_URL": self.links["dispatcher-http"].endpoint,
        }
        serving = {
            **flow,
            "QO_STATE": state,
            "QO_DISPATCHER_LISTEN": f"127.0.0.1:{outside}",
            "QO_DISPATCHER_INTERNAL_LISTEN": f"127.0.0.1:{inside}",
        }
        self._supervise("dispatcher", serving, "dispatcher", "--json")
        self._supervise("scheduler", flow, "scheduler")
        self._supervise("monitor", fleet, "monitor")
        for each in QUEUE_WORKERS:
            self._supervise(each, fleet, "worker", "--app", "chaos.handlers:app", "--id", each)
        for each in PYTHON_WORKERS:
            self._supervise(each, flow, "worker", "--runtime", "python", "--id", each)
        for each in SPARK_WORKERS if self._spark else ():
            # Few at a time: a lease must not run out only because many share the machine.
            few = {**flow, **sparks.ENVIRONMENT, "QO_CONCURRENCY": "2"}
            self._supervise(each, few, "worker", "--runtime", "spark", "--id", each)

    def _supervise(self, name: str, settings: Mapping[str, str], *args: str) -> None:
        command = self.site.qo(**{**SETTINGS, "TMPDIR": str(self.disk.path), **settings})
        self.processes[name] = Supervised(name, command, args, self.directory)

    def _writers(self) -> list[int]:
        workers = (*QUEUE_WORKERS, *PYTHON_WORKERS, *SPARK_WORKERS)
        found = [each for name, each in self.processes.items() if name in workers]
        return [pid for each in found if each.pid for pid in family_of(each.pid)]

    @asynccontextmanager
    async def queue(self, *, direct: bool = False) -> AsyncIterator[Queue]:
        """The queue of the fleet, by the way that its workers take, or beside it."""
        endpoint = None if direct else self.links["queue-s3"].endpoint
        async with Queue(Retrying(await self.s3.open_store(self.load_bucket, endpoint=endpoint))) as queue:
            yield queue

    def orphans(self) -> list[int]:
        """What outlived the process that had started it."""
        return orphans(f"TMPDIR={self.disk.path}")

    async def close(self) -> None:
        await asyncio.gather(*(each.stop() for each in self.processes.values()))
        for each in self.orphans():
            with contextlib.suppress(ProcessLookupError):
                os.kill(each, signal.SIGKILL)
        for each in self.links.values():
            each.close()
        self.disk.close()
        await self.site.close()


@asynccontextmanager
async def grounds(directory: Path, *, spark: bool) -> AsyncIterator[Ground]:
    """With everything started. At the end nothing is left but the directory."""
    async with AsyncExitStack() as stack:
        s3 = start_seaweed(directory / "seaweed")
        stack.callback(s3.stop)
        s3.ready_within_s = STARTED_WITHIN_S
        (directory / "postgres").mkdir()
        postgres = start_postgres(directory / "postgres", LASTING)
        stack.callback(postgres.stop)
        bucket = s3.make_bucket()
        ground = Ground(directory, s3, postgres, bucket, postgres.make_database(), spark=spark)
        stack.push_async_callback(ground.close)
        for each in (bucket, ground.site.bucket):
            await proven(s3, each)
        ground.connect()
        ground.start()
        yield ground
