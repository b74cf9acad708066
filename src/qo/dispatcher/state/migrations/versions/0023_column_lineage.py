"""What the columns of generations are made from."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Json

revision = "0023"
down_revision = "0022"


def upgrade() -> None:
    op.create_table(
        "column_lineage",
        sa.Column("generation_id", Id, nullable=False),
        sa.Column("lineage_hash", sa.String(64), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=False),
        sa.Column("lineage", Json, nullable=False),
        sa.PrimaryKeyConstraint("generation_id", "lineage_hash", name="pk_column_lineage"),
    )
