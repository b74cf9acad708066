"""What tokens of workers are bound to, and with whose rights attempts read and wrote."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Json

revision = "0013"
down_revision = "0012"


def upgrade() -> None:
    op.add_column("api_tokens", sa.Column("runtimes", Json, nullable=True))
    op.add_column("api_tokens", sa.Column("queues", Json, nullable=True))
    op.add_column("attempts", sa.Column("data_access", sa.String(20), nullable=True))
