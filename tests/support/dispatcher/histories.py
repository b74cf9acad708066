"""Random histories of one installation, beside a plain model of what may be committed.

A developer edits the code of jobs, deploys, activates and rolls back; days and months arrive and are corrected; workers
claim, crash, fail, restart and, some of them, are of an older qo. Every output says by which code it was made and from
what, so that after each step one law can be held against all that is committed:

    every row was made by the code of its version, from the inputs of its version

and when a version takes over that nobody forced, each of its months was made from all the days that there were when the
version was staged.
"""

from __future__ import annotations

import hashlib
import random
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Any, NoReturn

import sqlalchemy as sa

from qo.api.contract.dag import DeployBundle
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, Outcome, Work
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.topology import LIVE, VersionStatus
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.engine.loops import comparison, invalidation, reaper, reconciler, refresh, release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State, Tx
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.tasks.dedupe_keys import KeyKind
from qo.dispatcher.versions import cutover, deploy, rebuilding, records
from qo.errors import LeaseLost, QoError
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipelines import dag, job, source
from support.dispatcher.states import Clock

ROOT = "file:/data"
JOBS = ("day", "month", "year")
ROUNDS = 60  # In which an installation that is left alone comes to rest.

Codes = Mapping[str, int]  # By job, what its code says.


class LawBroken(AssertionError):
    """Something is committed that must not be."""


@dataclass(frozen=True, slots=True)
class Output:
    """What an attempt wrote."""

    job: str
    code: int
    made_from: Mapping[str, Mapping[str, Any]]  # By input and partition: an output, or a revision of a source's.


def pipeline(codes: Codes) -> Dag:
    """Days by themselves; months made of all days, read beside; years made of all months, read beside."""
    code = {name: f"{name}-{number}" for name, number in codes.items()}
    return dag(
        "shop",
        source("orders"),
        source("months"),
        job("day", reads="orders", operator="ops:day", code=code["day"]),
        job("month", reads=["months", {"job": "day", "trigger": False}], operator="ops:month", code=code["month"]),
        job("year", reads=["months", {"job": "month", "trigger": False}], operator="ops:year", code=code["year"]),
    )


