"""What a commit replaces.

A job that appends each row once compares its rows with all current commits but those. Compared with what it replaces, a
task that runs again would find all its rows there, append none, and replace those that were.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import StandingAnswer
from qo.dispatcher.commits import pieces
from qo.dispatcher.commits.outputs import outputs_of
from qo.dispatcher.state import commit_locks, schema, topology
from qo.dispatcher.state.database import State, Tx, batches
from qo.dispatcher.tasks.rows import Row, load
from qo.errors import NotFound

POSITIONS_MAX = 100  # Commits that are looked at for positions.

_commits, _tasks, _inputs = schema.commits, schema.tasks, schema.task_inputs


def stands(generation_id: str) -> sa.Select[*tuple[Any, ...]]:
    """Select what is committed to a generation and was not replaced."""
    columns = (
        _commits.c.revision,
        _commits.c.partition_key,
        _commits.c.cursor,
        _commits.c.task_id,
        _commits.c.rows,
        _commits.c.bytes,
    )
    return sa.select(*columns).where(_commits.c.generation_id == generation_id, _commits.c.replaced_by.is_(None))


def appended(tx: Tx, row: Row, generation_id: str, partition_key: str) -> Sequence[sa.RowMapping]:
    """Return what the same work had appended to a partition before."""
    if row["partition_key"] is None:  # Then its work is a range.
        return [each for each in _of_range(tx, row, generation_id) if each["partition_key"] == partition_key]
    same = stands(generation_id).join(_tasks, _tasks.c.id == _commits.c.task_id)
    return tx.all(
        same.where(
            _commits.c.partition_key == partition_key,
            # In any generation: a rebuild of another DAG replaces what it had made.
            _tasks.c.dataset_id == row["dataset_id"],
            _tasks.c.partition_key == row["partition_key"],
        )
    )


def segments(tx: Tx, row: Row, generation_id: str) -> Sequence[sa.RowMapping]:
    """Return the segments of the same range, if the task reads it again because of an invalidation."""
    return [each for each in _of_range(tx, row, generation_id) if each["cursor"] is not None]


def _of_range(tx: Tx, row: Row, generation_id: str) -> list[sa.RowMapping]:
    """Return the current commits of tasks that read the same range before. Only an invalidation reads it again."""
    if row["invalidation_id"] is None or row["cursor"] is None:
        return []
    first = (row["start"] or 0) - 1
    within = sa.select(_inputs.c.task_id).where(
        _inputs.c.generation_id == row["generation_id"],
        _inputs.c.cursor_upto.between(first, row["cursor"]),  # A task that ended before the range read none of it.
        sa.func.coalesce(_inputs.c.cursor_after, -1) >= first,
        _inputs.c.task_id != row["id"],
    )
    rows: list[sa.RowMapping] = []
    for some in batches(tx.execute(within.distinct()).scalars()):
        # By task alone, each of which has few commits: with the generation SQLite would read all of its commits.
        rows += tx.all(schema.select_commits().where(_commits.c.task_id.in_(some)))
    return [each for each in rows if each["generation_id"] == generation_id and each["replaced_by"] is None]


def fix_revision(state: State, task_id: str, output: int) -> int | None:
    """Return the revision as of which ``others`` is to be asked for all its pages. Waits for commits under way."""
    with state.read() as tx:
        row = load(tx, task_id, lock=False)
        table = schema.generations
        revisions = {
            each.generation_id: tx.value(sa.select(table.c.revision).where(table.c.id == each.generation_id)) or 0
            for each in outputs_of(tx, topology.load(tx), row)
            if each.index == output
        }
    commit_locks.await_commits_first(state, revisions)
    return max(revisions.values(), default=None)


def others(
    tx: Tx, task_id: str, output: int, after: str | None, revision: int | None, limit: int
) -> StandingAnswer:
    """Return what is committed of an output, as of a revision or now, without what the task replaces.

    Raises NotFound for an output that it does not have.
    """
    row = load(tx, task_id, lock=False)
    matches = [each for each in outputs_of(tx, topology.load(tx), row) if each.index == output]
    if not matches:
        raise NotFound(f"the job has no output {output}, counted from 0")
    generation, table = matches[0].generation_id, schema.generations
    upto = revision
    if upto is None:
        upto = tx.value(sa.select(table.c.revision).where(table.c.id == generation)) or 0
    page, rest = pieces.standing(tx, generation, after, limit, upto)
    key = row["partition_key"]
    own = _of_range(tx, row, generation) if key is None else appended(tx, row, generation, key)
    replaced = {each["revision"] for each in own}
    remaining = [each for each in page if each.revision not in replaced]
    if after is not None:
        return StandingAnswer(pieces=remaining, after=rest, revision=upto)
    return StandingAnswer(
        pieces=remaining,
        after=rest,
        revision=upto,
        position=_newest_position(tx, generation, upto),
        own_positions=_positions(tx, generation, _commits.c.revision.in_(sorted(replaced)[:POSITIONS_MAX])),
    )


def _newest_position(tx: Tx, generation_id: str, upto: int) -> Any:
    positions = _positions(tx, generation_id, _commits.c.revision <= upto)
    return positions[0] if positions else None


def _positions(tx: Tx, generation_id: str, which: sa.ColumnElement[bool]) -> list[Any]:
    """Return how far commits have read, the newest first, as their tasks recorded it among the statistics."""
    newest = sa.select(_commits.c.stats).where(_commits.c.generation_id == generation_id, which)
    rows = tx.execute(newest.order_by(_commits.c.revision.desc()).limit(POSITIONS_MAX)).scalars()
    return [stats["position"] for stats in rows if stats is not None and "position" in stats]
