"""Effects outside qo happen once although versions change meanwhile, and happen at all if an attempt fails."""

from __future__ import annotations

from collections.abc import Sequence

import pytest
import sqlalchemy as sa

from qo.api.contract.task import Claimed, EventBody, Outcome
from qo.core.pipeline.states import CancelCode
from qo.dispatcher.effects import external_effects
from qo.dispatcher.engine.loops import invalidation, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover
from qo.errors import LeaseLost
from support.dispatcher import accounting
from support.dispatcher.pipeline_tasks import claimed, finish, lapse, row_of, succeed
from support.dispatcher.pipelines import dag, deployed, edited, job, source, staged
from support.dispatcher.states import Clock

SHOP = dag("shop", source("orders"), job("clean", reads="orders"), job("alert", reads="clean", outputs=0))


NEXT = edited(SHOP, "clean", config={"sql": "other"})


RETRY_S = 1000.0  # Longer than a lease, and than any rest between attempts.


def say(state: State, key: str, partition: str = "p") -> None:
    with state.write() as tx:
        emission.emit(tx, "shop", "orders", key=key, events=[EventBody(partition_key=partition)], by="tests")


def turn(state: State) -> int:
    did = invalidation.tick(state) + router.tick(state) + reconciler.tick(state)
    return did + release.tick(state, Limits(operators={}))


def rest(state: State) -> None:
    while turn(state):
        pass


def waiting(state: State, name: str) -> Sequence[sa.RowMapping]:
    tasks = schema.tasks
    released = sa.and_(tasks.c.status == "pending", tasks.c.released_at.is_not(None))
    with state.read() as tx:
        return tx.all(sa.select(tasks).where(tasks.c.job == name, released).order_by(tasks.c.partition_key))


def cleaned(state: State) -> None:
    """All that is there for it is cleaned, in each version that is live."""
    rest(state)
    for row in waiting(state, "clean"):
        succeed(state, claimed(state, row["id"]))
    rest(state)


def begun(state: State) -> Claimed:
    [row] = waiting(state, "alert")
    return claimed(state, row["id"])


def alerted(state: State) -> list[Claimed]:
    """What is alerted from now on, until all is at rest; then the books are right."""
    made: list[Claimed] = []
    for _ in range(20):
        rest(state)
        found = waiting(state, "alert")
        if not found:
            break
        for row in found:
            made.append(claimed(state, row["id"]))
            succeed(state, made[-1])
    with state.read() as tx:
        for dataset in tx.execute(sa.select(schema.datasets.c.id)).scalars().all():
            assert accounting.check(tx, dataset).problems == ()
    return made


def alerts(state: State) -> list[str | None]:
    return [each.work.partition_key for each in alerted(state)]


def cut_over(state: State, number: int = 2) -> None:
    with state.write() as tx:
        cutover.activate(tx, "shop", number, "tests", force=True)


def roll_back(state: State) -> None:
    with state.write() as tx:
        cutover.rollback(tx, "shop", "tests")


def under_way(state: State) -> Claimed:
    """An attempt of the version before, which still runs after the cutover; the next version has a task like it."""
    deployed(state, SHOP)
    staged(state, NEXT)
    say(state, "1")
    cleaned(state)
    held = begun(state)
    cut_over(state)
    rest(state)
    assert waiting(state, "alert") == []
    return held


def reasons(state: State) -> list[str | None]:
    tasks = schema.tasks
    query = sa.select(tasks.c.cancel_reason).where(tasks.c.job == "alert", tasks.c.status == "cancelled")
    with state.read() as tx:
        return list(tx.execute(query).scalars())


@pytest.mark.parametrize("outcome", [Outcome.RETRYABLE, Outcome.FATAL, Outcome.RELEASED, Outcome.CANCELLED])
def test_what_an_attempt_from_before_the_cutover_does_not_get_done_the_new_version_does(
    state: State, state_clock: Clock, outcome: Outcome
) -> None:
    held = under_way(state)
    finish(state, held, outcome, error=None if outcome is Outcome.RELEASED else "no")
    state_clock.advance(RETRY_S)
    assert alerts(state) == ["p"]
    state_clock.advance(RETRY_S)
    assert alerts(state) == []


