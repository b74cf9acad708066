"""The process behind ``qo scheduler``: polls cron, file and http sources on behalf of the dispatcher.

It keeps no state of its own: the dispatcher remembers what has been emitted. Several schedulers may run at once; the
dispatcher recognises an event that a second one emits again.
"""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress

from qo.config.settings import Settings
from qo.core.pipeline.dag import SourceKind
from qo.errors import QoError
from qo.pipeline.sources import SOURCES, load
from qo.scheduler.emitter import Emitter
from qo.scheduler.poller import Poller

log = logging.getLogger(__name__)

RETRY_S = 5.0  # After the dispatcher did not answer.


async def run_scheduler(emitter: Emitter, stop: asyncio.Event, settings: Settings | None = None) -> None:
    """Poll every kind of source until ``stop`` is set. While the dispatcher does not answer, nothing due is lost.

    ``settings``: how to reach the buckets that file sources watch.
    """
    async with asyncio.TaskGroup() as group:
        for kind, spec in SOURCES.items():
            if spec.poller is not None:
                poller: Poller = load(spec.poller)(kind, emitter, settings or Settings())
                group.create_task(_poll_until(stop, kind, poller))


async def _poll_until(stop: asyncio.Event, kind: SourceKind, poller: Poller) -> None:
    async with poller:
        while not stop.is_set():
            try:
                wait_s = (await poller.poll()).wait_s
            except QoError as error:
                log.warning("%s sources could not be polled, trying again in %g s: %s", kind, RETRY_S, error)
                wait_s = RETRY_S
            await _sleep(stop, wait_s)


async def _sleep(stop: asyncio.Event, seconds: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(seconds):
            await stop.wait()
