"""What is deployed: DAGs, versions, jobs, datasets and their generations."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, Instant, Json, Name, column, names, where

revision = "0001"
down_revision = None

metadata = sa.MetaData(naming_convention=names)

sa.Table(
    "topology",
    metadata,
    sa.Column("id", sa.Integer, primary_key=True),
    column("epoch", sa.BigInteger),
)

sa.Table(
    "dags",
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("active_version_id", Id, null=True),
    column("previous_version_id", Id, null=True),
    column("updated_at", Instant),
)

sa.Table(
    "dag_versions",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("number", sa.Integer),
    column("content_hash", sa.String(64)),
    column("document", sa.Text),
    column("source", sa.Text),
    column("status", sa.String(20)),
    column("created_at", Instant),
    column("created_by", Name),
    column("ready_at", Instant, null=True),
    column("activated_at", Instant, null=True),
    column("replaced_version_id", Id, null=True),
    sa.UniqueConstraint("dag", "content_hash"),
    sa.UniqueConstraint("dag", "number"),
    sa.Index("ix_dag_versions_live", "status", **where("status IN ('staged', 'ready', 'active')")),
)

sa.Table(
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
    column("timeout_seconds", sa.Float, null=True),
    column("definition", Json),
    sa.UniqueConstraint("version_id", "name"),
)

sa.Table(
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

sa.Table(
    "datasets",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dag", Name),
    column("job", Name),
    column("output", sa.Integer),
    column("created_at", Instant),
    sa.UniqueConstraint("dag", "job", "output"),
)

sa.Table(
    "publications",
    metadata,
    sa.Column("name", Name, primary_key=True),
    column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    column("dag", Name, index=True),
)

sa.Table(
    "generations",
    metadata,
    sa.Column("id", Id, primary_key=True),
    column("dataset_id", Id, sa.ForeignKey("datasets.id"), index=True),
    column("edition_id", Id, index=True),
    column("config_hash", sa.String(64)),
    column("created_at", Instant),
    column("partitions", sa.BigInteger, server_default="0"),
    column("segments", sa.BigInteger, server_default="0"),
    column("rows", sa.BigInteger, server_default="0"),
    column("bytes", sa.BigInteger, server_default="0"),
    column("cursor", sa.BigInteger, null=True),
    column("revision", sa.BigInteger, null=True),
    column("collected_at", Instant, null=True),
)

sa.Table(
    "version_generations",
    metadata,
    sa.Column("version_id", Id, sa.ForeignKey("dag_versions.id"), primary_key=True),
    sa.Column("dataset_id", Id, sa.ForeignKey("datasets.id"), primary_key=True),
    column("generation_id", Id, sa.ForeignKey("generations.id"), index=True),
)

sa.Table(
    "pauses",
    metadata,
    sa.Column("scope", sa.String(401), primary_key=True),
    column("reason", sa.Text),
    column("by", Name),
    column("at", Instant),
)


def upgrade() -> None:
    metadata.create_all(op.get_bind(), checkfirst=False)
    # The one row that everyone locks.
    op.bulk_insert(metadata.tables["topology"], [{"id": 1, "epoch": 0}])
