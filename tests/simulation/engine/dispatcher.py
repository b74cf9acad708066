"""Whole pipelines: dispatchers that die at every transaction boundary, queues that lose, repeat and reorder, workers
that vanish and come back late, and people who deploy, pause and roll back meanwhile. The books balance after every
step; in the end every task has ended and every table is up to date.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryDirectory

import psycopg
import sqlalchemy as sa

from qo.api.contract.task import EventBody, Outcome
from qo.core.pipeline.topology import LiveJob, Topology
from qo.dispatcher.state import schema
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, pausing
from qo.dispatcher.versions.deploy import deploy
from qo.dispatcher.views import staleness
from qo.pipeline.registry import DEFAULT
from simulation.engine.faults import Faults
from simulation.engine.flows import World
from support.dispatcher.pipelines import dag, edited, job, loaded, source, staged
from support.servers.postgres import PostgresServer

STEPS = 160
ACTS = [
    (0.45, "tick"),
    (0.12, "emit"),
    (0.15, "claim"),
    (0.08, "beat"),
    (0.11, "finish"),
    (0.03, "vanish"),
    (0.03, "operate"),
]
DAYS = [f"2024-01-0{day}" for day in range(1, 7)]

SHOP = dag(
    "shop",
    source("orders", runtime="dispatcher", operator="noop"),
    source("prices", runtime="dispatcher", operator="noop"),
    source("ticks", runtime="dispatcher", operator="noop"),
    job("clean", reads="orders", outputs=2),
    job("priced", reads=[{"job": "clean"}, {"job": "prices"}], join="all", scaling={"max_concurrency": 2}),
    job("daily", reads=["priced", {"job": "clean", "output": 1}]),
    job("summary", reads=["prices", {"job": "daily", "trigger": False}]),
    job("follow", reads="ticks", execution_strategy="PerUpdate"),
    job(
        "weeks",
        reads="ticks",
        runtime="dispatcher",
        operator="range_aggregator",
        execution_strategy="PerUpdate",
        config={"range_size": 3},
    ),
    job("report", reads="weeks"),
    job("shared", reads=["prices", {"job": "daily", "trigger": False, "refresh": "on_change"}]),
    job("alert", reads="daily", outputs=0),
    publish={"daily": "daily"},
)
OTHER = dag(
    "finance",
    job("ledger", reads={"dataset": "daily"}),
    source("months", runtime="dispatcher", operator="noop"),
    job("month", reads=["months", {"dataset": "daily", "trigger": False, "refresh": "on_change"}]),
)


def simulate(faults: Faults, server: PostgresServer | None = None, steps: int = STEPS) -> None:
    """On SQLite, or with a database of that server. On both, time is the simulation's."""
    with _sqlite() if server is None else _postgres(server) as url:
        world = World(faults, url)
        try:
            _live(world, steps)
        finally:
            world.close()


@contextmanager
def _sqlite() -> Iterator[str]:
    in_memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with TemporaryDirectory(prefix="qo-simulate-", dir=in_memory) as directory:
        yield f"sqlite:{Path(directory) / 'state.db'}"


@contextmanager
def _postgres(server: PostgresServer) -> Iterator[str]:
    """A database of its own. In one that was emptied, rows that nobody puts in order would come in an order that
    depends on what was there before, and the same seed would be another history."""
    url = server.make_database()
    yield url
    with psycopg.connect(server.admin_url, autocommit=True) as connection:
        connection.execute(f"DROP DATABASE {sa.make_url(url).database} WITH (FORCE)".encode())


def _live(world: World, steps: int) -> None:
    staged(world.truth, SHOP)
    staged(world.truth, OTHER)
    released: set[tuple[str, datetime]] = set()
    told = ""
    for step in range(steps):
        _act(world, step)
        if world.check():
            _rebuilds_read_what_is_complete(world, released)
            told = world.told()
        world.faults.trace.say(f"{step} {world.now} {told}")
    world.begin("end")
    _everything_arrived(world)
    world.settle()
    world.check()
    world.faults.trace.say(f"{world.now} {world.told()}")
    _nothing_is_left_open(world)
    _every_table_is_up_to_date(world)
    _nothing_is_stale(world)
    _nobody_is_alerted_twice(world)


