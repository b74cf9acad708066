"""What callers write is text: it is refused, or kept and looked for as it is. It never becomes SQL, a path, a line of
the log, or work without end."""

from __future__ import annotations

import hmac
import itertools
import json
import logging
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import sqlalchemy as sa

from qo.dispatcher.secrets.file_secrets import FileSecrets
from qo.dispatcher.secrets.webhook_secrets import read_secrets
from qo.dispatcher.state import schema
from qo.dispatcher.state.database import State
from qo.errors import UsageError
from qo.pipeline.rendering import to_yaml
from support.dispatcher.states import clock, fresh_url, state  # noqa: F401
from support.dispatcher.surfaces import SHOP, ZIP, Reply, Surface, surface

SQL = (
    "'; DROP TABLE tasks; --",
    "x') UNION SELECT hash, id, name FROM api_tokens --",
    "%' OR \"_\"='1",
    "%(name)s :name ? $1 {0}",
)
PATHS = ("../../etc/passwd", "..", "/etc/passwd", "file:///etc/passwd")
FORGED = "x\n2026-01-01 00:00:00 INFO    qo: task 1 was cancelled by admin"


@pytest.fixture(params=["sqlite", "postgres"])
def state_url(request: pytest.FixtureRequest, tmp_path: Path) -> str:
    """As everywhere, but not fast on SQLite either."""
    return fresh_url(request, tmp_path)


@pytest.fixture
def found(state: State, tmp_path: Path) -> Iterator[Surface]:  # noqa: F811
    with surface(state, tmp_path) as made:
        yield made


def counted(found: Surface) -> dict[str, int]:
    """The rows of every table."""
    with found.context.state.read() as tx:
        return {
            name: tx.value(sa.select(sa.func.count()).select_from(table))
            for name, table in schema.metadata.tables.items()
        }


def refused(reply: Reply, *statuses: int) -> None:
    assert reply.status in (statuses or (400, 403, 404, 409, 422)), reply.text
    assert set(reply.json()) == {"error", "code", "detail"}


READ = (
    "/v1/dags?after={}",
    "/v1/dags/{}",
    "/v1/dags/{}/versions",
    "/v1/dags/shop/versions?after={}",
    "/v1/dags/{}/rebuild",
    "/v1/datasets?dag={}",
    "/v1/datasets?after={}",
    "/v1/datasets/{}",
    "/v1/datasets/clean_orders/partitions?after={}",
    "/v1/datasets/clean_orders/partitions?generation_id={}",
    "/v1/datasets/clean_orders/events?partition_key={}",
    "/v1/datasets/clean_orders/lineage?partition_key={}",
    "/v1/why?target={}",
    "/v1/why?target=clean_orders@{}",
    "/v1/tasks?dag={}",
    "/v1/tasks?dag=shop&job={}",
    "/v1/tasks?status={}",
    "/v1/tasks?after={}",
    "/v1/tasks?after=2026-01-01T00:00:00%2B00:00/{}",
    "/v1/tasks/{}",
    "/v1/sources?after={}",
    "/v1/sources?kind={}",
    "/v1/tokens?after={}",
    "/v1/bundles/{}",
)


def test_what_is_asked_for_is_a_value(found: Surface) -> None:
    before = counted(found)
    for path, text in itertools.product(READ, (*SQL, *PATHS)):
        reply = found.ask("GET", path.format(quote(text, safe="")), "admin")
        assert reply.status in (200, 400, 404, 422), (path, reply.text)
        if reply.status == 200:
            # Pages go on from any text; filters and names fit nothing.
            told = reply.json()
            lists = [each for each in told.values() if isinstance(each, list)]
            assert "after=" in path or "why" in path or not any(lists), (path, told)
    assert counted(found) == before


@pytest.mark.parametrize("text", [SQL[0], SQL[-1]])
def test_what_is_written_is_a_value(found: Surface, text: str) -> None:
    before = counted(found)
    paused = found.ask("POST", "/v1/dags/shop/pause", "writer", send={"reason": text})
    assert paused.json()["reason"] == text
    token = found.ask("POST", "/v1/tokens", "admin", send={"name": text, "role": "reader"})
    assert token.json()["name"] == text
    event = {"partition_key": "p", "attributes": {text: text, "location": text, "files": [text]}}
    said = {"idempotency_key": text, "events": [event]}
    emitted = found.ask("POST", "/v1/sources/shop/orders/events", "writer", send=said)
    assert emitted.status == 200, emitted.text
    assert found.ask("POST", "/v1/sources/shop/orders/events", "writer", send=said).json()["repeated"]
    page = found.ask("GET", "/v1/datasets/shop.orders/events?limit=1", "reader").json()
    assert page["events"][0]["attributes"] == event["attributes"]
    declared = {"dataset": "clean_orders", "row_filter": {text: text}, "key": text}
    assert found.ask("POST", "/v1/invalidations", "writer", send=declared).status == 200
    refused(found.ask("POST", "/v1/invalidations", "writer", send={"dataset": text}), 404)
    refused(found.ask("POST", "/v1/invalidations", "writer", send={**declared, "partition_key": text}), 400, 404)
    said["events"] = [{"partition_key": text}]
    refused(found.ask("POST", "/v1/sources/shop/orders/events", "writer", send=said), 400, 409)
    after = counted(found)
    changed = {name: after[name] - before[name] for name in after if after[name] != before[name]}
    one_each = (
        "api_tokens",
        "pauses",
        "events",
        "emissions",
        "invalidations",
        "commits",
        "partitions",
        "attempts",
    )
    assert {name: changed.get(name) for name in one_each} == dict.fromkeys(one_each, 1)
    assert not [name for name, more in changed.items() if more < 0]


