# ruff: noqa: F811
"""Attempts of the Python runtime read and write with credentials of their own, which a real server enforces.

SeaweedFS judges each request by the session policy that the credentials were minted with. The worker itself has all
rights, so what is refused here is refused to the attempt.
"""

from __future__ import annotations

from pathlib import Path

import isolation_operators
import pytest

from qo.api.contract.task import DataAccess
from qo.config.worker import CredentialUse
from qo.dispatcher.state.database import State
from support.dispatcher.isolated_sites import all_rights, isolated_site, object_body  # noqa: F401
from support.dispatcher.pipelines import dag, job, source
from support.dispatcher.states import clock, state  # noqa: F401
from support.servers.s3 import S3Server
from support.servers.sts import sts_server  # noqa: F401

pytestmark = [pytest.mark.s3, pytest.mark.usefixtures("all_rights")]

SHOP = dag(
    "shop",
    source("orders"),
    job("secret", reads="orders", operator="isolation_operators:write"),
    job("clean", reads="orders", operator="isolation_operators:write"),
    job("daily", reads="clean", operator="isolation_operators:copy"),
    job("thief", reads="clean", operator="isolation_operators:reach_out"),
)


async def test_a_job_that_tries_anothers_prefix_is_refused_by_the_server(
    state: State, tmp_path: Path, sts_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with isolated_site(state, tmp_path, sts_server, SHOP) as here:
        for name in ("secret", "clean"):
            done = await here.run(name, "p1")
            assert (done["status"], done["data_access"]) == ("completed", DataAccess.ATTEMPT), done
        await here.run("clean", "p2")
        # Its own input works, and only the partition that it has pinned is opened.
        assert (await here.run("daily", "p1"))["status"] == "completed"
        theirs = [*here.written("secret"), *here.written("daily")]
        unpinned = here.written("clean")
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
        pinned = next(uri for uri in unpinned if object_body(sts_server, uri) == b"clean p1")
        assert {each for each in refused if each.startswith("read")} == {
            f"read {uri}" for uri in (*theirs, *unpinned) if uri != pinned
        }
        assert [object_body(sts_server, uri) for uri in theirs] == [b"secret p1", b"clean p1"]


async def test_where_the_dispatcher_mints_none_the_worker_s_own_are_used_and_recorded(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with isolated_site(state, tmp_path, sts_server, SHOP, role=None) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["data_access"]) == ("completed", DataAccess.NOT_MINTED), done


async def test_credentials_of_attempts_can_be_switched_off_and_that_is_recorded(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with isolated_site(state, tmp_path, sts_server, SHOP, use=CredentialUse.OFF) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["data_access"]) == ("completed", DataAccess.OFF), done


async def test_where_credentials_are_required_nothing_runs_without(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    async with isolated_site(state, tmp_path, sts_server, SHOP, use=CredentialUse.REQUIRED, role=None) as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["outcome"]) == ("pending", "rescheduled"), done
        assert "QO_CREDENTIALS_ROLE_ARN" in done["error"]
        assert here.written("clean") == []


async def test_a_role_that_cannot_be_assumed_opens_nothing(
    state: State, tmp_path: Path, sts_server: S3Server
) -> None:
    """The worker has rights of its own, and does not fall back on them."""
    async with isolated_site(state, tmp_path, sts_server, SHOP, role="arn:aws:iam::role/nobodys") as here:
        done = await here.run("clean", "p1")
        assert (done["status"], done["outcome"]) == ("pending", "retried"), done
        assert "STS refuses" in done["error"]
        assert here.written("clean") == []


async def test_a_worker_needs_no_rights_to_the_data_of_its_own(
    state: State, tmp_path: Path, sts_server: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with isolated_site(state, tmp_path, sts_server, SHOP) as here:
        assert (await here.run("secret", "p1"))[
            "status"
        ] == "completed"  # The dispatcher has its client of STS now.
        monkeypatch.setenv("AWS_ACCESS_KEY_ID", "nobody")
        monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", "nothing-at-all")
        assert (await here.run("clean", "p1"))["status"] == "completed"
        done = await here.run("daily", "p1")
        assert (done["status"], done["data_access"]) == ("completed", DataAccess.ATTEMPT), done
        assert object_body(sts_server, here.written("daily")[0]) == b"clean p1"
