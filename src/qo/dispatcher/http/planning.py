"""The route for plans: what would deploying this build anew?"""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.planning import PlanAnswer
from qo.dispatcher.http.dags import FILE, Name, Source, defined
from qo.dispatcher.http.routes import After, ContextParam, Limit, Routes
from qo.dispatcher.versions import planning


def plan_version(
    context: ContextParam,
    dag: Name,
    source: Source,
    job: Annotated[str | None, Query(max_length=200, description="Only of this job.")] = None,
    after: After = None,
    limit: Limit = planning.FIRST,
) -> PlanAnswer:
    """Show what deploying a definition would build anew, partition by partition; nothing is changed.

    The body is the file, as YAML or as {source}. Further partitions of a job come with its name and after.
    """
    wanted = defined(context, dag, source)
    with context.state.read() as tx:
        return planning.planned(tx, wanted, context.registry, job=job, after=after, limit=limit)


def install(routes: Routes) -> None:
    routes.post("/v1/dags/{dag}/plan", plan_version, 404, 409, extra=FILE)
