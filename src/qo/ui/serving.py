"""Serves the dashboard of the configured store until it is stopped."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import NamedTuple

from qo.config.settings import Settings
from qo.core.keys import EPHEMERAL
from qo.errors import ConfigError
from qo.store.opening import open_ready
from qo.store.port import LIST_LIMIT_MAX, ObjectStore
from qo.ui.branches import ROOT, Branches
from qo.ui.dashboard import Dashboard, Served
from qo.ui.data_preview import Previews
from qo.ui.forwarding import Dispatcher
from qo.ui.s3_listing import list_with_delimiter

PORT = 8480  # The usual port, if it is free.

OnStart = Callable[[Dashboard], None]


class _Source(NamedTuple):
    store: ObjectStore
    queues: Callable[[], Awaitable[Sequence[str]]]


async def serve(
    settings: Settings,
    stop: asyncio.Event,
    *,
    on_start: OnStart,
    port: int | None = None,
    read_only: bool = False,
    dispatcher: Dispatcher | None = None,
) -> None:
    """Serve until ``stop`` is set. Without a port, use the usual one or, if that is taken, any free one.

    A bucket is served through the gateway, too: so it needs no CORS rules for loopback, and its keys stay in this
    process. Only the page of `qo ui deploy` talks to the bucket directly.

    Raises ConfigError if the port is taken, Unproven if `qo doctor` has not passed the bucket.
    """
    source = await _open_source(settings)
    try:
        threshold_s = settings.monitor.worker_health_threshold_s
        served = Served(
            source.store, source.queues, dispatcher, read_only, threshold_s, previews=Previews(settings)
        )
        dashboard = await _open_dashboard(served, port)
        try:
            on_start(dashboard)
            await stop.wait()
        finally:
            await dashboard.close()
    finally:
        await source.store.close()


async def _open_dashboard(served: Served, port: int | None) -> Dashboard:
    if port is None:
        with suppress(ConfigError):
            return await Dashboard.open(served, port=PORT)
    return await Dashboard.open(served, port=port or 0)


async def _open_source(settings: Settings) -> _Source:
    store = (await open_ready(settings)).store
    if (path := settings.location.as_directory()) is not None:
        return _with_branches(store, path, durable=settings.local.durable)

    return _Source(store, partial(list_queues, store))


async def list_queues(store: ObjectStore) -> Sequence[str]:
    """Return the prefixes of all queues in a bucket, over as many pages as there are."""
    prefixes: list[str] = []
    after = ""
    while True:
        page = await list_with_delimiter(store, ROOT, delimiter="/", after=after, limit=LIST_LIMIT_MAX)
        prefixes += page.common
        after = page.after
        if not after:
            return prefixes


def _with_branches(store: ObjectStore, path: Path, *, durable: bool) -> _Source:
    from qo.store.local import LocalStore

    async def open_branch(directory: Path) -> ObjectStore:
        return await LocalStore.open(directory, forget=EPHEMERAL, durable=durable)

    branches = Branches(store, path, open_branch)

    async def list_prefixes() -> Sequence[str]:
        return branches.prefixes()

    return _Source(branches, list_prefixes)
