"""Why the dispatcher cancelled a task, as a code beside the sentence for people."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import where

revision = "0006"
down_revision = "0005"

_CODES = {
    "its effects were made by an earlier edition": "effects_made",
    "another edition is at work on its effects": "effects_deferred",
    "its effects were called off at another edition": "effects_called_off",
}

_tasks = sa.table("tasks", sa.column("cancel_code"), sa.column("cancel_reason"))


def upgrade() -> None:
    op.add_column("tasks", sa.Column("cancel_code", sa.String(32), nullable=True))
    reason = _tasks.c.cancel_reason
    # Not LIKE, which ignores case on SQLite: people could write these sentences in another case.
    given_up = sa.and_(
        sa.func.substr(reason, 1, len("version ")) == "version ",
        sa.or_(_ends_with(reason, " was rolled back"), _ends_with(reason, " was abandoned")),
    )
    code = sa.case(
        *((reason == text, code) for text, code in _CODES.items()), (given_up, "version_given_up"), else_=None
    )
    op.execute(sa.update(_tasks).where(reason.is_not(None)).values(cancel_code=code))
    op.drop_index("ix_tasks_yielded", table_name="tasks")
    op.create_index(
        "ix_tasks_deferred", "tasks", ["edition_id", "id"], **where("cancel_code = 'effects_deferred'")
    )


def _ends_with(column: sa.ColumnElement[str], text: str) -> sa.ColumnElement[bool]:
    return sa.func.substr(column, sa.func.length(column) - (len(text) - 1)) == text
