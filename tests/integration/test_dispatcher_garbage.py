"""Only what nobody can need any more may be deleted, whatever has happened before."""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import pytest
import sqlalchemy as sa

from qo.agent.collection import collect
from qo.api.contract.garbage import JudgeRequest, PrefixVerdict
from qo.api.contract.task import Claimed, Outcome
from qo.core.pipeline.topology import LIVE
from qo.dispatcher.commits import pieces, removals
from qo.dispatcher.commits.retention import COLLECTION_LOCK
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import invalidation, reconciler, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.state import datasets, schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, pausing
from qo.dispatcher.views import reading
from qo.errors import NotFound, QoError, Refused
from qo.store.local_directory import LocalDirectory
from support.dispatcher.pipeline_tasks import (
    ROOT,
    all_of,
    ask,
    claimed,
    feed,
    finish,
    lapse,
    manual_task,
    output,
    partition_task,
    row_of,
    succeed,
)
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock, opened

DAY = 86_400.0
SHOP = dag("shop", source("orders"), job("clean", reads="orders"), job("daily", reads="clean"))
PASSING = dag(
    "shop",
    source("orders", runtime="python", operator="shop.feed:run"),
    job("copy", reads="orders", runtime="dispatcher", operator="noop"),
    job("again", reads="copy", runtime="dispatcher", operator="noop"),
    job("chunks", reads="orders", runtime="dispatcher", operator="range_splitter", config={"chunk_size": 10}),
    job("each", reads="chunks"),
)
# What is passed on is made anew with each version of ``clean``; the chunks are not.
BUSY = dag(
    "shop",
    *PASSING.jobs,
    job("clean", reads="orders"),
    job("kept", reads="clean", runtime="dispatcher", operator="noop"),
)


def judged(state: State, *places: str, keep_s: float = DAY, retired: bool = False) -> list[tuple[bool, str]]:
    wanted = JudgeRequest(prefixes=list(places), keep_s=keep_s, retired=retired)
    with state.write() as tx:
        return [(each.gone, each.why) for each in garbage.judge(tx, wanted)]


def place(held: Claimed, index: int = 0) -> str:
    return held.work.outputs[index].prefix.removeprefix("file:/data/").rstrip("/")


def test_a_log_is_kept_while_its_attempt_runs_and_for_a_while_after(state: State, state_clock: Clock) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    held = claimed(state, manual_task(state, orders, "a"))
    assert held.work.log is not None
    log = held.work.log.removeprefix("file:/data/").rstrip("/")
    forgotten = log.replace(held.work.task_id, "00000000-0000-4000-8000-000000000000")

    def verdicts(log_keep_s: float) -> list[tuple[bool, str]]:
        request = JudgeRequest(prefixes=[log, forgotten], keep_s=0, log_keep_s=log_keep_s)
        with state.write() as tx:
            return [(each.gone, each.why) for each in garbage.judge(tx, request)]

    state_clock.advance(40 * DAY)
    assert verdicts(30 * DAY) == [(False, "the attempt is running"), (True, "the log is old")]
    finish(state, held, Outcome.FATAL, error="whatever became of it")
    state_clock.advance(29 * DAY)
    assert verdicts(30 * DAY)[0] == (False, "the log is not old")
    state_clock.advance(2 * DAY)
    assert verdicts(30 * DAY)[0] == (True, "the log is old")
    assert judged(state, "_logs/2026-99-99/" + log.partition("/")[2].partition("/")[2], keep_s=0)[0][0] is True
    assert (
        judged(state, "_logs/2026-99-99/" + forgotten.partition("/")[2].partition("/")[2], keep_s=0)[0][0] is False
    )


def test_what_stands_is_kept_and_what_was_replaced_goes_after_a_while(state: State, state_clock: Clock) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    first = feed(state, orders, "a", "1")
    state_clock.advance(2 * DAY)
    assert judged(state, place(first)) == [(False, "it is current")]
    second = feed(state, orders, "a", "2")
    assert judged(state, place(first)) == [(False, "it was replaced not long ago")]
    state_clock.advance(2 * DAY)
    assert judged(state, place(first), place(second)) == [
        (True, "it was replaced long ago"),
        (False, "it is current"),
    ]


