"""The keys that sign task tokens. All dispatchers share them (``qo.dispatcher.secrets``).

A key is a secret named after the time from which it signs, ``key-<seconds>.pem``. The names decide what a key does:

    published    as soon as it exists, so that verifiers know a key before it signs
    signing      the latest key whose time has come
    verifying    until the last token that it may have signed has expired; then ``prune`` deletes it

Time is the database's, passed as an argument, so that it is the same for all dispatchers.
"""

from __future__ import annotations

import base64
import hashlib
import json
import logging
import re
import threading
from collections import OrderedDict
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any, cast

import jwt
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec

from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.secret_store import KEYS, SecretStore
from qo.errors import ConfigError, NotFound, QoError, Unauthenticated

log = logging.getLogger(__name__)

ALGORITHM = "ES256"
OVERLAP = timedelta(
    minutes=5
)  # From the publication of a key to its first signature: verifiers refresh meanwhile.
URGENT_OVERLAP = timedelta(seconds=30)  # The same if a key has leaked: enough for dispatchers, not for others.
TOKEN_TTL_MAX = timedelta(hours=24)
TOKEN_CHARS_MAX = 16_384
SIGNED_MAX = 1000  # Tokens that are remembered: most are presented soon to the dispatcher that signed them.

_FILE = re.compile(r"key-([0-9]{12})\.pem\Z")
_FOREIGN = "the token is not one of this dispatcher's"


class UnknownKey(Unauthenticated):
    """The key may be new: look for new ones, and verify again."""


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
    name: str
    use: str
    signs_from: int  # Unix seconds; 0: from the beginning.
    retires_at: datetime | None  # From then on it verifies nothing; None: no key follows it.
    created_at: datetime | None
    sealed_with: str | None  # The id of the key that encrypts it.


class KeyRing:
    """The signing keys in a store of secrets. Safe to use from many threads; sees what other processes write."""

    def __init__(self, secrets: SecretStore, *, overlap: timedelta = OVERLAP) -> None:
        self.secrets = secrets
        self._overlap = overlap
        self._lock = threading.Lock()
        # The last tokens that were signed here, and by which key.
        self._signed: OrderedDict[str, str] = OrderedDict()
        self._entries: Mapping[str, str] = {}
        self._keys: tuple[Key, ...] = ()

    @classmethod
    def open(cls, secrets: SecretStore | Path | str, *, overlap: timedelta = OVERLAP) -> KeyRing:
        """Open the ring, and create the first key if there is none. A path stands for the files in that directory.

        Raises ConfigError, Refused or CorruptRecord if a key cannot be used.
        """
        store = FileSecrets.open(secrets) if isinstance(secrets, Path | str) else secrets
        if not _names(store):
            store.create(_name(0), _new_pem(), unless=lambda names: any(map(_FILE.match, names)))
        for name in _names(store):
            _load(store, name)
        ring = cls(store, overlap=overlap)
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

        Raises Unauthenticated; UnknownKey if its key is not known here.
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

    def jwks(self, now: datetime | None = None) -> dict[str, Any]:
        """Return the public keys as a JWK set; with ``now``, without those that verify nothing any more."""
        keys = self._current()
        return {"keys": [dict(key.jwk) for key in keys if now is None or not _is_retired(keys, key, now)]}

    def list_keys(self, now: datetime) -> list[KeyListing]:
        """List the keys in the order in which they sign, with the current use of each."""
        signing, keys = self._signing_key(now), self._current()
        stored = {each.name: each for each in self.secrets.list_secrets(KEYS)}
        return [
            KeyListing(
                kid=key.kid,
                name=(name := _name(key.signs_from)),
                use=_use(keys, key, signing, now),
                signs_from=key.signs_from,
                retires_at=_retires_at(keys, key),
                created_at=stored[name].created_at if name in stored else None,
                sealed_with=stored[name].sealed_with if name in stored else None,
            )
            for key in keys
        ]

    def rotate(self, now: datetime, *, urgent: bool = False) -> str:
        """Publish a new key that signs after the overlap; returns its id.

        While a key waits to sign no other is created, so whoever rotates at the same time gets the same key.
        """
        overlap = min(self._overlap, URGENT_OVERLAP) if urgent else self._overlap
        name = _name(int(now.timestamp()) + int(overlap.total_seconds()) + 1)
        waiting = _name(int(now.timestamp()) + 1)

        def is_under_way(names: Collection[str]) -> bool:
            return any(waiting <= each <= name for each in names if _FILE.match(each))

        self.secrets.create(name, _new_pem(), unless=is_under_way)
        return next(key.kid for key in self._current() if waiting <= _name(key.signs_from) <= name)

    def revoke(self, kid: str, now: datetime) -> str | None:
        """Delete a key at once: tokens that it signed are refused. If it signs, a new one does from now on.

        Returns the id of the new key, or None. Raises NotFound.
        """
        found_key = next((key for key in self._current() if key.kid == kid), None)
        if found_key is None:
            raise NotFound(f"there is no signing key {kid!r}: qo key list shows their ids")
        successor: str | None = None
        if found_key is self._signing_key(now):
            seconds = max(int(now.timestamp()), found_key.signs_from + 1)
            self.secrets.create(_name(seconds), _new_pem())
            successor = next(key.kid for key in self._current() if key.signs_from == seconds)
        self.secrets.delete(_name(found_key.signs_from))
        return successor

    def prune(self, now: datetime) -> list[str]:
        """Delete the keys that signed no token which is still valid; returns their ids."""
        keys = self._current()
        retired = [key for key in keys if _is_retired(keys, key, now)]
        for key in retired:
            self.secrets.delete(_name(key.signs_from))
        return [key.kid for key in retired]

    def _signing_key(self, now: datetime) -> Key:
        keys = self._current()
        due = [key for key in keys if key.signs_from <= now.timestamp()]
        return due[-1] if due else keys[0]

    def _verifying_key(self, kid: Any, now: datetime) -> Key:
        keys = self._current()
        for key in keys:
            if key.kid == kid and not _is_retired(keys, key, now):
                return key
        raise UnknownKey("the token was signed with a key that is unknown here, or no longer valid")

    def _current(self) -> tuple[Key, ...]:
        """Return the current keys in the order in which they sign."""
        entries = self.secrets.entries(KEYS)
        with self._lock:
            if entries != self._entries:
                keys = [self._load_or_log(name) for name in sorted(entries) if _FILE.match(name)]
                self._keys, self._entries = tuple(key for key in keys if key is not None), entries
            if not self._keys:
                raise ConfigError(f"there is no signing key in {self.secrets.place}: restart the dispatcher")
            return self._keys

    def _load_or_log(self, name: str) -> Key | None:
        """Load a key; None, and a line in the log, if it cannot be used: the others still can."""
        try:
            return _load(self.secrets, name)
        except QoError as error:
            log.error("a signing key cannot be used, and tokens that it signs are refused: %s", error)
            return None


