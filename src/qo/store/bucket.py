"""Setting up an S3 bucket: once in its life, by ``qo doctor --fix`` or a deployment script."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from qo.errors import StoreError
from qo.store.s3 import S3Store
from qo.store.s3.address import query
from qo.store.s3.failure import failure
from qo.store.s3.replies import NAMESPACE, refusal
from qo.store.s3.transport import Reply

RULE_NAMES_BEGIN = "qo:"
REGION_NOT_NAMED = "us-east-1"  # The one region that a bucket may not be asked for by name.


@dataclass(frozen=True, slots=True)
class Expiry:
    """Versions under the prefix are removed for good so many days after they were replaced or deleted. Delete
    markers that hide nothing any more go with them."""

    prefix: str
    noncurrent_days: int


async def create_bucket(store: S3Store) -> None:
    """Create the store's bucket. That it is ours already is no error."""
    region = store.transport.place.region
    body = b""
    if region != REGION_NOT_NAMED:
        constraint = f"<LocationConstraint>{escape(region)}</LocationConstraint>"
        body = f'<CreateBucketConfiguration xmlns="{NAMESPACE}">{constraint}</CreateBucketConfiguration>'.encode()
    reply = await store.transport.send("PUT", "", body=body)
    if reply.status == 409:
        code = refusal(reply.body).code
        if code == "BucketAlreadyOwnedByYou":
            return
        if code == "BucketAlreadyExists":
            raise StoreError(f"The name of {store.transport.place} is taken: choose another for S3_BUCKET")
    _check(store, reply, "CreateBucket")


async def enable_versioning(store: S3Store) -> None:
    body = f'<VersioningConfiguration xmlns="{NAMESPACE}"><Status>Enabled</Status></VersioningConfiguration>'
    await _configure(store, "versioning", body, "PutBucketVersioning")


async def put_lifecycle(store: S3Store, expiries: Sequence[Expiry]) -> None:
    """Put these rules in force, in place of earlier ones for the same prefixes. All other rules stay."""
    names = {_rule_name(store, expiry) for expiry in expiries}
    kept = [rule for rule in await _rules(store) if rule.findtext("ID") not in names]
    rules = [*kept, *(_rule(store, expiry) for expiry in expiries)]
    inner = "".join(ElementTree.tostring(rule, encoding="unicode") for rule in rules)
    body = f'<LifecycleConfiguration xmlns="{NAMESPACE}">{inner}</LifecycleConfiguration>'
    await _configure(store, "lifecycle", body, "PutLifecycleConfiguration")


async def lifecycle(store: S3Store) -> Sequence[Expiry]:
    """The rules that ``put_lifecycle`` put in force for this store."""
    found: list[Expiry] = []
    for rule in await _rules(store):
        days = rule.findtext("NoncurrentVersionExpiration/NoncurrentDays")
        prefix = rule.findtext("Filter/Prefix", "").removeprefix(store.prefix)
        if days is None:
            continue
        expiry = Expiry(prefix, int(days))
        if rule.findtext("ID") == _rule_name(store, expiry):
            found.append(expiry)
    return found


async def _rules(store: S3Store) -> list[ElementTree.Element]:
    """All lifecycle rules of the bucket, without namespaces."""
    reply = await store.transport.send("GET", "", query(lifecycle=""))
    if reply.status == 404 and refusal(reply.body).code == "NoSuchLifecycleConfiguration":
        return []
    _check(store, reply, "GetLifecycleConfiguration")
    root = ElementTree.fromstring(reply.body)
    for element in root.iter():
        element.tag = element.tag.rpartition("}")[2]
    return root.findall("Rule")


def _rule_name(store: S3Store, expiry: Expiry) -> str:
    return f"{RULE_NAMES_BEGIN}{store.prefix}{expiry.prefix}"


def _rule(store: S3Store, expiry: Expiry) -> ElementTree.Element:
    name, prefix = escape(_rule_name(store, expiry)), escape(store.prefix + expiry.prefix)
    days = f"<NoncurrentDays>{expiry.noncurrent_days}</NoncurrentDays>"
    return ElementTree.fromstring(
        f"<Rule><ID>{name}</ID><Filter><Prefix>{prefix}</Prefix></Filter><Status>Enabled</Status>"
        "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"
        f"<NoncurrentVersionExpiration>{days}</NoncurrentVersionExpiration></Rule>"
    )


async def _configure(store: S3Store, aspect: str, text: str, operation: str) -> None:
    body = text.encode()
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    reply = await store.transport.send("PUT", "", query(**{aspect: ""}), body=body, headers={"Content-MD5": md5})
    _check(store, reply, operation)


def _check(store: S3Store, reply: Reply, operation: str) -> None:
    if reply.status not in (200, 204):
        place = store.transport.place
        raise failure(reply.status, refusal(reply.body), operation=operation, key="", place=place)
