"""An index of the tasks of backfills by the bytes of their keys."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

revision = "0018"
down_revision = "0015"


def upgrade() -> None:
    is_backfill = sa.text("substr(dedupe_key, 1, 9) = 'backfill:'")
    op.create_index(
        "ix_tasks_backfill",
        "tasks",
        ["edition_id", "dedupe_key"],
        postgresql_ops={"dedupe_key": "varchar_pattern_ops"},
        postgresql_where=is_backfill,
        sqlite_where=is_backfill,
    )