@pytest.mark.parametrize("text", [SQL[0], PATHS[0]])
def test_what_a_task_says_is_a_value(found: Surface, text: str) -> None:
    for body in (
        {"task_id": text[:36], "worker_id": text},
        {"task_id": found.names["task_id"], "worker_id": text, "lease_id": text[:36]},
    ):
        assert found.ask("POST", "/internal/task-claim", "worker", internal=True, send=body).status == 200
    assert found.ask("GET", f"/v1/tasks/{found.names['task_id']}", "reader").json()["worker_id"] == text
    beat = {**found.fence, "progress": {text: text}}
    assert found.ask("POST", "/v1/task/heartbeat", "task", internal=True, send=beat).status == 200
    for part in ({"task_id": text[:36]}, {"lease_id": text[:36]}):
        refused(found.ask("POST", "/v1/task/heartbeat", "task", internal=True, send={**beat, **part}), 403)
    query = f"/v1/task/inputs?position=0&after={quote(text, safe='')}"
    refused(found.ask("GET", query, "task", internal=True), 400)
    ended = {**found.fence, "outcome": "fatal_error", "error": text, "traceback": text, "result": {text: text}}
    assert found.ask("POST", "/v1/task/complete", "task", internal=True, send=ended).json()["status"] == "failed"
    shown = found.ask("GET", f"/v1/tasks/{found.claimed.work.task_id}", "reader").json()
    assert (shown["last_error"], shown["traceback"]) == (text, text)


@pytest.mark.parametrize("text", [SQL[0], *PATHS])
def test_names_in_paths_lead_nowhere_else(found: Surface, text: str) -> None:
    before, files = counted(found), _files(found)
    name = quote(text, safe="")
    source = to_yaml(SHOP).replace("name: shop", f"name: {json.dumps(text)}", 1)
    refused(found.ask("POST", f"/v1/dags/{name}/versions", "writer", send={"source": source}), 400, 404)
    for job in ("clean", "orders"):
        renamed = to_yaml(SHOP).replace(f"name: {job}", f"name: {json.dumps(text)}")
        refused(found.ask("POST", "/v1/dags/shop/versions", "writer", send={"source": renamed}), 400)
    for method, path, body in (
        ("POST", f"/v1/dags/{name}/pause", {}),
        ("POST", f"/v1/dags/shop.{name}/resume", None),
        ("PUT", f"/v1/dags/{name}/active", {"version": 1}),
        ("POST", f"/v1/tasks/{name}/cancel", {}),
        ("DELETE", f"/v1/tokens/{name}", None),
        ("POST", f"/v1/bundles/{name}/finalize", None),
        ("POST", f"/v1/webhooks/{name}", {}),
        ("POST", f"/v1/webhooks/hooks/orders/{name}", {}),
        ("POST", "/v1/bundles", {"sha256": text.ljust(64, "0")[:64], "bytes": 1}),
        ("POST", f"/v1/sources/shop/{name}/events", {"idempotency_key": "k", "events": [{"partition_key": "a"}]}),
    ):
        reply = found.ask(method, path, "admin", send=body)
        refused(reply, 400, 404, 405, 422)
    refused(found.ask("PUT", f"/v1/bundles/{name}", "writer", content=ZIP, kind="application/zip"), 404, 405, 422)
    memory = found.ask("PUT", f"/internal/sources/{name}/memory", "worker", internal=True, send={"memory": 1})
    refused(memory, 404, 405, 422)
    assert (counted(found), _files(found)) == (before, files)


def _files(found: Surface) -> set[Path]:
    root = Path(found.context.settings.dispatcher.secrets_dir).parent
    return {each for each in root.rglob("*") if not each.name.startswith("state.db")}


