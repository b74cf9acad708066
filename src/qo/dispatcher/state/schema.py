"""The tables. Written in what SQLite and PostgreSQL have in common; ``migrations/`` creates and changes them.

Ids are texts, times are UTC, JSON is text: a person with a SQL prompt can read everything.
"""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import msgspec
import sqlalchemy as sa
from sqlalchemy.types import TypeDecorator

metadata = sa.MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Id = sa.String(36)
Name = sa.String(200)


class Instant(TypeDecorator[datetime]):
    """A moment in UTC. SQLite keeps it as text of fixed width, which sorts as the moments do."""

    impl = sa.DateTime(timezone=True)
    cache_ok = True

    def process_bind_param(self, value: datetime | None, dialect: Any) -> datetime | None:
        return value if value is None or dialect.name != "sqlite" else value.astimezone(UTC).replace(tzinfo=None)

    def process_result_value(self, value: datetime | None, dialect: Any) -> datetime | None:
        if value is None:
            return None
        return value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)


class Json(TypeDecorator[Any]):
    """A value as JSON text."""

    impl = sa.Text
    cache_ok = True

    def process_bind_param(self, value: Any, dialect: Any) -> str | None:
        return None if value is None else msgspec.json.encode(value).decode()

    def process_result_value(self, value: str | None, dialect: Any) -> Any:
        return None if value is None else msgspec.json.decode(value)


def _column(name: str, kind: Any, *more: Any, null: bool = False, **options: Any) -> sa.Column[Any]:
    return sa.Column(name, kind, *more, nullable=null, **options)


def _seq(name: str = "seq") -> sa.Column[Any]:
    # SQLite counts by itself only in a column that is an INTEGER.
    kind = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
    return sa.Column(name, kind, primary_key=True, autoincrement=True)


def _where(clause: str) -> dict[str, Any]:
    """A partial index: only the rows that a loop looks for."""
    return {"sqlite_where": sa.text(clause), "postgresql_where": sa.text(clause)}


# Definitions

topology = sa.Table(
    "topology",
    metadata,
    sa.Column(
        "id", sa.Integer, primary_key=True
    ),  # One row. Locked shared by who routes, for writing by who deploys.
    _column("epoch", sa.BigInteger),
)

dags = sa.Table(
    "dags",
    metadata,
    sa.Column("name", Name, primary_key=True),
    _column("active_version_id", Id, null=True),
    _column("previous_version_id", Id, null=True),  # Where a rollback goes.
    _column("updated_at", Instant),
)

dag_versions = sa.Table(
    "dag_versions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("dag", Name),
    _column("number", sa.Integer),
    _column("content_hash", sa.String(64)),
    _column("document", sa.Text),  # Canonical JSON of the resolved DAG.
    _column("source", sa.Text),  # As it was sent.
    _column("status", sa.String(20)),
    _column("created_at", Instant),
    _column("created_by", Name),
    _column("ready_at", Instant, null=True),
    _column("activated_at", Instant, null=True),
    sa.UniqueConstraint("dag", "content_hash"),
    sa.UniqueConstraint("dag", "number"),
    sa.Index("ix_dag_versions_live", "status", **_where("status IN ('staged', 'ready', 'active')")),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("version_id", Id, sa.ForeignKey("dag_versions.id")),
    _column("dag", Name),
    _column("name", Name),
    _column("logical_id", Id),
    _column("edition_id", Id, index=True),
    _column("config_hash", sa.String(64)),
    _column("queue", Name),
    _column("definition", Json),  # The job, as in the resolved DAG.
    sa.UniqueConstraint("version_id", "name"),
)

job_inputs = sa.Table(
    "job_inputs",
    metadata,
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    _column("name", Name),
    _column("dataset_id", Id, index=True),
    _column("generation_id", Id, null=True),
    _column("trigger_", sa.Boolean),
    _column("where_", Json, null=True),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("dag", Name),
    _column("job", Name),
    _column("output", sa.Integer),
    _column("created_at", Instant),
    sa.UniqueConstraint("dag", "job", "output"),
)

publications = sa.Table(
    "publications",  # Names of datasets, as the active versions publish them.
    metadata,
    sa.Column("name", Name, primary_key=True),
    _column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    _column("dag", Name, index=True),
)