def test_that_files_may_go_is_on_the_disk_before_they_do(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    """A power cut must not bring back, as something that stands, what was deleted before it."""
    flushed: list[str] = []

    def fsync(descriptor: int) -> None:
        flushed.append(Path(f"/proc/self/fd/{descriptor}").readlink().name)

    monkeypatch.setattr(os, "fsync", fsync)
    orders = live(deployed(state, SHOP), "shop.orders")
    first = feed(state, orders, "a", "1")
    assert flushed == []
    wanted = JudgeRequest(prefixes=[place(first)], keep_s=0.0)
    with state.write() as tx:
        garbage.judge(tx, wanted)
        if tx.on_postgres:
            assert tx.value(sa.text("SHOW synchronous_commit")) == "on"
            return
        assert flushed == [], "only what is committed can be flushed"
    assert flushed[0] == "state.db-wal"
    with state.read() as tx:
        garbage.judge(tx, wanted.model_copy(update={"dry_run": True}))
    assert flushed.count("state.db-wal") == 1


def test_two_who_collect_at_once_do_so_one_after_the_other(state: State) -> None:
    """Each marks rows in an order of its own: side by side they could wait for each other."""
    with state.write() as tx:
        garbage.judge(tx, JudgeRequest(prefixes=["nothing"], keep_s=DAY))
        if not tx.on_postgres:
            return  # A writer is alone there.
        with state.engine.connect() as other:
            free = other.exec_driver_sql(f"SELECT pg_try_advisory_xact_lock({COLLECTION_LOCK:d})").scalar_one()
    assert not free


def test_attempts_are_kept_while_they_run_may_finish_late_or_ended_just_now(
    state: State, state_clock: Clock
) -> None:
    topology = deployed(state, SHOP)
    clean = live(topology, "shop.clean")
    feed(state, live(topology, "shop.orders"), "a")
    held = claimed(state, partition_task(state, clean, "a"))
    state_clock.advance(2 * DAY)
    assert judged(state, place(held)) == [(False, "the attempt is running")]
    lapse(state, held)
    state_clock.advance(2 * DAY)
    assert judged(state, place(held)) == [(False, "the attempt timed out and may still finish")]
    again = claimed(state, held.work.task_id)
    assert judged(state, place(held)) == [(True, "the attempt committed nothing")]
    finish(state, again, Outcome.FATAL, error="no")
    assert judged(state, place(again)) == [(False, "the attempt ended not long ago")]
    state_clock.advance(2 * DAY)
    assert judged(state, place(again)) == [(True, "the attempt committed nothing")]


def test_what_a_running_task_reads_is_kept_as_it_was(state: State, state_clock: Clock) -> None:
    topology = deployed(state, SHOP)
    orders, clean = live(topology, "shop.orders"), live(topology, "shop.clean")
    first = feed(state, orders, "a", "1")
    held = claimed(state, partition_task(state, clean, "a"))
    feed(state, orders, "a", "2")
    state_clock.advance(2 * DAY)
    assert judged(state, place(first)) == [(False, "a running task reads it as it was")]
    succeed(state, held)
    assert judged(state, place(first))[0][0]


def test_what_is_not_known_is_kept(state: State) -> None:
    orders = live(deployed(state, SHOP), "shop.orders")
    mine = place(feed(state, orders, "a"))
    stranger = mine.replace(mine.split("/")[2], "00000000-0000-5000-8000-000000000000")
    elsewhere = mine.replace(mine.split("/")[0], "00000000-0000-5000-8000-000000000000")
    for text in (stranger, elsewhere, f"{mine[:-1]}9", "bundles/x", "../../etc", mine + "/x"):
        assert not judged(state, text, keep_s=0)[0][0]


def test_retired_generations_go_on_request_and_never_come_back(state: State, state_clock: Clock) -> None:
    old = feed(state, live(deployed(state, SHOP), "shop.orders"), "a")
    state_clock.advance(2 * DAY)
    for version in (2, 3):
        number = staged(state, edited(SHOP, "orders", config={"v": version})).version
        with state.write() as tx:
            cutover.activate(tx, "shop", number, "ann", force=True)
        assert judged(state, place(old), retired=True) == [(False, "it is current")]
        state_clock.advance(2 * DAY)
        if version == 2:  # A rollback goes to it.
            assert judged(state, place(old), retired=True) == [(False, "it is current")]
    assert judged(state, place(old)) == [(False, "it is current")]
    assert judged(state, place(old), retired=True) == [(True, "no version can use its generation")]
    assert judged(state, place(old))[0][0]  # Decided for good.
    with pytest.raises(Refused, match="collected"):
        staged(state, SHOP)
    with state.read() as tx, pytest.raises(NotFound, match="collected"):
        reading.pieces(tx, "shop.orders", generation_id=old.work.outputs[0].generation_id)
    with state.write() as tx:
        cutover.rollback(tx, "shop", "ann")
    with state.write() as tx, pytest.raises(Refused, match="collected"):
        cutover.rollback(tx, "shop", "ann")


def passed_on(state: State) -> None:
    """Let the dispatcher run what it runs by itself."""
    while (
        invalidation.tick(state)
        + router.tick(state)
        + release.tick(state, Limits())
        + in_process.tick(state, ROOT)
    ):
        pass


@pytest.mark.parametrize("slow", ["copy", "again", "chunks"])
def test_what_was_passed_on_is_kept_for_as_long_as_that_is(state: State, state_clock: Clock, slow: str) -> None:
    orders = live(deployed(state, PASSING), "shop.orders")
    first = feed(state, orders, "days", "1", start=0, end=20)
    passed_on(state)
    with state.write() as tx:
        pausing.pause(tx, f"shop.{slow}", "slow", "ann")
    second = feed(state, orders, "days", "2", start=0, end=20)
    passed_on(state)
    state_clock.advance(2 * DAY)
    assert judged(state, place(first)) == [(False, "current output shares its files")]
    with state.write() as tx:
        pausing.resume(tx, f"shop.{slow}", "ann")
    passed_on(state)
    assert judged(state, place(first)) == [(False, "it was replaced not long ago")]
    state_clock.advance(2 * DAY)
    assert judged(state, place(first), place(second)) == [
        (True, "it was replaced long ago"),
        (False, "it is current"),
    ]


def test_a_chunk_that_a_correction_leaves_as_it_was_keeps_its_files(state: State, state_clock: Clock) -> None:
    topology = deployed(state, PASSING)
    orders = live(topology, "shop.orders")
    first = feed(state, orders, "days", "1", start=0, end=20)
    passed_on(state)
    feed(state, orders, "days", "2", start=0, end=10)
    passed_on(state)
    state_clock.advance(2 * DAY)
    assert judged(state, place(first)) == [(False, "current output shares its files")]
    # A task that reads the chunk reads those files, whatever becomes of it meanwhile.
    held = claimed(state, partition_task(state, live(topology, "shop.each"), "10-20"))
    assert place(first) in str(held.work.inputs[0].pieces[0].location)
    feed(state, orders, "days", "3", start=0, end=20)
    passed_on(state)
    state_clock.advance(2 * DAY)
    assert judged(state, place(first)) == [(False, "a running task reads it as it was")]
    succeed(state, held)
    assert judged(state, place(first))[0][0]


def test_a_version_whose_files_were_collected_is_not_there_any_more(state: State, state_clock: Clock) -> None:
    topology = deployed(state, PASSING)
    orders, names = live(topology, "shop.orders"), ("shop.orders", "shop.copy", "shop.again")

    def rows(name: str, revision: int) -> int:
        with state.read() as tx:
            return sum(each.rows or 0 for each in reading.pieces(tx, name, revision=revision).pieces)

    def latest() -> int:
        return max(each["revision"] for each in all_of(state, schema.commits))

    feed(state, orders, "b", start=0, end=10)
    passed_on(state)
    before = latest()
    first = feed(state, orders, "a", "1", start=0, end=10)
    passed_on(state)
    then = latest()
    feed(state, orders, "a", "2", start=0, end=10, rows=3)
    passed_on(state)
    state_clock.advance(2 * DAY)
    with state.read() as tx:
        [would] = garbage.judge(tx, JudgeRequest(prefixes=[place(first)], keep_s=DAY, dry_run=True))
    assert would.gone
    assert rows("shop.orders", then) == 20
    assert judged(state, place(first)) == [(True, "it was replaced long ago")]
    for name in names:
        with pytest.raises(NotFound, match=f"{name} can no longer be read as of revision .*: files of it were"):
            rows(name, then)
        rows(name, before), rows(name, latest())  # Nothing of these is gone.


class History:
    """Random things happen to a pipeline whose attempts write real files."""

    def __init__(self, state: State, clock: Clock, root: Path, seed: int) -> None:
        self.state, self.clock, self.root, self.rng = state, clock, root, random.Random(seed)
        self.held: list[Claimed] = []
        self.versions = [edited(BUSY, "clean", config={"v": n}) for n in range(4)]
        self.runs = 0
        self.collected = 0
        self.removed = 0

    def claim(self, task_id: str) -> None:
        answer = ask(self.state, task_id)
        if isinstance(answer, Claimed):
            for each in answer.work.outputs:
                path = self.root / each.prefix.removeprefix("file:/data/")
                path.mkdir(parents=True)
                (path / "part-0.parquet").write_bytes(b"x")
            self.held.append(answer)

    def emit(self) -> None:
        orders = [each for each in loaded(self.state).jobs.values() if each.name == "shop.orders"]
        self.runs += 1
        about = {"partition_key": self.rng.choice("ab"), "start": 0, "end": self.rng.choice([10, 20, 30])}
        self.claim(manual_task(self.state, orders[0], f"run-{self.runs}", **about))
        if self.rng.random() < 0.8:  # So that readers at work see what they read replaced.
            self.finish(self.held.pop())

    def work(self) -> None:
        passed_on(self.state)
        while reconciler.tick(self.state):
            passed_on(self.state)
        waiting = [each for each in all_of(self.state, schema.tasks) if each["status"] == "pending"]
        for each in self.rng.sample(waiting, min(3, len(waiting))):
            self.claim(each["id"])

    def end(self) -> None:
        if not self.held:
            return
        held = self.held.pop(self.rng.randrange(len(self.held)))
        with suppress(QoError):
            match self.rng.choice(["succeed", "succeed", "succeed", "fail", "lapse", "late"]):
                case "succeed":
                    self.finish(held)
                case "fail":
                    finish(self.state, held, Outcome.RETRYABLE, error="no")
                case "lapse":
                    lapse(self.state, held)
                case _:
                    lapse(self.state, held)
                    self.held.append(held)  # It goes on, and may come back in time.

    def finish(self, held: Claimed) -> None:
        finish(self.state, held, outputs=[output(held, each.index) for each in held.work.outputs])

    def hold(self) -> None:
        """What passes things on falls behind, or catches up."""
        scope = f"shop.{self.rng.choice(['copy', 'again', 'chunks', 'kept'])}"
        with self.state.write() as tx:
            if self.rng.random() < 0.5:
                pausing.pause(tx, scope, "slow", "sim")
            else:
                pausing.resume(tx, scope, "sim")

    def remove(self) -> None:
        with suppress(QoError), self.state.write() as tx:
            name = f"shop.{self.rng.choice(['orders', 'clean', 'copy', 'kept'])}"
            wanted = datasets.resolve(tx, name)
            done = removals.remove(tx, wanted, [self.rng.choice("ab")], by="sim", key=tx.ambient.token())
            self.removed += len(done.removed)

    def move(self) -> None:
        with suppress(QoError):
            if self.rng.random() < 0.4:
                with self.state.write() as tx:
                    cutover.rollback(tx, "shop", "sim")
                return
            number = staged(self.state, self.rng.choice(self.versions)).version
            if self.rng.random() < 0.7:
                with self.state.write() as tx:
                    cutover.activate(tx, "shop", number, "sim", force=True)

    def collect(self) -> None:
        retired, keep_s = self.rng.random() < 0.4, self.rng.choice([0.0, 3600.0, DAY])

        async def judge(prefixes: Sequence[str]) -> list[PrefixVerdict]:
            with self.state.write() as tx:
                return garbage.judge(tx, JudgeRequest(prefixes=list(prefixes), keep_s=keep_s, retired=retired))

        done = asyncio.run(collect(LocalDirectory(self.root), judge, dry_run=False))
        self.collected += done.prefixes

    def check(self) -> None:
        """Every file that a reader can be led to is there."""
        with self.state.read() as tx:
            versions, dags, pointers = schema.dag_versions, schema.dags, schema.version_generations
            reachable = tx.execute(
                sa.select(pointers.c.generation_id)
                .join(versions, versions.c.id == pointers.c.version_id)
                .join(dags, dags.c.name == versions.c.dag)
                .join(schema.generations, schema.generations.c.id == pointers.c.generation_id)
                .where(
                    sa.or_(
                        versions.c.status.in_(sorted(LIVE)),
                        # Going back to one whose files are gone is refused.
                        sa.and_(
                            versions.c.id == dags.c.previous_version_id,
                            schema.generations.c.collected_at.is_(None),
                        ),
                    )
                )
            ).scalars()
            found = [piece for each in sorted(set(reachable)) for piece in pieces.standing(tx, each, None)[0]]
            table = schema.tasks
            busy = sa.or_(table.c.status == "running", table.c.late_lease_id.is_not(None))
            inputs = sa.select(schema.task_inputs).join(table, table.c.id == schema.task_inputs.c.task_id)
            for pin in tx.all(inputs.where(busy)):
                found += pieces.page(tx, pin, None, 1000)[0]
        for piece in found:
            for name in piece.files:
                at = self.root / (piece.location or "").removeprefix("file:/data/") / name
                assert at.is_file(), f"{at} is needed and gone"
        for held in self.held:
            if row_of(self.state, held.work.task_id)["lease_id"] == held.lease_id:
                assert (self.root / place(held) / "part-0.parquet").is_file()


@pytest.mark.parametrize(
    ("seed", "removing"),
    [
        (1, False),
        (0, True),
        (1, True),
        *(pytest.param(*each, marks=pytest.mark.long) for each in ((2, False), (4, False), (2, True), (3, True))),
    ],
)  # Each without removals finds out if pins are not looked at, and if loans are not.
def test_after_any_history_every_file_that_somebody_may_read_is_there(
    tmp_path: Path, seed: int, removing: bool
) -> None:
    clock, root = Clock(), tmp_path / "data"
    root.mkdir()
    with opened(f"sqlite:{tmp_path / 'state.db'}", clock) as state:
        deployed(state, BUSY)
        history = History(state, clock, root, seed)
        for _ in range(50):
            history.rng.choice(
                [history.emit, history.emit, history.work, history.work, history.end, history.end]
            )()
            if history.rng.random() < 0.1:
                history.move()
            if history.rng.random() < 0.2:
                history.hold()
            if removing and history.rng.random() < 0.2:
                history.remove()
            if history.rng.random() < 0.3:
                clock.advance(history.rng.choice([60.0, 4000.0, 2 * DAY]))
            if history.rng.random() < 0.3:
                history.collect()
                history.check()
        clock.advance(10 * DAY)
        history.collect()
        history.check()
        assert history.collected > 0
        assert removing == (history.removed > 0)
