"""Routes for the tasks of pipelines: list, show, cancel, replay."""

from __future__ import annotations

import logging
from typing import Annotated

from fastapi import Path, Query

from qo.api.contract.task_view import CancelRequest, MovedAnswer, TaskList, TaskView
from qo.dispatcher.http.routes import After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import overview

log = logging.getLogger(__name__)

TaskId = Annotated[str, Path(max_length=36)]
Filter = Annotated[str | None, Query(max_length=200)]


def list_tasks(
    context: ContextParam,
    dag: Filter = None,
    job: Filter = None,
    status: Filter = None,
    superseded: Annotated[
        bool,
        Query(description="With status=failed: also tasks whose work was done since, or is no longer needed."),
    ] = False,
    after: After = None,
    limit: Limit = 100,
) -> TaskList:
    """List tasks, newest first; of the failed ones, those that still need attention."""
    with context.state.read() as tx:
        if dag is not None:
            overview.require(tx, dag, job)
        return operator_actions.list_tasks(
            tx, dag=dag, job=job, status=status, after=after, limit=limit, superseded=superseded
        )


def show_task(context: ContextParam, task_id: TaskId) -> TaskView:
    """Show a task: its attempts, inputs and commits."""
    with context.state.read() as tx:
        return operator_actions.show_task(tx, task_id)


def cancel_task(
    context: ContextParam, caller: CallerParam, task_id: TaskId, body: CancelRequest | None = None
) -> MovedAnswer:
    """Cancel a pending task; ask a running one to stop."""
    with context.state.write() as tx:
        answer = operator_actions.cancel(tx, task_id, caller.name, body.reason if body is not None else None)
    log.info("task %s was cancelled by %s", task_id, caller.name)
    context.nudge()
    return answer


def replay_task(context: ContextParam, caller: CallerParam, task_id: TaskId) -> MovedAnswer:
    """Run a failed or cancelled task again, with all its attempts. A task of no live version is refused."""
    with context.state.write() as tx:
        answer = operator_actions.replay(tx, task_id, caller.name)
    log.info("task %s was replayed by %s", task_id, caller.name)
    context.nudge()
    return answer


def install(routes: Routes) -> None:
    routes.get("/v1/tasks", list_tasks, 400, 404)
    routes.get("/v1/tasks/{task_id}", show_task, 404)
    routes.post("/v1/tasks/{task_id}/cancel", cancel_task, 404, 409)
    routes.post("/v1/tasks/{task_id}/replay", replay_task, 404, 409)
