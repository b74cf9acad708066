"""Routes for the first pages of a dashboard: health, partitions over jobs, runs over time, search."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated

from fastapi import Query

from qo.api.contract.first_pages import (
    DurationsAnswer,
    EffortAnswer,
    GridAnswer,
    GridRangesAnswer,
    HealthPage,
    SearchAnswer,
    TimelineAnswer,
    WaitingPage,
)
from qo.dispatcher.http.dags import Name
from qo.dispatcher.http.routes import After, ContextParam, Limit, Routes
from qo.dispatcher.views import (
    job_effort,
    name_search,
    partition_grid,
    partition_ranges,
    pipeline_health,
    run_durations,
    run_timeline,
    waiting_partitions,
)

Version = Annotated[int | None, Query(ge=1, le=2**31 - 1, description="A live version; unset: the active one.")]
FromKey = Annotated[str | None, Query(max_length=200, description="Only keys from this one on.")]


def list_health(context: ContextParam, after: After = None, limit: Limit = 100) -> HealthPage:
    """List the pipelines with what runs, waits, has failed or is held, and how old their published datasets are."""
    with context.state.read() as tx:
        return pipeline_health.list_health(tx, after, limit)


def show_grid(
    context: ContextParam,
    dag: Name,
    version: Version = None,
    from_key: FromKey = None,
    before: Annotated[
        str | None, Query(max_length=200, description="Only keys before this one: the before of the last answer.")
    ] = None,
    limit: Annotated[int, Query(ge=1, le=200, description="How many keys at most.")] = 60,
) -> GridAnswer:
    """Show partitions over jobs: how far each job has come with the newest partitions."""
    with context.state.read() as tx:
        return partition_grid.show_grid(tx, dag, version=version, from_key=from_key, before=before, limit=limit)


def show_ranges(
    context: ContextParam,
    dag: Name,
    version: Version = None,
    from_key: FromKey = None,
    before: Annotated[str | None, Query(max_length=200, description="Only keys before this one.")] = None,
    ranges: Annotated[int, Query(ge=1, le=partition_ranges.RANGES_MAX, description="How many at most.")] = 60,
) -> GridRangesAnswer:
    """Show ranges of partitions over jobs, with counts: how far each job has come, however many there are."""
    with context.state.read() as tx:
        return partition_ranges.show_ranges(
            tx, dag, version=version, from_key=from_key, before=before, ranges=ranges
        )


def list_waiting(
    context: ContextParam,
    dag: Name,
    version: Version = None,
    job: Annotated[str | None, Query(max_length=200, description="Only partitions of this job.")] = None,
    after: After = None,
    limit: Limit = 100,
) -> WaitingPage:
    """List the partitions that are made of others and wait for the rest of them, such as months for their days."""
    with context.state.read() as tx:
        return waiting_partitions.list_waiting(tx, dag, version=version, job=job, after=after, limit=limit)


def list_timeline(
    context: ContextParam,
    dag: Name,
    job: Annotated[str | None, Query(max_length=200, description="Only tasks of this job.")] = None,
    before: Annotated[datetime | None, Query(description="Only tasks that were created before this.")] = None,
    limit: Annotated[int, Query(ge=1, le=500, description="How many tasks at most.")] = 200,
) -> TimelineAnswer:
    """List the newest tasks of a pipeline, each with the times that it waited and ran."""
    with context.state.read() as tx:
        return run_timeline.list_timeline(tx, dag, job=job, before=before, limit=limit)


def list_durations(context: ContextParam, dag: Name) -> DurationsAnswer:
    """List how long the last tasks of each job took."""
    with context.state.read() as tx:
        return run_durations.list_durations(tx, dag)


def show_effort(
    context: ContextParam,
    dag: Name,
    job: Annotated[str, Query(max_length=200, description="Which job.")],
    limit: Annotated[int, Query(ge=1, le=job_effort.TASKS_MAX, description="How many tasks at most.")] = 1_000,
) -> EffortAnswer:
    """Show how long the last tasks of a job ran and waited, and what worker time they took, over time."""
    with context.state.read() as tx:
        return job_effort.show_effort(tx, dag, job, limit)


def search_names(
    context: ContextParam,
    text: Annotated[
        str,
        Query(min_length=1, max_length=700, description="A part of a name, DATASET@KEY, or the id of a task."),
    ],
    limit: Annotated[int, Query(ge=1, le=100, description="How many at most.")] = 20,
) -> SearchAnswer:
    """Search pipelines, jobs, datasets, partitions and tasks by name."""
    with context.state.read() as tx:
        return name_search.search(tx, text, limit)


def install(routes: Routes) -> None:
    routes.get("/v1/health", list_health)
    routes.get("/v1/dags/{dag}/grid", show_grid, 404, 409)
    routes.get("/v1/dags/{dag}/grid/ranges", show_ranges, 404, 409)
    routes.get("/v1/dags/{dag}/waiting", list_waiting, 404, 409)
    routes.get("/v1/dags/{dag}/timeline", list_timeline, 404)
    routes.get("/v1/dags/{dag}/durations", list_durations, 404)
    routes.get("/v1/dags/{dag}/effort", show_effort, 404)
    routes.get("/v1/search", search_names)
