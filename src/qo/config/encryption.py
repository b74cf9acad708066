"""The settings of encryption: the table [encryption]."""

from __future__ import annotations

from dataclasses import dataclass

from qo.config import kinds
from qo.config.setting import setting


@dataclass(frozen=True, slots=True, kw_only=True)
class EncryptionSettings:
    keys: str | None = setting(
        None,
        "QO_ENCRYPTION_KEYS",
        kind=kinds.TEXT,
        secret=True,
        help="Keys for inputs, outputs, progress and errors of tasks, as ID:BASE64,ID:BASE64; the first encrypts.",
    )
    key_file: str | None = setting(
        None,
        "QO_ENCRYPTION_KEY_FILE",
        kind=kinds.TEXT,
        help="A file with encryption keys, one ID:BASE64 on each line; the first encrypts.",
    )
    keys_from: str | None = setting(
        None,
        "QO_ENCRYPTION_KEYS_FROM",
        kind=kinds.FUNCTION,
        help="A function that returns the encryption keys, from a key management service, say.",
    )
    required: bool = setting(
        False,
        "QO_ENCRYPTION_REQUIRED",
        kind=kinds.FLAG,
        help="Refuse inputs and results that are not encrypted: somebody without the key has written them.",
    )
