"""Doing several things at once, and all the same ending when told to."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_cancellable(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """What each of them answers, in order; or the first failure, as ``asyncio.gather``.

    But of two things that happen at once, being cancelled counts for more than a failure of one of them. ``gather``
    tells of the failure alone: a loop that outlives failures would then go on, and who waits for its end with it.
    """
    task = asyncio.current_task()
    assert task is not None
    before = task.cancelling()
    try:
        return await asyncio.gather(*awaitables)
    except Exception as error:
        if task.cancelling() > before:
            raise asyncio.CancelledError from error
        raise