generations = sa.Table(
    "generations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    _column("edition_id", Id, index=True),
    _column("config_hash", sa.String(64)),
    _column("created_at", Instant),
    _column("partitions", sa.BigInteger, server_default="0"),  # Sums over what is committed and not replaced.
    _column("segments", sa.BigInteger, server_default="0"),
    _column("rows", sa.BigInteger, server_default="0"),
    _column("bytes", sa.BigInteger, server_default="0"),
    _column("cursor", sa.BigInteger, null=True),  # The furthest one announced.
)

version_generations = sa.Table(
    "version_generations",  # The pointer set of a version: cutover and rollback choose a whole one.
    metadata,
    sa.Column("version_id", Id, sa.ForeignKey("dag_versions.id"), primary_key=True),
    sa.Column("dataset_id", Id, sa.ForeignKey("datasets.id"), primary_key=True),
    _column("generation_id", Id, sa.ForeignKey("generations.id"), index=True),
)

pauses = sa.Table(
    "pauses",
    metadata,
    sa.Column("scope", sa.String(401), primary_key=True),  # "dag" or "dag.job"
    _column("reason", sa.Text),
    _column("by", Name),
    _column("at", Instant),
)

# Events

events = sa.Table(
    "events",
    metadata,
    _seq(),
    _column("id", Id, unique=True),
    _column("dataset_id", Id),
    _column("generation_id", Id),
    _column("cursor", sa.BigInteger, null=True),
    _column("partition_key", Name, null=True),
    _column("start", sa.BigInteger, null=True),
    _column("end", sa.BigInteger, null=True),
    _column("attributes", Json, null=True),
    _column("producer_task_id", Id, null=True, index=True),
    _column("producer_attempt", sa.Integer, null=True),
    _column("received_at", Instant),
    # pending (not routed yet), routed (see deliveries), superseded, filtered
    _column("state", sa.String(12)),
    _column("reason", sa.Text, null=True),
    _column("fanout", sa.Integer, server_default="0"),  # How many deliveries it has.
    sa.Index("ix_events_pending", "seq", **_where("state = 'pending'")),
    sa.Index("ix_events_partition", "dataset_id", "generation_id", "partition_key", "seq"),
    sa.Index("ix_events_dataset", "dataset_id", "seq"),
)

