"""Conditions of waiting tasks: what a task waits for, and whether that has happened.

A condition is one of these:

    ID        a task that it depends on: met when that task has ended as it should
    group     a place in the line of its group, which it gets when nothing else is left to wait for
    ID#TURN   the turn of the task before it in the line: met when that turn is over

A turn is over when its task has ended, and the turn before it is over: a task that is cancelled while it waits keeps
its place until then. When it is replayed afterwards, it gets a place at the end, and another turn.
"""

from __future__ import annotations

from collections.abc import Iterable
from enum import Enum, auto

from msgspec.structs import replace

from qo.core.task import Flow, OnDependencyFailure, Status, Task

DEPENDENTS_MAX = 1_000  # They are part of every version of the task.
DEPENDENCIES_MAX = 1_000

GROUP = "group"
_NO_FLOW = Flow()


class Verdict(Enum):
    """What a task that is waited for says about the condition."""

    MET = auto()
    BROKEN = auto()  # It ended without having completed.
    OPEN = auto()  # It has not ended, and will notify the waiting task.
    UNREGISTERED = auto()  # It has not ended, and does not know the waiting task.
    UNKNOWN = auto()  # There is no such task.


def flow_of(task: Task) -> Flow:
    return task.flow or _NO_FLOW


def target_of(condition: str) -> str:
    """Return the id of the task that a condition is about; that of ``GROUP`` is about none."""
    return condition.partition("#")[0]


def turn_condition(task_id: str, turn: int) -> str:
    return f"{task_id}#{turn}"


def is_in_line(flow: Flow) -> bool:
    """Whether a task waits for its turn in a group, or for a place in the line."""
    return any(condition == GROUP or "#" in condition for condition in flow.waits_for)


def wants_place(flow: Flow) -> bool:
    """Whether a task is to get its place in the line now."""
    return flow.waits_for == (GROUP,)


def is_turn_over(task: Task, turn: int) -> bool:
    flow = flow_of(task)
    return flow.turn > turn or (task.ended and not is_in_line(flow))


def ended_as(task: Task) -> Status:
    """Return the status with which a task has ended, whether or not it was archived since."""
    return (task.archived_from or Status.FAILED) if task.status is Status.ARCHIVED else task.status


def assess(waiting: Task, condition: str, target: Task | None) -> Verdict:
    """Decide whether a condition is met, given the task that it is about; ``target`` None: there is none."""
    _, _, turn = condition.partition("#")
    if target is None:
        return Verdict.MET if turn else Verdict.UNKNOWN  # No task is removed before its turn is over.
    is_over = is_turn_over(target, int(turn)) if turn else target.ended
    if not is_over:
        return Verdict.OPEN if waiting.id in flow_of(target).dependents else Verdict.UNREGISTERED
    if turn:
        return Verdict.MET
    if ended_as(target) is Status.COMPLETED:
        return Verdict.MET
    runs_anyway = flow_of(waiting).on_dependency_failure is OnDependencyFailure.RUN
    return Verdict.MET if runs_anyway else Verdict.BROKEN


def conditions_about(waiting: Task, target_ids: Iterable[str]) -> tuple[str, ...]:
    """Return those conditions of a task that are about these other tasks."""
    targets = set(target_ids)
    return tuple(each for each in flow_of(waiting).waits_for if target_of(each) in targets)


def without(flow: Flow, conditions: Iterable[str]) -> Flow:
    met = set(conditions)
    return replace(flow, waits_for=tuple(each for each in flow.waits_for if each not in met))


def with_dependent(flow: Flow, task_id: str) -> Flow:
    return replace(flow, dependents=(*flow.dependents, task_id))


def replayed(flow: Flow) -> Flow:
    """Return the connections of a task that an operator runs again: it waits for its dependencies no more. In its
    group, it keeps its place if its turn has not come yet, and gets in line again otherwise."""
    if flow.group is None:
        return replace(flow, waits_for=(), broken_by=None)
    if is_in_line(flow):
        place = tuple(each for each in flow.waits_for if each == GROUP or "#" in each)
        return replace(flow, waits_for=place, broken_by=None)
    return replace(flow, waits_for=(GROUP,), broken_by=None, turn=flow.turn + 1)


def placed(flow: Flow, after: str | None) -> Flow:
    """Return the connections of a task that has got its place: behind the turn ``after``; None: it is the first."""
    places = {GROUP: () if after is None else (after,)}
    return replace(flow, waits_for=tuple(new for old in flow.waits_for for new in places.get(old, (old,))))