def _outside(prefix: str) -> list[dict[str, Any]]:
    inside = prefix.rstrip("/")
    elsewhere = inside.rpartition("/")[0]
    return [
        *({"location": text} for text in PATHS),
        {"location": f"{inside}/../2"},
        {"location": f"{inside}/.."},
        {"location": f"{elsewhere}/2/"},
        {"location": f"{inside}x"},
        {"location": elsewhere},
        {"location": f"s3://elsewhere/{inside.rpartition('data/')[2]}"},
        *(
            {"location": prefix, "files": [name]}
            for name in ("../x", "/etc/passwd", "a/../../b", "file:///etc/passwd")
        ),
        {"location": prefix, "files": ["ok.parquet", f"{elsewhere}/2/x"]},
        {"files": ["../x"]},
    ]


def test_outputs_lie_where_the_attempt_may_write_and_nowhere_else(found: Surface) -> None:
    before = counted(found)
    for wrong in _outside(found.claimed.work.outputs[0].prefix):
        body = {**found.fence, "outcome": "success", "outputs": [{"output": 0, **wrong}]}
        reply = found.ask("POST", "/v1/task/complete", "task", internal=True, send=body)
        assert reply.status == 400, (wrong, reply.text)
    assert counted(found) == before


def test_a_webhook_cannot_say_where_data_lies(found: Surface) -> None:
    event = {"partition_key": "a", "attributes": {"location": "file:///etc", "files": ["passwd"]}}
    body = json.dumps({"idempotency_key": "k", "events": [event]}).encode()
    signature = "sha256=" + hmac.new(b"a secret of the tests", body, "sha256").hexdigest()
    reply = found.ask(
        "POST", "/v1/webhooks/hooks/orders", content=body, headers={"X-Hub-Signature-256": signature}
    )
    assert reply.status == 200, reply.text
    listed = found.ask("GET", "/v1/datasets/shop.hook/partitions", "reader").json()["partitions"]
    assert [each["location"] for each in listed] == [None]


@pytest.mark.parametrize("name", ["../worker.token", "a/b", "..", "a\nb", ""])
def test_the_name_of_a_secret_is_no_path(tmp_path: Path, name: str) -> None:
    (tmp_path / "worker.token").write_text("a secret that is long enough")
    (tmp_path / "below").mkdir()
    with pytest.raises(UsageError):
        read_secrets(FileSecrets(tmp_path / "below"), name)


def test_what_callers_write_forges_no_line_of_the_log(
    found: Surface, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    caplog.set_level(logging.DEBUG, "qo")
    monkeypatch.setattr("qo.dispatcher.versions.overview.show", lambda *_: 1 / 0)
    name = quote(FORGED, safe="")
    monkeypatch.setattr("qo.dispatcher.versions.cutover.active", lambda *_: {})
    assert found.ask("GET", f"/v1/dags/{name}", "reader").status == 500
    refused(found.ask("POST", "/v1/tokens", "admin", send={"name": FORGED, "role": "reader"}), 422)
    refused(found.ask("POST", "/v1/tokens", "admin", send={"name": "x\x85y", "role": "reader"}), 422)
    claim = {"task_id": found.names["task_id"], "worker_id": FORGED}
    refused(found.ask("POST", "/internal/task-claim", "worker", internal=True, send=claim), 422)
    found.ask("GET", "/v1/dags", headers={"Authorization": f"Bearer {FORGED}"})
    found.ask("POST", f"/v1/webhooks/{name}", send={})
    lines = [record.getMessage() for record in caplog.records if record.name.startswith("qo")]
    assert any("incident" in line for line in lines)
    assert not [line for line in lines if "\n" in line or "\r" in line]


def test_what_callers_write_becomes_no_header(found: Surface) -> None:
    for path in ("/v1/dags/{}", "/v1/webhooks/{}", "/{}", "/v1/bundles/{}"):
        reply = found.ask("GET", path.format(quote("a\r\nSet-Cookie: a=b", safe="")), "reader")
        assert "set-cookie" not in reply.headers
        assert not [value for value in reply.headers.values() if "\n" in value or "\r" in value]


BOMB = "a: &a [x, x, x, x, x, x, x, x, x]\n" + "\n".join(
    f"{after}: &{after} [{', '.join([f'*{before}'] * 9)}]"
    for before, after in zip("abcdefgh", "bcdefghi", strict=True)
)


FILES = (
    BOMB,
    "[" * 100_000,
    "name: &a [*a]",
    "a: " * 50_000,
    "{" * 50_000 + "}" * 50_000,
    "name: !!python/object/apply:os.system ['true']",
    "name: !!binary aGk=",
    "<<: *nobody",
    "name: shop\n---\nname: shop",
    "name: " + "x" * 900_000,
    "jobs:\n" + "- {name: a}\n" * 20_000,
    "? [a, b]\n: c",
)


def test_a_file_cannot_make_work_without_end(found: Surface) -> None:
    before = counted(found)
    for source in FILES:
        bare = "/v1/dags/shop/versions?dry_run=true"
        refused(found.ask("POST", bare, "writer", content=source.encode(), kind="application/yaml"), 400)
        refused(found.ask("POST", "/v1/dags/shop/versions", "writer", send={"source": source}), 400)
    assert counted(found) == before
