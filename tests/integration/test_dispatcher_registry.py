"""The registry at work: queues and limits of runtimes, and what becomes of jobs whose queue is gone."""

from __future__ import annotations

from collections.abc import Iterable
from types import SimpleNamespace
from typing import Any

import sqlalchemy as sa

from qo.api.contract.task import ClaimRequest
from qo.config.runtimes import RuntimeSettings
from qo.config.settings import Settings
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts.claiming import claim
from qo.dispatcher.engine.loops import pressure, release, sweeper
from qo.dispatcher.engine.release_limits import Limits, caps_of, thresholds
from qo.dispatcher.http.runtime_routes import list_queues, list_runtimes
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import deploy
from qo.dispatcher.views.unserved_queues import UNSERVED_S
from qo.dispatcher.views.why.answer import why
from qo.pipeline.registry import DEFAULT, Registry, configured_registry
from support.dispatcher.pipelines import dag, job, live, loaded, source
from support.dispatcher.states import Clock

SHOP = dag(
    "shop",
    source("orders"),
    job("quick", reads="orders"),
    job("yearly", reads="orders", queue="slow"),
)


def with_tables(*queues: str, **fields: Any) -> Registry:
    return configured_registry([RuntimeSettings(name="python", queues=queues, **fields)])


BOTH = with_tables("python", "slow")


def deploy_with(state: State, registry: Registry) -> None:
    topology.use_registry(state, registry)
    with state.write() as tx:
        deploy.deploy(tx, SHOP, "", "tests", registry)


def add_tasks(state: State, of: LiveJob, keys: Iterable[int]) -> list[str]:
    with state.write() as tx:
        return [each.task_id for each in create(tx, [NewTask(job=of, dedupe_key=f"manual:{key}") for key in keys])]


def run_release(state: State, registry: Registry) -> int:
    return release.tick(state, Limits(caps=caps_of(registry)), registry=registry)


def queues_of(state: State, table: sa.Table = schema.tasks) -> dict[str, str]:
    with state.read() as tx:
        key = table.c.task_id if table is schema.outbox else table.c.id
        return {
            task: queue for task, queue in tx.execute(sa.select(key, table.c.queue).order_by(table.c.created_at))
        }


def begin(state: State, task_id: str) -> None:
    with state.write() as tx:
        assert claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/data").status == "claimed"


def test_each_job_is_woken_in_the_queue_that_it_names(state: State) -> None:
    deploy_with(state, BOTH)
    [quick] = add_tasks(state, live(loaded(state), "shop.quick"), [1])
    [yearly] = add_tasks(state, live(loaded(state), "shop.yearly"), [1])
    assert run_release(state, BOTH) == 2
    assert queues_of(state, schema.outbox) == {quick: "python", yearly: "slow"}


def test_after_a_restart_with_other_queues_tasks_go_where_their_job_runs_now(state: State) -> None:
    deploy_with(state, BOTH)
    [task] = add_tasks(state, live(loaded(state), "shop.quick"), [1])
    later = with_tables("fresh", "slow")
    topology.use_registry(state, later)
    assert live(loaded(state), "shop.quick").queue == "fresh"
    assert run_release(state, later) == 1
    assert queues_of(state, schema.outbox) == queues_of(state) == {task: "fresh"}


def test_wake_ups_in_a_queue_that_is_gone_are_withdrawn_and_sent_anew(state: State) -> None:
    deploy_with(state, BOTH)
    [task] = add_tasks(state, live(loaded(state), "shop.quick"), [1])
    run_release(state, BOTH)
    assert sweeper.tick(state, 300.0, registry=BOTH) == 0
    later = with_tables("fresh", "slow")
    topology.use_registry(state, later)
    assert sweeper.tick(state, 300.0, registry=later) == 1
    assert run_release(state, later) == 1
    assert queues_of(state) == {task: "fresh"}
    assert sweeper.tick(state, 300.0, registry=later) == 0


def test_a_job_whose_queue_is_gone_is_held_and_why_tells(state: State) -> None:
    deploy_with(state, BOTH)
    [task] = add_tasks(state, live(loaded(state), "shop.yearly"), [1])
    topology.use_registry(state, DEFAULT)
    assert run_release(state, DEFAULT) == 0
    with state.read() as tx:
        reason = tx.value(sa.select(schema.holds.c.reason))
        told = why(tx, task)
    assert "has no queue 'slow': add it to queues of [runtimes.python]" in reason
    assert reason in told.lines[0]
    topology.use_registry(state, BOTH)
    assert run_release(state, BOTH) == 1


