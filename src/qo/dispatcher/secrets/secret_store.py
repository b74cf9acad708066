"""The port for secrets that dispatchers share: small texts by name.

    key-SECONDS.pem     a key that signs tokens from that time on; written once, never changed
    webhook-NAME        the secrets of a webhook, one on each line

Adapters: ``file_secrets`` for one machine, ``database_secrets`` for dispatchers that share a database and no directory,
``command_secrets`` for a secret manager.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Protocol

KEYS, WEBHOOKS = "key-", "webhook-"
PREFIXES = (KEYS, WEBHOOKS)

Veto = Callable[[Collection[str]], bool]


@dataclass(frozen=True, slots=True)
class SecretListing:
    """A secret as people see it: never its content."""

    name: str
    created_at: datetime | None = None
    changed_at: datetime | None = None
    sealed_with: str | None = None  # The id of the key that encrypts it; None: it is not encrypted by qo.


class SecretStore(Protocol):
    """Safe to use from many threads. ``entries`` and ``read`` ask nobody: they tell what was last seen."""

    @property
    def place(self) -> str:
        """Where the secrets are, for people."""
        ...

    def entries(self, prefix: str) -> Mapping[str, str]:
        """Return the names with a prefix, and of each the revision, which is another one if it was written again."""
        ...

    def read(self, name: str) -> bytes | None:
        """Return the content; None if there is no such secret.

        Raises ConfigError, Refused or CorruptRecord for a secret that cannot be used: one that others can read, or
        that is encrypted with a key which is not there.
        """
        ...

    def create(self, name: str, content: bytes, *, unless: Veto | None = None) -> bool:
        """Create a secret; return False if there is one, or if ``unless`` is true of the names with its prefix.

        Of several processes that try at once, exactly one gets True.
        """
        ...

    def replace(self, name: str, expected: bytes, content: bytes) -> bool:
        """Write a secret again; return False if its content is not the expected one any more."""
        ...

    def delete(self, name: str) -> None:
        """Delete a secret, if it is there."""
        ...

    def list_secrets(self, prefix: str) -> list[SecretListing]:
        """List the secrets with a prefix, in order of their names."""
        ...

    def refresh(self, *, at_once: bool = False) -> bool:
        """See what other processes have written; return whether that is new.

        It asks seldom, whoever calls: so a sender of wrong signatures cannot make it ask often. ``at_once``: ask even
        so. Blocking; not to be called within a transaction, since it may open another. Raises Unavailable.
        """
        ...


def prefix_of(name: str) -> str:
    return next((each for each in PREFIXES if name.startswith(each)), name)
