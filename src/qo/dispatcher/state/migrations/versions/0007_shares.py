"""Sums and counts in several shares, so that transactions side by side do not wait for each other."""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op

from qo.dispatcher.state.column_types import Id, column, names

revision = "0007"
down_revision = "0006"

metadata = sa.MetaData(naming_convention=names)

_sums = sa.Table(
    "generation_sums",
    metadata,
    sa.Column("generation_id", Id, primary_key=True),
    sa.Column("share", sa.Integer, primary_key=True, autoincrement=False),
    column("partitions", sa.BigInteger),
    column("segments", sa.BigInteger),
    column("rows", sa.BigInteger),
    column("bytes", sa.BigInteger),
    column("revision", sa.BigInteger),
)
_tallies = sa.Table(
    "tallies",
    metadata,
    sa.Column("dataset_id", Id, primary_key=True),
    sa.Column("edition_id", Id, primary_key=True),
    sa.Column("outcome", sa.String(12), primary_key=True),
    sa.Column("share", sa.Integer, primary_key=True, autoincrement=False),
    column("n", sa.BigInteger),
)


def upgrade() -> None:
    connection = op.get_bind()
    _sums.create(connection)
    # SQLite cannot change a primary key: the table is made anew, with what it holds.
    op.execute("CREATE TABLE tallies_before AS SELECT * FROM tallies")
    op.execute("DROP TABLE tallies")
    _tallies.create(connection)
    op.execute(
        "INSERT INTO tallies (dataset_id, edition_id, outcome, share, n) "
        "SELECT dataset_id, edition_id, outcome, 0, n FROM tallies_before"
    )
    op.execute("DROP TABLE tallies_before")
