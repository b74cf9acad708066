"""qo worker."""

from __future__ import annotations

from typing import Annotated

import typer

from qo.cli.session import Session, command, new_app, setting_option
from qo.queue.queue import Queue
from qo.worker.app import load_app
from qo.worker.service import run_worker
from qo.worker.worker import Tally

app = new_app()


@command(app, "worker")
def worker(
    session: Session,
    target: Annotated[
        str, typer.Option("--app", metavar="MODULE:APP", help="The handlers: a module and the qo.App in it.")
    ],
    id: Annotated[str | None, setting_option("worker.id")] = None,
    shards: Annotated[str | None, setting_option("worker.shards")] = None,
    concurrency: Annotated[str | None, setting_option("worker.concurrency")] = None,
    index_mode: Annotated[str | None, setting_option("worker.index_mode")] = None,
    ready_page_size: Annotated[str | None, setting_option("worker.ready_page_size")] = None,
    log_scan_page_size: Annotated[str | None, setting_option("worker.log_scan_page_size")] = None,
    no_monitor: Annotated[bool | None, setting_option("worker.no_monitor")] = None,
    drain: Annotated[bool, typer.Option("--drain", help="Stop when no task is ready any more.")] = False,
) -> None:
    """Run a worker: claim tasks and run their handlers.

    Runs until SIGTERM or SIGINT: the first lets running tasks finish, the second gives them back at once.
    """
    settings = session.settings(
        {
            "worker.id": id,
            "worker.shards": shards,
            "worker.concurrency": concurrency,
            "worker.index_mode": index_mode,
            "worker.ready_page_size": ready_page_size,
            "worker.log_scan_page_size": log_scan_page_size,
            "worker.no_monitor": no_monitor,
        }
    )
    handlers = load_app(target)

    async def work(queue: Queue) -> Tally:
        return await run_worker(queue, handlers, settings, stop_when_empty=drain)

    tally = session.run(settings, work)
    if session.json:
        session.output.document(tally)
    else:
        session.output.line(
            f"completed {tally.completed}, failed {tally.failed}, given back {tally.released}; "
            f"{tally.requests:,} requests, ${tally.dollars:.4f} on S3"
        )
