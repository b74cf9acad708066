"""How far an attempt has come, written to its task: the latest word, at most every so often."""

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
        self._news = False
        self._writing: asyncio.Task[None] | None = None

    def report(self, value: Any) -> None:
        """Returns at once. Raises UsageError for a value that JSON cannot hold."""
        self._latest = wire.payload(value, "the progress").value
        self._news = True
        if self._writing is None:
            self._writing = asyncio.create_task(self._write_on())

    def close(self) -> Any:
        """The attempt has ended. Its last word, if that is not written yet."""
        if self._writing is not None:
            self._writing.cancel()
        return self._latest if self._news else None

    async def _write_on(self) -> None:
        try:
            while self._news:
                self._news = False
                await self._write(self._latest)
                await asyncio.sleep(self._every_s)
        except QoError as error:
            log.warning("could not write the progress: %s", error)  # The attempt itself is judged elsewhere.
        finally:
            self._writing = None
