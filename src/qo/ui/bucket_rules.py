"""The rules of a bucket that a page needs: a CORS rule for its requests, and a policy to read its files.

Pure: current rules in, new rules out. Rules of others are kept.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, cast
from xml.etree import ElementTree
from xml.sax.saxutils import escape

from qo.store.s3.replies import NAMESPACE

METHODS = ("GET", "HEAD", "PUT", "DELETE")
REQUEST_HEADERS = (
    "authorization",
    "content-type",
    "if-match",
    "if-none-match",
    "x-amz-content-sha256",
    "x-amz-date",
    "x-amz-security-token",
)
RESPONSE_HEADERS = ("ETag", "x-amz-version-id", "Date")  # Date: the store's time.
KEEP_S = 3000


def add_cors_rule(current: bytes | None, name: str, origins: Sequence[str]) -> bytes | None:
    """Return the current CORS rules with a rule of this name added or widened; None if no change is needed."""
    rules = list(ElementTree.fromstring(current)) if current is not None else []
    ours = next((each for each in rules if name in _texts(each, "ID")), None)
    if ours is not None and set(_texts(ours, "AllowedOrigin")) >= set(origins):
        return None
    if ours is not None:
        origins = sorted({*_texts(ours, "AllowedOrigin"), *origins})
        rules.remove(ours)
    ElementTree.register_namespace("", NAMESPACE)
    others = "".join(ElementTree.tostring(each, encoding="unicode") for each in rules)
    return f'<CORSConfiguration xmlns="{NAMESPACE}">{others}{_rule(name, origins)}</CORSConfiguration>'.encode()


def add_read_statement(current: bytes | None, bucket: str, prefix: str, *, partition: str = "aws") -> bytes | None:
    """Return the bucket's policy with a public read statement for the prefix added; None if it has one."""
    policy: dict[str, Any] = (
        json.loads(current) if current is not None else {"Version": "2012-10-17", "Statement": []}
    )
    statements = policy.get("Statement", [])
    listed: list[dict[str, Any]] = (
        cast("list[dict[str, Any]]", statements) if isinstance(statements, list) else [statements]
    )
    resource = f"arn:{partition}:s3:::{bucket}/{prefix}*"
    public = {"Effect": "Allow", "Principal": "*", "Action": "s3:GetObject", "Resource": resource}
    if any(_matches(each, public) for each in listed):
        return None
    sid = "QoDashboard" + "".join(each for each in prefix.title() if each.isalnum())
    return json.dumps(policy | {"Statement": [*listed, {"Sid": sid, **public}]}, separators=(",", ":")).encode()


def _matches(statement: dict[str, Any], expected: dict[str, str]) -> bool:
    return "Condition" not in statement and all(_plain(statement.get(key)) == expected[key] for key in expected)


def _plain(value: Any) -> Any:
    """Undo how servers rewrite a statement: texts become lists, the principal ``*`` becomes ``{"AWS": "*"}``."""
    if isinstance(value, dict):
        value = cast("dict[str, Any]", value).get("AWS")
    if isinstance(value, list):
        listed = cast("list[Any]", value)
        return listed[0] if len(listed) == 1 else None
    return value


def _rule(name: str, origins: Sequence[str]) -> str:
    parts = [f"<ID>{escape(name)}</ID>"]
    for element, values in (
        ("AllowedOrigin", origins),
        ("AllowedMethod", METHODS),
        ("AllowedHeader", REQUEST_HEADERS),
        ("ExposeHeader", RESPONSE_HEADERS),
    ):
        parts += [f"<{element}>{escape(each)}</{element}>" for each in values]
    return f"<CORSRule>{''.join(parts)}<MaxAgeSeconds>{KEEP_S}</MaxAgeSeconds></CORSRule>"


def _texts(rule: ElementTree.Element, name: str) -> list[str]:
    return [child.text or "" for child in rule if child.tag.rpartition("}")[2] == name]
