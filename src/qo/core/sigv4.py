"""AWS Signature Version 4: what signing and verifying have in common."""

from __future__ import annotations

import hashlib
import hmac

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
UNRESERVED = "-_.~"  # Not encoded in paths and queries.


def signing_key(secret: str, scope: str) -> bytes:
    """Return the signing key of a scope, which is DAY/REGION/s3/aws4_request."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signature(key: bytes, stamp: str, scope: str, canonical: str) -> str:
    """Return the signature of a request in its canonical form."""
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return hmac.digest(key, f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
