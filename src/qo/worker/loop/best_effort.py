"""Doing what may fail without harm."""

from __future__ import annotations

import logging
from collections.abc import Awaitable
from typing import TypeVar

from qo.errors import QoError

log = logging.getLogger(__name__)

T = TypeVar("T")


async def best_effort(action: Awaitable[T], what: str, *, level: int = logging.WARNING) -> T | None:
    """Await an action whose failure is logged, and not raised. Returns None if it failed."""
    try:
        return await action
    except QoError as error:
        log.log(level, "%s: %s", what, error)
    except Exception:
        log.exception("%s: this should not happen; the worker goes on", what)
    return None
