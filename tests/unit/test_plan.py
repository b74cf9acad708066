"""What a DAG means, and what an edit changes."""

from __future__ import annotations

from typing import Any

import msgspec
import pytest

from qo.core.pipeline.dag import Dag, Job, from_json, to_json
from qo.core.pipeline.diff import Diff, Edited, Rebuilt, diff
from qo.core.pipeline.plan import Plan, config_hash, plan
from support.dispatcher.pipelines import dag, edited, job, source

pytestmark = pytest.mark.fast

SHOP = dag(
    "shop",
    source("orders", "cron", of={"schedule": "0 * * * *"}),
    source("customers"),
    job("clean", reads="orders", config={"sql": "select 1", "strict": True}),
    job("daily", reads=["clean", "customers"]),
    job("alert", reads="daily", outputs=0),
    publish={"clean_orders": "clean"},
)


def compared(new: Dag, old: Dag = SHOP) -> Diff:
    return diff(plan(old), plan(new))


def editions(planned: Plan) -> dict[str, str]:
    return {each.job.name: each.edition_id for each in planned.jobs}


def test_from_nothing_everything_is_added_and_built() -> None:
    found = diff(None, plan(SHOP))
    assert found.added == ("alert", "clean", "customers", "daily", "orders")
    assert {each.job for each in found.rebuilt} == set(found.added)
    assert {each.why for each in found.rebuilt} == {"is new"}
    assert (found.removed, found.edited, found.carried_over) == ((), (), ())


def test_the_same_file_changes_nothing() -> None:
    found = compared(SHOP)
    assert found.empty
    assert len(found.carried_over) == 5


def test_an_edit_reaches_everything_downstream_and_says_why() -> None:
    found = compared(edited(SHOP, "clean", config={"sql": "select 2", "strict": True}))
    assert found.edited == (Edited("clean", ("config.sql",)),)
    assert found.rebuilt == (
        Rebuilt("clean", "edited: config.sql"),
        Rebuilt("daily", "reads clean, which is edited"),
        Rebuilt("alert", "reads daily, which is rebuilt"),
    )
    assert found.carried_over == ("customers", "orders")


def test_how_a_job_is_run_is_no_reason_to_build_it_again() -> None:
    found = compared(edited(SHOP, "clean", timeout_seconds=5, scaling={"max_concurrency": 2}))
    assert found.operational == (Edited("clean", ("scaling.max_concurrency", "timeout_seconds")),)
    assert (found.edited, found.rebuilt) == ((), ())
    assert not found.empty


def test_when_a_source_runs_is_no_reason_to_build_it_again() -> None:
    found = compared(edited(SHOP, "orders", source={"kind": "cron", "schedule": "5 * * * *"}))
    assert found.operational == (Edited("orders", ("source.schedule",)),)
    assert found.rebuilt == ()


def test_an_operational_edit_downstream_of_a_real_one_is_told_apart() -> None:
    both = edited(edited(SHOP, "clean", operator="shop.other:run"), "daily", max_attempts=9)
    found = compared(both)
    assert [each.job for each in found.edited] == ["clean"]
    assert [each.job for each in found.operational] == ["daily"]
    assert [each.job for each in found.rebuilt] == ["clean", "daily", "alert"]


def test_a_removed_job_rebuilds_nobody_who_did_not_read_it() -> None:
    found = compared(
        dag("shop", *(each for each in SHOP.jobs if each.name != "alert"), publish={"clean_orders": "clean"})
    )
    assert found.removed == ("alert",)
    assert found.rebuilt == ()
    assert not found.empty


def test_a_published_name_stands_for_the_job_it_names() -> None:
    by_job = dag("shop", source("orders"), job("clean", reads="orders"), publish={"all_orders": "orders"})
    by_name = edited(by_job, "clean", inputs=[{"from": {"dataset": "all_orders"}}])
    one, other = plan(by_job).job("clean").inputs[0], plan(by_name).job("clean").inputs[0]
    assert (one.dataset_id, one.generation_id) == (other.dataset_id, other.generation_id)


def test_a_dataset_of_another_dag_is_read_as_it_is_there() -> None:
    reads = dag("report", job("sum", reads={"dataset": "clean_orders"}))
    first, second = (plan(reads, {"clean_orders": each}) for each in ("one", "two"))
    assert first.job("sum").inputs[0].generation_id is None
    found = diff(first, second)
    assert found.rebuilt == (Rebuilt("sum", "reads clean_orders, which is another dataset now"),)
    with pytest.raises(KeyError):
        plan(reads)


