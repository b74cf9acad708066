"""AWS Signature Version 4, as who signs and who verifies have it in common."""

from __future__ import annotations

import hashlib
import hmac

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
UNRESERVED = "-_.~"  # Stand in paths and queries as they are.


def signing_key(secret: str, scope: str) -> bytes:
    """Of a scope, which is DAY/REGION/s3/aws4_request."""
    key = f"AWS4{secret}".encode()
    for part in scope.split("/"):
        key = hmac.digest(key, part.encode(), "sha256")
    return key


def signature(key: bytes, stamp: str, scope: str, canonical: str) -> str:
    """Of a request in its canonical form."""
    digest = hashlib.sha256(canonical.encode()).hexdigest()
    return hmac.digest(key, f"{ALGORITHM}\n{stamp}\n{scope}\n{digest}".encode(), "sha256").hex()
