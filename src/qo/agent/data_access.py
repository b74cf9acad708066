"""With whose rights an attempt reads and writes data: with credentials of its own wherever they can be had.

What cannot have them uses the rights of the worker, and the attempt records why; where they are required, it does not
run.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qo.agent.attempt_credentials import AttemptCredentials
from qo.agent.dataset_files import Storage
from qo.api.contract.credential import CredentialsAnswer
from qo.api.contract.task import Claimed, DataAccess, Work
from qo.api.internal_client import internal_url
from qo.config.settings import Settings
from qo.config.worker import CredentialUse
from qo.store.blocking_files import BlockingFiles
from qo.store.bucket_connections import BucketConnections
from qo.worker.api.signals import Reschedule

REFUSED_S = 30.0

_WHY_NOT = {
    DataAccess.NOT_MINTED: "the dispatcher mints none: set QO_CREDENTIALS_ROLE_ARN there",
    DataAccess.S3A: "Spark's s3a has one set of credentials for all attempts: set spark.bucket_access = python",
    DataAccess.FILES: "the data is in no bucket, and files of one user cannot be kept from that user",
}


class CredentialsMissing(Reschedule):
    """The worker requires credentials of the attempt, and there are none. The task is released for later."""


def choose_access(use: CredentialUse, claimed: Claimed, *, is_scoped: bool) -> DataAccess:
    """Return with whose rights an attempt works. ``is_scoped``: whether its executor can use credentials of attempts.

    Raises CredentialsMissing if its own are required and cannot be had.
    """
    access = _choose(use, claimed, is_scoped)
    if use is CredentialUse.REQUIRED and access in _WHY_NOT:
        why = _WHY_NOT[access]
        raise CredentialsMissing(
            REFUSED_S, f"this worker runs nothing without credentials of the attempt (QO_CREDENTIALS), and {why}"
        )
    return access


def _choose(use: CredentialUse, claimed: Claimed, is_scoped: bool) -> DataAccess:
    if not claimed.mints_credentials:
        return DataAccess.NOT_MINTED if is_in_bucket(claimed.work) else DataAccess.FILES
    if use is CredentialUse.OFF:
        return DataAccess.OFF
    return DataAccess.ATTEMPT if is_scoped else DataAccess.S3A


def is_in_bucket(work: Work) -> bool:
    """Whether the attempt reads or writes data in a bucket."""
    places = (each.prefix for each in work.outputs)
    pieces = (piece.location or "" for each in work.inputs for piece in each.pieces)
    return any(each.startswith("s3://") for each in (*places, *pieces, work.log or ""))


@dataclass(frozen=True, slots=True)
class AttemptData:
    """The files of one attempt."""

    access: DataAccess
    storage: Storage
    credentials: AttemptCredentials | None = None


class DataAccesses:
    """Opens the data for the attempts of a worker. Use it in the worker's event loop, and close it."""

    def __init__(self, settings: Settings, shared: Storage, *, is_scoped: bool = True) -> None:
        """``shared``: files with the worker's own rights."""
        self._url = internal_url(settings.dispatcher).rstrip("/")
        self._use = settings.worker.credentials
        self._shared = shared
        self._is_scoped = is_scoped
        self._fetch = settings.fetch
        self._connections = BucketConnections(settings)

    def open(
        self,
        claimed: Claimed,
        mint: Callable[[], Awaitable[CredentialsAnswer]],
        now: Callable[[], datetime],
        proof: Callable[[], Mapping[str, Any]],
    ) -> AttemptData:
        """Return the data of an attempt; close its credentials. ``proof``: its capability and fence.

        Raises CredentialsMissing.
        """
        access = choose_access(self._use, claimed, is_scoped=self._is_scoped)
        if access is not DataAccess.ATTEMPT:
            return AttemptData(access, self._shared)
        loop = asyncio.get_running_loop()
        url = f"{self._url}/v1/task/credentials"
        credentials = AttemptCredentials(mint, now, loop, lambda: {"url": url, **proof()})
        files = BlockingFiles(
            loop=loop,
            open_bucket=lambda location: self._connections.open(location, credentials),
            fetch=self._fetch,
        )
        return AttemptData(access, files, credentials)

    async def close(self) -> None:
        await self._connections.close()
