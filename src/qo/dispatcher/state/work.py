"""Tables of events, deliveries, tasks, attempts and the outbox."""

from __future__ import annotations

import sqlalchemy as sa

from qo.core.pipeline.states import CancelCode, DeliveryOutcome, EventState, OutboxState
from qo.core.task import Status
from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, metadata, seq, where

events = sa.Table(
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
    column("state", sa.String(12)),  # EventState
    column("reason", sa.Text, null=True),
    column("fanout", sa.Integer, server_default="0"),  # How many deliveries it has.
    sa.Index("ix_events_pending", "seq", **where(f"state = '{EventState.PENDING}'")),
    sa.Index("ix_events_partition", "dataset_id", "generation_id", "partition_key", "seq"),
    sa.Index("ix_events_dataset", "dataset_id", "seq"),
    sa.Index("ix_events_attributes", "generation_id", "partition_key", "seq", **where("attributes IS NOT NULL")),
)

deliveries = sa.Table(
    "deliveries",  # The outcome of an event at one of its readers.
    metadata,
    sa.Column("event_seq", sa.BigInteger, sa.ForeignKey("events.seq"), primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    column("dataset_id", Id),
    column("partition_key", Name, null=True),
    column("outcome", sa.String(12)),  # DeliveryOutcome
    column("reason", sa.Text, null=True),
    column("task_id", Id, null=True),
    sa.Index(
        "ix_deliveries_pending", "edition_id", "partition_key", **where(f"outcome = '{DeliveryOutcome.PENDING}'")
    ),
)

incomplete_partitions = sa.Table(
    "incomplete_partitions",  # Of jobs that make them of others: begun, and waiting for the rest of what they read.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),
    column("since", Instant),
    column("due_at", Instant, null=True),  # When it is made of what is there; null: it waits for all.
    sa.Index("ix_incomplete_due", "edition_id", "due_at"),
)

tallies = sa.Table(
    "tallies",  # Counts of events (edition_id '') and deliveries, kept in the transactions that change them.
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("outcome", sa.String(12), primary_key=True),
    # Each count is the sum of several shares, so that no writer waits for another.
    sa.Column("share", sa.Integer, primary_key=True, autoincrement=False),
    column("n", sa.BigInteger),
)

# Conditions of partial indexes on tasks; queries must repeat them word by word.
WITHHELD = f"status || '' = '{Status.PENDING}' AND released_at IS NULL"
RELEASED = f"status = '{Status.PENDING}' AND released_at IS NOT NULL"
RUNNING = f"status = '{Status.RUNNING}'"
IN_FLIGHT = f"{RUNNING} OR ({RELEASED})"
DEFERRED = f"cancel_code = '{CancelCode.EFFECTS_DEFERRED}'"
GIVEN_UP = f"cancel_code = '{CancelCode.VERSION_GIVEN_UP}'"
FAILED = f"status || '' = '{Status.FAILED}'"
BACKFILL = "substr(dedupe_key, 1, 9) = 'backfill:'"

tasks = sa.Table(
    "tasks",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("job_id", Id),  # The row of the job in the version that created it.
    column("edition_id", Id),
    column("logical_id", Id),
    column("dag", Name),
    column("job", Name),
    column("operator", Name),
    column("queue", Name),
    column("dedupe_key", sa.String(400)),
    column("event_seq", sa.BigInteger, null=True),  # What started it.
    column("dataset_id", Id, null=True),
    column("generation_id", Id, null=True),
    column("partition_key", Name, null=True),
    column("start", sa.BigInteger, null=True),
    column("end", sa.BigInteger, null=True),
    column("cursor", sa.BigInteger, null=True),
    column("attributes", Json, null=True),
    column("invalidation_id", Id, null=True),
    # As in core.task.Task:
    column("status", sa.String(12)),
    column("token", sa.String(40)),
    column("attempt", sa.Integer),
    column("available_at", Instant),
    column("lease_id", Id, null=True),
    column("lease_expires_at", Instant, null=True),
    column("settled_lease_id", Id, null=True),
    column(
        "late_lease_id", Id, null=True
    ),  # Of an attempt that timed out: may still finish until the next begins.
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
    column("cancel_code", sa.String(32), null=True),  # CancelCode; null: a person cancelled it, or nobody did.
    column("cancel_reason", sa.Text, null=True),  # For people.
    column("progress", Json, null=True),
    column("output", Json, null=True),
    column("traceparent", sa.String(100), null=True),
    column("created_at", Instant),
    column("updated_at", Instant),
    column("started_at", Instant, null=True),
    column("completed_at", Instant, null=True),
    column("released_at", Instant, null=True),  # None: withheld. Set while a wake-up is on its way or it runs.
    column("wakes", sa.Integer),  # Number of wake-ups so far, part of their ids.
    sa.UniqueConstraint("edition_id", "dedupe_key"),
    sa.Index(
        "ix_tasks_withheld",
        "edition_id",
        "available_at",
        **where(WITHHELD),
    ),
    sa.Index("ix_tasks_released", "queue", "released_at", **where(RELEASED)),
    sa.Index(
        "ix_tasks_inflight",
        "logical_id",
        **where(IN_FLIGHT),
    ),
    sa.Index("ix_tasks_leases", "lease_expires_at", **where(RUNNING)),
    sa.Index("ix_tasks_late", "id", **where("late_lease_id IS NOT NULL")),
    sa.Index("ix_tasks_edition", "edition_id", "status", "created_at"),
    sa.Index("ix_tasks_partition", "edition_id", "partition_key"),
    sa.Index("ix_tasks_dag", "dag", "status", "created_at"),
    sa.Index("ix_tasks_status", "status", "created_at"),
    sa.Index("ix_tasks_again", "edition_id", "cursor", **where("invalidation_id IS NOT NULL")),
    sa.Index("ix_tasks_deferred", "edition_id", "id", **where(DEFERRED)),
    sa.Index("ix_tasks_given_up", "edition_id", "id", **where(GIVEN_UP)),
    sa.Index("ix_tasks_failed", "edition_id", "created_at", "id", **where(FAILED)),
    # By bytes: keys with one beginning are neighbours in this order, and need not be in that of a language.
    sa.Index(
        "ix_tasks_backfill",
        "edition_id",
        "dedupe_key",
        postgresql_ops={"dedupe_key": "varchar_pattern_ops"},
        **where(BACKFILL),
    ),
)

bulk_changes = sa.Table(
    "bulk_changes",  # Editions whose tasks are being cancelled or revived, a chunk at a time; gone when all are.
    metadata,
    sa.Column("edition_id", Id, primary_key=True),
    column("kind", sa.String(8)),  # BulkChangeKind
    column("by", Name, null=True),  # Of a cancellation, as are reason and code.
    column("reason", sa.Text, null=True),
    column("code", sa.String(32), null=True),
    column("token", sa.String(40)),
    column("after", sa.Text, null=True),  # How far this pass over the tasks has come; null: it begins.
    column("requested_at", Instant),
)

attempts = sa.Table(
    "attempts",
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("attempt", sa.Integer, primary_key=True),
    column("lease_id", Id),
    column("worker_id", Name, null=True),
    column("started_at", Instant),
    column("ended_at", Instant, null=True),
    column("outcome", sa.String(20), null=True),  # AttemptOutcome
    column("error", sa.Text, null=True),
    column("code", sa.String(64), null=True),  # The fingerprint of what ran, as it was reported.
    column("packages", Json, null=True),  # Installed ones that differed from those that the version recorded.
    column("data_access", sa.String(20), null=True),  # DataAccess, as it was reported.
)

purged_tasks = sa.Table(
    "purged_tasks",  # Ids of tasks that were purged: they are not created again, and their files are garbage.
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("purged_at", Instant),
)

task_inputs = sa.Table(
    "task_inputs",  # Lineage: which committed revision of what was read.
    metadata,
    sa.Column("task_id", Id, sa.ForeignKey("tasks.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    sa.Column("partition_key", Name, primary_key=True),  # '' for a cursor range or a whole dataset
    column("dataset_id", Id),
    column("generation_id", Id),
    column("revision", sa.BigInteger, null=True),
    column("cursor_after", sa.BigInteger, null=True),
    column("cursor_upto", sa.BigInteger, null=True),
    # Of a PerChange job: the version that it had read before, to be compared with this one. 0: none.
    column("changed_after", sa.BigInteger, null=True),
    column("changed_generation", Id, null=True),
    sa.Index("ix_task_inputs_read", "generation_id", "partition_key"),
    sa.Index("ix_task_inputs_ranges", "generation_id", "cursor_upto", **where("cursor_upto IS NOT NULL")),
)

outbox = sa.Table(
    "outbox",  # Side effects, written in the transaction that decided them.
    metadata,
    seq(),
    column("id", Id, unique=True),  # Derived from what it does, so deciding twice writes once.
    column("kind", sa.String(12)),  # EffectKind
    column("queue", Name),
    column("task_id", Id),
    column("depth", sa.Integer),  # Of its job in the pipeline: the deeper goes first.
    column("state", sa.String(8)),  # OutboxState
    column("available_at", Instant),  # Also until when a publisher has reserved it.
    column("attempts", sa.Integer),
    column("last_error", sa.Text, null=True),
    column("created_at", Instant),
    column("done_at", Instant, null=True),
    sa.Index("ix_outbox_pending", "available_at", **where(f"state = '{OutboxState.PENDING}'")),
    sa.Index("ix_outbox_done", "done_at", **where(f"state = '{OutboxState.DONE}'")),
    sa.Index("ix_outbox_dead", "available_at", **where(f"state = '{OutboxState.DEAD}'")),
)
