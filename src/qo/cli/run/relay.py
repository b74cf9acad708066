"""qo relay run, status, parked, retry, table: the outbox of an application."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from qo.cli.invocation import Session, command, default_to, new_app
from qo.core.words import plural
from qo.errors import NotFound, TaskFailed, Unavailable, UsageError

if TYPE_CHECKING:
    from qo.outbox.relay import RelayCounts
    from qo.queue.queue import Queue

_HELP = "Relay tasks from an application's database to the queue."

app = new_app()
relay = new_app(help=_HELP, cls=default_to("run"))


@relay.callback(help=f"{_HELP}\n\n`qo relay OPTIONS` is short for `qo relay run OPTIONS`; see its --help.")
def _accept_options() -> None:
    pass


app.add_typer(relay, name="relay")

Source = Annotated[
    str | None,
    typer.Option(
        "--from",
        metavar="URL",
        help="The application's database: sqlite:PATH or postgresql://USER@HOST/NAME; a password belongs into "
        "PGPASSWORD or ~/.pgpass.",
    ),
]
Table = Annotated[
    str, typer.Option("--table", metavar="NAME", help="The table of the outbox [qo_outbox].", show_default=False)
]


@command(relay, "run")
def run(
    session: Session,
    source: Source = None,
    table: Table = "qo_outbox",
    once: Annotated[
        bool, typer.Option("--once", help="Move what is there, and stop; exit 8 if a row was parked.")
    ] = False,
    batch: Annotated[
        int, typer.Option("--batch", min=1, max=1000, help="Rows moved at a time [64].", show_default=False)
    ] = 64,
    lease_s: Annotated[
        float,
        typer.Option(
            "--lease-s",
            min=1,
            help="Seconds that rows of a killed relay wait for another [30].",
            show_default=False,
        ),
    ] = 30.0,
) -> int | None:
    """Relay tasks from the outbox of an application to the queue, each exactly once.

    Runs until SIGTERM, SIGINT or SIGHUP. It may be killed at any moment, and any number may work on one outbox.
    """
    import asyncio

    from qo.outbox.relay import Relay
    from qo.worker.shutdown import stop_on_signals

    url = _require(source)

    async def move(queue: Queue) -> RelayCounts:
        stop = asyncio.Event()
        restore = stop_on_signals(stop)
        try:
            return await Relay(url, queue, table=table, batch=batch, lease_s=lease_s).run(stop, once=once)
        finally:
            restore()

    counts = session.run(session.settings(), move)
    if once and counts.postponed:
        raise Unavailable(f"the store did not take {plural(counts.postponed, 'row')}: run the command again")
    if session.json:
        session.output.document(counts)
    else:
        session.output.line(f"submitted {counts.submitted}, parked {counts.parked}")
    return TaskFailed.exit_code if once and counts.parked else None


@command(relay, "status")
def status(session: Session, source: Source = None, table: Table = "qo_outbox") -> None:
    """Show how many rows wait to be submitted, and how many are parked.

    Rows that wait for long mean that no relay runs, or that it cannot reach the store.
    """
    from qo.outbox.relay import open_outbox

    outbox = open_outbox(_require(source), table)
    try:
        waiting, parked = outbox.count()
    finally:
        outbox.close()
    if session.json:
        session.output.document({"waiting": waiting, "parked": parked})
    else:
        session.output.line(f"waiting {waiting:,}, parked {parked:,}")


@command(relay, "parked")
def parked(
    session: Session,
    source: Source = None,
    table: Table = "qo_outbox",
    limit: Annotated[
        int, typer.Option("--limit", min=1, help="Show at most this many [100].", show_default=False)
    ] = 100,
) -> None:
    """List rows that can never be submitted as they are, with the reason."""
    from qo.outbox.relay import open_outbox

    outbox = open_outbox(_require(source), table)
    try:
        rows = outbox.parked(limit)
    finally:
        outbox.close()
    if session.json:
        session.output.document([row._asdict() for row in rows])
    else:
        session.output.table(("id", "reason", "task"), [(str(row.id), row.reason, row.task[:80]) for row in rows])


@command(relay, "retry")
def retry(
    session: Session,
    ids: Annotated[
        list[int] | None, typer.Argument(metavar="[ID]...", help="The rows; none: all parked ones.")
    ] = None,
    source: Source = None,
    table: Table = "qo_outbox",
) -> None:
    """Give parked rows back to the relays, after they or the queue were mended."""
    from qo.outbox.relay import open_outbox

    outbox = open_outbox(_require(source), table)
    try:
        count = outbox.retry(ids or [])
    finally:
        outbox.close()
    if ids and not count:
        raise NotFound("none of these rows is parked: qo relay parked shows those that are")
    if session.json:
        session.output.document({"retried": count})
    else:
        session.output.line(f"gave back {plural(count, 'row')}")


@command(relay, "table")
def print_table(
    session: Session,
    dialect: Annotated[str, typer.Argument(metavar="sqlite|postgresql", help="The kind of the database.")],
    table: Table = "qo_outbox",
) -> None:
    """Print the SQL that creates the table of an outbox, for migrations."""
    from qo.outbox.outbox_table import Dialect, table_sql

    if dialect not in list(Dialect):
        raise UsageError(f"there is no outbox for {dialect!r}: sqlite or postgresql")
    session.output.line(table_sql(dialect, table).rstrip())


def _require(source: str | None) -> str:
    if source is None:
        raise UsageError(
            "name the application's database: --from sqlite:PATH or --from postgresql://USER@HOST/NAME"
        )
    return source
