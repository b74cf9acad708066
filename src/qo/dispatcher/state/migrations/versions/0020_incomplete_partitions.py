"""Partitions that are made of others and wait for the rest of them."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Name

revision = "0020"
down_revision = "0019"


def upgrade() -> None:
    op.create_table(
        "incomplete_partitions",
        sa.Column("edition_id", Id, nullable=False),
        sa.Column("partition_key", Name, nullable=False),
        sa.Column("since", Instant, nullable=False),
        sa.Column("due_at", Instant, nullable=True),
        sa.PrimaryKeyConstraint("edition_id", "partition_key", name="pk_incomplete_partitions"),
    )
    op.create_index("ix_incomplete_due", "incomplete_partitions", ["edition_id", "due_at"])
