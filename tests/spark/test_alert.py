"""Alerts: each row once by its id, however often it is told."""

from __future__ import annotations

import json
import logging
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from pyspark.sql import SparkSession

from qo.errors import UsageError
from qo.testing.spark import run_operator
from qo.worker.api.signals import Reject, Retry

pytestmark = pytest.mark.spark

FLIGHTS = [{"flight": 1, "delay": 900}, {"flight": 2, "delay": 0}, {"flight": 3, "delay": 1200}]
LATE = "SELECT flight, delay FROM flights WHERE delay > 600 ORDER BY flight"


class Hook:
    """A receiver on this machine. It answers with what is next in ``answers``, else with 204."""

    def __init__(self) -> None:
        self.got: list[tuple[str, dict[str, Any]]] = []
        self.answers: list[int] = []
        hook = self

        class Handler(BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
                hook.got.append((self.headers["Idempotency-Key"], body))
                self.send_response(hook.answers.pop(0) if hook.answers else 204)
                self.end_headers()

            def log_message(self, format: str, *args: Any) -> None:
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.url = f"http://127.0.0.1:{self.server.server_port}/hook"


@pytest.fixture
def hook() -> Iterator[Hook]:
    hook = Hook()
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    thread.join()
    hook.server.server_close()


def test_an_alert_has_the_same_id_however_often_it_is_sent(spark: SparkSession, hook: Hook) -> None:
    config = {"query": LATE, "channel": "webhook", "url": hook.url}
    hook.answers = [204, 503]  # The second is not taken the first time.
    with pytest.raises(Retry, match="503"):
        run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark)
    made = run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark)
    keys = [key for key, _ in hook.got]
    assert keys[:2] == keys[2:]
    assert len(set(keys)) == 2
    assert hook.got[0][1] == {
        "id": keys[0],
        "dag": "test",
        "job": "test",
        "partition_key": "test",
        "row": {"flight": 1, "delay": 900},
    }
    assert [(row.alert_id, row.flight) for row in made.collect()] == [(keys[0], 1), (keys[1], 3)]
    other = run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark, partition_key="other")
    assert {row.alert_id for row in other.collect()}.isdisjoint(keys)  # The same row of another day is news.


def test_a_receiver_that_refuses_is_not_asked_again(spark: SparkSession, hook: Hook) -> None:
    hook.answers = [403]
    config = {"query": LATE, "channel": "webhook", "url": hook.url}
    with pytest.raises(Reject, match="refused with 403"):
        run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark)


def test_a_secret_address_is_read_where_the_worker_keeps_it(
    spark: SparkSession, hook: Hook, tmp_path: Path
) -> None:
    (tmp_path / "secret-hook").write_text(hook.url + "\n")
    (tmp_path / "secret-hook").chmod(0o600)
    config = {"query": LATE, "channel": "webhook", "url_secret": "hook"}
    told = {"secrets": ["hook"], "secrets_dir": tmp_path, "outputs": 0}
    assert run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark, **told) is None
    assert len(hook.got) == 2


def test_files_and_logs_get_one_entry_each(
    spark: SparkSession, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    config = {"query": LATE, "channel": "file", "path": f"file:{tmp_path}/alerts"}
    for _ in range(2):
        run_operator("alert", {"flights": FLIGHTS}, config=config, spark=spark, outputs=0)
    written = sorted((tmp_path / "alerts").iterdir())
    assert len(written) == 2
    assert {json.loads(each.read_text())["row"]["flight"] for each in written} == {1, 3}
    with caplog.at_level(logging.WARNING, logger="qo.run"):
        run_operator("alert", {"flights": FLIGHTS}, config={"query": LATE}, spark=spark, outputs=0)
    assert ["alert {" in record.message for record in caplog.records] == [True, True]


def test_too_many_alerts_are_an_error(spark: SparkSession) -> None:
    with pytest.raises(UsageError, match="more than 1 row:"):
        run_operator("alert", {"flights": FLIGHTS}, config={"query": LATE, "limit": 1}, spark=spark)
