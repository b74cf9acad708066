"""Versions that are rebuilt: the loops of a dispatcher, and workers that take only what was released."""

from __future__ import annotations

from collections.abc import Callable

from qo.api.contract.dag import RebuildAnswer
from qo.api.contract.task import Claimed, Outcome
from qo.dispatcher.engine.loops import comparison, invalidation, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, rebuilding
from support.dispatcher.pipeline_tasks import all_of, ask, finish, succeed

ROUNDS_MAX = 200

Ends = Callable[[State, Claimed], object]


def run_loops(state: State) -> None:
    """Until none of them has anything left to do."""
    for _ in range(ROUNDS_MAX):
        ticks = (router.tick, invalidation.tick, reconciler.tick, comparison.tick)
        if sum(tick(state) for tick in ticks) + release.tick(state, Limits()) == 0:
            return
    raise AssertionError("the loops do not come to rest")


def released(state: State, job: str | None = None) -> list[str]:
    """The tasks whose wake-up is on its way, those of jobs that read others first: the worst order for a rebuild."""
    found = [
        each
        for each in all_of(state, schema.tasks)
        if each["status"] == "pending" and each["released_at"] is not None and job in (None, each["job"])
    ]
    return [each["id"] for each in sorted(found, key=lambda each: (each["job"], each["id"]), reverse=True)]


def claim(state: State, task_id: str) -> Claimed:
    answer = ask(state, task_id)
    assert isinstance(answer, Claimed), answer
    return answer


def run(state: State, end: Ends = succeed, *, rounds: int = ROUNDS_MAX) -> list[Claimed]:
    """Claim and end all that is released, round by round; what was claimed. ``end``: how each attempt ends."""
    ran: list[Claimed] = []
    for _ in range(rounds):
        run_loops(state)
        taken = [claim(state, each) for each in released(state)]  # All are claimed before the first has ended.
        for each in taken:
            end(state, each)
        ran += taken
        if not taken:
            return ran
    assert rounds < ROUNDS_MAX, "it does not end"
    return ran


def fail(state: State, held: Claimed) -> None:
    finish(state, held, Outcome.FATAL, error="it does not work")


def pieces(held: Claimed, name: str) -> set[str | None]:
    """The partitions of an input that an attempt reads."""
    [found] = [each for each in held.work.inputs if each.name == name]
    return {each.partition_key for each in found.pieces}


def progress(state: State, dag: str, number: int) -> RebuildAnswer:
    with state.read() as tx:
        return rebuilding.rebuild(tx, dag, number)


def cut_over(state: State, dag: str, number: int, *, force: bool = False) -> None:
    with state.write() as tx:
        cutover.mark_ready(tx, dag, number, "tests", force)
        cutover.activate(tx, dag, number, "tests", force)


def holds(state: State) -> list[str]:
    return [each["reason"] for each in all_of(state, schema.holds)]
