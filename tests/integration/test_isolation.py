# ruff: noqa: F811
"""Attempts of the Python runtime read and write with credentials of their own, which a real server enforces.

SeaweedFS judges each request by the session policy that the credentials were minted with. The worker itself has all
rights, so what is refused here is refused to the attempt.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import isolation_operators
import pytest
import sqlalchemy as sa

from qo.agent.agent import Agent
from qo.agent.code.bundle_cache import CodeStore
from qo.agent.service import PLAIN, open_agent
from qo.api.contract.task import Claimed, DataAccess
from qo.config.settings import S3Settings, Settings
from qo.config.worker import CredentialUse
from qo.core.pipeline.topology import Topology
from qo.dispatcher import aws
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.store.blocking_files import BlockingFiles
from qo.worker.loop.cancel import CancelToken
from support.dispatcher.listeners import WORKER, Served, served
from support.dispatcher.pipeline_tasks import partition_task, woken
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import clock, state  # noqa: F401
from support.servers.s3 import S3Server
from support.servers.sts import ROLE, sts_server  # noqa: F401

pytestmark = pytest.mark.s3

SHOP = dag(
    "shop",
    source("orders"),
    job("secret", reads="orders", operator="isolation_operators:write"),
    job("clean", reads="orders", operator="isolation_operators:write"),
    job("daily", reads="clean", operator="isolation_operators:copy"),
    job("thief", reads="clean", operator="isolation_operators:reach_out"),
)


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

    @property
    def state(self) -> State:
        return self.dispatcher.context.state

    async def run(self, name: str, key: str) -> dict[str, Any]:
        """Run a task of a job, and return the row of its attempt, with the task's own beside."""
        task_id = partition_task(self.state, live(self.topology, f"shop.{name}"), key)
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

    def written(self, name: str) -> list[str]:
        """The objects of a job's output."""
        dataset = live(self.topology, f"shop.{name}").outputs[0].dataset_id
        listed = self.server.admin.list_objects_v2(Bucket=self.bucket, Prefix=f"root/{dataset}/")
        return [each["Key"] for each in listed.get("Contents", [])]


@pytest.fixture(autouse=True)
def _all_rights(sts_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", sts_server.access_key)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", sts_server.secret_key)
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


@asynccontextmanager
async def site(
    state: State, directory: Path, server: S3Server, *, use: CredentialUse = CredentialUse.AUTO, role: str | None = ROLE
) -> AsyncIterator[Site]:
    bucket = server.make_bucket(versioned=False)
    given = {"data": f"s3://{bucket}/root", "role_arn": role, "sts_endpoint": server.endpoint}
    async with served(state, directory, **given) as dispatcher:
        base = dispatcher.context.settings
        chosen = replace(base.dispatcher, internal_url=dispatcher.addresses.internal, worker_token=WORKER)
        settings = Settings(dispatcher=chosen, s3=S3Settings(endpoint=server.endpoint, region=server.region))
        settings = replace(settings, worker=replace(settings.worker, credentials=use))
        async with open_agent(settings, PLAIN["python"], CodeStore(BlockingFiles())) as agent:
            yield Site(dispatcher, agent, deployed(state, SHOP), server, bucket)


async def test_a_job_that_tries_anothers_prefix_is_refused_by_the_server(
    state: State, tmp_path: Path, sts_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with site(state, tmp_path, sts_server) as here:
        for name in ("secret", "clean"):
            done = await here.run(name, "p1")
            assert (done["status"], done["data_access"]) == ("completed", DataAccess.ATTEMPT), done
        await here.run("clean", "p2")
        # Its own input works, and only the partition that it has pinned is opened.
        assert (await here.run("daily", "p1"))["status"] == "completed"
        theirs = [f"s3://{here.bucket}/{key}" for name in ("secret", "daily") for key in here.written(name)]
        unpinned = [f"s3://{here.bucket}/{key}" for key in here.written("clean")]
        assert (len(theirs), len(unpinned)) == (2, 2)
        elsewhere = [f"s3://{here.bucket}/root/mine.txt", theirs[0].rpartition("/")[0] + "/new.txt", *unpinned]
        places = {"read": [*theirs, *unpinned], "write": [*theirs, *elsewhere]}
        monkeypatch.setattr(isolation_operators, "PLACES", places)
        done = await here.run("thief", "p1")
        assert done["status"] == "completed", done
        refused = isolation_operators.REFUSED
        assert {each for each in refused if each.startswith("write")} == {
            f"write {uri}" for uri in (*theirs, *elsewhere)
        }
        pinned = next(uri for uri in unpinned if sts_body(sts_server, uri) == b"clean p1")
        assert {each for each in refused if each.startswith("read")} == {
            f"read {uri}" for uri in (*theirs, *unpinned) if uri != pinned
        }
        assert [sts_body(sts_server, uri) for uri in theirs] == [b"secret p1", b"clean p1"]


async def test_where_the_dispatcher_mints_none_the_worker_s_own_are_used_and_recorded(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with site(state, tmp_path, sts_server, role=None) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["data_access"]) == ("completed", DataAccess.NOT_MINTED), done


async def test_credentials_of_attempts_can_be_switched_off_and_that_is_recorded(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with site(state, tmp_path, sts_server, use=CredentialUse.OFF) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["data_access"]) == ("completed", DataAccess.OFF), done


async def test_where_credentials_are_required_nothing_runs_without(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with site(state, tmp_path, sts_server, use=CredentialUse.REQUIRED, role=None) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["outcome"]) == ("pending", "rescheduled"), done
        assert "QO_CREDENTIALS_ROLE_ARN" in done["error"]
        assert here.written("clean") == []


async def test_a_role_that_cannot_be_assumed_opens_nothing(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    """The worker has rights of its own, and does not fall back on them."""
    async with site(state, tmp_path, sts_server, role="arn:aws:iam::role/nobodys") as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["outcome"]) == ("pending", "retried"), done
        assert "STS refuses" in done["error"]
        assert here.written("clean") == []


def sts_body(server: S3Server, uri: str) -> bytes:
    bucket, _, key = uri.removeprefix("s3://").partition("/")
    return server.admin.get_object(Bucket=bucket, Key=key)["Body"].read()
