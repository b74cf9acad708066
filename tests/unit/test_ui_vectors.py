"""The page decides in TypeScript what ``qo.core`` decides here. Vectors hold the two together.

``ui/vectors/*.json`` is written from the real code and read by the page's own tests. Write it anew after a change with
``WRITE_UI_VECTORS=1 pytest tests/unit/test_ui_vectors.py``.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import quote

import msgspec
import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from msgspec.structs import replace

from qo.core import board, control, keys, wire
from qo.core.board import AHEAD_S, NOTICES_MAX, Board, Notice, Watch
from qo.core.control import Desired, Order, Pause, WorkerOrder
from qo.core.lifecycle import Archive, Cancel, Command, Rejected, Replay, Unarchive, decide
from qo.core.schedule import Schedule, next_run
from qo.core.task import Flow, Status, Task
from qo.errors import UsageError

VECTORS = Path(__file__).parents[2] / "ui" / "vectors"
NOW = datetime(2026, 3, 1, 9, 0, 0, 123456, tzinfo=UTC)
ID = "a3b1c2d4-0000-4000-8000-00000000000f"
OTHER = "b3b1c2d4-0000-4000-8000-00000000000f"
TOKEN = "0123456789abcdef01234567"


def test_the_moves_of_the_page_are_those_of_the_lifecycle() -> None:
    _current("lifecycle.json", [_moved(task, command, now) for task, command, now in _cases()])


def test_the_page_tells_workers_of_cancellations_as_the_queue_does() -> None:
    _current("desired.json", [_noted(desired, NOW) for desired in _desireds()])


def test_the_page_changes_the_board_as_the_queue_does() -> None:
    _current("board.json", [_posted(there, task) for there in _boards() for task in _claimable_tasks()])


def test_the_page_signs_as_botocore_does(monkeypatch: pytest.MonkeyPatch) -> None:
    _current("signing.json", [_signed(case, monkeypatch) for case in _requests()])


def test_the_page_plans_schedules_as_the_core_does() -> None:
    _current("schedules.json", [_planned(*case) for case in _plans()])


def _current(name: str, made: list[Any]) -> None:
    lines = (json.dumps(each, ensure_ascii=False, sort_keys=True) for each in made)
    text = "[\n" + ",\n".join(lines) + "\n]\n"
    if os.environ.get("WRITE_UI_VECTORS"):
        (VECTORS / name).write_text(text, encoding="utf-8")
    assert (VECTORS / name).read_text(encoding="utf-8") == text, f"{name} is out of date: see the top of this file"


def _tasks() -> Iterator[Task]:
    base = Task(
        id=ID,
        task_type="send_émail",
        shard="a",
        token="before",
        available_at=NOW - timedelta(minutes=5),
        created_at=NOW - timedelta(hours=1),
        updated_at=NOW - timedelta(minutes=5, microseconds=1),
        # What a careless rewrite would change: a whole float, a number beyond 2^53, an escape, a nested text.
        input={
            "whole": 1.0,
            "large": 12345678901234567890,
            "text": 'a "quoted" \\ text\n',
            "deep": [{"x": [1, {}]}],
        },
        retry_count=2,
        reschedule_count=1,
        deliveries=3,
        attempt=4,
    )
    leased: dict[str, Any] = {
        "worker_id": "w1",
        "lease_id": "l1",
        "lease_expires_at": NOW + timedelta(seconds=30),
    }
    for status in Status:
        task = replace(base, status=status, **(leased if status is Status.RUNNING else {}))
        if task.ended:
            task = replace(task, completed_at=task.updated_at, worker_id="w1", last_error="ValueError: no")
        yield task
    yield replace(base, priority=7, shard="a3b1")
    # The store's clock was corrected backwards since.
    yield replace(base, updated_at=NOW + timedelta(seconds=5, milliseconds=500))
    yield replace(base, updated_at=NOW + timedelta(seconds=5), status=Status.FAILED, priority=3)
    yield replace(base, available_at=NOW + timedelta(hours=2), priority=9)
    yield replace(base, expires_at=NOW + timedelta(hours=2))
    yield replace(base, status=Status.RUNNING, cancel_requested=True, cancelled_by="ada", **leased)
    yield replace(base, status=Status.ARCHIVED, archived_from=Status.COMPLETED)
    yield replace(base, status=Status.FAILED, token=TOKEN)
    flow = Flow(depends_on=(OTHER,), waits_for=(OTHER,), dependents=(ID[::-1],))
    yield replace(base, flow=flow)
    yield replace(base, flow=replace(flow, broken_by=OTHER), status=Status.CANCELLED)
    grouped = Flow(group="g", turn=1)
    yield replace(base, flow=grouped, status=Status.FAILED)
    yield replace(base, flow=replace(grouped, waits_for=(f"{OTHER}#3",)), status=Status.CANCELLED)


def _cases() -> Iterator[tuple[Task, Command, datetime]]:
    whole = datetime(2026, 3, 1, 9, 0, 0, tzinfo=UTC)  # Written without a fraction.
    for n, task in enumerate(_tasks()):
        now = whole if n % 3 == 2 else NOW
        yield task, Replay(TOKEN), now
        yield task, Archive(TOKEN), now
        yield task, Unarchive(TOKEN), now
        yield task, Cancel(TOKEN, "ada", 'too "late"'), now
        yield task, Cancel(TOKEN), now


def _moved(task: Task, command: Command, now: datetime) -> dict[str, Any]:
    decision = decide(task, command, now=now)
    moved = decision if isinstance(decision, Task) else None
    return {
        "task": wire.encode(task).decode(),
        "verb": type(command).__name__.lower(),
        "token": command.token,
        "by": getattr(command, "by", None),
        "reason": getattr(command, "reason", None),
        "now": msgspec.to_builtins(now),
        "done": moved is task,
        "refused": decision.detail if isinstance(decision, Rejected) else None,
        "after": None if moved is None or moved is task else wire.encode(moved).decode(),
        "key": keys.task(task.shard, task.id),
        "hint_before": keys.index_key(task),
        "hint_after": None if moved is None else keys.index_key(moved),
    }


def _desireds() -> Iterator[Desired | None]:
    yield None
    yield Desired(queue=Pause(at=NOW, by="ada"), types={"a": Pause(at=NOW)}, token="t", updated_at=NOW)
    old, recent = NOW - timedelta(minutes=11), NOW - timedelta(minutes=1)
    yield Desired(cancels={"old": old, "recent": recent, ID: old})
    yield Desired(cancels={ID: NOW + timedelta(seconds=1)})
    yield Desired(workers={"w": WorkerOrder(kind=Order.DRAINED, at=NOW)}, cancels={"b": recent, "a": recent})


def _noted(desired: Desired | None, now: datetime) -> dict[str, Any]:
    after = control.prune(control.note_cancel(desired or Desired(), [ID], now=now), now)
    after = replace(after, token=TOKEN, updated_at=now)
    return {
        "before": None if desired is None else wire.encode(desired).decode(),
        "task_id": ID,
        "now": msgspec.to_builtins(now),
        "token": TOKEN,
        "after": wire.encode(after).decode(),
    }


def _boards() -> Iterator[Board]:
    yield Board()
    watch = Watch(by="w", until=NOW + timedelta(seconds=30))
    yield Board(token="t", sequence=5, floor=2, orders="o", workers=2, crew=["01234567"], watch=watch)
    notices = [_numbered(number) for number in range(1, NOTICES_MAX + 1)]
    yield Board(token="t", sequence=NOTICES_MAX, notices=notices)
    own = replace(_numbered(3), task=ID)
    yield Board(token="t", sequence=NOTICES_MAX, floor=1, notices=[own, *notices[1:]])


def _numbered(number: int) -> Notice:
    task_id = f"{number:08x}{OTHER[8:]}"
    return Notice(
        task=task_id, hint=keys.ready_key(replace(_claimable(), id=task_id)), due=NOW, at=NOW, number=number
    )


def _claimable_tasks() -> Iterator[Task]:
    yield _claimable()
    yield replace(_claimable(), available_at=NOW + timedelta(seconds=AHEAD_S))
    yield replace(_claimable(), available_at=NOW + timedelta(seconds=AHEAD_S, microseconds=1))


def _claimable() -> Task:
    return Task(id=ID, task_type="t", shard="a", token="x", available_at=NOW, created_at=NOW, updated_at=NOW)


def _posted(there: Board, task: Task) -> dict[str, Any]:
    now, etag = NOW + timedelta(milliseconds=20), '"e"'
    is_soon = task.available_at <= task.updated_at + timedelta(seconds=AHEAD_S)  # As NoticeBoard.post.
    posted = board.post(there, [board.notice_of(task, etag=etag)], now=now)
    ordered = board.show_orders(there, "o")
    return {
        "before": wire.encode(there).decode(),
        "task": wire.encode(task).decode(),
        "hint": keys.ready_key(task),
        "etag": etag,
        "now": msgspec.to_builtins(now),
        "token": TOKEN,
        "orders": "o",
        "posted": wire.encode(replace(posted, token=TOKEN)).decode() if is_soon else None,
        "ordered": None if ordered is there else wire.encode(replace(ordered, token=TOKEN)).decode(),
    }


def _requests() -> Iterator[dict[str, Any]]:
    listing = {"list-type": "2", "prefix": "ready/", "max-keys": "1000", "start-after": "ready/a/~ +ä"}
    yield {"method": "GET", "path": "/b", "query": listing, "headers": {}, "body": "", "token": None}
    yield {
        "method": "GET",
        "path": "/b",
        "query": {"versions": "", "prefix": "x"},
        "headers": {},
        "body": "",
        "token": "s",
    }
    put = {"method": "PUT", "query": {}, "body": '{"ä":1}', "token": None}
    yield put | {"path": "/b/team/tasks/a/" + ID + ".json", "headers": {"if-match": '"abc"'}}
    yield put | {"path": "/b/workers/a b'(c)*!~.json", "headers": {"if-none-match": "*"}}
    yield {
        "method": "DELETE",
        "path": f"/b/ready/a/0029538060/{ID}",
        "query": {},
        "headers": {},
        "body": "",
        "token": "t==",
    }


def _signed(case: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    frozen = datetime(2026, 3, 1, 9, 0, 0, tzinfo=UTC)
    monkeypatch.setattr(
        "botocore.auth.get_current_datetime", lambda remove_tzinfo=True: frozen.replace(tzinfo=None)
    )
    request = AWSRequest(
        method=case["method"],
        url="http://127.0.0.1:8333" + quote(case["path"], safe="/~"),
        params=case["query"],
        headers=dict(case["headers"]),
        data=case["body"].encode(),
    )
    S3SigV4Auth(Credentials("AKID", "secret", case["token"]), "s3", "eu-west-1").add_auth(request)
    return case | {"at": "2026-03-01T09:00:00Z", "authorization": request.headers["Authorization"]}


def _plans() -> Iterator[tuple[str, str, datetime]]:
    spring, autumn = datetime(2026, 3, 28, 22, 30, tzinfo=UTC), datetime(2026, 10, 24, 22, 30, tzinfo=UTC)
    for zone in ("UTC", "Europe/Berlin", "America/New_York", "Asia/Kolkata"):
        for cron in ("*/5 * * * *", "30 2 * * *", "0 0 * * 0", "15,45 9-17 * * 1-5", "0 0 29 2 *", "0 12 1 */3 *"):
            for now in (NOW, spring, autumn):
                yield cron, zone, now
    for cron in ("0 0 1 1 7", "0 0 13 * 5", "*/20 2 * * *", "@daily", "0 0 * jan mon", "59 23 31 12 *"):
        yield cron, "Europe/Berlin", NOW


def _planned(cron: str, zone: str, now: datetime) -> dict[str, Any]:
    schedule = Schedule(
        name="s",
        token="t",
        task_type="x",
        cron=cron,
        timezone=zone,
        created_at=now,
        updated_at=now,
        active_since=now - timedelta(days=1),
    )
    try:
        planned = next_run(schedule, now)
    except UsageError:
        return {"cron": cron, "timezone": zone, "now": msgspec.to_builtins(now), "next": None}
    return {"cron": cron, "timezone": zone, "now": msgspec.to_builtins(now), "next": msgspec.to_builtins(planned)}
