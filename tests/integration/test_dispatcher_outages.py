"""While a dispatcher or its database is away, no attempt loses its lease for having been silent."""

from __future__ import annotations

import asyncio
import math
from collections.abc import Callable, Generator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from datetime import timedelta
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.api.contract.bundle import CreateBundle, Invocation
from qo.api.contract.task import EventBody, EventsRequest, Outcome
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.core.pipeline.states import EffectKind
from qo.core.pipeline.topology import LiveJob
from qo.dispatcher.attempts import running
from qo.dispatcher.attempts.claiming import REPORT_S
from qo.dispatcher.auth.signing_keys import KeyRing
from qo.dispatcher.bundles import bundle_store
from qo.dispatcher.engine.loops import reaper
from qo.dispatcher.outbox import outbox
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.runtimes import invoker as invokers
from qo.dispatcher.runtimes.invoker import Invoker
from qo.dispatcher.runtimes.local_functions import Functions
from qo.dispatcher.service import Dispatcher
from qo.dispatcher.state.database import State, Tx
from qo.errors import LeaseLost, Unavailable
from qo.function.function_messages import Stop, Verdict
from support.dispatcher.pipeline_tasks import beat, claimed, fence, partition_task, row_of, succeed, woken
from support.dispatcher.pipelines import dag, deployed, job, live, source
from support.dispatcher.states import Clock
from support.dispatcher.zips import MAIN, bundle, sha256
from support.stores.queues import until

LEASE_S, TIMEOUT_S = 60, 1_000


@pytest.fixture
def clean(state: State) -> LiveJob:
    wanted = dag("shop", source("orders"), job("clean", reads="orders", timeout_seconds=TIMEOUT_S))
    return live(deployed(state, wanted), "shop.clean")


class Nowhere:
    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        pass


class Away(State):
    """A database that answers or does not."""

    away = False

    @contextmanager
    def write(self) -> Generator[Tx]:
        self._answer()
        with super().write() as tx:
            yield tx

    @contextmanager
    def read(self) -> Generator[Tx]:
        self._answer()
        with super().read() as tx:
            yield tx

    def _answer(self) -> None:
        if self.away:
            raise Unavailable("the state database does not answer")


def dispatcher_on(state: State, directory: Path) -> Dispatcher:
    chosen = Settings()
    settings = replace(chosen, dispatcher=replace(chosen.dispatcher, data=f"file:{directory / 'data'}"))
    return Dispatcher(state, Nowhere(), settings)


def looks(dispatcher: Dispatcher) -> Callable[[], object]:
    """One look of its reaper."""
    (loop,) = [each for each in dispatcher.loops if each.name == "reaper"]
    return lambda: asyncio.run(loop.once())