def _act(world: World, step: int) -> None:
    name = f"s{step}"
    world.begin(name)
    rng = world.rng
    what, drawn = "", rng.random()
    for likely, each in ACTS:
        drawn -= likely
        if drawn < 0:
            what = each
            break
    for_s = rng.choice([0.1, 1.0, 10.0, 40.0])
    if what and world.faults.strikes(name, what):
        match what:
            case "tick":
                world.tick(rng.choice(world.loops))
            case "emit":
                _emit(world, step)
            case "claim":
                world.claim()
            case "beat":
                world.beat()
            case "finish":
                world.finish(
                    rng.choice([Outcome.SUCCESS] * 6 + [Outcome.RETRYABLE, Outcome.FATAL, Outcome.RELEASED])
                )
            case "vanish":
                world.vanish()
            case _:
                _operate(world)
    world.pass_time(for_s)


def _emit(world: World, step: int) -> None:
    rng = world.rng
    name = rng.choice(["orders", "prices", "ticks", "months"])
    if name == "ticks":
        event = EventBody(output=0, cursor=rng.randrange(12))
    else:
        day = rng.choice(DAYS)
        event = EventBody(output=0, partition_key=day[:7] if name == "months" else day)
    world.emit("finance" if name == "months" else "shop", name, f"{name}-{step}", [event])


def _operate(world: World) -> None:
    rng = world.rng
    what = rng.choice(["deploy", "activate", "rollback", "pause", "resume", "cancel"])
    if what == "deploy":
        changed = edited(
            SHOP, rng.choice(["clean", "priced", "daily", "summary", "report"]), config={"x": rng.randrange(3)}
        )
        again = rng.random() < 0.5
        world.call(lambda tx: deploy(tx, changed, "as Python", "sim", DEFAULT, again=again))
    elif what == "activate":
        number = rng.randrange(1, 5)
        world.call(lambda tx: cutover.activate(tx, "shop", number, "sim", force=True))
    elif what == "rollback":
        world.call(lambda tx: cutover.rollback(tx, "shop", "sim"))
    elif what == "pause":
        world.call(
            lambda tx: pausing.pause(tx, rng.choice(["shop", "shop.clean", "shop.daily"]), "why not", "sim")
        )
    elif what == "resume":
        _resume_all(world)
    else:
        with world.truth.read() as tx:
            ids = tx.execute(sa.select(schema.tasks.c.id).order_by(schema.tasks.c.id)).scalars().all()
        if ids:
            chosen = rng.choice(ids)
            world.call(lambda tx: operator_actions.cancel(tx, chosen, "sim", "why not"))


def _resume_all(world: World) -> None:
    for scope in ("shop", "shop.clean", "shop.daily"):
        world.call(lambda tx, scope=scope: pausing.resume(tx, scope, "sim"))


def _everything_arrived(world: World) -> None:
    """The last word on everything, so that the end is known."""
    _resume_all(world)
    for name in ("orders", "prices"):
        for day in DAYS:
            world.emit("shop", name, f"last-{name}-{day}", [EventBody(output=0, partition_key=day)])
    for month in ("2024-01", "2024-02"):
        world.emit("finance", "months", f"last-{month}", [EventBody(output=0, partition_key=month)])
    world.emit("shop", "ticks", "last-tick", [EventBody(output=0, cursor=12)])


def _rebuilds_read_what_is_complete(world: World, released: set[tuple[str, datetime]]) -> None:
    """No task of a version that does not serve was released in this step while something it reads beside was not made.

    ``released``: the releases of all steps before. A wake-up that the sweeper sends again is none.
    """
    topology, tasks = loaded(world.truth), schema.tasks
    with world.truth.read() as tx:
        summaries = tx.all(
            sa.select(tasks).where(
                tasks.c.job == "summary", tasks.c.status == "pending", tasks.c.released_at.is_not(None)
            )
        )
        for row in summaries:
            if (row["id"], row["released_at"]) in released:
                continue
            released.add((row["id"], row["released_at"]))
            found = topology.jobs.get(row["edition_id"])
            if found is not None and found.status != "active":
                open_ = tasks.c.status.in_(["pending", "running"])
                before = tasks.c.edition_id.in_(_upstream_of_daily(topology, found))
                left = tx.all(sa.select(tasks.c.job, tasks.c.status).where(before, open_))
                assert left == [], f"seed {world.seed}: a summary was released before {left} were made"


