"""Which files the tables still need: data files that a listed snapshot names, and files of metadata.

Snapshots go before their files. If only snapshots keep data from being collected, they are marked as expired; the loop
of tables writes a document without them, and the next collection deletes the files.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable
from datetime import datetime

import sqlalchemy as sa

from qo.core.iceberg.table_state import TableState, needed_files
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.tables.table_records import decode_state

_ID = r"[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}"
KEY = re.compile(
    rf"(?P<dataset>{_ID})/metadata/(?P<name>v(?P<document>[1-9]\d{{0,8}})\.metadata\.json"
    r"|(?P<version>\d{6,9})-[0-9a-f]{32}(?:-list)?\.avro)\Z"
)  # Of a file of metadata, below the data root.

_tables = schema.open_tables


def judge_metadata(tx: Tx, keys: Iterable[str], before: datetime) -> dict[str, tuple[bool, str]]:
    """Return which of these files may be deleted, and why or why not; files that are no metadata are left out."""
    matches = {key: match for key in keys if (match := KEY.match(key)) is not None}
    tables = _load_tables(tx, {match["dataset"] for match in matches.values()})
    verdicts: dict[str, tuple[bool, str]] = {}
    for key, match in matches.items():
        table = tables.get(match["dataset"])
        if table is None:
            verdicts[key] = True, "its dataset is published no more"
            continue
        names, earliest = needed_files(table[1], int(before.timestamp() * 1000))
        number = int(match["document"] or match["version"])
        if number > table[0]:
            verdicts[key] = False, "it may be about to be used"
        elif number >= earliest if match["document"] else match["name"] in names:
            verdicts[key] = False, "its table needs it, or did not long ago"
        else:
            verdicts[key] = True, "its table needs it no more"
    return verdicts


def _load_tables(tx: Tx, datasets: Collection[str]) -> dict[str, tuple[int, TableState]]:
    """Return the latest version and the state of each table, by dataset."""
    tables: dict[str, tuple[int, TableState]] = {}
    columns = (_tables.c.dataset_id, _tables.c.metadata_version, _tables.c.contents)
    for some in batches(sorted(datasets)):
        for row in tx.execute(sa.select(*columns).where(_tables.c.dataset_id.in_(some))):
            version, state = row.metadata_version, decode_state(row.contents)
            if row.dataset_id not in tables or version > tables[row.dataset_id][0]:
                tables[row.dataset_id] = version, state
    return tables


def listed_revisions(tx: Tx, datasets: Collection[str]) -> dict[str, set[int]]:
    """Return the revisions of each generation that snapshots of its table show."""
    revisions: dict[str, set[int]] = {}
    for some in batches(sorted(datasets)):
        query = sa.select(_tables.c.listed).where(_tables.c.dataset_id.in_(some), _tables.c.listed.is_not(None))
        for listed in tx.execute(query).scalars():
            for generation, revision in listed:
                revisions.setdefault(generation, set()).add(revision)
    return revisions


def mark_expired(tx: Tx, datasets: Collection[str], before: datetime) -> None:
    """Let the loop of tables drop the snapshots of these datasets that were replaced before a moment."""
    for some in batches(sorted(datasets)):
        listed = sa.and_(_tables.c.dataset_id.in_(some), _tables.c.listed.is_not(None))
        tx.execute(sa.update(_tables).where(listed).values(expire_before=before))
