"""Runs that share a transaction end as if they had come one after the other."""

from __future__ import annotations

from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, NotClaimed, Outcome
from qo.core.pipeline.states import EffectKind
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.attempts.completion import Ending
from qo.dispatcher.engine.loops import invalidation, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.events import invalidations
from qo.dispatcher.outbox import outbox
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.errors import LeaseLost
from support.dispatcher import accounting
from support.dispatcher.pipeline_tasks import (
    ask,
    claimed,
    fence,
    finish,
    lapse,
    output,
    partition_task,
    row_of,
    tasks_of,
    woken,
)
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock

ROOT = "file:/data"
SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
ONE_BY_ONE, AT_ONCE = 1, 50  # So many runs share a transaction.
both = pytest.mark.parametrize("limit", [ONE_BY_ONE, AT_ONCE])


def own(name: str, operator: str, **fields: Any) -> Any:
    return job(name, **{"reads": "in", "runtime": "dispatcher", "operator": operator, **fields})


SPLIT = dag(
    "d", source("in"), own("cut", "range_splitter", config={"chunk_size": 10}), own("last", "noop", reads="cut")
)


def say(state: State, name: str, end: int | None = 25) -> None:
    """A partition that begins at 0, and lies in a place of its own."""
    range_ = {} if end is None else {"start": 0, "end": end}
    said = EventBody(partition_key=name, attributes={"location": f"s3://in/{name}/"}, **range_)
    with state.write() as tx:
        emission.emit(tx, "d", "in", key=name, events=[said], by="tests")


def due(state: State) -> int:
    """All that is known is routed and released."""
    did = 0
    while more := invalidation.tick(state) + router.tick(state) + release.tick(state, Limits()):
        did += more
    return did


def done(state: State, limit: int) -> None:
    """Everything, so many runs at a time."""
    while due(state) + in_process.tick(state, ROOT, limit):
        pass
    with state.read() as tx:
        for dataset in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
            assert accounting.check(tx, dataset).problems == ()
    assert {each for (each,) in found(state, sa.select(schema.outbox.c.state))} <= {"done"}


