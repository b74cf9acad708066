"""The store port over S3."""

from __future__ import annotations

import base64
import hashlib
import os
from collections.abc import Mapping, Sequence
from datetime import UTC, datetime

from qo.ambient import SYSTEM, Ambient
from qo.core.storetime import steady
from qo.errors import AccessDenied, PreconditionFailed, StoreError, UsageError
from qo.store.port import (
    DELETE_LIMIT_MAX,
    LIST_LIMIT_MAX,
    UNCHANGED,
    Deletion,
    Page,
    PutResult,
    Stored,
    Unchanged,
    Version,
    VersionEntry,
    VersionMark,
    VersionPage,
)
from qo.store.s3 import replies
from qo.store.s3.address import bucket_address, query
from qo.store.s3.aws_credentials import Credentials, CredentialSource, find_credentials, find_region
from qo.store.s3.failure import failure
from qo.store.s3.transport import Reply, Transport

CONNECTIONS = 64
TIMEOUT_S = 30.0
PRESIGN_MAX_S = 7 * 24 * 3600


class S3Store:
    """One bucket, or the part of it under a prefix. Use ``await S3Store.open(...)``, and close it."""

    def __init__(self, transport: Transport, prefix: str = "") -> None:
        self.transport = transport
        self.prefix = f"{prefix.strip('/')}/" if prefix.strip("/") else ""
        self._last_now = datetime.min.replace(tzinfo=UTC)

    @classmethod
    async def open(
        cls,
        bucket: str,
        *,
        prefix: str = "",
        endpoint: str | None = None,
        region: str | None = None,
        credentials: Credentials | None = None,
        connections: int = CONNECTIONS,
        timeout_s: float = TIMEOUT_S,
        ambient: Ambient = SYSTEM,
    ) -> S3Store:
        """Open a bucket. Missing arguments come from the standard AWS variables and config files. A prefix makes
        several queues in one bucket.

        Raises AccessDenied if there are no credentials, and Unavailable if nothing answers at the endpoint. Whether the
        bucket exists and the credentials are valid for it shows only at the first operation.
        """
        endpoint = endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
        place = bucket_address(bucket, endpoint=endpoint, region=find_region(region))
        source = await find_credentials(credentials)
        transport = await Transport.open(
            place, source, connections=connections, timeout_s=timeout_s, ambient=ambient
        )
        return cls(transport, prefix)

    def signing_with(self, credentials: CredentialSource) -> S3Store:
        """Return the store over the same connections, with other credentials. Close this one last."""
        return S3Store(self.transport.signing_with(credentials), self.prefix)

    async def get(self, key: str, *, version: str | None = None) -> Stored | None:
        which = query(versionId=version) if version is not None else ""
        return await self._stored(await self.transport.send("GET", self.prefix + key, which), key, version)

    async def _stored(self, reply: Reply, key: str, version: str | None = None) -> Stored | None:
        """Return the object in the reply to a GET, or None if the reply says that there is none."""
        if reply.status == 200:
            return Stored(reply.body, _etag(reply), reply.headers.get("x-amz-version-id"))
        if reply.status == 404 and replies.refusal(reply.body).code != "NoSuchBucket":
            return None
        if reply.status == 405 and version is not None:
            return None  # The reply of AWS for a delete marker.
        if version is None and replies.refusal(reply.body).code == "AccessDenied" and await self._is_unlisted(key):
            return None
        raise self._failure(reply, "GetObject", key)

    async def get_if_changed(self, key: str, etag: str) -> Stored | Unchanged | None:
        reply = await self.transport.send("GET", self.prefix + key, headers={"If-None-Match": etag})
        if reply.status == 304 or (reply.status == 200 and _etag(reply) == etag):
            return UNCHANGED  # A server that ignores the condition sends the object all the same.
        return await self._stored(reply, key)

    async def put(
        self, key: str, body: bytes, *, if_match: str | None = None, if_absent: bool = False
    ) -> PutResult:
        condition = _condition(if_match, if_absent)
        reply = await self.transport.send(
            "PUT", self.prefix + key, body=body, headers=condition, once=bool(condition)
        )
        if reply.status == 200:
            return PutResult(_etag(reply), reply.headers.get("x-amz-version-id"))
        if reply.status == 404 and if_match is not None and replies.refusal(reply.body).code != "NoSuchBucket":
            raise PreconditionFailed(f"PutObject of {key!r}: there is no such object any more")
        raise self._failure(reply, "PutObject", key)

    async def delete(self, key: str, *, if_match: str | None = None, version: str | None = None) -> None:
        condition = _condition(if_match, if_absent=False)
        which = query(versionId=version) if version is not None else ""
        reply = await self.transport.send(
            "DELETE", self.prefix + key, which, headers=condition, once=bool(condition)
        )
        if reply.status in (200, 204):
            return
        if reply.status == 404 and replies.refusal(reply.body).code != "NoSuchBucket":
            return
        if reply.status == 412 and await self._is_missing(key):
            return  # Some servers reply 412 for a missing object.
        raise self._failure(reply, "DeleteObject", key)

    async def delete_many(self, deletions: Sequence[Deletion]) -> None:
        if not deletions:
            return
        if len(deletions) > DELETE_LIMIT_MAX:
            raise UsageError(
                f"At most {DELETE_LIMIT_MAX} objects can be deleted in one request, not {len(deletions)}"
            )
        body = replies.delete_request(deletions, prefix=self.prefix)
        md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
        headers = {"Content-MD5": md5, "Content-Type": "application/xml"}
        reply = await self.transport.send("POST", "", query(delete=""), body=body, headers=headers)
        if reply.status != 200:
            raise self._failure(reply, "DeleteObjects")
        for refused in replies.failed_deletes(reply.body):
            raise failure(200, refused, operation="DeleteObjects", key=refused.key, place=self.transport.place)

    async def list(self, prefix: str, *, start_after: str = "", limit: int = LIST_LIMIT_MAX) -> Page:
        arguments = {
            "encoding_type": "url",
            "list_type": "2",
            "max_keys": str(min(limit, LIST_LIMIT_MAX)),
            "prefix": self.prefix + prefix,
        }
        if start_after:
            arguments["start_after"] = self.prefix + start_after
        reply = await self.transport.send("GET", "", query(**arguments))
        if reply.status != 200:
            raise self._failure(reply, "ListObjectsV2", prefix)
        return replies.list_page(reply.body, prefix=self.prefix)

    async def versions(self, key: str) -> Sequence[Version]:
        history: list[Version] = []
        after: VersionMark | None = None
        while True:
            page = await self.list_versions(key, after=after)
            history += [version for its_key, version in page.entries if its_key == key]
            if (after := page.next) is None:
                break
        history.sort(key=_newest, reverse=True)  # Again, for servers that list all delete markers last.
        return history

    async def list_versions(
        self, prefix: str, *, after: VersionMark | None = None, limit: int = LIST_LIMIT_MAX
    ) -> VersionPage:
        arguments = {"encoding_type": "url", "max_keys": str(min(limit, LIST_LIMIT_MAX)), "versions": ""}
        arguments["prefix"] = self.prefix + prefix
        if after is not None:
            arguments["key_marker"] = self.prefix + after.key
        if after is not None and after.version is not None:
            arguments["version_id_marker"] = after.version
        reply = await self.transport.send("GET", "", query(**arguments))
        if reply.status != 200:
            raise self._failure(reply, "ListObjectVersions", prefix)
        page = replies.versions_page(reply.body)
        skip = len(self.prefix)
        entries = [VersionEntry(key[skip:], version) for key, version in page.versions]
        # In this order already, except where a server lists all delete markers after all versions.
        entries.sort(key=lambda entry: _newest(entry.version), reverse=True)
        entries.sort(key=lambda entry: entry.key)
        if page.truncated and not page.next_key:
            raise StoreError(f"The versions of {prefix!r} go on, but {self.transport.place} does not say where")
        following = VersionMark(page.next_key[skip:], page.next_version or None) if page.truncated else None
        return VersionPage(entries, following)

    async def versioned(self) -> bool:
        reply = await self.transport.send("GET", "", query(versioning=""))
        if reply.status != 200:
            raise self._failure(reply, "GetBucketVersioning")
        return replies.versioning_status(reply.body) == "Enabled"

    async def presign(self, key: str, *, expires_s: int, method: str = "GET") -> str:
        if not 0 < expires_s <= PRESIGN_MAX_S:
            raise UsageError(f"A link can be valid for 1 to {PRESIGN_MAX_S} seconds, not for {expires_s}")
        return await self.transport.presign_url(method, self.prefix + key, expires_s=expires_s)

    async def now(self) -> datetime:
        moment = datetime.fromtimestamp(await self.transport.time(), UTC)
        self._last_now = steady(self._last_now, moment)  # Each reply improves the estimate, sometimes backwards.
        return self._last_now

    async def close(self) -> None:
        await self.transport.close()

    async def _is_missing(self, key: str) -> bool:
        reply = await self.transport.send("HEAD", self.prefix + key)
        return reply.status == 404

    async def _is_unlisted(self, key: str) -> bool:
        """Whether a refused object is missing. AWS refuses reads of missing objects to users who may not list the whole
        bucket; the part that they may list shows whether it exists."""
        try:
            page = await self.list(key, limit=1)  # In order: if it is there, it is the first.
        except AccessDenied:
            return False
        return not any(entry.key == key for entry in page.entries)

    def _failure(self, reply: Reply, operation: str, key: str = "") -> StoreError:
        return failure(
            reply.status, replies.refusal(reply.body), operation=operation, key=key, place=self.transport.place
        )


def _condition(if_match: str | None, if_absent: bool) -> Mapping[str, str]:
    if if_match is not None:
        return {"If-Match": if_match}
    return {"If-None-Match": "*"} if if_absent else {}


def _newest(version: Version) -> tuple[bool, datetime]:
    return version.latest, version.modified


def _etag(reply: Reply) -> str:
    etag = reply.headers.get("ETag")
    if etag is None:
        raise StoreError("The reply carries no ETag; without one nothing can be replaced safely")
    return etag
