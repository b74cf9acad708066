"""The keys that sign task tokens: PEM files in a directory that all dispatchers share.

A file is named after the time from which its key signs, ``key-<seconds>.pem``. The names decide what a key does:

    published    as soon as the file exists, so that verifiers know a key before it signs
    signing      the latest key whose time has come
    verifying    until the last token that it may have signed has expired; then ``prune`` deletes it

Time is the database's, passed as an argument, so that it is the same for all dispatchers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import os
import re
import threading
from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from qo.errors import ConfigError, Unauthenticated
from qo.store.secret_files import create_secret, open_directory, read_secret

ALGORITHM = "ES256"
OVERLAP = timedelta(
    minutes=5
)  # From the publication of a key to its first signature: verifiers refresh meanwhile.
TOKEN_TTL_MAX = timedelta(hours=24)
TOKEN_CHARS_MAX = 16_384
SIGNED_MAX = 1000  # Tokens that are remembered: most are presented soon to the dispatcher that signed them.

_FILE = re.compile(r"key-([0-9]{12})\.pem\Z")
_FOREIGN = "the token is not one of this dispatcher's"


@dataclass(frozen=True, slots=True)
class Key:
    signs_from: int  # Unix seconds; 0: from the beginning.
    kid: str  # The thumbprint of the public key (RFC 7638).
    private: ec.EllipticCurvePrivateKey = field(repr=False)
    jwk: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class KeyListing:
    """A key as people see it."""

    kid: str
    file: str
    signs_from: int  # Unix seconds; 0: from the beginning.
    use: str


class KeyRing:
    """The keys of a directory. Safe to use from many threads; sees what other processes add and delete."""

    def __init__(self, directory: Path, *, overlap: timedelta = OVERLAP) -> None:
        self._directory = directory
        self._overlap = overlap
        self._lock = threading.Lock()
        # The last tokens that were signed here, and by which key.
        self._signed: OrderedDict[str, str] = OrderedDict()
        self._names: frozenset[str] = frozenset()
        self._keys: tuple[Key, ...] = ()

    @classmethod
    def open(cls, directory: Path | str, *, overlap: timedelta = OVERLAP) -> KeyRing:
        """Open the ring of the directory, and create the first key if there is none. Raises ConfigError."""
        path = open_directory(Path(directory))
        if not _names(path):
            create_secret(path / _name(0), _pem(ec.generate_private_key(ec.SECP256R1())))
        ring = cls(path, overlap=overlap)
        ring._current()
        return ring

    def sign(self, claims: Mapping[str, Any], now: datetime) -> str:
        key = self._signing_key(now)
        token = jwt.encode(dict(claims), key.private, algorithm=ALGORITHM, headers={"kid": key.kid})
        with self._lock:
            self._signed[token] = key.kid
            if len(self._signed) > SIGNED_MAX:
                self._signed.popitem(last=False)
        return token

    def verify(self, token: str, now: datetime) -> dict[str, Any]:
        """Return the claims of a token that a key of this ring signed, unchecked.

        Raises Unauthenticated.
        """
        if len(token) > TOKEN_CHARS_MAX:
            raise Unauthenticated(_FOREIGN)
        if (kid := self._signed.get(token)) is not None:
            # We signed exactly this text: its signature need not be verified.
            self._verifying_key(kid, now)
            return _decode(token.split(".")[1])
        try:
            header = _header(token)
            if header.get("alg") != ALGORITHM or "crit" in header:
                raise Unauthenticated(_FOREIGN)
            key = self._verifying_key(header.get("kid"), now)
            # Dates are the caller's to check: by the database's clock, not by this machine's.
            options: Any = {f"verify_{each}": False for each in ("exp", "nbf", "iat", "aud", "iss", "sub", "jti")}
            return jwt.decode(token, key.private.public_key(), algorithms=[ALGORITHM], options=options)
        except (jwt.PyJWTError, ValueError, TypeError, RecursionError):
            raise Unauthenticated(_FOREIGN) from None

    def jwks(self) -> dict[str, Any]:
        """Return the public keys as a JWK set."""
        return {"keys": [dict(key.jwk) for key in self._current()]}

    def list_keys(self, now: datetime) -> list[KeyListing]:
        """List the keys in the order in which they sign, with the current use of each."""
        signing = self._signing_key(now)
        return [
            KeyListing(key.kid, _name(key.signs_from), key.signs_from, self._use(key, signing, now))
            for key in self._current()
        ]

    def _use(self, key: Key, signing: Key, now: datetime) -> str:
        if key is signing:
            return "signs"
        if key.signs_from > signing.signs_from:
            return "signs later"
        return "is not needed any more" if self._is_expired(key, now) else "verifies"

    def rotate(self, now: datetime) -> str:
        """Publish a new key that signs after the overlap; returns its id.

        Rotating twice in the same second creates one key.
        """
        name = _name(int(now.timestamp()) + int(self._overlap.total_seconds()) + 1)
        create_secret(self._directory / name, _pem(ec.generate_private_key(ec.SECP256R1())))
        return next(key.kid for key in self._current() if _name(key.signs_from) == name)

    def prune(self, now: datetime) -> list[str]:
        """Delete the keys that signed no token which is still valid; returns their ids."""
        expired = [key for key in self._current() if self._is_expired(key, now)]
        for key in expired:
            (self._directory / _name(key.signs_from)).unlink(missing_ok=True)
        return [key.kid for key in expired]

    def _signing_key(self, now: datetime) -> Key:
        keys = self._current()
        due = [key for key in keys if key.signs_from <= now.timestamp()]
        return due[-1] if due else keys[0]

    def _verifying_key(self, kid: Any, now: datetime) -> Key:
        for key in self._current():
            if key.kid == kid and not self._is_expired(key, now):
                return key
        raise Unauthenticated("the token was signed with a key that is unknown here, or no longer valid")

    def _is_expired(self, key: Key, now: datetime) -> bool:
        later = [other.signs_from for other in self._keys if other.signs_from > key.signs_from]
        return bool(later) and min(later) + TOKEN_TTL_MAX.total_seconds() <= now.timestamp()

    def _current(self) -> tuple[Key, ...]:
        """Return the current keys in the order in which they sign. Listing a few names is cheap; files never change."""
        names = _names(self._directory)
        with self._lock:
            if names != self._names:
                self._keys = tuple(
                    key for name in sorted(names) if (key := _load(self._directory / name)) is not None
                )
                self._names = names
            if not self._keys:
                raise ConfigError(f"there is no signing key in {self._directory}: restart the dispatcher")
            return self._keys


def _header(token: str) -> dict[str, Any]:
    """Return the unverified header of a token, only to find the key; the signature is verified with it afterwards.
    Raises ValueError."""
    return _decode(token.partition(".")[0])


def _decode(part: str) -> dict[str, Any]:
    """Decode a part of a token. Raises ValueError."""
    content = json.loads(base64.urlsafe_b64decode(part + "=" * (-len(part) % 4)))
    if not isinstance(content, dict):
        raise ValueError("a part of a token is an object")
    return cast("dict[str, Any]", content)


def _names(directory: Path) -> frozenset[str]:
    return frozenset(name for name in os.listdir(directory) if _FILE.match(name))


def _name(signs_from: int) -> str:
    return f"key-{signs_from:012}.pem"


def _load(path: Path) -> Key | None:
    """Load a key; None if the file was deleted just now. Raises ConfigError for a file that is not such a key."""
    match = _FILE.match(path.name)
    assert match is not None
    try:
        private = serialization.load_pem_private_key(read_secret(path), password=None)
    except FileNotFoundError:
        return None
    except (ValueError, TypeError):
        raise ConfigError(f"{path} holds no private key in PEM form") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise ConfigError(f"{path} holds no P-256 key, which {ALGORITHM} needs")
    numbers = private.public_key().public_numbers()
    point = {"crv": "P-256", "kty": "EC", "x": _coordinate(numbers.x), "y": _coordinate(numbers.y)}
    thumbprint = hashlib.sha256(json.dumps(point, sort_keys=True, separators=(",", ":")).encode()).digest()
    kid = _base64(thumbprint)
    return Key(int(match[1]), kid, private, point | {"use": "sig", "alg": ALGORITHM, "kid": kid})


def _pem(key: ec.EllipticCurvePrivateKey) -> bytes:
    return key.private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _coordinate(value: int) -> str:
    return _base64(value.to_bytes(32, "big"))


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
