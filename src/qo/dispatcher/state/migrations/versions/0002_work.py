"""What happens: events, deliveries, tasks, and side effects to come."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, names, seq, where

revision = "0002"
down_revision = "0001"

metadata = sa.MetaData(naming_convention=names)

sa.Table(
    "events",
    metadata,
    seq(),
    column("id", Id, unique=True),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("cursor", sa.BigInteger, null=True),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("attributes", Json, null=True),
    column("producer_task_id", Id, null=True, index=True),
    column("producer_attempt", sa.Integer, null=True),
    column("received_at", Instant),
    column("state", sa.String(12)),
    column("reason", sa.Text, null=True),
    column("fanout", sa.Integer, server_default="0"),
    sa.Index("ix_events_pending", "seq", **where("state = 'pending'")),
    sa.Index("ix_events_partition", "dataset_id", "generation_id", "partition_key", "seq"),
    sa.Index("ix_events_dataset", "dataset_id", "seq"),
)

sa.Table(
    "deliveries",
    metadata,
    sa.Column("event_seq", sa.BigInteger, sa.ForeignKey("events.seq"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    column("dataset_id", Id),
    column("partition_key", Name, null=True),
    column("outcome", sa.String(12)),
    column("reason", sa.Text, null=True),
    column("task_id", Id, null=True, index=True),
    sa.Index("ix_deliveries_pending", "edition_id", "partition_key", **where("outcome = 'pending'")),
)

sa.Table(
    "tallies",
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("outcome", sa.String(12), primary_key=True),
    column("n", sa.BigInteger),
)


sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("job_id", Id),
    column("edition_id", Id),
    column("logical_id", Id),
    column("dag", Name),
    column("job", Name),
    column("operator", Name),
    column("queue", Name),
    column("dedupe_key", sa.String(400)),
    column("event_seq", sa.BigInteger, null=True),
    column("dataset_id", Id, null=True),
    column("generation_id", Id, null=True),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("cursor", sa.BigInteger, null=True),
    column("attributes", Json, null=True),
    column("invalidation_id", Id, null=True),
    column("status", sa.String(12)),
    column("token", sa.String(40)),
    column("attempt", sa.Integer),
    column("available_at", Instant),
    column("lease_id", Id, null=True),
    column("lease_expires_at", Instant, null=True),
    column("settled_lease_id", Id, null=True),
    column("late_lease_id", Id, null=True),
    column("worker_id", Name, null=True),
    column("timeout_seconds", sa.Float, null=True),
    column("lease_s", sa.Float),
    column("retry_count", sa.Integer),
    column("max_retries", sa.Integer),
    column("deliveries", sa.Integer),
    column("max_deliveries", sa.Integer),
    column("last_error", sa.Text, null=True),
    column("traceback", sa.Text, null=True),
    column("cancel_requested", sa.Boolean),
    column("cancelled_by", Name, null=True),
    column("cancel_reason", sa.Text, null=True),
    column("progress", Json, null=True),
    column("output", Json, null=True),
    column("traceparent", sa.String(100), null=True),
    column("created_at", Instant),
    column("updated_at", Instant),
    column("started_at", Instant, null=True),
    column("completed_at", Instant, null=True),
    column("released_at", Instant, null=True),
    column("wakes", sa.Integer),
    sa.UniqueConstraint("edition_id", "dedupe_key"),
    sa.Index(
        "ix_tasks_withheld",
        "edition_id",
        "available_at",
        **where("status || '' = 'pending' AND released_at IS NULL"),
    ),
    sa.Index(
        "ix_tasks_released", "queue", "released_at", **where("status = 'pending' AND released_at IS NOT NULL")
    ),
    sa.Index(
        "ix_tasks_inflight",
        "logical_id",
        **where("status = 'running' OR (status = 'pending' AND released_at IS NOT NULL)"),
    ),
    sa.Index("ix_tasks_leases", "lease_expires_at", **where("status = 'running'")),
    sa.Index("ix_tasks_late", "id", **where("late_lease_id IS NOT NULL")),
    sa.Index("ix_tasks_edition", "edition_id", "status", "created_at"),
    sa.Index("ix_tasks_partition", "edition_id", "partition_key"),
    sa.Index("ix_tasks_dag", "dag", "status", "created_at"),
    sa.Index("ix_tasks_status", "status", "created_at"),
    sa.Index("ix_tasks_again", "edition_id", "cursor", **where("invalidation_id IS NOT NULL")),
    sa.Index(
        "ix_tasks_yielded",
        "edition_id",
        "id",
        **where("cancel_reason = 'another edition is at work on its effects'"),
    ),
)

sa.Table(
    "attempts",
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    column("lease_id", Id),
    column("worker_id", Name, null=True),
    column("started_at", Instant),
    column("ended_at", Instant, null=True),
    column("outcome", sa.String(20), null=True),
    column("error", sa.Text, null=True),
)

sa.Table(
    "task_inputs",
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),
    column("dataset_id", Id),
    column("generation_id", Id),
    column("revision", sa.BigInteger, null=True),
    column("cursor_after", sa.BigInteger, null=True),
    column("cursor_upto", sa.BigInteger, null=True),
    sa.Index("ix_task_inputs_read", "generation_id", "partition_key"),
    sa.Index("ix_task_inputs_ranges", "generation_id", "cursor_upto", **where("cursor_upto IS NOT NULL")),
)

sa.Table(
    "outbox",
    metadata,
    seq(),
    column("id", Id, unique=True),
    column("kind", sa.String(12)),
    column("queue", Name),
    column("task_id", Id),
    column("depth", sa.Integer),  # Of its job in the pipeline: the deeper goes first.
    column("state", sa.String(8)),
    column("available_at", Instant),
    column("attempts", sa.Integer),
    column("last_error", sa.Text, null=True),
    column("created_at", Instant),
    column("done_at", Instant, null=True),
    sa.Index("ix_outbox_pending", "available_at", **where("state = 'pending'")),
    sa.Index("ix_outbox_done", "done_at", **where("state = 'done'")),
    sa.Index("ix_outbox_dead", "available_at", **where("state = 'dead'")),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
