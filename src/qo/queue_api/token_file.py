"""The tokens that ``qo serve`` accepts: a private file that holds their hashes.

A token is shown once, when it is created. The file is read again when it has changed, so that a revoked token is
refused at once, without a restart.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import secrets
from collections.abc import Generator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path

import msgspec

from qo.config.settings import Settings
from qo.core.struct_preload import preload
from qo.core.task import Instant
from qo.errors import ConfigError, NotFound
from qo.queue_api.api_rights import Role
from qo.store import secret_files

PREFIX = "qos_"
LOCAL_TOKEN, TOKENS = "serve.token", "serve-tokens.json"  # In the directory of secrets.


class StoredToken(msgspec.Struct, frozen=True, kw_only=True):
    id: str
    name: str  # Changes are attributed to it.
    role: Role
    sha256: str
    created_at: Instant
    expires_at: Instant | None = None

    def is_expired(self, now: datetime) -> bool:
        return self.expires_at is not None and self.expires_at <= now


preload(StoredToken)


def path_of(settings: Settings) -> Path:
    configured = settings.serve.tokens
    return Path(configured) if configured is not None else Path(settings.dispatcher.secrets_dir) / TOKENS


def local_token(settings: Settings) -> str:
    """Return the operator's token of this machine, for whoever can read its secrets; the first caller creates it."""
    return secret_files.load_or_create_token(Path(settings.dispatcher.secrets_dir) / LOCAL_TOKEN, PREFIX)


def hash_token(token: str) -> str:
    return hashlib.sha256(token.encode("utf-8", "surrogatepass")).hexdigest()


@dataclass(frozen=True, slots=True)
class _Read:
    stamp: tuple[int, int, int]  # Inode, size and time of change of the file.
    by_hash: dict[str, StoredToken]


class TokenFile:
    """The tokens by their hashes. ``find`` takes one ``stat`` while the file is unchanged."""

    def __init__(self, path: Path, local: str | None = None) -> None:
        """``local``: a further token, of an operator, that is in no file of this kind."""
        self._path = path
        self._local = None if local is None else hash_token(local)
        self._read: _Read | None = None

    def find(self, token: str) -> StoredToken | None:
        """Return the token's entry, expired or not; None if it is unknown. Raises ConfigError for a broken file."""
        # Searched by its hash, so that the duration of the search reveals nothing about the secret.
        digest = hash_token(token)
        if self._local is not None and secrets.compare_digest(digest, self._local):
            return StoredToken(
                id="local", name="local-operator", role=Role.OPERATOR, sha256=digest, created_at=_LONG_AGO
            )
        return self._by_hash().get(digest)

    def _by_hash(self) -> dict[str, StoredToken]:
        try:
            stat = self._path.stat()
        except FileNotFoundError:
            return {}
        stamp = (stat.st_ino, stat.st_size, stat.st_mtime_ns)
        if self._read is None or self._read.stamp != stamp:
            self._read = _Read(stamp, {each.sha256: each for each in load(self._path)})
        return self._read.by_hash


_LONG_AGO = datetime.fromisoformat("1970-01-01T00:00:00+00:00")


def load(path: Path) -> list[StoredToken]:
    """Return the tokens of the file; none if there is no file. Raises ConfigError if it cannot be read."""
    try:
        body = secret_files.read_secret(path)
    except FileNotFoundError:
        return []
    try:
        return msgspec.json.decode(body, type=list[StoredToken])
    except (msgspec.MsgspecError, ValueError) as error:
        raise ConfigError(
            f"{path} is no file of tokens: {error}; restore it, or delete it to begin anew"
        ) from None


def create(
    path: Path, name: str, role: Role, *, now: datetime, expires_at: datetime | None
) -> tuple[StoredToken, str]:
    """Add a token. Return its entry, and the token itself, which is not kept."""
    token = secret_files.generate_secret(PREFIX)
    entry = StoredToken(
        id=secrets.token_hex(6),
        name=name,
        role=role,
        sha256=hash_token(token),
        created_at=now,
        expires_at=expires_at,
    )
    with _lock(path):
        _save(path, [*load(path), entry])
    return entry, token


def revoke(path: Path, token_id: str) -> StoredToken:
    """Remove a token. Raises NotFound."""
    with _lock(path):
        tokens = load(path)
        for entry in tokens:
            if entry.id == token_id:
                _save(path, [each for each in tokens if each is not entry])
                return entry
    raise NotFound(f"there is no token {token_id!r}: qo serve token list shows their ids")


@contextmanager
def _lock(path: Path) -> Generator[None]:
    """Let one process at a time change the file: or else one could bring back a token that another is revoking."""
    secret_files.open_directory(path.parent)
    lock = path.with_name(f".{path.name}.lock")
    try:
        descriptor = os.open(lock, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise ConfigError(f"{path} cannot be changed: {lock}: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


def _save(path: Path, tokens: Sequence[StoredToken]) -> None:
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    secret_files.create_secret(draft, msgspec.json.format(msgspec.json.encode(tokens), indent=2) + b"\n")
    os.replace(draft, path)
