"""Changes of all tasks of an edition, a chunk at a time; indexes of cancelled and of failed tasks."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Name, where

revision = "0011"
down_revision = "0010"


def upgrade() -> None:
    op.create_table(
        "bulk_changes",
        sa.Column("edition_id", Id, primary_key=True),
        sa.Column("kind", sa.String(8), nullable=False),
        sa.Column("by", Name, nullable=True),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("code", sa.String(32), nullable=True),
        sa.Column("token", sa.String(40), nullable=False),
        sa.Column("after", sa.Text, nullable=True),
        sa.Column("requested_at", Instant(), nullable=False),
    )
    given_up = where("cancel_code = 'version_given_up'")
    op.create_index("ix_tasks_given_up", "tasks", ["edition_id", "id"], **given_up)
    failed = where("status || '' = 'failed'")
    op.create_index("ix_tasks_failed", "tasks", ["edition_id", "created_at", "id"], **failed)
