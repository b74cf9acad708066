"""What operators want of the workers: what each wish means, and what is forgotten."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import msgspec
import pytest

from qo.core import control, keys, wire
from qo.core.control import CANCELS_MAX, WHOLE, Desired, Order, Orders, Pause, Target, WorkerOrder
from qo.errors import CorruptRecord
from qo.queue import roster
from qo.worker.loop import state

pytestmark = pytest.mark.fast

NOW = datetime(2026, 3, 1, 12, tzinfo=UTC)
NOTHING = Desired()
W1, MAIL = Target(worker="w-1"), Target(task_type="mail")


def after(**passed: float) -> datetime:
    return NOW + timedelta(**passed)


def test_nothing_is_wanted_of_anyone_at_first() -> None:
    assert control.orders_for(NOTHING, "w-1") == Orders()


def test_a_paused_queue_pauses_every_worker_and_says_why() -> None:
    desired = control.pause(NOTHING, WHOLE, now=NOW, by="ada", reason="deploy")
    assert control.orders_for(desired, "w-1") == Orders(paused=True, reason="by ada: deploy")
    assert desired.queue == Pause(at=NOW, by="ada", reason="deploy")


def test_a_paused_worker_is_the_only_one() -> None:
    desired = control.pause(NOTHING, W1, now=NOW)
    assert control.orders_for(desired, "w-1") == Orders(paused=True)
    assert control.orders_for(desired, "w-2") == Orders()


def test_a_paused_type_leaves_the_workers_running() -> None:
    desired = control.pause(NOTHING, MAIL, now=NOW)
    assert control.orders_for(desired, "w-1") == Orders(paused_types=frozenset({"mail"}))


def test_whoever_paused_first_stays_named() -> None:
    for target in (WHOLE, W1, MAIL):
        once = control.pause(NOTHING, target, now=NOW, by="ada")
        assert control.pause(once, target, now=after(hours=1), by="bob") is once


def test_resuming_the_queue_leaves_the_other_pauses() -> None:
    desired = NOTHING
    for target in (WHOLE, W1, MAIL):
        desired = control.pause(desired, target, now=NOW)
    left = control.resume(desired, WHOLE)
    assert control.targets(left) == [MAIL, W1]
    assert control.orders_for(left, "w-1").paused
    assert control.targets(control.resume_all(desired)) == []


def test_to_resume_what_is_not_paused_changes_nothing() -> None:
    for target in (WHOLE, W1, MAIL):
        assert control.resume(NOTHING, target) is NOTHING
    assert control.resume_all(NOTHING) is NOTHING


def test_to_leave_is_stronger_than_to_pause() -> None:
    paused = control.pause(NOTHING, W1, now=NOW)
    leaving = control.drain(paused, "w-1", now=NOW, reason="old machine")
    assert control.orders_for(leaving, "w-1") == Orders(drain=True, reason="old machine")
    assert control.pause(leaving, W1, now=NOW) is leaving


def test_a_worker_that_is_restarted_under_its_name_does_not_leave_again() -> None:
    desired = control.drain(NOTHING, "w-1", now=NOW)
    assert control.orders_for(desired, "w-1", NOW).drain, "started before the order, or at that moment"
    assert control.orders_for(desired, "w-1", after(seconds=1)) == Orders()
    again = control.drain(desired, "w-1", now=after(seconds=2))
    assert control.orders_for(again, "w-1", after(seconds=1)).drain


def test_a_worker_that_is_restarted_under_its_name_can_be_paused() -> None:
    desired = control.drain(NOTHING, "w-1", now=NOW)
    paused = control.pause(desired, W1, now=after(hours=1), started_at=after(seconds=1))
    assert control.orders_for(paused, "w-1", after(seconds=1)) == Orders(paused=True)


def test_a_paused_worker_that_is_restarted_under_its_name_stays_paused() -> None:
    desired = control.pause(NOTHING, W1, now=NOW)
    assert control.orders_for(desired, "w-1", after(hours=1)).paused


def test_cancellations_are_forgotten_once_every_worker_has_heard_of_them() -> None:
    desired = control.note_cancel(NOTHING, ["a"], now=NOW)
    desired = control.note_cancel(desired, ["b"], now=after(minutes=5))
    assert control.prune(desired, after(minutes=10)) is desired
    assert list(control.prune(desired, after(minutes=11)).cancels) == ["b"]


def test_of_very_many_cancellations_the_latest_are_kept() -> None:
    desired = NOTHING
    for n in range(CANCELS_MAX + 10):
        desired = control.note_cancel(desired, [f"{n:04}"], now=after(milliseconds=n))
    kept = control.prune(desired, after(minutes=1)).cancels
    assert sorted(kept) == [f"{n:04}" for n in range(10, CANCELS_MAX + 10)]


def test_old_orders_are_forgotten_only_for_workers_that_have_gone() -> None:
    desired = control.pause(NOTHING, W1, now=NOW)
    desired = control.drain(desired, "w-2", now=NOW)
    later = after(days=8)
    assert control.prune(desired, after(days=7)) is desired
    assert list(control.prune(desired, later, {"w-1"}).workers) == ["w-1"]
    assert control.prune(desired, later).workers == {}


def test_pauses_of_the_queue_and_of_types_are_never_forgotten() -> None:
    desired = control.pause(control.pause(NOTHING, WHOLE, now=NOW), MAIL, now=NOW)
    assert control.prune(desired, after(days=365)) is desired


def test_wishes_survive_the_wire() -> None:
    desired = control.pause(control.pause(NOTHING, WHOLE, now=NOW, by="ada"), MAIL, now=NOW, reason="ü")
    desired = control.note_cancel(control.drain(desired, "w-1", now=NOW), ["id"], now=NOW)
    assert wire.decode(Desired, wire.encode(desired), keys.DESIRED) == desired
    assert desired.workers == {"w-1": WorkerOrder(kind=Order.DRAINED, at=NOW)}


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b'{"workers": {"w": {"wanted": "shot", "at": "2026-03-01T12:00:00Z"}}}',
        b'{"queue": {"at": "2026-03-01T12:00:00"}}',
        b'{"format": 99}',
    ],
)
def test_wishes_that_cannot_be_understood_are_not_guessed_at(body: bytes) -> None:
    with pytest.raises(CorruptRecord):
        wire.decode(Desired, body, keys.DESIRED)


def test_a_record_of_an_older_worker_can_still_be_read() -> None:
    old = b'{"worker_id": "w", "started_at": "2026-03-01T12:00:00Z", "last_heartbeat": "2026-03-01T12:00:00Z"}'
    info = wire.decode(roster.WorkerInfo, old, keys.worker("w"))
    assert (info.state, info.http, info.slots, info.leasing, info.pid) == ("running", None, 0, False, None)
    assert msgspec.json.decode(wire.encode(info), type=roster.WorkerInfo) == info


def test_the_roster_knows_the_states_of_workers() -> None:
    assert roster.PAUSED == state.State.PAUSED
    assert {*roster.LEAVING} == {*state.LEAVING}
    assert roster.WorkerInfo(worker_id="w", started_at=NOW, last_heartbeat=NOW).state == state.State.RUNNING
