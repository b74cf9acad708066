"""Tables of committed data, sources, pressure and access."""

from __future__ import annotations

from typing import Any

import sqlalchemy as sa

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, metadata, seq, where

partitions = sa.Table(
    "partitions",  # The committed state of each partition. ``location`` is the commit.
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("revision", sa.BigInteger),  # Of its last commit.
    column("location", sa.Text, null=True),
    column("files", Json, null=True),
    column("rows", sa.BigInteger, null=True),
    column("bytes", sa.BigInteger, null=True),
    column("schema_hash", sa.String(64), null=True),
    column("task_id", Id),
    column("committed_at", Instant),
    sa.Index("ix_partitions_revision", "generation_id", "revision"),
)

commits = sa.Table(
    "commits",  # Every commit, in order. Segments (cursor outputs) are only here.
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
    column("collected_at", Instant, null=True),  # When its files were collected.
    column("file_stats", sa.LargeBinary, null=True),  # Of each file and column, packed; only tables need them.
    sa.Index("ix_commits_task_id", "task_id", "attempt"),
    sa.Index("ix_commits_segments", "generation_id", "cursor", **where("cursor IS NOT NULL")),
    sa.Index("ix_commits_generation", "generation_id", "revision"),
    sa.Index("ix_commits_partition", "generation_id", "partition_key", "revision"),
    sa.Index("ix_commits_replaced", "replaced_by", **where("replaced_by IS NOT NULL")),
)

generation_sums = sa.Table(
    "generation_sums",  # What commits add to the sums of a generation: several rows, so that none waits for another.
    metadata,
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("share", sa.Integer, primary_key=True, autoincrement=False),
    column("partitions", sa.BigInteger),
    column("segments", sa.BigInteger),
    column("rows", sa.BigInteger),
    column("bytes", sa.BigInteger),
    column("revision", sa.BigInteger),  # The last of this share.
)

loans = sa.Table(
    "loans",  # Commits that name files of other commits.
    metadata,
    sa.Column("revision", sa.BigInteger, primary_key=True),
    sa.Column("made_by", sa.BigInteger, primary_key=True),  # A revision, too.
    sa.Index("ix_loans_made_by", "made_by"),
)

cursors = sa.Table(
    "cursors",  # How far an edition has read a generation: a cursor of it or, of a PerChange job, a revision.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    column("dataset_id", Id),
    column("value", sa.BigInteger),
    column("updated_at", Instant),
)

invalidations = sa.Table(
    "invalidations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("row_filter", Json, null=True),
    column("revision", sa.BigInteger, null=True),  # The commit that replaced what others had read.
    column("reason", sa.String(20)),  # InvalidationReason
    column("source_task_id", Id, null=True),
    column("created_at", Instant),
    column("created_by", Name, null=True),
    column("spread_at", Instant, null=True),  # When its readers' tasks were created.
    column("processed_at", Instant, null=True),  # When all of them were done.
    sa.Index("ix_invalidations_open", "created_at", **where("processed_at IS NULL")),
    sa.Index("ix_invalidations_unspread", "created_at", **where("spread_at IS NULL")),
    sa.Index("ix_invalidations_partition", "generation_id", "partition_key"),
)

invalidation_readers = sa.Table(
    "invalidation_readers",
    metadata,
    sa.Column("invalidation_id", Id, sa.ForeignKey("invalidations.id"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    column("task_id", Id, null=True, index=True),
    column("processed_at", Instant, null=True),
    sa.Index("ix_invalidation_readers_open", "edition_id", "invalidation_id", **where("processed_at IS NULL")),
)

operator_state = sa.Table(
    "operator_state",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    column("value", Json),
    column("updated_at", Instant),
)

sources = sa.Table(
    "sources",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("kind", sa.String(12)),
    column("state", sa.String(12)),  # SourceState; of kinds that nobody supervises always "running".
    column("task_id", Id, null=True),
    column("restarts", sa.Integer),
    column("start_after", Instant, null=True),
    column("heard_at", Instant, null=True),
    column("last_error", sa.Text, null=True),
    column("memory", Json, null=True),  # The state of a watcher.
    column("updated_at", Instant),
)

emissions = sa.Table(
    "emissions",  # Answers to emissions of sources, by idempotency key.
    metadata,
    sa.Column("logical_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    column("request_hash", sa.String(64)),
    column("answer", Json),
    column("at", Instant),
    sa.Index("ix_emissions_at", "at"),
)

queues = sa.Table(
    "queues",  # Pressure, as last measured.
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("depth", sa.BigInteger),
    column("oldest_s", sa.Float),
    column("tripped_at", Instant, null=True),
    column("reason", sa.Text, null=True),
    column("measured_at", Instant),
)

job_pressure = sa.Table(
    "job_pressure",  # Of jobs with thresholds of their own, as last measured.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("depth", sa.BigInteger),
    column("oldest_s", sa.Float),
    column("tripped_at", Instant, null=True),
    column("reason", sa.Text, null=True),
    column("measured_at", Instant),
)

holds = sa.Table(
    "holds",  # Why the tasks of an edition are withheld now.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("reason", sa.Text),
    column("since", Instant),
)

bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("sha256", sa.String(64)),
    column("location", sa.Text),
    column("state", sa.String(12)),  # BundleState
    column("manifest", Json, null=True),
    column("created_at", Instant),
    column("created_by", Name),
)

api_tokens = sa.Table(
    "api_tokens",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("name", Name),
    column("role", sa.String(12)),  # reader, writer, admin, worker
    column("hash", sa.String(64), unique=True),
    column("created_at", Instant),
    column("expires_at", Instant, null=True),
    column("revoked_at", Instant, null=True),
    column("runtimes", Json, null=True),  # Of a worker: the only ones whose tasks it may claim.
    column("queues", Json, null=True),  # The same for queues.
)

# Signing keys and secrets of webhooks, encrypted with a key that is not in the database.
secrets = sa.Table(
    "secrets",
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("revision", Id),  # Another one whenever it is written.
    column("sealed", sa.Text),
    column("sealed_with", sa.String(64)),  # The id of the key.
    column("created_at", Instant),
    column("changed_at", Instant),
)


def select_commits() -> sa.Select[*tuple[Any, ...]]:
    """Select commits without the statistics of their files, which may be large, and which only tables need."""
    columns: list[sa.Column[Any]] = [each for each in commits.c if each.name != "file_stats"]
    return sa.select(*columns)
