"""Encryption of what users put into tasks, and of the dispatcher's secrets, with keys of theirs: AES-256-GCM.

Each value is bound to its task and its field, so that nobody who may write the bucket can move one elsewhere. Each task
has a key of its own, derived from the key of the ring: so random nonces stay safe for any number of tasks. A secret of
the dispatcher takes the place of a task.
"""

from __future__ import annotations

import base64
import binascii
import functools
import hashlib
import hmac
import importlib
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, NamedTuple, cast

from qo.config.encryption import EncryptionSettings
from qo.config.secret_keys import SecretsSettings
from qo.core.sealed import KEY_BYTES, SealedText, format_sealed, is_key_id
from qo.errors import ConfigError, CorruptRecord, Refused
from qo.store import secret_files

NONCE_BYTES = 12
_MISSING = "encryption needs the package cryptography: from a checkout, pip install '.[crypto]'"


class Purpose(NamedTuple):
    """What the keys of a ring are for. The same key never decrypts what it encrypted for another purpose."""

    context: bytes
    table: str  # Of the settings that name the keys.
    advice: str = ""  # Where else a missing key may be found.


PAYLOADS = Purpose(b"qo task payload v1", "encryption")
SECRETS = Purpose(
    b"qo dispatcher secret v1",
    "secrets",
    "; a database that was restored from a backup needs the key that was in use then",
)


class KeyRing:
    """Keys by id. The first encrypts; all decrypt."""

    def __init__(self, keys: Mapping[str, bytes]) -> None:
        if not keys:
            raise ConfigError("there is no encryption key: give at least one, as ID:BASE64")
        for key_id, key in keys.items():
            if not is_key_id(key_id):
                raise ConfigError(f"{key_id!r} cannot name a key: use 1 to 64 letters, digits, '.', '_' and '-'")
            if len(key) != KEY_BYTES:
                raise ConfigError(
                    f"encryption key {key_id} has {len(key)} bytes instead of {KEY_BYTES}: qo key generate"
                )
        self._keys = dict(keys)
        self.current_id = next(iter(keys))

    def find(self, key_id: str) -> bytes | None:
        return self._keys.get(key_id)

    @property
    def ids(self) -> list[str]:
        return list(self._keys)

    def __contains__(self, key_id: str) -> bool:
        return key_id in self._keys


def parse_keys(text: str) -> KeyRing:
    """Read keys as ID:BASE64, separated by commas or lines; lines that begin with # are comments."""
    keys: dict[str, bytes] = {}
    lines = [line for line in text.splitlines() if not line.lstrip().startswith("#")]
    for number, entry in enumerate(each.strip() for line in lines for each in line.split(",") if each.strip()):
        key_id, colon, encoded = entry.partition(":")
        try:
            key = base64.b64decode(encoded, validate=True)
        except binascii.Error:
            key = b""
        if not colon or not key:
            # The text itself is a secret: it is not shown.
            raise ConfigError(
                f"encryption key number {number + 1} is not ID:BASE64: make one with qo key generate"
            )
        if key_id in keys:
            raise ConfigError(f"there are two encryption keys {key_id}: give each an id of its own")
        keys[key_id] = key
    return KeyRing(keys)


