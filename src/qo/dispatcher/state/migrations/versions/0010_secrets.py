"""Signing keys and secrets of webhooks, encrypted."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Name

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    op.create_table(
        "secrets",
        sa.Column("name", Name, primary_key=True),
        sa.Column("revision", Id, nullable=False),
        sa.Column("sealed", sa.Text, nullable=False),
        sa.Column("sealed_with", sa.String(64), nullable=False),
        sa.Column("created_at", Instant(), nullable=False),
        sa.Column("changed_at", Instant(), nullable=False),
    )
