"""Credentials that the catalogue lends, against a server that enforces session policies: one table, to read."""

from __future__ import annotations

import asyncio
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from pyiceberg.catalog.rest import RestCatalog

from qo.config.settings import S3Settings
from qo.dispatcher import aws
from qo.dispatcher.engine.loops import table_keeper
from qo.dispatcher.state.database import State, open_state
from support.catalog.client_venvs import spark_environment, talking
from support.catalog.iceberg_tables import write_table
from support.catalog.records import store_record
from support.catalog.snippets import command_at, run_snippet
from support.dispatcher.isolated_sites import isolated_site
from support.dispatcher.listeners import served
from support.dispatcher.pipelines import dag, deployed, job, source
from support.dispatcher.states import create_tables
from support.servers.s3 import ACCESS_KEY, REGION, SECRET_KEY, S3Server, client_of, is_refused
from support.servers.sts import ROLE, sts_server

__all__ = ["sts_server"]

pytestmark = pytest.mark.s3

SHOP = dag("shop", source("orders"), source("clicks"), publish={"orders": "orders", "clicks": "clicks"})
ROWS = pa.table({"id": [1, 2, 3], "amount": [1.5, 2.5, 3.5]})
TABLE = "/iceberg/v1/namespaces/shop/tables/orders"
ASKING = {"X-Iceberg-Access-Delegation": "vended-credentials"}


