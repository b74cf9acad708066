"""A dispatcher that mints credentials, and an agent that runs attempts with them, on a server that enforces them."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.agent.agent import Agent
from qo.agent.code.bundle_cache import CodeStore
from qo.agent.service import PLAIN, open_agent
from qo.api.contract.task import Claimed
from qo.config.settings import S3Settings, Settings
from qo.config.spark import SparkSettings
from qo.config.worker import CredentialUse
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.topology import Topology
from qo.dispatcher import aws
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken
from support.dispatcher.listeners import WORKER, Served, served
from support.dispatcher.pipeline_tasks import partition_task, woken
from support.dispatcher.pipelines import deployed, live
from support.servers.s3 import S3Server
from support.servers.sts import ROLE


class WorkerSlot:
    """What an attempt needs of a worker."""

    def __init__(self) -> None:
        self.cancel = CancelToken()

    def free_slot(self) -> None:
        pass


@dataclass
class Site:
    dispatcher: Served
    agent: Agent
    topology: Topology
    server: S3Server
    bucket: str
    settings: Settings  # Of the worker.
    dag: str

    @property
    def state(self) -> State:
        return self.dispatcher.context.state

    async def run(self, name: str, key: str) -> dict[str, Any]:
        """Run a task of a job, and return the row of its attempt, with the task's own beside."""
        task_id = partition_task(self.state, live(self.topology, f"{self.dag}.{name}"), key)
        with self.state.write() as tx:
            woken(tx, task_id)
        async with self.dispatcher.worker() as worker:
            claimed = await worker.claim(task_id, "w")
        assert isinstance(claimed, Claimed), claimed
        await self.agent.attempt(claimed, WorkerSlot())
        with self.state.read() as tx:
            tasks, attempts = schema.tasks, schema.attempts
            task = tx.one(sa.select(tasks).where(tasks.c.id == task_id))
            attempt = tx.one(sa.select(attempts).where(attempts.c.task_id == task_id))
        assert task is not None
        assert attempt is not None
        return {**task, **attempt, "status": task["status"]}

    def dataset(self, name: str) -> str:
        """The id of a job's output."""
        return live(self.topology, f"{self.dag}.{name}").outputs[0].dataset_id

    def written(self, name: str) -> list[str]:
        """The URIs of the objects of a job's output."""
        listed = self.server.admin.list_objects_v2(Bucket=self.bucket, Prefix=f"root/{self.dataset(name)}/")
        return [f"s3://{self.bucket}/{each['Key']}" for each in listed.get("Contents", [])]


@pytest.fixture
def all_rights(sts_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """The worker's own rights, in its environment."""
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", sts_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", sts_server.secret_key)
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


@asynccontextmanager
async def isolated_site(
    state: State,
    directory: Path,
    server: S3Server,
    wanted: Dag,
    *,
    opener: str = PLAIN["python"],
    use: CredentialUse = CredentialUse.AUTO,
    role: str | None = ROLE,
    spark: SparkSettings | None = None,
) -> AsyncIterator[Site]:
    bucket = server.make_bucket(versioned=False)
    given = {"data": f"s3://{bucket}/root", "role_arn": role, "sts_endpoint": server.endpoint}
    s3 = S3Settings(endpoint=server.endpoint, region=server.region)
    async with served(state, directory, s3=s3, **given) as dispatcher:
        base = dispatcher.context.settings
        chosen = replace(base.dispatcher, internal_url=dispatcher.addresses.internal, worker_token=WORKER)
        settings = Settings(
            dispatcher=chosen,
            s3=s3,
            spark=spark or SparkSettings(),
        )
        settings = replace(settings, worker=replace(settings.worker, credentials=use))
        async with open_agent(settings, opener, CodeStore(BlockingFiles())) as agent:
            yield Site(dispatcher, agent, deployed(state, wanted), server, bucket, settings, wanted.name)


def object_body(server: S3Server, uri: str) -> bytes:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return server.admin.get_object(Bucket=bucket, Key=key)["Body"].read()
