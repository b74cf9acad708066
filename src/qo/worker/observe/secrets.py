"""The secrets that this process holds, so that the text of no error tells them.

A handler that fails may print its environment, or the arguments of a connection. Readers see the error, and some of
what is in there would let them do what only a worker may.
"""

from __future__ import annotations

import os

from qo.config.settings import SETTINGS
from qo.core.redaction import redact

HELD_MAX = 1000

_AWS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Not those of Spark: they are many words, most of which are no secrets.
_VARIABLES = (
    *_AWS,
    *(name for row in SETTINGS if row.secret and not row.key.startswith("spark.") for name in row.env),
)
# A set that keeps its order. Processes have few secrets; jobs read theirs again and again.
_held: dict[str, None] = {}


def hold(secret: str) -> str:
    """Remember that this is one; the secret itself."""
    _held.pop(secret, None)
    _held[secret] = None
    if len(_held) > HELD_MAX:
        _held.pop(next(iter(_held)), None)
    return secret


def without_secrets(text: str) -> str:
    set_here = [value for name in _VARIABLES if (value := os.environ.get(name))]
    parts = [part for value in set_here for part in value.split(",")]  # Two tokens, while they change.
    return redact(text, [*set_here, *parts, *list(_held)])
