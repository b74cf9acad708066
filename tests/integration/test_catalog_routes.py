"""The catalogue as a client asks it, call by call."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from qo.dispatcher.http.catalog import take_page
from qo.dispatcher.state.database import State
from support.catalog.records import SNAPSHOTS, document, store_record, write_document
from support.dispatcher.listeners import Served, served
from support.dispatcher.pipelines import dag, deployed, source

SHOP = dag(
    "shop",
    source("orders"),
    source("clicks"),
    source("later"),
    publish={"orders": "orders", "clicks": "clicks", "later": "later"},
)
STORE = dag("store", source("stock"), publish={"stock": "stock"})
TABLE = "/iceberg/v1/namespaces/shop/tables/orders"


@pytest.fixture
async def catalog(state: State, tmp_path: Path) -> AsyncIterator[Served]:
    """Of shop, orders is a table; clicks is none, and later none yet. Of store, stock is one."""
    deployed(state, SHOP)
    deployed(state, STORE)
    store_record(state, "shop", "orders", write_document(tmp_path, "orders"))
    store_record(state, "shop", "clicks", problem="its files are JSON")
    store_record(state, "shop", "later")
    store_record(state, "store", "stock", write_document(tmp_path, "stock"))
    async with served(state, tmp_path) as dispatcher:
        yield dispatcher


async def read(catalog: Served, path: str, **how: Any) -> Any:
    answer = await catalog.get(path, "reader", **how)
    assert answer.status_code == 200, answer.text
    return answer.json()


async def problem(catalog: Served, method: str, path: str, who: str | None = "reader", **how: Any) -> Any:
    """The error, which has the form of the specification."""
    answer = await catalog.ask(method, path, who, **how)
    error = answer.json()["error"]
    assert set(error) == {"message", "type", "code"}
    assert error["code"] == answer.status_code
    return error


async def test_namespaces_are_pipelines_and_tables_what_they_publish(catalog: Served) -> None:
    config = await read(catalog, "/iceberg/v1/config?warehouse=anything")
    assert config["overrides"] == {}
    assert "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}" in config["endpoints"]
    assert not [each for each in config["endpoints"] if each.startswith(("POST", "DELETE"))]
    namespaces = await read(catalog, "/iceberg/v1/namespaces")
    assert namespaces == {"namespaces": [["shop"], ["store"]]}
    assert await read(catalog, "/iceberg/v1/namespaces?parent=shop") == {"namespaces": []}
    assert (await read(catalog, "/iceberg/v1/namespaces/shop"))["namespace"] == ["shop"]
    tables = await read(catalog, "/iceberg/v1/namespaces/shop/tables")
    assert tables == {"identifiers": [{"namespace": ["shop"], "name": "orders"}]}
    for path, status in (
        ("/iceberg/v1/namespaces/shop", 204),
        ("/iceberg/v1/namespaces/shelf", 404),
        (TABLE, 204),
        ("/iceberg/v1/namespaces/shop/tables/clicks", 404),
    ):
        answer = await catalog.ask("HEAD", path, "reader")
        assert (answer.status_code, answer.content) == (status, b""), path


async def test_lists_come_in_pages_if_a_client_asks_for_pages(catalog: Served) -> None:
    first = await read(catalog, "/iceberg/v1/namespaces?pageToken=&pageSize=1")
    assert first == {"namespaces": [["shop"]], "next-page-token": "shop"}
    second = await read(catalog, "/iceberg/v1/namespaces?pageToken=shop&pageSize=1")
    assert second == {"namespaces": [["store"]]}
    assert take_page(["a", "b", "c"], None, 1) == (["a", "b", "c"], None)  # It knows nothing of pages.
    assert take_page(["a", "b", "c"], "", 3) == (["a", "b", "c"], None)
    assert take_page(["a", "b", "c"], "a", 1) == (["b"], "b")


async def test_a_loaded_table_is_the_document_that_lies_at_its_location(catalog: Served, tmp_path: Path) -> None:
    loaded = await read(catalog, TABLE)
    assert loaded["metadata-location"] == str(tmp_path / "orders/metadata/v1.metadata.json")
    with open(loaded["metadata-location"]) as file:  # noqa: ASYNC230
        assert loaded["metadata"] == json.load(file) == document(str(tmp_path / "orders"))
    assert loaded["config"] == {}
    assert loaded["storage-credentials"] == []
    referenced = await read(catalog, f"{TABLE}?snapshots=refs")
    assert referenced["metadata"] == {**loaded["metadata"], "snapshots": SNAPSHOTS[1:]}


async def test_who_has_a_table_gets_304_until_it_changes(catalog: Served, state: State, tmp_path: Path) -> None:
    first = await catalog.get(TABLE, "reader")
    copy = {"If-None-Match": first.headers["etag"]}
    again = await catalog.get(TABLE, "reader", headers=copy)
    assert (again.status_code, again.content, again.headers["etag"]) == (304, b"", first.headers["etag"])
    fewer = await catalog.get(f"{TABLE}?snapshots=refs", "reader", headers=copy)
    assert fewer.status_code == 200  # It has another copy.
    store_record(state, "shop", "orders", write_document(tmp_path, "moved"), metadata_version=2)
    changed = await catalog.get(TABLE, "reader", headers=copy)
    assert changed.status_code == 200
    assert changed.json()["metadata-location"].endswith("/moved/metadata/v1.metadata.json")


async def test_a_dataset_that_is_no_table_says_why(catalog: Served) -> None:
    error = await problem(catalog, "GET", "/iceberg/v1/namespaces/shop/tables/clicks")
    assert error["type"] == "NoSuchTableException"
    assert error["message"] == "shop.clicks is a dataset, and no table: its files are JSON"
    error = await problem(catalog, "GET", "/iceberg/v1/namespaces/shop/tables/later")
    assert "nothing is committed yet" in error["message"]
    error = await problem(catalog, "GET", "/iceberg/v1/namespaces/shop/tables/stock")
    assert (error["type"], error["code"]) == ("NoSuchTableException", 404)
    error = await problem(catalog, "GET", "/iceberg/v1/namespaces/shop%1Forders/tables/snapshots")
    assert (error["type"], error["code"]) == ("NoSuchTableException", 404)  # Then Spark looks at the table's own.
    for path in ("shelf", "shelf/tables", "shop%1Fjob"):
        error = await problem(catalog, "GET", f"/iceberg/v1/namespaces/{path}")
        assert (error["type"], error["code"]) == ("NoSuchNamespaceException", 404), path
    error = await problem(catalog, "GET", "/iceberg/v1/namespaces/shop/views/orders")
    assert (error["type"], error["code"]) == ("NoSuchViewException", 404)
    listed = await read(catalog, "/v1/tables")
    shown = [(each["namespace"], each["name"], each["is_table"], each["problem"]) for each in listed["tables"]]
    assert shown == [
        ("shop", "clicks", False, "its files are JSON"),
        ("shop", "later", False, "nothing is committed yet, or was a moment ago"),
        ("shop", "orders", True, None),
        ("store", "stock", True, None),
    ]
    page = await read(catalog, "/v1/tables?limit=2")
    assert page["next"] == "shop.later"
    assert len((await read(catalog, "/v1/tables?after=shop.later"))["tables"]) == 2


@pytest.mark.parametrize(
    ("method", "path", "advice"),
    [
        ("POST", "/iceberg/v1/namespaces", "a namespace is a pipeline"),
        ("DELETE", "/iceberg/v1/namespaces/shop", "a namespace is a pipeline"),
        ("POST", "/iceberg/v1/namespaces/shop/properties", "a namespace is a pipeline"),
        ("POST", "/iceberg/v1/namespaces/shop/tables", "a table is a dataset that a pipeline publishes"),
        ("POST", "/iceberg/v1/namespaces/shop/register", "a table is a dataset that a pipeline publishes"),
        ("POST", TABLE, "rows change when a job of the pipeline commits"),
        ("DELETE", f"{TABLE}?purgeRequested=true", "remove its name under 'publish:'"),
        ("POST", "/iceberg/v1/tables/rename", "change its name under 'publish:'"),
        ("POST", "/iceberg/v1/transactions/commit", "rows change when a job of the pipeline commits"),
        ("POST", "/iceberg/v1/namespaces/shop/views", "there are no views"),
    ],
)
async def test_writes_are_refused_with_what_to_do_instead(
    catalog: Served, method: str, path: str, advice: str
) -> None:
    error = await problem(catalog, method, path, "admin", json={})
    assert (error["type"], error["code"]) == ("UnsupportedOperationException", 406)
    assert error["message"].startswith(f"this catalogue is read-only: {advice}")


async def test_a_reader_needs_a_token_and_oauth_gives_the_same_one_back(catalog: Served) -> None:
    error = await problem(catalog, "GET", TABLE, None)
    assert (error["type"], error["code"]) == ("NotAuthorizedException", 401)
    error = await problem(catalog, "GET", TABLE, "worker")
    assert (error["type"], error["code"]) == ("ForbiddenException", 403)
    error = await problem(catalog, "GET", f"{TABLE}?snapshots=some")
    assert (error["type"], error["code"]) == ("BadRequestException", 400)
    tokens, token = "/iceberg/v1/oauth/tokens", catalog.tokens["reader"]
    for form in (
        {"grant_type": "client_credentials", "client_id": "any", "client_secret": token, "scope": "catalog"},
        {"grant_type": "urn:ietf:params:oauth:grant-type:token-exchange", "subject_token": token},
    ):
        answer = await catalog.post(tokens, data=form)
        assert answer.status_code == 200, answer.text
        assert (answer.json()["access_token"], answer.json()["token_type"]) == (token, "bearer")
    answer = await catalog.post(tokens, data={"grant_type": "client_credentials"}, auth=("any", token))
    assert answer.json()["access_token"] == token
    for form, status, code in (
        ({"client_secret": "guess"}, 401, "invalid_client"),
        ({"client_id": "any"}, 401, "invalid_client"),
        ({"grant_type": "password", "client_secret": token}, 400, "invalid_request"),
        ({"client_secret": catalog.tokens["worker"]}, 403, "invalid_request"),
    ):
        answer = await catalog.post(tokens, data=form)
        assert (answer.status_code, answer.json()["error"]) == (status, code), answer.text
        assert answer.json()["error_description"]
        assert catalog.tokens["worker"] not in answer.text
    answer = await catalog.post(tokens, json={"client_secret": token})
    assert answer.status_code == 401


async def test_a_catalogue_that_lends_no_credentials_says_so_and_serves_tables_all_the_same(
    catalog: Served,
) -> None:
    asked = {"X-Iceberg-Access-Delegation": "vended-credentials,remote-signing"}
    assert (await read(catalog, TABLE, headers=asked))["storage-credentials"] == []
    config = await read(catalog, "/iceberg/v1/config")
    assert not [each for each in config["endpoints"] if each.endswith("/credentials")]
    error = await problem(catalog, "GET", f"{TABLE}/credentials")
    assert (error["type"], error["code"]) == ("UnsupportedOperationException", 409)
    assert "QO_CATALOG_ROLE_ARN" in error["message"]


async def test_a_table_whose_document_is_missing_is_asked_for_again(
    catalog: Served, state: State, tmp_path: Path
) -> None:
    store_record(state, "shop", "orders", tmp_path / "gone.json")
    error = await problem(catalog, "GET", TABLE)
    assert (error["type"], error["code"]) == ("ServiceUnavailableException", 503)
    (tmp_path / "broken.json").write_text("{")
    store_record(state, "shop", "orders", tmp_path / "broken.json")
    error = await problem(catalog, "GET", TABLE)
    assert (error["type"], error["code"]) == ("InternalServerError", 500)
