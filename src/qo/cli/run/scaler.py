"""qo scaler: run the scaler of workers."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.invocation import Session, command, new_app, start_logging
from qo.cli.pipelines.dispatcher_client import require_extra

app = new_app()


@command(app, "scaler")
def scaler(
    session: Session,
    drain: Annotated[
        bool, typer.Option("--drain", help="Drain the workers before the end; without it, they stay.")
    ] = False,
) -> None:
    """Run the scaler: start and drain workers as their load says.

    For each table [runtimes.NAME.scaling] of the settings. Calls the dispatcher at dispatcher.url with a token of the
    role scaler. Runs until SIGTERM, SIGINT or SIGHUP. Its workers stay, and the next scaler finds them. Several may
    run at once: one decides for a runtime, and another takes over when that one is silent.
    """
    import asyncio

    settings = session.settings()
    start_logging(settings.log_level)
    config = [] if session.config_path is None else ["--config", str(session.config_path)]
    with require_extra():
        from qo.scaler.service import run_scaler

        asyncio.run(run_scaler(settings, config, drain=drain))
