"""Routes for datasets: contents, history, lineage, and why data is missing."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query

from qo.api.contract.column_origins import ColumnLineageAnswer
from qo.api.contract.dataset import (
    ChangesPage,
    CommitsPage,
    DatasetAnswer,
    DatasetsPage,
    LineageAnswer,
    PartitionsPage,
    SchemaPage,
)
from qo.api.contract.event import EventsPage
from qo.api.contract.invalidation import InvalidateAnswer, InvalidateRequest
from qo.api.contract.removal import RemovedAnswer, RemoveRequest
from qo.api.contract.why import WhyAnswer
from qo.dispatcher.commits import removals
from qo.dispatcher.events import invalidations
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.state.datasets import choose_generation, require_partition, resolve
from qo.dispatcher.versions import overview
from qo.dispatcher.views import column_tracing, dataset_schema, history, lineage
from qo.dispatcher.views import datasets as views
from qo.dispatcher.views.why import answer as reasons

Name = Annotated[str, Path(max_length=410, description="A published name, dag.job, or dag.job[1].")]
Key = Annotated[str | None, Query(max_length=200, description="Only this partition.")]
Generation = Annotated[str | None, Query(max_length=36, description="Unset: the current generation.")]
Stale = Annotated[
    bool | None,
    Query(
        description="true: only stale partitions, whose inputs have changed since they were made; false: only others. "
        "A page may then hold fewer than limit, or none, although next is set."
    ),
]
Revision = Annotated[int, Query(ge=0, le=2**63 - 1)]
Before = Annotated[int | None, Query(ge=0, le=2**63 - 1, description="Where the page before ended: its next.")]


def list_datasets(
    context: ContextParam, dag: str | None = None, after: After = None, limit: Limit = 100
) -> DatasetsPage:
    """List the datasets, each with its current generation."""
    with context.state.read() as tx:
        if dag is not None:
            overview.require(tx, dag)
        return views.list_datasets(tx, dag, after, limit)


def show_dataset(context: ContextParam, name: Name) -> DatasetAnswer:
    """Show a dataset: its generations, its readers, and counts of its events."""
    with context.state.read() as tx:
        return views.show_dataset(tx, name)


def list_partitions(
    context: ContextParam,
    name: Name,
    generation_id: str | None = None,
    stale: Stale = None,
    after: After = None,
    limit: Limit = 100,
) -> PartitionsPage:
    """List the committed partitions of a generation; without one, of the current generation."""
    with context.state.read() as tx:
        return views.list_partitions(tx, name, after, limit, generation_id, stale=stale)


def list_events(
    context: ContextParam, name: Name, partition_key: Key = None, before: Before = None, limit: Limit = 100
) -> EventsPage:
    """List the events of a dataset, newest first, each with what became of it."""
    with context.state.read() as tx:
        return views.list_events(tx, name, before, limit, partition_key)


def show_lineage(
    context: ContextParam,
    name: Name,
    partition_key: Annotated[str, Query(min_length=1, max_length=200, description="The partition.")],
    depth: Annotated[int, Query(ge=1, le=lineage.DEPTH_MAX, description="How many steps to follow.")] = 1,
) -> LineageAnswer:
    """Show what a partition was made from, and what was made from it."""
    with context.state.read() as tx:
        return lineage.lineage(tx, name, partition_key, depth)


def show_column_lineage(
    context: ContextParam,
    name: Name,
    column: Annotated[str | None, Query(max_length=200, description="Unset: all columns.")] = None,
    depth: Annotated[int, Query(ge=1, le=column_tracing.DEPTH_MAX, description="How many jobs to follow.")] = 1,
) -> ColumnLineageAnswer:
    """Show which columns the columns of a dataset are made from, and which are made from them."""
    with context.state.read() as tx:
        return column_tracing.show(tx, name, column, depth)


def list_schema(context: ContextParam, name: Name, generation_id: Generation = None) -> SchemaPage:
    """List the commits that changed the columns of a dataset, and the columns from then on."""
    with context.state.read() as tx:
        return dataset_schema.list_changes(tx, name, generation_id)


def list_commits(
    context: ContextParam,
    name: Name,
    partition_key: Key = None,
    generation_id: Generation = None,
    before: Before = None,
    limit: Limit = 100,
) -> CommitsPage:
    """List the commits of a dataset, newest first, each with what replaced it."""
    with context.state.read() as tx:
        return history.list_commits(
            tx, name, partition_key=partition_key, generation_id=generation_id, before=before, limit=limit
        )


def list_changes(
    context: ContextParam,
    name: Name,
    from_revision: Revision,
    to_revision: Revision,
    generation_id: Generation = None,
    after: Before = None,
    limit: Limit = 100,
) -> ChangesPage:
    """List what changed in a dataset from one revision to another."""
    with context.state.read() as tx:
        return history.list_changes(
            tx, name, from_revision, to_revision, generation_id=generation_id, after=after, limit=limit
        )


def why(
    context: ContextParam,
    target: Annotated[
        str,
        Query(
            min_length=1, max_length=700, description="DATASET, DATASET@PARTITION, or the id of an event or task."
        ),
    ],
) -> WhyAnswer:
    """Explain why data is there, or why it is missing."""
    with context.state.read() as tx:
        return reasons.why(tx, target)


def invalidate(context: ContextParam, caller: CallerParam, body: InvalidateRequest) -> InvalidateAnswer:
    """Invalidate committed data: the jobs that it triggers, and those that have read it, run again."""
    with context.state.write() as tx:
        ref = resolve(tx, body.dataset)
        generation = choose_generation(tx, ref, body.generation_id)
        if body.partition_key is not None:
            require_partition(tx, ref, generation, body.partition_key)
        invalidation_id = invalidations.invalidate(
            tx,
            ref.id,
            generation,
            partition_key=body.partition_key,
            start=body.start,
            end=body.end,
            row_filter=body.row_filter,
            reason=body.reason,
            by=caller.name,
            key=body.key,
        )
    context.nudge()
    return InvalidateAnswer(invalidation_id=invalidation_id)


def remove_partitions(
    context: ContextParam, caller: CallerParam, name: Name, body: RemoveRequest
) -> RemovedAnswer:
    """Remove partitions of a dataset, and what was made from them alone. Earlier revisions keep them."""
    with context.state.write() as tx:
        answer = removals.remove(
            tx,
            resolve(tx, name),
            body.partitions,
            by=caller.name,
            reason=body.reason,
            key=body.key or tx.ambient.token(),
        )
    context.nudge()
    return answer


def install(routes: Routes) -> None:
    routes.get("/v1/datasets", list_datasets, 404)
    routes.get("/v1/datasets/{name}", show_dataset, 404)
    routes.get("/v1/datasets/{name}/partitions", list_partitions, 404)
    routes.get("/v1/datasets/{name}/events", list_events, 404)
    routes.get("/v1/datasets/{name}/lineage", show_lineage, 404)
    routes.get("/v1/datasets/{name}/column-lineage", show_column_lineage, 404)
    routes.get("/v1/datasets/{name}/schema", list_schema, 404)
    routes.get("/v1/datasets/{name}/commits", list_commits, 404)
    routes.get("/v1/datasets/{name}/changes", list_changes, 404)
    routes.get("/v1/why", why, 400, 404)
    routes.post("/v1/invalidations", invalidate, 404)
    routes.post("/v1/datasets/{name}/removals", remove_partitions, 404, 409)
