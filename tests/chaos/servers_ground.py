"""State in PostgreSQL, queues and data in a bucket, and a bad link to each."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from pathlib import Path
from urllib.parse import urlsplit

from chaos.ground import Ground, Server
from chaos.versions import Histories, read_bucket
from qo.core.dispatch import Dispatch, DispatchConfig
from qo.queue.queue import Queue
from qo.store.retrying import Retrying
from support.dispatcher.sites import BucketSite, proven
from support.servers.postgres import LASTING, PostgresServer, start_postgres
from support.servers.s3 import S3Server, start_seaweed

STARTED_WITHIN_S = 300.0  # However slow the machine: that a server comes back is no promise of ours.


class ServersGround(Ground):
    name = "servers"
    not_paused = ("monitor", "scheduler")  # They hold no lease.

    def __init__(self, directory: Path, s3: S3Server, postgres: PostgresServer, *, spark: bool) -> None:
        self._s3, self._postgres, self._database = s3, postgres, postgres.make_database()
        self._queue_bucket, self._bucket = s3.make_bucket(), s3.make_bucket()
        super().__init__(directory, BucketSite(directory, self._database, s3, self._bucket), spark=spark)
        self.servers = {"s3": Server(s3.kill, s3.start), "postgres": Server(postgres.stop, postgres.start)}

    async def prepare(self) -> None:
        for each in (self._queue_bucket, self._bucket):
            await proven(self._s3, each)
        s3 = urlsplit(self._s3.endpoint).port or 0
        self.connect(
            {
                "queue-s3": s3,
                "pipeline-s3": s3,
                "state": self._postgres.port,
                "dispatcher-http": self.site.ports[1],
            }
        )

    def queue_settings(self) -> Mapping[str, str]:
        return {"S3_BUCKET": self._queue_bucket, "S3_ENDPOINT": self.links["queue-s3"].endpoint}

    def pipeline_settings(self) -> Mapping[str, str]:
        return {"S3_ENDPOINT": self.links["pipeline-s3"].endpoint}

    def state_settings(self) -> Mapping[str, str]:
        own, linked = (f":{port}/" for port in (self._postgres.port, self.links["state"].port))
        return {"QO_STATE": self._database.replace(own, linked)}

    @asynccontextmanager
    async def queue(self, *, direct: bool = False, routed: bool = False) -> AsyncIterator[Queue]:
        endpoint = None if direct else self.links["queue-s3"].endpoint
        store = Retrying(await self._s3.open_store(self._queue_bucket, endpoint=endpoint))
        dispatch = DispatchConfig(dispatch=Dispatch.DIRECT if routed else Dispatch.SHARED)
        async with Queue(store, dispatch=dispatch) as queue:
            yield queue

    async def read_queue(self) -> Histories:
        return await read_bucket(self._s3, self._queue_bucket)

    async def read_wake_ups(self, runtime: str) -> Histories:
        return await read_bucket(self._s3, self._bucket, f"queues/{runtime}/")

    def read_file(self, uri: str) -> bytes:
        key = uri.removeprefix(f"s3://{self._bucket}/")
        return self._s3.admin.get_object(Bucket=self._bucket, Key=key)["Body"].read()


@asynccontextmanager
async def servers_ground(directory: Path, *, spark: bool) -> AsyncIterator[Ground]:
    """With everything started. At the end nothing is left but the directory."""
    async with AsyncExitStack() as stack:
        s3 = start_seaweed(directory / "seaweed")
        stack.callback(s3.stop)
        s3.ready_within_s = STARTED_WITHIN_S
        (directory / "postgres").mkdir()
        postgres = start_postgres(directory / "postgres", LASTING)
        stack.callback(postgres.stop)
        ground = ServersGround(directory, s3, postgres, spark=spark)
        stack.push_async_callback(ground.close)
        await ground.prepare()
        ground.start()
        yield ground
