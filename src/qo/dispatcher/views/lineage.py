"""Lineage: what a partition was made from, and what was made from it. It goes by revision, so it holds for replaced
data as well."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import sqlalchemy as sa

from qo.api.contract.dataset import LineageAnswer, LineageEdge
from qo.api.contract.task import InputMode
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import ROWS_MAX, Tx, batches
from qo.errors import NotFound, UsageError

DEPTH_MAX = 32
EDGES_MAX = 1000  # In each direction.


@dataclass(frozen=True, slots=True)
class _Edge:
    task_id: str
    dataset_id: str
    generation_id: str
    partition_key: str | None
    revision: int | None  # Of the commit; None: nothing was committed.
    cursor_after: int | None = None
    cursor_upto: int | None = None
    mode: InputMode = InputMode.PARTITION
    as_of: int | None = None  # The revision at which an input was read, as a whole or by range.
    pieces: int | None = None


def lineage(tx: Tx, text: str, partition_key: str, depth: int = 1) -> LineageAnswer:
    """Return the lineage of a committed partition in both directions, up to ``depth`` steps.

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
    upstream, more_upstream = _walk(tx, start, depth, _inputs_of)
    downstream, more_downstream = _walk(tx, start, depth, _outputs_of)
    names = {
        id_: each.label
        for id_, each in datasets.by_id(tx, {edge.dataset_id for _, edge in (*upstream, *downstream)}).items()
    }
    return LineageAnswer(
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=generation,
        partition_key=partition_key,
        revision=row["revision"],
        task_id=row["task_id"],
        upstream=[_answer(level, edge, names) for level, edge in upstream],
        downstream=[_answer(level, edge, names) for level, edge in downstream],
        more=more_upstream or more_downstream,
    )


def _walk(
    tx: Tx, start: _Edge, depth: int, step: Callable[[Tx, Sequence[_Edge]], list[_Edge]]
) -> tuple[list[tuple[int, _Edge]], bool]:
    """Return the edges level by level, and whether there are more than EDGES_MAX."""
    edges: list[tuple[int, _Edge]] = []
    visited, level = {start}, [start]
    for distance in range(1, depth + 1):
        level = [edge for edge in dict.fromkeys(step(tx, level)) if edge not in visited]
        if not level:
            break
        visited.update(level)
        room = EDGES_MAX - len(edges)
        edges += [(distance, edge) for edge in level[:room]]
        if len(level) > room:
            return edges, True
    return edges, False


def _inputs_of(tx: Tx, edges: Sequence[_Edge]) -> list[_Edge]:
    """Return what the tasks of these edges have read, each with the task that wrote it."""
    table, commits = schema.task_inputs, schema.commits
    tasks = sorted({edge.task_id for edge in edges if edge.task_id})
    pins: list[sa.RowMapping] = []
    for start in range(0, len(tasks), ROWS_MAX):
        of_partition = sa.and_(commits.c.revision == table.c.revision, table.c.partition_key != "")
        query = (
            sa.select(table, commits.c.task_id.label("maker"))
            .outerjoin(commits, of_partition)
            .where(table.c.task_id.in_(tasks[start : start + ROWS_MAX]))
            .order_by(table.c.task_id, table.c.position, table.c.partition_key)
            .limit(EDGES_MAX + 1)
        )
        pins += tx.all(query)
    states = _States(tx, {pin["generation_id"] for pin in pins if not pin["partition_key"]})
    return [_read_edge(pin, states) for pin in pins]


def _read_edge(pin: sa.RowMapping, states: _States) -> _Edge:
    place = (pin["dataset_id"], pin["generation_id"])
    if pin["partition_key"]:
        return _Edge(pin["maker"] or "", *place, pin["partition_key"], pin["revision"])
    after, upto, as_of = pin["cursor_after"], pin["cursor_upto"], pin["revision"]
    if upto is not None:
        last = states.last_segment(pin["generation_id"], after, upto, as_of)
        return _Edge(last.task_id, *place, None, last.revision, after, upto, mode=InputMode.CURSOR, as_of=as_of)
    last = states.last_commit(pin["generation_id"], as_of)
    pieces = states.pieces(pin["generation_id"], as_of)
    return _Edge(last.task_id, *place, None, last.revision, mode=InputMode.WHOLE, as_of=as_of, pieces=pieces)


