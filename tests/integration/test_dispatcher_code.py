"""The fence knows the code: what was not made by the code of its edition is never committed. On both databases."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import pytest

from qo.api.contract.dag import DeployAnswer, DeployBundle
from qo.api.contract.task import Claimed, CommitRequest, CompleteAnswer, Outcome
from qo.core.pipeline.dag import Dag
from qo.core.pipeline.topology import Topology
from qo.dispatcher.attempts import completion, segments
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import operator_actions
from qo.dispatcher.versions import cutover, deploy
from qo.errors import LeaseLost, UsageError
from qo.pipeline.registry import DEFAULT
from support.dispatcher.pipeline_tasks import (
    all_of,
    claimed,
    fence,
    finish,
    lapse,
    manual_task,
    output,
    partition_task,
    row_of,
    tasks_of,
)
from support.dispatcher.pipelines import dag, edited, job, live, loaded, source
from support.dispatcher.states import Clock

FIRST, SECOND, THIRD = ("a" * 64, "b" * 64, "c" * 64)
SHOP = dag(
    "shop", source("orders"), job("clean", reads="orders", runtime="python", operator="ops:clean", code="one")
)
PINNED = edited(SHOP, "clean", code="pinned")


def uploaded(state: State, *hashes: str, runtime: str = "pipeline") -> None:
    rows = [
        {
            "id": f"bundle-{sha256[:8]}",
            "sha256": sha256,
            "location": f"file:/data/bundles/{sha256}.zip",
            "state": "final",
            "manifest": {"runtime": runtime},
            "created_at": None,
            "created_by": "tests",
        }
        for sha256 in hashes
    ]
    with state.write() as tx:
        tx.insert(schema.bundles, [row | {"created_at": tx.now} for row in rows])


def bring(state: State, wanted: Dag, bundle: str | None, gone: Collection[str] = ()) -> DeployAnswer:
    brought = None if bundle is None else DeployBundle(sha256=bundle, jobs=["clean"])
    with state.write() as tx:
        return deploy.deploy(tx, wanted, "", "tests", DEFAULT, brought, missing_bundles=gone)


@pytest.fixture
def shop(state: State) -> Topology:
    uploaded(state, FIRST, SECOND, THIRD)
    bring(state, SHOP, FIRST)
    return loaded(state)


def complete(state: State, held: Claimed, code: str | None) -> CompleteAnswer:
    return finish(state, held, outputs=[output(held)], code=code, packages=["pandas is 2, was 1"])


def attempt_of(state: State, held: Claimed) -> dict[str, Any]:
    return next(
        row
        for row in all_of(state, schema.attempts)
        if (row["task_id"], row["attempt"]) == (held.work.task_id, held.attempt)
    )


def test_a_claim_says_which_code_to_run_and_where_it_lies(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    assert held.work.code is not None
    assert (held.work.code.sha256, held.work.code.fingerprint) == (FIRST, "one")
    assert held.work.code.location.endswith(f"/bundles/{FIRST}.zip")


def test_the_code_of_the_edition_is_accepted_and_kept_with_the_attempt(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    assert complete(state, held, "one").status == "completed"
    assert attempt_of(state, held)["code"] == "one"
    assert attempt_of(state, held)["packages"] == ["pandas is 2, was 1"]
    with state.read() as tx:
        shown = operator_actions.show_task(tx, held.work.task_id)
    assert (shown.code, shown.bundle, shown.attempts[0].code) == ("one", FIRST, "one")


@pytest.mark.parametrize("code", ["two", None], ids=["other code", "an old worker"])
def test_a_success_of_other_code_is_refused_and_tried_again_at_no_cost(
    state: State, shop: Topology, state_clock: Clock, code: str | None
) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    answer = complete(state, held, code)
    assert (answer.status, all_of(state, schema.partitions)) == ("pending", [])
    row = row_of(state, held.work.task_id)
    assert (row["retry_count"], row["attempt"]) == (0, 1)
    assert "the task belongs to one" in row["last_error"]
    assert attempt_of(state, held)["outcome"] == "released"
    assert attempt_of(state, held)["code"] == code
    # Said again, because no answer came: the same answer.
    assert complete(state, held, code).repeated
    state_clock.advance(completion.OTHER_CODE_S + 1)
    again = claimed(state, held.work.task_id)
    assert complete(state, again, "one").status == "completed"


def test_an_attempt_whose_lease_ran_out_is_held_to_its_code_too(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    lapse(state, held)
    complete(state, held, "two")
    assert all_of(state, schema.partitions) == []


def test_a_failure_is_a_failure_whatever_code_it_was(state: State, shop: Topology) -> None:
    held = claimed(state, partition_task(state, live(shop, "shop.clean"), "p"))
    assert finish(state, held, Outcome.FATAL, error="broken").status == "failed"


def test_pinned_code_and_code_that_was_left_out_are_the_workers_own(state: State) -> None:
    bring(state, PINNED, None)
    held = claimed(state, partition_task(state, live(loaded(state), "shop.clean"), "p"))
    assert held.work.code is None
    assert complete(state, held, None).status == "completed"


def test_after_a_rollback_tasks_run_the_code_of_the_version_that_serves_again(
    state: State, shop: Topology
) -> None:
    bring(state, edited(SHOP, "clean", code="two"), SECOND)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "tests", force=True)
        cutover.rollback(tx, "shop", "tests")
    held = claimed(state, partition_task(state, live(loaded(state), "shop.clean"), "p"))
    assert held.work.code is not None
    assert (held.work.code.sha256, held.work.code.fingerprint) == (FIRST, "one")


def test_a_version_keeps_its_bundle_until_that_is_gone(state: State, shop: Topology) -> None:
    def bundle() -> str | None:
        return live(loaded(state), "shop.clean").bundle

    assert bring(state, SHOP, SECOND).changed is False
    assert bundle() == FIRST
    assert bring(state, SHOP, SECOND, gone=[FIRST]).changed is False
    assert bundle() == SECOND


def test_a_version_of_an_older_qo_gets_its_bundle_with_the_next_deploy_of_the_same_file(state: State) -> None:
    uploaded(state, FIRST)
    bring(state, SHOP, None)
    assert live(loaded(state), "shop.clean").bundle is None
    assert bring(state, SHOP, FIRST).changed is False
    assert live(loaded(state), "shop.clean").bundle == FIRST


@pytest.mark.parametrize(
    ("wanted", "bundle", "problem"),
    [
        (SHOP, DeployBundle(sha256="d" * 64, jobs=["clean"]), "was not uploaded"),
        (SHOP, DeployBundle(sha256="e" * 64, jobs=["clean"]), "is a function"),
        (SHOP, DeployBundle(sha256=FIRST, jobs=["missing"]), "does not have"),
        (edited(SHOP, "clean", code=None), DeployBundle(sha256=FIRST, jobs=["clean"]), "set its 'code'"),
    ],
)
def test_a_bundle_that_cannot_be_run_is_refused_when_it_is_deployed(
    state: State, wanted: Dag, bundle: DeployBundle, problem: str
) -> None:
    uploaded(state, FIRST)
    uploaded(state, "e" * 64, runtime="python")
    with pytest.raises(UsageError, match=problem), state.write() as tx:
        deploy.deploy(tx, wanted, "", "tests", DEFAULT, bundle)
    assert all_of(state, schema.dag_versions) == []


def test_a_source_that_runs_other_code_commits_no_segment(state: State) -> None:
    ticks = dag(
        "ticks",
        source("ticks", kind="always_on", runtime="python", operator="ops:ticks", code="one"),
        job("follow", reads="ticks", execution_strategy="PerUpdate"),
    )
    uploaded(state, FIRST)
    with state.write() as tx:
        deploy.deploy(tx, ticks, "", "tests", DEFAULT, DeployBundle(sha256=FIRST, jobs=["ticks"]))
    held = claimed(state, manual_task(state, live(loaded(state), "ticks.ticks"), "run"))
    with pytest.raises(LeaseLost, match="belongs to the code one"), state.write() as tx:
        segments.commit(tx, CommitRequest(**fence(held), outputs=[output(held, cursor=1)], code="two"))
    assert all_of(state, schema.commits) == []
    assert tasks_of(state, live(loaded(state), "ticks.ticks"))[0]["status"] == "running"