def _upstream_of_daily(topology: Topology, reader: LiveJob) -> set[str]:
    """The editions of everything that the daily table is made from, as the version of its reader has them."""
    read = {each.generation_id for each in reader.inputs if not each.trigger}
    found: set[str] = set()
    while True:
        makers = {e for e, job_ in topology.jobs.items() if read & {made.generation_id for made in job_.outputs}}
        if makers <= found:
            return found
        found |= makers
        read |= {each.generation_id for edition in makers for each in topology.jobs[edition].inputs}


def _nothing_is_left_open(world: World) -> None:
    live = set(loaded(world.truth).jobs)
    tasks = schema.tasks
    with world.truth.read() as tx:
        rows = tx.all(sa.select(tasks).where(tasks.c.status.in_(["pending", "running"])))
        left = [row for row in rows if row["edition_id"] in live and not _waits_for_cutover(world, row)]
        assert left == [], f"seed {world.seed}: {[(row['dag'], row['job'], row['status']) for row in left]}"
        unrouted = tx.all(sa.select(schema.events.c.seq).where(schema.events.c.state == "pending"))
        assert unrouted == [], f"seed {world.seed}: events were never routed"
        waiting = tx.all(sa.select(schema.deliveries).where(schema.deliveries.c.outcome == "pending"))
        assert waiting == [], f"seed {world.seed}: deliveries wait for ever: {waiting}"


def _waits_for_cutover(world: World, row: sa.RowMapping) -> bool:
    found = loaded(world.truth).jobs[row["edition_id"]]
    return found.job.outputs == 0 and found.status != "active"


def _every_table_is_up_to_date(world: World) -> None:
    """Each live edition has every partition of its inputs, made from their last revisions."""
    topology = loaded(world.truth)
    for day in DAYS:
        for name in ("clean", "priced", "daily"):
            for edition, job_ in topology.jobs.items():
                if job_.name == f"shop.{name}":
                    _is_fresh(world, topology, edition, day)
    for edition, job_ in topology.jobs.items():
        if job_.name == "finance.ledger":
            for day in DAYS:
                _is_fresh(world, topology, edition, day)


def _nothing_is_stale(world: World) -> None:
    """Whatever reads an input that is to refresh it was made from that input as it is now."""
    topology = loaded(world.truth)
    partitions = schema.partitions
    with world.truth.read() as tx:
        for job_ in topology.refreshing:
            for made in job_.outputs:
                mine = sa.select(partitions.c.partition_key).where(
                    partitions.c.generation_id == made.generation_id
                )
                keys, positions = tx.execute(mine).scalars().all(), {each.position for each in job_.refreshing}
                left = staleness.stale_work(tx, topology, job_, made.generation_id, keys, positions)
                assert left == [], f"seed {world.seed}: {job_.name} is stale: {left}"


def _nobody_is_alerted_twice(world: World) -> None:
    """Over all editions that there ever were, once for each day, and again only where a day was replaced."""
    tasks = schema.tasks
    alerts = sa.and_(tasks.c.job == "alert", tasks.c.status == "completed", tasks.c.invalidation_id.is_(None))
    query = sa.select(tasks.c.partition_key, sa.func.count()).where(alerts).group_by(tasks.c.partition_key)
    with world.truth.read() as tx:
        twice = {day: n for day, n in tx.execute(query) if n > 1}
    assert twice == {}, f"seed {world.seed}: alerted more than once: {twice}"


def _is_fresh(world: World, topology: Topology, edition: str, day: str) -> None:
    job_ = topology.jobs[edition]
    partitions, pins = schema.partitions, schema.task_inputs
    with world.truth.read() as tx:
        for made in job_.outputs:
            row = tx.one(
                sa.select(partitions).where(
                    partitions.c.generation_id == made.generation_id, partitions.c.partition_key == day
                )
            )
            assert row is not None, f"seed {world.seed}: {job_.name}@{day} is missing"
            for each in job_.inputs:
                generation = each.generation_id or topology.current[each.dataset_id]
                latest = tx.value(
                    sa.select(partitions.c.revision).where(
                        partitions.c.generation_id == generation, partitions.c.partition_key == day
                    )
                )
                read = tx.value(
                    sa.select(sa.func.max(pins.c.revision)).where(
                        pins.c.task_id == row["task_id"],
                        pins.c.position == each.position,
                        pins.c.generation_id == generation,
                    )
                )
                assert read == latest, (
                    f"seed {world.seed}: {job_.name}@{day} was made from revision {read} of {each.name}, "
                    f"which is at {latest}"
                )
