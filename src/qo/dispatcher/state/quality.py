"""Tables of what is known about data: its columns, whether it was good enough, and what is to be made once more."""

from __future__ import annotations

import sqlalchemy as sa

from qo.core.pipeline.states import BackfillState
from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, metadata, where

generation_columns = sa.Table(
    "generation_columns",  # The columns of a generation, each time they changed: valid from a revision on.
    metadata,
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("revision", sa.BigInteger, primary_key=True),
    column("schema_hash", sa.String(64)),
    column("columns", Json),
)

column_lineage = sa.Table(
    "column_lineage",  # What the columns of a generation are made from: a row for each that its commits reported.
    metadata,
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("lineage_hash", sa.String(64), primary_key=True),
    column("revision", sa.BigInteger),  # Of the first commit that reported it.
    column("lineage", Json),
)

checks = sa.Table(
    "checks",  # What was expected of an output, and found.
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
    column("severity", sa.String(4)),  # fail, warn
    column("passed", sa.Boolean),
    column("observed", Json, null=True),
    column("expected", Json, null=True),
    column("at", Instant),
    sa.Index("ix_checks_dataset", "dataset_id", "at"),
    sa.Index("ix_checks_at", "at"),
    sa.Index("ix_checks_failed", "at", **where("NOT passed")),
    sa.Index("ix_checks_failed_dataset", "dataset_id", "at", **where("NOT passed")),
)

rejections = sa.Table(
    "rejections",  # Outputs that were not good enough: kept for a while, for people to look at.
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

backfills = sa.Table(
    "backfills",  # Partitions that somebody wants made once more, a few at a time.
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("edition_id", Id),
    column("from_key", Name, null=True),  # The first partition, …
    column("to_key", Name, null=True),  # … and the last.
    column("at_once", sa.Integer),  # So many tasks of it are open at a time.
    column("state", sa.String(12)),  # BackfillState
    column("after_key", Name, null=True),  # How far tasks have been made.
    column("made", sa.BigInteger),
    column("created_at", Instant),
    column("created_by", Name),
    column("ended_at", Instant, null=True),
    sa.Index("ix_backfills_open", "created_at", **where(f"state = '{BackfillState.RUNNING}'")),
)
