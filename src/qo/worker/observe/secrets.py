"""The secrets that this process knows, so that the text of no error contains them.

A handler that fails may print its environment, or the arguments of a connection. Whoever reads the error could use such
a secret to act as a worker.
"""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, Sequence

from qo.config.settings import SETTINGS
from qo.core.redaction import redact

SECRETS_MAX = 1000

_KEYS = ("QO_ENCRYPTION_KEYS", "QO_SECRETS_KEYS")
_AWS = ("AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN")
# Without those of Spark: they are long texts, most of whose words are not secret.
_VARIABLES = (
    *_AWS,
    *(name for row in SETTINGS if row.secret and not row.key.startswith("spark.") for name in row.env),
)
# Variables of others whose names say what they hold. Places of secrets are not secret.
_SECRET_NAME = re.compile(r"PASSWORD|PASSWD|SECRET|TOKEN|API_?KEY|PRIVATE_?KEY|CREDENTIAL", re.IGNORECASE)
_PLACE_NAME = re.compile(r"_(FILE|PATH|DIR|URL|URI|HOST|NAME|ID|ARN|TTL|EXPIRES?|EXPIRATION)\Z", re.IGNORECASE)
# A set that keeps its order. Processes have few secrets; jobs read theirs again and again.
_secrets: dict[str, None] = {}


def register_secret(secret: str) -> str:
    """Redact this secret from now on. Return it."""
    _secrets.pop(secret, None)
    _secrets[secret] = None
    if len(_secrets) > SECRETS_MAX:
        _secrets.pop(next(iter(_secrets)), None)
    return secret


def forget_secret(secret: str) -> None:
    """Make room for others: this one is of no use to anybody any more."""
    _secrets.pop(secret, None)


def redact_secrets(text: str) -> str:
    return redact(text, _known_secrets())


def redact_lines(lines: Sequence[str]) -> list[str]:
    """Redact lines without line ends. A secret of several lines, such as a private key, is hidden line by line."""
    secrets = [part for secret in _known_secrets() for part in secret.splitlines()]
    return redact("\n".join(lines), secrets).split("\n") if lines else []


def _known_secrets() -> list[str]:
    values = [value for name in _VARIABLES if (value := os.environ.get(name))]
    parts = [part for value in values for part in value.split(",")]  # Two tokens, while they are being changed.
    # Without their ids.
    keys = [each.partition(":")[2] for name in _KEYS for each in os.environ.get(name, "").split(",")]
    return [*values, *parts, *keys, *_named_secrets(os.environ), *list(_secrets)]


def _named_secrets(environ: Mapping[str, str]) -> list[str]:
    return [
        value
        for name, value in environ.items()
        if not name.startswith("QO_") and _SECRET_NAME.search(name) and not _PLACE_NAME.search(name)
    ]
