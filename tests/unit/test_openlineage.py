"""Runs in the words of OpenLineage: what the specification asks of every event, and what ours tell."""

from __future__ import annotations

import asyncio
import json
import threading
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from qo.agent import lineage as runner_lineage
from qo.agent import openlineage
from qo.agent.lineage import WAITING_MAX, LineageReporter
from qo.api.contract.column_origins import LineageBody
from qo.api.contract.task import (
    CheckBody,
    ColumnBody,
    CompleteRequest,
    InputMode,
    Outcome,
    OutputBody,
    Work,
    WorkInput,
    WorkOutput,
)
from qo.errors import Unavailable
from qo.store.blocking_files import BlockingFiles

AT = datetime(2026, 3, 1, 9, tzinfo=UTC)
ROOT = "s3://lake/data"

# Of the specification 2-0-2, what it requires of an event and of each of its parts.
FACETS: dict[str, Any] = {
    "type": "object",
    "additionalProperties": {
        "type": "object",
        "required": ["_producer", "_schemaURL"],
        "properties": {
            "_producer": {"type": "string", "format": "uri"},
            "_schemaURL": {"pattern": "^https://.*#/"},
        },
    },
}
DATASET: dict[str, Any] = {
    "type": "object",
    "required": ["namespace", "name"],
    "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": FACETS},
}
RULES: dict[str, Any] = {
    "type": "object",
    "required": ["eventTime", "producer", "schemaURL", "run", "job"],
    "properties": {
        "eventType": {"enum": ["START", "RUNNING", "COMPLETE", "ABORT", "FAIL", "OTHER"]},
        "eventTime": {"type": "string", "pattern": r"^\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(\.\d+)?(Z|[+-]\d\d:\d\d)$"},
        "producer": {"type": "string", "pattern": "^[a-z]+:"},
        "schemaURL": {"const": "https://openlineage.io/spec/2-0-2/OpenLineage.json#/$defs/RunEvent"},
        "run": {"required": ["runId"], "properties": {"runId": {"type": "string"}, "facets": FACETS}},
        "job": {
            "required": ["namespace", "name"],
            "properties": {"namespace": {"type": "string"}, "name": {"type": "string"}, "facets": FACETS},
        },
        "inputs": {"type": "array", "items": DATASET},
        "outputs": {
            "type": "array",
            "items": {**DATASET, "properties": {**DATASET["properties"], "outputFacets": FACETS}},
        },
    },
}
COLUMNS = [ColumnBody(name="id", type="long"), ColumnBody(name="tags", type={"type": "array"})]


def work(**fields: Any) -> Work:
    read = WorkInput(
        position=0,
        name="orders",
        dataset="shop.orders",
        dataset_id="d0",
        generation_id="g0",
        mode=InputMode.PARTITION,
        revision=7,
        columns=COLUMNS,
    )
    made = [WorkOutput(index=i, dataset_id=f"d{i + 1}", generation_id=f"g{i + 1}", prefix="p/") for i in (0, 1)]
    values: dict[str, Any] = {
        "task_id": "t",
        "attempt": 2,
        "dag": "shop",
        "job": "clean",
        "version": 3,
        "runtime": "spark",
        "operator": "sql",
        "config": {"query": "SELECT 1"},
        "inputs": [read],
        "outputs": made,
        "update_strategy": "replace",
        "partition_key": "2026-03-01",
    }
    return Work(**(values | fields))


def completion(outcome: Outcome = Outcome.SUCCESS, **fields: Any) -> CompleteRequest:
    return CompleteRequest(task_id="t", attempt=2, lease_id="l", outcome=outcome, **fields)


def body(index: int = 0) -> OutputBody:
    return OutputBody(
        output=index, partition_key="2026-03-01", location="p/", files=["a", "b"], rows=3, bytes=9, columns=COLUMNS
    )


def ended(said: CompleteRequest | None, status: str = "completed", **fields: Any) -> dict[str, Any]:
    event = openlineage.end_event(work(**fields), said, status, ROOT, AT)
    jsonschema.Draft202012Validator(RULES).validate(event)
    return event


