"""The credentials of an attempt: minted when they are used, and new ones in time, for as long as it runs."""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime, timedelta

import pytest

from qo.agent.attempt_credentials import AttemptCredentials
from qo.api.contract.credential import CredentialsAnswer
from qo.errors import AccessDenied, LeaseLost, QoError, Refused, Unavailable, UsageError
from qo.spark.io.parquet_source import current_access
from qo.worker.observe.secrets import redact_secrets

START = datetime(2026, 1, 1, tzinfo=UTC)


class Minter:
    """Mints for an hour, unless it fails."""

    def __init__(self) -> None:
        self.now = START
        self.count = 0
        self.error: QoError | None = None

    async def mint(self) -> CredentialsAnswer:
        await asyncio.sleep(0)
        if self.error is not None:
            raise self.error
        self.count += 1
        return CredentialsAnswer(
            access_key_id=f"key-{self.count}",
            secret_access_key=f"a-secret-of-attempts-{self.count}",
            session_token=f"a-session-token-{self.count}",
            expiration=self.now + timedelta(hours=1),
            region="us-east-1",
        )

    def credentials(self) -> AttemptCredentials:
        return AttemptCredentials(self.mint, lambda: self.now, asyncio.get_running_loop())


async def test_nothing_is_minted_before_it_is_used_and_many_uses_share_it() -> None:
    minter = Minter()
    held = minter.credentials()
    assert minter.count == 0
    keys = await asyncio.gather(*(held.current() for _ in range(20)))
    assert {each.access_key for each in keys} == {"key-1"}
    assert (await asyncio.to_thread(held.answer)).access_key_id == "key-1"


async def test_a_run_of_a_day_never_signs_with_credentials_that_have_ended() -> None:
    minter = Minter()
    held = minter.credentials()
    ends: dict[str, datetime] = {}
    for minute in range(24 * 60):
        minter.now = START + timedelta(minutes=minute)
        key = (await held.current()).access_key
        ends.setdefault(key, minter.now + timedelta(hours=1))
        assert minter.now < ends[key] - timedelta(minutes=4)
    assert 24 <= minter.count <= 27


async def test_a_dispatcher_that_is_away_is_no_error_before_the_end() -> None:
    minter = Minter()
    held = minter.credentials()
    await held.current()
    minter.error, minter.now = Unavailable("away"), START + timedelta(minutes=57)
    assert (await held.current()).access_key == "key-1"
    minter.now = START + timedelta(minutes=61)
    with pytest.raises(Unavailable):
        await held.current()
    minter.error = None
    assert (await held.current()).access_key == "key-2"


@pytest.mark.parametrize(
    ("error", "raised"),
    [(Refused("no role"), AccessDenied), (LeaseLost("over"), LeaseLost), (UsageError("too many"), UsageError)],
)
async def test_a_refusal_is_told_as_what_it_is(error: QoError, raised: type[QoError]) -> None:
    minter = Minter()
    minter.error = error
    with pytest.raises(raised, match=str(error)):
        await minter.credentials().current()


async def test_an_attempt_that_reads_more_than_before_gets_others() -> None:
    minter = Minter()
    held = minter.credentials()
    await held.current()
    held.discard()
    assert (await held.current()).access_key == "key-2"


async def test_credentials_are_kept_out_of_logs_while_the_attempt_runs() -> None:
    held = Minter().credentials()
    await held.current()
    assert "a-secret-of-attempts-1" not in redact_secrets("it is a-secret-of-attempts-1")
    assert "a-session-token-1" not in redact_secrets("it is a-session-token-1")
    held.close()
    assert "a-secret-of-attempts-1" in redact_secrets("it is a-secret-of-attempts-1")


def test_a_process_of_spark_uses_what_it_was_given_until_shortly_before_the_end() -> None:
    renewal = '{"url": "http://127.0.0.1:1/v1/task/credentials", "capability": "c", "fence": {}}'
    options = {"accesskey": "k", "expires": START.isoformat(), "renewaltoken": renewal}
    assert current_access(options, START - timedelta(minutes=10)) == options
    assert (
        current_access(options, START - timedelta(seconds=10)) == options
    )  # Nobody answers, and it is still good.
    with pytest.raises(PermissionError, match="ended at 2026-01-01 00:00:00 UTC"):
        current_access(options, START + timedelta(seconds=1))
    assert current_access({"accesskey": "k"}, START) == {"accesskey": "k"}
