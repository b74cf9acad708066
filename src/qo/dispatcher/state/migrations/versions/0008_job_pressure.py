"""The pressure of jobs that have thresholds of their own."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant

revision = "0008"
down_revision = "0007"


def upgrade() -> None:
    op.create_table(
        "job_pressure",
        sa.Column("edition_id", Id, primary_key=True),
        sa.Column("depth", sa.BigInteger, nullable=False),
        sa.Column("oldest_s", sa.Float, nullable=False),
        sa.Column("tripped_at", Instant(), nullable=True),
        sa.Column("reason", sa.Text, nullable=True),
        sa.Column("measured_at", Instant(), nullable=False),
    )
