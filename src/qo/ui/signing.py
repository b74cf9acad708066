"""Verifies requests that are signed with AWS Signature Version 4, in a header or in a link.

Pure: the time is an argument.
"""

from __future__ import annotations

import hashlib
import hmac
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from urllib.parse import quote_from_bytes, unquote_to_bytes

from qo.core.sigv4 import ALGORITHM, UNRESERVED, UNSIGNED, signature, signing_key

SKEW_MAX = timedelta(minutes=15)
LINK_MAX_S = 7 * 24 * 3600

_HEADER = re.compile(
    rf"{ALGORITHM} +Credential=([^,\s]+), *SignedHeaders=([^,\s]+), *Signature=([0-9a-f]{{64}})\Z", re.ASCII
)
_STAMP = re.compile(r"[0-9]{8}T[0-9]{6}Z\Z", re.ASCII)
_SHA256 = re.compile(r"[0-9a-f]{64}\Z", re.ASCII)


@dataclass(frozen=True, slots=True)
class Key:
    """An access key and its secret, which signer and server share."""

    access_key: str
    secret_key: str = field(repr=False)


@dataclass(frozen=True, slots=True)
class Message:
    """A request as received: path and query not decoded, header names in lower case."""

    method: str
    path: str
    query: str
    headers: Mapping[str, str]
    body: bytes


@dataclass(frozen=True, slots=True)
class Denied:
    """Why a request is refused: code and message of S3."""

    code: str
    message: str


@dataclass(frozen=True, slots=True)
class _Claim:
    """The parts of a signature, not verified yet."""

    credential: str
    signed: tuple[str, ...]
    signature: str
    stamp: str
    payload: str  # The SHA-256 of the body that was signed, or UNSIGNED.
    life: timedelta | None  # How long a link is valid; None for a header.


def verify(message: Message, key: Key, *, now: datetime) -> Denied | None:
    """Return None if the key signed the request recently, otherwise why it is refused."""
    claim = _verify_claim(message, key, now)
    if isinstance(claim, Denied):
        return claim
    if claim.payload != UNSIGNED and not hmac.compare_digest(
        claim.payload, hashlib.sha256(message.body).hexdigest()
    ):
        return Denied("XAmzContentSHA256Mismatch", "The body is not the one that was signed.")
    return None


def verify_head(message: Message, key: Key, *, now: datetime) -> Denied | None:
    """Verify as ``verify`` does, before the body is read: it is not compared with its signed hash."""
    claim = _verify_claim(message, key, now)
    return claim if isinstance(claim, Denied) else None


def _verify_claim(message: Message, key: Key, now: datetime) -> _Claim | Denied:
    claim = _read_claim(message)
    if isinstance(claim, Denied):
        return claim
    signed_at = _parse_stamp(claim.stamp)
    if signed_at is None:
        return Denied("AccessDenied", "The request has no valid x-amz-date.")
    access_key, _, scope = claim.credential.partition("/")
    parts = scope.split("/")
    if len(parts) != 4 or parts[0] != claim.stamp[:8] or parts[2:] != ["s3", "aws4_request"]:
        return Denied(
            "AuthorizationHeaderMalformed", "The scope of the credential is not DAY/REGION/s3/aws4_request."
        )
    if not hmac.compare_digest(access_key.encode(), key.access_key.encode()):
        return Denied(
            "InvalidAccessKeyId", "This access key is not known here. Is the link from an earlier start?"
        )
    if (late := _check_time(claim, signed_at, now)) is not None:
        return late
    canonical = _canonical_request(message, claim)
    expected = signature(signing_key(key.secret_key, scope), claim.stamp, scope, canonical)
    if not hmac.compare_digest(expected, claim.signature):
        return Denied(
            "SignatureDoesNotMatch", "The signature is not the one that this key gives for this request."
        )
    return claim


def canonical_path(path: str) -> str:
    """Decode and encode a path again: browsers leave some characters that a signature needs encoded."""
    return quote_from_bytes(unquote_to_bytes(path), safe="/" + UNRESERVED)


