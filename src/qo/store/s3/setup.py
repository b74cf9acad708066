"""Making a bucket fit for a queue: what `qo doctor --fix` does before it examines one."""

from __future__ import annotations

import base64
import hashlib
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from qo.core.keys import EPHEMERAL
from qo.errors import StoreError
from qo.store.s3.address import query
from qo.store.s3.failure import failure
from qo.store.s3.replies import NAMESPACE, refusal
from qo.store.s3.transport import Reply, Transport

RULE_ID = "qo keeps no history of "
ALREADY_OURS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
NOT_OFFERED = {"NotImplemented", "MethodNotAllowed"}


async def set_up(transport: Transport, prefix: str, *, versioning: bool) -> list[str]:
    """Create the bucket, switch versioning on, and let old versions of index keys expire, whichever is missing.

    Returns what was done, in words. Rules that somebody else gave the bucket are kept. Raises StoreError if the
    server refuses; a server that has no lifecycle rules at all is forgiven.
    """
    done: list[str] = []
    if await _create(transport):
        done.append("created the bucket")
    if versioning and await _enable_versioning(transport):
        done.append("enabled versioning")
    if versioning and await _add_rules(transport, prefix):
        done.append("set lifecycle rules: old versions of index keys are removed after a day")
    return done


async def _create(transport: Transport) -> bool:
    if (await transport.send("HEAD", "")).status != 404:
        return False  # Whatever else is wrong with it, the next request says.
    region, body = transport.place.region, ""
    if region != "us-east-1":  # Which AWS takes no other name for than none.
        body = (
            f'<CreateBucketConfiguration xmlns="{NAMESPACE}"><LocationConstraint>{escape(region)}'
            "</LocationConstraint></CreateBucketConfiguration>"
        )
    reply = await transport.send("PUT", "", body=body.encode())
    if reply.status != 200 and refusal(reply.body).code not in ALREADY_OURS:
        raise _failure(transport, reply, "CreateBucket")
    return reply.status == 200


async def _enable_versioning(transport: Transport) -> bool:
    reply = await transport.send("GET", "", query(versioning=""))
    if reply.status == 200 and b"<Status>Enabled</Status>" in reply.body:
        return False
    body = f'<VersioningConfiguration xmlns="{NAMESPACE}"><Status>Enabled</Status></VersioningConfiguration>'
    reply = await _put(transport, query(versioning=""), body.encode())
    if reply.status != 200:
        raise _failure(transport, reply, "PutBucketVersioning")
    return True


async def _add_rules(transport: Transport, prefix: str) -> bool:
    """Each index key is written and deleted once per task. In a versioned bucket that leaves two entries behind,
    in the very prefixes that are listed all the time."""
    found = await transport.send("GET", "", query(lifecycle=""))
    code = refusal(found.body).code
    if code in NOT_OFFERED:
        return False
    if found.status != 200 and code != "NoSuchLifecycleConfiguration":
        raise _failure(
            transport, found, "GetLifecycleConfiguration"
        )  # Writing blindly would wipe out others' rules.
    rules = list(ElementTree.fromstring(found.body)) if found.status == 200 else []
    named = {child.text for rule in rules for child in rule if child.tag.rpartition("}")[2] == "ID"}
    missing = [prefix + part for part in EPHEMERAL if RULE_ID + prefix + part not in named]
    if not missing:
        return False
    ElementTree.register_namespace("", NAMESPACE)
    kept = "".join(ElementTree.tostring(rule, encoding="unicode") for rule in rules)
    body = "".join(
        (f'<LifecycleConfiguration xmlns="{NAMESPACE}">', kept, *map(_rule, missing), "</LifecycleConfiguration>")
    )
    reply = await _put(transport, query(lifecycle=""), body.encode())
    if reply.status != 200 and refusal(reply.body).code not in NOT_OFFERED:
        raise _failure(transport, reply, "PutLifecycleConfiguration")
    return reply.status == 200


def _rule(prefix: str) -> str:
    return (
        f"<Rule><ID>{escape(RULE_ID + prefix)}</ID><Filter><Prefix>{escape(prefix)}</Prefix></Filter>"
        "<Status>Enabled</Status>"
        "<Expiration><ExpiredObjectDeleteMarker>true</ExpiredObjectDeleteMarker></Expiration>"
        "<NoncurrentVersionExpiration><NoncurrentDays>1</NoncurrentDays></NoncurrentVersionExpiration></Rule>"
    )


async def _put(transport: Transport, which: str, body: bytes) -> Reply:
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return await transport.send(
        "PUT", "", which, body=body, headers={"Content-MD5": md5, "Content-Type": "application/xml"}
    )


def _failure(transport: Transport, reply: Reply, operation: str) -> StoreError:
    return failure(reply.status, refusal(reply.body), operation=operation, key="", place=transport.place)