def test_a_lease_that_ran_out_is_renewed_as_long_as_nobody_took_the_task_back(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(LEASE_S * 3)
    answer = beat(state, held, progress={"rows": 7})
    row = row_of(state, held.work.task_id)
    assert answer.lease_expires_at == row["lease_expires_at"] > row["updated_at"]
    assert (row["status"], row["attempt"], row["progress"]) == ("running", 1, {"rows": 7})
    assert reaper.tick(state) == 0
    assert succeed(state, held).status == "completed"


def test_what_a_lapsed_attempt_says_is_kept_as_long_as_nobody_took_the_task_back(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(LEASE_S * 3)
    with state.write() as tx:
        said = running.emit(tx, EventsRequest(**fence(held), events=[EventBody(partition_key="p")]))
    assert said.accepted == 1


def test_a_task_that_was_taken_back_is_not_given_again_to_who_was_late(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(LEASE_S * 3)
    assert reaper.tick(state) == 1
    with pytest.raises(LeaseLost):
        beat(state, held)


def test_no_heartbeat_makes_an_attempt_longer_than_it_may_be(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    held = claimed(state, partition_task(state, clean, "p"))
    limit = row_of(state, held.work.task_id)["started_at"] + timedelta(seconds=TIMEOUT_S + REPORT_S)
    state_clock.advance(TIMEOUT_S)
    assert beat(state, held).lease_expires_at <= limit
    state_clock.advance(REPORT_S)
    with pytest.raises(LeaseLost, match="longer than the 1000 s"):
        beat(state, held)
    with state.write() as tx, pytest.raises(LeaseLost, match="longer than"):
        running.emit(tx, EventsRequest(**fence(held), events=[EventBody(partition_key="p")]))
    assert reaper.tick(state) == 1


def test_nothing_is_taken_back_until_its_holder_could_be_heard_for_a_whole_lease(
    state: State, clean: LiveJob, state_clock: Clock
) -> None:
    claimed(state, partition_task(state, clean, "p"))
    state_clock.advance(10_000)
    with state.read() as tx:
        started = tx.now
    assert reaper.tick(state, not_before=started) == 0
    state_clock.advance(LEASE_S - 1)
    assert reaper.tick(state, not_before=started) == 0
    state_clock.advance(1)
    assert reaper.tick(state, not_before=started) == 1


def test_a_dispatcher_that_comes_back_hears_the_holders_first(
    state: State, clean: LiveJob, state_clock: Clock, tmp_path: Path
) -> None:
    """One holder has lived on, the other has not."""
    lives, gone = (claimed(state, partition_task(state, clean, key)) for key in "pq")
    state_clock.advance(LEASE_S * 3)
    look = looks(dispatcher_on(state, tmp_path))
    look()
    beat(state, lives)
    assert row_of(state, gone.work.task_id)["status"] == "running"
    state_clock.advance(LEASE_S - 1)
    beat(state, lives)
    look()
    assert row_of(state, gone.work.task_id)["status"] == "running"
    state_clock.advance(2)
    look()
    assert row_of(state, gone.work.task_id)["status"] == "pending"
    assert row_of(state, lives.work.task_id)["status"] == "running"


def test_after_an_outage_of_the_database_the_holders_are_heard_first(
    state: State, clean: LiveJob, state_clock: Clock, tmp_path: Path
) -> None:
    away = Away(state.engine, ambient=state.ambient, clock=state_clock)
    look = looks(dispatcher_on(away, tmp_path))
    look()
    state_clock.advance(LEASE_S * 3)
    held = claimed(state, partition_task(state, clean, "p"))
    away.away = True
    for _ in range(2):
        with pytest.raises(Unavailable):
            look()
        state_clock.advance(LEASE_S * 3)
    away.away = False
    look()
    assert row_of(state, held.work.task_id)["status"] == "running"
    state_clock.advance(LEASE_S + 1)
    look()
    assert row_of(state, held.work.task_id)["status"] == "pending"


@pytest.mark.fast
def test_a_pool_without_a_free_connection_is_an_outage_that_passes(tmp_path: Path) -> None:
    engine = sa.create_engine(
        f"sqlite:///{tmp_path / 's.db'}", poolclass=sa.QueuePool, pool_size=1, max_overflow=0, pool_timeout=0.01
    )
    state = State(engine)
    with state.read(), pytest.raises(Unavailable, match="call again"), state.read():
        pass
    with state.read() as tx:
        assert tx.value(sa.select(sa.literal(1))) == 1
    state.close()


class Fails(State):
    """A database that does not answer so many times."""

    refusals = 0.0

    @contextmanager
    def write(self) -> Generator[Tx]:
        if self.refusals > 0:
            self.refusals -= 1
            raise Unavailable("the state database does not answer")
        with super().write() as tx:
            yield tx


class Goes(Functions):
    """A function that does what it should; when it has, the database is away."""

    def __init__(self, state: Fails, refusals: float) -> None:
        self._state, self._refusals = state, refusals

    def launch(self, invocation: Invocation, watch: Callable[[], Stop | None]) -> Verdict:
        self._state.refusals = self._refusals
        return Verdict(Outcome.SUCCESS)


def invoked(state: State, directory: Path, refusals: float, **fields: object) -> tuple[Invoker, str]:
    """Who has started the function of a task, and the task."""
    shelf = bundle_store.BundleStore(Settings(dispatcher=DispatcherSettings(data=f"file:{directory / 'data'}")))
    body = bundle({MAIN: ""})
    with state.write() as tx:
        created = bundle_store.register(tx, CreateBundle(sha256=sha256(body), bytes=len(body)), "tests", shelf)
    bundle_store.upload(state, shelf, created.bundle_id, body)
    bundle_store.finalize(state, shelf, created.bundle_id)
    udf = {"bundle_id": created.bundle_id, "entrypoint": MAIN}
    tell = job("tell", reads="orders", runtime="lambda", operator="udf", udf=udf, outputs=0, **fields)
    task_id = partition_task(state, live(deployed(state, dag("shop", source("orders"), tell)), "shop.tell"), "p")
    with state.write() as tx:
        outbox.add(tx, [outbox.Effect("wake", EffectKind.INVOKE, "lambda", task_id)])
        woken(tx, task_id)
    fails = Fails(state.engine, ambient=state.ambient)
    ring = KeyRing.open(directory / "keys")
    invoker = Invoker(fails, ring, Goes(fails, refusals), data_root="file:/data", url="http://127.0.0.1:1")
    assert invoker.tick() == 1
    return invoker, task_id


async def test_what_a_function_has_done_is_reported_once_the_database_answers_again(
    state: State, tmp_path: Path
) -> None:
    invoker, task_id = invoked(state, tmp_path, refusals=3)

    async def is_over() -> bool:
        return row_of(state, task_id)["status"] == "completed"

    try:
        await until(is_over)
    finally:
        await asyncio.to_thread(invoker.close)
    row = row_of(state, task_id)
    assert (row["attempt"], row["retry_count"]) == (1, 0)


async def test_nothing_is_reported_for_longer_than_the_lease_lasts(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    invoker, task_id = invoked(state, tmp_path, refusals=math.inf, heartbeat_timeout_seconds=1)

    async def has_given_up() -> bool:
        return "could not be reported" in caplog.text

    await until(has_given_up)
    await asyncio.to_thread(invoker.close)
    assert row_of(state, task_id)["status"] == "running"  # The reaper decides about it.


async def test_who_is_to_end_does_not_wait_for_a_database_that_is_away(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(invokers, "CLOSING_S", 0.2)
    invoker, task_id = invoked(state, tmp_path, refusals=math.inf, heartbeat_timeout_seconds=3600)
    await asyncio.to_thread(invoker.close)
    assert "could not be reported" in caplog.text
    assert row_of(state, task_id)["status"] == "running"
