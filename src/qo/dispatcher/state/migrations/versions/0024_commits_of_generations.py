"""The newest commits of a generation, without sorting all of them."""

from __future__ import annotations

from alembic import op

revision = "0024"
down_revision = "0023"


def upgrade() -> None:
    op.create_index("ix_commits_generation", "commits", ["generation_id", "revision"])
