"""AWS Signature Version 4 for S3. Pure: the time is an argument, and it is the store's.

Only the host and the ``x-amz-`` headers are signed, which is all S3 demands.
"""

from __future__ import annotations

import hashlib
import time
from urllib.parse import quote

from qo.core.sigv4 import ALGORITHM, UNRESERVED, UNSIGNED, signature, signing_key
from qo.store.s3.aws_credentials import Credentials

SIGNED = "host;x-amz-content-sha256;x-amz-date"
SIGNED_WITH_TOKEN = f"{SIGNED};x-amz-security-token"
EMPTY_SHA256 = hashlib.sha256(b"").hexdigest()


class Signer:
    """Signs for one host and region. What repeats from request to request is computed once: the time stamp for
    a second, the key for a day."""

    def __init__(self, host: str, region: str) -> None:
        self._host = host
        self._region = region
        self._second = -1
        self._stamp = ""
        self._key_of = ("", "")
        self._key = b""

    def headers(
        self, credentials: Credentials, method: str, path: str, query: str, body: bytes, *, at: float
    ) -> dict[str, str]:
        """The headers that authenticate a request. Path and query must be encoded and sorted already."""
        stamp = self._timestamp(at)
        payload = hashlib.sha256(body).hexdigest() if body else EMPTY_SHA256
        headers = {"Host": self._host, "x-amz-content-sha256": payload, "x-amz-date": stamp}
        lines = f"host:{self._host}\nx-amz-content-sha256:{payload}\nx-amz-date:{stamp}\n"
        signed = SIGNED
        if credentials.token is not None:
            headers["x-amz-security-token"] = credentials.token
            lines = f"{lines}x-amz-security-token:{credentials.token}\n"
            signed = SIGNED_WITH_TOKEN
        scope = self._scope(stamp)
        canonical = f"{method}\n{path}\n{query}\n{lines}\n{signed}\n{payload}"
        proof = self._signature(credentials, stamp, scope, canonical)
        who = f"{credentials.access_key}/{scope}"
        headers["Authorization"] = f"{ALGORITHM} Credential={who}, SignedHeaders={signed}, Signature={proof}"
        return headers

    def presigned_query(
        self, credentials: Credentials, method: str, path: str, *, expires_s: int, at: float
    ) -> str:
        """The query string that lets whoever has it make this one request until it expires."""
        stamp = self._timestamp(at)
        scope = self._scope(stamp)
        arguments = {
            "X-Amz-Algorithm": ALGORITHM,
            "X-Amz-Credential": f"{credentials.access_key}/{scope}",
            "X-Amz-Date": stamp,
            "X-Amz-Expires": str(expires_s),
            "X-Amz-SignedHeaders": "host",
        }
        if credentials.token is not None:
            arguments["X-Amz-Security-Token"] = credentials.token
        query = "&".join(f"{name}={quote(value, safe=UNRESERVED)}" for name, value in sorted(arguments.items()))
        canonical = f"{method}\n{path}\n{query}\nhost:{self._host}\n\nhost\n{UNSIGNED}"
        return f"{query}&X-Amz-Signature={self._signature(credentials, stamp, scope, canonical)}"

    def _timestamp(self, at: float) -> str:
        second = int(at)
        if second != self._second:
            self._stamp = time.strftime("%Y%m%dT%H%M%SZ", time.gmtime(second))
            self._second = second
        return self._stamp

    def _scope(self, stamp: str) -> str:
        return f"{stamp[:8]}/{self._region}/s3/aws4_request"

    def _signature(self, credentials: Credentials, stamp: str, scope: str, canonical: str) -> str:
        if self._key_of != (credentials.secret_key, scope):
            self._key = signing_key(credentials.secret_key, scope)
            self._key_of = (credentials.secret_key, scope)
        return signature(self._key, stamp, scope, canonical)
