"""Pipelines of which something becomes stale, and how to run them to their end."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from qo.api.contract.dataset import PartitionAnswer
from qo.api.contract.task import EventBody
from qo.api.contract.why import WhyAnswer
from qo.core.pipeline.dag import Dag
from qo.core.task import Status
from qo.dispatcher.engine.loops import reconciler, refresh
from qo.dispatcher.sources import emission
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover
from qo.dispatcher.views import datasets
from qo.dispatcher.views.why.answer import why
from support.dispatcher.pipeline_tasks import claimed, settle, succeed, tasks_of
from support.dispatcher.pipelines import dag, job, live, loaded, source


def calendar(refresh: str = "manual") -> Dag:
    """Days, and months made from all of them: read whole. ``sales`` has rates of the same day: read by partition."""
    return dag(
        "shop",
        source("days"),
        source("months"),
        source("rates"),
        job("day", reads="days"),
        job("month", reads=["months", {"job": "day", "trigger": False, "refresh": refresh}]),
        job("sales", reads=["days", {"job": "rates", "trigger": False, "refresh": refresh}]),
    )


def announce(state: State, name: str, *keys: str) -> None:
    """A source commits partitions, once more if they are there."""
    dag_name, _, job_name = name.partition(".")
    bodies = [EventBody(partition_key=key) for key in keys]
    with state.write() as tx:
        emission.emit(tx, dag_name, job_name, key=tx.ambient.task_id(), events=bodies, by="tests")


def run_all(state: State) -> None:
    """Until neither a loop nor a worker has anything to do."""
    for _ in range(50):
        did = settle(state)
        while made := refresh.tick(state) + reconciler.tick(state):
            did += made
        if not did:
            return
    raise AssertionError("it does not end")


def stale_keys(state: State, name: str) -> list[str]:
    """As the list says, with and without its filter, and as the dataset counts them."""
    with state.read() as tx:
        every = datasets.list_partitions(tx, name).partitions
        only = datasets.list_partitions(tx, name, stale=True).partitions
        others = datasets.list_partitions(tx, name, stale=False).partitions
        counted = datasets.show_dataset(tx, name).stale
    found = [each.partition_key for each in every if each.stale]
    assert [each.partition_key for each in only] == found
    assert [each.partition_key for each in others] == [each.partition_key for each in every if not each.stale]
    assert counted is not None
    assert (counted.partitions, counted.at_least) == (len(found), False)
    return found


def partition(state: State, name: str, key: str) -> PartitionAnswer:
    with state.read() as tx:
        return next(p for p in datasets.list_partitions(tx, name).partitions if p.partition_key == key)


def ask_why(state: State, target: str) -> WhyAnswer:
    with state.read() as tx:
        return why(tx, target)


def open_tasks(state: State, name: str) -> list[str]:
    """The partitions for which a task of the job waits or runs."""
    found = tasks_of(state, live(loaded(state), name))
    return sorted(each["partition_key"] for each in found if each["status"] in (Status.PENDING, Status.RUNNING))


def run_job(state: State, name: str, ready: Callable[[str], bool] = lambda key: True) -> Iterable[str]:
    """Run the waiting tasks of one job; for which partitions."""
    waiting = [each for each in tasks_of(state, live(loaded(state), name)) if each["status"] == Status.PENDING]
    done = [each for each in waiting if ready(each["partition_key"])]
    for each in done:
        succeed(state, claimed(state, each["id"]))
    return [each["partition_key"] for each in done]


def activate(state: State, name: str, version: int) -> None:
    with state.write() as tx:
        cutover.activate(tx, name, version, "tests", force=True)
