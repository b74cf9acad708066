"""When the jobs of each version were last written, so that others need not be read again."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0025"
down_revision = "0024"


def upgrade() -> None:
    op.add_column("dag_versions", sa.Column("jobs_epoch", sa.BigInteger(), server_default="0", nullable=False))
