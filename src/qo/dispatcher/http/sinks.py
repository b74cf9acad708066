"""Routes for loaders of sinks."""

from __future__ import annotations

from typing import Annotated

from fastapi import Path, Query, Response

from qo.api.contract.sink import SinkReport, SinksAnswer, SinkStep
from qo.dispatcher.commits import sink_steps
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.views import sinks

Name = Annotated[str, Path(max_length=200)]


def list_sinks(context: ContextParam) -> SinksAnswer:
    """List the tables and files outside that follow published datasets, and the generation that each is to show."""
    with context.state.read() as tx:
        return SinksAnswer(sinks=sinks.list_sinks(tx), now=tx.now)


def sink_step(
    context: ContextParam,
    name: Name,
    generation_id: Annotated[str, Query(max_length=36)],
    after: Annotated[int, Query(ge=0, le=2**63 - 1, description="The revision that the sink has; 0: none.")] = 0,
) -> SinkStep:
    """Show what changes between the revision that a sink has and a later one."""
    with context.state.read() as tx:
        sinks.require_generation(tx, name, generation_id)
    return sink_steps.find_step(context.state, generation_id, after)


def report_sink(context: ContextParam, name: Name, body: SinkReport) -> Response:
    """Store how far a sink is, or why loading it failed, for people to see."""
    with context.state.write() as tx:
        sinks.report(tx, name, body)
    return Response(status_code=204)


def install(routes: Routes) -> None:
    routes.get("/internal/sinks", list_sinks)
    routes.get("/internal/sinks/{name}/step", sink_step, 404)
    routes.put("/internal/sinks/{name}/state", report_sink, 404, status_code=204)
