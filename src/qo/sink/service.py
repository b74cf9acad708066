"""Open what loads sinks, for the processes that do."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from typing import TYPE_CHECKING

from qo.api.internal_client import DispatcherClient
from qo.config.settings import Settings
from qo.errors import ConfigError
from qo.store.blocking_files import BlockingFiles

if TYPE_CHECKING:
    from qo.sink.follower import SinkFollower


@asynccontextmanager
async def open_follower(client: DispatcherClient, settings: Settings) -> AsyncGenerator[SinkFollower]:
    """Raises ConfigError without the driver of PostgreSQL."""
    try:
        from qo.sink.follower import SinkFollower
    except ModuleNotFoundError as missing:
        if missing.name != "psycopg":
            raise
        raise ConfigError(
            "sinks need psycopg: install qo with its extra, from a checkout, pip install '.[sink]'"
        ) from None
    files = BlockingFiles(settings, asyncio.get_running_loop())
    try:
        yield SinkFollower(client, settings, files)
    finally:
        await files.close()
