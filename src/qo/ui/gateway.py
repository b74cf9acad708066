"""Serves a store over the S3 protocol, as far as the dashboard needs it.

A page in a bucket talks to S3; through the gateway it talks to any other store in the same way. Requests must be signed
with the gateway's key, which is generated at its start and ends with the process.

    GET /bucket?list-type=2    GET /bucket?versions    GET /bucket?versioning    POST /bucket?delete
    GET, HEAD, PUT, DELETE /bucket/key

Any other request is answered with NotImplemented.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Awaitable, Callable, Mapping
from datetime import datetime
from email.utils import format_datetime
from urllib.parse import unquote_to_bytes

from qo.errors import (
    AccessDenied,
    ConcurrentWrite,
    NoSuchBucket,
    NotFound,
    PreconditionFailed,
    StoreError,
    Unavailable,
    UsageError,
)
from qo.http_server.messages import Head, Reply, Request
from qo.store.port import DELETE_LIMIT_MAX, LIST_LIMIT_MAX, Deletion, ObjectStore, VersionMark, VersionPage
from qo.ui import documents
from qo.ui.s3_listing import decode_token, encode_token, list_with_delimiter
from qo.ui.signing import Denied, Key, Message, pairs, verify, verify_head

KEY_BYTES_MAX = 1024  # The limit of S3.

# The status and code that S3 uses for each error of the store.
_ERRORS: tuple[tuple[type[Exception], int, str], ...] = (
    (PreconditionFailed, 412, "PreconditionFailed"),
    (ConcurrentWrite, 409, "ConditionalRequestConflict"),
    (Unavailable, 503, "ServiceUnavailable"),
    (AccessDenied, 403, "AccessDenied"),
    (NoSuchBucket, 404, "NoSuchBucket"),
    (NotFound, 404, "NoSuchKey"),
    (UsageError, 400, "InvalidRequest"),
    (StoreError, 500, "InternalError"),
)
_STATUS = {
    "InvalidRequest": 400,
    "AuthorizationHeaderMalformed": 400,
    "AuthorizationQueryParametersError": 400,
    "XAmzContentSHA256Mismatch": 400,
}
_PAGE_ARGUMENTS = {"prefix", "max-keys", "encoding-type"}
_LIST_ARGUMENTS = _PAGE_ARGUMENTS | {"list-type", "delimiter", "start-after", "continuation-token", "fetch-owner"}
_VERSIONS_ARGUMENTS = _PAGE_ARGUMENTS | {"versions", "key-marker", "version-id-marker"}
# A browser that follows a link to an object must never run it as a page.
_INERT = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", "Content-Security-Policy": "sandbox"}
_XML = {"Content-Type": "application/xml", **_INERT}


class _S3Error(Exception):
    """An error reply of S3: status, code and message."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status, self.code, self.message = status, code, message


