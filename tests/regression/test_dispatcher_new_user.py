"""What somebody met who followed the guides of pipelines for the first time."""

from __future__ import annotations

import asyncio
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import sqlalchemy as sa

from qo.agent.service import run_runtime
from qo.api.contract.task import Claimed, ClaimRequest, CompleteRequest, EventBody, Outcome, OutputBody
from qo.api.contract.why import Verdict
from qo.cli.pipelines import dag_view, deployment
from qo.config.dispatcher import DispatcherSettings
from qo.config.settings import Settings
from qo.dispatcher.attempts import claiming, completion
from qo.dispatcher.auth.local_tokens import presented_token
from qo.dispatcher.engine.limits import Limits
from qo.dispatcher.engine.loops import invalidation, reconciler, release, router, source_monitor
from qo.dispatcher.events import invalidations
from qo.dispatcher.sources import emission
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.dispatcher.versions import cutover, overview, pausing
from qo.dispatcher.views.why.answer import why
from qo.errors import ConfigError, Refused, Unauthenticated
from qo.pipeline.declare import Pipeline
from qo.pipeline.problems import DefinitionError
from qo.pipeline.writing import to_yaml
from qo.scheduler import cron
from support.cli.command import Qo
from support.dispatcher.listeners import served
from support.dispatcher.local_emitter import LocalEmitter
from support.dispatcher.pipeline_tasks import woken
from support.dispatcher.pipelines import dag, deployed, edited, job, live, loaded, source, staged
from support.dispatcher.states import Clock

DAY = "2024-01-01"
SHOP = dag("shop", source("orders"), job("clean", reads="orders", max_attempts=1), job("totals", reads="clean"))


def emit(state: State, name: str, key: str = "once", **fields: Any) -> None:
    with state.write() as tx:
        emission.emit(tx, *name.split("."), key=key, events=[EventBody(output=0, **fields)], by="ada")
    router.tick(state)


def pause(state: State, scope: str, reason: str = "") -> None:
    with state.write() as tx:
        pausing.pause(tx, scope, reason, "ada")


def tasks(state: State, name: str) -> list[sa.RowMapping]:
    table = schema.tasks
    with state.read() as tx:
        return list(tx.all(sa.select(table).where(table.c.dag + "." + table.c.job == name)))


def finish(state: State, task_id: str, **said: Any) -> None:
    with state.write() as tx:
        woken(tx, task_id)
        claimed = claiming.claim(tx, ClaimRequest(task_id=task_id, worker_id="w"), "file:/data")
        assert isinstance(claimed, Claimed)
        fence = {"task_id": task_id, "attempt": claimed.attempt, "lease_id": claimed.lease_id}
        completion.complete(tx, CompleteRequest(**{**fence, "outcome": Outcome.SUCCESS, **said}))


def lines(state: State, target: str) -> str:
    with state.read() as tx:
        return "\n".join(why(tx, target).lines)


# Pausing without a reason


@pytest.mark.parametrize("scope", ["shop", "shop.clean"])
def test_a_pause_without_a_reason_holds(state: State, scope: str) -> None:
    deployed(state, SHOP)
    pause(state, scope)
    emit(state, "shop.orders", partition_key=DAY)
    assert release.tick(state, Limits()) == 0
    assert "paused by ada\n" in lines(state, f"shop.clean@{DAY}")
    with state.read() as tx:
        shown = {each.name: each.paused for each in overview.show(tx, "shop").jobs}
    assert shown["clean"] == ""
    with state.write() as tx:
        pausing.resume(tx, scope, "ada")
    assert release.tick(state, Limits()) == 1


@pytest.mark.parametrize("scope", ["feed", "feed.live"])
def test_a_source_that_is_paused_without_a_reason_stops(state: State, scope: str) -> None:
    feed = dag("feed", source("live", "always_on"))
    edition = live(deployed(state, feed), "feed.live").edition_id
    pause(state, scope)
    source_monitor.tick(state)
    with state.read() as tx:
        row = tx.one(sa.select(schema.sources).where(schema.sources.c.edition_id == edition))
    assert row is not None
    assert (row["state"], row["last_error"]) == ("stopped", "paused")
    assert not tasks(state, "feed.live")


async def test_a_schedule_that_is_paused_without_a_reason_is_silent(state: State, state_clock: Clock) -> None:
    deployed(state, dag("d", source("tick", "cron", of={"schedule": "0 * * * *"})))
    emitter = LocalEmitter(state)
    await cron.look(emitter)
    pause(state, "d.tick")
    state_clock.advance(3600)
    assert (await cron.look(emitter)).fired == 0


