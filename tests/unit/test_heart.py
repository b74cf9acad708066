"""Whoever is held is heard of in time; who is let go before that wakes nobody."""

from __future__ import annotations

import threading
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from types import SimpleNamespace
from typing import Any

import pytest

from qo.agent import heartbeats as module
from qo.agent.heartbeats import HeartbeatThread, HeldTask
from qo.api.contract.task import HeartbeatAnswer, HeartbeatRequest
from qo.errors import LeaseLost, Unavailable
from qo.worker.loop.cancel import CancelToken, Why

NEVER_S = 600.0
SOON_S = 0.02


class Api:
    """A dispatcher that answers, or raises what it is told to."""

    def __init__(self, *raises: Exception) -> None:
        self.beats: Counter[str] = Counter()
        self.heard = threading.Condition()
        self._raises = list(raises)

    async def heartbeat(self, token: str, request: HeartbeatRequest) -> HeartbeatAnswer:
        with self.heard:
            self.beats[request.task_id] += 1
            self.heard.notify_all()
        if self._raises:
            raise self._raises.pop(0)
        return HeartbeatAnswer(lease_expires_at=datetime.now(UTC))

    async def close(self) -> None:
        pass

    def hears(self, task_id: str, beats: int) -> bool:
        with self.heard:
            return self.heard.wait_for(lambda: self.beats[task_id] >= beats, 10.0)


def held(name: str, heartbeat_s: float) -> HeldTask:
    claimed: Any = SimpleNamespace(
        work=SimpleNamespace(task_id=name, timeout_seconds=None),
        lease_id=f"lease-{name}",
        attempt=1,
        heartbeat_s=heartbeat_s,
    )
    return HeldTask(claimed, CancelToken(), token="t")


@contextmanager
def beating(api: Any) -> Iterator[HeartbeatThread]:
    heart = HeartbeatThread(lambda: api)
    heart.start()
    try:
        yield heart
    finally:
        heart.stop()


def test_attempts_that_end_before_their_first_heartbeat_do_not_wake_the_thread(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    api, woken = Api(), Counter[str]()
    with beating(api) as heart:
        call = heart._loop.call_soon_threadsafe

        def counted(function: Any, *args: Any) -> Any:
            woken[function.__name__] += 1
            return call(function, *args)

        with monkeypatch.context() as patched:
            patched.setattr(heart._loop, "call_soon_threadsafe", counted)
            for number in range(50):
                each = held(str(number), NEVER_S)
                heart.hold(each)
                heart.let_go(each)
    assert woken == {"_set_timer": 1}
    assert not api.beats


def test_who_is_due_first_is_heard_of_first_whoever_came_first() -> None:
    api = Api()
    with beating(api) as heart:
        heart.hold(held("slow", NEVER_S))
        quick = held("quick", SOON_S)
        heart.hold(quick)
        assert api.hears("quick", 3)
        heart.hold(held("quicker", SOON_S / 2))
        assert api.hears("quicker", 3)
        heart.let_go(quick)
        time.sleep(5 * SOON_S)
        before = api.beats["quick"]
        time.sleep(5 * SOON_S)
        assert api.beats["quick"] == before
        heart.hold(held("again", SOON_S))
        assert api.hears("again", 2)
    assert "slow" not in api.beats


def test_many_noted_from_many_threads_are_all_heard_of() -> None:
    api = Api()
    names = [f"{thread}-{number}" for thread in range(4) for number in range(25)]
    with beating(api) as heart:

        def hold(thread: int) -> None:
            for number in range(25):
                heart.hold(held(f"{thread}-{number}", SOON_S * (1 + (thread + number) % 3)))

        threads = [threading.Thread(target=hold, args=(number,)) for number in range(4)]
        for each in threads:
            each.start()
        for each in threads:
            each.join()
        assert all(api.hears(name, 2) for name in names)


def test_a_heartbeat_without_an_answer_is_repeated_and_a_lost_lease_ends_it(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(module, "RETRY_S", SOON_S)
    api = Api(Unavailable("away"), LeaseLost("another attempt counts"))
    one = held("one", SOON_S)
    with beating(api) as heart:
        heart.hold(one)
        assert api.hears("one", 2)
        assert one.cancel.wait(10.0)
        time.sleep(3 * SOON_S)
    assert one.cancel.why is Why.LOST
    assert api.beats["one"] == 2


def test_an_attempt_that_is_held_long_after_its_time_limit_is_given_up(monkeypatch: pytest.MonkeyPatch) -> None:
    api, kept, late = Api(), held("kept", SOON_S), held("late", SOON_S)
    monkeypatch.setattr(module, "OVERTIME_S", 0.1)
    for each in (kept, late):
        each.claimed.work.timeout_seconds = 0.1
    kept.settling = True  # Its end is being reported: the lease is kept for as long as that takes.
    given_up = threading.Event()
    late.cancel.on_request(lambda why: given_up.set())
    with beating(api) as heart:
        heart.hold(kept)
        heart.hold(late)
        assert given_up.wait(10)
        beats = api.beats["kept"]
        assert api.hears("kept", beats + 3)
        assert (late.cancel.why, late.lost, kept.lost) == (Why.LOST, True, False)