@dataclass(slots=True)
class Installation:
    state: State
    clock: Clock
    rng: random.Random
    # The code that a worker runs for a claimed task; a planted bug is another one.
    code_of: Callable[[Installation, Work], Codes] = lambda site, work: site.bundles[_bundle(work)]
    codes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(JOBS, 1))  # On the developer's disk.
    bundles: dict[str, Codes] = field(default_factory=dict[str, Codes])
    outputs: dict[str, Output] = field(default_factory=dict[str, Output])  # By location.
    held: list[Claimed] = field(default_factory=list[Claimed])
    imported: Codes | None = None  # By a worker that knows nothing of bundles.
    days_when_staged: dict[int, frozenset[str]] = field(default_factory=dict[int, frozenset[str]])
    log: list[str] = field(default_factory=list[str])

    # What people and sources do

    def edit(self) -> None:
        name = self.rng.choice(JOBS)
        self.codes[name] = self.rng.randint(1, 3)
        self.log.append(f"edit {name} = {self.codes[name]}")

    def deploy(self, *, again: bool = True) -> int | None:
        sha256 = hashlib.sha256(repr(sorted(self.codes.items())).encode()).hexdigest()
        self.bundles.setdefault(sha256, dict(self.codes))
        with self.state.write() as tx:
            _upload(tx, sha256)
            answer = deploy.deploy(
                tx,
                pipeline(self.codes),
                "",
                "tests",
                DEFAULT,
                DeployBundle(sha256=sha256, jobs=list(JOBS)),
                again=again,
            )
            if answer.changed:
                self.days_when_staged[answer.version] = _partitions_of(tx, "orders")
        self.imported = self.imported or self.bundles[sha256]
        self.log.append(f"deploy {answer.version} ({answer.status})")
        return answer.version

    def activate(self) -> None:
        """What is staged and built takes over, as `qo dag deploy --activate` has it."""
        with self.state.read() as tx:
            found = [row for row in _versions(tx) if row["status"] in cutover.STAGED]
            if not found or not rebuilding.rebuild(tx, "shop", found[0]["number"]).caught_up:
                return
            number = found[0]["number"]
        with suppress(QoError):
            with self.state.write() as tx:
                cutover.mark_ready(tx, "shop", number, "tests")
                before = records.active(tx, "shop")
                cutover.activate(tx, "shop", number, "tests")
                self._check_takeover(tx, number, None if before is None else before["id"])
            self.log.append(f"activate {number}")

    def rollback(self) -> None:
        with suppress(QoError):
            with self.state.write() as tx:
                cutover.rollback(tx, "shop", "tests")
            self.log.append("rollback")

    def emit(self, what: str, key: str) -> None:
        """New, or corrected: the revision of what a source says is what it says."""
        unique = f"{what}-{key}-{self.rng.random()}"
        with self.state.write() as tx:
            emission.emit(
                tx, "shop", what, key=unique, events=[EventBody(output=0, partition_key=key)], by="tests"
            )
        self.log.append(f"emit {what} {key}")

    def restart(self) -> None:
        """A worker without bundles has imported what lies on the disk now; what it held is lost."""
        self.imported = dict(self.codes)
        self.held.clear()

    def replay(self) -> None:
        for row in self._tasks("failed"):
            with suppress(QoError), self.state.write() as tx:
                operator_actions.replay(tx, row["id"], "tests")

    # What dispatchers and workers do

    def loops(self) -> None:
        limits = Limits()
        for tick in (router.tick, invalidation.tick, reconciler.tick, refresh.tick, comparison.tick):
            while tick(self.state):
                pass
        while release.tick(self.state, limits):
            pass

    def claim(self) -> None:
        woken = [row for row in self._tasks("pending") if row["released_at"] is not None]
        if not woken:
            return
        request = ClaimRequest(task_id=self.rng.choice(woken)["id"], worker_id="w")
        with self.state.write() as tx:
            answer = claiming.claim(tx, request, ROOT)
        if isinstance(answer, Claimed):
            self.held.append(answer)

    def finish(self, outcome: Outcome = Outcome.SUCCESS, *, old_worker: bool = False) -> None:
        if not self.held:
            return
        held = self.held.pop(self.rng.randrange(len(self.held)))
        fence = {"task_id": held.work.task_id, "attempt": held.attempt, "lease_id": held.lease_id}
        request = CompleteRequest(**fence, outcome=outcome, error="broken")
        if outcome is Outcome.SUCCESS:
            assert self.imported is not None
            codes = self.imported if old_worker else self.code_of(self, held.work)
            request = CompleteRequest(
                **fence,
                outcome=outcome,
                outputs=self._written(held, codes),
                # An older qo reports nothing.
                code=None if old_worker else f"{held.work.job}-{codes[held.work.job]}",
            )
        with suppress(LeaseLost), self.state.write() as tx:
            completion.complete(tx, request, ROOT)

    def crash(self) -> None:
        """A worker that held something is gone, and its leases run out."""
        if self.held:
            self.held.pop(self.rng.randrange(len(self.held)))
            self.clock.advance(120)
            reaper.tick(self.state)
            self.clock.advance(120)

    def work(self) -> None:
        self.loops()
        for _ in range(self.rng.randint(1, 4)):
            self.claim()
        for _ in range(self.rng.randint(0, 4)):
            kind = self.rng.random()
            if kind < 0.08:
                self.finish(Outcome.FATAL)
            elif kind < 0.16:
                self.finish(old_worker=True)
            elif kind < 0.22:
                self.crash()
            else:
                self.finish()

    def settle(self) -> None:
        """Left alone, with workers that are well, until nothing is open."""
        for _ in range(ROUNDS):
            self.replay()
            self.loops()
            self.clock.advance(60)  # Rests of tasks that were given back are over.
            reaper.tick(self.state)
            while [row for row in self._tasks("pending") if row["released_at"] is not None] or self.held:
                self.claim()
                self.finish()
            self.loops()
            self.activate()
            if not self._is_open():
                return
        raise AssertionError("it does not come to rest:\n" + "\n".join(self.log))

    def _is_open(self) -> bool:
        """Whether anything is left to do. Tasks of a version that was replaced are withheld, for a rollback."""
        jobs, versions = schema.jobs, schema.dag_versions
        query = sa.select(jobs.c.edition_id).join(versions, versions.c.id == jobs.c.version_id)
        with self.state.read() as tx:
            live = set(tx.execute(query.where(versions.c.status.in_(sorted(LIVE)))).scalars())
        withheld = [row for row in self._tasks("pending") if row["edition_id"] not in live]
        assert all(row["released_at"] is None for row in withheld), "nobody is woken for what is withheld"
        return bool(self._tasks("running")) or len(self._tasks("pending")) > len(withheld)

    def step(self) -> None:
        """One thing that somebody does."""
        doings: list[tuple[float, Callable[[], Any]]] = [
            (3, lambda: self.emit("orders", f"d{self.rng.randint(1, 5)}")),
            (1.5, lambda: self.emit("months", f"m{self.rng.randint(1, 2)}")),
            (1, self.edit),
            (1.5, self.deploy),
            (1.5, self.activate),
            (0.7, self.rollback),
            (0.7, self.restart),
            (0.7, self.replay),
            (6, self.work),
        ]
        self.rng.choices([act for _, act in doings], [weight for weight, _ in doings])[0]()
        self.check()

    # The laws

    def check(self) -> None:
        """Every row was made by the code of its version, from the inputs of its version."""
        with self.state.read() as tx:
            for version, name, wanted in _made_by_versions(tx):
                for key, location in wanted.items():
                    self._check_output(tx, version, name, key, self.outputs[location])

    def _check_output(self, tx: Tx, version: int, name: str, key: str, output: Output) -> None:
        codes = _codes_of(tx, version)
        where = f"{name}@{key} of version {version}"
        if output.code != codes[name]:
            self._report(f"{where} was made by code {output.code}")
        for read, parts in output.made_from.items():
            for part in parts.values():
                if isinstance(part, Output) and part.code != codes[part.job]:
                    self._report(f"{where} read {read} of other code")

    def _check_takeover(self, tx: Tx, version: int, before: str | None) -> None:
        """Nothing that this version has built anew was made from less than was there when it was staged."""
        shared = set[str]() if before is None else _editions(tx, before)
        for number, name, wanted in _made_by_versions(tx):
            if number != version or name != "month" or _edition(tx, version, name) in shared:
                continue
            for key, location in wanted.items():
                days = set(self.outputs[location].made_from["day"])
                missing = self.days_when_staged[version] - days
                if missing:
                    self._report(f"month@{key} of version {version} lacks {sorted(missing)}")

    def _report(self, what: str) -> NoReturn:
        raise LawBroken(f"{what}, after\n" + "\n".join(self.log))

    # What there is

    def _written(self, held: Claimed, codes: Codes) -> list[Any]:
        from support.dispatcher.pipeline_tasks import output

        work = held.work
        made_from = {
            each.name: {
                piece.partition_key or "": self.outputs.get(piece.location or "", piece.revision)
                for piece in each.pieces
            }
            for each in work.inputs
        }
        body = output(held)
        assert body.location is not None
        self.outputs[body.location] = Output(work.job, codes[work.job], made_from)
        return [body]

    def _tasks(self, status: str) -> list[Any]:
        table = schema.tasks
        query = sa.select(table).where(table.c.status == status).order_by(table.c.created_at, table.c.id)
        with self.state.read() as tx:
            return [row for row in tx.all(query) if not row["dedupe_key"].startswith(KeyKind.BACKFILL.prefix)]