def pairs(query: str) -> list[tuple[bytes, bytes]]:
    """Return the decoded arguments of a query, in order."""
    parts = [each.partition("=") for each in query.replace("+", "%20").split("&") if each]
    return [(unquote_to_bytes(name), unquote_to_bytes(value)) for name, _, value in parts]


def _read_claim(message: Message) -> _Claim | Denied:
    if "authorization" in message.headers:
        return _read_header_claim(message)
    arguments = {
        name.decode(errors="replace"): value.decode(errors="replace") for name, value in pairs(message.query)
    }
    if "X-Amz-Signature" in arguments:
        return _read_link_claim(arguments)
    return Denied("AccessDenied", "The request is not signed.")


def _read_header_claim(message: Message) -> _Claim | Denied:
    headers = message.headers
    match = _HEADER.match(headers["authorization"].strip())
    if match is None:
        return Denied(
            "AuthorizationHeaderMalformed", f"The Authorization header is not a valid {ALGORITHM} signature."
        )
    signed = tuple(match[2].split(";"))
    stamp, payload = headers.get("x-amz-date", ""), headers.get("x-amz-content-sha256", "")
    if payload != UNSIGNED and not _SHA256.match(payload):
        return Denied(
            "InvalidRequest",
            "x-amz-content-sha256 must be the SHA-256 of the body: streaming signatures are not supported.",
        )
    # A signature must cover everything that could change what the request means.
    needed = {name for name in headers if name.startswith("x-amz-")} | {"host"}
    if not needed <= set(signed):
        return Denied("AccessDenied", "There were headers present in the request which were not signed.")
    return _Claim(match[1], signed, match[3], stamp, payload, None)


def _read_link_claim(arguments: Mapping[str, str]) -> _Claim | Denied:
    signed = tuple(arguments.get("X-Amz-SignedHeaders", "").split(";"))
    stamp, life = arguments.get("X-Amz-Date", ""), arguments.get("X-Amz-Expires", "")
    valid = (
        arguments.get("X-Amz-Algorithm") == ALGORITHM
        and "host" in signed
        and re.fullmatch("[0-9]{1,6}", life, re.ASCII)
        and 0 < int(life) <= LINK_MAX_S
        and _SHA256.match(arguments["X-Amz-Signature"])
    )
    if not valid:
        return Denied("AuthorizationQueryParametersError", "Arguments of the signature are missing or wrong.")
    return _Claim(
        credential=arguments.get("X-Amz-Credential", ""),
        signed=signed,
        signature=arguments["X-Amz-Signature"],
        stamp=stamp,
        payload=UNSIGNED,
        life=timedelta(seconds=int(life)),
    )


def _parse_stamp(stamp: str) -> datetime | None:
    if not _STAMP.match(stamp):
        return None
    try:
        return datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
    except ValueError:
        return None  # For example the 31st of February.


def _check_time(claim: _Claim, signed_at: datetime, now: datetime) -> Denied | None:
    if signed_at - now > SKEW_MAX or (claim.life is None and now - signed_at > SKEW_MAX):
        return Denied(
            "RequestTimeTooSkewed", "The difference between the request time and the current time is too large."
        )
    if claim.life is not None and now > signed_at + claim.life:
        return Denied("AccessDenied", "Request has expired")
    return None


def _canonical_request(message: Message, claim: _Claim) -> str:
    arguments = sorted(
        (quote_from_bytes(name, safe=UNRESERVED), quote_from_bytes(value, safe=UNRESERVED))
        for name, value in pairs(message.query)
        if claim.life is None or name != b"X-Amz-Signature"
    )
    headers = "".join(f"{name}:{' '.join(message.headers.get(name, '').split())}\n" for name in claim.signed)
    return "\n".join(
        (
            message.method,
            canonical_path(message.path),
            "&".join(f"{name}={value}" for name, value in arguments),
            headers,
            ";".join(claim.signed),
            claim.payload,
        )
    )
