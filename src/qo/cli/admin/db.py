"""qo db upgrade, status, size, purge: the state database of the dispatcher."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from datetime import timedelta
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import typer

from qo.cli.confirmation import confirm, is_interactive
from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import log_quietly, require_extra, without_password
from qo.cli.pipelines.formatting import format_bytes, format_count
from qo.core.durations import parse_duration_s
from qo.core.words import plural
from qo.errors import UsageError

if TYPE_CHECKING:
    from qo.dispatcher.engine.purging.purge_round import Keep, PurgeCounts
    from qo.dispatcher.state.database import State
    from qo.dispatcher.state.sizes import DatabaseSize

app = new_app()
db = new_group(app, "db", "Upgrade, measure and purge the state database.")

T = TypeVar("T")


@command(db, "upgrade")
def upgrade(session: Session) -> None:
    """Upgrade the tables to the version that this qo needs.

    There is no downgrade. It is safe to run it again, and several times at once.
    """
    from_step, to_step = _with_state(session, lambda state: _upgrade().upgrade(state))
    if session.json:
        session.output.document({"from": from_step, "to": to_step, "changed": from_step != to_step})
    elif from_step == to_step:
        session.output.line(f"nothing to do: the tables are at step {to_step}")
    else:
        session.output.line(f"upgraded from {from_step or 'an empty database'} to step {to_step}")


@command(db, "status")
def status(session: Session) -> int:
    """Show whether the tables have the version that this qo needs.

    Exits with 4 if they have not.
    """
    schema = _with_state(session, lambda state: _upgrade().status(state))
    if session.json:
        document = {
            "current": schema.current,
            "head": schema.head,
            "pending": schema.pending,
            "newer": schema.newer,
        }
        session.output.document({**document, "fits": schema.fits})
    else:
        advice = "install the later qo" if schema.newer else "" if schema.fits else "run qo db upgrade"
        session.output.record(
            {
                "database": without_password(session.settings().dispatcher.state),
                "at": schema.current or "nothing yet",
                "needed": schema.head,
                "missing": ", ".join(schema.pending),
                "do": advice,
            }
        )
    return 0 if schema.fits else 4


@command(db, "size")
def size(session: Session) -> None:
    """Show how many rows and bytes each table has, and what a million tasks take up.

    On PostgreSQL rows are as of its statistics, and rows that were deleted but not reclaimed are shown as well. On
    SQLite the whole file is read.
    """
    measured: DatabaseSize = _with_state(session, _measure)
    per_million = measured.bytes_per_million_tasks
    if session.json:
        tables = [
            {
                "name": each.name,
                "rows": each.rows,
                "dead_rows": each.dead_rows,
                "bytes": each.bytes,
                "index_bytes": each.index_bytes,
            }
            for each in measured.tables
        ]
        document = {"bytes": measured.bytes, "tasks": measured.tasks, "bytes_per_million_tasks": per_million}
        session.output.document({**document, "tables": tables})
        return
    rows = [
        (
            each.name,
            format_count(each.rows),
            format_count(each.dead_rows),
            format_bytes(each.bytes),
            format_bytes(each.index_bytes),
        )
        for each in measured.tables
        if each.rows or each.dead_rows
    ]
    session.output.table(("table", "rows", "dead", "bytes", "indexes"), rows)
    session.output.line(f"{format_bytes(measured.bytes)} in all")
    if per_million is not None:
        session.output.line(f"{format_bytes(per_million)} per million tasks")


@command(db, "purge")
def purge(
    session: Session,
    older_than: Annotated[
        str | None,
        typer.Option(
            "--older-than",
            metavar="DURATION",
            help="Purge history that ended longer ago than this, instead of dispatcher.keep_history_days.",
        ),
    ] = None,
    versions_older_than: Annotated[
        str | None,
        typer.Option(
            "--versions-older-than",
            metavar="DURATION",
            help="Give up versions that ended longer ago than this, instead of dispatcher.keep_versions_days.",
        ),
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only print what would be purged.")] = False,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Purge without asking.")] = False,
) -> None:
    """Purge history that nothing depends on: tasks whose work was done again, old events, versions that ended long ago.

    How old it must be is set by dispatcher.keep_history_days and dispatcher.keep_versions_days, which a running
    dispatcher follows by itself, or here. What is current, what a rollback needs and what keeps work from happening
    twice is never purged. Versions that are given up cannot be deployed again as they were. Shows what would be purged
    and asks; without a terminal, nothing is purged unless you say --yes. It works in small steps beside running
    dispatchers; if it is interrupted, run it again.
    """
    keep = _choose_keep(session, older_than, versions_older_than)

    def work(state: State) -> tuple[PurgeCounts, bool]:
        from qo.dispatcher.engine.purging import purge_round
        from qo.dispatcher.engine.purging.purge_round import PurgeCounts
        from qo.dispatcher.state.upgrade import require

        require(state)
        if dry_run or not yes:
            preview = sum(purge_round.preview(state, keep), start=PurgeCounts())
            _show_purged(session, preview, preview_only=True)
            asks = (
                not dry_run
                and is_interactive(session)
                and (preview.tasks or preview.events or preview.generations)
            )
            if not asks or not asyncio.run(confirm("Purge them for good?")):
                return preview, False
        return sum(purge_round.run(state, keep), start=PurgeCounts()), True

    counts, changed = _with_state(session, work)
    if session.json:
        document = {"tasks": counts.tasks, "events": counts.events, "generations": counts.generations}
        session.output.document({**document, "dry_run": not changed})
    elif changed:
        _show_purged(session, counts, preview_only=False)
    elif not dry_run and not is_interactive(session):
        session.output.note("nothing was purged; say --yes to purge it")


def _choose_keep(session: Session, older_than: str | None, versions_older_than: str | None) -> Keep:
    """Return for how long records are kept. Raises UsageError if nothing says so."""
    from qo.dispatcher.engine.loops.history_purge import keep_of
    from qo.dispatcher.engine.purging.purge_round import Keep

    if older_than is None and versions_older_than is None:
        keep = keep_of(session.settings().dispatcher)
        if not keep:
            raise UsageError(
                "all history is kept for ever: set dispatcher.keep_history_days or dispatcher.keep_versions_days, or "
                "say --older-than or --versions-older-than"
            )
        return keep
    return Keep(_span(older_than, "--older-than"), _span(versions_older_than, "--versions-older-than"))


def _span(text: str | None, option: str) -> timedelta | None:
    return None if text is None else timedelta(seconds=parse_duration_s(text, option))


def _show_purged(session: Session, counts: PurgeCounts, *, preview_only: bool) -> None:
    if session.json:
        return
    if preview_only:
        reasons = [
            *(("tasks", str(reason), format_count(n)) for reason, n in counts.tasks_kept.most_common()),
            *(("events", str(reason), format_count(n)) for reason, n in counts.events_kept.most_common()),
        ]
        session.output.table(("kept", "because", "rows"), reasons)
    text = f"{plural(counts.tasks, 'task')}, {plural(counts.events, 'event')} and the data of "
    text += plural(counts.generations, "generation")
    # When events are gone more tasks can go, and the other way round.
    session.output.line(f"{text} {'would be purged, or more' if preview_only else 'purged'}")


def _measure(state: State) -> DatabaseSize:
    from qo.dispatcher.state.sizes import measure
    from qo.dispatcher.state.upgrade import require

    require(state)
    return measure(state)


def _upgrade() -> Any:
    from qo.dispatcher.state import upgrade

    return upgrade


def _with_state(session: Session, question: Callable[[State], T]) -> T:
    settings = session.settings()
    log_quietly(settings)
    with require_extra():
        from qo.dispatcher.state.database import open_state

        state = open_state(settings.dispatcher.state, durable=settings.dispatcher.state_durable)
        try:
            return question(state)
        finally:
            state.close()
