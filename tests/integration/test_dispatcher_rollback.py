"""A rollback is remembered: the same file is not deployed again unless somebody says so."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.cli.pipelines.deployment import Deployment
from qo.core.pipeline.dag import Dag, to_json
from qo.core.pipeline.topology import VersionStatus
from qo.dispatcher.effects import external_effects
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.tasks import backlog, operator_actions, rows
from qo.dispatcher.tasks.creation import NewTask, create
from qo.dispatcher.versions import cutover, deploy
from qo.errors import Refused
from qo.pipeline.registry import DEFAULT
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, deployed, edited, job, live, source, staged

SHOP = dag("shop", source("orders"), job("clean", reads="orders"))
EDITED = edited(SHOP, "clean", config={"v": 2})
PATH = "/v1/dags/shop/versions"


def rolled_back(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx:
        cutover.activate(tx, "shop", 2, "ann", force=True)
        cutover.rollback(tx, "shop", "ann")


def text(of: Dag) -> str:
    return to_json(of).decode()


def test_a_version_that_was_rolled_back_is_deployed_only_on_request(state: State) -> None:
    rolled_back(state)
    said = r"version 2 of 'shop' was rolled back on \d{4}-\d\d-\d\d \d\d:\d\d UTC by ann: deploy it again with --again"
    with state.write() as tx, pytest.raises(Refused, match=said):
        deploy.deploy(tx, EDITED, "", "tests", DEFAULT)
    answer = staged(state, EDITED, again=True)
    assert (answer.version, answer.status, answer.created) == (2, "staged", False)
    assert not staged(state, EDITED).changed, "it is live again: nothing is said of the rollback any more"


def test_of_a_rollback_before_it_was_recorded_it_is_not_said_when(state: State) -> None:
    rolled_back(state)
    with state.write() as tx:
        tx.execute(sa.delete(schema.operator_state))
    with state.write() as tx, pytest.raises(Refused, match="version 2 of 'shop' was rolled back: deploy it again"):
        deploy.deploy(tx, EDITED, "", "tests", DEFAULT)


def test_a_version_that_was_abandoned_is_deployed_as_before(state: State) -> None:
    deployed(state, SHOP)
    staged(state, EDITED)
    with state.write() as tx:
        cutover.abandon(tx, "shop", 2, "tests")
    assert staged(state, EDITED).status == "staged"


def test_a_comparison_says_that_it_was_rolled_back_and_does_not_refuse(state: State) -> None:
    rolled_back(state)
    with state.read() as tx:
        found = deploy.diff(tx, EDITED, DEFAULT)
        other = deploy.diff(tx, edited(SHOP, "clean", config={"v": 3}), DEFAULT)
    assert (found.rolled_back, found.version, found.rolled_back_by) == (True, 2, "ann")
    assert (other.rolled_back, other.version) == (False, None)


async def test_the_api_refuses_it_unless_the_request_says_again(state: State, tmp_path: Path) -> None:
    rolled_back(state)
    async with served(state, tmp_path) as dispatcher:
        refused = await dispatcher.post(PATH, "writer", json={"source": text(EDITED)})
        assert (refused.status_code, refused.json()["code"]) == (409, "refused")
        compared = await dispatcher.post(f"{PATH}?dry_run=true", "writer", json={"source": text(EDITED)})
        assert compared.json()["rolled_back"] is True
        again = await dispatcher.post(PATH, "writer", json={"source": text(EDITED), "again": True})
        assert (again.status_code, again.json()["status"]) == (200, "staged")


async def test_a_bare_file_says_again_in_the_query(state: State, tmp_path: Path) -> None:
    rolled_back(state)
    bare: dict[str, Any] = {"content": text(EDITED), "headers": {"Content-Type": "application/yaml"}}
    async with served(state, tmp_path) as dispatcher:
        assert (await dispatcher.post(PATH, "writer", **bare)).status_code == 409
        again = await dispatcher.post(f"{PATH}?again=true", "writer", **bare)
        assert json.loads(again.content)["status"] == "staged"


@pytest.mark.parametrize(("answer", "deployed_again"), [(True, True), (False, False)])
async def test_who_sits_at_a_terminal_is_asked(
    state: State, tmp_path: Path, answer: bool, deployed_again: bool
) -> None:
    rolled_back(state)
    asked: list[str] = []

    async def confirm(question: str) -> bool:
        asked.append(question)
        return answer

    async with served(state, tmp_path) as dispatcher, dispatcher.user() as client:
        work = deploying(EDITED, confirm)
        if deployed_again:
            assert (await work.run(client, None))["deployed"]["status"] == "staged"
        else:
            with pytest.raises(Refused, match="was rolled back"):
                await work.run(client, None)
        await deploying(SHOP, confirm).run(client, None)
    assert len(asked) == 1, "nobody is asked about a version that was not rolled back"
    assert asked[0].startswith("version 2 was rolled back on ")
    assert asked[0].endswith(" UTC by ann: activate it again?")


def deploying(of: Dag, confirm: Callable[[str], Any]) -> Deployment:
    return Deployment("shop", text(of), None, wait=False, activate=False, timeout_s=None, confirm=confirm)


@pytest.mark.parametrize(
    "reason",
    [
        "version 9 of shop was rolled back",
        "version 1 of shop was abandoned",
        external_effects.REASON,
        "another edition is at work on its effects",
        "its effects were called off at another edition",
    ],
)
def test_what_a_person_has_cancelled_stays_so_whatever_the_reason(state: State, reason: str) -> None:
    clean = live(deployed(state, SHOP), "shop.clean")
    with state.write() as tx:
        made = create(tx, [NewTask(job=clean, dedupe_key=f"manual:{n}", partition_key=f"p{n}") for n in range(2)])
        ours, others = (each.task_id for each in made)
        operator_actions.cancel(tx, ours, "ann", reason)
        given_up = backlog.version_given_up("shop", 9, VersionStatus.ROLLED_BACK, "ann")
        backlog.cancel(tx, {clean.edition_id}, given_up, token="t")
    with state.write() as tx:
        assert backlog.revive(tx, {clean.edition_id}, token="again") == 1
        assert [rows.load(tx, each)["status"] for each in (ours, others)] == ["cancelled", "pending"]
