"""No index of deliveries by task: nothing looks for them so, and each delivery was written to another page of it."""

from __future__ import annotations

from alembic import op

revision = "0026"
down_revision = "0025"


def upgrade() -> None:
    op.drop_index("ix_deliveries_task_id", "deliveries")
