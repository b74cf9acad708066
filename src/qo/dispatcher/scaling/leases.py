"""Which scaler decides for which runtime, and what it has decided.

A scaler holds a runtime while it reports. A second one waits: it takes over once the first is silent for longer than
its lease. If both act for a moment all the same, they fill the same places, and a launcher fills a place once.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.scaling import DecisionReports, FleetReport, ScalerTurn
from qo.dispatcher.state.database import Tx
from qo.dispatcher.state.schema import scaled_runtimes, scaling_decisions

DECISIONS_KEPT = 500  # Of each runtime.


def take_turn(tx: Tx, turn: ScalerTurn) -> dict[str, str]:
    """Store the report of a scaler for the runtimes that it has or may take over. Return the scaler of each."""
    fleets = {each.runtime: each for each in turn.fleets}
    tx.insert_absent(scaled_runtimes, [_row(tx, turn, each) for each in turn.fleets], scaled_runtimes.c.runtime)
    query = sa.select(scaled_runtimes).where(scaled_runtimes.c.runtime.in_(sorted(fleets)))
    holders: dict[str, str] = {}
    # In one order, so that two scalers never wait for each other.
    for row in tx.all(tx.lock(query.order_by(scaled_runtimes.c.runtime))):
        is_free = row["scaler"] == turn.scaler or row["lease_until"] <= tx.now
        holders[row["runtime"]] = turn.scaler if is_free else row["scaler"]
        if is_free:
            tx.upsert(scaled_runtimes, _row(tx, turn, fleets[row["runtime"]]))
    return holders


def _row(tx: Tx, turn: ScalerTurn, fleet: FleetReport) -> Mapping[str, Any]:
    until = tx.now + timedelta(seconds=turn.lease_s)
    return {**fleet.model_dump(), "scaler": turn.scaler, "lease_until": until, "reported_at": tx.now}


def record_decisions(tx: Tx, reports: DecisionReports) -> int:
    """Store decisions for runtimes that the scaler holds; return how many. Others are left out: they do not count."""
    names = {each.runtime for each in reports.decisions}
    held = sa.select(scaled_runtimes.c.runtime).where(
        scaled_runtimes.c.scaler == reports.scaler, scaled_runtimes.c.runtime.in_(sorted(names))
    )
    runtimes = set(tx.execute(held).scalars())
    own_decisions = [each for each in reports.decisions if each.runtime in runtimes]
    tx.insert(
        scaling_decisions,
        [{**each.model_dump(), "scaler": reports.scaler, "at": tx.now} for each in own_decisions],
    )
    for runtime in sorted({each.runtime for each in own_decisions}):
        _trim(tx, runtime)
    return len(own_decisions)


def _trim(tx: Tx, runtime: str) -> None:
    own = scaling_decisions.c.runtime == runtime
    column = scaling_decisions.c.seq
    oldest = tx.value(sa.select(column).where(own).order_by(column.desc()).offset(DECISIONS_KEPT).limit(1))
    if oldest is not None:
        tx.execute(sa.delete(scaling_decisions).where(own, column <= oldest))


def list_runtimes(tx: Tx, most: int) -> Sequence[sa.RowMapping]:
    return tx.all(sa.select(scaled_runtimes).order_by(scaled_runtimes.c.runtime).limit(most))


def list_decisions(tx: Tx, runtime: str, most: int) -> Sequence[sa.RowMapping]:
    """List the decisions for a runtime, the newest first."""
    own = sa.select(scaling_decisions).where(scaling_decisions.c.runtime == runtime)
    return tx.all(own.order_by(scaling_decisions.c.seq.desc()).limit(most))
