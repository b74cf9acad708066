"""What the dispatcher keeps for scalers: loads, the right to decide, decisions; and what their token may do."""

from __future__ import annotations

from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.scaling import DecisionReport, DecisionReports, FleetReport, ScalerTurn
from qo.api.contract.task import ClaimRequest
from qo.api.contract.token import CreateToken, Role
from qo.config.runtimes import RuntimeSettings
from qo.dispatcher.attempts.claiming import claim
from qo.dispatcher.auth.principals import create_token
from qo.dispatcher.engine.loops import release
from qo.dispatcher.engine.release_limits import Limits, caps_of
from qo.dispatcher.scaling import leases
from qo.dispatcher.scaling.loads import measure_loads
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import deploy
from qo.dispatcher.versions.pausing import pause
from qo.pipeline.registry import Registry, configured_registry
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, job, live, loaded, source
from support.dispatcher.states import Clock

SHOP = dag("shop", source("orders"), job("quick", reads="orders"), job("yearly", reads="orders", queue="slow"))
REGISTRY = configured_registry([RuntimeSettings(name="python", queues=("python", "slow"), max_in_flight=5)])
NOTHING = {"starting": 0, "ready": 0, "draining": 0, "dead": 0}


def fleet(runtime: str = "python", **fields: Any) -> FleetReport:
    return FleetReport(runtime=runtime, launcher="local", min=0, max=4, slots=2, **{**NOTHING, **fields})


def turn(state: State, scaler: str, *fleets: FleetReport, lease_s: float = 30.0) -> dict[str, str]:
    with state.write() as tx:
        return leases.take_turn(tx, ScalerTurn(scaler=scaler, lease_s=lease_s, fleets=list(fleets or [fleet()])))


def add_tasks(state: State, name: str, count: int) -> list[str]:
    of = live(loaded(state), name)
    with state.write() as tx:
        return [
            each.task_id for each in create(tx, [NewTask(job=of, dedupe_key=f"manual:{n}") for n in range(count)])
        ]


def set_up(state: State, registry: Registry = REGISTRY) -> None:
    topology.use_registry(state, registry)
    with state.write() as tx:
        deploy.deploy(tx, SHOP, "", "tests", registry)


def run_release(state: State) -> None:
    release.tick(state, Limits(caps=caps_of(REGISTRY)), registry=REGISTRY)


def test_the_load_counts_what_was_woken_and_what_runs_over_all_queues(state: State, state_clock: Clock) -> None:
    set_up(state)
    quick, yearly = add_tasks(state, "shop.quick", 3), add_tasks(state, "shop.yearly", 4)
    run_release(state)  # Five of the seven: the runtime has a limit.
    state_clock.advance(7)
    with state.write() as tx:
        woken = (
            tx.execute(sa.select(schema.tasks.c.id).where(schema.tasks.c.released_at.is_not(None))).scalars().all()
        )
        for task in woken[:2]:
            assert claim(tx, ClaimRequest(task_id=task, worker_id="python-1-a"), "file:/data").status == "claimed"
    with state.read() as tx:
        [load, unknown] = measure_loads(tx, REGISTRY, ["python", "gone"])
    assert (load.waiting, load.running, int(load.oldest_s), load.in_flight_max) == (3, 2, 7, 5)
    assert load.busy == {"python-1-a": 2}
    assert load.task_s is None
    assert len({*quick, *yearly}) == 7
    assert (unknown.waiting, unknown.running) == (0, 0)


def test_tasks_that_are_held_back_are_no_load(state: State) -> None:
    set_up(state)
    add_tasks(state, "shop.quick", 3)
    with state.write() as tx:
        pause(tx, "shop", "a rest", "ada")
    run_release(state)
    with state.read() as tx:
        [load] = measure_loads(tx, REGISTRY, ["python"])
    assert (load.waiting, load.running, load.held) == (0, 0, 1)


