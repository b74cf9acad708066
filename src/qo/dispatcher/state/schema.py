"""The tables. Written in what SQLite and PostgreSQL have in common; ``migrations/`` creates and changes them.

Ids are texts, times are UTC, JSON is text: a person with a SQL prompt can read everything. The tables themselves are
in ``definitions``, ``work``, ``data``, ``quality`` and ``scaling``; a change there needs a migration: a test says so.
"""

from __future__ import annotations

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, metadata
from qo.dispatcher.state.data import (
    api_tokens,
    bundles,
    commits,
    cursors,
    emissions,
    generation_sums,
    holds,
    invalidation_readers,
    invalidations,
    job_pressure,
    loans,
    operator_state,
    partitions,
    queues,
    secrets,
    select_commits,
    sources,
)
from qo.dispatcher.state.definitions import (
    dag_versions,
    dags,
    datasets,
    job_inputs,
    jobs,
    open_tables,
    pauses,
    publications,
    topology,
    version_generations,
)
from qo.dispatcher.state.definitions import generations as generation_rows
from qo.dispatcher.state.generation_sizes import generations
from qo.dispatcher.state.quality import backfills, checks, column_lineage, generation_columns, rejections
from qo.dispatcher.state.scaling import scaled_runtimes, scaling_decisions
from qo.dispatcher.state.work import (
    attempts,
    bulk_changes,
    deliveries,
    events,
    incomplete_partitions,
    outbox,
    purged_tasks,
    tallies,
    task_inputs,
    tasks,
)

__all__ = [
    "Id",
    "Instant",
    "Json",
    "Name",
    "api_tokens",
    "attempts",
    "backfills",
    "bulk_changes",
    "bundles",
    "checks",
    "column_lineage",
    "commits",
    "cursors",
    "dag_versions",
    "dags",
    "datasets",
    "deliveries",
    "emissions",
    "events",
    "generation_columns",
    "generation_rows",
    "generation_sums",
    "generations",
    "holds",
    "incomplete_partitions",
    "invalidation_readers",
    "invalidations",
    "job_inputs",
    "job_pressure",
    "jobs",
    "loans",
    "metadata",
    "open_tables",
    "operator_state",
    "outbox",
    "partitions",
    "pauses",
    "publications",
    "purged_tasks",
    "queues",
    "rejections",
    "scaled_runtimes",
    "scaling_decisions",
    "secrets",
    "select_commits",
    "sources",
    "tallies",
    "task_inputs",
    "tasks",
    "topology",
    "version_generations",
]
