"""When a worker counts as stale: by its own heartbeat, unless an operator set a threshold."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta

import pytest

from qo.queue import roster
from qo.queue.queue import Queue
from qo.queue.roster import WorkerInfo
from qo.store.memory import MemoryStore
from qo.worker.config import WorkerConfig
from qo.worker.loop.control import Control
from qo.worker.loop.hold import Holds
from qo.worker.observe.heartbeat import Heartbeat
from qo.worker.observe.stats import Stats
from qo.worker.ports import FixedShards, Ports

NOW = datetime(2026, 3, 1, 9, tzinfo=UTC)

pytestmark = pytest.mark.fast


def silent_for(seconds: float, heartbeat_s: float | None) -> WorkerInfo:
    at = NOW - timedelta(seconds=seconds)
    return WorkerInfo(worker_id="w", started_at=at, last_heartbeat=at, heartbeat_s=heartbeat_s)


@pytest.mark.parametrize(
    ("heartbeat_s", "silent_s", "stale"),
    [
        (15.0, 59, False),
        (15.0, 61, True),
        (120.0, 470, False),  # It reports every two minutes: a minute of silence says nothing.
        (120.0, 490, True),
        (5.0, 21, True),
        (0.1, 9, False),  # A slow request is not yet a dead worker.
        (0.1, 11, True),
        (None, 59, False),  # An older worker, which does not say how often it reports.
        (None, 61, True),
    ],
)
def test_a_worker_is_stale_after_four_of_its_own_heartbeats(
    heartbeat_s: float | None, silent_s: float, stale: bool
) -> None:
    assert silent_for(silent_s, heartbeat_s).is_stale(NOW) is stale


def test_a_threshold_that_an_operator_set_holds_for_every_worker() -> None:
    assert silent_for(6, 120.0).is_stale(NOW, 5.0)
    assert not silent_for(600, 1.0).is_stale(NOW, 3600.0)


async def test_a_worker_records_how_often_it_reports() -> None:
    queue = Queue(MemoryStore())
    heartbeat = Heartbeat(
        queue,
        WorkerConfig(worker_id="ada", heartbeat_s=42.0),
        task_types=(),
        stats=Stats(),
        holds=Holds(),
        control=Control(lambda: None),
        scope=FixedShards(()),
        ports=Ports(),
        count_requests=lambda: None,
    )
    await heartbeat.begin()
    found = await roster.find(queue.store, "ada")
    assert found is not None
    assert found.heartbeat_s == 42.0