def test_the_run_time_is_that_of_recent_tasks(state: State) -> None:
    set_up(state)
    tasks = add_tasks(state, "shop.quick", 2)
    with state.write() as tx:
        for task, seconds in zip(tasks, (1, 4), strict=True):
            tx.execute(
                sa.update(schema.tasks)
                .where(schema.tasks.c.id == task)
                .values(status="completed", started_at=tx.now, completed_at=tx.now + timedelta(seconds=seconds))
            )
    with state.read() as tx:
        [load] = measure_loads(tx, REGISTRY, ["python"])
    assert load.task_s == 2.5


def test_a_second_scaler_waits_until_the_first_is_silent(state: State, state_clock: Clock) -> None:
    assert turn(state, "one") == {"python": "one"}
    state_clock.advance(29)
    assert turn(state, "two") == {"python": "one"}
    assert turn(state, "one") == {"python": "one"}  # Renewed.
    state_clock.advance(29)
    assert turn(state, "two") == {"python": "one"}
    state_clock.advance(2)
    assert turn(state, "two") == {"python": "two"}
    assert turn(state, "one") == {"python": "two"}


def test_scalers_of_different_runtimes_do_not_hinder_each_other(state: State) -> None:
    assert turn(state, "one", fleet("python")) == {"python": "one"}
    assert turn(state, "two", fleet("spark"), fleet("python")) == {"spark": "two", "python": "one"}


def test_only_the_report_of_whoever_decides_is_kept(state: State) -> None:
    turn(state, "one", fleet(ready=3))
    turn(state, "two", fleet(ready=9))
    with state.read() as tx:
        [row] = leases.list_runtimes(tx, 10)
    assert (row["scaler"], row["ready"]) == ("one", 3)


def test_decisions_are_kept_for_runtimes_that_the_scaler_holds_and_the_last_of_them(
    state: State, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(leases, "DECISIONS_KEPT", 3)
    turn(state, "one")

    def record(scaler: str, number: int) -> int:
        report = DecisionReport(runtime="python", action="start", workers=number, code="backlog", reason="much")
        with state.write() as tx:
            return leases.record_decisions(tx, DecisionReports(scaler=scaler, decisions=[report]))

    assert [record("one", number) for number in range(5)] == [1] * 5
    assert record("two", 9) == 0
    with state.read() as tx:
        assert [row["workers"] for row in leases.list_decisions(tx, "python", 10)] == [4, 3, 2]


async def test_a_scalers_token_reports_on_scaling_and_does_nothing_else(state: State, tmp_path: Path) -> None:
    set_up(state)
    with state.write() as tx:
        token = create_token(tx, CreateToken(name="scaler", role=Role.SCALER)).token
    async with served(state, tmp_path) as dispatcher:
        dispatcher.tokens["scaler"] = token
        body = {"scaler": "one", "lease_s": 30, "fleets": [fleet(ready=1).model_dump()]}
        granted = await dispatcher.post("/v1/scaling/turns", "scaler", json=body)
        assert granted.json()["held"] == ["python"]
        made = {"runtime": "python", "action": "keep", "workers": 0, "code": "enough", "reason": "all is well"}
        kept = await dispatcher.post(
            "/v1/scaling/decisions", "scaler", json={"scaler": "one", "decisions": [made]}
        )
        assert kept.json() == {"recorded_count": 1}
        for path in ("/v1/scaling", "/v1/tasks", "/v1/dags", "/metrics"):
            assert (await dispatcher.get(path, "scaler")).status_code == 403
        claimed = await dispatcher.post("/internal/tasks/claim", "scaler", internal=True, json={})
        assert claimed.status_code in (403, 404)
        shown = (await dispatcher.get("/v1/scaling", "reader")).json()
        assert (await dispatcher.post("/v1/scaling/turns", "reader", json=body)).status_code == 403
        exposed = (await dispatcher.get("/metrics", "reader")).text
    [runtime] = shown["runtimes"]
    assert (runtime["scaler"], runtime["ready"], runtime["silent"]) == ("one", 1, False)
    assert [each["reason"] for each in runtime["decisions"]] == ["all is well"]
    assert 'qo_dispatcher_scaled_workers{runtime="python",state="ready"} 1.0' in exposed
