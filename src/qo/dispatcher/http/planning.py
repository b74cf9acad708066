"""The route for plans: what deploying a definition would rebuild."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.planning import PlanAnswer
from qo.dispatcher.http.dags import FILE, Name, SourceParam, read_definition
from qo.dispatcher.http.routes import After, ContextParam, Limit, Routes
from qo.dispatcher.versions import planning


def plan_version(
    context: ContextParam,
    dag: Name,
    source: SourceParam,
    job: Annotated[str | None, Query(max_length=200, description="Only this job.")] = None,
    after: After = None,
    limit: Limit = planning.FIRST,
) -> PlanAnswer:
    """Show what deploying a definition would rebuild, partition by partition; nothing is changed.

    The body is the file as YAML, or JSON {source}. For further partitions of a job, pass its name and after.
    """
    definition = read_definition(context, dag, source)
    with context.state.read() as tx:
        return planning.forecast(tx, definition, context.registry, job=job, after=after, limit=limit)


def install(routes: Routes) -> None:
    routes.post("/v1/dags/{dag}/plan", plan_version, 404, 409, extra=FILE)
