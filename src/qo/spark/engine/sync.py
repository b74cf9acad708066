"""Calls of coroutines from code that is not asynchronous."""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

T = TypeVar("T")


def wait(call: Coroutine[Any, Any, T]) -> T:
    """Return the result of a coroutine, run on a new thread: a notebook has an event loop running in its own."""
    with ThreadPoolExecutor(1, thread_name_prefix="qo-wait") as one:
        return one.submit(asyncio.run, call).result()
