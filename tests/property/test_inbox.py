"""Inboxes: whatever the order of arrivals and ends, no task waits while a slot is free, and none is lost."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.worker.loop.inbox import Inboxes, Slot

pytestmark = pytest.mark.fast

STEPS = st.lists(st.sampled_from(["arrive", "end", "take back"]), max_size=80)


@given(STEPS, st.integers(1, 5), st.integers(0, 3), st.randoms())
def test_every_task_is_started_once_or_taken_back_and_none_waits_beside_an_idle_slot(
    steps: list[str], count: int, capacity: int, chance: object
) -> None:
    inboxes: Inboxes[int] = Inboxes(count, capacity)
    running: dict[Slot[int], int] = {}
    waiting: list[int] = []
    started: list[int] = []
    for number, step in enumerate(steps):
        match step:
            case "arrive":
                slot = inboxes.add(number)
                if slot is None:
                    waiting.append(number)
                else:
                    assert slot not in running
                    running[slot] = number
                    started.append(number)
            case "end" if running:
                slot = sorted(running, key=lambda s: s.index)[chance.randrange(len(running))]  # type: ignore[attr-defined]
                del running[slot]
                following = inboxes.free(slot)
                assert (following is None) == (not waiting)
                if following is not None:
                    waiting.remove(following)
                    running[slot] = following
                    started.append(following)
            case "take back" if waiting:
                assert inboxes.remove(waiting[0])
                assert not inboxes.remove(waiting.pop(0))
        assert sum(len(slot.inbox) for slot in inboxes.slots) == len(waiting)
        assert inboxes.idle() == count - len(running)
        assert not (waiting and inboxes.idle()), "a task waits although a slot is free"
        assert inboxes.room(ahead=True) == max(0, inboxes.idle() + count * capacity - len(waiting))
    assert len(started) == len(set(started))


def test_idle_slots_take_turns() -> None:
    inboxes: Inboxes[str] = Inboxes(3, 1)
    order: list[int] = []
    for _ in range(6):
        slot = inboxes.add("task")
        assert slot is not None
        order.append(slot.index)
        assert inboxes.free(slot) is None
    assert order == [0, 1, 2, 0, 1, 2]


def test_what_waits_behind_a_slow_task_is_taken_by_the_first_slot_that_is_free() -> None:
    inboxes: Inboxes[str] = Inboxes(2, 2)
    slow, quick = inboxes.add("slow"), inboxes.add("quick")
    assert slow is not None
    assert quick is not None
    for name in ("a", "b", "c"):
        assert inboxes.add(name) is None
    assert len(slow.inbox) + len(quick.inbox) == 3
    taken = [inboxes.free(quick) for _ in range(4)]
    assert set(taken) == {"a", "b", "c", None}
    assert not slow.inbox, "nothing is left behind the slow one"


def test_without_prefetch_nothing_is_claimed_for_a_busy_slot() -> None:
    inboxes: Inboxes[str] = Inboxes(2, 0)
    inboxes.add("one")
    assert (inboxes.room(ahead=True), inboxes.room(ahead=False)) == (1, 1)
    inboxes.add("two")
    assert (inboxes.room(ahead=True), inboxes.room(ahead=False)) == (0, 0)
