"""What the branch "next" of a table shows, and which of its documents readers of files are led to."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0019"
down_revision = "0018"


def upgrade() -> None:
    op.add_column("open_tables", sa.Column("next_revision", sa.BigInteger(), nullable=True))
    op.add_column("open_tables", sa.Column("hinted_version", sa.Integer(), nullable=False, server_default="0"))
