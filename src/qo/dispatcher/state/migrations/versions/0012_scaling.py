"""Who decides how many workers a runtime has, which it has, and what was decided."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Instant, Name

revision = "0012"
down_revision = "0011"


def upgrade() -> None:
    op.create_table(
        "scaled_runtimes",
        sa.Column("runtime", Name, primary_key=True),
        sa.Column("scaler", Name, nullable=False),
        sa.Column("lease_until", Instant(), nullable=False),
        sa.Column("launcher", sa.String(20), nullable=False),
        *(
            sa.Column(name, sa.Integer, nullable=False)
            for name in ("min", "max", "slots", "starting", "ready", "draining", "dead")
        ),
        sa.Column("problem", sa.Text, nullable=True),
        sa.Column("reported_at", Instant(), nullable=False),
    )
    op.create_table(
        "scaling_decisions",
        sa.Column(
            "seq", sa.BigInteger().with_variant(sa.Integer(), "sqlite"), primary_key=True, autoincrement=True
        ),
        sa.Column("runtime", Name, nullable=False),
        sa.Column("scaler", Name, nullable=False),
        sa.Column("at", Instant(), nullable=False),
        sa.Column("action", sa.String(8), nullable=False),
        sa.Column("workers", sa.Integer, nullable=False),
        sa.Column("code", sa.String(40), nullable=False),
        sa.Column("reason", sa.Text, nullable=False),
    )
    op.create_index("ix_scaling_decisions_runtime", "scaling_decisions", ["runtime", "seq"])
