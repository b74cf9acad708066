"""Tables of what is deployed: DAGs, versions, jobs, datasets and their generations."""

from __future__ import annotations

import sqlalchemy as sa

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, metadata, where

topology = sa.Table(
    "topology",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),  # One row.
    column("epoch", sa.BigInteger),  # Grows whenever what is live, current or paused changes.
)

dags = sa.Table(
    "dags",
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("active_version_id", Id, null=True),
    column("previous_version_id", Id, null=True),  # Where a rollback goes.
    column("updated_at", Instant),
)

dag_versions = sa.Table(
    "dag_versions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("number", sa.Integer),
    column("content_hash", sa.String(64)),
    column("document", sa.Text),  # Canonical JSON of the resolved DAG.
    column("source", sa.Text),  # As it was sent.
    column("status", sa.String(20)),
    column("created_at", Instant),
    column("created_by", Name),
    column("ready_at", Instant, null=True),
    column("activated_at", Instant, null=True),
    column("replaced_version_id", Id, null=True),  # What was active before it.
    column("ended_at", Instant, null=True),  # When it stopped being live; null: it is live.
    # Of the topology, when the rows of its jobs, inputs and outputs were last written.
    column("jobs_epoch", sa.BigInteger, server_default="0"),
    sa.UniqueConstraint("dag", "content_hash"),
    sa.UniqueConstraint("dag", "number"),
    sa.Index("ix_dag_versions_live", "status", **where("status IN ('staged', 'ready', 'active')")),
)

jobs = sa.Table(
    "jobs",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("version_id", Id, sa.ForeignKey("dag_versions.id")),
    column("dag", Name),
    column("name", Name),
    column("logical_id", Id),
    column("edition_id", Id, index=True),
    column("config_hash", sa.String(64)),
    column("queue", Name),
    column("timeout_seconds", sa.Float, null=True),  # Of one attempt, as the job or its runtime says.
    column("definition", Json),  # The job, as in the resolved DAG.
    column("bundle", sa.String(64), null=True),  # Of the code it runs, by hash; null: workers run their own.
    sa.UniqueConstraint("version_id", "name"),
)

job_inputs = sa.Table(
    "job_inputs",
    metadata,
    sa.Column("job_id", Id, sa.ForeignKey("jobs.id"), primary_key=True),
    sa.Column("position", sa.Integer, primary_key=True),
    column("name", Name),
    column("dataset_id", Id, index=True),
    column("generation_id", Id, null=True),
    column("trigger_", sa.Boolean),
    column("where_", Json, null=True),
)

datasets = sa.Table(
    "datasets",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("output", sa.Integer),
    column("created_at", Instant),
    sa.UniqueConstraint("dag", "job", "output"),
)

publications = sa.Table(
    "publications",  # Names of datasets, as the active versions publish them.
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    column("dag", Name, index=True),
    column("sink", Json, null=True),  # The table outside that follows it: kind, database and table.
)

generations = sa.Table(
    "generations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    column("edition_id", Id, index=True),
    column("config_hash", sa.String(64)),
    column("created_at", Instant),
    # Sums over what is committed and not replaced, without what ``generation_sums`` adds.
    column("partitions", sa.BigInteger, server_default="0"),
    column("segments", sa.BigInteger, server_default="0"),
    column("rows", sa.BigInteger, server_default="0"),
    column("bytes", sa.BigInteger, server_default="0"),
    column("cursor", sa.BigInteger, null=True),  # The furthest one announced.
    column("revision", sa.BigInteger, null=True),  # Of the last commit, unless ``generation_sums`` has one.
    column("collected_at", Instant, null=True),  # When its files were given up: no version can have it any more.
)

version_generations = sa.Table(
    "version_generations",  # The pointer set of a version: cutover and rollback choose a whole one.
    metadata,
    sa.Column("version_id", Id, sa.ForeignKey("dag_versions.id"), primary_key=True),
    sa.Column("dataset_id", Id, sa.ForeignKey("datasets.id"), primary_key=True),
    column("generation_id", Id, sa.ForeignKey("generations.id"), index=True),
)

pauses = sa.Table(
    "pauses",
    metadata,
    sa.Column("scope", sa.String(401), primary_key=True),  # "dag" or "dag.job"
    column("reason", sa.Text),
    column("by", Name),
    column("at", Instant),
)

open_tables = sa.Table(
    "open_tables",  # Published datasets as tables of Apache Iceberg, as their metadata in the data root shows them.
    metadata,
    sa.Column("dag", Name, primary_key=True),
    sa.Column("name", Name, primary_key=True),
    column("dataset_id", Id),
    column("table_uuid", Id),
    column("metadata_location", sa.Text, null=True),  # Of the current document; null: there is none yet.
    column("metadata_version", sa.Integer),  # Grows with each document.
    column("revision", sa.BigInteger, null=True),  # That its branch "main" shows.
    column("updated_at", Instant),
    column("problem", sa.Text, null=True),  # Why the dataset is not a table.
    column("listed", Json, null=True),  # Generation and revision of each snapshot that the document lists.
    column("expire_before", Instant, null=True),  # Snapshots of before are to be dropped, so that files can go.
    column("contents", sa.LargeBinary, null=True),  # What the next document is made from, packed.
    column("next_revision", sa.BigInteger, null=True),  # That its branch "next" shows.
    column("hinted_version", sa.Integer, server_default="0"),  # The document that version-hint.text names.
)
