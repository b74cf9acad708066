"""What a partition was made from, and what was made from it: by revision, so that it stays true of replaced data."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.dispatcher import datasets
from qo.dispatcher.contract.dataset import LineageAnswer, LineageEdge
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import ROWS_MAX, Tx
from qo.errors import NotFound, UsageError

DEPTH_MAX = 32
EDGES_MAX = 1000  # In each direction.


@dataclass(frozen=True, slots=True)
class _Edge:
    task_id: str
    dataset_id: str
    generation_id: str
    partition_key: str | None
    revision: int | None
    cursor_after: int | None = None
    cursor_upto: int | None = None


def lineage(tx: Tx, text: str, partition_key: str, depth: int = 1) -> LineageAnswer:
    """The committed partition's lineage in both directions, so many steps far.

    Raises NotFound for a partition that is not committed in the current generation.
    """
    if not 1 <= depth <= DEPTH_MAX:
        raise UsageError(f"depth must be between 1 and {DEPTH_MAX}, not {depth}")
    ref = datasets.resolve(tx, text)
    generation = datasets.generation_of(tx, ref.id) or ""
    table = schema.partitions
    row = tx.one(
        sa.select(table).where(
            table.c.dataset_id == ref.id,
            table.c.generation_id == generation,
            table.c.partition_key == partition_key,
        )
    )
    if row is None:
        raise NotFound(f"{ref.label}@{partition_key} is not committed: ask qo why {ref.label}@{partition_key}")
    start = _Edge(row["task_id"], ref.id, generation, partition_key, row["revision"])
    above, more_above = _walk(tx, start, depth, _read_for)
    below, more_below = _walk(tx, start, depth, _made_from)
    names = {
        id_: found.label
        for id_, found in datasets.by_id(tx, {edge.dataset_id for _, edge in (*above, *below)}).items()
    }
    return LineageAnswer(
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=generation,
        partition_key=partition_key,
        revision=row["revision"],
        task_id=row["task_id"],
        upstream=[_answer(level, edge, names) for level, edge in above],
        downstream=[_answer(level, edge, names) for level, edge in below],
        more=more_above or more_below,
    )


def _walk(
    tx: Tx, start: _Edge, depth: int, step: Callable[[Tx, Sequence[_Edge]], list[_Edge]]
) -> tuple[list[tuple[int, _Edge]], bool]:
    """Level by level. True beside: there was more than the bound."""
    found: list[tuple[int, _Edge]] = []
    seen, level = {start}, [start]
    for distance in range(1, depth + 1):
        level = [edge for edge in dict.fromkeys(step(tx, level)) if edge not in seen]
        if not level:
            break
        seen.update(level)
        room = EDGES_MAX - len(found)
        found += [(distance, edge) for edge in level[:room]]
        if len(level) > room:
            return found, True
    return found, False


def _read_for(tx: Tx, edges: Sequence[_Edge]) -> list[_Edge]:
    """What the tasks that made these have read; each with the task that made it in turn."""
    table, commits = schema.task_inputs, schema.commits
    tasks = sorted({edge.task_id for edge in edges if edge.task_id})
    found: list[_Edge] = []
    for start in range(0, len(tasks), ROWS_MAX):
        query = (
            sa.select(table, commits.c.task_id.label("maker"))
            .outerjoin(commits, commits.c.revision == table.c.revision)
            .where(table.c.task_id.in_(tasks[start : start + ROWS_MAX]))
            .order_by(table.c.task_id, table.c.position, table.c.partition_key)
            .limit(EDGES_MAX + 1)
        )
        found += [
            _Edge(
                row["maker"] or "",
                row["dataset_id"],
                row["generation_id"],
                row["partition_key"] or None,
                row["revision"],
                row["cursor_after"],
                row["cursor_upto"],
            )
            for row in tx.all(query)
        ]
    return found


def _made_from(tx: Tx, edges: Sequence[_Edge]) -> list[_Edge]:
    """What tasks have committed that read these."""
    table, commits = schema.task_inputs, schema.commits
    by_generation: dict[str, dict[str, int | None]] = {}
    for edge in edges:
        if edge.partition_key is not None:
            by_generation.setdefault(edge.generation_id, {})[edge.partition_key] = edge.revision
    found: list[_Edge] = []
    for generation, revisions in by_generation.items():
        keys = sorted(revisions)
        for start in range(0, len(keys), ROWS_MAX):
            query = (
                sa.select(
                    commits, table.c.partition_key.label("read_key"), table.c.revision.label("read_revision")
                )
                .join(table, table.c.task_id == commits.c.task_id)
                .where(
                    table.c.generation_id == generation,
                    table.c.partition_key.in_(keys[start : start + ROWS_MAX]),
                )
                .limit(EDGES_MAX + 1)
            )
            found += [
                _Edge(
                    row["task_id"],
                    row["dataset_id"],
                    row["generation_id"],
                    row["partition_key"],
                    row["revision"],
                    cursor_upto=row["cursor"],
                )
                for row in tx.all(query)
                if row["read_revision"] == revisions[row["read_key"]]
            ]
    return sorted(found, key=lambda edge: edge.revision or 0)


def _answer(depth: int, edge: _Edge, names: dict[str, str]) -> LineageEdge:
    return LineageEdge(
        depth=depth,
        dataset=names.get(edge.dataset_id, edge.dataset_id),
        dataset_id=edge.dataset_id,
        generation_id=edge.generation_id,
        partition_key=edge.partition_key,
        cursor_after=edge.cursor_after,
        cursor_upto=edge.cursor_upto,
        revision=edge.revision,
        task_id=edge.task_id,
    )
