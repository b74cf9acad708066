"""``qo up`` with a job that reads PostgreSQL, whose worker is killed in the middle: each row exactly once."""

from __future__ import annotations

import os
import re
import signal
from pathlib import Path

import psycopg
import pytest

from qo.core.pipeline.jdbc_url import DRIVERS
from support.cli.command import Qo
from support.cli.letters import processes, until
from support.servers.postgres import PostgresServer

pytestmark = [pytest.mark.spark, pytest.mark.long, pytest.mark.timeout(600)]

LIMIT_S = 240.0
PIPELINE = """\
name: shop
jobs:
  - name: ticks
    activation: source
    source: {kind: files, path: ticks, poll_seconds: 1}
    outputs: 1
  - name: rows
    activation: reactive
    runtime: spark
    operator: jdbc
    inputs: [{from: {job: ticks}}]
    execution_strategy: PerPartition
    outputs: 1
    update_strategy: append
    unique_key: [id, changed]
    secrets: [shop]
    config: {url_secret: shop, table: orders, cursor: changed, overlap: 60, split: {column: id, parts: 2}}
publish:
  orders: {from: {job: rows}}
"""
WAITING = "SELECT count(*) FROM pg_stat_activity WHERE wait_event_type = 'Lock' AND query LIKE '%orders%'"


@pytest.fixture
def database(postgres_server: PostgresServer) -> str:
    url = postgres_server.make_database()
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("CREATE TABLE orders (id bigint, item text, changed timestamptz, price numeric(9,2))")
    return url


@pytest.fixture
def qo(tmp_path: Path, database: str) -> Qo:
    jar = DRIVERS["postgresql"].coordinates
    (tmp_path / "ticks").mkdir()
    (tmp_path / "pipeline.yaml").write_text(PIPELINE)
    secrets = tmp_path / "secrets"
    secrets.mkdir(mode=0o700)
    parts = psycopg.conninfo.conninfo_to_dict(database)
    secret = secrets / "secret-shop"
    host, port, name = parts.get("host"), parts.get("port", 5432), parts["dbname"]
    user, password = parts.get("user", "postgres"), parts.get("password", "hunter2x")
    secret.write_text(f"jdbc:postgresql://{host}:{port}/{name}?user={user}&password={password}")
    secret.chmod(0o600)
    return Qo(tmp_path, {"QO_SPARK_PACKAGES": jar, "QO_SECRETS_DIR": str(secrets), "QO_SPARK_MASTER": "local[2]"})


def add(database: str, *rows: tuple[int, str, str]) -> None:
    with psycopg.connect(database, autocommit=True) as connection:
        for id_, item, at in rows:
            connection.execute("INSERT INTO orders VALUES (%s, %s, %s, 1.50)", [id_, item, f"2026-01-01 {at}+00"])


def workers(qo: Qo) -> list[int]:
    return [pid for pid, words in processes(qo).items() if any("worker:spark" in word for word in words)]


def test_a_worker_that_is_killed_while_it_reads_a_database_reads_each_row_once(qo: Qo, database: str) -> None:
    add(database, (1, "pen", "10:00:00.000001"), (2, "ink", "10:00:01"))
    (qo.cwd / "ticks/one").write_text("")
    first = qo("up", "--once", timeout_s=LIMIT_S)
    assert first.code == 0, first
    assert "orders: 2 rows" in first.out
    add(database, (3, "late", "09:59:30"), (4, "cap", "10:05:00"))
    (qo.cwd / "ticks/two").write_text("")
    with psycopg.connect(database) as holding:
        holding.execute("LOCK TABLE orders IN ACCESS EXCLUSIVE MODE")
        process = qo.start("up", "--once")
        try:
            with psycopg.connect(database, autocommit=True) as looking:
                until(lambda: looking.execute(WAITING).fetchone() != (0,), within_s=LIMIT_S)
            for pid in workers(qo):
                os.kill(pid, signal.SIGKILL)
        finally:
            holding.rollback()
    out, err = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0, (out, err)
    assert re.search(r"orders: 4 rows", out), (out, err)
    answer = qo("--json", "dataset", "show", "orders")
    assert "hunter2x" not in out + err + answer.out
