"""What ends the rest of a mailbox, and what makes a look out of date."""

from __future__ import annotations

import asyncio

import pytest

from qo.worker.loop.wake_up import WakeUp

pytestmark = pytest.mark.fast


def test_a_task_that_ended_during_a_look_makes_it_out_of_date_and_an_offer_of_room_does_not() -> None:
    for signal, changed in (("look", True), ("room_freed", True), ("push", True), ("room_offered", False)):
        wake_up = WakeUp()
        wake_up.reset()
        getattr(wake_up, signal)()
        assert wake_up.has_changed is changed, signal
        wake_up.reset()
        assert not wake_up.has_changed


async def test_workers_of_two_queues_that_offer_each_other_room_do_not_look_for_ever() -> None:
    one, other = WakeUp(), WakeUp()
    looks = 0
    for _ in range(10):  # Each look ends during the other's, and offers its room.
        one.reset()
        other.room_offered()
        other.reset()
        one.room_offered()
        looks += one.has_changed + other.has_changed
    assert looks == 0


async def test_an_offer_of_room_ends_the_rest_of_who_wants_room() -> None:
    wake_up = WakeUp()
    wake_up.reset()
    resting = asyncio.create_task(wake_up.rest(None, wants_room=True))
    await asyncio.sleep(0)
    wake_up.room_offered()
    await asyncio.wait_for(resting, 5)
