"""qo db upgrade, status, size: the state database of the dispatcher."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from qo.cli.invocation import Session, command, new_app, new_group
from qo.cli.pipelines.dispatcher_client import log_quietly, require_extra, without_password
from qo.cli.pipelines.formatting import format_bytes, format_count

if TYPE_CHECKING:
    from qo.dispatcher.state.database import State
    from qo.dispatcher.state.sizes import DatabaseSize

app = new_app()
db = new_group(app, "db", "Upgrade the state database; show its version and size.")

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
