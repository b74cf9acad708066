"""Prepare a bucket for a queue: what `qo doctor --fix` does before it runs the checks."""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Sequence
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from qo.core.keys import EPHEMERAL
from qo.core.lifecycle_rules import UPLOAD_DAYS, UPLOADS_ID, hint_rule, rule_xml, upload_rule
from qo.errors import StoreError
from qo.store.s3.address import query
from qo.store.s3.failure import failure
from qo.store.s3.replies import NAMESPACE, refusal
from qo.store.s3.transport import Reply, Transport

UPLOADS_DONE = f"set a lifecycle rule: uploads that nobody finishes are removed after {UPLOAD_DAYS} days"
ALREADY_OURS = {"BucketAlreadyOwnedByYou", "BucketAlreadyExists"}
NOT_OFFERED = {"NotImplemented", "MethodNotAllowed"}


async def set_up(transport: Transport, prefix: str, *, versioning: bool) -> list[str]:
    """Create the bucket, enable versioning, and let old versions of index keys and unfinished uploads expire, as far as
    that is missing.

    Return what was done, in words. Other lifecycle rules of the bucket are kept. Raises StoreError if the server
    refuses; a server without lifecycle rules is accepted.
    """
    actions: list[str] = []
    if await _create(transport):
        actions.append("created the bucket")
    if versioning and await _enable_versioning(transport):
        actions.append("enabled versioning")
    if versioning and await _add_rules(transport, prefix):
        actions.append("set lifecycle rules: old versions of index keys are removed after a day")
    if await add_upload_rule(transport, prefix):
        actions.append(UPLOADS_DONE)
    return actions


async def _create(transport: Transport) -> bool:
    if (await transport.send("HEAD", "")).status != 404:
        return False  # The next request reports whatever else is wrong with it.
    region, body = transport.place.region, ""
    if region != "us-east-1":  # AWS accepts no location constraint for this one.
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
    reply = await _put_configuration(transport, query(versioning=""), body.encode())
    if reply.status != 200:
        raise _failure(transport, reply, "PutBucketVersioning")
    return True


async def add_upload_rule(transport: Transport, prefix: str) -> bool:
    """Have the server abort unfinished multipart uploads below a prefix. A worker that is killed while it writes a
    large file leaves parts behind, which cost money and appear in no listing."""
    rules = await _rules(transport)
    if rules is None or any(_aborts_uploads(rule, prefix) for rule in rules):
        return False
    return await _put_rules(transport, rules, [rule_xml(upload_rule(prefix))])


async def aborts_uploads(transport: Transport, prefix: str) -> bool | None:
    """Whether a rule aborts unfinished uploads. None: the server has no such rules, or does not show them."""
    try:
        rules = await _rules(transport)
    except StoreError:
        return None
    return None if rules is None else any(_aborts_uploads(rule, prefix) for rule in rules)


async def _add_rules(transport: Transport, prefix: str) -> bool:
    """Add rules that expire old versions of index keys. Each is written and deleted once per task, which in a versioned
    bucket leaves two entries behind, in the prefixes that are listed all the time."""
    rules = await _rules(transport)
    if rules is None:
        return False
    rule_ids = {_text(rule, "ID") for rule in rules}
    hint_rules = (hint_rule(prefix + part) for part in EPHEMERAL)
    missing = [rule for rule in hint_rules if rule["ID"] not in rule_ids]
    return bool(missing) and await _put_rules(transport, rules, [rule_xml(rule) for rule in missing])


async def _rules(transport: Transport) -> list[ElementTree.Element] | None:
    """Return the lifecycle rules of the bucket. None: the server does not support any."""
    reply = await transport.send("GET", "", query(lifecycle=""))
    code = refusal(reply.body).code
    if code in NOT_OFFERED:
        return None
    if reply.status != 200 and code != "NoSuchLifecycleConfiguration":
        raise _failure(
            transport, reply, "GetLifecycleConfiguration"
        )  # Writing blindly would wipe out others' rules.
    return list(ElementTree.fromstring(reply.body)) if reply.status == 200 else []


async def _put_rules(
    transport: Transport, present_rules: Sequence[ElementTree.Element], new: Sequence[str]
) -> bool:
    ElementTree.register_namespace("", NAMESPACE)
    present = (ElementTree.tostring(rule, encoding="unicode") for rule in present_rules)
    body = "".join((f'<LifecycleConfiguration xmlns="{NAMESPACE}">', *present, *new, "</LifecycleConfiguration>"))
    reply = await _put_configuration(transport, query(lifecycle=""), body.encode())
    if reply.status != 200 and refusal(reply.body).code not in NOT_OFFERED:
        raise _failure(transport, reply, "PutLifecycleConfiguration")
    return reply.status == 200


def _aborts_uploads(rule: ElementTree.Element, prefix: str) -> bool:
    """Whether a rule, ours or another's, aborts unfinished uploads of all keys below the prefix."""
    parts = {_tag(each) for each in rule}
    if "AbortIncompleteMultipartUpload" not in parts or _text(rule, "Status") != "Enabled":
        return _text(rule, "ID") == UPLOADS_ID + prefix  # Some servers keep a rule and do not show all of it.
    conditions = {_tag(each) for each in rule.iter()} & {"Tag", "ObjectSizeGreaterThan", "ObjectSizeLessThan"}
    return not conditions and prefix.startswith(_text(rule, "Prefix") or "")


def _text(rule: ElementTree.Element, name: str) -> str | None:
    return next((each.text for each in rule.iter() if _tag(each) == name), None)


def _tag(element: ElementTree.Element) -> str:
    return element.tag.rpartition("}")[2]


async def _put_configuration(transport: Transport, which: str, body: bytes) -> Reply:
    md5 = base64.b64encode(hashlib.md5(body, usedforsecurity=False).digest()).decode()
    return await transport.send(
        "PUT", "", which, body=body, headers={"Content-MD5": md5, "Content-Type": "application/xml"}
    )


def _failure(transport: Transport, reply: Reply, operation: str) -> StoreError:
    return failure(reply.status, refusal(reply.body), operation=operation, key="", place=transport.place)
