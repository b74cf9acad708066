"""The data files of a table, from the commits that name them, with what their writers measured.

Workers of before report nothing for each file. Then its size comes from the store, and the rows of its commit are
shared out: sums over whole commits stay exact, and nothing else uses them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

import sqlalchemy as sa

from qo.config.location import path_text
from qo.core.iceberg.manifest_groups import Position
from qo.core.pipeline.file_stats import ColumnStats, FileStats, unpack_stats
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx, batches
from qo.dispatcher.state.prepared import Prepared
from qo.errors import UsageError

_commits = schema.commits
_PIECES = Prepared(
    sa.select(
        _commits.c.revision,
        _commits.c.partition_key,
        _commits.c.cursor,
        _commits.c.location,
        _commits.c.files,
        _commits.c.rows,
        _commits.c.bytes,
        _commits.c.file_stats,
    ).where(_commits.c.revision.in_(sa.bindparam("revisions", expanding=True, type_=sa.BigInteger)))
)
SUFFIX = ".parquet"


class NotATable(UsageError):
    """Why a dataset cannot be a table, and what to do."""


class DataFile(NamedTuple):
    path: str
    partition_key: str | None
    revision: int  # Of the commit that names it.
    rows: int
    bytes: int
    columns: Mapping[str, ColumnStats] | None  # By name; None: nothing is known of them.
    is_added: bool = False  # By the snapshot that is being made.


class Piece(NamedTuple):
    """The files of one commit."""

    position: Position
    partition_key: str | None
    uris: tuple[str, ...]
    rows: int | None
    bytes: int | None
    stats: Mapping[str, FileStats]  # By URI; of old workers, empty.

    @property
    def unmeasured(self) -> tuple[str, ...]:
        """The files whose sizes the store must be asked for."""
        if len(self.uris) == 1 and self.bytes:
            return ()
        return tuple(each for each in self.uris if each not in self.stats)


def load_pieces(tx: Tx, revisions: Collection[int]) -> dict[int, Piece]:
    """Return pieces by revision. Raises NotATable for files that are not Parquet."""
    pieces: dict[int, Piece] = {}
    for some in batches(sorted(revisions)):
        for row in tx.rows(_PIECES, {"revisions": some}):
            pieces[row[0]] = _piece(row)
    return pieces


def _piece(row: Sequence[Any]) -> Piece:
    revision, key, cursor, location, files, rows, size, packed = row
    base = (location or "").rstrip("/")
    names: list[str] = files or []
    uris = {name: name if ":/" in name else f"{base}/{name}" for name in names}
    _require_parquet(names)
    stats = unpack_stats(packed) if packed is not None else {}
    position = Position(key or "", -1 if key is not None or cursor is None else cursor, revision)
    by_uri = {uris[name]: each for name, each in stats.items() if name in uris}
    return Piece(position, key, tuple(uris.values()), rows, size, by_uri)


def _require_parquet(names: Sequence[str]) -> None:
    other = next((each for each in names if not each.endswith(SUFFIX)), None)
    if other is not None:
        raise NotATable(
            f"its file {other.rpartition('/')[2]!r} is not Parquet, and a table has only Parquet files: let the job "
            "write Parquet, as an operator of the runtime spark does"
        )


def data_files(piece: Piece, sizes: Mapping[str, int], *, is_added: bool) -> list[DataFile]:
    """Return the data files of a piece. ``sizes``: of unmeasured files."""
    rows = _share_rows(piece, sizes)
    return [
        DataFile(
            path_text(uri) if uri.startswith("file:") else uri,
            piece.partition_key,
            piece.position.revision,
            rows[uri],
            stats.bytes if (stats := piece.stats.get(uri)) is not None else sizes.get(uri) or piece.bytes or 0,
            None if stats is None else stats.columns,
            is_added,
        )
        for uri in piece.uris
    ]


def _share_rows(piece: Piece, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return the rows of each file, so that their sum is exact."""
    rows = {uri: each.rows for uri, each in piece.stats.items()}
    unknown = [each for each in piece.uris if each not in rows]
    if not unknown:
        return rows
    if piece.rows is None:
        raise NotATable(
            f"how many rows {unknown[0].rpartition('/')[2]!r} has is not known: let the operator say it, as in "
            "run.output().write(name, body, rows=…), and make the partition again"
        )
    remaining, weight = max(0, piece.rows - sum(rows.values())), sum(sizes.get(each, 1) for each in unknown)
    for uri in unknown:
        size = sizes.get(uri, 1)
        rows[uri] = remaining * size // weight if weight else 0
        remaining, weight = remaining - rows[uri], weight - size
    return rows
