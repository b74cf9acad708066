"""The read side of the Iceberg REST catalogue: namespaces are pipelines, tables are the datasets that they publish.

What is served is what lies in the data root: the document of a table is read from its file, and its location is named,
so that a reader may as well go there itself. Writes are refused (``catalog_errors``).
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Sequence
from typing import Annotated, Any, Literal

from fastapi import Header, Path, Query, Request, Response

from qo.api.contract.catalog import (
    CatalogConfig,
    CatalogError,
    LoadedTable,
    NamespaceAnswer,
    NamespacesPage,
    StorageCredentials,
    TableEntries,
    TableEntry,
    TableIdentifier,
    TablesPage,
)
from qo.dispatcher.auth.table_credentials import table_role
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.http.catalog_errors import PREFIX, NoSuchNamespace, NoSuchTable
from qo.dispatcher.http.etags import has_copy, not_modified
from qo.dispatcher.http.routes import PAGE_MAX, After, CallerParam, ContextParam, Limit, Routes
from qo.dispatcher.http.table_access import access_config, lend_credentials
from qo.dispatcher.state.database import Tx
from qo.dispatcher.views import open_tables
from qo.dispatcher.views.open_tables import TableRecord
from qo.dispatcher.views.table_documents import keep_only_referenced
from qo.errors import NotFound, QoError, Unavailable

log = logging.getLogger(__name__)

_V1 = f"{PREFIX}/v1"
_NAMESPACES = f"{_V1}/namespaces"
_TABLES = f"{_NAMESPACES}/{{namespace}}/tables"
READS_MAX = 3  # Of a table whose document is replaced while it is read.
ENDPOINTS = (
    "GET /v1/{prefix}/namespaces",
    "GET /v1/{prefix}/namespaces/{namespace}",
    "HEAD /v1/{prefix}/namespaces/{namespace}",
    "GET /v1/{prefix}/namespaces/{namespace}/tables",
    "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}",
    "HEAD /v1/{prefix}/namespaces/{namespace}/tables/{table}",
)
CREDENTIALS_ENDPOINT = "GET /v1/{prefix}/namespaces/{namespace}/tables/{table}/credentials"

Namespace = Annotated[str, Path(max_length=410, description="A pipeline that publishes datasets.")]
Table = Annotated[str, Path(max_length=410, description="A published name.")]
PageToken = Annotated[
    str | None,
    Query(alias="pageToken", max_length=500, description="Where the page before ended; unset: all at once."),
]
PageSize = Annotated[int, Query(alias="pageSize", ge=1, description="How many at most; with pageToken.")]
Delegation = Annotated[
    str | None,
    Header(
        alias="X-Iceberg-Access-Delegation",
        max_length=200,
        description="vended-credentials: the answer holds credentials for the files of the table, if any are minted.",
    ),
]


def list_tables(context: ContextParam, after: After = None, limit: Limit = 100) -> TableEntries:
    """List the published datasets as tables, and those that are no tables, with the reason."""
    with context.state.read() as tx:
        records = {f"{each.dag}.{each.name}": each for each in open_tables.list_tables(tx)}
    page, rest = take_page(sorted(records), after or "", limit)
    return TableEntries(tables=[_entry(records[each]) for each in page], next=rest)


def _entry(record: TableRecord) -> TableEntry:
    problem = _problem(record)
    return TableEntry(
        namespace=record.dag,
        name=record.name,
        is_table=problem is None,
        problem=problem,
        revision=record.revision,
        metadata_location=record.metadata_location,
        updated_at=record.updated_at,
    )


def _problem(record: TableRecord) -> str | None:
    """Return why a published dataset is not a table, or not yet."""
    if record.problem is not None:
        return record.problem
    return "nothing is committed yet, or was a moment ago" if record.metadata_location is None else None


def show_catalog_config(context: ContextParam) -> CatalogConfig:
    """Show what a client of the catalogue starts with, and which calls there are."""
    lends = (CREDENTIALS_ENDPOINT,) if table_role(context.settings) is not None else ()
    return CatalogConfig(defaults=access_config(context.settings), endpoints=[*ENDPOINTS, *lends])


def list_namespaces(
    context: ContextParam,
    parent: Annotated[str | None, Query(max_length=410, description="None has any below it.")] = None,
    page_token: PageToken = None,
    page_size: PageSize = PAGE_MAX,
) -> NamespacesPage:
    """List the pipelines that publish datasets."""
    with context.state.read() as tx:
        names = sorted(open_tables.list_namespaces(tx))
    if parent is not None:
        _require_namespace(names, parent)
        names = []
    page, rest = take_page(names, page_token, page_size)
    return NamespacesPage(namespaces=[[each] for each in page], next_page_token=rest)


def show_namespace(context: ContextParam, namespace: Namespace) -> NamespaceAnswer:
    """Show a namespace."""
    with context.state.read() as tx:
        _require_namespace(open_tables.list_namespaces(tx), namespace)
    return NamespaceAnswer(namespace=[namespace], properties={"comment": f"the pipeline {namespace}"})


def find_namespace(context: ContextParam, namespace: Namespace) -> Response:
    """Find out whether there is such a namespace."""
    show_namespace(context, namespace)
    return Response(status_code=204)


def list_namespace_tables(
    context: ContextParam, namespace: Namespace, page_token: PageToken = None, page_size: PageSize = PAGE_MAX
) -> TablesPage:
    """List the tables of a pipeline. Published datasets that are no tables are not among them."""
    with context.state.read() as tx:
        _require_namespace(open_tables.list_namespaces(tx), namespace)
        records = open_tables.list_tables(tx)
    names = sorted(each.name for each in records if each.dag == namespace and _problem(each) is None)
    page, rest = take_page(names, page_token, page_size)
    identifiers = [TableIdentifier(namespace=[namespace], name=each) for each in page]
    return TablesPage(identifiers=identifiers, next_page_token=rest)


def take_page(names: Sequence[str], token: str | None, size: int) -> tuple[list[str], str | None]:
    """Return a page of names, which are in order, and the token of the next page.

    A client that sends no token knows nothing of pages, and gets all names. The token of the first page is empty.
    """
    if token is None:
        return list(names), None
    rest = [each for each in names if each > token]
    return rest[:size], rest[size - 1] if len(rest) > size else None


def load_table(
    context: ContextParam,
    caller: CallerParam,
    request: Request,
    namespace: Namespace,
    table: Table,
    delegation: Delegation = None,
    snapshots: Annotated[
        Literal["all", "refs"], Query(description="refs: only those that a branch or a tag names.")
    ] = "all",
) -> Response:
    """Load a table: its document, where that lies, and how to reach the files."""
    record, location, document = _read_document(context, namespace, table)
    config = access_config(context.settings)
    credentials = StorageCredentials(storage_credentials=[])
    if _asks_for_credentials(delegation) and table_role(context.settings) is not None:
        credentials = _lend(context, record, location, document, caller.name, required=False)
    etag = _etag(location, snapshots, credentials.model_dump_json())
    headers = {"ETag": etag}
    if has_copy(request, etag):
        return not_modified(headers)
    content = keep_only_referenced(document) if snapshots == "refs" else document
    # Older clients look for credentials in the config alone.
    for each in credentials.storage_credentials[:1]:
        config |= each.config
    answer = LoadedTable(
        metadata_location=location,
        metadata=content,
        config=config,
        storage_credentials=credentials.storage_credentials,
    )
    return Response(answer.model_dump_json(by_alias=True), media_type="application/json", headers=headers)


def find_table(context: ContextParam, namespace: Namespace, table: Table) -> Response:
    """Find out whether there is such a table."""
    with context.state.read() as tx:
        _require_table(tx, namespace, table)
    return Response(status_code=204)


def lend_table_credentials(
    context: ContextParam, caller: CallerParam, namespace: Namespace, table: Table
) -> StorageCredentials:
    """Lend credentials for the files of a table, as loading it does, before those that a reader has expire."""
    record, location, document = _read_document(context, namespace, table)
    return _lend(context, record, location, document, caller.name, required=True)


def _asks_for_credentials(delegation: str | None) -> bool:
    return "vended-credentials" in {each.strip().lower() for each in (delegation or "").split(",")}


def _lend(
    context: Context, record: TableRecord, location: str, document: dict[str, Any], reader: str, *, required: bool
) -> StorageCredentials:
    """Lend credentials for a table. If they are not ``required``, none are lent where it fails."""
    try:
        lent = lend_credentials(context, record, location, document)
    except QoError as error:
        if required:
            raise
        # Some clients ask for credentials though they have their own.
        log.warning("no credentials for the table %s.%s: %s", record.dag, record.name, error)
        return StorageCredentials(storage_credentials=[])
    log.info("lent %s credentials for the table %s.%s", reader, record.dag, record.name)
    return lent


def _etag(*parts: str) -> str:
    digest = hashlib.sha256("\x1f".join(parts).encode()).hexdigest()
    return f'"{digest[:32]}"'


def _read_document(context: Context, namespace: str, table: str) -> tuple[TableRecord, str, dict[str, Any]]:
    """Return a table, the location of its document, and the document.

    Raises NoSuchTable, with the reason if it is a dataset but no table.
    """
    for _ in range(READS_MAX):
        with context.state.read() as tx:
            record, location = _require_table(tx, namespace, table)
        try:
            return record, location, context.table_documents.read(location, context.settings)
        except NotFound:
            log.warning(
                "the document of %s.%s is not at %s", namespace, table, location
            )  # It may have been replaced.
    raise Unavailable(f"the document of {namespace}.{table} is missing: try again later")


def _require_table(tx: Tx, namespace: str, table: str) -> tuple[TableRecord, str]:
    record = open_tables.find_table(tx, namespace, table)
    if record is None:
        # Also if there is no such namespace: Spark asks for a table "snapshots" in "shop.orders", and looks at the
        # history of the table shop.orders only once it hears that there is no such table.
        name = f"{namespace}.{table}".replace("\x1f", ".")
        raise NoSuchTable(f"there is no table {name}: see qo catalog")
    if (problem := _problem(record)) is not None or record.metadata_location is None:
        raise NoSuchTable(f"{namespace}.{table} is a dataset, and no table: {problem}")
    return record, record.metadata_location


def _require_namespace(names: Sequence[str], name: str) -> None:
    if name not in names:
        raise NoSuchNamespace(f"there is no namespace {name!r}: it is a pipeline that publishes something")


def install(routes: Routes) -> None:
    errors: dict[str, Any] = {"error_body": CatalogError}
    page = {**errors, "response_model_exclude_none": True}
    loaded: dict[str, Any] = {
        "response_model": None,
        "responses": {
            200: {"model": LoadedTable, "description": "The table. Its ETag is good for If-None-Match."},
            304: {"description": "The caller has the table as it is."},
        },
    }
    nothing: dict[str, Any] = {"response_class": Response, "status_code": 204}
    routes.get("/v1/tables", list_tables)
    routes.get(f"{_V1}/config", show_catalog_config, **errors)
    routes.get(_NAMESPACES, list_namespaces, 404, **page)
    routes.get(f"{_NAMESPACES}/{{namespace}}", show_namespace, 404, **errors)
    routes.head(f"{_NAMESPACES}/{{namespace}}", find_namespace, 404, **errors, **nothing)
    routes.get(_TABLES, list_namespace_tables, 404, **page)
    routes.get(f"{_TABLES}/{{table}}", load_table, 404, **errors, **loaded)
    routes.head(f"{_TABLES}/{{table}}", find_table, 404, **errors, **nothing)
    routes.get(f"{_TABLES}/{{table}}/credentials", lend_table_credentials, 404, 409, **errors)
