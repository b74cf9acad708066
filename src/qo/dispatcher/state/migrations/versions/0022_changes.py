"""The version of an input that a PerChange job has read before, beside the one that it reads."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0022"
down_revision = "0021"


def upgrade() -> None:
    with op.batch_alter_table("task_inputs") as table:
        table.add_column(sa.Column("changed_after", sa.BigInteger, nullable=True))
        table.add_column(sa.Column("changed_generation", sa.String(36), nullable=True))
