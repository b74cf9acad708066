"""What the purge of history needs: when versions ended, and which tasks were purged; tables with many deletions are
vacuumed early."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant

revision = "0021"
down_revision = "0020"

PURGED = ("tasks", "attempts", "task_inputs", "events", "deliveries", "outbox", "emissions")
# By default a table is vacuumed when a fifth of it is dead: with millions of rows that is seldom, and much at once.
VACUUM = "autovacuum_vacuum_scale_factor = 0.02, autovacuum_analyze_scale_factor = 0.02"


def upgrade() -> None:
    op.create_table(
        "purged_tasks",
        sa.Column("id", Id, nullable=False),
        sa.Column("purged_at", Instant, nullable=False),
        sa.PrimaryKeyConstraint("id", name="pk_purged_tasks"),
    )
    op.add_column("dag_versions", sa.Column("ended_at", Instant, nullable=True))
    # When they ended is not known: they are kept as if it were now.
    now = "CURRENT_TIMESTAMP"
    if op.get_bind().dialect.name == "sqlite":
        now = "strftime('%Y-%m-%d %H:%M:%f000', 'now')"
    op.execute(f"UPDATE dag_versions SET ended_at = {now} WHERE status NOT IN ('staged', 'ready', 'active')")
    if op.get_bind().dialect.name == "postgresql":
        for table in PURGED:
            op.execute(f"ALTER TABLE {table} SET ({VACUUM})")
