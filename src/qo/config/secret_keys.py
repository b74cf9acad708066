"""The settings of secrets: the table [secrets]."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.config import kinds
from qo.config.setting import setting


class SecretPlace(StrEnum):
    """Where dispatchers keep signing keys and the secrets of webhooks."""

    AUTO = "auto"  # The database, if it is PostgreSQL and there is a key for it; else files.
    FILES = "files"
    DATABASE = "database"
    COMMAND = "command"  # A secret manager, through a command of the user's.


@dataclass(frozen=True, slots=True, kw_only=True)
class SecretsSettings:
    place: SecretPlace = setting(  # noqa: RUF009 - an immutable value, made once.
        SecretPlace.AUTO,
        "QO_SECRETS_PLACE",
        kind=kinds.choice(SecretPlace),
        help="Where signing keys and webhook secrets are kept. auto: in the state database if it is PostgreSQL and "
        "there is a key to encrypt them with, else as files in dispatcher.secrets_dir.",
    )
    keys: str | None = setting(
        None,
        "QO_SECRETS_KEYS",
        kind=kinds.TEXT,
        secret=True,
        help="Keys that encrypt the secrets in the state database, as ID:BASE64,ID:BASE64; the first encrypts.",
    )
    key_file: str | None = setting(
        None,
        "QO_SECRETS_KEY_FILE",
        kind=kinds.TEXT,
        help="A file with such keys, one ID:BASE64 on each line; the first encrypts.",
    )
    keys_from: str | None = setting(
        None,
        "QO_SECRETS_KEYS_FROM",
        kind=kinds.FUNCTION,
        help="A function that returns such keys, from a key management service, say.",
    )
    command: str | None = setting(
        None,
        "QO_SECRETS_COMMAND",
        kind=kinds.TEXT,
        help="The command that lists, reads and writes secrets in a secret manager, for place = command.",
    )

    @property
    def has_keys(self) -> bool:
        return any(each is not None for each in (self.keys, self.key_file, self.keys_from))
