"""Asking something that answers asynchronously, from code that cannot wait that way."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def wait(call: Coroutine[Any, Any, T]) -> T:
    """What it comes to. On a thread of its own: notebooks have an event loop running in theirs."""
    with ThreadPoolExecutor(1, thread_name_prefix="qo-wait") as one:
        return one.submit(asyncio.run, call).result()
