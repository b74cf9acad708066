"""Connections to buckets that many callers share, each of whom signs with credentials of its own.

Opening a connection takes longer than a request, and an attempt makes few of them.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING

from qo.config.location import parse
from qo.config.settings import Settings
from qo.errors import UsageError
from qo.store.bucket_directory import BucketDirectory

if TYPE_CHECKING:
    from qo.store.s3 import S3Store
    from qo.store.s3.aws_credentials import CredentialSource


class BucketConnections:
    """Use it from one event loop, and close it."""

    def __init__(self, settings: Settings) -> None:
        self._s3 = settings.s3
        self._stores: dict[str, S3Store] = {}
        self._opening = asyncio.Lock()

    async def open(self, location: str, credentials: CredentialSource) -> BucketDirectory:
        """Open ``s3://BUCKET`` with these credentials alone. Raises Unavailable if nothing answers at the endpoint."""
        from qo.store.retrying import Retrying

        place = parse(location).as_bucket()
        if place is None:
            raise UsageError(f"{location} is not a bucket: it does not begin with s3://")
        async with self._opening:
            if place.bucket not in self._stores:
                self._stores[place.bucket] = await self._connect(place.bucket)
        store = self._stores[place.bucket].signing_with(credentials)
        return BucketDirectory(Retrying(store), f"s3://{place.bucket}/")

    async def close(self) -> None:
        for store in self._stores.values():
            await store.close()

    async def _connect(self, bucket: str) -> S3Store:
        from qo.store.s3 import Credentials, S3Store

        # Nothing is signed with these: a worker need not have rights of its own.
        nobody = Credentials("", "")
        return await S3Store.open(bucket, endpoint=self._s3.endpoint, region=self._s3.region, credentials=nobody)
