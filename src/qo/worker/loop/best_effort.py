"""Doing what may fail without harm."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from qo.errors import QoError

log = logging.getLogger(__name__)

T = TypeVar("T")


async def quietly(attempt: Awaitable[T], what: str, *, level: int = logging.WARNING) -> T | None:
    """None if it failed: that is told, and the worker goes on. What should never happen is told in full."""
    try:
        return await attempt
    except QoError as error:
        log.log(level, "%s: %s", what, error)
    except Exception:
        log.exception("%s: this should not happen; the worker goes on", what)
    return None
