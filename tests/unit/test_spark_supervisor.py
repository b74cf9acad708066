"""What is done about a cluster that was lost, without one."""

from __future__ import annotations

from itertools import pairwise

import pytest

from qo.spark.engine.cluster_watch import Driver, Observation
from qo.spark.engine.endpoint import Reach
from qo.spark.engine.engine import Attempt
from qo.spark.engine.supervisor import PROBE_MAX_S, Supervisor
from support.spark.engines import Clock, FakeEngine

pytestmark = pytest.mark.fast

LOST_AFTER_S = 15.0
ATTEMPT = Attempt("one", 1)
STARVED = Observation(0.0, Reach.OPEN, 0, waiting=1)


class Watched:
    """A supervisor that looks when it is told, and an attempt that it attends to."""

    def __init__(self, engine: FakeEngine) -> None:
        self.engine = engine
        self.clock = Clock()
        engine.clock = self.clock
        self.supervisor = Supervisor(engine, LOST_AFTER_S, clock=self.clock)
        self.given_back: list[str] = []
        self.supervisor.register(ATTEMPT, self._give_back)

    def _give_back(self, reason: str) -> None:
        self.given_back.append(reason)
        self.supervisor.unregister(ATTEMPT)

    def look(self, seen: Observation, seconds: float = 0.0) -> None:
        self.engine.seen = seen
        for _ in range(int(seconds)):
            self.clock.now += 1.0
            self.supervisor.look()
        self.supervisor.look()


@pytest.fixture
def watched() -> Watched:
    return Watched(FakeEngine())


def test_a_lost_session_is_given_up_and_made_anew_when_the_cluster_is_back(watched: Watched) -> None:
    watched.look(Observation(0.0, Reach.OPEN, 2, waiting=1), 5)
    assert watched.supervisor.missing is None
    watched.look(Observation(0.0, Reach.REFUSED, 0, waiting=1), 10)
    (reason,) = watched.given_back
    assert reason == "lost the Spark cluster spark://test:7077: nobody listens there any more"
    assert watched.supervisor.away == watched.supervisor.missing == reason
    assert (watched.engine.abandoned, watched.engine.started) == (1, 0)
    watched.look(Observation(0.0, Reach.REFUSED), 60)
    assert (watched.engine.abandoned, watched.engine.started) == (1, 0)
    watched.look(Observation(0.0, Reach.OPEN, 1), PROBE_MAX_S)
    assert watched.engine.started == 1
    assert watched.supervisor.missing is None


def test_who_waits_for_executors_is_given_back_and_the_session_keeps_its_place(watched: Watched) -> None:
    watched.look(STARVED, 2 * LOST_AFTER_S - 1)
    assert watched.given_back == []
    assert "waits for Spark executors: spark://test:7077 has given none for 2" in str(watched.supervisor.missing)
    watched.look(STARVED, 2)
    (reason,) = watched.given_back
    assert "none for 30 s" in reason
    assert watched.engine.abandoned == 0
    assert watched.supervisor.away is None


def test_a_server_of_others_is_waited_for_as_long_as_it_takes(watched: Watched) -> None:
    watched.look(Observation(0.0, Reach.OPEN, None, waiting=1), 3600)
    assert watched.supervisor.missing is not None
    assert watched.given_back == []


def test_each_session_that_never_had_executors_is_given_more_time(watched: Watched) -> None:
    lost_at: list[float] = []
    watched.engine.seen = STARVED
    while len(lost_at) < 3:
        watched.clock.now += 1.0
        before = watched.engine.abandoned
        watched.supervisor.look()
        if watched.engine.abandoned > before:
            lost_at.append(watched.clock.now)
    assert [round((later - earlier) / 120) for earlier, later in pairwise([0.0, *lost_at])] == [1, 2, 4]


def test_who_was_in_a_driver_that_died_hears_of_it_otherwise(watched: Watched) -> None:
    watched.look(Observation(0.0, driver=Driver.DEAD))
    assert watched.given_back == []
    assert watched.engine.abandoned == 1


def test_a_session_that_does_not_start_says_so_and_is_tried_again(
    watched: Watched, monkeypatch: pytest.MonkeyPatch
) -> None:
    def fail() -> None:
        raise RuntimeError("no such class")

    watched.supervisor.mark_away("the Spark master does not answer")
    with monkeypatch.context() as patched:
        patched.setattr(watched.engine, "start", fail)
        watched.look(Observation(0.0, Reach.OPEN, 1), 1)
        assert watched.supervisor.away == "Spark does not start on spark://test:7077: no such class"
    watched.look(Observation(0.0, Reach.OPEN, 1), PROBE_MAX_S)
    assert watched.supervisor.away is None


def test_nobody_looks_at_what_has_no_cluster(watched: Watched) -> None:
    supervisor = Supervisor(FakeEngine(has_cluster=False), LOST_AFTER_S)
    supervisor.start()
    assert supervisor._thread is None
