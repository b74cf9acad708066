"""Whether datasets are as fresh as declared, by the clock of the database: also while nothing runs.

A job declares it as an expectation (``freshness: {column, within}``). That is checked when a task writes, and its check
records the latest value of the column. A dataset is late once that value is older than declared, whether or not a task
comes to check it.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import datetime, timedelta
from typing import Any, cast

import sqlalchemy as sa

from qo.api.contract.dataset import FreshnessState
from qo.core.durations import format_duration
from qo.core.pipeline.expectation import Expectation
from qo.core.pipeline.topology import LiveJob, Topology, VersionStatus
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import Tx

CHECKS_MAX = 50  # The last ones, of which the latest value counts: partitions may come in any order.

_checks = schema.checks


def find_freshness(tx: Tx, live: Topology, dataset_id: str) -> list[FreshnessState]:
    """Return how fresh a dataset is, for each declaration of the job that makes it in the active version."""
    return [
        _state(tx, generation, expectation, dataset)
        for job in live.makers.get(dataset_id, ())
        for dataset, generation, expectation in _declared(job)
        if dataset == dataset_id
    ]


def count_late_seconds(tx: Tx, live: Topology) -> list[tuple[LiveJob, int, float]]:
    """Return for each output with a declaration by how many seconds it is late; 0: it is not."""
    late: list[tuple[LiveJob, int, float]] = []
    for job in sorted(live.jobs.values(), key=lambda each: each.name):
        by_output: dict[int, float] = {}
        for dataset, generation, expectation in _declared(job):
            since = _state(tx, generation, expectation, dataset).late_since
            seconds = 0.0 if since is None else max((tx.now - since).total_seconds(), 0.0)
            by_output[expectation.output] = max(by_output.get(expectation.output, 0.0), seconds)
        late += [(job, output, seconds) for output, seconds in by_output.items()]
    return late


def describe(states: Iterable[FreshnessState]) -> list[str]:
    """Return those that are late, in words."""
    return [each.text for each in states if each.late_since is not None]


def _declared(job: LiveJob) -> Iterable[tuple[str, str, Expectation]]:
    """Yield the declarations of a serving job, each with its dataset and generation."""
    if job.status is VersionStatus.ACTIVE:
        places = {each.index: each for each in job.outputs}
        for expectation in job.job.expectations:
            if expectation.freshness is not None and expectation.output in places:
                place = places[expectation.output]
                yield place.dataset_id, place.generation_id, expectation


def _state(tx: Tx, generation_id: str, expectation: Expectation, dataset_id: str) -> FreshnessState:
    assert expectation.freshness is not None
    latest = _latest(tx, dataset_id, generation_id, expectation)
    within = timedelta(seconds=expectation.freshness.within_s)
    late_since = latest + within if latest is not None and tx.now > latest + within else None
    return FreshnessState(
        column=expectation.freshness.column,
        within=expectation.freshness.within,
        latest=latest,
        late_since=late_since,
        text=_text(tx, expectation, latest, late_since),
    )


def _latest(tx: Tx, dataset_id: str, generation_id: str, expectation: Expectation) -> datetime | None:
    query = sa.select(_checks.c.observed).where(
        _checks.c.dataset_id == dataset_id,
        _checks.c.generation_id == generation_id,
        _checks.c.kind == expectation.kind,
        _checks.c.name == expectation.title,
    )
    observed = tx.execute(query.order_by(_checks.c.at.desc()).limit(CHECKS_MAX)).scalars()
    values = [_parse(each) for each in observed]
    return max((each for each in values if each is not None), default=None)


def _parse(observed: Any) -> datetime | None:
    latest = cast("dict[str, Any]", observed).get("latest") if isinstance(observed, dict) else None
    try:
        at = datetime.fromisoformat(latest) if isinstance(latest, str) else None
    except ValueError:
        return None
    return at if at is not None and at.tzinfo is not None else None


def _text(tx: Tx, expectation: Expectation, latest: datetime | None, late_since: datetime | None) -> str:
    freshness = expectation.freshness
    assert freshness is not None
    if latest is None:
        return f"{freshness.column} is to be within {freshness.within}, and nothing was measured yet"
    age = format_duration((tx.now - latest).total_seconds())
    word = "late" if late_since is not None else "fresh"
    return f"{word}: the latest {freshness.column} is {age} old, and {freshness.within} are declared"
