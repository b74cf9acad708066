"""Deploys the page into the bucket that it shows: its files, its configuration, and the rules that it needs.

The index is uploaded last, after the files it names, so that a browser gets either the old page or the new one.
"""

from __future__ import annotations

import asyncio
import base64
import hashlib
import json
import urllib.error
import urllib.request
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from urllib.parse import urlsplit

from qo.config.settings import Settings
from qo.errors import StoreError, UsageError
from qo.store.s3 import S3Store
from qo.store.s3.address import DEFAULT_PORTS, encode_path, query
from qo.store.s3.aws_credentials import find_region
from qo.store.s3.failure import failure
from qo.store.s3.replies import refusal
from qo.store.s3.transport import Reply, Transport
from qo.ui import bucket_rules
from qo.ui.assets import ASK_FIRST, CONFIG, INDEX, Asset, Assets

FOLDER = "ui/"
NOT_OFFERED = {"NotImplemented", "MethodNotAllowed"}
LOOK_S = 10.0


@dataclass(frozen=True, slots=True)
class Place:
    """Where the page is, and where it finds the bucket. Its requests are always path-style."""

    endpoint: str
    bucket: str
    prefix: str
    region: str
    page: str  # The address of the page.

    @property
    def origin(self) -> str:
        parts = urlsplit(self.page)
        host = parts.hostname or ""
        port = "" if parts.port in (None, DEFAULT_PORTS.get(parts.scheme)) else f":{parts.port}"
        return f"{parts.scheme}://{f'[{host}]' if ':' in host else host}{port}"


@dataclass(frozen=True, slots=True)
class Deployed:
    link: str
    steps: Sequence[str]  # What was done, as sentences.
    todos: Sequence[str]  # What the operator still has to do, as sentences.


def place_of(settings: Settings) -> Place:
    """Return where the page of the configured bucket is. Raises UsageError if the store is no bucket.

    On AWS the page's URL has the bucket in its host name: path-style URLs of all buckets share one origin per region.
    """
    location = settings.location.as_bucket()
    if location is None:
        raise UsageError(f"{settings.store} is not a bucket: `qo ui` serves the dashboard of this store")
    region = find_region(settings.s3.region)
    key = encode_path(f"{location.prefix}{FOLDER}{INDEX}")
    if settings.s3.endpoint is not None:
        endpoint = settings.s3.endpoint.rstrip("/")
        page = f"{endpoint}/{location.bucket}/{key}"
    else:
        host = f"s3.{region}.{'amazonaws.com.cn' if region.startswith('cn-') else 'amazonaws.com'}"
        endpoint = f"https://{host}"
        page = f"https://{location.bucket}.{host}/{key}"
        if "." in location.bucket:  # A name with a dot would not match the certificate.
            page = f"{endpoint}/{location.bucket}/{key}"
    return Place(endpoint, location.bucket, location.prefix, region, page)


def configuration(place: Place, dispatcher: str | None, worker_health_threshold_s: float | None = None) -> bytes:
    """Return config.json, which the page reads first. The page lists the queues itself, as some may be added later."""
    from qo import __version__

    fields = {
        "endpoint": place.endpoint,
        "bucket": place.bucket,
        "prefix": place.prefix,
        "region": place.region,
        "dispatcher": dispatcher,
        "version": __version__,
        "worker_health_threshold_s": worker_health_threshold_s,
    }
    return json.dumps(fields, indent=2).encode() + b"\n"


async def deploy(
    settings: Settings,
    *,
    dispatcher: str | None = None,
    origins: Sequence[str] = (),
    public: bool = False,
    assets: Assets | None = None,
) -> Deployed:
    """Upload the page and set the bucket's rules.

    ``origins``: more origins that serve the page; ``public``: let everybody read its files, which contain no secrets.
    Raises NotFound if the page was not built, StoreError if the bucket refuses the files.
    """
    place = place_of(settings)
    files = (assets or Assets()).load()
    store = await S3Store.open(place.bucket, endpoint=settings.s3.endpoint, region=place.region)
    try:
        config = configuration(place, dispatcher, settings.monitor.worker_health_threshold_s)
        steps, todos = [await _upload(store.transport, place, files, config)], list[str]()
        cors_text = await _set_cors_rule(store.transport, place, origins)
        (steps if cors_text.startswith("set") else todos).append(cors_text)
        if public:
            steps.append(await _make_public(store.transport, place))
    finally:
        await store.close()
    if not await asyncio.to_thread(_is_readable, place.page):
        todos.append(
            f"the page's files are private, so a browser cannot open {place.page}: use --public to let everybody read "
            f"{place.prefix}{FOLDER}, which contains no secrets, or serve the files from elsewhere"
        )
    if dispatcher is not None:
        todos.append(
            f"the dispatcher must allow requests from {place.origin}: set QO_DISPATCHER_CORS_ORIGINS to it there"
        )
    return Deployed(place.page, [each for each in steps if each], [each for each in todos if each])


