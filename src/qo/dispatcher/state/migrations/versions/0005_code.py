"""Which code the jobs of a version run, and which an attempt has run."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Json

revision = "0005"
down_revision = "0004"


def upgrade() -> None:
    op.add_column("jobs", sa.Column("bundle", sa.String(64), nullable=True))
    op.add_column("attempts", sa.Column("code", sa.String(64), nullable=True))
    op.add_column("attempts", sa.Column("packages", Json, nullable=True))
