"""The text that an encrypted value is stored as: ``sealed:v1:KEY:DATA``.

KEY is the id of the key that it was encrypted with, so that keys can be replaced; DATA is the nonce and the ciphertext
in base64. A large value is kept apart: then the task has the text without its data, and the data is in an object.
"""

from __future__ import annotations

import base64
import binascii
import re
from typing import Any, NamedTuple

PREFIX = "sealed:v1:"
KEY_BYTES = 32
_KEY_ID = re.compile(r"[A-Za-z0-9._-]{1,64}\Z")
_SEALED = re.compile(r"sealed:v1:([A-Za-z0-9._-]{1,64}):([A-Za-z0-9+/=]*)\Z")


class SealedText(NamedTuple):
    key_id: str
    data: bytes  # Empty: the data is kept apart.


def is_sealed(value: Any) -> bool:
    return isinstance(value, str) and value.startswith(PREFIX)


def is_key_id(text: str) -> bool:
    return _KEY_ID.match(text) is not None


def format_sealed(key_id: str, data: bytes) -> str:
    return f"{PREFIX}{key_id}:{base64.b64encode(data).decode()}"


def parse_sealed(value: Any) -> SealedText | None:
    """Return the parts of an encrypted value; None if it is something else."""
    matched = _SEALED.match(value) if isinstance(value, str) else None
    if matched is None:
        return None
    try:
        return SealedText(matched[1], base64.b64decode(matched[2], validate=True))
    except binascii.Error:
        return None


def describe_sealed(value: Any) -> str | None:
    """Return what people see in place of an encrypted value; None if it is not encrypted."""
    parts = parse_sealed(value)
    return None if parts is None else f"encrypted with key {parts.key_id}"
