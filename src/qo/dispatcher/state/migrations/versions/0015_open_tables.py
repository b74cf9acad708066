"""Published datasets as open tables, and the statistics of the files that their commits name."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Json, Name

revision = "0015"
down_revision = "0013"


def upgrade() -> None:
    op.add_column("commits", sa.Column("file_stats", sa.LargeBinary(), nullable=True))
    op.create_table(
        "open_tables",
        sa.Column("dag", Name, nullable=False),
        sa.Column("name", Name, nullable=False),
        sa.Column("dataset_id", Id, nullable=False),
        sa.Column("table_uuid", Id, nullable=False),
        sa.Column("metadata_location", sa.Text(), nullable=True),
        sa.Column("metadata_version", sa.Integer(), nullable=False),
        sa.Column("revision", sa.BigInteger(), nullable=True),
        sa.Column("updated_at", Instant, nullable=False),
        sa.Column("problem", sa.Text(), nullable=True),
        sa.Column("listed", Json, nullable=True),
        sa.Column("expire_before", Instant, nullable=True),
        sa.Column("contents", sa.LargeBinary(), nullable=True),
        sa.PrimaryKeyConstraint("dag", "name", name="pk_open_tables"),
    )