deliveries = sa.Table(
    "deliveries",  # What became of an event at one of its readers.
    metadata,
    sa.Column("event_seq", sa.BigInteger, sa.ForeignKey("events.seq"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    _column("dataset_id", Id),
    _column("partition_key", Name, null=True),
    _column("outcome", sa.String(12)),  # consumed, merged, superseded, filtered, pending
    _column("reason", sa.Text, null=True),
    _column("task_id", Id, null=True, index=True),
    sa.Index("ix_deliveries_pending", "edition_id", "partition_key", **_where("outcome = 'pending'")),
)

tallies = sa.Table(
    "tallies",  # Counts of events (edition_id '') and deliveries, kept in the transactions that change them.
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("outcome", sa.String(12), primary_key=True),
    _column("n", sa.BigInteger),
)

# Tasks

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("job_id", Id),  # The row of the version that asked for it.
    _column("edition_id", Id),
    _column("logical_id", Id),
    _column("dag", Name),
    _column("job", Name),
    _column("operator", Name),
    _column("queue", Name),
    _column("dedupe_key", sa.String(400)),
    # What it is about
    _column("event_seq", sa.BigInteger, null=True),  # What started it.
    _column("dataset_id", Id, null=True),
    _column("generation_id", Id, null=True),
    _column("partition_key", Name, null=True),
    _column("start", sa.BigInteger, null=True),
    _column("end", sa.BigInteger, null=True),
    _column("cursor", sa.BigInteger, null=True),
    _column("attributes", Json, null=True),
    _column("invalidation_id", Id, null=True),
    # Its life, as core.lifecycle has it
    _column("status", sa.String(12)),
    _column("token", sa.String(40)),
    _column("attempt", sa.Integer),
    _column("available_at", Instant),
    _column("lease_id", Id, null=True),
    _column("lease_expires_at", Instant, null=True),
    _column("settled_lease_id", Id, null=True),
    _column(
        "late_lease_id", Id, null=True
    ),  # Of an attempt that timed out: may still finish until the next begins.
    _column("worker_id", Name, null=True),
    _column("timeout_seconds", sa.Float, null=True),
    _column("lease_s", sa.Float),
    _column("retry_count", sa.Integer),
    _column("max_retries", sa.Integer),
    _column("deliveries", sa.Integer),
    _column("max_deliveries", sa.Integer),
    _column("last_error", sa.Text, null=True),
    _column("traceback", sa.Text, null=True),
    _column("cancel_requested", sa.Boolean),
    _column("cancelled_by", Name, null=True),
    _column("cancel_reason", sa.Text, null=True),
    _column("progress", Json, null=True),
    _column("output", Json, null=True),
    _column("traceparent", sa.String(100), null=True),
    _column("created_at", Instant),
    _column("updated_at", Instant),
    _column("started_at", Instant, null=True),
    _column("completed_at", Instant, null=True),
    # Its wake-up
    _column("released_at", Instant, null=True),  # None: withheld. Set while a wake-up is on its way or it runs.
    _column("wakes", sa.Integer),  # Wake-ups so far: makes each one's id its own.
    sa.UniqueConstraint("edition_id", "dedupe_key"),
    sa.Index(
        "ix_tasks_withheld", "edition_id", "available_at", **_where("status = 'pending' AND released_at IS NULL")
    ),
    sa.Index(
        "ix_tasks_released", "queue", "released_at", **_where("status = 'pending' AND released_at IS NOT NULL")
    ),
    sa.Index(
        "ix_tasks_inflight",
        "logical_id",
        **_where("status = 'running' OR (status = 'pending' AND released_at IS NOT NULL)"),
    ),
    sa.Index("ix_tasks_leases", "lease_expires_at", **_where("status = 'running'")),
    sa.Index("ix_tasks_edition", "edition_id", "status", "created_at"),
    sa.Index("ix_tasks_partition", "edition_id", "partition_key"),
    sa.Index("ix_tasks_created", "created_at"),
    sa.Index("ix_tasks_status", "status", "created_at"),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    _column("lease_id", Id),
    _column("worker_id", Name, null=True),
    _column("started_at", Instant),
    _column("ended_at", Instant, null=True),
    _column("outcome", sa.String(20), null=True),  # completed, failed, retried, released, timed_out, cancelled
    _column("error", sa.Text, null=True),
)

task_inputs = sa.Table(
    "task_inputs",  # Lineage: which committed revision of what was read.
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),  # '' for a cursor range or a whole dataset
    _column("dataset_id", Id),
    _column("generation_id", Id),
    _column("revision", sa.BigInteger, null=True),
    _column("cursor_after", sa.BigInteger, null=True),
    _column("cursor_upto", sa.BigInteger, null=True),
    sa.Index("ix_task_inputs_read", "generation_id", "partition_key"),
)

outbox = sa.Table(
    "outbox",  # Side effects, decided together with the state that wants them.
    metadata,
    _seq(),
    _column("id", Id, unique=True),  # Follows from what it does, so deciding twice writes once.
    _column("kind", sa.String(12)),  # wake, invoke, run, revoke
    _column("queue", Name),
    _column("task_id", Id),
    _column("payload", Json, null=True),
    _column("state", sa.String(8)),  # pending, done, dead
    _column("available_at", Instant),  # Also how long a publisher that took it keeps others away.
    _column("attempts", sa.Integer),
    _column("last_error", sa.Text, null=True),
    _column("created_at", Instant),
    _column("done_at", Instant, null=True),
    sa.Index("ix_outbox_pending", "available_at", **_where("state = 'pending'")),
    sa.Index("ix_outbox_done", "done_at", **_where("state = 'done'")),
)

# Data

partitions = sa.Table(
    "partitions",  # The committed state of each partition. ``location`` is the commit.
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),
    _column("start", sa.BigInteger, null=True),
    _column("end", sa.BigInteger, null=True),
    _column("revision", sa.BigInteger),  # The commit that made it.
    _column("location", sa.Text, null=True),
    _column("files", Json, null=True),
    _column("rows", sa.BigInteger, null=True),
    _column("bytes", sa.BigInteger, null=True),
    _column("schema_hash", sa.String(64), null=True),
    _column("task_id", Id),
    _column("committed_at", Instant),
    sa.Index("ix_partitions_revision", "generation_id", "revision"),
)

