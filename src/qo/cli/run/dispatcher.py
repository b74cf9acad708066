"""qo dispatcher: run the dispatcher."""

from __future__ import annotations

import sys
from typing import Annotated, Any

from qo.cli.invocation import Session, command, new_app, refuse_memory, setting_option, start_logging
from qo.cli.pipelines.dispatcher_client import require_extra

app = new_app()


@command(app, "dispatcher")
def dispatcher(
    session: Session,
    state: Annotated[str | None, setting_option("dispatcher.state")] = None,
    listen: Annotated[str | None, setting_option("dispatcher.listen")] = None,
    internal_listen: Annotated[str | None, setting_option("dispatcher.internal_listen")] = None,
    data: Annotated[str | None, setting_option("dispatcher.data")] = None,
    secrets_dir: Annotated[str | None, setting_option("dispatcher.secrets_dir")] = None,
) -> None:
    """Run the dispatcher: route events, hand out tasks.

    Upgrades its database first if necessary, and prints where it listens. Runs until SIGTERM, SIGINT or SIGHUP, and
    finishes the requests under way. It may be killed at any moment, and several may run on one PostgreSQL.
    """
    import asyncio

    settings = session.settings(
        {
            "dispatcher.state": state,
            "dispatcher.listen": listen,
            "dispatcher.internal_listen": internal_listen,
            "dispatcher.data": data,
            "dispatcher.secrets_dir": secrets_dir,
        }
    )
    refuse_memory(settings)
    start_logging(settings.log_level)
    with require_extra():
        from qo.dispatcher.service import run_dispatcher

        asyncio.run(run_dispatcher(settings, on_start=_address_printer(session)))


def _address_printer(session: Session) -> Any:
    def print_addresses(addresses: Any) -> None:
        if session.json:
            session.output.document({"url": addresses.public, "internal_url": addresses.internal})
        else:
            session.output.record({"people": addresses.public, "workers": addresses.internal})
        sys.stdout.flush()  # The parent process may read this from a pipe.

    return print_addresses
