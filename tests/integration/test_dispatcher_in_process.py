"""Jobs that the dispatcher runs itself: once each, in one transaction, by pure rules."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import sqlalchemy as sa

from qo.api.contract.task import EventBody
from qo.core.lifecycle import Cancel
from qo.dispatcher.commits.pieces import PIECES_MAX
from qo.dispatcher.engine.loops import release, router
from qo.dispatcher.engine.release_limits import Limits
from qo.dispatcher.runtimes import in_process
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import rows
from support.dispatcher.pipelines import dag, deployed, source
from support.dispatcher.pipelines import job as reactive

ROOT = "file:/data"


def own(name: str, operator: str, **fields: Any) -> Any:
    return reactive(name, reads="in", runtime="dispatcher", operator=operator, **fields)


SPLIT = dag("d", source("in"), own("cut", "range_splitter", config={"chunk_size": 10}))
CLOSE = dag(
    "d",
    source("in"),
    own("close", "range_aggregator", config={"range_size": 10}, execution_strategy="PerUpdate"),
)
PASS = dag("d", source("in"), own("pass", "noop", outputs=2))


def say(state: State, key: str, **event: Any) -> None:
    with state.write() as tx:
        emission.emit(tx, "d", "in", key=key, events=[EventBody(**event)], by="tests")


def work(state: State) -> int:
    """Route, release and run until nothing is left; how many runs that took."""
    ran = 0
    while router.tick(state) + release.tick(state, Limits()) + (more := in_process.tick(state, ROOT)):
        ran += more
    return ran


def found(state: State, query: sa.Select[Any]) -> list[tuple[Any, ...]]:
    with state.read() as tx:
        return [tuple(row) for row in tx.execute(query)]


def made(state: State, job: str) -> list[tuple[Any, ...]]:
    table, datasets = schema.partitions, schema.datasets
    query = sa.select(table.c.partition_key, table.c.start, table.c.end, table.c.location).join(
        datasets, datasets.c.id == table.c.dataset_id
    )
    return found(state, query.where(datasets.c.job == job).order_by(datasets.c.output, table.c.start))


def statuses(state: State, job: str) -> list[tuple[Any, ...]]:
    table = schema.tasks
    return found(state, sa.select(table.c.status, table.c.last_error).where(table.c.job == job))


def test_a_splitter_makes_a_partition_of_each_chunk_where_the_whole_lies(state: State) -> None:
    deployed(state, SPLIT)
    say(state, "k", partition_key="0-25", start=0, end=25, attributes={"location": "s3://in/x/"})
    assert work(state) == 1
    assert made(state, "cut") == [
        ("0-10", 0, 10, "s3://in/x/"),
        ("10-20", 10, 20, "s3://in/x/"),
        ("20-25", 20, 25, "s3://in/x/"),
    ]
    assert statuses(state, "cut") == [("completed", None)]
    assert len(found(state, sa.select(schema.events.c.id))) == 4
    assert found(state, sa.select(schema.outbox.c.state)) == [("done",)]


def test_a_splitter_without_a_range_fails_and_says_why(state: State) -> None:
    deployed(state, SPLIT)
    say(state, "k", partition_key="all")
    work(state)
    ((status, error),) = statuses(state, "cut")
    assert status == "failed"
    assert "no range" in error
    assert made(state, "cut") == []


def test_too_many_chunks_fail_once_and_for_good(state: State) -> None:
    deployed(state, SPLIT)
    say(state, "k", partition_key="huge", start=0, end=2**40)
    assert work(state) == 1
    ((status, error),) = statuses(state, "cut")
    assert status == "failed"
    assert "chunk_size" in error


def test_an_aggregator_closes_each_range_once_whatever_the_order(state: State) -> None:
    deployed(state, CLOSE)
    for number, cursor in enumerate([12, 3, 12, 29, 28]):
        say(state, f"{number}", cursor=cursor)
    work(state)
    assert made(state, "close") == [("0-10", 0, 10, None), ("10-20", 10, 20, None), ("20-30", 20, 30, None)]
    assert found(state, sa.select(schema.operator_state.c.value)) == [({"end": 30},)]
    say(state, "later", cursor=40)
    work(state)
    assert [row[0] for row in made(state, "close")] == ["0-10", "10-20", "20-30", "30-40"]
    assert len(found(state, sa.select(schema.commits.c.revision))) == 4


def test_an_aggregator_far_from_its_start_fails_and_says_what_to_set(state: State) -> None:
    deployed(state, CLOSE)
    say(state, "k", cursor=1_700_000_000)
    work(state)
    ((status, error),) = statuses(state, "close")
    assert status == "failed"
    assert "set start" in error


def test_a_noop_passes_its_partition_on_to_each_output(state: State) -> None:
    deployed(state, PASS)
    say(state, "k", partition_key="a", attributes={"location": "s3://in/a/", "files": ["x"]})
    work(state)
    assert made(state, "pass") == [("a", None, None, "s3://in/a/")] * 2


def append(state: State, key: str, count: int, files: int = 1) -> list[str]:
    """Let the partition of the source have so many commits, as if each had been appended; the URIs of all files."""
    table, partitions = schema.commits, schema.partitions
    with state.write() as tx:
        first = tx.one(sa.select(table).where(table.c.partition_key == key))
        assert first is not None
        shared = {name: first[name] for name in first if name != "revision"}
        batches = range(1, count)
        named = [[f"part-{number}" for number in range(files)] for _ in batches]
        tx.insert(
            table,
            [
                shared | {"location": f"s3://in/{number}/", "files": names}
                for number, names in zip(batches, named, strict=True)
            ],
        )
        latest = tx.value(sa.select(sa.func.max(table.c.revision)))
        tx.execute(sa.update(partitions).where(partitions.c.partition_key == key).values(revision=latest))
        rows = tx.all(sa.select(table).where(table.c.partition_key == key))
    return [f"{row['location']}{name}" for row in rows for name in row["files"]]


def files_of(state: State, job: str) -> list[list[str]]:
    """Of each commit of a job the URIs of its files."""
    table, datasets = schema.commits, schema.datasets
    query = sa.select(table.c.location, table.c.files).join(datasets, datasets.c.id == table.c.dataset_id)
    return [
        [name if ":/" in name else f"{location}{name}" for name in names]
        for location, names in found(state, query.where(datasets.c.job == job))
    ]


def announce_range(state: State, dag: Any) -> None:
    deployed(state, dag)
    about = {"location": "s3://in/0/", "files": ["part-0"]}
    say(state, "k", partition_key="0-20", start=0, end=20, attributes=about)
    router.tick(state)


@pytest.mark.parametrize(("dag", "job"), [(PASS, "pass"), (SPLIT, "cut")], ids=["noop", "range_splitter"])
def test_every_file_of_a_partition_that_was_appended_to_often_is_passed_on(
    state: State, dag: Any, job: str
) -> None:
    announce_range(state, dag)
    expected = append(state, "0-20", PIECES_MAX * 2 + 1)
    work(state)
    assert statuses(state, job) == [("completed", None)]
    passed_on = files_of(state, job)
    assert [sorted(each) for each in passed_on] == [sorted(expected)] * 2
    lenders = found(state, sa.select(schema.loans.c.revision, sa.func.count()).group_by(schema.loans.c.revision))
    assert [count for _, count in lenders] == [len(expected)] * 2  # None of their files may be collected.


@pytest.mark.parametrize(("dag", "job"), [(PASS, "pass"), (SPLIT, "cut")], ids=["noop", "range_splitter"])
def test_a_partition_of_too_many_files_fails_for_good_and_says_what_to_do(
    state: State, dag: Any, job: str
) -> None:
    announce_range(state, dag)
    append(state, "0-20", 101, files=100)  # 10,001 in all.
    assert work(state) == 1
    ((status, error),) = statuses(state, job)
    assert status == "failed"
    assert "more than 10,000 files" in error
    assert "compact" in error
    assert made(state, job) == []


def test_a_noop_passes_a_cursor_on(state: State) -> None:
    deployed(state, dag("d", source("in"), own("pass", "noop", execution_strategy="PerUpdate")))
    say(state, "k", cursor=7)
    work(state)
    assert found(state, sa.select(schema.generations.c.cursor)) == [(7,), (7,)]
    assert statuses(state, "pass") == [("completed", None)]


def test_dispatchers_at_once_run_each_task_once(state: State) -> None:
    deployed(state, CLOSE)
    for cursor in range(0, 200, 7):
        say(state, f"{cursor}", cursor=cursor)
    while router.tick(state) + release.tick(state, Limits()):
        pass
    threads = [
        threading.Thread(target=lambda: [in_process.tick(state, ROOT, 5) for _ in range(12)]) for _ in range(4)
    ]
    for each in threads:
        each.start()
    for each in threads:
        each.join()
    work(state)
    assert {row[0] for row in statuses(state, "close")} == {"completed"}
    # One that finds its cursors read in part by another is given back and reads the rest: that is another attempt.
    assert [row[0] for row in made(state, "close")] == [f"{low}-{low + 10}" for low in range(0, 190, 10)]


def test_a_wake_up_for_a_task_that_was_cancelled_runs_nothing(state: State) -> None:
    deployed(state, SPLIT)
    say(state, "k", partition_key="0-25", start=0, end=25)
    router.tick(state)
    release.tick(state, Limits())
    with state.write() as tx:
        task = tx.value(sa.select(schema.tasks.c.id).where(schema.tasks.c.job == "cut"))
        rows.move(tx, rows.load(tx, task), Cancel(tx.ambient.token(), by="anna"))
    assert in_process.tick(state, ROOT) == 1
    assert made(state, "cut") == []
    assert in_process.tick(state, ROOT) == 0


def test_one_run_that_breaks_does_not_keep_the_others(state: State, monkeypatch: pytest.MonkeyPatch) -> None:
    deployed(state, SPLIT)
    for low in (0, 100, 200):
        say(state, f"{low}", partition_key=f"p{low}", start=low, end=low + 10)
    router.tick(state)
    release.tick(state, Limits())
    real = in_process.split

    def breaking(start: int, end: int, chunk: int) -> Any:
        if start == 100:
            raise RuntimeError("a bug")
        return real(start, end, chunk)

    monkeypatch.setattr(in_process, "split", breaking)
    in_process.tick(state, ROOT)
    assert [row[1] for row in made(state, "cut")] == [0, 200]
    broken = found(state, sa.select(schema.outbox.c.last_error).where(schema.outbox.c.state == "pending"))
    assert broken == [("RuntimeError: a bug",)]
