"""Pieces: the commits of a generation that were current at a revision, in pages.

``commits`` keeps everything: what is replaced later is still found as it was, and a repeated request gets the same
answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence, Set
from functools import cache
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import InputPart, Piece
from qo.core.pipeline.event import NUMBER_MAX
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.prepared import Prepared, Values
from qo.errors import UsageError

PIECES_MAX = 1000  # So many come with the claim; further ones are requested.

_commits = schema.commits
# What was committed, and not replaced, at a revision.
_COMMITTED_AS_OF = schema.select_commits().where(
    _commits.c.generation_id == sa.bindparam("generation"),
    _commits.c.revision <= sa.bindparam("latest"),
    sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > sa.bindparam("latest")),
)

_KEY, _AT = sa.bindparam("key", type_=sa.String), sa.bindparam("at", type_=sa.BigInteger)
_PARTS = Prepared(
    schema.select_commits()
    .where(
        _commits.c.generation_id == sa.bindparam("generation"),
        _commits.c.partition_key.in_(sa.bindparam("keys", expanding=True, type_=sa.String)),
        _commits.c.revision <= sa.bindparam("latest"),
        sa.or_(_commits.c.replaced_by.is_(None), _commits.c.replaced_by > sa.bindparam("earliest")),
        sa.tuple_(_commits.c.partition_key, _commits.c.revision) > sa.tuple_(_KEY, _AT),
    )
    .order_by(_commits.c.partition_key, _commits.c.revision)
    .limit(sa.bindparam("most"))
)

Pin = sa.RowMapping | Mapping[str, Any]  # A row of ``task_inputs``, or something like it.


def page(tx: Tx, pin: Pin, after: str | None, limit: int) -> tuple[list[Piece], str | None]:
    """Return up to ``limit`` pieces by partition key, then cursor, and the place of the last if there are more."""
    if pin["revision"] is None:
        return [], None
    kind, key, revision = _place(after)
    rows: list[sa.RowMapping] = []
    if kind == "p" and pin["cursor_upto"] is None:
        rows += _partition_rows(tx, pin, key, revision, limit + 1)
    if len(rows) <= limit and not pin["partition_key"]:
        cursor = int(key) if kind == "c" else None
        rows += _segment_rows(tx, pin, cursor, revision, limit + 1 - len(rows))
    last = rows[limit - 1] if len(rows) > limit else None
    return [piece(each) for each in rows[:limit]], None if last is None else _place_of(last)


def parts_page(tx: Tx, pins: Sequence[Pin], after: str | None, limit: int) -> tuple[list[Piece], str | None]:
    """As ``page``, for the pins of several partitions of one generation."""
    by_key = {pin["partition_key"]: pin for pin in pins if pin["revision"] is not None and pin["partition_key"]}
    if not by_key:
        return [], None
    _, key, revision = _place(after)
    revisions = [pin["revision"] for pin in by_key.values()]
    values = {
        "generation": pins[0]["generation_id"],
        "latest": max(revisions),
        "earliest": min(revisions),
        "key": key,
        "at": revision,
        "most": limit + 1,
    }
    rows_of_pins: list[Values] = []
    # In the order of the database, which need not be that of Python: batches would mix it up.
    last_place = (key, revision)
    while len(rows_of_pins) <= limit:
        rows = tx.mappings(_PARTS, {**values, "keys": sorted(by_key), "key": last_place[0], "at": last_place[1]})
        rows_of_pins += [row for row in rows if stood_at(row, by_key[row["partition_key"]])]
        if len(rows) <= limit:
            break
        last_place = rows[-1]["partition_key"], rows[-1]["revision"]
    shown_rows = rows_of_pins[:limit]
    return [piece(each) for each in shown_rows], _place_of(shown_rows[-1]) if len(rows_of_pins) > limit else None


def part_of(pin: Pin, part: InputPart) -> Pin:
    """Return what to look for in place of a pin, to find a part of what it reads."""
    if pin["changed_after"] is None or part is InputPart.WHOLE:
        return pin
    before, is_same = pin["changed_after"], pin["changed_generation"] in (None, pin["generation_id"])
    if part is InputPart.ADDED:
        return {**pin, "since": before} if is_same else pin
    earlier = {**pin, "generation_id": pin["changed_generation"] or pin["generation_id"], "revision": before}
    return {**earlier, "gone": pin["revision"]} if is_same else earlier


def standing(
    tx: Tx, generation_id: str, after: str | None, limit: int = PIECES_MAX, upto: int | None = None
) -> tuple[list[Piece], str | None]:
    """Return what is committed to a generation, now or as of a revision, in pages."""
    latest = NUMBER_MAX if upto is None else upto
    whole = {"generation_id": generation_id, "revision": latest, "partition_key": "", "cursor_upto": None}
    return page(tx, {**whole, "cursor_after": None}, after, limit)


def stood_at(commit: Pin, pin: Pin) -> bool:
    """Whether a commit existed at the revision of a pin, and was not replaced yet."""
    upto = pin["revision"]
    if upto is None or commit["revision"] > upto:
        return False
    return commit["replaced_by"] is None or commit["replaced_by"] > upto


def _partition_rows(tx: Tx, pin: Pin, key: str, revision: int, limit: int) -> Sequence[sa.RowMapping]:
    values = _as_of(pin, limit) | ({"key": pin["partition_key"]} if pin["partition_key"] else {})
    if key:
        values |= {"place": key, "at": revision}
    return tx.execute(_partition_query(frozenset(values)), values).mappings().all()


def _segment_rows(tx: Tx, pin: Pin, cursor: int | None, revision: int, limit: int) -> Sequence[sa.RowMapping]:
    ends = {"upto": pin["cursor_upto"], "after": pin["cursor_after"]}
    values = _as_of(pin, limit) | {name: value for name, value in ends.items() if value is not None}
    if cursor is not None:
        values |= {"place": cursor, "at": revision}
    return tx.execute(_segment_query(frozenset(values)), values).mappings().all()


def _as_of(pin: Pin, limit: int) -> dict[str, Any]:
    values = {"generation": pin["generation_id"], "latest": pin["revision"], "most": limit}
    return values | {name: pin[name] for name in ("since", "gone") if name in pin}


@cache
def _partition_query(names: Set[str]) -> sa.Select[*tuple[Any, ...]]:
    """Select commits of partitions, with the conditions of these parameters."""
    query = _COMMITTED_AS_OF.where(_commits.c.partition_key.is_not(None))
    if "key" in names:
        query = query.where(_commits.c.partition_key == sa.bindparam("key"))
    return _paged(query, _commits.c.partition_key, names)


@cache
def _segment_query(names: Set[str]) -> sa.Select[*tuple[Any, ...]]:
    """Select segments, with the conditions of these parameters."""
    query = _COMMITTED_AS_OF.where(_commits.c.cursor.is_not(None), _commits.c.partition_key.is_(None))
    if "upto" in names:
        query = query.where(_commits.c.cursor <= sa.bindparam("upto"))
    if "after" in names:
        query = query.where(_commits.c.cursor > sa.bindparam("after"))
    return _paged(query, _commits.c.cursor, names)


def _paged(query: sa.Select[*tuple[Any, ...]], by: sa.Column[Any], names: Set[str]) -> sa.Select[*tuple[Any, ...]]:
    if "since" in names:  # What was committed later.
        query = query.where(_commits.c.revision > sa.bindparam("since", type_=sa.BigInteger))
    if "gone" in names:  # What is not there any more at that revision.
        query = query.where(_commits.c.replaced_by <= sa.bindparam("gone", type_=sa.BigInteger))
    if "place" in names:
        after = sa.tuple_(sa.bindparam("place", type_=by.type), sa.bindparam("at", type_=sa.BigInteger))
        query = query.where(sa.tuple_(by, _commits.c.revision) > after)
    return query.order_by(by, _commits.c.revision).limit(sa.bindparam("most"))


def piece(row: Pin) -> Piece:
    return Piece(
        partition_key=row["partition_key"],
        start=row["start"],
        end=row["end"],
        cursor=row["cursor"],
        revision=row["revision"],
        location=row["location"],
        files=row["files"] or [],
        rows=row["rows"],
        bytes=row["bytes"],
        committed_at=row["committed_at"],
    )


def _place_of(row: Pin) -> str:
    """Return the place of a row in the list: p for partitions, which come first, c for segments."""
    if row["partition_key"] is not None:
        return f"p/{row['revision']}/{row['partition_key']}"
    return f"c/{row['revision']}/{row['cursor']}"


def _place(after: str | None) -> tuple[str, str, int]:
    if after is None:
        return "p", "", 0
    kind, _, rest = after.partition("/")
    revision, _, key = rest.partition("/")
    numbers = (revision,) if kind == "p" else (revision, key)
    if kind not in ("p", "c") or not key or not all(map(_is_number, numbers)):
        raise UsageError(f"{after!r} is no place in a list of pieces: pass on what the last answer gave")
    return kind, key, int(revision)


def _is_number(text: str) -> bool:
    return text.isdecimal() and int(text) <= NUMBER_MAX
