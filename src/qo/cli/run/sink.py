"""qo sink: keep tables of databases and files for others up with published datasets."""

from __future__ import annotations

import asyncio
import logging
from typing import TYPE_CHECKING

from qo.cli.invocation import Session, command, new_app, start_logging
from qo.cli.pipelines.dispatcher_client import require_extra

if TYPE_CHECKING:
    from qo.config.settings import Settings

log = logging.getLogger(__name__)
app = new_app()


@command(app, "sink")
def sink(session: Session) -> None:
    """Run the sink: let tables and files follow datasets.

    Calls the dispatcher at dispatcher.internal_url. Loads datasets that are published with `to: postgres` into the
    databases of sink.databases, and writes those with `to: files` to sink.directories. Runs until SIGTERM, SIGINT or
    SIGHUP. It may be killed at any moment, and several may run at once.
    """
    settings = session.settings()
    start_logging(settings.log_level)
    with require_extra():
        asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    from qo.agent.service import check_token
    from qo.api.internal_client import DispatcherClient, internal_url
    from qo.dispatcher.auth.local_tokens import presented_token
    from qo.sink.service import open_follower
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    restore = stop_on_signals(stop)
    token = presented_token(settings.dispatcher)
    url = internal_url(settings.dispatcher)
    places = (*settings.sink.databases, *settings.sink.directories)
    names = ", ".join(name for name, _ in places) or "none"
    log.info("the sink has started; its dispatcher is %s, its databases and directories are: %s", url, names)
    try:
        await check_token(url, token)
        async with DispatcherClient(url, token.token) as client, open_follower(client, settings) as follower:
            await follower.run(stop)
    finally:
        restore()