commits = sa.Table(
    "commits",  # Every commit that ever was, in order. Segments (cursor outputs) live only here.
    metadata,
    _seq("revision"),
    _column("dataset_id", Id),
    _column("generation_id", Id),
    _column("partition_key", Name, null=True),
    _column("cursor", sa.BigInteger, null=True),
    _column("location", sa.Text, null=True),
    _column("files", Json, null=True),
    _column("rows", sa.BigInteger, null=True),
    _column("bytes", sa.BigInteger, null=True),
    _column("schema_hash", sa.String(64), null=True),
    _column("task_id", Id, index=True),
    _column("attempt", sa.Integer),
    _column("committed_at", Instant),
    _column("replaced_by", sa.BigInteger, null=True),
    sa.Index("ix_commits_segments", "generation_id", "cursor", **_where("cursor IS NOT NULL")),
    sa.Index("ix_commits_partition", "generation_id", "partition_key", "revision"),
)

cursors = sa.Table(
    "cursors",  # How far an edition has read a generation.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("generation_id", Id, primary_key=True),
    _column("dataset_id", Id),
    _column("value", sa.BigInteger),
    _column("updated_at", Instant),
)

invalidations = sa.Table(
    "invalidations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("dataset_id", Id),
    _column("generation_id", Id),
    _column("partition_key", Name, null=True),
    _column("start", sa.BigInteger, null=True),
    _column("end", sa.BigInteger, null=True),
    _column("row_filter", Json, null=True),
    _column("revision", sa.BigInteger, null=True),  # The commit that replaced what others had read.
    _column("reason", sa.String(20)),  # replaced, reorg, correction, manual, schema_change
    _column("source_task_id", Id, null=True),
    _column("created_at", Instant),
    _column("created_by", Name, null=True),
    _column("spread_at", Instant, null=True),  # When its readers' tasks were made.
    _column("processed_at", Instant, null=True),  # When all of them were done.
    sa.Index("ix_invalidations_open", "created_at", **_where("processed_at IS NULL")),
    sa.Index("ix_invalidations_partition", "generation_id", "partition_key"),
)

invalidation_readers = sa.Table(
    "invalidation_readers",
    metadata,
    sa.Column("invalidation_id", Id, sa.ForeignKey("invalidations.id"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    _column("task_id", Id, null=True, index=True),
    _column("processed_at", Instant, null=True),
)

operator_state = sa.Table(
    "operator_state",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    _column("value", Json),
    _column("updated_at", Instant),
)

# Sources, pressure, access

sources = sa.Table(
    "sources",
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    _column("dag", Name),
    _column("job", Name),
    _column("kind", sa.String(12)),
    _column("state", sa.String(12)),  # pending, running, dead, draining; others stay "running"
    _column("task_id", Id, null=True),
    _column("restarts", sa.Integer),
    _column("start_after", Instant, null=True),
    _column("heard_at", Instant, null=True),
    _column("last_error", sa.Text, null=True),
    _column("memory", Json, null=True),  # What a watcher has seen so far.
    _column("updated_at", Instant),
)

emissions = sa.Table(
    "emissions",  # What sources were told, by idempotency key.
    metadata,
    sa.Column("logical_id", Id, primary_key=True),
    sa.Column("key", Name, primary_key=True),
    _column("request_hash", sa.String(64)),
    _column("answer", Json),
    _column("at", Instant),
)

queues = sa.Table(
    "queues",  # Pressure, as last measured.
    metadata,
    sa.Column("name", Name, primary_key=True),
    _column("depth", sa.BigInteger),
    _column("oldest_s", sa.Float),
    _column("tripped_at", Instant, null=True),
    _column("reason", sa.Text, null=True),
    _column("measured_at", Instant),
)

holds = sa.Table(
    "holds",  # Why the tasks of an edition are withheld now.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    _column("reason", sa.Text),
    _column("since", Instant),
)

bundles = sa.Table(
    "bundles",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("sha256", sa.String(64)),
    _column("location", sa.Text),
    _column("state", sa.String(12)),  # uploading, final
    _column("manifest", Json, null=True),
    _column("created_at", Instant),
    _column("created_by", Name),
)

api_tokens = sa.Table(
    "api_tokens",
    metadata,
    sa.Column("id", Id, primary_key=True),
    _column("name", Name),
    _column("role", sa.String(12)),  # reader, writer, admin, worker
    _column("hash", sa.String(64), unique=True),
    _column("created_at", Instant),
    _column("expires_at", Instant, null=True),
    _column("revoked_at", Instant, null=True),
)
