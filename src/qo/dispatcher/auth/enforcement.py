"""Proves that the bucket enforces the credentials of attempts: some servers accept session policies and ignore them.

Credentials are minted for one prefix of the data root, and tried on that and on another beside it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from datetime import datetime, timedelta
from enum import StrEnum

from qo.ambient import SYSTEM
from qo.config.settings import Settings
from qo.core.pipeline.policy import normalise
from qo.core.pipeline.reach import Reach, fit_reach
from qo.dispatcher.auth.credentials import DURATION_MIN_S, AssumeRoleRequest, assume, mints, partition_of_role
from qo.errors import AccessDenied, QoError
from qo.store.s3 import Credentials, S3Store

DIRECTORY = "_doctor"  # Below the data root.


class Verdict(StrEnum):
    ENFORCED = "enforced"
    IGNORED = "ignored"  # They open everything that the role may.
    NOT_MINTED = "not_minted"
    FAILED = "failed"


def examine(settings: Settings) -> tuple[Verdict, str]:
    """Return the verdict, and what it means in words. Blocks."""
    if not mints(settings):
        return (
            Verdict.NOT_MINTED,
            "not minted: attempts use the worker's own; set QO_CREDENTIALS_ROLE_ARN to a role",
        )
    try:
        is_enforced = asyncio.run(_try_out(settings))
    except QoError as error:
        return Verdict.FAILED, f"attempts would get none: {error}"
    if is_enforced:
        return Verdict.ENFORCED, "minted for each attempt, and the bucket refuses what is outside its prefixes"
    return Verdict.IGNORED, "minted, but the bucket IGNORES the prefixes: they open all that the role may do"


async def _try_out(settings: Settings) -> bool:
    """Whether a write beside the prefix is refused. Raises QoError if one below the prefix fails."""
    base = f"{settings.dispatcher.data_root.rstrip('/')}/{DIRECTORY}/{SYSTEM.task_id()}"
    own, other = normalise(f"{base}/own/"), normalise(f"{base}/other/")
    where = {"endpoint": settings.s3.endpoint, "region": settings.s3.region}
    until = await _store_time(own.bucket, where) + timedelta(seconds=DURATION_MIN_S)
    role_arn = settings.dispatcher.role_arn or ""
    fitted = fit_reach(Reach((own,), ((own,),)), until=until, partition=partition_of_role(role_arn))
    request = AssumeRoleRequest.of(role_arn, "qo-doctor", DURATION_MIN_S, until, fitted)
    answer = await asyncio.to_thread(assume, request, settings)
    scoped = Credentials(answer.access_key_id, answer.secret_access_key, answer.session_token)
    store = await S3Store.open(own.bucket, endpoint=where["endpoint"], region=where["region"], credentials=scoped)
    try:
        await store.put(f"{own.key}probe", b"")
        try:
            await store.put(f"{other.key}probe", b"")
        except AccessDenied:
            return True
        return False
    finally:
        await store.close()
        await _clean_up(own.bucket, [f"{own.key}probe", f"{other.key}probe"], where)


async def _store_time(bucket: str, where: Mapping[str, str | None]) -> datetime:
    store = await S3Store.open(
        bucket, endpoint=where["endpoint"], region=where["region"], credentials=Credentials("", "")
    )
    try:
        return await store.now()
    finally:
        await store.close()


async def _clean_up(bucket: str, keys: list[str], where: Mapping[str, str | None]) -> None:
    """Remove the probes with this process's own rights, if it may; they are empty, and below no dataset."""
    try:
        store = await S3Store.open(bucket, endpoint=where["endpoint"], region=where["region"])
    except QoError:
        return
    try:
        for key in keys:
            await store.delete(key)
    except QoError:
        pass
    finally:
        await store.close()
