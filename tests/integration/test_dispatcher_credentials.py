# ruff: noqa: F811
"""Credentials of tasks, against a server that enforces session policies: what is outside the prefixes stays out.

SeaweedFS has an STS and judges every request by role and session policy. moto has an STS too, but looks at no
session policy; it only shows here that the request is one that another implementation understands. Neither knows
aws:CurrentTime, so that everything is denied once the token has ended is judged by the rules of IAM alone
(tests/property/test_policy.py).
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import replace
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.credential import CredentialsAnswer
from qo.api.contract.task import Claimed, ClaimRequest, EventBody, Fence
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import S3Settings, Settings
from qo.dispatcher import aws
from qo.dispatcher.attempts.claiming import claim
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.auth import credentials, enforcement, scopes
from qo.dispatcher.auth.capability import Capability, Scope
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.runtimes.choice import mint_variables
from qo.dispatcher.sources.emission import emit
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.tasks.creation import NewTask, create
from qo.errors import ConfigError, Forbidden, LeaseLost, Refused, Unavailable
from support.dispatcher.invocations import invocation_of
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock, clock, create_tables, state  # noqa: F401
from support.servers.ports import free_ports
from support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, client_of, is_refused
from support.servers.sts import ROLE, sts_server  # noqa: F401

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))


@pytest.fixture(autouse=True)
def _own_credentials(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


def settings_of(endpoint: str | None, data: str, **changed: Any) -> Settings:
    fields: dict[str, Any] = {"data": data, "role_arn": ROLE, "sts_endpoint": endpoint}
    return Settings(
        dispatcher=DispatcherSettings(**fields | changed), s3=S3Settings(endpoint=endpoint, region=REGION)
    )


class Attempt:
    """A running attempt of shop.clean, its token, and how to ask for its credentials."""

    def __init__(self, state: State, ring: KeyRing, settings: Settings, *, pieces: int = 1) -> None:
        self.state, self.settings = state, settings
        topology = deployed(state, SHOP)
        clean = live(topology, "shop.clean")
        self.generation = f"{clean.inputs[0].dataset_id}/{clean.inputs[0].generation_id}/"
        self.read = f"{self.generation}upload-0/"
        data = settings.dispatcher.data
        announced = [
            {"location": f"{data}/{self.generation}upload-{at}/", "files": ["a"], "part": at}
            for at in range(pieces)
        ]
        with state.write() as tx:
            for at, attributes in enumerate(announced):
                key = {"partition_key": "p1"} if pieces == 1 else {"cursor": at}
                emit(
                    tx,
                    "shop",
                    "orders",
                    key=f"k{at}",
                    events=[EventBody(**key, attributes=attributes)],
                    by="tests",
                )
            (made,) = create(tx, [NewTask(job=clean, dedupe_key="manual:1", partition_key="p1")])
            woken(tx, made.task_id)
            claimed = claim(tx, ClaimRequest(task_id=made.task_id, worker_id="w"), data)
            assert isinstance(claimed, Claimed)
            self.write = claimed.work.outputs[0].prefix.removeprefix(data).lstrip("/")
            assert claimed.work.log is not None
            self.log = claimed.work.log.removeprefix(data).lstrip("/")
            self.fence = Fence(task_id=made.task_id, attempt=claimed.attempt, lease_id=claimed.lease_id)
            self.scope = scopes.scope_of(claimed.work, data)
            token = capabilities.issue(
                ring,
                task_id=made.task_id,
                attempt=claimed.attempt,
                lease_id=claimed.lease_id,
                timeout_s=claimed.work.timeout_seconds,
                token_id="jti",
                now=tx.now,
                scope=self.scope,
            )
            self.capability, self.token = capabilities.verify(ring, token, tx.now), token

    def mint(self, capability: Capability | None = None, **changed: Any) -> CredentialsAnswer:
        settings = replace(self.settings, dispatcher=replace(self.settings.dispatcher, **changed))
        return credentials.mint(self.state, self.fence, capability or self.capability, settings)


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    """A state for tests that need a server: what the database is makes no difference to it."""
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


@pytest.fixture
def ring(tmp_path: Path) -> KeyRing:
    return KeyRing.open(tmp_path / "keys")


@pytest.fixture
def attempt(state: State, ring: KeyRing) -> Attempt:
    """One that has no STS to ask."""
    return Attempt(state, ring, settings_of(f"http://127.0.0.1:{free_ports(1)[0]}", "s3://data/root"))


@pytest.mark.s3
def test_minted_credentials_reach_their_prefixes_and_nothing_else(
    books: State, ring: KeyRing, sts_server: S3Server
) -> None:
    bucket, other = sts_server.make_bucket(versioned=False), sts_server.make_bucket(versioned=False)
    attempt = Attempt(books, ring, settings_of(sts_server.endpoint, f"s3://{bucket}/root"))
    read, write = f"root/{attempt.read}", f"root/{attempt.write}"
    beside = f"root/{attempt.read.rstrip('/')}-x/"
    sibling = f"{write.rstrip('/').rpartition('/')[0]}/2/"  # The next attempt's.
    for key in (f"{read}a", f"{beside}a", f"{sibling}a", "root/a", "a", f"{write}old"):
        sts_server.admin.put_object(Bucket=bucket, Key=key, Body=b"1")
    sts_server.admin.put_object(Bucket=other, Key=f"{read}a", Body=b"1")

    minted = attempt.mint()
    task = client_of(minted, minted.endpoint, minted.region)
    assert task.get_object(Bucket=bucket, Key=f"{read}a")["Body"].read() == b"1"
    task.put_object(Bucket=bucket, Key=f"{write}part-0", Body=b"2")
    assert task.get_object(Bucket=bucket, Key=f"{write}part-0")["Body"].read() == b"2"
    assert task.list_objects_v2(Bucket=bucket, Prefix=read)["KeyCount"] == 1
    upload = task.create_multipart_upload(Bucket=bucket, Key=f"{write}large")["UploadId"]
    task.abort_multipart_upload(Bucket=bucket, Key=f"{write}large", UploadId=upload)

    outside = [f"{beside}a", f"{sibling}a", "root/a", "a", f"{read}../../../a", f"{write}../2/a", read.rstrip("/")]
    for key in outside:
        assert is_refused(lambda key=key: task.get_object(Bucket=bucket, Key=key)), key
        assert is_refused(lambda key=key: task.head_object(Bucket=bucket, Key=key)), key
        assert is_refused(lambda key=key: task.put_object(Bucket=bucket, Key=key, Body=b"3")), key
        assert is_refused(lambda key=key: task.delete_object(Bucket=bucket, Key=key)), key
        assert is_refused(lambda key=key: task.create_multipart_upload(Bucket=bucket, Key=key)), key
        from_there = {"Bucket": bucket, "Key": key}
        assert is_refused(lambda it=from_there: task.copy_object(Bucket=bucket, Key=f"{write}c", CopySource=it)), (
            key
        )
    for key in (f"{read}a", f"{read}new"):
        assert is_refused(lambda key=key: task.put_object(Bucket=bucket, Key=key, Body=b"3")), (
            "inputs are read only"
        )
    for key in (f"{read}a", f"{write}old"):
        assert is_refused(lambda key=key: task.delete_object(Bucket=bucket, Key=key)), "nothing is ever deleted"
    log, other_log = (f"root/{attempt.log}0000000001.jsonl", f"root/{attempt.log[:-2]}2/0000000001.jsonl")
    task.put_object(Bucket=bucket, Key=log, Body=b"{}")
    assert is_refused(lambda: task.get_object(Bucket=bucket, Key=log)), "a log is written only"
    assert is_refused(lambda: task.put_object(Bucket=bucket, Key=other_log, Body=b"{}"))
    for prefix in ("", "root/", beside, f"{read.rstrip('/')}", sibling):
        assert is_refused(lambda prefix=prefix: task.list_objects_v2(Bucket=bucket, Prefix=prefix)), prefix
    assert is_refused(lambda: task.list_objects_v2(Bucket=bucket))
    assert is_refused(lambda: task.get_object(Bucket=other, Key=f"{read}a"))
    assert is_refused(lambda: task.put_object(Bucket=other, Key=f"{write}a", Body=b"3"))
    assert is_refused(lambda: task.list_objects_v2(Bucket=other, Prefix=read))
    assert is_refused(lambda: task.create_bucket(Bucket="one-of-my-own"))
    assert is_refused(lambda: task.delete_bucket(Bucket=other))
    # And it is all still there.
    for key in (f"{read}a", f"{beside}a", f"{sibling}a", "root/a", "a", f"{write}old"):
        assert sts_server.admin.get_object(Bucket=bucket, Key=key)["Body"].read() == b"1"


@pytest.mark.s3
def test_credentials_are_never_said_to_outlive_the_token(
    books: State, ring: KeyRing, sts_server: S3Server
) -> None:
    attempt = Attempt(books, ring, settings_of(sts_server.endpoint, "s3://data/root"))
    soon = attempt.capability.issued_at + timedelta(seconds=90)
    assert attempt.mint(replace(attempt.capability, expires_at=soon)).expiration == soon


@pytest.mark.s3
def test_the_doctor_tells_a_server_that_enforces_policies_from_one_that_ignores_them(
    sts_server: S3Server, moto_server: S3Server
) -> None:
    verdicts = {}
    for server, role in ((sts_server, ROLE), (moto_server, "arn:aws:iam::123456789012:role/tasks")):
        bucket = server.make_bucket(versioned=False)
        settings = settings_of(server.endpoint, f"s3://{bucket}/root", role_arn=role)
        verdicts[server.endpoint] = enforcement.examine(settings)[0]
        assert "Contents" not in server.admin.list_objects_v2(Bucket=bucket)
    assert list(verdicts.values()) == [enforcement.Verdict.ENFORCED, enforcement.Verdict.IGNORED]
    none = enforcement.examine(settings_of(sts_server.endpoint, "s3://data/root", role_arn=None))
    assert none[0] is enforcement.Verdict.NOT_MINTED
    nobodys = settings_of(sts_server.endpoint, "s3://data/root", role_arn="arn:aws:iam::role/nobodys")
    assert enforcement.examine(nobodys)[0] is enforcement.Verdict.FAILED


@pytest.mark.s3
def test_a_role_that_may_not_be_assumed_is_a_refusal_in_words(
    books: State, ring: KeyRing, sts_server: S3Server
) -> None:
    attempt = Attempt(books, ring, settings_of(sts_server.endpoint, "s3://data/root"))
    with pytest.raises(Refused, match="STS"):
        attempt.mint(role_arn="arn:aws:iam::role/somebody-elses")


@pytest.mark.s3
def test_another_sts_understands_the_request(books: State, ring: KeyRing, moto_server: S3Server) -> None:
    attempt = Attempt(books, ring, settings_of(moto_server.endpoint, "s3://data/root"))
    answer = attempt.mint(role_arn="arn:aws:iam::123456789012:role/tasks")
    assert answer.access_key_id
    assert answer.expiration <= attempt.capability.expires_at
    assert answer.session_token not in repr(answer)
    assert answer.secret_access_key not in repr(answer)


def test_an_attempt_that_is_over_gets_no_credentials(attempt: Attempt, clock: Clock) -> None:
    clock.advance(61)
    with pytest.raises(LeaseLost, match="heartbeat"):
        attempt.mint()
    with attempt.state.write() as tx:
        tx.execute(sa.update(schema.tasks).values(status="completed", lease_id=None))
    with pytest.raises(LeaseLost, match="over"):
        attempt.mint()


def test_another_attempts_token_gets_no_credentials(attempt: Attempt) -> None:
    with pytest.raises(Forbidden):
        attempt.mint(replace(attempt.capability, attempt=2))
    with pytest.raises(Forbidden):
        attempt.mint(replace(attempt.capability, task_id="another"))


def test_a_dispatcher_without_a_role_mints_none(attempt: Attempt) -> None:
    with pytest.raises(Refused, match="QO_CREDENTIALS_ROLE_ARN"):
        attempt.mint(role_arn=None)
    with pytest.raises(ConfigError, match="ARN"):
        attempt.mint(role_arn="tasks")


def test_data_that_is_in_no_bucket_needs_none(state: State, ring: KeyRing) -> None:
    attempt = Attempt(state, ring, settings_of("http://127.0.0.1:1", "file:/srv/data"))
    with pytest.raises(Refused, match="no data in a bucket"):
        attempt.mint()


def test_the_prefixes_that_a_token_names_open_nothing(attempt: Attempt) -> None:
    """What an attempt may read and write follows from its pins, whatever its token says."""
    wide = Scope(read_prefixes=("s3://data/",), write_prefixes=("s3://data/root/",))
    with attempt.state.read() as tx:
        order = credentials.authorise(tx, attempt.fence, attempt.capability, attempt.settings)
        other = credentials.authorise(tx, attempt.fence, replace(attempt.capability, scope=wide), attempt.settings)
    assert order == other


def test_an_attempt_that_reads_many_pieces_gets_their_generation(state: State, ring: KeyRing) -> None:
    attempt = Attempt(state, ring, settings_of("http://127.0.0.1:1", "s3://data/root"), pieces=20)
    with state.read() as tx:
        order = credentials.authorise(tx, attempt.fence, attempt.capability, attempt.settings)
    read = json.loads(order.policy)["Statement"][0]
    assert f"arn:aws:s3:::data/root/{attempt.generation}*" in read["Resource"]
    assert len(read["Resource"]) == 2


def test_an_sts_that_does_not_answer_can_be_asked_again(attempt: Attempt) -> None:
    with pytest.raises(Unavailable):
        attempt.mint()


def test_a_scope_that_was_too_long_for_the_token_comes_from_the_state(attempt: Attempt) -> None:
    reference = capabilities.capability_id(attempt.fence.task_id, attempt.fence.attempt)
    bare = replace(attempt.capability, scope=Scope(), capability_id=reference)
    with attempt.state.read() as tx:
        assert scopes.resolve(tx, bare, "s3://data/root").scope == attempt.scope
        order = credentials.authorise(tx, attempt.fence, bare, attempt.settings)
        assert order == credentials.authorise(tx, attempt.fence, attempt.capability, attempt.settings)


def test_what_is_asked_of_sts_is_the_scope_of_the_attempt(attempt: Attempt) -> None:
    with attempt.state.read() as tx:
        order = credentials.authorise(tx, attempt.fence, attempt.capability, attempt.settings)
    assert attempt.fence.task_id in order.session_name
    assert 900 <= order.duration_s <= 3600
    read, write, _, deny = json.loads(order.policy)["Statement"]
    assert sorted(read["Resource"]) == sorted(
        [f"arn:aws:s3:::data/root/{attempt.read}*", f"arn:aws:s3:::data/root/{attempt.write}*"]
    )
    assert sorted(write["Resource"]) == sorted(  # Its log is written, and not read.
        [f"arn:aws:s3:::data/root/{attempt.write}*", f"arn:aws:s3:::data/root/{attempt.log}*"]
    )
    assert deny["Effect"] == "Deny"


def test_the_scope_of_data_in_files_has_no_prefixes(attempt: Attempt) -> None:
    with attempt.state.write() as tx:
        found = scopes.running.fetch(tx, attempt.fence.task_id, "file:/srv/data")
    assert found.work is not None
    scope = scopes.scope_of(found.work, "file:/srv/data")
    assert (scope.read_prefixes, scope.write_prefixes) == ((), ())
    assert {each.storage_ref["scheme"] for each in scope.datasets} == {"file"}


@pytest.mark.s3
def test_a_container_has_the_credentials_of_its_attempt_in_its_environment(
    sts_server: S3Server, books: State, ring: KeyRing
) -> None:
    settings = settings_of(sts_server.endpoint, f"s3://{sts_server.make_bucket()}")
    attempt = Attempt(books, ring, settings)
    fence = attempt.fence.model_dump()
    invocation = invocation_of(b"", capability_token=attempt.token, **fence)
    variables = mint_variables(settings, books, ring, invocation)
    assert variables["AWS_ENDPOINT_URL_S3"] == sts_server.endpoint
    assert variables["AWS_SESSION_TOKEN"]
    assert variables["AWS_ACCESS_KEY_ID"] != ACCESS_KEY
    none = replace(settings, dispatcher=replace(settings.dispatcher, role_arn=None))
    assert mint_variables(none, books, ring, invocation) == {}
