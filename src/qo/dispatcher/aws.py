"""Blocking clients of AWS and of what speaks like it. botocore is imported when the first one is made."""

from __future__ import annotations

import functools
from collections.abc import Generator
from contextlib import contextmanager
from typing import Any

from qo.errors import ConfigError, NotFound, QoError, Refused, Unavailable

FALLBACK_REGION = "us-east-1"
_BUSY = {"Throttling", "ThrottlingException", "TooManyRequestsException", "SlowDown", "RequestLimitExceeded"}
_ABSENT = {"NoSuchKey", "NoSuchBucket", "ResourceNotFoundException", "NotFound"}


@functools.lru_cache(maxsize=16)
def client(service: str, region: str, endpoint: str | None, attempts: int = 2) -> Any:
    """One client for all: it is safe for threads, and slow to make. Raises ConfigError where botocore is missing."""
    try:
        from botocore.config import Config  # pyright: ignore[reportMissingTypeStubs]
        from botocore.session import Session  # pyright: ignore[reportMissingTypeStubs]
    except ModuleNotFoundError as missing:
        raise ConfigError(
            f"asking AWS needs {missing.name}: install qo with its extra, from a checkout, pip install '.[s3]'"
        ) from None
    style = {"addressing_style": "path" if endpoint else "auto"}
    options = Config(retries={"total_max_attempts": attempts}, connect_timeout=5, read_timeout=20, s3=style)
    session: Any = Session()
    return session.create_client(service, region_name=region, endpoint_url=endpoint, config=options)


@contextmanager
def asking(whom: str) -> Generator[None]:
    """Translate errors of AWS in the block: Unavailable may be tried again; Refused and NotFound may not."""
    from botocore.exceptions import BotoCoreError, ClientError  # pyright: ignore[reportMissingTypeStubs]

    try:
        yield
    except ClientError as error:
        response: Any = error.response
        raise _translate_error(whom, response) from None
    except BotoCoreError as error:
        raise Unavailable(f"{whom} does not answer: {error}") from None


def _translate_error(whom: str, response: dict[str, Any]) -> QoError:
    error, status = response.get("Error", {}), response.get("ResponseMetadata", {}).get("HTTPStatusCode", 500)
    code = error.get("Code", "no code")
    reason = f"{code}: {error.get('Message', 'no message')}"
    if status >= 500 or code in _BUSY:
        return Unavailable(f"{whom} cannot answer now: {reason}")
    if status == 404 or code in _ABSENT:
        return NotFound(f"{whom} knows no such thing: {reason}")
    return Refused(f"{whom} refuses: {reason}")
