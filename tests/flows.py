"""A control plane in virtual time: dispatchers, workers and a queue that all misbehave as a seed says.

Transactions fail in every way they can: before they begin, before they commit, and after they have, when only the
reply is lost. Queues drop, repeat and delay wake-ups. Workers vanish, stall and come back late.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import Generator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta
from pathlib import Path
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
    invalidation,
    pressure,
    reaper,
    reconciler,
    release,
    router,
    source_monitor,
    sweeper,
)
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.tasks import claiming, completion, moves, running
from qo.dispatcher.wakeup import WakeUp
from qo.errors import LeaseLost, QoError
from states import create_tables

DATA = "file:data"
SWEEP_S = 120.0
BEGINNING = datetime(2024, 1, 1, tzinfo=UTC)


class Crash(Exception):
    """The process ended here; or, for who asked, no answer came."""


class Unreliable(State):
    """A state database whose every transaction may end badly."""

    rng: random.Random
    worst: float = 0.0  # How likely each way of failing is.

    @contextmanager
    def write(self) -> Generator[Tx]:
        self._maybe("before it began")
        with super().write() as tx:
            yield tx
            self._maybe("before it was committed")
        self._maybe("after it was committed")

    def _maybe(self, where: str) -> None:
        if self.worst and self.rng.random() < self.worst:
            raise Crash(where)


@dataclass
class Messages:
    """A queue of wake-ups that keeps none of its promises but one: what it delivers was published."""

    rng: random.Random
    worst: float = 0.0
    waiting: list[str] = field(default_factory=list)
    known: set[str] = field(default_factory=set)
    published: int = 0

    async def publish(self, queue: str, wakes: Sequence[WakeUp]) -> None:
        if self.rng.random() < self.worst:
            raise Crash("the queue is not there")
        for wake in wakes:
            if wake.id in self.known:
                continue  # Draining twice enqueues once.
            self.known.add(wake.id)
            self.published += 1
            if self.rng.random() >= self.worst:
                self.waiting.append(wake.task_id)
        if self.rng.random() < self.worst:
            raise Crash("it was published, but no answer came")

    def take(self) -> str | None:
        if not self.waiting:
            return None
        chosen = self.rng.randrange(len(self.waiting))
        return self.waiting[chosen] if self.rng.random() < self.worst else self.waiting.pop(chosen)


def _version(tx: Tx) -> tuple[Any, ...]:
    """Another one after every change: by whoever else has a connection, or over this one."""
    others = tx.execute(sa.text("PRAGMA data_version")).scalar_one()
    own = tx.execute(sa.text("SELECT total_changes()")).scalar_one()
    return id(tx.connection.connection.dbapi_connection), others, own


@dataclass
class World:
    """One seed's control plane. ``calm`` ends all faults; ``settle`` lets everything come to rest."""

    seed: int
    directory: Path
    rng: random.Random = field(init=False)
    now: datetime = field(default=BEGINNING)
    held: list[Claimed] = field(default_factory=list)
    accepted: dict[str, int] = field(default_factory=dict)  # Successes that were acknowledged, by task.
    emitted: list[tuple[str, str, list[EventBody]]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self._checked: tuple[Any, ...] = ()
        self.rng = random.Random(self.seed)
        self.worst = self.rng.choice([0.0, 0.02, 0.08])
        opened = open_state(
            f"sqlite:{self.directory / f'{self.seed}.db'}",
            ambient=Ambient.seeded(self.seed),
            clock=lambda connection: self.now,
        )
        create_tables(opened)
        self.truth = opened
        self.state = Unreliable(opened.engine, ambient=opened.ambient, clock=lambda connection: self.now)
        self.state.rng, self.state.worst = self.rng, self.worst
        self.messages = Messages(self.rng, self.worst)
        self.limits = Limits(operators={})
        self.thresholds = Thresholds(depth=self.rng.choice([3, 1000]), age_s=600.0)

    def close(self) -> None:
        self.truth.close()

    def calm(self) -> None:
        self.worst = self.state.worst = self.messages.worst = 0.0

    def pass_time(self, seconds: float) -> None:
        self.now += timedelta(seconds=seconds)

    # What the dispatcher does

    def tick(self, name: str) -> int:
        """One step of one loop; a crash is the end of that step and of nothing else."""
        try:
            return self._ticks()[name]()
        except Crash:
            return 1

    def _ticks(self) -> dict[str, Any]:
        state = self.state
        return {
            "router": lambda: router.tick(state, limit=self.rng.choice([1, 3, 100])),
            "release": lambda: release.tick(state, self.limits, limit=self.rng.choice([1, 3, 100])),
            "publisher": lambda: asyncio.run(publisher.tick(state, self.messages, self.rng.choice([1, 3, 100]))),
            "in_process": lambda: in_process.tick(state, DATA),
            "reaper": lambda: reaper.tick(state),
            "sweeper": lambda: sweeper.tick(state, SWEEP_S),
            "reconciler": lambda: reconciler.tick(state, limit=self.rng.choice([1, 100])),
            "invalidation": lambda: invalidation.tick(state),
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
        task_id = self.messages.take()
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
        for _ in range(5):
            try:
                with self.state.write() as tx:
                    answer = completion.complete(tx, request, DATA)
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
