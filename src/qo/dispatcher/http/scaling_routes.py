"""Routes for scaling: for scalers, and for people who want to know what those decided."""

from __future__ import annotations

from typing import Annotated

from fastapi import Query

from qo.api.contract.scaling import (
    DecisionLine,
    DecisionReports,
    DecisionsKept,
    GrantedTurn,
    RuntimeLoad,
    ScaledRuntime,
    ScalerTurn,
    ScalingAnswer,
)
from qo.dispatcher.http.routes import ContextParam, Routes
from qo.dispatcher.scaling import leases, loads

RUNTIMES_MAX = 500


def list_scaling(
    context: ContextParam,
    decisions: Annotated[
        int, Query(ge=0, le=200, description="How many decisions of each runtime, at most.")
    ] = 10,
) -> ScalingAnswer:
    """List the runtimes whose workers come and go: their load, their workers, and what was decided and why."""
    with context.state.read() as tx:
        rows = leases.list_runtimes(tx, RUNTIMES_MAX)
        measured = loads.measure_loads(tx, context.registry, [row["runtime"] for row in rows])
        listed = [(row, leases.list_decisions(tx, row["runtime"], decisions)) for row in rows]
        now = tx.now
    runtimes = [
        ScaledRuntime.model_validate(
            {
                **row,
                "silent": row["lease_until"] <= now,
                "load": load,
                "decisions": [DecisionLine.model_validate({**each}) for each in decision_rows],
            }
        )
        for (row, decision_rows), load in zip(listed, measured, strict=True)
    ]
    return ScalingAnswer(now=now, runtimes=runtimes)


def take_scaler_turn(context: ContextParam, body: ScalerTurn) -> GrantedTurn:
    """Report the workers of runtimes, take or keep the right to decide for them, and get their load."""
    with context.state.write() as tx:
        holders = leases.take_turn(tx, body)
    held = sorted(name for name, scaler in holders.items() if scaler == body.scaler)
    measured: list[RuntimeLoad] = []
    if held:
        with context.state.read() as tx:
            measured = loads.measure_loads(tx, context.registry, held)
    return GrantedTurn(held=held, holders=holders, loads=measured)


def record_decisions(context: ContextParam, body: DecisionReports) -> DecisionsKept:
    """Record decisions for runtimes that the scaler holds."""
    with context.state.write() as tx:
        return DecisionsKept(recorded_count=leases.record_decisions(tx, body))


def install(routes: Routes) -> None:
    routes.get("/v1/scaling", list_scaling)
    routes.post("/v1/scaling/turns", take_scaler_turn)
    routes.post("/v1/scaling/decisions", record_decisions)
