"""Tasks that were read and not taken come back in their order."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from qo.core.discovery import Due, Verdict
from qo.queue.deferred_tasks import DeferredTasks

fast = pytest.mark.fast


AT = datetime(2026, 3, 1, tzinfo=UTC)


def due(task_id: str) -> Due:
    return Due(task_id, f"ready/{task_id}", "etag", 0, AT, AT, 0)


def shelf_with(*task_ids: str, room: dict[str, int]) -> DeferredTasks:
    """The first letter of an id is its type; while these are put, there is no room."""
    shelf = DeferredTasks(lambda task_type, ahead: Verdict.LATER)
    for task_id in task_ids:
        shelf.add(due(task_id), task_id[0])
    shelf.judge = lambda task_type, ahead: Verdict.TAKE if room.get(task_type, 0) > ahead else Verdict.LATER
    return shelf


def taken(shelf: DeferredTasks, wanted: int = 100) -> list[str]:
    return [each.task_id for each in shelf.take(wanted)]


@fast
def test_what_came_first_leaves_the_shelf_first() -> None:
    shelf = shelf_with("a3", "b1", "a1", "a2", "a1", room={"a": 9})
    assert taken(shelf, 2) == ["a3", "a1"]
    assert (taken(shelf), taken(shelf)) == (["a2"], [])


@fast
def test_those_being_tried_count_against_the_room_of_their_type() -> None:
    shelf = shelf_with("a1", "a2", "a3", "b1", "b2", room={"a": 2, "b": 1})
    assert (taken(shelf), taken(shelf)) == (["a1", "a2", "b1"], [])
    assert shelf.verdict("a3") is Verdict.LATER
    shelf.mark_tried("a1")
    shelf.mark_tried("a1")  # Said twice, it counts once.
    assert (taken(shelf), taken(shelf)) == (["a3"], [])


@fast
def test_the_type_of_a_task_is_remembered_though_the_shelf_does_not_keep_it() -> None:
    room = {"a": 1}
    shelf = shelf_with(room=room)
    shelf.add(due("a1"), "a")  # There is room: nothing to wait for.
    assert taken(shelf) == []
    assert (shelf.verdict("a1"), shelf.verdict("never seen")) == (Verdict.TAKE, Verdict.TAKE)
    room["a"] = 0
    assert (shelf.verdict("a1"), shelf.verdict("never seen")) == (Verdict.LATER, Verdict.TAKE)