class Sealer:
    """Encrypts and decrypts values of tasks. May be used from any thread."""

    def __init__(self, ring: KeyRing, *, required: bool = False, purpose: Purpose = PAYLOADS) -> None:
        """``required``: refuse inputs that are not encrypted."""
        try:
            from cryptography.hazmat.primitives.ciphers.aead import AESGCM
        except ImportError:
            raise ConfigError(_MISSING) from None
        self._aesgcm: Callable[[bytes], Any] = AESGCM
        self._ring = ring
        self._purpose = purpose
        self.required = required

    @property
    def current_id(self) -> str:
        """The id of the key that encrypts."""
        return self._ring.current_id

    def seal(self, body: bytes, owner: str, field: str) -> str:
        """Encrypt a body. ``owner`` is the id of its task, ``field`` what it is there."""
        key_id = self._ring.current_id
        nonce = os.urandom(NONCE_BYTES)
        sealed = self._aesgcm(self._derive(key_id, owner)).encrypt(nonce, body, _binding(owner, field))
        return format_sealed(key_id, nonce + sealed)

    def open(self, sealed: SealedText, owner: str, field: str) -> bytes:
        """Decrypt. Raises Refused if its key is not in the ring, CorruptRecord if it was changed or moved here."""
        from cryptography.exceptions import InvalidTag

        if sealed.key_id not in self._ring:
            raise Refused(missing_key(sealed.key_id, owner, field, self._purpose))
        nonce, body = sealed.data[:NONCE_BYTES], sealed.data[NONCE_BYTES:]
        try:
            return self._aesgcm(self._derive(sealed.key_id, owner)).decrypt(nonce, body, _binding(owner, field))
        except (InvalidTag, ValueError):
            raise CorruptRecord(
                f"the {field} of {owner} does not decrypt with key {sealed.key_id}: somebody has changed it, or put it "
                "there from elsewhere, or the key is another one of the same id"
            ) from None

    def has_key(self, key_id: str) -> bool:
        return key_id in self._ring

    def fingerprint(self, body: bytes, owner: str) -> str:
        """Return a hash of a body that only a holder of the key can compute: the plain one would confirm a guess."""
        return hmac.new(self._derive(self._ring.current_id, owner), body, hashlib.sha256).hexdigest()

    def pseudonyms(self, text: str, purpose: str) -> list[str]:
        """Return a name for the text by each key of the ring, the current one first. Without a key, a name cannot be
        compared with a guess of the text."""
        return [
            hmac.new(self._derive(key_id, purpose), text.encode(), hashlib.sha256).hexdigest()
            for key_id in self._ring.ids
        ]

    def _derive(self, key_id: str, owner: str) -> bytes:
        """Return the key of one task, or of another purpose (HKDF with one block, RFC 5869)."""
        key = self._ring.find(key_id)
        assert key is not None, "the caller has checked that it is there"
        extracted = hmac.new(self._purpose.context, key, hashlib.sha256).digest()
        return hmac.new(extracted, owner.encode() + b"\x01", hashlib.sha256).digest()


def missing_key(key_id: str, owner: str, field: str, purpose: Purpose = PAYLOADS) -> str:
    table = purpose.table
    return (
        f"the {field} of {owner} is encrypted with key {key_id}, which this process does not have: add it to "
        f"{table}.keys, {table}.key_file or {table}.keys_from{purpose.advice}"
    )


def _binding(owner: str, field: str) -> bytes:
    return f"{owner}/{field}".encode()


def open_sealer(settings: EncryptionSettings) -> Sealer | None:
    """Return the sealer of payloads that the settings describe; None: nothing is encrypted.

    Raises ConfigError if a key cannot be read.
    """
    ring = load_keys(settings, PAYLOADS)
    if ring is None and settings.required:
        raise ConfigError("encryption.required needs keys: set encryption.key_file, encryption.keys or keys_from")
    return None if ring is None else Sealer(ring, required=settings.required)


def load_keys(settings: EncryptionSettings | SecretsSettings, purpose: Purpose) -> KeyRing | None:
    """Return the keys that the settings name; None if they name none. Raises ConfigError if they cannot be read."""
    if settings.keys is not None:
        return parse_keys(settings.keys)
    if settings.key_file is not None:
        return _read_file(Path(settings.key_file).expanduser())
    if settings.keys_from is not None:
        return _call_source(settings.keys_from, purpose.table)
    return None


def _read_file(path: Path) -> KeyRing:
    try:
        return parse_keys(secret_files.read_secret(path).decode("utf-8"))
    except (OSError, UnicodeDecodeError) as error:
        raise ConfigError(f"the encryption keys in {path} cannot be read: {error}") from error


@functools.cache  # A worker opens its queue twice, and the service may charge for each request.
def _call_source(target: str, table: str) -> KeyRing:
    """Get the keys from a function of the user's, which may ask a key management service."""
    module_name, _, name = target.partition(":")
    try:
        keys: Any = getattr(importlib.import_module(module_name), name)()
    except Exception as error:
        raise ConfigError(f"{table}.keys_from = {target!r} failed: {type(error).__name__}: {error}") from error
    if isinstance(keys, str):
        return parse_keys(keys)
    if isinstance(keys, Mapping):
        return KeyRing(cast("Mapping[str, bytes]", keys))
    raise ConfigError(
        f"{target} must return the keys, as text or as a mapping of bytes by id, not {type(keys).__name__}"
    )