def test_each_output_is_a_dataset_of_its_own() -> None:
    planned = plan(
        dag(
            "shop",
            source("feed", outputs=2),
            job("left", reads="feed"),
            job("right", reads={"job": "feed", "output": 1}),
        )
    )
    left, right = planned.job("left").inputs[0], planned.job("right").inputs[0]
    assert left.dataset_id != right.dataset_id
    assert [each.dataset_id for each in planned.job("feed").outputs] == [left.dataset_id, right.dataset_id]


def test_a_source_that_resets_its_outputs_begins_with_nothing_in_every_version() -> None:
    resetting = dag("shop", source("orders", bootstrap={"reset_outputs": True}), job("clean", reads="orders"))
    again = plan(edited(resetting, "clean", timeout_seconds=7))  # Any other version, whatever it changes.
    first = plan(resetting)
    for name in ("orders", "clean"):
        assert first.job(name).outputs[0].generation_id != again.job(name).outputs[0].generation_id
    assert plan(resetting) == first


def test_going_back_to_an_older_file_is_going_back_to_its_generations() -> None:
    there = edited(SHOP, "clean", config={"sql": "select 2"})
    back = edited(there, "clean", config={"sql": "select 1", "strict": True})
    assert editions(plan(back)) == editions(plan(SHOP))
    assert plan(back).content_hash == plan(SHOP).content_hash


def test_a_stored_document_means_what_it_meant() -> None:
    assert plan(from_json(to_json(SHOP))) == plan(SHOP)


def test_two_dags_of_the_same_shape_share_nothing() -> None:
    one, other = plan(SHOP), plan(dag("other", *SHOP.jobs))
    assert not set(editions(one).values()) & set(editions(other).values())


def test_ids_stay_what_they_were_in_earlier_releases() -> None:
    """They are in databases and buckets: a change here would orphan everybody's data."""
    orders = source("orders", runtime="python", operator="shop.feed:run")
    planned = plan(dag("shop", orders, job("clean", reads="orders", config={"a": 1})))
    clean = planned.job("clean")
    assert clean.logical_id == LOGICAL
    assert clean.edition_id == EDITION
    assert clean.outputs[0].dataset_id == DATASET
    assert clean.outputs[0].generation_id == GENERATION
    assert planned.content_hash == CONTENT


LOGICAL = "0caa0ef5-fef8-59cf-aa60-a6272906aaf3"
EDITION = "e3bc0983-9f63-5a07-a8c6-0e98f92ffb11"
DATASET = "ea63d8a6-6b85-57d9-b8db-6dea73e39ce0"
GENERATION = "5de53aa0-3be8-585c-b681-32e4393ba7e9"
CONTENT = "e80ff3813178bb97da3bf336aabdbb28fdb9c4eb94a152dc6977869ba58b0a25"


def test_what_to_do_about_missing_files_does_not_change_what_is_made() -> None:
    fields = {"name": "raw", "activation": "reactive", "runtime": "spark", "outputs": 1}
    jobs = [
        msgspec.convert({**fields, "operator": operator, "config": {"format": "csv", **more}}, Job)
        for operator in ("ingest", "shop.raw:run")
        for more in ({}, {"missing": "keep"})
    ]
    assert config_hash(jobs[0]) == config_hash(jobs[1])
    assert config_hash(jobs[2]) != config_hash(jobs[3])  # Of others it is their own affair.


def test_how_topics_are_reached_and_what_to_do_about_gaps_does_not_change_what_is_made() -> None:
    fields = {"name": "raw", "activation": "source", "runtime": "spark", "operator": "kafka", "outputs": 1}
    operational: dict[str, Any] = {
        "servers": "b:2",
        "malformed": "keep",
        "expired": "skip",
        "rows_per_batch": 5,
        "trigger_seconds": 1,
        "user": "qo",
        "password_secret": "kafka",
        "mechanism": "PLAIN",
        "options": {"kafka.security.protocol": "SSL"},
        "secret_options": {"kafka.ssl.key.password": "key"},
    }

    def hash_of(**more: Any) -> str:
        config = {"servers": "a:1", "topics": ["clicks"], **more}
        return config_hash(msgspec.convert({**fields, "config": config}, Job))

    assert {hash_of(**{name: value}) for name, value in operational.items()} == {hash_of()}
    decisive: list[dict[str, Any]] = [{"topics": ["views"]}, {"from": "latest"}, {"key": "none"}, {"prefix": "k_"}]
    assert hash_of() not in {hash_of(**each) for each in decisive}
