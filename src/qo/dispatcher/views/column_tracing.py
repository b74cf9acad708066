"""Which columns a column is made from, and which are made from it, across the jobs of live versions."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from qo.api.contract.column_origins import ColumnEdge, ColumnLineageAnswer, ColumnOrigin
from qo.core.pipeline.column_lineage import How, Lineage
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.commits import dataset_columns, lineage_records
from qo.dispatcher.state import datasets, topology
from qo.dispatcher.state.database import Tx
from qo.errors import NotFound, UsageError

DEPTH_MAX = 32
EDGES_MAX = 1_000  # Of each column, in each direction.


def show(tx: Tx, text: str, column: str | None = None, depth: int = 1) -> ColumnLineageAnswer:
    """Return the lineage of one column, or of all columns, of the current generation.

    Raises NotFound for a column that the dataset does not have, as far as that is known.
    """
    if not 1 <= depth <= DEPTH_MAX:
        raise UsageError(f"depth must be between 1 and {DEPTH_MAX}, not {depth}")
    ref = datasets.resolve(tx, text)
    generation = datasets.generation_of(tx, ref.id) or ""
    graph = _Graph(tx, topology.load(tx))
    lineage = graph.lineage(generation)
    names = [each.name for each in dataset_columns.as_of(tx, generation) or ()] or list(lineage.columns)
    wanted_names = _choose(names, column, ref.label)
    columns: list[ColumnOrigin] = []
    more = False
    for name in wanted_names:
        up = _bounded(graph.upstream(generation, name, depth))
        down = _bounded(graph.downstream(ref.id, generation, name, depth))
        more = more or len(up) > EDGES_MAX or len(down) > EDGES_MAX
        columns.append(
            ColumnOrigin(
                column=name,
                is_known=name in lineage.columns,
                upstream=graph.answers(up[:EDGES_MAX]),
                downstream=graph.answers(down[:EDGES_MAX]),
            )
        )
    return ColumnLineageAnswer(
        dataset=ref.label,
        dataset_id=ref.id,
        generation_id=generation,
        columns=columns,
        rows=graph.answers(graph.deciding(generation)),
        unknown=list(lineage.unknown) or ([] if lineage.columns else [_NEVER]),
        more=more,
    )


_NEVER = "no commit has reported it: only jobs on Spark do, and not streams"


def _choose(names: list[str], column: str | None, label: str) -> list[str]:
    if column is None:
        return names
    same = [name for name in names if name.lower() == column.lower()]
    if names and not same:
        raise NotFound(f"{label} has no column {column!r}: it has {', '.join(names[:50])}")
    return same or [column]


@dataclass(frozen=True, slots=True)
class _Edge:
    depth: int
    dataset_id: str
    column: str | None
    how: How


def _bounded(edges: Iterator[_Edge]) -> list[_Edge]:
    return [edge for _, edge in zip(range(EDGES_MAX + 1), edges, strict=False)]


@dataclass(slots=True)
class _Graph:
    """The columns of what is live. Each generation is loaded when a walk comes to it."""

    tx: Tx
    live: Topology
    loaded: dict[str, Lineage] = field(default_factory=dict[str, Lineage])
    makers: Mapping[str, LiveJob] = field(default_factory=dict[str, LiveJob])  # By generation.

    def __post_init__(self) -> None:
        self.makers = {output.generation_id: job for job in self.live.jobs.values() for output in job.outputs}

    def lineage(self, generation: str) -> Lineage:
        if generation not in self.loaded:
            self.loaded[generation] = lineage_records.load(self.tx, [generation]).get(generation, Lineage({}))
        return self.loaded[generation]

    def deciding(self, generation: str) -> list[_Edge]:
        """Return the columns that decide which rows a generation has."""
        read = self._inputs(generation)
        rows = sorted(self.lineage(generation).rows)
        return [_Edge(1, read[each.input][0], each.column, how) for each, how in rows if each.input in read]

    def upstream(self, generation: str, column: str, depth: int) -> Iterator[_Edge]:
        level, visited = [(generation, column)], {(generation, column)}
        for distance in range(1, depth + 1):
            following: list[tuple[str, str]] = []
            for own, name in level:
                read = self._inputs(own)
                for source, how in sorted(self.lineage(own).columns.get(name, {}).items()):
                    if source.input not in read:
                        continue
                    dataset, its_generation = read[source.input]
                    yield _Edge(distance, dataset, source.column, how)
                    place = (its_generation or "", source.column)
                    if place not in visited:
                        visited.add(place)
                        following.append(place)
            level = following

    def downstream(self, dataset: str, generation: str, column: str, depth: int) -> Iterator[_Edge]:
        level, visited = [(dataset, generation, column)], {(generation, column)}
        for distance in range(1, depth + 1):
            following: list[tuple[str, str, str]] = []
            for own, its_generation, name in level:
                for edge, place in self._readings(own, its_generation, name, distance):
                    yield edge
                    if place is not None and place[1:] not in visited:
                        visited.add(place[1:])
                        following.append(place)
            level = following

    def _readings(
        self, dataset: str, generation: str, column: str, distance: int
    ) -> Iterator[tuple[_Edge, tuple[str, str, str] | None]]:
        """Yield what is made from a column, and the place at which the walk goes on."""
        for reader in self.live.readers.get(dataset, ()):
            if reader.input.generation_id not in (None, generation):
                continue  # Another version of the pipeline.
            for output in reader.job.outputs:
                lineage = self.lineage(output.generation_id)
                for name, origin in lineage.columns.items():
                    for source, how in origin.items():
                        if (source.input, source.column) == (reader.input.name, column):
                            place = (output.dataset_id, output.generation_id, name)
                            yield _Edge(distance, output.dataset_id, name, how), place
                for source, how in sorted(lineage.rows):
                    if (source.input, source.column) == (reader.input.name, column):
                        yield _Edge(distance, output.dataset_id, None, how), None

    def _inputs(self, generation: str) -> dict[str, tuple[str, str | None]]:
        """Return dataset and generation of each input of the job that makes a generation, by name."""
        maker = self.makers.get(generation)
        if maker is None:
            return {}
        return {
            each.name: (each.dataset_id, each.generation_id or self.live.current.get(each.dataset_id))
            for each in maker.inputs
        }

    def answers(self, edges: list[_Edge]) -> list[ColumnEdge]:
        names = datasets.by_id(self.tx, {each.dataset_id for each in edges})
        return [
            ColumnEdge(
                depth=each.depth,
                dataset=names[each.dataset_id].label,
                dataset_id=each.dataset_id,
                column=each.column,
                how=each.how.value,
            )
            for each in edges
            if each.dataset_id in names
        ]
