"""Routes for backfills: create, show, pause, resume, cancel."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path

from qo.api.contract.backfill import BackfillAnswer, BackfillRequest, BackfillsPage
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.versions import backfills, overview

Id = Annotated[str, Path(max_length=36, description="The backfill's id.")]


def create_backfill(context: ContextParam, caller: CallerParam, body: BackfillRequest) -> BackfillAnswer:
    """Run a job again for a range of partitions.

    At most at_once of its tasks are open at a time. A second request with the same key returns the same backfill.
    """
    with context.state.write() as tx:
        answer = backfills.create(tx, body, caller.name)
    context.nudge()
    return answer


def list_backfills(
    context: ContextParam, dag: str | None = None, after: After = None, limit: Limit = 100
) -> BackfillsPage:
    """List the backfills, newest first."""
    with context.state.read() as tx:
        if dag is not None:
            overview.require(tx, dag)
        return backfills.list_all(tx, dag, after, limit)


def show_backfill(context: ContextParam, id: Id) -> BackfillAnswer:
    """Show a backfill: its progress, and what is missing in its input."""
    with context.state.read() as tx:
        return backfills.show(tx, id)


def pause_backfill(context: ContextParam, id: Id) -> BackfillAnswer:
    """Pause a backfill: it creates no more tasks; existing ones continue."""
    with context.state.write() as tx:
        return backfills.pause(tx, id)


def resume_backfill(context: ContextParam, id: Id) -> BackfillAnswer:
    """Resume a backfill."""
    with context.state.write() as tx:
        answer = backfills.resume(tx, id)
    context.nudge()
    return answer


def cancel_backfill(context: ContextParam, caller: CallerParam, id: Id) -> BackfillAnswer:
    """Cancel a backfill and its pending tasks; what it has committed stays."""
    with context.state.write() as tx:
        return backfills.cancel(tx, id, caller.name)


def install(routes: Routes) -> None:
    routes.get("/v1/backfills", list_backfills, 404)
    routes.post("/v1/backfills", create_backfill, 404)
    routes.get("/v1/backfills/{id}", show_backfill, 404)
    routes.post("/v1/backfills/{id}/pause", pause_backfill, 404, 409)
    routes.post("/v1/backfills/{id}/resume", resume_backfill, 404, 409)
    routes.post("/v1/backfills/{id}/cancel", cancel_backfill, 404, 409)
