"""The process behind ``qo sink``: lets tables and files follow published datasets on behalf of the dispatcher.

It keeps no state of its own: the books beside the data say what is loaded. Several may run at once; one at a time works
on a table. A table that cannot be loaded is tried again later, and holds back neither other tables nor any task.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from qo.api.contract.sink import ERROR_MAX, LiveSink, SinkReport
from qo.api.internal_client import DispatcherClient
from qo.config.settings import Settings
from qo.core.pipeline.dag import SinkKind
from qo.errors import ConfigError, NotFound, QoError, Refused
from qo.sink.content import Busy, SinkContent
from qo.sink.data_tables import DataTable, open_table
from qo.sink.file_set import FileSet
from qo.sink.piece_files import Files
from qo.store.directory import open_directory

log = logging.getLogger(__name__)

AT_ONCE = 4  # Tables that are loaded at the same time.
CHECK_S = 60.0  # A table is compared with its books so often, though nothing was committed.
REPORT_S = 20.0  # So often the dispatcher hears that a table is still looked after.
RETRY_MIN_S, RETRY_MAX_S = 1.0, 60.0
LAST_ROUND_S = 8.0  # For what was committed before the process was told to stop.


@dataclass(slots=True)
class _Followed:
    """What this process knows of a sink."""

    settled: Any = None  # What was to be shown when the table was last found to show it.
    settled_at: float = 0.0
    failures: int = 0
    retry_at: float = 0.0
    report: SinkReport | None = None
    reported_at: float = 0.0
    work: asyncio.Task[None] | None = None


class SinkFollower:
    def __init__(self, client: DispatcherClient, settings: Settings, files: Files) -> None:
        self._client, self._settings, self._files = client, settings, files
        self._poll_s = settings.sink.poll_ms / 1000
        self._databases: Mapping[str, str] = dict(settings.sink.databases)
        self._directories: Mapping[str, str] = dict(settings.sink.directories)
        self._followed: dict[str, _Followed] = {}
        self._room = asyncio.Semaphore(AT_ONCE)

    async def run(self, stop: asyncio.Event) -> None:
        """Follow until ``stop`` is set, and then once more."""
        while not stop.is_set():
            try:
                await self.start_round()
            except QoError as error:
                log.warning("the sinks could not be listed, trying again: %s", error)
            with suppress(TimeoutError):
                async with asyncio.timeout(self._poll_s):
                    await stop.wait()
        with suppress(TimeoutError, QoError):
            async with asyncio.timeout(LAST_ROUND_S):
                await self.run_round()
        await self._stop_work()

    async def run_round(self) -> None:
        """Bring every table up to date, or report why that fails."""
        await self._await_work()
        await self.start_round()
        await self._await_work()

    async def start_round(self) -> None:
        """Start work on the tables that are not up to date, as far as this process knows. Raises QoError."""
        now = asyncio.get_running_loop().time()
        answer = await self._client.sinks()
        sinks, at = answer.sinks, answer.now
        for name in self._followed.keys() - {each.name for each in sinks}:
            if (work := self._followed[name].work) is None or work.done():
                del self._followed[name]
        for sink in sinks:
            followed = self._followed.setdefault(sink.name, _Followed())
            if followed.work is not None and not followed.work.done():
                continue
            is_settled = followed.settled == _signature(sink) and now < followed.settled_at + CHECK_S
            if not is_settled and now >= followed.retry_at:
                followed.work = asyncio.create_task(self._work(sink, followed, at))
            elif followed.report is not None and now >= followed.reported_at + REPORT_S:
                followed.work = asyncio.create_task(self._report(sink, followed, followed.report))

    async def _await_work(self) -> None:
        under_way = [each.work for each in self._followed.values() if each.work is not None]
        if under_way:
            await asyncio.wait(under_way)

    async def _stop_work(self) -> None:
        for each in self._followed.values():
            if each.work is not None:
                each.work.cancel()
        await self._await_work()

    async def _work(self, sink: LiveSink, followed: _Followed, at: datetime) -> None:
        loop = asyncio.get_running_loop()
        try:
            async with self._room:
                content = await self._load(sink, at)
        except (Busy, NotFound) as error:
            # Another loader has it, or it is gone: look again later, and trouble nobody.
            log.debug("%s: %s", sink.name, error)
            followed.retry_at = loop.time() + RETRY_MIN_S
        except (QoError, OSError) as error:
            followed.failures += 1
            wait_s = min(RETRY_MIN_S * 2 ** (followed.failures - 1), RETRY_MAX_S)
            followed.retry_at = loop.time() + wait_s
            log.warning("the sink %s failed, trying again in %g s: %s", sink.name, wait_s, error)
            before = followed.report or SinkReport()
            await self._report(sink, followed, before.model_copy(update={"error": str(error)[:ERROR_MAX]}))
        else:
            followed.failures, followed.retry_at = 0, 0.0
            followed.settled, followed.settled_at = _signature(sink), loop.time()
            await self._report(
                sink, followed, SinkReport(generation_id=content.generation_id, revision=content.revision)
            )

    async def _report(self, sink: LiveSink, followed: _Followed, report: SinkReport) -> None:
        followed.report, followed.reported_at = report, asyncio.get_running_loop().time()
        try:
            await self._client.report_sink(sink.name, report)
        except QoError as error:
            log.warning("the state of the sink %s could not be reported: %s", sink.name, error)

    async def _load(self, sink: LiveSink, at: datetime) -> SinkContent:
        return await (self._load_files(sink, at) if sink.kind == SinkKind.FILES else self._load_table(sink))

    async def _load_files(self, sink: LiveSink, at: datetime) -> SinkContent:
        location = self._directories.get(sink.directory or "")
        if location is None:
            raise ConfigError(
                f"the directory {sink.directory!r} is not configured: give its location to qo sink, as "
                f"{sink.directory} in the table [sink.directories] of qo.toml, or in QO_SINK_DIRECTORIES"
            )
        directory = await open_directory(location, self._settings)
        try:
            return await FileSet(self._client, sink, directory, self._files).load(at)
        finally:
            await directory.close()

    async def _load_table(self, sink: LiveSink) -> SinkContent:
        url = self._databases.get(sink.database or "")
        if url is None:
            raise ConfigError(
                f"the database {sink.database!r} is not configured: give its URL to qo sink, as {sink.database} in "
                "the table [sink.databases] of qo.toml, or in QO_SINK_DATABASES"
            )
        table = await asyncio.to_thread(open_table, url, sink, self._files)
        try:
            # The current one first: its readers wait.
            for each in sorted(sink.generations, key=lambda each: each.id != sink.current):
                if each.is_followed:
                    await self._catch_up(table, sink, each.id)
                if each.id == sink.current:
                    await asyncio.to_thread(table.show_current)
            await asyncio.to_thread(table.drop_unneeded, [each.id for each in sink.generations])
            return await asyncio.to_thread(table.show_current)
        finally:
            await asyncio.to_thread(table.close)

    async def _catch_up(self, table: DataTable, sink: LiveSink, generation_id: str) -> None:
        while True:
            revision = await asyncio.to_thread(table.revision_of, generation_id)
            step = await self._client.sink_step(sink.name, generation_id, revision)
            if revision > step.latest:
                raise Refused(
                    f"the table {sink.table} is as of revision {revision}, and the dispatcher has {step.latest} only: "
                    "if its state was restored, or another installation loads this table, drop its view and its row "
                    "in qo.sinks"
                )
            if step.upto == revision:
                return
            await asyncio.to_thread(table.apply, step)


def _signature(sink: LiveSink) -> Any:
    return (
        sink.database,
        sink.table,
        sink.directory,
        sink.file,
        sink.dataset_id,
        sink.current,
        tuple((each.id, each.is_followed, each.revision) for each in sink.generations),
    )
