"""Run several awaitables at once, so that cancellation is never lost."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Iterable
from typing import TypeVar

T = TypeVar("T")


async def gather_cancellable(awaitables: Iterable[Awaitable[T]]) -> list[T]:
    """Return all results in order, or raise the first failure, as ``asyncio.gather`` does.

    If the caller is cancelled at the moment one of them fails, this raises CancelledError, where ``gather`` would raise
    the failure. A loop that survives failures would otherwise miss its cancellation and never end.
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
