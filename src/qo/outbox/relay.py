"""The relay: moves tasks from the outbox of an application to the queue, each exactly once.

A row is claimed, submitted under its own key, and deleted. A relay may be killed between any two of these: the claim
lapses, the row is submitted again, and the key makes that the same task. Any number of relays may work on one outbox.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from dataclasses import dataclass, replace
from datetime import datetime
from pathlib import Path
from typing import Any, TypeVar

from qo.core import wire
from qo.errors import ConfigError, IdempotencyConflict, QoError, StoreError, UsageError
from qo.outbox.outbox_rows import Outbox, Row
from qo.outbox.outbox_table import KEY_SCOPE, TABLE
from qo.outbox.postgres_outbox import PostgresOutbox
from qo.outbox.sqlite_outbox import SqliteOutbox
from qo.queue.concurrency import gather_cancellable
from qo.queue.options import NewTask, check_number, keyed_id
from qo.queue.queue import Queue
from qo.queue.submitter import PreparedTask
from qo.queue.task_document import read_document

log = logging.getLogger(__name__)

T = TypeVar("T")

BATCH = 64
LEASE_S, LEASE_S_MAX = 30.0, 86_400.0
POLL_S = 1.0
RETRY_S, RETRY_S_MAX = 0.5, 60.0
REASON_CHARS_MAX = 1_000


@dataclass(slots=True)
class RelayCounts:
    submitted: int = 0
    parked: int = 0
    postponed: int = 0  # The store did not answer; they are tried again.


def open_outbox(url: str, table: str = TABLE) -> Outbox:
    """Open the outbox of "sqlite:PATH" or "postgresql://...". Raises ConfigError."""
    scheme, _, rest = url.partition(":")
    if scheme == "sqlite" and rest:
        return SqliteOutbox(Path(rest.removeprefix("//")).expanduser(), table)
    if scheme in ("postgresql", "postgres") and rest.startswith("//"):
        return PostgresOutbox(f"postgresql:{rest}", table)
    raise ConfigError("the outbox is named as sqlite:PATH or postgresql://USER@HOST/NAME")


class Relay:
    """``Relay(url, queue)``, then ``run`` until stopped, or ``step`` for one batch."""

    def __init__(
        self,
        outbox: str | Outbox,
        queue: Queue,
        *,
        table: str = TABLE,
        batch: int = BATCH,
        lease_s: float = LEASE_S,
        poll_s: float = POLL_S,
    ) -> None:
        """``outbox``: its database, as "sqlite:PATH" or "postgresql://USER@HOST/NAME". ``lease_s``: for how long a row
        is claimed; rows of a relay that was killed wait so long."""
        check_number("lease_s", lease_s, 1, LEASE_S_MAX)
        self._outbox = open_outbox(outbox, table) if isinstance(outbox, str) else outbox
        self._queue = queue
        self._batch = batch
        self._lease_s = lease_s
        self._poll_s = poll_s
        self._id = queue.ambient.token()
        self.counts = RelayCounts()

    async def run(self, stop: asyncio.Event, *, once: bool = False) -> RelayCounts:
        """Move rows until ``stop`` is set; with ``once``, until none is left that could be moved now."""
        pause_s = RETRY_S
        try:
            while not stop.is_set():
                try:
                    moved = await self.step()
                    if moved == 0 and once:
                        break
                    if moved == 0:
                        await _on_thread(self._outbox.wait, self._poll_s)
                    pause_s = RETRY_S
                except StoreError as error:
                    if once:
                        raise
                    log.warning("cannot relay for now: %s", error)
                    await _wait(stop, pause_s)
                    pause_s = min(2 * pause_s, RETRY_S_MAX)
        finally:
            await _on_thread(self._outbox.close)
        return self.counts

    async def step(self) -> int:
        """Move one batch, and return how many rows were claimed. Raises StoreError if the database does not answer."""
        rows = await _on_thread(self._outbox.claim, self._id, self._batch, self._lease_s)
        if not rows:
            return 0
        now = await self._queue.store.now()
        results = await gather_cancellable(self._submit(row, now) for row in rows)
        submitted = [row.id for row, result in zip(rows, results, strict=True) if result is None]
        parked: dict[int, str] = {}
        later: dict[int, float] = {}
        for row, result in zip(rows, results, strict=True):
            if isinstance(result, UsageError | IdempotencyConflict) and not isinstance(result, ConfigError):
                parked[row.id] = str(result)[:REASON_CHARS_MAX]
                log.error("row %d of the outbox can never be submitted, so it is parked: %s", row.id, result)
            elif result is not None:
                later[row.id] = min(RETRY_S * 2 ** min(row.tries, 20), RETRY_S_MAX)
                log.warning("row %d of the outbox is tried again later: %s", row.id, result)
        await _on_thread(self._outbox.finish, self._id, submitted, parked, later)
        self.counts.submitted += len(submitted)
        self.counts.parked += len(parked)
        self.counts.postponed += len(later)
        return len(rows)

    async def _submit(self, row: Row, now: datetime) -> Exception | None:
        """Return None once the task is in the queue, or the error."""
        try:
            await self._queue.create(self._prepare(row, now))
        except QoError as error:
            return error
        except Exception as error:  # A defect that one row brings to light must not stop all others.
            log.exception("row %d of the outbox has failed in an unexpected way", row.id)
            return error
        return None

    def _prepare(self, row: Row, now: datetime) -> PreparedTask:
        """Return the task of a row. Raises UsageError if it is none."""
        new = read_document(wire.decode_json(row.task, "the task"), "the task")
        options = new.options
        if options.traceparent is None and row.traceparent is not None:
            options = replace(options, traceparent=row.traceparent)
        keyed = replace(options, key=row.key, key_scope=KEY_SCOPE) if options.key is None else options
        if options.unique is None:
            return self._queue.prepare(NewTask(new.task_type, new.input, keyed), now)
        # A unique task cannot have a key, but it can have the id of one: so it, too, is submitted once.
        prepared = self._queue.prepare(NewTask(new.task_type, new.input, options), now)
        return prepared.with_id(keyed_id(new.task_type, keyed), self._queue.prefix_len)


async def _on_thread(call: Callable[..., T], *arguments: Any) -> T:
    return await asyncio.to_thread(call, *arguments)


async def _wait(stop: asyncio.Event, seconds: float) -> None:
    try:
        async with asyncio.timeout(seconds):
            await stop.wait()
    except TimeoutError:
        return
