"""Column lineage: as a worker reports it, and as the dispatcher shows it."""

from __future__ import annotations

from typing import Literal, Self

from pydantic import Field, PrivateAttr

from qo.api.contract.body import Answer, Body
from qo.core.pipeline.column_lineage import How, Lineage, Source

HowWord = Literal["window", "identity", "transformation", "aggregation", "filter", "join", "group_by", "sort"]


class SourceBody(Body):
    """A column of an input, and how it takes part."""

    input: str = Field(min_length=1, max_length=200)  # Its name in the operator.
    column: str = Field(min_length=1, max_length=200)
    how: HowWord


class LineageBody(Body):
    """What the columns of an output are made from. A column that is not named here has an unknown origin."""

    columns: dict[str, list[SourceBody]] = Field(default={}, max_length=10_000)
    rows: list[SourceBody] = Field(default=[], max_length=10_000)  # What decides which rows there are.
    unknown: list[str] = Field(default=[], max_length=100)  # Why origins are not known.

    @classmethod
    def of(cls, lineage: Lineage) -> LineageBody:
        return cls(
            columns={
                name: [_source_body(source, how) for source, how in sorted(origin.items())]
                for name, origin in lineage.columns.items()
            },
            rows=[_source_body(source, how) for source, how in sorted(lineage.rows)],
            unknown=list(lineage.unknown),
        )

    def lineage(self) -> Lineage:
        return Lineage(
            {
                name: {Source(each.input, each.column): How(each.how) for each in sources}
                for name, sources in self.columns.items()
            },
            frozenset((Source(each.input, each.column), How(each.how)) for each in self.rows),
            tuple(self.unknown),
        )


def _source_body(source: Source, how: How) -> SourceBody:
    return SourceBody(input=source.input, column=source.column, how=how.value)


class WithLineage(Body):
    """A body that may report a lineage. It keeps one that is not sent because it was sent before."""

    lineage: LineageBody | None = None  # Unset: as an earlier commit of the generation reported it, or not known.
    _full_lineage: LineageBody | None = PrivateAttr(default=None)

    @property
    def full_lineage(self) -> LineageBody | None:
        return self._full_lineage or self.lineage

    def with_full_lineage(self, lineage: LineageBody | None) -> Self:
        body = self.model_copy()
        body._full_lineage = lineage
        return body


class ColumnEdge(Answer):
    """A column that another is made from, or that is made from it."""

    depth: int  # 1: directly.
    dataset: str
    dataset_id: str
    column: str | None = None  # None: all columns, since it decides which rows there are.
    how: HowWord


class ColumnOrigin(Answer):
    column: str
    is_known: bool  # false: nothing is known of what it is made from.
    upstream: list[ColumnEdge] = []
    downstream: list[ColumnEdge] = []


class ColumnLineageAnswer(Answer):
    dataset: str
    dataset_id: str
    generation_id: str
    columns: list[ColumnOrigin]
    rows: list[ColumnEdge] = []  # Columns that decide which rows there are.
    unknown: list[str] = []  # Why origins are not known.
    more: bool = False  # The walk stopped at its bound.
