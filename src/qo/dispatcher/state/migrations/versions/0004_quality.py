"""What is known about data: columns, checks, rejected outputs, and what is to be made once more."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, names, where

revision = "0004"
down_revision = "0003"

metadata = sa.MetaData(naming_convention=names)

sa.Table(
    "generation_columns",
    metadata,
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("revision", sa.BigInteger, primary_key=True),
    column("schema_hash", sa.String(64)),
    column("columns", Json),
)

sa.Table(
    "checks",
    metadata,
    sa.Column("task_id", Id, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("partition_key", Name, null=True),
    column("cursor", sa.BigInteger, null=True),
    column("name", sa.Text),
    column("kind", sa.String(20)),
    column("severity", sa.String(4)),
    column("passed", sa.Boolean),
    column("observed", Json, null=True),
    column("expected", Json, null=True),
    column("at", Instant),
    sa.Index("ix_checks_dataset", "dataset_id", "at"),
    sa.Index("ix_checks_at", "at"),
    sa.Index("ix_checks_failed", "at", **where("NOT passed")),
    sa.Index("ix_checks_failed_dataset", "dataset_id", "at", **where("NOT passed")),
)

sa.Table(
    "rejections",
    metadata,
    sa.Column("task_id", Id, primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    sa.Column("output", sa.Integer, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("partition_key", Name, null=True),
    column("cursor", sa.BigInteger, null=True),
    column("location", sa.Text),
    column("files", Json),
    column("rows", sa.BigInteger, null=True),
    column("bytes", sa.BigInteger, null=True),
    column("columns", Json, null=True),
    column("reason", sa.Text),
    column("at", Instant),
    sa.Index("ix_rejections_dataset", "dataset_id", "at"),
    sa.Index("ix_rejections_partition", "dataset_id", "partition_key", "at"),
    sa.Index("ix_rejections_at", "at"),
)

sa.Table(
    "backfills",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("edition_id", Id),
    column("from_key", Name, null=True),
    column("to_key", Name, null=True),
    column("at_once", sa.Integer),
    column("state", sa.String(12)),
    column("after_key", Name, null=True),
    column("made", sa.BigInteger),
    column("created_at", Instant),
    column("created_by", Name),
    column("ended_at", Instant, null=True),
    sa.Index("ix_backfills_open", "created_at", **where("state = 'running'")),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