def _use(keys: Collection[Key], key: Key, signing: Key, now: datetime) -> str:
    if key is signing:
        return "signs"
    if key.signs_from > signing.signs_from:
        return "signs later"
    return "is not needed any more" if _is_retired(keys, key, now) else "verifies"


def _retires_at(keys: Collection[Key], key: Key) -> datetime | None:
    later = [other.signs_from for other in keys if other.signs_from > key.signs_from]
    return datetime.fromtimestamp(min(later), UTC) + TOKEN_TTL_MAX if later else None


def _is_retired(keys: Collection[Key], key: Key, now: datetime) -> bool:
    retires_at = _retires_at(keys, key)
    return retires_at is not None and retires_at <= now


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


def _names(secrets: SecretStore) -> list[str]:
    return [name for name in secrets.entries(KEYS) if _FILE.match(name)]


def _name(signs_from: int) -> str:
    return f"key-{signs_from:012}.pem"


def _load(secrets: SecretStore, name: str) -> Key | None:
    """Load a key; None if it was deleted just now. Raises ConfigError for a secret that is not such a key."""
    match = _FILE.match(name)
    assert match is not None
    if (content := secrets.read(name)) is None:
        return None
    try:
        private = serialization.load_pem_private_key(content, password=None)
    except (ValueError, TypeError):
        raise ConfigError(f"{name} in {secrets.place} holds no private key in PEM form") from None
    if not isinstance(private, ec.EllipticCurvePrivateKey) or not isinstance(private.curve, ec.SECP256R1):
        raise ConfigError(f"{name} in {secrets.place} holds no P-256 key, which {ALGORITHM} needs")
    numbers = private.public_key().public_numbers()
    point = {"crv": "P-256", "kty": "EC", "x": _coordinate(numbers.x), "y": _coordinate(numbers.y)}
    thumbprint = hashlib.sha256(json.dumps(point, sort_keys=True, separators=(",", ":")).encode()).digest()
    kid = _base64(thumbprint)
    return Key(int(match[1]), kid, private, point | {"use": "sig", "alg": ALGORITHM, "kid": kid})


def _new_pem() -> bytes:
    return ec.generate_private_key(ec.SECP256R1()).private_bytes(
        serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
    )


def _coordinate(value: int) -> str:
    return _base64(value.to_bytes(32, "big"))


def _base64(value: bytes) -> str:
    return base64.urlsafe_b64encode(value).rstrip(b"=").decode()
