"""qo db upgrade, status: the state database."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

from qo.cli.pipelines.dispatcher import extra, quietly, without_password
from qo.cli.session import Session, command, new_app, new_group

if TYPE_CHECKING:
    from qo.dispatcher.state.database import State

app = new_app()
db = new_group(app, "db", "Upgrade the dispatcher's database, and show its version.")

T = TypeVar("T")


@command(db, "upgrade")
def upgrade(session: Session) -> None:
    """Bring the tables to what this qo needs.

    Forward only. It is safe to run again, and by several at once.
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
    """Show whether the tables are what this qo needs.

    Exits with 4 if they are not.
    """
    found = _with_state(session, lambda state: _upgrade().status(state))
    if session.json:
        told = {"current": found.current, "head": found.head, "pending": found.pending, "newer": found.newer}
        session.output.document({**told, "fits": found.fits})
    else:
        do = "install the later qo" if found.newer else "" if found.fits else "run qo db upgrade"
        session.output.record(
            {
                "database": without_password(session.settings().dispatcher.state),
                "at": found.current or "nothing yet",
                "needed": found.head,
                "missing": ", ".join(found.pending),
                "do": do,
            }
        )
    return 0 if found.fits else 4


def _upgrade() -> Any:
    from qo.dispatcher.state import upgrade

    return upgrade


def _with_state(session: Session, question: Callable[[State], T]) -> T:
    settings = session.settings()
    quietly(settings)
    with extra():
        from qo.dispatcher.state.database import open_state

        state = open_state(settings.dispatcher.state, durable=settings.dispatcher.state_durable)
        try:
            return question(state)
        finally:
            state.close()
