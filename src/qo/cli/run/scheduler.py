"""qo scheduler: run the scheduler of pipelines."""

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


@command(app, "scheduler")
def scheduler(session: Session) -> None:
    """Run the scheduler: fire cron sources, watch for files.

    Calls the dispatcher at dispatcher.internal_url. Runs until SIGTERM, SIGINT or SIGHUP. Several may run at once;
    each planned time and each file is announced once.
    """
    settings = session.settings()
    start_logging(settings.log_level)
    with require_extra():
        asyncio.run(_run(settings))


async def _run(settings: Settings) -> None:
    from qo.agent.service import check_token
    from qo.api.internal_client import DispatcherClient, internal_url
    from qo.dispatcher.auth.local_tokens import presented_token
    from qo.scheduler.emitter import RemoteEmitter
    from qo.scheduler.service import run_scheduler
    from qo.worker.shutdown import stop_on_signals

    stop = asyncio.Event()
    restore = stop_on_signals(stop)
    token = presented_token(settings.dispatcher)
    url = internal_url(settings.dispatcher)
    log.info("the scheduler has started; its dispatcher is %s", url)
    try:
        await check_token(url, token)
        async with DispatcherClient(url, token.token) as client:
            await run_scheduler(RemoteEmitter(client), stop, settings)
    finally:
        restore()