@dataclass(frozen=True, slots=True)
class _Commit:
    task_id: str = ""  # Empty, and no revision: there is none.
    revision: int | None = None


class _States:
    """Generations at a revision, which is the latest of *all* datasets when a task was claimed.

    Usually nothing was committed to a generation since, and then its row has the answer.
    """

    def __init__(self, tx: Tx, generations: set[str]) -> None:
        self._tx = tx
        self._rows: dict[str, sa.RowMapping] = {}
        self._commits: dict[tuple[str, int], _Commit] = {}
        table = schema.generations
        for some in batches(sorted(generations)):
            self._rows |= {row["id"]: row for row in tx.all(sa.select(table).where(table.c.id.in_(some)))}

    def last_commit(self, generation: str, upto: int | None) -> _Commit:
        """Return the last commit at or before the revision."""
        row = self._rows.get(generation)
        if row is None or row["revision"] is None or upto is None:
            return _Commit()
        upto = min(upto, row["revision"])
        if (generation, upto) not in self._commits:
            self._commits[generation, upto] = self._find(generation, upto, row["revision"] == upto)
        return self._commits[generation, upto]

    def _find(self, generation: str, upto: int, is_exact: bool) -> _Commit:
        table = schema.commits
        # Start from a commit known to be of the generation: other datasets have many more in between.
        first = upto if is_exact else self._earlier(generation, upto)
        query = sa.select(table.c.task_id, table.c.revision).where(
            table.c.generation_id == generation, table.c.revision.between(first, upto)
        )
        row = self._tx.one(query.order_by(table.c.revision.desc()).limit(1))
        return _Commit() if row is None else _Commit(row["task_id"], row["revision"])

    def _earlier(self, generation: str, upto: int) -> int:
        """Return a revision of the generation at or shortly before another, from indexes alone; 0 if unknown."""
        partitions = schema.partitions
        current = sa.select(sa.func.max(partitions.c.revision)).where(
            partitions.c.generation_id == generation, partitions.c.revision <= upto
        )
        return max(self._tx.value(current) or 0, self.last_segment(generation, None, None, upto).revision or 0)

    def last_segment(self, generation: str, after: int | None, cursor: int | None, upto: int | None) -> _Commit:
        """Return the furthest commit within a range of cursors, as of a revision."""
        table = schema.commits
        query = sa.select(table.c.task_id, table.c.revision).where(
            table.c.generation_id == generation, sa.text("cursor IS NOT NULL"), table.c.revision <= (upto or 0)
        )
        if cursor is not None:
            query = query.where(table.c.cursor <= cursor)
        if after is not None:
            query = query.where(table.c.cursor > after)
        row = self._tx.one(query.order_by(table.c.cursor.desc()).limit(1))
        return _Commit() if row is None else _Commit(row["task_id"], row["revision"])

    def pieces(self, generation: str, upto: int | None) -> int | None:
        """Return how many pieces there were; None if something was committed since, because counting is too slow."""
        row = self._rows.get(generation)
        if row is None or row["revision"] is None or upto is None:
            return 0
        return row["partitions"] + row["segments"] if row["revision"] <= upto else None


def _outputs_of(tx: Tx, edges: Sequence[_Edge]) -> list[_Edge]:
    """Return what the tasks that read these edges have committed."""
    table, commits = schema.task_inputs, schema.commits
    by_generation: dict[str, dict[str, int | None]] = {}
    for edge in edges:
        if edge.partition_key is not None:
            by_generation.setdefault(edge.generation_id, {})[edge.partition_key] = edge.revision
    outputs: list[_Edge] = []
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
            outputs += [
                _Edge(
                    row["task_id"],
                    row["dataset_id"],
                    row["generation_id"],
                    row["partition_key"],
                    row["revision"],
                    cursor_upto=row["cursor"],
                    mode=InputMode.PARTITION if row["partition_key"] is not None else InputMode.CURSOR,
                )
                for row in tx.all(query)
                if row["read_revision"] == revisions[row["read_key"]]
            ]
    return sorted(outputs, key=lambda edge: edge.revision or 0)


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
        mode=edge.mode,
        as_of=edge.as_of,
        pieces=edge.pieces,
        task_id=edge.task_id,
    )
