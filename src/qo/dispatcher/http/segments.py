"""Routes for always-on sources that write data: commit segments, and find the last one."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.task import CommitAnswer, CommitRequest, LastSegment
from qo.dispatcher.attempts import segments
from qo.dispatcher.auth import capability as capabilities
from qo.dispatcher.http.routes import CallerParam, ContextParam, Routes


def commit_segments(context: ContextParam, caller: CallerParam, body: CommitRequest) -> CommitAnswer:
    """Commit segments of an always-on source, which continues to run.

    A cursor that is committed already stays as it is, whichever attempt sends it again.
    """
    capabilities.bind(caller.capability, body)
    with context.state.write() as tx:
        answer = segments.commit(tx, body, context.settings.dispatcher.data_root)
    context.nudge()
    return answer


def last_segment(
    context: ContextParam,
    caller: CallerParam,
    output: Annotated[int, Query(ge=0, le=1000, description="Which output.")] = 0,
) -> LastSegment:
    """Show how far an output of the task is committed."""
    with context.state.read() as tx:
        capabilities.require_running(tx, caller.capability)
        return segments.last(tx, caller.capability.task_id, output)


def install(routes: Routes) -> None:
    routes.post("/v1/task/commit", commit_segments, 404, 409)
    routes.get("/v1/task/segment", last_segment, 400, 404, 409)
