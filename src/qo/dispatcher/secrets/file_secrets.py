"""Secrets as private files in a directory: for dispatchers of one machine, or that share a volume."""

from __future__ import annotations

import fcntl
import hmac
import os
from collections.abc import Generator, Mapping
from contextlib import contextmanager, suppress
from datetime import UTC, datetime
from pathlib import Path

from qo.dispatcher.secrets.secret_store import SecretListing, Veto, prefix_of
from qo.store.secret_files import create_secret, open_directory, read_secret, replace_secret


class FileSecrets:
    """What others write is seen at once: listing a few names is cheap."""

    def __init__(self, directory: Path) -> None:
        self._directory = directory

    @classmethod
    def open(cls, directory: Path | str) -> FileSecrets:
        """Create the directory if there is none. Raises ConfigError if others can read it."""
        return cls(open_directory(Path(directory)))

    @property
    def place(self) -> str:
        return str(self._directory)

    def entries(self, prefix: str) -> Mapping[str, str]:
        try:
            names = os.listdir(self._directory)
        except FileNotFoundError:
            return {}
        # Keys never change, and the secrets of a webhook are read whenever they are needed.
        return {name: "" for name in sorted(names) if name.startswith(prefix)}

    def read(self, name: str) -> bytes | None:
        try:
            return read_secret(self._directory / name)
        except FileNotFoundError:
            return None

    def create(self, name: str, content: bytes, *, unless: Veto | None = None) -> bool:
        open_directory(self._directory)
        with self._alone():
            if unless is not None and unless(self.entries(prefix_of(name)).keys()):
                return False
            return create_secret(self._directory / name, content)

    def replace(self, name: str, expected: bytes, content: bytes) -> bool:
        with self._alone():
            current = self.read(name)
            if current is None or not hmac.compare_digest(current, expected):
                return False
            replace_secret(self._directory / name, content)
            return True

    def delete(self, name: str) -> None:
        (self._directory / name).unlink(missing_ok=True)

    def list_secrets(self, prefix: str) -> list[SecretListing]:
        return [each for name in self.entries(prefix) if (each := self._listing(name)) is not None]

    def _listing(self, name: str) -> SecretListing | None:
        try:
            changed_at = datetime.fromtimestamp((self._directory / name).stat().st_mtime, UTC)
        except FileNotFoundError:
            return None  # Somebody has deleted it just now.
        return SecretListing(name, changed_at, changed_at)

    def refresh(self, *, at_once: bool = False) -> bool:
        return False

    @contextmanager
    def _alone(self) -> Generator[None]:
        """Keep other processes of this machine from writing meanwhile."""
        descriptor = os.open(self._directory, os.O_RDONLY)
        try:
            with suppress(OSError):  # Some network file systems lock no directory; a name is still created once.
                fcntl.flock(descriptor, fcntl.LOCK_EX)
            yield
        finally:
            os.close(descriptor)
