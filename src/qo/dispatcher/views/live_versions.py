"""The live versions of all pipelines, and what became of versions that were live before."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import sqlalchemy as sa

from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

_versions = schema.dag_versions


@dataclass(frozen=True, slots=True)
class LiveVersion:
    number: int
    status: VersionStatus
    by: str  # Who deployed it.


@dataclass(frozen=True, slots=True)
class LivePipeline:
    """The active version, and the one that is staged or ready beside it."""

    active: LiveVersion | None = None
    beside: LiveVersion | None = None

    @property
    def numbers(self) -> set[int]:
        return {each.number for each in (self.active, self.beside) if each is not None}


Live = Mapping[str, LivePipeline]  # By the name of the pipeline.


def live_pipelines(tx: Tx) -> dict[str, LivePipeline]:
    query = sa.select(_versions.c.dag, _versions.c.number, _versions.c.status, _versions.c.created_by)
    versions: dict[str, dict[bool, LiveVersion]] = {}
    for row in tx.execute(query.where(_versions.c.status.in_(sorted(LIVE)))):
        version = LiveVersion(row.number, VersionStatus(row.status), row.created_by)
        versions.setdefault(row.dag, {})[version.status is VersionStatus.ACTIVE] = version
    return {dag: LivePipeline(own.get(True), own.get(False)) for dag, own in sorted(versions.items())}


def ended_versions(tx: Tx, before: Live, after: Live) -> dict[tuple[str, int], VersionStatus]:
    """Return the status of versions that were live before and are not any more, by pipeline and number."""
    ended: dict[tuple[str, int], VersionStatus] = {}
    for dag, pipeline in before.items():
        for number in sorted(pipeline.numbers - after.get(dag, LivePipeline()).numbers):
            status = tx.value(
                sa.select(_versions.c.status).where(_versions.c.dag == dag, _versions.c.number == number)
            )
            if status is not None:
                ended[dag, number] = VersionStatus(status)
    return ended