def test_the_new_version_rests_as_long_as_the_old_one_would_have(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    finish(state, held, Outcome.RETRYABLE, error="busy", retry_after_s=300.0)
    rest(state)
    assert waiting(state, "alert") == []
    state_clock.advance(301.0)
    assert alerts(state) == ["p"]


def test_an_attempt_nobody_hears_of_again_is_made_up_for(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    state_clock.advance(RETRY_S)
    lapse(state, held)
    assert alerts(state) == []  # It may only be late.
    state_clock.advance(RETRY_S)
    assert alerts(state) == ["p"]


def test_an_attempt_that_ends_well_is_the_only_one(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    assert alerts(state) == []
    succeed(state, held)
    state_clock.advance(RETRY_S)
    assert alerts(state) == []
    assert reasons(state) == [external_effects.REASON]


@pytest.mark.parametrize("before", [True, False])
def test_an_attempt_that_ends_well_but_late_is_the_only_one(
    state: State, state_clock: Clock, before: bool
) -> None:
    """Its lease ran out after the cutover, or before it."""
    deployed(state, SHOP)
    staged(state, NEXT)
    say(state, "1")
    cleaned(state)
    held = begun(state)
    state_clock.advance(RETRY_S)
    if before:
        lapse(state, held)
    cut_over(state)
    rest(state)
    if not before:
        lapse(state, held)
        rest(state)
    assert waiting(state, "alert") == []
    succeed(state, held)
    state_clock.advance(RETRY_S)
    assert alerts(state) == []


def test_an_attempt_that_was_made_up_for_has_no_say_any_more(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    state_clock.advance(RETRY_S)
    lapse(state, held)
    state_clock.advance(RETRY_S)
    rest(state)
    with pytest.raises(LeaseLost):
        succeed(state, held)
    assert alerts(state) == ["p"]


def test_what_reaches_the_new_version_only_after_the_cutover_is_made_up_for_too(
    state: State, state_clock: Clock
) -> None:
    deployed(state, SHOP)
    say(state, "1")
    cleaned(state)
    held = begun(state)
    staged(state, NEXT)
    cut_over(state)
    cleaned(state)
    assert alerts(state) == []
    finish(state, held, Outcome.FATAL, error="no")
    assert alerts(state) == ["p"]


def test_what_reaches_the_new_version_only_after_the_cutover_is_not_made_twice(state: State) -> None:
    deployed(state, SHOP)
    say(state, "1")
    cleaned(state)
    held = begun(state)
    staged(state, NEXT)
    cut_over(state)
    cleaned(state)
    succeed(state, held)
    assert alerts(state) == []


def test_what_is_replaced_meanwhile_is_told_once(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    say(state, "2")
    cleaned(state)
    finish(state, held, Outcome.FATAL, error="no")
    state_clock.advance(RETRY_S)
    assert alerts(state) == ["p"]


def test_what_people_call_off_is_not_made_behind_their_backs(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    with state.write() as tx:
        operator_actions.cancel(tx, held.work.task_id, "somebody", "a mistake")
    finish(state, held, Outcome.CANCELLED)
    state_clock.advance(RETRY_S)
    assert alerts(state) == []
    assert "its effects were called off at another edition" in reasons(state)


def left_behind(state: State) -> Claimed:
    """An attempt of the version that is rolled back; the one before has the same to do."""
    deployed(state, SHOP)
    staged(state, NEXT)
    say(state, "1")
    cleaned(state)
    cut_over(state)
    rest(state)
    held = begun(state)
    roll_back(state)
    rest(state)
    assert waiting(state, "alert") == []
    return held


@pytest.mark.parametrize("outcome", [Outcome.CANCELLED, Outcome.RETRYABLE, Outcome.FATAL])
def test_what_a_version_that_is_rolled_back_does_not_get_done_the_one_before_does(
    state: State, state_clock: Clock, outcome: Outcome
) -> None:
    held = left_behind(state)
    finish(state, held, outcome, error="no")
    state_clock.advance(RETRY_S)
    assert alerts(state) == ["p"]


def test_what_a_version_that_is_rolled_back_gets_done_after_all_is_not_made_twice(
    state: State, state_clock: Clock
) -> None:
    held = left_behind(state)
    succeed(state, held)  # It was asked to stop, and did not hear it in time.
    state_clock.advance(RETRY_S)
    assert alerts(state) == []


def test_a_cutover_a_rollback_and_another_cutover_lose_nothing(state: State, state_clock: Clock) -> None:
    held = under_way(state)
    roll_back(state)
    staged(state, NEXT, again=True)
    cut_over(state)
    rest(state)
    assert waiting(state, "alert") == []
    finish(state, held, Outcome.FATAL, error="no")
    assert alerts(state) == ["p"]
    assert row_of(state, held.work.task_id)["status"] == "failed"


def test_nobody_is_kept_waiting_while_the_attempt_runs(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    under_way(state)

    def refuse() -> None:
        raise AssertionError("it writes")

    monkeypatch.setattr(state, "write", refuse)
    assert reconciler.tick(state) == 0


def test_only_what_is_undecided_is_looked_at(state: State) -> None:
    under_way(state)
    asked: list[str] = []

    def note(connection: object, cursor: object, statement: str, *_: object) -> None:
        asked.append(statement)

    sa.event.listen(state.engine, "before_cursor_execute", note)
    reconciler.tick(state)
    sa.event.remove(state.engine, "before_cursor_execute", note)
    [question] = [each for each in asked if "RECURSIVE" in each and CancelCode.EFFECTS_DEFERRED in each]
    with state.read() as tx:
        if tx.on_postgres:
            tx.execute(sa.text("SET LOCAL enable_seqscan = off"))
        explain = "EXPLAIN" if tx.on_postgres else "EXPLAIN QUERY PLAN"
        said = "\n".join(str(row) for row in tx.connection.exec_driver_sql(f"{explain} {question}"))
    assert "ix_tasks_deferred" in said


FOLLOWED = dag(
    "shop",
    source("orders"),
    job("clean", reads="orders", execution_strategy="PerUpdate"),
    job("alert", reads="clean", outputs=0, execution_strategy="PerUpdate"),
)


FOLLOWED_NEXT = edited(FOLLOWED, "alert", config={"to": "somebody else"})


def reach(state: State, cursor: int) -> None:
    with state.write() as tx:
        events = [EventBody(cursor=cursor)]
        emission.emit(tx, "shop", "orders", key=str(cursor), events=events, by="tests")
    cleaned(state)


def ranges(state: State) -> list[tuple[int | None, int | None]]:
    inputs = [given for each in alerted(state) for given in each.work.inputs]
    return [(given.cursor_after, given.cursor_upto) for given in inputs]


def following(state: State) -> Claimed:
    """An attempt of the version before, which reads up to 10 and still runs after the cutover."""
    deployed(state, FOLLOWED)
    staged(state, FOLLOWED_NEXT)
    reach(state, 10)
    held = begun(state)
    cut_over(state)
    return held


def test_a_range_that_is_being_read_at_a_cutover_is_read_once(state: State) -> None:
    held = following(state)
    assert ranges(state) == []
    succeed(state, held)
    assert ranges(state) == []
    reach(state, 20)
    assert ranges(state) == [(10, 20)]


def test_what_comes_while_a_range_is_read_by_the_version_before_waits_for_it(state: State) -> None:
    held = following(state)
    reach(state, 20)
    assert ranges(state) == []
    succeed(state, held)
    assert ranges(state) == [(10, 20)]


def test_a_range_that_the_version_before_does_not_get_done_is_read_by_the_new_one(
    state: State, state_clock: Clock
) -> None:
    held = following(state)
    reach(state, 20)
    finish(state, held, Outcome.FATAL, error="no")
    state_clock.advance(RETRY_S)
    read = ranges(state)
    assert [each for each in read if each[0] is None] == read[:1]
    assert read[-1][1] == 20 or (None, 20) in read
    state_clock.advance(RETRY_S)
    assert ranges(state) == []


def test_a_range_whose_reader_is_never_heard_of_again_is_read_by_the_new_one(
    state: State, state_clock: Clock
) -> None:
    held = following(state)
    state_clock.advance(RETRY_S)
    lapse(state, held)
    assert ranges(state) == []  # It may only be late.
    state_clock.advance(RETRY_S)
    assert ranges(state) == [(None, 10)]