# Taking over what has failed in part


def _failed(state: State) -> int:
    """The number of a version whose rebuild has failed for one day of two."""
    deployed(state, SHOP)
    emit(state, "shop.orders", "a", partition_key=DAY)
    emit(state, "shop.orders", "b", partition_key="2024-01-02")
    number = staged(state, edited(SHOP, "clean", config={"revision": 2})).version
    reconciler.tick(state)
    mine = live(loaded(state), "shop.clean", number).edition_id
    good, bad = (each["id"] for each in tasks(state, "shop.clean") if each["edition_id"] == mine)
    finish(state, good, outputs=[OutputBody(output=0)])
    finish(state, bad, outcome=Outcome.FATAL, error="no")
    router.tick(state)
    (total,) = (each["id"] for each in tasks(state, "shop.totals"))
    finish(state, total, outputs=[OutputBody(output=0)])
    return number


def test_a_rebuild_that_failed_in_part_takes_over_only_by_force(state: State) -> None:
    number = _failed(state)
    with state.write() as tx, pytest.raises(Refused, match=r"1 of its tasks failed.*--force"):
        cutover.mark_ready(tx, "shop", number, "ada")
    with state.write() as tx:
        answer = cutover.mark_ready(tx, "shop", number, "ada", force=True)
    assert (answer.status, answer.rebuilt, answer.failed) == ("ready", 2, 1)
    # Whoever called it ready did not decide that it takes over.
    with state.write() as tx, pytest.raises(Refused, match="1 of its tasks failed"):
        cutover.activate(tx, "shop", number, "ada")
    with state.write() as tx:
        answer = cutover.activate(tx, "shop", number, "ada", force=True)
    assert (answer.active, answer.rebuilt, answer.failed) == (number, 2, 1)


