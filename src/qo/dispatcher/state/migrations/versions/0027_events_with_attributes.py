"""An index of the events that have attributes: a task that no event starts gets those of the last one."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0027"
down_revision = "0026"


def upgrade() -> None:
    has_attributes = sa.text("attributes IS NOT NULL")
    op.create_index(
        "ix_events_attributes",
        "events",
        ["generation_id", "partition_key", "seq"],
        postgresql_where=has_attributes,
        sqlite_where=has_attributes,
    )
