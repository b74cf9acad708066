"""Routes for data quality: the results of checks, and rejected outputs."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.quality import ChecksPage, RejectionsPage
from qo.dispatcher.http.routes import ContextParam, Limit, Routes
from qo.dispatcher.views import quality

Dataset = Annotated[
    str | None, Query(max_length=410, description="Only this dataset: a published name, dag.job, or dag.job[1].")
]
Before = Annotated[str | None, Query(max_length=200, description="Where the page before ended: its next.")]


def list_checks(
    context: ContextParam,
    dataset: Dataset = None,
    failed: Annotated[bool, Query(description="Only checks that failed.")] = False,
    task_id: Annotated[str | None, Query(max_length=200, description="Only this task.")] = None,
    before: Before = None,
    limit: Limit = 100,
) -> ChecksPage:
    """List the results of checks of outputs, newest first."""
    with context.state.read() as tx:
        return quality.list_checks(tx, dataset, failed=failed, task_id=task_id, before=before, limit=limit)


def list_rejections(
    context: ContextParam, dataset: Dataset = None, before: Before = None, limit: Limit = 100
) -> RejectionsPage:
    """List outputs that failed their checks and were not committed, with their location, newest first."""
    with context.state.read() as tx:
        return quality.list_rejections(tx, dataset, before=before, limit=limit)


def install(routes: Routes) -> None:
    routes.get("/v1/checks", list_checks, 404)
    routes.get("/v1/rejections", list_rejections, 404)