def test_limits_of_runtime_queue_and_operator_count_what_runs_and_what_was_woken(state: State) -> None:
    registry = with_tables(
        "python",
        "slow",
        max_in_flight=4,
        queue_limits=(("slow", 2),),
        operator_limits=(("shop.quick:run", 3),),
    )
    deploy_with(state, registry)
    quick = add_tasks(state, live(loaded(state), "shop.quick"), range(9))
    add_tasks(state, live(loaded(state), "shop.yearly"), range(9))
    assert run_release(state, registry) == 4
    waking = sorted(queues_of(state, schema.outbox).values())
    assert waking == ["python", "python", "slow", "slow"]
    begin(state, next(task for task in queues_of(state, schema.outbox) if task in quick))
    assert run_release(state, registry) == 0, "what runs counts like what was woken"
    with state.read() as tx:
        reasons = set(tx.execute(sa.select(schema.holds.c.reason)).scalars())
    assert reasons == {"limit of runtime python: 4 are under way"}


def test_a_queue_that_no_worker_takes_from_is_told(state: State, state_clock: Clock) -> None:
    deploy_with(state, BOTH)
    [quick] = add_tasks(state, live(loaded(state), "shop.quick"), [1])
    first, second = add_tasks(state, live(loaded(state), "shop.yearly"), [1, 2])
    run_release(state, BOTH)
    begin(state, quick)
    with state.read() as tx:
        assert why(tx, first).do == "see whether a worker runs: qo worker list --runtime python/slow"
    state_clock.advance(UNSERVED_S + 1)
    pressure.tick(state, thresholds(Settings().dispatcher.pressure))
    advice = "no worker takes from the queue slow: start one with qo worker run --runtime python --queue slow"
    context: Any = SimpleNamespace(state=state, registry=BOTH)
    lines = {each.name: (each.runtime, each.unserved) for each in list_queues(context).queues}
    assert lines == {"slow": ("python", advice)}
    with state.read() as tx:
        assert why(tx, first).do == advice
    begin(state, second)
    assert [each.unserved for each in list_queues(context).queues] == [None]


def test_the_api_shows_what_a_runtime_needs(state: State) -> None:
    registry = with_tables("python=3", "slow", image="example.com/qo:1", memory="4Gi", cpu=2.0)
    context: Any = SimpleNamespace(registry=registry)
    [python] = [each for each in list_runtimes(context).runtimes if each.name == "python"]
    assert (python.kind, python.launcher, python.image, python.memory, python.cpu) == (
        "python",
        "queue",
        "example.com/qo:1",
        "4Gi",
        2.0,
    )
    assert [(each.name, each.weight) for each in python.queues] == [("python", 3), ("slow", 1)]


def test_the_api_shows_what_functions_may_do_with_the_defaults_of_their_kind() -> None:
    tables = (
        RuntimeSettings(name="container", parallel=2, env=("REGION",)),
        RuntimeSettings(name="shut", kind="container", network=False),
    )
    context: Any = SimpleNamespace(registry=configured_registry(tables))
    shown = {each.name: (each.parallel, each.network, each.env) for each in list_runtimes(context).runtimes}
    assert shown == {
        "container": (2, True, ["REGION"]),
        "shut": (8, False, []),
        "lambda": (8, False, []),
        "python": (None, None, None),
        "spark": (None, None, None),
        "dispatcher": (None, None, None),
    }


def test_two_dispatchers_share_a_limit_of_a_runtime_over_its_queues(state: State) -> None:
    if state.engine.dialect.name == "sqlite":
        return  # A writer is alone there.
    registry = with_tables("python", "slow", max_in_flight=1)
    deploy_with(state, registry)
    add_tasks(state, live(loaded(state), "shop.quick"), [1])
    with state.write() as tx:
        assert len(release.release(tx, Limits(caps=caps_of(registry)), 10, registry)) == 1
        add_tasks(state, live(loaded(state), "shop.yearly"), [1])
        assert run_release(state, registry) == 0, "another dispatcher is using up the limit"
    assert run_release(state, registry) == 0
    assert len(queues_of(state, schema.outbox)) == 1