class Gateway:
    """Answers requests whose path begins with ``root``."""

    def __init__(
        self, store: ObjectStore, key: Key, *, bucket: str = "qo", root: str = "/s3", read_only: bool = False
    ) -> None:
        self._store = store
        self._key = key
        self._bucket = bucket
        self._root = root
        self._read_only = read_only

    async def admit(self, head: Head) -> Reply | None:
        """Return the refusal of a request that is not signed with the key, from its head alone; None if it is."""

        async def admit(now: datetime) -> Reply | None:
            message = Message(head.method, head.path, head.query, head.headers, b"")
            if (denied := verify_head(message, self._key, now=now)) is not None:
                raise _denial(denied)
            return None

        return await self._with_errors(head, admit)

    async def answer(self, request: Request) -> Reply:
        async def answer(now: datetime) -> Reply:
            message = Message(request.method, request.path, request.query, request.headers, request.body)
            if (denied := verify(message, self._key, now=now)) is not None:
                raise _denial(denied)
            return await self._route(request)

        reply = await self._with_errors(request, answer)
        assert reply is not None
        return reply

    async def _with_errors(
        self, head: Head, answer: Callable[[datetime], Awaitable[Reply | None]]
    ) -> Reply | None:
        """Call ``answer`` with the store's time, and turn exceptions into error replies of S3."""
        dated: dict[str, str] = {}
        try:
            now = await self._store.now()
            dated = {"Date": format_datetime(now, usegmt=True)}  # The page takes the store's time from it.
            reply = await answer(now)
        except _S3Error as error:
            reply = self._error(head, error.status, error.code, error.message)
        except tuple(kind for kind, _, _ in _ERRORS) as error:
            status, code = next((status, code) for kind, status, code in _ERRORS if isinstance(error, kind))
            reply = self._error(head, status, code, str(error))
        return None if reply is None else Reply(reply.status, reply.body, {**dated, **reply.headers})

    async def _route(self, request: Request) -> Reply:
        path = unquote_to_bytes(request.path.removeprefix(self._root)).removeprefix(b"/")
        try:
            bucket, _, key = path.decode().partition("/")
            query = {name.decode(): value.decode() for name, value in pairs(request.query)}
        except UnicodeDecodeError:
            raise _S3Error(400, "InvalidURI", "A key must be UTF-8, percent-encoded.") from None
        # Neither a link's signature nor the operation's name, which some clients add, is an argument.
        query = {name: value for name, value in query.items() if not name.startswith("X-Amz-") and name != "x-id"}
        if bucket != self._bucket:
            raise _S3Error(404, "NoSuchBucket", f"There is only the bucket {self._bucket!r} here.")
        if self._read_only and request.method not in ("GET", "HEAD"):
            raise _S3Error(403, "AccessDenied", "This dashboard was started with --read-only.")
        if not key:
            return await self._answer_for_bucket(request, query)
        if len(key.encode()) > KEY_BYTES_MAX:
            raise _S3Error(400, "KeyTooLongError", "Your key is too long.")
        return await self._answer_for_object(request, key, query)

    async def _answer_for_bucket(self, request: Request, query: Mapping[str, str]) -> Reply:
        if request.method == "POST" and set(query) == {"delete"}:
            return await self._delete_many(request)
        if request.method == "HEAD" and not query:
            return Reply(200, headers=_INERT)
        if request.method == "GET" and query.get("list-type") == "2" and set(query) <= _LIST_ARGUMENTS:
            return await self._list(query)
        if request.method == "GET" and "versions" in query and set(query) <= _VERSIONS_ARGUMENTS:
            return await self._versions(query)
        if request.method == "GET" and set(query) == {"versioning"}:
            return Reply(200, documents.versioning_xml(enabled=await self._store.versioned()), _XML)
        raise _not_implemented(request)

    async def _answer_for_object(self, request: Request, key: str, query: Mapping[str, str]) -> Reply:
        version = query.get("versionId")
        if set(query) <= {"versionId"}:
            if request.method in ("GET", "HEAD"):
                return await self._get(request, key, version)
            if request.method == "DELETE":
                return await self._delete(request, key, version)
            if request.method == "PUT" and version is None and "x-amz-copy-source" not in request.headers:
                return await self._put(request, key)
        raise _not_implemented(request)

    async def _get(self, request: Request, key: str, version: str | None) -> Reply:
        stored = await self._store.get(key, version=version)
        if stored is None:
            if version is None:
                raise _S3Error(404, "NoSuchKey", "The specified key does not exist.")
            if any(each.version == version for each in await self._store.versions(key)):
                raise _S3Error(405, "MethodNotAllowed", "That version is a delete marker.")
            raise _S3Error(404, "NoSuchVersion", "The specified version does not exist.")
        if (if_match := request.headers.get("if-match")) is not None and if_match not in ("*", stored.etag):
            raise _S3Error(412, "PreconditionFailed", "The object has another ETag.")
        headers = {"ETag": stored.etag, **_version_header(stored.version), **_INERT}
        if request.headers.get("if-none-match") in ("*", stored.etag):
            return Reply(304, headers=headers)
        return Reply(200, stored.body, {"Content-Type": "binary/octet-stream", **headers})

    async def _put(self, request: Request, key: str) -> Reply:
        headers = request.headers
        if_match, if_none_match = headers.get("if-match"), headers.get("if-none-match")
        if if_none_match not in (None, "*") or (if_match is not None and if_none_match is not None):
            raise _S3Error(501, "NotImplemented", "A condition is If-Match: ETAG or If-None-Match: *.")
        if "aws-chunked" in headers.get("content-encoding", ""):
            raise _S3Error(501, "NotImplemented", "Bodies in signed chunks (aws-chunked) are not supported.")
        if (md5 := headers.get("content-md5")) is not None:
            _check_md5(request.body, md5)
        try:
            result = await self._store.put(
                key, request.body, if_match=_quote_etag(if_match), if_absent=if_none_match is not None
            )
        except PreconditionFailed:
            if if_match is not None and await self._store.get(key) is None:
                raise _S3Error(404, "NoSuchKey", "The specified key does not exist.") from None
            raise
        return Reply(200, headers={"ETag": result.etag, **_version_header(result.version), **_INERT})

    async def _delete(self, request: Request, key: str, version: str | None) -> Reply:
        if version is not None:
            await self._store.delete_many([Deletion(key, version)])
        else:
            await self._store.delete(key, if_match=_quote_etag(request.headers.get("if-match")))
        return Reply(204, headers=_INERT)

    async def _delete_many(self, request: Request) -> Reply:
        try:
            deletions, quiet = documents.read_deletion(request.body)
        except ValueError as error:
            raise _S3Error(400, "MalformedXML", f"The body is not a valid list of objects: {error}") from None
        if not 0 < len(deletions) <= DELETE_LIMIT_MAX:
            raise _S3Error(
                400, "MalformedXML", f"Between 1 and {DELETE_LIMIT_MAX} objects can be deleted at once."
            )
        await self._store.delete_many(deletions)
        return Reply(200, documents.deletion_xml(deletions, quiet=quiet), _XML)

    async def _list(self, query: Mapping[str, str]) -> Reply:
        prefix, delimiter, token = (
            query.get("prefix", ""),
            query.get("delimiter", ""),
            query.get("continuation-token", ""),
        )
        limit = _max_keys(query)
        start_after = query.get("start-after", "")
        try:
            after = decode_token(token) if token else start_after
        except ValueError as error:
            raise _S3Error(400, "InvalidArgument", str(error)) from None
        page = await list_with_delimiter(self._store, prefix, delimiter=delimiter, after=after, limit=limit)
        listed = documents.ListingPage(
            bucket=self._bucket,
            prefix=prefix,
            delimiter=delimiter,
            start_after=start_after,
            token=token,
            max_keys=limit,
            url=query.get("encoding-type") == "url",
            entries=page.entries,
            common=page.common,
            next_token=encode_token(page.after),
        )
        return Reply(200, documents.listing_xml(listed), _XML)

    async def _versions(self, query: Mapping[str, str]) -> Reply:
        prefix, limit = query.get("prefix", ""), _max_keys(query)
        key_marker, version_marker = query.get("key-marker", ""), query.get("version-id-marker", "")
        if version_marker and not key_marker:
            raise _S3Error(400, "InvalidArgument", "A version-id marker needs a key marker.")
        after = VersionMark(key_marker, version_marker or None) if key_marker else None
        page = VersionPage([], None)
        if limit > 0:
            page = await self._store.list_versions(prefix, after=after, limit=limit)
        listed = documents.VersionsPage(
            bucket=self._bucket,
            prefix=prefix,
            key_marker=key_marker,
            version_marker=version_marker,
            max_keys=limit,
            url=query.get("encoding-type") == "url",
            versions=page.entries,
            next_key="" if page.next is None else page.next.key,
            next_version="" if page.next is None else page.next.version or "",
        )
        return Reply(200, documents.versions_xml(listed), _XML)

    def _error(self, head: Head, status: int, code: str, message: str) -> Reply:
        return Reply(status, documents.error_xml(code, message, head.path), _XML)


def _denial(denied: Denied) -> _S3Error:
    return _S3Error(_STATUS.get(denied.code, 403), denied.code, denied.message)


def _not_implemented(request: Request) -> _S3Error:
    return _S3Error(501, "NotImplemented", f"{request.method} with these arguments is not supported here.")


def _max_keys(query: Mapping[str, str]) -> int:
    text = query.get("max-keys", str(LIST_LIMIT_MAX))
    if not text.isascii() or not text.isdecimal() or len(text) > 9:
        raise _S3Error(400, "InvalidArgument", "max-keys must be a whole number, 0 or more.")
    return min(int(text), LIST_LIMIT_MAX)


def _version_header(version: str | None) -> dict[str, str]:
    return {} if version is None else {"x-amz-version-id": version}


def _quote_etag(etag: str | None) -> str | None:
    """Add the quotes that a store expects: S3 also accepts an ETag without them."""
    return etag if etag is None or etag.startswith('"') else f'"{etag}"'


def _check_md5(body: bytes, expected: str) -> None:
    if base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode() != expected:
        raise _S3Error(400, "BadDigest", "The Content-MD5 you specified did not match what we received.")