def found(state: State, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    with state.read() as tx:
        return [tuple(row) for row in tx.execute(query)]


def statuses(state: State, of: LiveJob) -> dict[str, str]:
    return {row["partition_key"]: row["status"] for row in tasks_of(state, of)}


def standing(state: State, of: LiveJob) -> dict[str, str]:
    """Where the partitions of the job's output lie now."""
    table = schema.partitions
    query = sa.select(table.c.partition_key, table.c.location)
    return dict(found(state, query.where(table.c.generation_id == of.outputs[0].generation_id)))  # type: ignore[arg-type]


def committed(state: State, of: LiveJob, key: str) -> list[bool]:
    """Of each commit of a partition of the output, in order, whether another has taken its place."""
    table = schema.commits
    query = sa.select(table.c.replaced_by).where(
        table.c.generation_id == of.outputs[0].generation_id, table.c.partition_key == key
    )
    return [replaced is not None for (replaced,) in found(state, query.order_by(table.c.revision))]


# Runs of our own


@both
def test_a_partition_that_two_runs_make_is_as_the_later_one_made_it(state: State, limit: int) -> None:
    topology = deployed(state, SPLIT)
    cut, last = live(topology, "d.cut"), live(topology, "d.last")
    for name in ("first", "second", "third"):
        say(state, name)
    done(state, limit)
    assert set(statuses(state, cut).values()) == {"completed"}
    places = standing(state, cut)
    assert sorted(places) == ["0-10", "10-20", "20-25"]
    [place] = set(places.values())
    assert [committed(state, cut, key) for key in places] == [[True, True, False]] * 3
    assert standing(state, last) == dict.fromkeys(places, place)  # What reads it has read the latest.
    runs = [row for row in tasks_of(state, last) if row["status"] != "completed"]
    assert runs == []


@both
def test_a_partition_that_is_to_be_made_anew_twice_at_once_stands_once(state: State, limit: int) -> None:
    cut = live(deployed(state, SPLIT), "d.cut")
    say(state, "p")
    done(state, limit)
    read = cut.inputs[0]
    for number in (1, 2):
        with state.write() as tx:
            invalidations.invalidate(
                tx, read.dataset_id, read.generation_id or "", partition_key="p", key=str(number), by="tests"
            )
    due(state)
    assert sorted(row["status"] for row in tasks_of(state, cut)) == ["completed", "pending", "pending"]
    done(state, limit)
    assert [row["status"] for row in tasks_of(state, cut)] == ["completed"] * 3
    assert [committed(state, cut, key) for key in standing(state, cut)] == [[True, True, False]] * 3


@both
@pytest.mark.parametrize("cursor", [True, False])
def test_a_task_that_is_woken_twice_runs_once(state: State, limit: int, cursor: bool) -> None:
    strategy = "PerUpdate" if cursor else "PerPartition"
    of = live(deployed(state, dag("d", source("in"), own("pass", "noop", execution_strategy=strategy))), "d.pass")
    said = EventBody(cursor=7) if cursor else EventBody(partition_key="p")
    with state.write() as tx:
        emission.emit(tx, "d", "in", key="1", events=[said], by="tests")
    due(state)
    [row] = tasks_of(state, of)
    with state.write() as tx:
        wakes = [outbox.Effect(f"again-{n}", EffectKind.RUN, row["queue"], row["id"]) for n in range(2)]
        outbox.add(tx, [*wakes, outbox.Effect("astray", EffectKind.RUN, row["queue"], "nothing")])
    done(state, limit)
    row = row_of(state, row["id"])
    assert (row["status"], row["attempt"]) == ("completed", 1)
    made = schema.events.c.producer_task_id == row["id"]
    assert len(found(state, sa.select(schema.events.c.seq).where(made))) == 1


@both
def test_a_run_that_fails_takes_nothing_from_the_others(state: State, limit: int) -> None:
    cut = live(deployed(state, SPLIT), "d.cut")
    for name, end in (("good", 5), ("bad", None), ("fine", 15)):
        say(state, name, end)
    done(state, limit)
    assert statuses(state, cut) == {"good": "completed", "bad": "failed", "fine": "completed"}
    assert sorted(standing(state, cut)) == ["0-10", "0-5", "10-15"]


@both
def test_a_run_that_was_cancelled_takes_nothing_from_the_others(state: State, limit: int) -> None:
    cut = live(deployed(state, SPLIT), "d.cut")
    for name in ("a", "b", "c"):
        say(state, name, len(name) * 5)
    due(state)
    [task_id] = [row["id"] for row in tasks_of(state, cut) if row["partition_key"] == "b"]
    with state.write() as tx:
        operator_actions.cancel(tx, task_id, "somebody")
    done(state, limit)
    assert statuses(state, cut) == {"a": "completed", "b": "cancelled", "c": "completed"}


# Claims and ends of several tasks


def test_of_several_claims_each_is_answered_for_itself(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    names = ("free", "withheld", "running", "completed", "cancelled", "other")
    ids = {name: partition_task(state, clean, name) for name in names}
    claimed(state, ids["running"])
    finish(state, held := claimed(state, ids["completed"]), outputs=[output(held)])
    with state.write() as tx:
        operator_actions.cancel(tx, ids["cancelled"], "somebody")
        for name in ("free", "other"):
            woken(tx, ids[name])
    wanted = [*ids.values(), "unheard of"]
    with state.write() as tx:
        asked = [ClaimRequest(task_id=each, worker_id="w", lease_id=f"lease of {each}"[:36]) for each in wanted]
        answers = claiming.claim_all(tx, asked, ROOT)
    said = [each.work.partition_key if isinstance(each, Claimed) else each.reason for each in answers]
    assert said == ["free", "not_due", "running", "completed", "cancelled", "other", "not_found"]
    assert answers == [*(again(state, each) for each in asked)]


def again(state: State, request: ClaimRequest) -> Claimed | NotClaimed:
    """The same question by itself, whose answer was lost."""
    with state.write() as tx:
        return claiming.claim(tx, request, ROOT)


def test_several_ends_are_as_each_would_be_by_itself(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    outcomes = {
        "good": Outcome.SUCCESS,
        "retried": Outcome.RETRYABLE,
        "failed": Outcome.FATAL,
        "given back": Outcome.RELEASED,
        "fine": Outcome.SUCCESS,
    }
    held = {name: claimed(state, partition_task(state, clean, name)) for name in outcomes}
    ends = [ended(held[name], outcome) for name, outcome in outcomes.items()]
    for repeated in (False, True):
        with state.write() as tx:
            answers = completion.complete_all(tx, ends, ROOT)
        assert [each.status for each in answers] == ["completed", "pending", "failed", "pending", "completed"]
        assert {each.repeated for each in answers} == {repeated}
    assert sorted(standing(state, clean)) == ["fine", "good"]
    assert [row["retry_count"] for row in tasks_of(state, clean) if row["partition_key"] == "retried"] == [1]


def ended(held: Claimed, outcome: Outcome) -> Ending:
    made = [output(held)] if outcome is Outcome.SUCCESS else []
    return Ending(CompleteRequest(**fence(held), outcome=outcome, outputs=made))


def test_of_several_ends_one_that_has_no_say_any_more_undoes_all(state: State, state_clock: Clock) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    held = [claimed(state, partition_task(state, clean, name)) for name in ("a", "b")]
    state_clock.advance(3600)
    lapse(state, held[1])
    state_clock.advance(3600)
    assert isinstance(ask(state, held[1].work.task_id), Claimed)  # Somebody else has it now.
    with pytest.raises(LeaseLost), state.write() as tx:
        completion.complete_all(tx, [ended(each, Outcome.SUCCESS) for each in held], ROOT)
    assert row_of(state, held[0].work.task_id)["status"] == "running"
    assert standing(state, clean) == {}
