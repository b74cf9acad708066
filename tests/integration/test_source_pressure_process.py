"""Backpressure reaches a source that runs in a real worker process: it is told to wait, and that it may go on."""

from __future__ import annotations

import asyncio
import re

import pytest

from support.dispatcher.sites import SHORT_LEASE_S, Site, embedded, job, on_postgres, pipeline

__all__ = ["embedded", "on_postgres"]

FLOW = {
    "name": "flow",
    "activation": "source",
    "runtime": "python",
    "operator": "dispatcher_operators:flow",
    "source": {"kind": "always_on"},
    "outputs": 1,
    "config": {"first": 4},
    "heartbeat_timeout_seconds": SHORT_LEASE_S,  # So a heartbeat comes about every second and a half.
}


@pytest.fixture(params=["on_postgres", "embedded"])
def site(request: pytest.FixtureRequest) -> Site:
    return request.getfixturevalue(request.param)


async def test_a_source_in_a_worker_process_waits_while_its_readers_cannot_keep_up(site: Site) -> None:
    gate = site.directory / "gate"
    slow = job(
        "slow", "flow", "gated", config={"gate": str(gate)}, scaling={"max_concurrency": 1}, max_queue_depth=2
    )
    async with site.dispatcher(), site.worker("w1"):
        await site.deploy(pipeline(FLOW, slow))
        await site.noted("held", 1)
        answer = await site.client.get("/v1/held")
        (held,) = (each for each in answer["held"] if each["job"] == "flow")
        assert (held["kind"], held["mode"]) == ("always_on", "hold")
        # Four, before the worker takes the first of them.
        assert re.fullmatch(r"job shop\.slow is overfull: [34] tasks of it wait, more than 2", held["reason"])
        expected = r"job shop\.slow: [34] wait, and 1 or fewer must be left \(shop\.slow must run\)"
        assert re.fullmatch(expected, held["next"])
        assert site.notes("resumed").total() == 0
        command = site.qo(QO_DISPATCHER_URL=f"http://127.0.0.1:{site.ports[0]}")
        listed = await asyncio.to_thread(command, "queue", "held")
        assert "shop.flow" in listed.out, listed
        assert "GOES ON WHEN" in listed.out
        gate.touch()
        await site.noted("resumed", 1)
        await site.completed({"slow": 5})
