"""`qo why` about events, corrections, joins and dispatchers that do not run."""

from __future__ import annotations

from pathlib import Path

from qo.api.contract.task import EventBody, OutputBody
from qo.api.contract.why import Verdict
from qo.dispatcher.engine.loops import invalidation, router
from qo.dispatcher.events import invalidations
from qo.dispatcher.sources import emission
from qo.dispatcher.state.database import State
from qo.dispatcher.views.why.answer import why
from support.cli.command import Qo
from support.dispatcher.pipelines import dag, deployed, job, live, loaded, source
from support.dispatcher.shop_tasks import DAY, SHOP, emit, finish, tasks
from support.dispatcher.states import Clock


def lines(state: State, target: str) -> str:
    with state.read() as tx:
        return "\n".join(why(tx, target).lines)


def test_why_tells_of_events_that_no_reader_could_take(state: State) -> None:
    deployed(state, dag("d", source("feed"), job("count", reads="feed")))
    emit(state, "d.feed", cursor=7)
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.BLOCKED
    assert "1 event of d.feed" in str(answer.blocked_by)
    assert "not routable" in str(answer.blocked_by)
    assert "PerUpdate" in str(answer.do)
    emit(state, "d.feed", "more", partition_key=DAY)
    (task,) = tasks(state, "d.count")
    finish(state, task["id"], outputs=[OutputBody(output=0)])
    emit(state, "d.feed", "most", cursor=8)
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.THERE
    assert "2 events of d.feed" in answer.lines[0]


def test_why_does_not_call_there_what_was_never_committed(state: State) -> None:
    deployed(state, dag("d", source("feed"), job("count", reads="feed")))
    emit(state, "d.feed", partition_key=DAY)
    (task,) = tasks(state, "d.count")
    finish(state, task["id"])
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.UNKNOWN
    assert "nothing was committed" in str(answer.blocked_by)


def test_why_tells_of_a_correction_and_of_the_task_that_it_started(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    (first,) = tasks(state, "shop.clean")
    finish(state, first["id"], outputs=[OutputBody(output=0)])
    with state.write() as tx:
        made = live(loaded(state), "shop.orders").outputs[0]
        invalidations.invalidate(
            tx, made.dataset_id, made.generation_id, partition_key=DAY, reason="correction", by="ada"
        )
    assert "correction" in lines(state, f"shop.orders@{DAY}")
    invalidation.tick(state)
    (again,) = (each for each in tasks(state, "shop.clean") if each["id"] != first["id"])
    said = lines(state, f"shop.clean@{DAY}")
    assert "is there: committed as revision 2, and is being remade" in said
    assert again["id"] in said
    finish(state, again["id"], outputs=[OutputBody(output=0, rows=1)])
    said = lines(state, f"shop.clean@{DAY}")
    assert "being remade" not in said
    assert f"shop.orders@{DAY} was invalidated at" in said
    assert "by ada: correction" in said
    assert first["id"] not in said
    assert f"task {again['id']} of shop.clean" in said


def test_why_shows_all_sides_of_a_join(state: State) -> None:
    both = dag("j", source("left"), source("right"), job("both", reads=["left", "right"], join="all"))
    deployed(state, both)
    emit(state, "j.left", partition_key=DAY)
    emit(state, "j.right", partition_key=DAY)
    (task,) = tasks(state, "j.both")
    finish(state, task["id"], outputs=[OutputBody(output=0)])
    said = lines(state, f"j.both@{DAY}")
    assert f"j.left@{DAY} was committed" in said
    assert f"j.right@{DAY} was committed" in said


def test_why_doubts_that_a_dispatcher_runs_where_nothing_is_routed_or_released(
    state: State, state_clock: Clock
) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        events = [EventBody(output=0, partition_key=DAY)]
        emission.emit(tx, "shop", "orders", key="k", events=events, by="ada")
    targets = (f"shop.clean@{DAY}", "shop.clean")
    assert not any("dispatcher runs" in lines(state, each) for each in targets)
    state_clock.advance(120)
    assert all("see whether a dispatcher runs: none has" in lines(state, each) for each in targets)
    router.tick(state)
    assert not any("dispatcher runs" in lines(state, each) for each in targets)
    state_clock.advance(120)
    assert all("see whether a dispatcher runs: none has" in lines(state, each) for each in targets)


PIPELINE = """
import qo
flow = qo.Pipeline("days")
days = flow.add("days", source={"kind": "manual"})
"""


def test_the_id_of_an_event_is_recognised_where_a_task_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "new_user_events.py").write_text(PIPELINE)
    qo = Qo(tmp_path)
    qo.ok("dag", "deploy", "new_user_events:flow")
    event = qo.ok("emit", "days.days", "-p", "x").strip()
    assert f"it is an event: see qo why {event}" in qo.here("run", "show", event).err
