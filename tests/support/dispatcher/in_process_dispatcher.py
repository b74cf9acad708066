"""A dispatcher at work within the test's own process, for tests that bring a worker of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.dag import Dag
from qo.dispatcher.http.serving import Addresses
from qo.dispatcher.service import run_dispatcher
from qo.dispatcher.state.database import State, open_state
from qo.dispatcher.state.upgrade import upgrade
from support.dispatcher.pipelines import deployed


class Dispatching(NamedTuple):
    state: State
    settings: Settings
    addresses: Addresses


@asynccontextmanager
async def dispatching(directory: Path, wanted: Dag) -> AsyncIterator[Dispatching]:
    """With that pipeline deployed, and everything below the directory."""
    chosen = DispatcherSettings(
        state=f"sqlite:{directory / 'state.db'}",
        listen="127.0.0.1:0",
        internal_listen="127.0.0.1:0",
        secrets_dir=str(directory / "secrets"),
        data=f"file:{directory / 'data'}",
        tick_ms=20,
    )
    settings = Settings(store=f"local:{directory / 'store'}", dispatcher=chosen)
    state = open_state(chosen.state)
    upgrade(state)
    deployed(state, wanted)
    stop, started = asyncio.Event(), asyncio.get_running_loop().create_future()
    running = asyncio.create_task(run_dispatcher(settings, stop=stop, on_start=started.set_result))
    try:
        yield Dispatching(state, settings, await started)
    finally:
        stop.set()
        await running
        state.close()
