"""Files that hold secrets: written whole or not at all, created by one process only, and private."""

from __future__ import annotations

import os
import secrets
import stat
from collections.abc import Generator
from contextlib import contextmanager, suppress
from pathlib import Path

from qo.errors import ConfigError
from qo.store import private

# The owner may do anything, the group may read, others nothing. In a pod with an fsGroup, Kubernetes lets that group
# read every secret that it mounts, whatever mode was asked for.
_TOO_OPEN = stat.S_IWGRP | stat.S_IROTH | stat.S_IWOTH | stat.S_IXOTH


def open_directory(path: Path) -> Path:
    """Create the directory if there is none. Raises ConfigError if others can read it."""
    try:
        private.make_directory(path)
        _refuse_open(path, "chmod 700")
    except OSError as error:
        raise ConfigError(f"the secrets in {path} cannot be kept: {error.strerror}") from None
    return path


def read_secret(path: Path) -> bytes:
    """Return the content. Raises ConfigError if others can read the file, FileNotFoundError if there is none."""
    _refuse_open(path, "chmod 600", "; where Kubernetes mounts it, set defaultMode: 0400 and an fsGroup")
    try:
        return path.read_bytes()
    except PermissionError:
        raise ConfigError(
            f"{path} cannot be read by this user: make it the owner; where Kubernetes mounts it, set an fsGroup"
        ) from None


def create_secret(path: Path, content: bytes) -> bool:
    """Write a new private file. Return False, and write nothing, if there is one already.

    Of several processes that try at once, exactly one gets True.
    """
    with _draft(path, content) as draft:
        try:
            os.link(draft, path)  # Unlike a rename, this fails when the name is taken.
        except FileExistsError:
            return False
        return True


def replace_secret(path: Path, content: bytes) -> None:
    """Write a private file in place of the one that is there: a reader sees the one or the other."""
    with _draft(path, content) as draft:
        os.replace(draft, path)


@contextmanager
def _draft(path: Path, content: bytes) -> Generator[Path]:
    """Write the content to a private file beside the path, which is gone at the end of the block."""
    draft = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    descriptor = os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
    try:
        with os.fdopen(descriptor, "wb") as file:
            file.write(content)
            file.flush()
            os.fsync(file.fileno())
        yield draft
    finally:
        with suppress(FileNotFoundError):
            draft.unlink()


def load_or_create_token(path: Path, prefix: str) -> str:
    """Return the token in the file; the first caller generates it."""
    open_directory(path.parent)
    with suppress(FileNotFoundError):
        return _token(path)
    create_secret(path, f"{generate_secret(prefix)}\n".encode())
    return _token(path)


def generate_secret(prefix: str) -> str:
    """Generate a secret: 32 random bytes, in characters that need no quoting."""
    return f"{prefix}{secrets.token_urlsafe(32)}"


def _token(path: Path) -> str:
    token = read_secret(path).decode("ascii", "replace").strip()
    if not token:
        raise ConfigError(f"{path} is empty: delete it, and a new token is generated")
    return token


def _refuse_open(path: Path, remedy: str, otherwise: str = "") -> None:
    if path.stat().st_mode & _TOO_OPEN:
        raise ConfigError(f"{path} is open to other users: {remedy} {path}{otherwise}")