def test_what_is_not_rebuilt_yet_is_counted_when_it_is_called_ready(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    number = staged(state, edited(SHOP, "clean", config={"revision": 2})).version
    reconciler.tick(state)
    with state.write() as tx:
        answer = cutover.mark_ready(tx, "shop", number, "ada")
    assert (answer.status, answer.rebuilt, answer.left, answer.failed) == ("ready", 0, 1, 0)


# What qo why says


def test_why_tells_of_events_that_no_reader_could_take(state: State) -> None:
    deployed(state, dag("d", source("feed"), job("count", reads="feed")))
    emit(state, "d.feed", cursor=7)
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.BLOCKED
    assert "1 event of d.feed" in str(answer.blocked_by)
    assert "not routable" in str(answer.blocked_by)
    assert "PerUpdate" in str(answer.do)
    emit(state, "d.feed", "more", partition_key=DAY)
    (task,) = tasks(state, "d.count")
    finish(state, task["id"], outputs=[OutputBody(output=0)])
    emit(state, "d.feed", "most", cursor=8)
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.THERE
    assert "2 events of d.feed" in answer.lines[0]


def test_why_does_not_call_there_what_was_never_committed(state: State) -> None:
    deployed(state, dag("d", source("feed"), job("count", reads="feed")))
    emit(state, "d.feed", partition_key=DAY)
    (task,) = tasks(state, "d.count")
    finish(state, task["id"])
    with state.read() as tx:
        answer = why(tx, "d.count")
    assert answer.verdict is Verdict.UNKNOWN
    assert "nothing was committed" in str(answer.blocked_by)


def test_why_tells_of_a_correction_and_of_the_task_that_it_started(state: State) -> None:
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    (first,) = tasks(state, "shop.clean")
    finish(state, first["id"], outputs=[OutputBody(output=0)])
    with state.write() as tx:
        made = live(loaded(state), "shop.orders").outputs[0]
        invalidations.invalidate(
            tx, made.dataset_id, made.generation_id, partition_key=DAY, reason="correction", by="ada"
        )
    assert "correction" in lines(state, f"shop.orders@{DAY}")
    invalidation.tick(state)
    (again,) = (each for each in tasks(state, "shop.clean") if each["id"] != first["id"])
    said = lines(state, f"shop.clean@{DAY}")
    assert "is there: committed as revision 2, and is being made again" in said
    assert again["id"] in said
    finish(state, again["id"], outputs=[OutputBody(output=0, rows=1)])
    said = lines(state, f"shop.clean@{DAY}")
    assert "being made again" not in said
    assert f"shop.orders@{DAY} was invalidated at" in said
    assert "by ada: correction" in said
    assert first["id"] not in said
    assert f"task {again['id']} of shop.clean" in said


def test_why_shows_all_sides_of_a_join(state: State) -> None:
    both = dag("j", source("left"), source("right"), job("both", reads=["left", "right"], join="all"))
    deployed(state, both)
    emit(state, "j.left", partition_key=DAY)
    emit(state, "j.right", partition_key=DAY)
    (task,) = tasks(state, "j.both")
    finish(state, task["id"], outputs=[OutputBody(output=0)])
    said = lines(state, f"j.both@{DAY}")
    assert f"j.left@{DAY} was committed" in said
    assert f"j.right@{DAY} was committed" in said


# Tokens of another directory


def test_a_worker_of_a_dispatcher_elsewhere_makes_up_no_token_of_its_own(tmp_path: Path) -> None:
    elsewhere = DispatcherSettings(
        secrets_dir=str(tmp_path / "secrets"), internal_url="http://dispatcher.example:8471"
    )
    with pytest.raises(ConfigError, match=r"secrets/worker\.token.*QO_WORKER_TOKEN.*QO_SECRETS_DIR"):
        presented_token(elsewhere)
    assert not (tmp_path / "secrets").exists()
    here = replace(elsewhere, internal_url=None)
    made = presented_token(here)
    assert made.origin == str(tmp_path / "secrets/worker.token")
    assert presented_token(elsewhere) == made
    beside = DispatcherSettings(secrets_dir=str(tmp_path / "new"), internal_url="http://127.0.0.1:8471")
    assert Path(presented_token(beside).origin).exists()  # The dispatcher that starts later takes it for its own.
    assert presented_token(replace(here, worker_token="x" * 16)).origin == "QO_WORKER_TOKEN"


async def test_a_worker_that_is_refused_says_which_token_it_showed(state: State, tmp_path: Path) -> None:
    async with served(state, tmp_path / "one") as dispatcher:
        chosen = DispatcherSettings(
            secrets_dir=str(tmp_path / "two"),
            internal_listen=dispatcher.addresses.internal.removeprefix("http://"),
        )
        settings = Settings(store=f"local:{tmp_path / 'store'}", dispatcher=chosen)
        with pytest.raises(Unauthenticated, match=r"two/worker\.token.*QO_WORKER_TOKEN.*QO_SECRETS_DIR"):
            await run_runtime(settings, "python", stop_when_empty=True)


async def test_a_command_that_is_refused_says_which_token_it_showed(state: State, tmp_path: Path) -> None:
    async with served(state, tmp_path / "one") as dispatcher:
        environ = {"QO_DISPATCHER_URL": dispatcher.addresses.public}
        answer = await asyncio.to_thread(Qo(tmp_path, environ).here, "dag", "list")
        assert ".qo/secrets/admin.token" in answer.err
        assert "QO_TOKEN" in answer.err
        assert "QO_SECRETS_DIR" in answer.err
        answer = await asyncio.to_thread(Qo(tmp_path, {**environ, "QO_TOKEN": "qo_wrong"}).here, "dag", "list")
        assert "QO_TOKEN" in answer.err
        # The other listener is for workers.
        wrong = {"QO_DISPATCHER_URL": dispatcher.addresses.internal, "QO_TOKEN": "qo_wrong"}
        answer = await asyncio.to_thread(Qo(tmp_path, wrong).here, "dag", "list")
        assert "workers" in answer.err


# What programs send


async def test_a_body_without_its_content_type_is_told_which_header_is_missing(
    state: State, tmp_path: Path
) -> None:
    deployed(state, SHOP)
    body = b'{"idempotency_key": "k", "events": [{"output": 0, "partition_key": "a"}]}'
    async with served(state, tmp_path) as dispatcher:
        for headers in ({}, {"Content-Type": "application/x-www-form-urlencoded"}):
            answer = await dispatcher.post(
                "/v1/sources/shop/orders/events", "writer", content=body, headers=headers
            )
            assert answer.status_code == 422
            assert "Content-Type: application/json" in answer.text


async def test_a_webhook_whose_secret_is_unusable_is_our_fault(
    state: State, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    deployed(state, dag("d", source("in", "webhook", of={"webhook_path": "in", "secret": "shop"})))
    async with served(state, tmp_path) as dispatcher:
        secret = tmp_path / "secrets/webhook-shop"
        secret.write_text("0123456789abcdef\n")
        secret.chmod(0o644)
        answer = await dispatcher.post("/v1/webhooks/in", content=b"{}", headers={"X-Qo-Signature": "t=1,v1=00"})
        assert answer.status_code == 503
        assert "secret" in answer.text
        assert str(tmp_path) not in answer.text
        assert "chmod 600" in caplog.text


# Keys


def test_the_list_of_keys_says_which_one_signs(tmp_path: Path) -> None:
    qo = Qo(tmp_path)
    qo.ok("key", "rotate")
    first, second = qo.json("key", "list")
    assert (first["file"], first["now"], second["now"]) == ("key-000000000000.pem", "signs", "signs later")
    assert second["signs_from"] is not None
    assert "signs later" in qo.ok("key", "list")


# Nobody at home


def test_why_doubts_that_a_dispatcher_runs_where_nothing_is_routed_or_released(
    state: State, state_clock: Clock
) -> None:
    deployed(state, SHOP)
    with state.write() as tx:
        events = [EventBody(output=0, partition_key=DAY)]
        emission.emit(tx, "shop", "orders", key="k", events=events, by="ada")
    targets = (f"shop.clean@{DAY}", "shop.clean")
    assert not any("dispatcher runs" in lines(state, each) for each in targets)
    state_clock.advance(120)
    assert all("see whether a dispatcher runs: none has" in lines(state, each) for each in targets)
    router.tick(state)
    assert not any("dispatcher runs" in lines(state, each) for each in targets)
    state_clock.advance(120)
    assert all("see whether a dispatcher runs: none has" in lines(state, each) for each in targets)


PIPELINE = """
import qo
flow = qo.Pipeline("days")
days = flow.add("days", source={"kind": "manual"})
"""


class Enough(Exception):
    """What was waited for has been said."""


async def test_a_rebuild_that_nobody_works_on_is_said_to_wait_for_a_dispatcher(
    state: State, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(deployment, "LOOK_S", 0.01)
    monkeypatch.setattr(deployment, "SILENT_S", 0.05)
    deployed(state, SHOP)
    emit(state, "shop.orders", partition_key=DAY)
    source = to_yaml(edited(SHOP, "clean", config={"revision": 2}))
    said: list[str] = []

    def say(text: str) -> None:
        said.append(text)
        if "does a dispatcher run?" in text:
            raise Enough

    work = deployment.Deploying("shop", source, None, wait=True, activate=True, timeout_s=None)
    async with served(state, tmp_path) as dispatcher, dispatcher.user() as client:
        with pytest.raises(Enough):
            await work.run(client, say)
    assert said[:-1] == ["version 2 is being rebuilt: 0 tasks done, 1 left"]


# Slips at the command line


def test_a_python_file_is_read_as_python_and_not_as_yaml(tmp_path: Path) -> None:
    (tmp_path / "new_user_days.py").write_text(PIPELINE)
    qo = Qo(tmp_path)
    assert qo.ok("dag", "validate", "new_user_days.py")
    assert "new_user_days:flow" in qo.here("dag", "validate", "new_user_days:pipeline").err
    assert qo.ok("dag", "validate", "new_user_days:flow")


def test_what_is_missing_in_a_declaration_is_a_problem_with_a_line() -> None:
    pipeline = Pipeline("d")
    days = pipeline.add("days", source={"kind": "manual"})
    pipeline.job(inputs=[days], stategy="PerPartition")(test_a_python_file_is_read_as_python_and_not_as_yaml)
    with pytest.raises(DefinitionError, match=r"test_dispatcher_new_user\.py:\d+:.*stategy"):
        pipeline.document()


def test_the_id_of_an_event_is_recognised_where_a_task_is_wanted(tmp_path: Path) -> None:
    (tmp_path / "new_user_events.py").write_text(PIPELINE)
    qo = Qo(tmp_path)
    qo.ok("dag", "deploy", "new_user_events:flow")
    event = qo.ok("emit", "days.days", "-p", "x").strip()
    assert f"it is an event: see qo why {event}" in qo.here("run", "show", event).err


def test_a_pause_is_shown_once(tmp_path: Path, state: State) -> None:
    deployed(state, SHOP)
    pause(state, "shop.clean", "the move")
    emit(state, "shop.orders", partition_key=DAY)
    release.tick(state, Limits())
    with state.read() as tx:
        (clean,) = (each.model_dump() for each in overview.show(tx, "shop").jobs if each.name == "clean")
    assert dag_view._job(clean)[-1] == "paused: the move; runs the worker's own code"
