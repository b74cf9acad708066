"""The process behind ``qo scheduler``: fires cron sources and watches for files, on behalf of the dispatcher.

It keeps nothing: what it must not forget, the dispatcher remembers. Two of them say everything once.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from qo.config.settings import Settings
from qo.errors import QoError
from qo.scheduler import cron
from qo.scheduler.emitter import Emitter
from qo.scheduler.files import Watchers

log = logging.getLogger(__name__)

RETRY_S = 5.0  # After the dispatcher did not answer.


async def run_scheduler(emitter: Emitter, stop: asyncio.Event, settings: Settings | None = None) -> None:
    """Until ``stop`` is set. A dispatcher that does not answer is asked again; nothing that is due is lost by that.

    ``settings``: how to reach the buckets that file sources watch.
    """
    async with asyncio.TaskGroup() as group:
        group.create_task(_cron(emitter, stop))
        group.create_task(_files(emitter, stop, settings or Settings()))


async def _cron(emitter: Emitter, stop: asyncio.Event) -> None:
    while not stop.is_set():
        try:
            wait_s = (await cron.look(emitter)).wait_s
        except QoError as error:
            log.warning("cron sources were not looked at: %s", error)
            wait_s = RETRY_S
        await _rest(stop, wait_s)


async def _files(emitter: Emitter, stop: asyncio.Event, settings: Settings) -> None:
    async with Watchers(emitter, settings) as watchers:
        while not stop.is_set():
            try:
                wait_s = (await watchers.look()).wait_s
            except QoError as error:
                log.warning("file sources were not looked at: %s", error)
                wait_s = RETRY_S
            await _rest(stop, wait_s)


async def _rest(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
