"""The progress of an attempt, written to its task: the latest value, at most every so often."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from typing import Any

from qo.core import wire
from qo.errors import QoError

log = logging.getLogger(__name__)


class Progress:
    def __init__(self, write: Callable[[Any], Awaitable[object]], every_s: float) -> None:
        self._write = write
        self._every_s = every_s
        self._latest: Any = None
        self._is_unwritten = False
        self._writing: asyncio.Task[None] | None = None

    def report(self, value: Any) -> None:
        """Have a value written soon. Raises UsageError if JSON cannot hold it."""
        self._latest = wire.payload(value, "the progress").value
        self._is_unwritten = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_latest())

    def close(self) -> Any:
        """Stop writing. Return the latest value, if it is not written yet."""
        if self._writing is not None:
            self._writing.cancel()
        return self._latest if self._is_unwritten else None

    async def _write_latest(self) -> None:
        try:
            while self._is_unwritten:
                self._is_unwritten = False
                await self._write(self._latest)
                await asyncio.sleep(self._every_s)
        except QoError as error:
            log.warning("could not write the progress: %s", error)  # This does not fail the attempt.
        finally:
            self._writing = None
