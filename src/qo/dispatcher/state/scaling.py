"""Tables of scaling: who decides for which runtime, which workers it has, and what was decided."""

from __future__ import annotations

import sqlalchemy as sa

from qo.dispatcher.state.column_types import Instant, Name, column, metadata, seq

scaled_runtimes = sa.Table(
    "scaled_runtimes",
    metadata,
    sa.Column("runtime", Name, primary_key=True),
    column("scaler", Name),  # Whoever decides for it until ``lease_until``.
    column("lease_until", Instant),
    column("launcher", sa.String(20)),
    column("min", sa.Integer),
    column("max", sa.Integer),
    column("slots", sa.Integer),
    column("starting", sa.Integer),
    column("ready", sa.Integer),
    column("draining", sa.Integer),
    column("dead", sa.Integer),
    column("problem", sa.Text, null=True),
    column("reported_at", Instant),
)

scaling_decisions = sa.Table(
    "scaling_decisions",
    metadata,
    seq(),
    column("runtime", Name),
    column("scaler", Name),
    column("at", Instant),
    column("action", sa.String(8)),
    column("workers", sa.Integer),
    column("code", sa.String(40)),
    column("reason", sa.Text),
    sa.Index("ix_scaling_decisions_runtime", "runtime", "seq"),
)
