"""qo catalog: the published datasets as tables, and how to read them with other programs."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from qo.cli.invocation import Session, command, default_to, new_app, setting_option
from qo.cli.pipelines.catalog_snippets import (
    CATALOG,
    LANGUAGES,
    Bucket,
    CatalogClient,
    Connection,
    snippet,
)
from qo.cli.pipelines.dispatcher_client import ask, check_limit, pages
from qo.cli.pipelines.formatting import format_timestamp
from qo.errors import ConfigError, NotFound
from qo.up.lock import LOCK_PATH, find_address

if TYPE_CHECKING:
    from qo.api.public_client import UserClient
    from qo.config.settings import Settings

_HELP = "Show datasets as tables, and how other programs read them."
CONFIG = "/iceberg/v1/config"
TABLES_MAX = 10_000  # That are searched for one.

app = new_app()
catalog = new_app(help=_HELP, cls=default_to("list"))


@catalog.callback(help=f"{_HELP}\n\n`qo catalog` is short for `qo catalog list`.")
def _accept_options() -> None:
    pass


app.add_typer(catalog, name="catalog")


@command(catalog, "list")
def list_(
    session: Session,
    limit: Annotated[
        int, typer.Option("--limit", help="Show at most this many [1000].", show_default=False)
    ] = 1000,
) -> None:
    """List the published datasets as tables, and those that are no tables, with the reason."""
    check_limit(limit)
    tables, more = ask(session, lambda client: pages(client, "/v1/tables", "tables", limit))
    if session.json:
        session.output.document(tables)
        return
    headers = ("table", "version", "updated", "not a table, because")
    rows = [
        (
            f"{each['namespace']}.{each['name']}",
            str(each["revision"] or ""),
            format_timestamp(each["updated_at"]),
            each["problem"] or "",
        )
        for each in tables
    ]
    session.output.table(headers, rows)
    if not tables:
        session.output.note("no pipeline publishes a dataset: name one under 'publish:', and deploy")
    if more:
        session.output.note(f"stopped after {limit}; --limit shows more")


@command(catalog, "connect")
def connect(
    session: Session,
    client: Annotated[
        CatalogClient | None,
        typer.Argument(metavar="PROGRAM", help=f"One of {', '.join(CatalogClient)}.", show_default=False),
    ] = None,
    table: Annotated[
        str | None,
        typer.Option("--table", metavar="TABLE", help="Read this one [the first].", show_default=False),
    ] = None,
    url: Annotated[str | None, setting_option("dispatcher.url")] = None,
) -> None:
    """Print how to read a table with another program: a text to copy, with addresses and names filled in.

    Without a program, print the address of the catalogue, and where the token is.
    """
    settings = session.settings({"dispatcher.url": url})
    tables, config = ask(session, _fetch)
    connection = _connection(settings, config, _choose(tables, table))
    if client is None:
        _show(session, settings, connection)
    elif session.json:
        session.output.document(
            {**_facts(connection), "client": client.value, "language": LANGUAGES[client]}
            | {"text": snippet(client, connection)}
        )
    else:
        session.output.line(snippet(client, connection).rstrip("\n"))
    if settings.dispatcher.url is None and find_address(LOCK_PATH) is None and not session.json:
        session.output.note(f"this needs a dispatcher at {connection.uri.removesuffix('/iceberg')}: qo dispatcher")


async def _fetch(client: UserClient) -> tuple[list[Any], Mapping[str, Any]]:
    tables, _ = await pages(client, "/v1/tables", "tables", TABLES_MAX)
    return tables, await client.get(CONFIG)


def _choose(tables: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    """Return the table of that name, with or without its namespace, or the first. Raises NotFound."""
    if name is None:
        entry = next((each for each in tables if each["is_table"]), None)
        if entry is None:
            raise NotFound("there is no table yet: qo catalog shows the published datasets, and why they are none")
        return entry
    entry = next((each for each in tables if name in (each["name"], f"{each['namespace']}.{each['name']}")), None)
    if entry is None:
        raise NotFound(f"there is no table {name!r}: see qo catalog")
    if not entry["is_table"]:
        raise NotFound(f"{name} is a dataset, and no table: {entry['problem']}")
    return entry


def _connection(settings: Settings, config: Mapping[str, Any], table: Mapping[str, Any]) -> Connection:
    return Connection(
        uri=f"{_address(settings)}/iceberg",
        token_file=_token_file(settings),
        namespace=table["namespace"],
        table=table["name"],
        bucket=_bucket(config),
    )


def _address(settings: Settings) -> str:
    """Return the URL of the dispatcher, also of one that ``qo up`` runs here. Raises ConfigError if it is not known."""
    dispatcher = settings.dispatcher
    if dispatcher.url is not None:
        return dispatcher.url.rstrip("/")
    running = find_address(LOCK_PATH)
    if running is not None:
        return running
    host, _, port = dispatcher.listen.rpartition(":")
    if port == "0":
        raise ConfigError("dispatcher.listen is any free port: name the address of the dispatcher with --url")
    if host in ("0.0.0.0", "[::]"):
        raise ConfigError(
            f"dispatcher.listen is {dispatcher.listen}, all addresses: name the one that readers use with --url"
        )
    return f"http://{dispatcher.listen}"


def _token_file(settings: Settings) -> Path | None:
    """Return the file of the token that commands use here; None if it comes from QO_TOKEN, or has to."""
    from qo.api.public_client import local_admin_token

    dispatcher = settings.dispatcher
    path = Path(dispatcher.secrets_dir, "admin.token").absolute()
    if dispatcher.token is not None:
        return None
    if dispatcher.url is not None:
        return path if local_admin_token(dispatcher) is not None else None
    return path


def _bucket(config: Mapping[str, Any]) -> Bucket | None:
    defaults = config["defaults"]
    if "s3.region" not in defaults:
        return None
    lends = any(each.endswith("/credentials") for each in config["endpoints"])
    return Bucket(defaults["s3.region"], defaults.get("s3.endpoint"), lends)


def _facts(connection: Connection) -> dict[str, Any]:
    return {
        "uri": connection.uri,
        "catalog": CATALOG,
        "namespace": connection.namespace,
        "table": connection.table,
        "token_file": None if connection.token_file is None else str(connection.token_file),
        "token_variable": "QO_TOKEN" if connection.token_file is None else None,
        "lends_credentials": connection.lends_credentials,
    }


def _show(session: Session, settings: Settings, connection: Connection) -> None:
    if session.json:
        session.output.document(_facts(connection))
        return
    if connection.token_file is None:
        token = "in the variable QO_TOKEN"
    else:
        token = f"in {connection.token_file}, an admin's; for others: qo token create NAME --role reader"
    session.output.record(
        {
            "address": connection.uri,
            "kind": "Iceberg REST catalogue, read-only",
            "token": token,
            "files": _describe_files(settings, connection.bucket),
            "a table": connection.identifier,
            "programs": ", ".join(CatalogClient),
        }
    )


def _describe_files(settings: Settings, bucket: Bucket | None) -> str:
    if bucket is None:
        return "in a directory of the dispatcher's machine, which readers open themselves"
    lent = (
        "the catalogue lends credentials" if bucket.lends_credentials else "readers need credentials of their own"
    )
    return f"in a bucket; {lent}"