@pytest.fixture(autouse=True)
def _dispatchers_own_rights(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", ACCESS_KEY)
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", SECRET_KEY)
    aws.client.cache_clear()
    yield
    aws.client.cache_clear()


@pytest.fixture
def books(tmp_path: Path) -> Iterator[State]:
    opened = open_state(f"sqlite:{tmp_path / 'books.db'}")
    create_tables(opened)
    yield opened
    opened.close()


class Lent:
    """Credentials as a client gets them, in the form of boto3."""

    def __init__(self, config: dict[str, str]) -> None:
        self.access_key_id = config["s3.access-key-id"]
        self.secret_access_key = config["s3.secret-access-key"]
        self.session_token = config["s3.session-token"]


def table_in(server: S3Server, bucket: str) -> str:
    """A table in the place of its dataset."""
    access = {
        "s3.endpoint": server.endpoint,
        "s3.access-key-id": ACCESS_KEY,
        "s3.secret-access-key": SECRET_KEY,
        "s3.region": REGION,
    }
    return write_table(f"s3://{bucket}/root/orders-dataset", [ROWS], access)


def settings_for(server: S3Server, bucket: str, **more: Any) -> dict[str, Any]:
    return {"data": f"s3://{bucket}/root", "sts_endpoint": server.endpoint, "role_arn": ROLE, **more}


async def test_lent_credentials_read_their_table_and_nothing_else(
    books: State, sts_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = sts_server.make_bucket(versioned=False)
    deployed(books, SHOP)
    location = await asyncio.to_thread(table_in, sts_server, bucket)
    store_record(books, "shop", "orders", location)
    beside = ("root/clicks-dataset/a.parquet", "root/orders-dataset-2/a.parquet", "root/a", "a")
    for key in beside:
        sts_server.admin.put_object(Bucket=bucket, Key=key, Body=b"1")
    s3 = S3Settings(endpoint=sts_server.endpoint, region=REGION)
    async with served(books, tmp_path, s3=s3, **settings_for(sts_server, bucket)) as dispatcher:
        plain = (await dispatcher.get(TABLE, "reader")).json()
        assert plain["storage-credentials"] == []
        assert "s3.access-key-id" not in plain["config"]  # They go to whoever asks.
        assert plain["config"]["s3.endpoint"] == sts_server.endpoint
        loaded = (await dispatcher.get(TABLE, "reader", headers=ASKING)).json()
        (lent,) = loaded["storage-credentials"]
        assert lent["prefix"] == f"s3://{bucket}/root/orders-dataset/"
        assert loaded["config"].items() >= lent["config"].items()
        assert int(lent["config"]["s3.session-token-expires-at-ms"]) > 0
        refresh = lent["config"]["client.refresh-credentials-endpoint"]
        renewed = (await dispatcher.get(f"/iceberg/{refresh}", "reader")).json()
        assert renewed["storage-credentials"] == [lent]  # They are good for long enough: the same are lent again.

        client = client_of(Lent(lent["config"]), sts_server.endpoint, REGION)
        key = location.removeprefix(f"s3://{bucket}/")
        assert client.get_object(Bucket=bucket, Key=key)["Body"].read()
        for each in beside:
            assert is_refused(lambda each=each: client.get_object(Bucket=bucket, Key=each)), each
        assert is_refused(lambda: client.put_object(Bucket=bucket, Key=key, Body=b"{}"))
        assert is_refused(lambda: client.put_object(Bucket=bucket, Key="root/orders-dataset/data/b", Body=b"1"))
        assert is_refused(lambda: client.delete_object(Bucket=bucket, Key=key))
        assert is_refused(lambda: client.list_objects_v2(Bucket=bucket, Prefix="root/"))
        client.close()

        # A reader who has nothing but a token.
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        uri, token = f"{dispatcher.addresses.public}/iceberg", dispatcher.tokens["reader"]
        rows = await asyncio.to_thread(read_rows, uri, token)
        assert rows == ROWS.to_pylist()
        monkeypatch.setenv("QO_TOKEN", token)
        monkeypatch.setenv("POLARS_ICEBERG_PLANNER", "pyiceberg")
        qo = command_at(dispatcher, tmp_path)
        printed, _ = await asyncio.to_thread(run_snippet, qo, "polars")
        assert printed["frame"].collect().sort("id").to_dicts() == ROWS.to_pylist()
        printed, _ = await asyncio.to_thread(run_snippet, qo, "daft")
        assert sorted(printed["frame"].to_pydict()["id"]) == [1, 2, 3]


MADE = dag(
    "made",
    source("days"),
    job("written", reads="days", operator="table_operators:write"),
    publish={"written": "written"},
)


async def test_what_an_attempt_wrote_in_a_bucket_is_a_table_for_whoever_has_a_token(
    books: State, sts_server: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with isolated_site(books, tmp_path, sts_server, MADE) as site:
        for day in ("monday", "sunday"):
            assert (await site.run("written", day))["status"] == "completed"
        assert await table_keeper.tick(books, site.dispatcher.context.settings) == 1
        path = "/iceberg/v1/namespaces/made/tables/written"
        lent = (await site.dispatcher.get(path, "reader", headers=ASKING)).json()["storage-credentials"]
        assert [each["prefix"] for each in lent] == [f"s3://{site.bucket}/root/{site.dataset('written')}/"]
        # From here on there is nothing but the token: the dispatcher has what it serves in memory.
        monkeypatch.delenv("AWS_ACCESS_KEY_ID")
        monkeypatch.delenv("AWS_SECRET_ACCESS_KEY")
        uri, token = f"{site.dispatcher.addresses.public}/iceberg", site.dispatcher.tokens["reader"]
        rows = await asyncio.to_thread(read_rows, uri, token, "made.written")
        assert sorted((row["day"], row["length"]) for row in rows) == [("monday", 6), ("sunday", 6)]


def read_rows(uri: str, token: str, table: str = "shop.orders") -> list[dict[str, Any]]:
    catalog = RestCatalog("qo", uri=uri, token=token)
    return catalog.load_table(table).scan().to_arrow().to_pylist()


async def test_where_the_role_is_off_nothing_is_lent_and_tables_are_served_all_the_same(
    books: State, sts_server: S3Server, tmp_path: Path
) -> None:
    bucket = sts_server.make_bucket(versioned=False)
    deployed(books, SHOP)
    store_record(books, "shop", "orders", await asyncio.to_thread(table_in, sts_server, bucket))
    s3 = S3Settings(endpoint=sts_server.endpoint, region=REGION)
    off = settings_for(sts_server, bucket, catalog_role_arn="off")
    async with served(books, tmp_path / "off", s3=s3, **off) as dispatcher:
        loaded = await dispatcher.get(TABLE, "reader", headers=ASKING)
        assert loaded.json()["storage-credentials"] == []
        assert (await dispatcher.get(f"{TABLE}/credentials", "reader")).status_code == 409
    away = settings_for(sts_server, bucket, sts_endpoint="http://127.0.0.1:1")
    async with served(books, tmp_path / "away", s3=s3, **away) as dispatcher:
        loaded = await dispatcher.get(TABLE, "reader", headers=ASKING)
        assert loaded.json()["storage-credentials"] == []  # Perhaps the reader has its own.
        assert (await dispatcher.get(f"{TABLE}/credentials", "reader")).status_code == 503


@pytest.mark.long
@pytest.mark.timeout(900)
@pytest.mark.parametrize("program", ["duckdb", "spark"])
async def test_other_engines_read_a_table_with_lent_credentials_alone(
    books: State, sts_server: S3Server, tmp_path: Path, program: str
) -> None:
    bucket = sts_server.make_bucket(versioned=False)
    deployed(books, SHOP)
    store_record(books, "shop", "orders", await asyncio.to_thread(table_in, sts_server, bucket))
    s3 = S3Settings(endpoint=sts_server.endpoint, region=REGION)
    async with served(books, tmp_path, s3=s3, **settings_for(sts_server, bucket)) as dispatcher:
        qo = command_at(dispatcher, tmp_path)
        text = (await asyncio.to_thread(qo.json, "catalog", "connect", program))["text"]
        assert re.search("vended.credentials", text)
        variables = {"QO_TOKEN": dispatcher.tokens["reader"], **spark_environment(tmp_path / "conf")}
        async with talking(program, text, variables) as ask:
            assert await ask("SELECT id, amount FROM qo.shop.orders ORDER BY id") == [[1, 1.5], [2, 2.5], [3, 3.5]]