def test_an_attempt_is_one_run_from_its_beginning_to_its_end() -> None:
    start = openlineage.start_event(work(), ROOT, AT)
    jsonschema.Draft202012Validator(RULES).validate(start)
    end = ended(completion(outputs=[body()]))
    assert (start["eventType"], end["eventType"]) == ("START", "COMPLETE")
    assert start["run"]["runId"] == end["run"]["runId"]
    assert uuid.UUID(start["run"]["runId"]).version == 5
    assert openlineage.start_event(work(attempt=3), ROOT, AT)["run"]["runId"] != start["run"]["runId"]
    told = end["run"]["facets"]["qo_task"]
    assert (told["taskId"], told["attempt"], told["version"], told["partitionKey"]) == ("t", 2, 3, "2026-03-01")
    assert "cursor" not in told
    assert start["job"]["name"] == "shop.clean"
    assert start["job"]["facets"]["sql"]["query"] == "SELECT 1"


def test_what_was_read_is_named_as_who_made_it_names_it() -> None:
    [read] = openlineage.start_event(work(), ROOT, AT)["inputs"]
    made = ended(completion(outputs=[body(), body(1)]))["outputs"]
    assert (read["namespace"], read["name"]) == (ROOT, "shop.orders")
    assert [each["name"] for each in made] == ["shop.clean", "shop.clean[1]"]
    assert read["facets"]["version"]["datasetVersion"] == "g0@7"
    assert read["facets"]["qo_partition"]["partitionKey"] == "2026-03-01"


def test_an_end_tells_of_columns_sizes_and_checks() -> None:
    check = CheckBody(output=0, name="rows 1..", kind="rows", severity="fail", passed=True)
    other = CheckBody(output=1, name="sql a", kind="sql", severity="warn", passed=False)
    first, second = ended(completion(outputs=[body(), body(1)], checks=[check, other]))["outputs"]
    assert first["facets"]["schema"]["fields"] == [
        {"name": "id", "type": "long"},
        {"name": "tags", "type": '{"type":"array"}'},
    ]
    statistics = first["outputFacets"]["outputStatistics"]
    assert (statistics["rowCount"], statistics["size"], statistics["fileCount"]) == (3, 9, 2)
    assert first["facets"]["dataQualityAssertions"]["assertions"] == [
        {"assertion": "rows 1..", "success": True, "severity": "fail"}
    ]
    assert second["facets"]["dataQualityAssertions"]["assertions"][0]["success"] is False


def test_an_end_says_what_columns_are_made_from_also_where_the_commit_does_not() -> None:
    lineage = LineageBody.model_validate(
        {
            "columns": {"id": [{"input": "orders", "column": "nr", "how": "identity"}]},
            "rows": [{"input": "orders", "column": "paid", "how": "filter"}],
        }
    )
    (output,) = ended(completion(outputs=[body().with_full_lineage(lineage)]))["outputs"]
    facet = output["facets"]["columnLineage"]
    source = {"namespace": ROOT, "name": "shop.orders"}
    kinds = [{"type": "DIRECT", "subtype": "IDENTITY", "masking": False}]
    assert facet["fields"] == {"id": {"inputFields": [{**source, "field": "nr", "transformations": kinds}]}}
    assert [(each["field"], each["transformations"][0]["type"]) for each in facet["dataset"]] == [
        ("paid", "INDIRECT")
    ]
    (unknown,) = ended(completion(outputs=[body()]))["outputs"]
    assert "columnLineage" not in unknown["facets"]


@pytest.mark.parametrize(
    ("said", "status", "type_"),
    [
        (completion(Outcome.RETRYABLE, error="x" * 5_000), "pending", "FAIL"),
        (completion(Outcome.FATAL, error="no", rejected=[body()]), "failed", "FAIL"),
        (completion(Outcome.CANCELLED), "cancelled", "ABORT"),
        (completion(Outcome.RELEASED), "pending", "ABORT"),
        (completion(outputs=[body()]), "pending", "ABORT"),
        (completion(outputs=[body()]), "cancelled", "ABORT"),
        (None, "lost", "ABORT"),
    ],
)
def test_an_end_without_a_commit_is_never_complete(said: CompleteRequest | None, status: str, type_: str) -> None:
    event = ended(said, status)
    assert event["eventType"] == type_
    assert 0 < len(event["run"]["facets"]["errorMessage"]["message"]) <= openlineage.ERROR_CHARS_MAX
    assert [each["name"] for each in event["outputs"]] == (["shop.clean"] if said and said.rejected else [])


# How it is told


class Listening(ThreadingHTTPServer):
    heard: list[dict[str, Any]]
    status: int = 200


