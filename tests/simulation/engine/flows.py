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
from qo.api.contract.task import (
    Claimed,
    ClaimRequest,
    CompleteRequest,
    EventBody,
    HeartbeatRequest,
    NextRequest,
    Outcome,
    OutputBody,
)
from qo.core.pipeline.pressure import Thresholds
from qo.core.pipeline.wake_spread import SPREAD
from qo.dispatcher.attempts import claiming, completion, next_tasks, running
from qo.dispatcher.engine.fast_path import FastPath, WakeUpBuffer
from qo.dispatcher.engine.loops import (
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
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.outbox import publisher
from qo.dispatcher.outbox.queue_watch import QueueWatch
from qo.dispatcher.outbox.wakeup import WakeUp
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema, topology
from qo.dispatcher.state.database import State, Tx, open_state
from qo.dispatcher.state.prepared import Prepared
from qo.dispatcher.tasks import operator_actions
from qo.errors import LeaseLost, QoError
from simulation.engine.faults import Faults
from support.dispatcher import accounting
from support.dispatcher.states import create_tables

DATA = "file:data"
SWEEP_S = 120.0
QUICK_LOOPS = ("router", "release", "publisher", "in_process")
SLOW_LOOPS_CHANCE = 0.25
SILENCES_S = (400.0, 400.0, 2800.0)  # It is at rest when for so long, one after the other, nothing happens.
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
    waiting: list[tuple[str, str]] = field(default_factory=list)  # Queue and task.
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
                self.waiting.append((queue, wake.task_id))
        if self.fails("it was published, but no answer came"):
            raise Crash("it was published, but no answer came")

    def take(self, rng: random.Random) -> tuple[str, str] | None:
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


def _torn_tasks() -> sa.Select[*tuple[Any, ...]]:
    tasks = schema.tasks
    return sa.select(tasks.c.id).where(
        sa.or_(
            sa.and_(tasks.c.status == "running", tasks.c.lease_id.is_(None)),
            sa.and_(tasks.c.status != "running", tasks.c.lease_id.is_not(None)),
            sa.and_(tasks.c.status == "running", tasks.c.released_at.is_(None)),
        )
    )


def _tasks_with_two_open_attempts() -> sa.Select[*tuple[Any, ...]]:
    attempts = schema.attempts
    is_open = sa.select(attempts.c.task_id).where(attempts.c.ended_at.is_(None))
    return is_open.group_by(attempts.c.task_id).having(sa.func.count() > 1)


def _partitions_committed_twice() -> sa.Select[*tuple[Any, ...]]:
    commits = schema.commits
    of = (commits.c.task_id, commits.c.generation_id, commits.c.partition_key, commits.c.cursor)
    return sa.select(*of).group_by(*of).having(sa.func.count() > 1)


def _pointers_to_replaced_commits() -> sa.Select[*tuple[Any, ...]]:
    commits, partitions = schema.commits, schema.partitions
    joined = sa.select(partitions.c.partition_key).join(commits, commits.c.revision == partitions.c.revision)
    return joined.where(commits.c.replaced_by.is_not(None))


def _commits_of_attempts_that_failed() -> sa.Select[*tuple[Any, ...]]:
    commits, attempts = schema.commits, schema.attempts
    made_by = sa.and_(attempts.c.task_id == commits.c.task_id, attempts.c.attempt == commits.c.attempt)
    joined = sa.select(commits.c.task_id, commits.c.attempt).join(attempts, made_by)
    return joined.where(attempts.c.outcome != "completed")


def _tasks_committed_by_several_attempts() -> sa.Select[*tuple[Any, ...]]:
    commits = schema.commits
    several = sa.func.count(sa.distinct(commits.c.attempt)) > 1
    return sa.select(commits.c.task_id).group_by(commits.c.task_id).having(several)


def _cursors_that_no_completed_task_has_reached() -> sa.Select[*tuple[Any, ...]]:
    cursors, tasks, read = schema.cursors, schema.tasks, schema.task_inputs
    reached = (
        sa.select(read.c.task_id)
        .join(tasks, tasks.c.id == read.c.task_id)
        .where(
            tasks.c.edition_id == cursors.c.edition_id,
            tasks.c.status == "completed",
            read.c.generation_id == cursors.c.generation_id,
            read.c.cursor_upto == cursors.c.value,
        )
    )
    return sa.select(cursors.c.edition_id, cursors.c.value).where(~sa.exists(reached))


# Built once: to build a statement takes longer than to carry it out.
LAWS = {  # What is wrong if the query finds anything.
    "a task is torn": Prepared(_torn_tasks()),
    "two attempts are open at once": Prepared(_tasks_with_two_open_attempts()),
    "a task was committed twice": Prepared(_partitions_committed_twice()),
    "a pointer leads to what was replaced": Prepared(_pointers_to_replaced_commits()),
    "what an attempt that did not succeed has made is committed": Prepared(_commits_of_attempts_that_failed()),
    "a task's commits are of several attempts": Prepared(_tasks_committed_by_several_attempts()),
    "a cursor is ahead of what was committed": Prepared(_cursors_that_no_completed_task_has_reached()),
}
_DATASETS = Prepared(sa.select(schema.datasets.c.id))
_TASKS = Prepared(
    sa.select(schema.tasks.c.id, schema.tasks.c.status, schema.tasks.c.attempt).order_by(schema.tasks.c.id)
)
_LAST = Prepared(
    sa.select(
        sa.select(sa.func.max(schema.events.c.seq)).scalar_subquery(),
        sa.select(sa.func.max(schema.commits.c.revision)).scalar_subquery(),
    )
)
_VERSION = Prepared(sa.text("SELECT total_changes()"))
_OTHERS_VERSION = Prepared(sa.text("PRAGMA data_version"))


def _version(tx: Tx) -> tuple[Any, ...]:
    """Another one after every change: by whoever else has a connection, or over this one."""
    if tx.on_postgres:  # The number of the next transaction that writes, in whichever database of the server.
        return (tx.execute(sa.text("SELECT pg_snapshot_xmax(pg_current_snapshot())::text")).scalar_one(),)
    [(others,)], [(own,)] = tx.rows(_OTHERS_VERSION), tx.rows(_VERSION)
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
            ambient=Ambient.seeded(self.seed, lambda: (self.now - BEGINNING).total_seconds()),
            clock=lambda connection: self.now,
        )
        create_tables(opened)
        self.truth = opened
        self.state = Unreliable(opened.engine, ambient=opened.ambient, clock=lambda connection: self.now)
        self.state.fails = self._fails
        self.messages = Messages(self._fails)
        self.limits = Limits(operators={})
        self.spread = self.rng.choice([1, 3, SPREAD])
        self.watch = self._fresh_watch()
        self.hand = WakeUpBuffer(lambda names: None)
        self.fast_path = FastPath(self.limits, self.hand, lambda names: None)
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
            self.watch = self._fresh_watch()
            return 1

    def _fresh_watch(self) -> QueueWatch:
        """What a dispatcher knows of its queues when it starts: nothing."""
        return QueueWatch(self.state, lambda queue: queue == "python", spread=self.spread)

    def _publish(self) -> int:
        limit = self.rng.choice([1, 3, 100])
        watch = self.watch if self.rng.random() < 0.9 else None  # Else it is a dispatcher of the release before.
        did = _at_once(publisher.publish(self.state, self.messages, self.hand.take(limit), watch=watch))
        did += _at_once(publisher.tick(self.state, self.messages, limit, watch=watch))
        return did + _at_once(publisher.send_more(self.messages, self.watch))

    def _ticks(self) -> dict[str, Any]:
        state = self.state
        return {
            "router": lambda: router.tick(state, limit=self.rng.choice([1, 3, 100])),
            "release": lambda: release.tick(
                state,
                self.limits,
                limit=self.rng.choice([1, 3, 100]),
                on_release=self.hand if self.rng.random() < 0.5 else None,
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
        at_once = self.rng.random() < 0.5
        while True:
            with suppress(Crash):
                with self.state.write() as tx:
                    if at_once:
                        self.fast_path.prepare(tx)
                    emission.emit(tx, dag, job, key=key, events=events, by="sim")
                    go_on = self.fast_path(tx) if at_once else None
                if go_on is not None:
                    go_on()
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
        woken = self.messages.take(self.rng)
        if woken is None:
            return
        queue, task_id = woken
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
            elif self.rng.random() < 0.7:
                self.claim_next(queue)  # Somebody else has the task, but the queue may have more.
            return

    def claim_next(self, queue: str) -> None:
        """A worker that is awake asks for the next task, as it does when it reports one."""
        lease_id, worker_id = self.state.ambient.task_id(), f"w{self.rng.randrange(3)}"
        for number in range(5):
            request = NextRequest(queue=queue, worker_id=worker_id, lease_id=lease_id, repeated=number > 0)
            try:
                with self.state.write() as tx:
                    (answer,) = next_tasks.claim_next(tx, [request], DATA)
            except Crash:
                continue
            if answer is not None:
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
        at_once = self.rng.random() < 0.5  # Else the loops go on from there.
        for _ in range(5):
            try:
                with self.state.write() as tx:
                    if at_once:
                        self.fast_path.prepare(tx)
                    answer = completion.complete(tx, request, DATA)
                    go_on = self.fast_path(tx) if at_once else None
                if go_on is not None:
                    go_on()
            except Crash:
                continue
            except LeaseLost:
                return
            if outcome is Outcome.SUCCESS and answer.status == "completed" and not answer.repeated:
                self.accepted[request.task_id] = self.accepted.get(request.task_id, 0) + 1
            if self.rng.random() < 0.7:  # Else its worker stops here, or is one of the release before.
                self.claim_next("python")
            return

    def vanish(self) -> None:
        """A worker is killed: whatever it held, nobody hears of again."""
        if self.held:
            self.held.pop(self.rng.randrange(len(self.held)))

    # What must be true

    def check(self) -> bool:
        """After every step; one that has changed nothing has broken nothing. Whether anything has changed."""
        with self.truth.read() as tx:
            if (seen := _version(tx)) == self._checked:
                return False
            self._checked = seen
            for (dataset,) in tx.rows(_DATASETS):
                books = accounting.check(tx, dataset)
                assert not books.problems, f"seed {self.seed}: {books.problems}"
            for broken, query in LAWS.items():
                assert not tx.rows(query), f"seed {self.seed}: {broken}"
        return True

    def told(self) -> str:
        """Everything there is, in short: for a trace."""
        with self.truth.read() as tx:
            where = tx.rows(_TASKS)
            [(said, made)] = tx.rows(_LAST)
        return f"{said} {made} {[*map(tuple, where)]}"

    def settle(self, rounds_max: int = 400) -> None:
        """No more faults, workers that work: run until nothing is left to do."""
        self.calm()
        idle = 0
        for _ in range(rounds_max):
            did = sum(self.tick(name) for name in QUICK_LOOPS)
            # As in a real dispatcher these come round less often, but always where nothing else is left to do.
            if not did or self.rng.random() < SLOW_LOOPS_CHANCE:
                did += sum(self.tick(name) for name in self.loops if name not in QUICK_LOOPS)
            while self.messages.waiting:
                self.claim()
                did += 1
            while self.held:
                self.finish(Outcome.SUCCESS)
                did += 1
            did += self._replay_failed()
            if did:
                idle = 0
                self.pass_time(1.0)
            elif idle < len(SILENCES_S):
                self.pass_time(SILENCES_S[idle])
                idle += 1
            else:
                return
        raise AssertionError(f"seed {self.seed}: it never came to rest")

    def _replay_failed(self) -> int:
        """Those of live versions: what a version left behind that was given up is not run again."""
        tasks = schema.tasks
        with self.truth.write() as tx:
            live = topology.load(tx).jobs
            rows = tx.all(sa.select(tasks.c.id, tasks.c.edition_id).where(tasks.c.status == "failed"))
            failed = [row["id"] for row in rows if row["edition_id"] in live]
            for id in failed:
                operator_actions.replay(tx, id, "sim")
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