def _bundle(work: Work) -> str:
    assert work.code is not None
    return work.code.sha256


def _upload(tx: Tx, sha256: str) -> None:
    row = {
        "id": sha256[:36],
        "sha256": sha256,
        "location": f"{ROOT}/bundles/{sha256}.zip",
        "state": "final",
        "manifest": {"runtime": "pipeline"},
        "created_at": tx.now,
        "created_by": "tests",
    }
    tx.insert_absent(schema.bundles, [row], returning=schema.bundles.c.id)


def _versions(tx: Tx) -> list[Any]:
    return list(tx.all(sa.select(schema.dag_versions).order_by(schema.dag_versions.c.number)))


def _partitions_of(tx: Tx, name: str) -> frozenset[str]:
    parts, datasets = schema.partitions, schema.datasets
    query = sa.select(parts.c.partition_key).join(datasets, datasets.c.id == parts.c.dataset_id)
    return frozenset(tx.execute(query.where(datasets.c.job == name)).scalars())


def _codes_of(tx: Tx, version: int) -> dict[str, int]:
    jobs, versions = schema.jobs, schema.dag_versions
    query = (
        sa.select(jobs.c.name, jobs.c.definition)
        .join(versions, versions.c.id == jobs.c.version_id)
        .where(versions.c.number == version)
    )
    codes = {row["name"]: row["definition"].get("code") for row in tx.all(query)}
    return {name: int(code.rpartition("-")[2]) for name, code in codes.items() if code is not None}


def _editions(tx: Tx, version_id: str) -> set[str]:
    return set(
        tx.execute(sa.select(schema.jobs.c.edition_id).where(schema.jobs.c.version_id == version_id)).scalars()
    )


def _edition(tx: Tx, version: int, name: str) -> str:
    jobs, versions = schema.jobs, schema.dag_versions
    query = sa.select(jobs.c.edition_id).join(versions, versions.c.id == jobs.c.version_id)
    return str(tx.value(query.where(versions.c.number == version, jobs.c.name == name)))


def _made_by_versions(tx: Tx) -> list[tuple[int, str, dict[str, str]]]:
    """Version, job, and the location of each partition that is current in it."""
    parts, pointers, versions, datasets = (
        schema.partitions,
        schema.version_generations,
        schema.dag_versions,
        schema.datasets,
    )
    query = (
        sa.select(versions.c.number, datasets.c.job, parts.c.partition_key, parts.c.location)
        .join(pointers, pointers.c.generation_id == parts.c.generation_id)
        .join(versions, versions.c.id == pointers.c.version_id)
        .join(datasets, datasets.c.id == parts.c.dataset_id)
        .where(datasets.c.job.in_(JOBS), versions.c.status != VersionStatus.ABANDONED)
    )
    found: dict[tuple[int, str], dict[str, str]] = {}
    for number, name, key, location in tx.execute(query):
        found.setdefault((number, name), {})[key] = location
    return [(number, name, wanted) for (number, name), wanted in found.items()]
