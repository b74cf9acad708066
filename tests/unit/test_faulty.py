"""Injected faults: each does to the store exactly what the real one does, and all can be drawn again."""

from __future__ import annotations

import asyncio
from typing import Any

import pytest

from qo.ambient import Ambient
from qo.errors import ConcurrentWrite, PreconditionFailed, Unavailable, UsageError
from qo.store import register, retrying
from qo.store.faulty import Fault, FaultPlan, Faulty
from qo.store.memory import MemoryStore
from qo.store.port import ObjectStore, PutResult
from qo.store.retrying import Retrying

pytestmark = pytest.mark.fast


def faulty(plan: FaultPlan, seed: int = 1) -> tuple[Faulty, MemoryStore]:
    inner = MemoryStore()
    return Faulty(inner, plan, Ambient.seeded(seed)), inner


async def test_without_faults_it_is_the_store_itself() -> None:
    store, inner = faulty(FaultPlan())
    port: ObjectStore = store
    written = await port.put("k", b"1", if_absent=True)
    assert await port.get("k") == await inner.get("k")
    assert [v.version for v in await port.versions("k")] == [written.version]
    await port.delete("k", if_match=written.etag)
    assert (await port.list("")).entries == []
    assert not store.injected


@pytest.mark.parametrize(
    ("plan", "error", "happened"),
    [
        (FaultPlan(conflict=1), ConcurrentWrite, False),
        (FaultPlan(refused=1), Unavailable, False),
        (FaultPlan(lost_reply=1), Unavailable, True),
        (FaultPlan(own_412=1), PreconditionFailed, True),
    ],
)
async def test_a_fault_writes_or_does_not_write_as_its_kind_says(
    plan: FaultPlan, error: type[Exception], happened: bool
) -> None:
    store, inner = faulty(plan)
    with pytest.raises(error):
        await store.put("k", b"body", if_absent=True)
    assert (await inner.get("k") is not None) is happened
    assert store.injected.total() == 1


async def test_only_a_conditional_write_can_be_refused_by_a_condition() -> None:
    store, inner = faulty(FaultPlan(conflict=0.5, own_412=0.5))
    await store.put("k", b"plain")
    await store.get("k")
    await store.list("")
    stored = await inner.get("k")
    assert stored is not None
    with pytest.raises((ConcurrentWrite, PreconditionFailed)):
        await store.put("k", b"new", if_match=stored.etag)


async def test_a_true_refusal_is_not_disguised_as_a_lost_reply() -> None:
    store, inner = faulty(FaultPlan(lost_reply=1))
    await inner.put("k", b"theirs")
    with pytest.raises(PreconditionFailed):
        await store.put("k", b"ours", if_absent=True)


async def test_during_an_outage_nothing_happens_and_afterwards_all_is_well() -> None:
    store, inner = faulty(FaultPlan())
    store.outage(True)
    with pytest.raises(Unavailable):
        await store.put("k", b"")
    with pytest.raises(Unavailable):
        await store.versioned()
    assert await inner.get("k") is None
    assert store.injected[Fault.OUTAGE] == 2
    store.outage(False)
    await store.put("k", b"")


async def test_a_planned_outage_begins_and_ends_by_the_clock() -> None:
    now = 100.0
    store = Faulty(MemoryStore(), FaultPlan(outages_s=((5, 10),)), Ambient.seeded(1, monotonic=lambda: now))
    await store.get("k")
    now = 105.0
    with pytest.raises(Unavailable):
        await store.get("k")
    now = 110.0
    await store.get("k")


async def test_latency_lets_other_work_pass_before_and_after_the_write() -> None:
    inner = MemoryStore()
    store = Faulty(inner, FaultPlan(latency_s=(0.01, 0.02)), Ambient.seeded(1))
    writing = asyncio.create_task(store.put("k", b"slow"))
    await asyncio.sleep(0)
    assert await inner.get("k") is None
    await writing
    assert await inner.get("k") is not None


async def _faults(seed: int) -> list[str]:
    store, _ = faulty(FaultPlan(refused=0.2, lost_reply=0.2, conflict=0.2, own_412=0.2), seed)
    seen: list[str] = []
    for n in range(50):
        try:
            await store.put(f"k{n}", b"", if_absent=True)
            seen.append("done")
        except (ConcurrentWrite, PreconditionFailed, Unavailable) as error:
            seen.append(str(error))
    assert set(store.injected) == {Fault.REFUSED, Fault.LOST_REPLY, Fault.CONFLICT, Fault.OWN_412}
    return seen


async def test_a_seed_draws_the_same_faults_again() -> None:
    assert await _faults(7) == await _faults(7)
    assert await _faults(7) != await _faults(8)


async def test_a_register_write_survives_any_fault_and_is_applied_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(register, "REST_FIRST_S", 0.0)
    monkeypatch.setattr(register, "SENDS_MAX", 100)
    monkeypatch.setattr(retrying, "REST_FIRST_S", 0.0)
    plan = FaultPlan(refused=0.2, lost_reply=0.2, conflict=0.2, own_412=0.2)
    store, inner = faulty(plan, seed=3)
    patient = Retrying(store, attempts=100)
    bodies = [f"write {n}".encode() for n in range(40)]
    etag: str | None = None
    for body in bodies:
        wrote = await register.write(patient, "k", body, if_match=etag, ours=lambda there, b=body: there == b)
        assert isinstance(wrote, PutResult)
        etag = wrote.etag
    versions = await inner.versions("k")
    stored = [await inner.get("k", version=version.version) for version in reversed(versions)]
    assert [each.body for each in stored if each] == bodies
    assert len(store.injected) == 4


@pytest.mark.parametrize("wrong", [{"refused": -0.1}, {"refused": 0.6, "conflict": 0.6}])
def test_probabilities_must_be_probabilities(wrong: dict[str, float]) -> None:
    with pytest.raises(UsageError, match="probabilities"):
        FaultPlan(**wrong)


async def test_a_fault_that_was_ordered_befalls_the_request_that_was_meant() -> None:
    store, inner = faulty(FaultPlan())
    store.inject(Fault.LOST_REPLY, on="put", under="tasks/", nth=2)
    await store.put("tasks/1", b"")
    await store.put("ready/1", b"")
    with pytest.raises(Unavailable):
        await store.put("tasks/2", b"")
    assert await inner.get("tasks/2") is not None
    await store.put("tasks/3", b"")
    assert store.injected == {Fault.LOST_REPLY: 1}


async def test_a_fault_may_last_for_some_requests_and_counts_only_those_it_can_befall() -> None:
    store, _ = faulty(FaultPlan())
    store.inject(Fault.CONFLICT, times=2)
    await store.put("k", b"plain")
    await store.get("k")
    for _ in range(2):
        with pytest.raises(ConcurrentWrite):
            await store.put("new", b"", if_absent=True)
    await store.put("new", b"", if_absent=True)
    store.inject(Fault.OUTAGE, times=3)
    for ask in (lambda: store.get("k"), lambda: store.list(""), lambda: store.delete_many([])):
        with pytest.raises(Unavailable):
            await ask()
    await store.get("k")


@pytest.mark.parametrize("wrong", [{"on": "head"}, {"nth": 0}, {"times": 0}])
def test_an_order_that_cannot_be_meant_is_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(UsageError):
        Faulty(MemoryStore()).inject(Fault.REFUSED, **wrong)
