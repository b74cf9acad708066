"""The same history twice: in one database everything is kept, in the other history is purged after every step.

Whatever is decided must be the same in both: which tasks and events are ever created, what is committed and by which
task, what each version's status is, what is open, and how ``qo why`` explains what is there.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from datetime import timedelta
from typing import Any

import sqlalchemy as sa

from qo.api.contract.backfill import BackfillRequest
from qo.api.contract.garbage import JudgeRequest
from qo.api.contract.task import Claimed, EventBody, Outcome
from qo.core.pipeline.dag import Dag
from qo.dispatcher.engine import garbage
from qo.dispatcher.engine.loops import backfill, bulk_change, comparison, invalidation, reconciler, refresh, router
from qo.dispatcher.engine.purging import given_up_versions, purge_round
from qo.dispatcher.engine.purging.purge_round import Keep, PurgeCounts
from qo.dispatcher.events import invalidations
from qo.dispatcher.sources import emission
from qo.dispatcher.state import datasets, schema, topology
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import failures, operator_actions
from qo.dispatcher.versions import backfills, cutover, deploy
from qo.dispatcher.views.why.answer import why
from qo.errors import QoError
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipeline_tasks import ask, finish, output
from support.dispatcher.pipelines import dag, job, source
from support.dispatcher.states import Clock

KEEP = Keep(history=timedelta(hours=1), versions=timedelta(days=30))
ROUNDS = 40  # In which a pipeline that is left alone comes to rest.
PARTITIONS = ("a", "b")


def pipeline(code: int) -> Dag:
    """One job of each kind: by partition, joined, refreshed, appending nothing, by cursor, and with effects alone."""
    beside = {"job": "rates", "trigger": False, "refresh": "on_change"}
    return dag(
        "shop",
        source("orders"),
        source("rates"),
        source("stream"),
        job("clean", reads="orders", config={"code": code}, max_attempts=1),
        job("both", reads=["clean", "rates"], join="all", max_attempts=1),
        job("priced", reads=["clean", beside], max_attempts=1),
        job("alert", reads="clean", outputs=0, max_attempts=1),
        job("count", reads="stream", execution_strategy="PerUpdate", max_attempts=1),
    )


@dataclass(slots=True)
class Twin:
    state: State
    clock: Clock
    purges: bool
    tasks: set[str] = field(default_factory=set[str])  # That were ever there.
    events: set[str] = field(default_factory=set[str])
    prefixes: set[str] = field(default_factory=set[str])
    counts: PurgeCounts = field(default_factory=PurgeCounts)

    def write(self, act: Callable[[Tx], Any]) -> str:
        """Do something in a transaction; return the kind of error that it raised, or nothing."""
        try:
            with self.state.write() as tx:
                act(tx)
        except QoError as error:
            return type(error).__name__
        return ""

    def settle(self, *, failing: bool) -> None:
        """Run everything until nothing is left to do. ``failing``: the first task for good, then every third."""
        ran = 0
        for _ in range(ROUNDS):
            while any(
                tick(self.state)
                for tick in (
                    bulk_change.tick,
                    router.tick,
                    invalidation.tick,
                    backfill.tick,
                    reconciler.tick,
                    refresh.tick,
                    comparison.tick,
                )
            ):
                self.watch()
            self.watch()
            held = [self._claim(each) for each in self._pending()]
            for each in held:
                if each is not None:
                    self._end(each, fails=failing and ran % 3 == 0)
                    ran += 1
            if not any(held):
                return
        raise AssertionError("it does not come to rest")

    def _pending(self) -> Sequence[str]:
        table = schema.tasks
        with self.state.read() as tx:
            live = topology.load(tx).jobs
            query = sa.select(table.c.id).where(table.c.status == "pending", table.c.edition_id.in_(live))
            return list(tx.execute(query.order_by(table.c.id)).scalars())

    def _claim(self, task_id: str) -> Claimed | None:
        answer = ask(self.state, task_id)
        return answer if isinstance(answer, Claimed) else None

    def _end(self, held: Claimed, *, fails: bool) -> None:
        self.prefixes.update(each.prefix.removeprefix("file:/data/").rstrip("/") for each in held.work.outputs)
        if fails:
            finish(self.state, held, Outcome.FATAL, error="no")
        else:
            finish(self.state, held, outputs=[output(held, each.index) for each in held.work.outputs])

    def watch(self) -> None:
        with self.state.read() as tx:
            self.tasks.update(tx.execute(sa.select(schema.tasks.c.id)).scalars())
            self.events.update(tx.execute(sa.select(schema.events.c.id)).scalars())

    def collect(self) -> None:
        """Delete the files that nothing needs, and purge."""
        with self.state.write() as tx:
            if not self.prefixes:
                return
            asked = JudgeRequest(prefixes=sorted(self.prefixes), keep_s=0.0)
            gone = {each.prefix for each in garbage.judge(tx, asked) if each.gone}
            self.prefixes -= gone
        if self.purges:
            for done in purge_round.run(self.state, KEEP, limit=3):
                self.counts += done
            return
        with self.state.write() as tx:
            assert KEEP.versions is not None
            given_up_versions.give_up(tx, tx.now - KEEP.versions, 1000)

    def decisions(self) -> dict[str, Any]:
        """Everything that was decided, as values to compare."""
        with self.state.read() as tx:
            live = topology.load(tx)
            collected = sa.select(schema.generation_rows.c.id).where(
                schema.generation_rows.c.collected_at.is_not(None)
            )
            table = schema.partitions
            columns = (table.c.generation_id, table.c.partition_key, table.c.task_id, table.c.revision)
            kept = sa.select(*columns).where(table.c.generation_id.not_in(collected))
            open_ = schema.invalidations.c.processed_at.is_(None)
            return {
                "tasks": self.tasks,
                "events": self.events,
                "versions": self._all(tx, schema.dag_versions.c.number, schema.dag_versions.c.status),
                "partitions": sorted(tuple(row) for row in tx.execute(kept)),
                "open": self._all(
                    tx, schema.tasks.c.id, schema.tasks.c.status, which=schema.tasks.c.status == "pending"
                ),
                "cursors": self._all(tx, schema.cursors.c.edition_id, schema.cursors.c.value),
                "invalidations": self._all(tx, schema.invalidations.c.id, which=open_),
                "failures": failures.total(tx, live, 1000),
                "files": self.prefixes,
                "why": [self._why(tx, each) for each in ("clean", "both", "priced", "count")],
            }

    def _all(self, tx: Tx, *columns: sa.Column[Any], which: Any = None) -> list[tuple[Any, ...]]:
        query = sa.select(*columns)
        return sorted(tuple(row) for row in tx.execute(query if which is None else query.where(which)))

    def _why(self, tx: Tx, name: str) -> list[tuple[Any, ...]]:
        answers = [why(tx, f"shop.{name}@{part}" if part else f"shop.{name}") for part in ("", *PARTITIONS)]
        return [
            (
                each.verdict,
                each.stale,
                [(step.kind, step.event_id, step.task_id, step.revision) for step in each.steps],
            )
            for each in answers
        ]


@dataclass(frozen=True, slots=True)
class Step:
    """One step of a history: a verb, and a number that it uses as it likes."""

    verb: str
    number: int

    def take(self, twin: Twin) -> str:
        partition = PARTITIONS[self.number % len(PARTITIONS)]
        match self.verb:
            case "order" | "rate":
                return twin.write(lambda tx: self._emit(tx, f"{self.verb}s", EventBody(partition_key=partition)))
            case "stream":
                return twin.write(lambda tx: self._emit(tx, "stream", EventBody(cursor=self.number)))
            case "deploy":
                return twin.write(
                    lambda tx: deploy.deploy(tx, pipeline(self.number % 3), "", "tests", DEFAULT, again=True)
                )
            case "activate" | "abandon":
                return twin.write(self._move_staged)
            case "rollback":
                return twin.write(lambda tx: cutover.rollback(tx, "shop", "tests"))
            case "invalidate":
                return twin.write(lambda tx: self._invalidate(tx, partition))
            case "backfill":
                request = BackfillRequest(dag="shop", job="clean", key=str(self.number))
                return twin.write(lambda tx: backfills.create(tx, request, "tests"))
            case "replay":
                return twin.write(self._replay)
            case "wait":
                twin.clock.advance(86_400.0 * (1 + 10 * self.number))
                return ""
            case _:
                raise AssertionError(self.verb)

    def _emit(self, tx: Tx, name: str, event: EventBody) -> None:
        emission.emit(tx, "shop", name, key=f"{self.number}", events=[event], by="tests")

    def _move_staged(self, tx: Tx) -> None:
        table = schema.dag_versions
        number = tx.value(sa.select(table.c.number).where(table.c.status.in_(cutover.STAGED)))
        if number is None:
            return
        if self.verb == "abandon":
            cutover.abandon(tx, "shop", number, "tests")
        else:
            cutover.activate(tx, "shop", number, "tests", force=True)

    def _invalidate(self, tx: Tx, partition: str) -> None:
        ref = datasets.resolve(tx, "shop.clean")
        generation = datasets.choose_generation(tx, ref, None)
        invalidations.invalidate(tx, ref.id, generation, partition_key=partition, by="tests", key=f"{self.number}")

    def _replay(self, tx: Tx) -> None:
        live = topology.load(tx).jobs
        table = schema.tasks
        failed = sa.select(table.c.id).where(table.c.status == "failed", table.c.edition_id.in_(live))
        superseded = failures.superseded(
            tx, topology.load(tx), tx.all(sa.select(table).where(table.c.status == "failed"))
        )
        ids = [id_ for id_ in tx.execute(failed.order_by(table.c.id)).scalars() if id_ not in superseded]
        if ids:
            operator_actions.replay(tx, ids[self.number % len(ids)], "tests")


VERBS = (
    "order",
    "rate",
    "stream",
    "deploy",
    "activate",
    "abandon",
    "rollback",
    "invalidate",
    "backfill",
    "replay",
    "wait",
)
