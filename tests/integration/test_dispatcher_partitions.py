"""Keys of declared partitions: what does not fit the kind is refused wherever it comes from, and stores nothing."""

from __future__ import annotations

import pytest

from qo.api.contract.source import EmitAnswer
from qo.api.contract.task import EventBody
from qo.dispatcher.sources import emission
from qo.dispatcher.state.database import State
from qo.errors import UsageError
from support.dispatcher.pipeline_tasks import claimed, finish, output, partition_task
from support.dispatcher.pipelines import dag, deployed, job, live, source

SHOP = dag("shop", source("orders", partitions={"kind": "day"}), job("clean", reads="orders"))


def emit(state: State, key: str) -> EmitAnswer:
    with state.write() as tx:
        events = [EventBody(partition_key=key)]
        return emission.emit(tx, "shop", "orders", key=key, events=events, by="anna")


def test_a_source_announces_only_partitions_of_its_kind(state: State) -> None:
    deployed(state, SHOP)
    assert emit(state, "2024-01-31").accepted == 1
    with pytest.raises(UsageError, match=r"'2024-01-31.csv' is not a day: write it as in"):
        emit(state, "2024-01-31.csv")
    with pytest.raises(UsageError, match=r"there is no such day"):
        emit(state, "2024-01-32")


def test_a_job_has_the_partitions_of_what_it_reads_and_commits_no_others(state: State) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    assert clean.job.partitions is not None
    held = claimed(state, partition_task(state, clean, "2024-01-31"))

    with pytest.raises(UsageError, match=r"'north' is not a day"):
        finish(state, held, outputs=[output(held, partition_key="north")])
    finish(state, held, outputs=[output(held)])  # The attempt is still open, and its own partition fits.


def test_partitions_of_text_have_any_key(state: State) -> None:
    deployed(state, dag("shop", source("orders", partitions={"kind": "text"})))
    assert emit(state, "north").accepted == 1