async def _upload(transport: Transport, place: Place, files: Mapping[str, Asset], config: bytes) -> str:
    root = place.prefix + FOLDER
    for name in sorted(set(files) - {INDEX, CONFIG}):
        await _put(transport, root + name, files[name])
    await _put(transport, root + CONFIG, Asset(config, "application/json", ASK_FIRST, None))
    await _put(transport, root + INDEX, files[INDEX])
    return f"uploaded {len(files)} files to s3://{place.bucket}/{root}"


async def _put(transport: Transport, key: str, asset: Asset) -> None:
    headers = {"Content-Type": asset.content_type, "Cache-Control": asset.cache}
    if asset.packed is not None:
        headers["Content-Encoding"] = "gzip"  # A bucket does not compress; every browser decompresses.
    body = asset.body if asset.packed is None else asset.packed
    reply = await transport.send("PUT", key, body=body, headers=headers)
    if reply.status != 200:
        raise _failure(transport, reply, "PutObject", key)


async def _set_cors_rule(transport: Transport, place: Place, origins: Sequence[str]) -> str:
    """Add the page's CORS rule to the bucket's.

    Returns a sentence: "set …" if the rule was added, what to do if the bucket refused it; empty if it was there.
    """
    allowed = [place.origin, *origins]
    pages = " and ".join(allowed)

    def advise(status: int, code: str) -> str:
        return (
            f"the bucket must allow requests from {pages} (CORS), but refuses rules from qo ({status} {code}); "
            "set them with your server's own tools, see docs/guides/dashboard.md"
        )

    current = await transport.send("GET", "", query(cors=""))
    code = refusal(current.body).code if current.status != 200 else ""
    if code and code != "NoSuchCORSConfiguration":
        return advise(current.status, code)
    name = f"qo dashboard {place.prefix}".strip()
    body = bucket_rules.add_cors_rule(None if code else current.body, name, allowed)
    if body is None:
        return ""
    reply = await _configure(transport, query(cors=""), body, "application/xml")
    if reply.status != 200:
        return advise(reply.status, refusal(reply.body).code)
    return f"set a CORS rule for {pages}, beside those of others"


async def _make_public(transport: Transport, place: Place) -> str:
    current = await transport.send("GET", "", query(policy=""))
    if current.status != 200 and refusal(current.body).code != "NoSuchBucketPolicy":
        raise _failure(transport, current, "GetBucketPolicy")  # Writing now would delete the statements of others.
    policy = current.body if current.status == 200 else None
    partition = "aws-cn" if place.region.startswith("cn-") and "amazonaws" in place.endpoint else "aws"
    body = bucket_rules.add_read_statement(policy, place.bucket, place.prefix + FOLDER, partition=partition)
    if body is None:
        return ""
    reply = await _configure(transport, query(policy=""), body, "application/json")
    if reply.status not in (200, 204):
        raise _failure(transport, reply, "PutBucketPolicy")
    return f"let everybody read the files below {place.prefix}{FOLDER}"


async def _configure(transport: Transport, which: str, body: bytes, kind: str) -> Reply:
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return await transport.send("PUT", "", which, body=body, headers={"Content-MD5": md5, "Content-Type": kind})


def _is_readable(page: str) -> bool:
    """Return whether the page can be read without a signature, as a browser opens it."""
    try:
        with urllib.request.urlopen(page, timeout=LOOK_S) as answer:
            return bool(answer.status == 200)
    except (urllib.error.URLError, OSError):
        return False


def _failure(transport: Transport, reply: Reply, operation: str, key: str = "") -> StoreError:
    return failure(reply.status, refusal(reply.body), operation=operation, key=key, place=transport.place)
