"""What there is: committed data; sources, pressure and access."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, names, seq, where

revision = "0003"
down_revision = "0002"

metadata = sa.MetaData(naming_convention=names)

sa.Table(
    "partitions",
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("revision", sa.BigInteger),
    column("location", sa.Text, null=True),
    column("files", Json, null=True),
    column("rows", sa.BigInteger, null=True),
    column("bytes", sa.BigInteger, null=True),
    column("schema_hash", sa.String(64), null=True),
    column("task_id", Id),
    column("committed_at", Instant),
    sa.Index("ix_partitions_revision", "generation_id", "revision"),
)

sa.Table(
    "commits",
    metadata,
    seq("revision"),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("cursor", sa.BigInteger, null=True),
    column("location", sa.Text, null=True),
    column("files", Json, null=True),
    column("rows", sa.BigInteger, null=True),
    column("bytes", sa.BigInteger, null=True),
    column("schema_hash", sa.String(64), null=True),
    column("task_id", Id),
    column("attempt", sa.Integer),
    column("committed_at", Instant),
    column("replaced_by", sa.BigInteger, null=True),
    column("stats", Json, null=True),
    column("collected_at", Instant, null=True),
    sa.Index("ix_commits_task_id", "task_id", "attempt"),
    sa.Index("ix_commits_segments", "generation_id", "cursor", **where("cursor IS NOT NULL")),
    sa.Index("ix_commits_partition", "generation_id", "partition_key", "revision"),
    sa.Index("ix_commits_replaced", "replaced_by", **where("replaced_by IS NOT NULL")),
)

sa.Table(
    "loans",
    metadata,
    sa.Column("revision", sa.BigInteger, primary_key=True),
    sa.Column("made_by", sa.BigInteger, primary_key=True),
    sa.Index("ix_loans_made_by", "made_by"),
)

sa.Table(
    "cursors",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    column("dataset_id", Id),
    column("value", sa.BigInteger),
    column("updated_at", Instant),
)

sa.Table(
    "invalidations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("row_filter", Json, null=True),
    column("revision", sa.BigInteger, null=True),
    column("reason", sa.String(20)),
    column("source_task_id", Id, null=True),
    column("created_at", Instant),
    column("created_by", Name, null=True),
    column("spread_at", Instant, null=True),
    column("processed_at", Instant, null=True),
    sa.Index("ix_invalidations_open", "created_at", **where("processed_at IS NULL")),
    sa.Index("ix_invalidations_unspread", "created_at", **where("spread_at IS NULL")),
    sa.Index("ix_invalidations_partition", "generation_id", "partition_key"),
)

sa.Table(
    "invalidation_readers",
    metadata,
    sa.Column("invalidation_id", Id, sa.ForeignKey("invalidations.id"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    column("task_id", Id, null=True, index=True),
    column("processed_at", Instant, null=True),
    sa.Index("ix_invalidation_readers_open", "edition_id", "invalidation_id", **where("processed_at IS NULL")),
)

sa.Table(
    "operator_state",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    column("value", Json),
    column("updated_at", Instant),
)


sa.Table(
    "sources",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("kind", sa.String(12)),
    column("state", sa.String(12)),
    column("task_id", Id, null=True),
    column("restarts", sa.Integer),
    column("start_after", Instant, null=True),
    column("heard_at", Instant, null=True),
    column("last_error", sa.Text, null=True),
    column("memory", Json, null=True),
    column("updated_at", Instant),
)

sa.Table(
    "emissions",
    metadata,
    sa.Column("logical_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    column("request_hash", sa.String(64)),
    column("answer", Json),
    column("at", Instant),
    sa.Index("ix_emissions_at", "at"),
)

sa.Table(
    "queues",
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("depth", sa.BigInteger),
    column("oldest_s", sa.Float),
    column("tripped_at", Instant, null=True),
    column("reason", sa.Text, null=True),
    column("measured_at", Instant),
)

sa.Table(
    "holds",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("reason", sa.Text),
    column("since", Instant),
)

sa.Table(
    "bundles",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("sha256", sa.String(64)),
    column("location", sa.Text),
    column("state", sa.String(12)),
    column("manifest", Json, null=True),
    column("created_at", Instant),
    column("created_by", Name),
)

sa.Table(
    "api_tokens",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("name", Name),
    column("role", sa.String(12)),
    column("hash", sa.String(64), unique=True),
    column("created_at", Instant),
    column("expires_at", Instant, null=True),
    column("revoked_at", Instant, null=True),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