@contextmanager
def listening(status: int = 200) -> Iterator[Listening]:
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            server.heard.append(json.loads(self.rfile.read(int(self.headers["Content-Length"]))))
            self.send_response(server.status)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = Listening(("127.0.0.1", 0), Handler)
    server.heard, server.status = [], status
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield server
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def url(server: Listening) -> str:
    return f"http://127.0.0.1:{server.server_address[1]}/api/v1/lineage"


def files(root: Path) -> list[str]:
    return sorted(path.name for path in root.glob("_lineage/*/*.json"))


async def test_events_become_files_and_are_sent(tmp_path: Path) -> None:
    with listening() as server:
        async with LineageReporter(f"file:{tmp_path}", BlockingFiles(), url(server)) as lineage:
            lineage.report_start(work(), AT)
            lineage.report_end(work(), completion(outputs=[body()]), "completed", AT)
    assert files(tmp_path) == ["t-2-complete.json", "t-2-start.json"]
    assert [each["eventType"] for each in server.heard] == ["START", "COMPLETE"]
    [day] = (tmp_path / "_lineage").iterdir()
    assert day.name == server.heard[0]["eventTime"][:10]
    assert json.loads((day / "t-2-start.json").read_text()) == server.heard[0]


async def test_events_of_a_moment_are_told_together(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trips: list[int] = []

    async def to_thread(function: Any, waiting: Any) -> Any:
        trips.append(len(waiting))
        return function(waiting)

    monkeypatch.setattr(asyncio, "to_thread", to_thread)
    async with LineageReporter(f"file:{tmp_path}", BlockingFiles()) as lineage:
        for attempt in range(1, 6):
            lineage.report_start(work(attempt=attempt), AT)
    assert trips == [5]
    assert len(files(tmp_path)) == 5


async def test_an_event_that_cannot_be_made_does_not_keep_others_from_being_told(tmp_path: Path) -> None:
    broken: Any = None
    async with LineageReporter(f"file:{tmp_path}", BlockingFiles()) as lineage:
        lineage.report_start(broken, AT)
        lineage.report_start(work(), AT)
    assert files(tmp_path) == ["t-2-start.json"]


async def test_a_worker_that_is_cancelled_waits_for_a_silent_listener_no_longer_than_its_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(runner_lineage, "DRAIN_S", 0.1)
    asked = asyncio.Event()

    async def stay_silent(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        asked.set()
        await reader.read()  # Until the worker hangs up.
        writer.close()

    async def tell(address: str) -> None:
        async with LineageReporter(f"file:{tmp_path}", BlockingFiles(), address) as lineage:
            lineage.report_start(work(), AT)
            await asyncio.Event().wait()

    server = await asyncio.start_server(stay_silent, "127.0.0.1", 0)
    async with server:
        telling = asyncio.create_task(tell(f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/"))
        await asked.wait()
        telling.cancel()
        with pytest.raises(asyncio.CancelledError):
            await telling
    assert "lineage events were not reported" in caplog.text


async def test_who_refuses_or_is_not_there_holds_nothing_up(tmp_path: Path) -> None:
    with listening(500) as server:
        async with LineageReporter(f"file:{tmp_path}", BlockingFiles(), url(server)) as lineage:
            lineage.report_start(work(), AT)
            lineage.report_end(work(), None, "lost", AT)
        gone = url(server)
    assert len(server.heard) == 2
    async with LineageReporter(f"file:{tmp_path}", BlockingFiles(), gone) as lineage:
        lineage.report_start(work(attempt=9), AT)
    assert files(tmp_path) == ["t-2-abort.json", "t-2-start.json", "t-9-start.json"]


class Full:
    def read(self, uri: str) -> bytes:
        raise AssertionError

    def write(self, uri: str, body: bytes) -> None:
        raise Unavailable("the disk is full")


async def test_a_full_disk_fails_nobody_and_who_listens_still_hears() -> None:
    with listening() as server:
        async with LineageReporter("file:/nowhere", Full(), url(server)) as lineage:
            lineage.report_start(work(), AT)
    assert len(server.heard) == 1


async def test_more_than_can_be_told_is_dropped_not_kept(tmp_path: Path) -> None:
    lineage = LineageReporter(f"file:{tmp_path}", BlockingFiles())
    for attempt in range(1, WAITING_MAX + 10):
        lineage.report_start(work(attempt=attempt), AT)
    async with lineage:
        await asyncio.sleep(0)
    assert len(files(tmp_path)) == WAITING_MAX
