"""The sinks of published datasets."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Json

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    op.add_column("publications", sa.Column("sink", Json(), nullable=True))
