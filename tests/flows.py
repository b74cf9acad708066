"""A control plane in virtual time: dispatchers, workers and a queue that all misbehave as a seed says.

Transactions fail in every way they can: before they begin, before they commit, and after they have, when only the
reply is lost. Queues drop, repeat and delay wake-ups. Workers vanish, stall and come back late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Callable, Coroutine, Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from typing import Any

import sqlalchemy as sa

from qo.ambient import Ambient
from qo.core.flow.pressure import Thresholds
from qo.dispatcher import accounting, emission, publisher
from qo.dispatcher.contract.task import (
    Claimed,
    ClaimRequest,
    CompleteRequest,
    EventBody,
    HeartbeatRequest,
    Outcome,
    OutputBody,
)
from qo.dispatcher.limits import Limits
from qo.dispatcher.loops import (
    comparison,
    invalidation,
    pressure,
    reaper,
    reconciler,
    refresh,
    release,
    router,
    source_monitor,
    sweeper,
)
from qo.dispatcher.onward import Hand, Onward
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.tasks import claiming, completion, moves, running
from qo.dispatcher.wakeup import WakeUp
from qo.errors import LeaseLost, QoError
from simulate.faults import Faults
from states import create_tables

DATA = "file:data"
SWEEP_S = 120.0
BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)


class Crash(Exception):
    """The process ended here; or, for who asked, no answer came."""


class Unreliable(State):
    """A state database whose every transaction may end badly."""

    fails: Callable[[str], bool]

    @contextmanager
    def write(self) -> Generator[Tx]:
        self._maybe("before it began")
        with super().write() as tx:
            yield tx
            self._maybe("before it was committed")
        self._maybe("after it was committed")

    def _maybe(self, where: str) -> None:
        if self.fails(where):
            raise Crash(where)


@dataclass
class Messages:
    """A queue of wake-ups that keeps none of its promises but one: what it delivers was published."""

    fails: Callable[[str], bool]
    waiting: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    published: int = 0

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        if self.fails("the queue is not there"):
            raise Crash("the queue is not there")
        for wake in wakes:
            if wake.id in self.known:
                continue  # Draining twice enqueues once.
            self.known.add(wake.id)
            self.published += 1
            if not self.fails("a wake-up is lost"):
                self.waiting.append(wake.task_id)
        if self.fails("it was published, but no answer came"):
            raise Crash("it was published, but no answer came")

    def take(self, rng: random.Random) -> str | None:
        """Any of them: they come in no order."""
        if not self.waiting:
            return None
        chosen = rng.randrange(len(self.waiting))
        return self.waiting[chosen] if self.fails("a wake-up comes twice") else self.waiting.pop(chosen)


class _Inline(asyncio.SelectorEventLoop):
    """Threads are where order is lost: what would run on one runs here."""

    def run_in_executor(self, executor: Any, func: Callable[..., Any], *args: Any) -> asyncio.Future[Any]:
        done = self.create_future()
        try:
            done.set_result(func(*args))
        except Exception as error:
            done.set_exception(error)
        return done


def _at_once(work: Coroutine[Any, Any, int]) -> int:
    with asyncio.Runner(loop_factory=_Inline) as runner:
        return runner.run(work)


def _version(tx: Tx) -> tuple[Any, ...]:
    """Another one after every change: by whoever else has a connection, or over this one."""
    if tx.on_postgres:  # The number of the next transaction that writes, in whichever database of the server.
        return (tx.execute(sa.text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")).scalar_one(),)
    others = tx.execute(sa.text("PRAGMA data_version")).scalar_one()
    own = tx.execute(sa.text("SELECT total_changes()")).scalar_one()
    return id(tx.connection.connection.dbapi_connection), others, own


@dataclass
class World:
    """One seed's control plane. ``calm`` ends all faults; ``settle`` lets everything come to rest."""

    faults: Faults
    url: str  # Of an empty state database.
    rng: random.Random = field(init=False)
    now: datetime = field(default=BEGINNING)
    held: list[Claimed] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)  # Successes that were acknowledged, by task.
    emitted: list[tuple[str, str, list[EventBody]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seed = self.faults.seed
        self._checked: tuple[Any, ...] = ()
        self.rng = self._chance = self.faults.stream("world")
        self.worst = self.rng.choice([0.0, 0.02, 0.08])
        opened = open_state(
            self.url,
            ambient=Ambient.seeded(self.seed),
            clock=lambda connection: self.now,
        )
        create_tables(opened)
        self.truth = opened
        self.state = Unreliable(opened.engine, ambient=opened.ambient, clock=lambda connection: self.now)
        self.state.fails = self._fails
        self.messages = Messages(self._fails)
        self.limits = Limits(operators={})
        self.hand = Hand(lambda names: None)
        self.onward = Onward(self.limits, self.hand, lambda names: None)
        self.thresholds = Thresholds(depth=self.rng.choice([3, 1000]), age_s=600.0)
        self._step, self._points = "", 0

    def begin(self, step: str) -> None:
        """From here on chance is this step's own: what came before does not change what it draws."""
        self.rng, self._chance = self.faults.stream(step), self.faults.stream(f"{step} fails")
        self._step, self._points = step, 0

    def _fails(self, what: str) -> bool:
        """Whether this point of the step is where something goes wrong."""
        self._points += 1
        drawn = self._chance.random() < self.worst
        return drawn and self.faults.strikes(f"{self._step}.{self._points}", what)

    def close(self) -> None:
        self.truth.close()

    def calm(self) -> None:
        self.worst = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What the dispatcher does

    def tick(self, name: str) -> int:
        """One step of one loop; a crash is the end of that step and of nothing else."""
        try:
            return self._ticks()[name]()
        except Crash:
            self.hand.take(1000)  # What went from hand to hand is gone with the process.
            return 1

    def _publish(self) -> int:
        limit = self.rng.choice([1, 3, 100])
        handed = _at_once(publisher.publish(self.state, self.messages, self.hand.take(limit)))
        return handed + _at_once(publisher.tick(self.state, self.messages, limit))

    def _ticks(self) -> dict[str, Any]:
        state = self.state
        return {
            "router": lambda: router.tick(state, limit=self.rng.choice([1, 3, 100])),
            "release": lambda: release.tick(
                state,
                self.limits,
                limit=self.rng.choice([1, 3, 100]),
                hand=self.hand if self.rng.random() < 0.5 else None,
            ),
            "publisher": self._publish,
            "in_process": lambda: in_process.tick(state, DATA),
            "reaper": lambda: reaper.tick(state),
            "sweeper": lambda: sweeper.tick(state, SWEEP_S),
            "reconciler": lambda: reconciler.tick(state, limit=self.rng.choice([1, 100])),
            "comparison": lambda: comparison.tick(state, limit=self.rng.choice([1, 100])),
            "invalidation": lambda: invalidation.tick(state),
            "refresh": lambda: refresh.tick(state, limit=self.rng.choice([1, 100])),
            "pressure": lambda: pressure.tick(state, self.thresholds),
            "source_monitor": lambda: source_monitor.tick(state),
        }

    @property
    def loops(self) -> list[str]:
        return list(self._ticks())

    # What sources and people do

    def emit(self, dag: str, job: str, key: str, events: list[EventBody]) -> None:
        """As a patient source does: again and again with the same key, until there is an answer."""
        while True:
            with suppress(Crash):
                with self.state.write() as tx:
                    emission.emit(tx, dag, job, key=key, events=events, by="sim")
                return

    def call(self, act: Any) -> Any:
        """Something a person asks for, repeated while no answer comes. A refusal is an answer."""
        while True:
            try:
                with self.state.write() as tx:
                    return act(tx)
            except Crash:
                continue
            except QoError as refused:
                return refused

    # What workers do

    def claim(self) -> None:
        task_id = self.messages.take(self.rng)
        if task_id is None:
            return
        lease_id = self.state.ambient.task_id()
        request = ClaimRequest(task_id=task_id, worker_id=f"w{self.rng.randrange(3)}", lease_id=lease_id)
        for _ in range(5):
            try:
                with self.state.write() as tx:
                    answer = claiming.claim(tx, request, DATA)
            except Crash:
                continue  # The worker asks again, with the lease it has drawn.
            if isinstance(answer, Claimed):
                self.held.append(answer)
            return

    def beat(self) -> None:
        for claimed in list(self.held):
            request = HeartbeatRequest(**fence(claimed))
            try:
                with self.state.write() as tx:
                    running.heartbeat(tx, request)
            except Crash:
                continue
            except LeaseLost:
                if self.rng.random() < 0.7:  # The others have not noticed, and go on as zombies.
                    self.held.remove(claimed)

    def finish(self, outcome: Outcome) -> None:
        if not self.held:
            return
        claimed = self.held.pop(self.rng.randrange(len(self.held)))
        request = completed(claimed, outcome)
        at_once = self.rng.random() < 0.5  # Else the loops go on from there, as they do on PostgreSQL.
        for _ in range(5):
            try:
                with self.state.write() as tx:
                    answer = completion.complete(tx, request, DATA)
                    go_on = self.onward(tx) if at_once else None
                if go_on is not None:
                    go_on()
            except Crash:
                continue
            except LeaseLost:
                return
            if outcome is Outcome.SUCCESS and answer.status == "completed" and not answer.repeated:
                self.accepted[request.task_id] = self.accepted.get(request.task_id, 0) + 1
            return

    def vanish(self) -> None:
        """A worker is killed: whatever it held, nobody hears of again."""
        if self.held:
            self.held.pop(self.rng.randrange(len(self.held)))

    # What must be true

    def check(self) -> None:
        """After every step; one that has changed nothing has broken nothing."""
        with self.truth.read() as tx:
            if (seen := _version(tx)) == self._checked:
                return
            self._checked = seen
            for (dataset,) in tx.execute(sa.select(schema.datasets.c.id)):
                books = accounting.check(tx, dataset)
                assert not books.problems, f"seed {self.seed}: {books.problems}"
            self._check_tasks(tx)
            self._check_commits(tx)
            self._check_cursors(tx)

    def _check_tasks(self, tx: Tx) -> None:
        tasks, attempts = schema.tasks, schema.attempts
        torn = sa.select(tasks.c.id).where(
            sa.or_(
                sa.and_(tasks.c.status == "running", tasks.c.lease_id.is_(None)),
                sa.and_(tasks.c.status != "running", tasks.c.lease_id.is_not(None)),
                sa.and_(tasks.c.status == "running", tasks.c.released_at.is_(None)),
            )
        )
        assert tx.all(torn) == [], f"seed {self.seed}: a task is torn"
        open_attempts = (
            sa.select(attempts.c.task_id)
            .where(attempts.c.ended_at.is_(None))
            .group_by(attempts.c.task_id)
            .having(sa.func.count() > 1)
        )
        assert tx.all(open_attempts) == [], f"seed {self.seed}: two attempts are open at once"

    def _check_commits(self, tx: Tx) -> None:
        """A pointer leads to the newest commit, and a task has committed a partition at most once."""
        commits, partitions = schema.commits, schema.partitions
        twice = (
            sa.select(commits.c.task_id, commits.c.generation_id, commits.c.partition_key, commits.c.cursor)
            .group_by(*[sa.column(name) for name in ("task_id", "generation_id", "partition_key", "cursor")])
            .having(sa.func.count() > 1)
        )
        assert tx.all(twice) == [], f"seed {self.seed}: a task was committed twice"
        astray = (
            sa.select(partitions.c.partition_key)
            .join(commits, commits.c.revision == partitions.c.revision)
            .where(commits.c.replaced_by.is_not(None))
        )
        assert tx.all(astray) == [], f"seed {self.seed}: a pointer leads to what was replaced"
        self._check_mixed(tx)

    def _check_mixed(self, tx: Tx) -> None:
        """All that a task has committed was written by one attempt: the one that completed it."""
        commits, attempts = schema.commits, schema.attempts
        completed = sa.and_(attempts.c.task_id == commits.c.task_id, attempts.c.attempt == commits.c.attempt)
        foreign = (
            sa.select(commits.c.task_id, commits.c.attempt)
            .join(attempts, completed)
            .where(attempts.c.outcome != "completed")
        )
        assert tx.all(foreign) == [], (
            f"seed {self.seed}: what an attempt that did not succeed has made is committed"
        )
        mixed = (
            sa.select(commits.c.task_id)
            .group_by(commits.c.task_id)
            .having(sa.func.count(sa.distinct(commits.c.attempt)) > 1)
        )
        assert tx.all(mixed) == [], f"seed {self.seed}: a task's commits are of several attempts"

    def _check_cursors(self, tx: Tx) -> None:
        """A cursor stands where a task that is done has read to."""
        cursors, tasks, read = schema.cursors, schema.tasks, schema.task_inputs
        done = (
            sa.select(read.c.task_id)
            .join(tasks, tasks.c.id == read.c.task_id)
            .where(
                tasks.c.edition_id == cursors.c.edition_id,
                tasks.c.status == "completed",
                read.c.generation_id == cursors.c.generation_id,
                read.c.cursor_upto == cursors.c.value,
            )
        )
        early = sa.select(cursors.c.edition_id, cursors.c.value).where(~sa.exists(done))
        assert tx.all(early) == [], f"seed {self.seed}: a cursor is ahead of what was committed"

    def told(self) -> str:
        """Everything there is, in short: for a trace."""
        tasks, events, commits = schema.tasks, schema.events, schema.commits
        with self.truth.read() as tx:
            where = tx.execute(sa.select(tasks.c.id, tasks.c.status, tasks.c.attempt).order_by(tasks.c.id)).all()
            said = tx.value(sa.select(sa.func.max(events.c.seq)))
            made = tx.value(sa.select(sa.func.max(commits.c.revision)))
        return f"{self.now} {said} {made} {where}"

    def settle(self, rounds_max: int = 400) -> None:
        """No more faults, workers that work: run until nothing is left to do."""
        self.calm()
        idle = 0
        for _ in range(rounds_max):
            did = sum(self.tick(name) for name in self.loops)
            while self.messages.waiting:
                self.claim()
                did += 1
            while self.held:
                self.finish(Outcome.SUCCESS)
                did += 1
            did += self._replay_failed()
            idle = 0 if did else idle + 1
            if idle > 8:
                return
            self.pass_time(1.0 if did else 400.0)
        raise AssertionError(f"seed {self.seed}: it never came to rest")

    def _replay_failed(self) -> int:
        tasks = schema.tasks
        with self.truth.write() as tx:
            failed = tx.execute(sa.select(tasks.c.id).where(tasks.c.status == "failed")).scalars().all()
            for id in failed:
                moves.replay(tx, id, "sim")
        return len(failed)


def fence(claimed: Claimed) -> dict[str, Any]:
    return {"task_id": claimed.work.task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}


def completed(claimed: Claimed, outcome: Outcome) -> CompleteRequest:
    """As an operator that writes one file per output."""
    if outcome is not Outcome.SUCCESS:
        return CompleteRequest(**fence(claimed), outcome=outcome, error="as the seed says")
    outputs = [
        OutputBody(output=each.index, location=each.prefix, files=["part"], rows=1, bytes=10)
        for each in claimed.work.outputs
    ]
    return CompleteRequest(**fence(claimed), outcome=outcome, outputs=outputs)
