"""Published datasets as tables: the read side of the Iceberg REST catalogue, and the list of tables that qo shows.

The bodies of the catalogue are named by its specification, with hyphens. The document of a table is not among them: it
is sent as it lies in its file.
"""

from __future__ import annotations

from datetime import datetime
from typing import Any

from pydantic import ConfigDict

from qo.api.contract.body import Answer


def _hyphenate(name: str) -> str:
    return name.replace("_", "-")


class CatalogAnswer(Answer):
    model_config = ConfigDict(alias_generator=_hyphenate, populate_by_name=True)


class CatalogConfig(CatalogAnswer):
    """Properties that clients start with, and what this catalogue can do."""

    defaults: dict[str, str] = {}
    overrides: dict[str, str] = {}
    endpoints: list[str]


class NamespacesPage(CatalogAnswer):
    namespaces: list[list[str]]
    next_page_token: str | None = None


class NamespaceAnswer(CatalogAnswer):
    namespace: list[str]
    properties: dict[str, str] = {}


class TableIdentifier(CatalogAnswer):
    namespace: list[str]
    name: str


class TablesPage(CatalogAnswer):
    identifiers: list[TableIdentifier]
    next_page_token: str | None = None


class StorageCredential(CatalogAnswer):
    """Credentials for everything below a prefix."""

    prefix: str
    config: dict[str, str]


class StorageCredentials(CatalogAnswer):
    storage_credentials: list[StorageCredential]


class LoadedTable(CatalogAnswer):
    metadata_location: str
    metadata: dict[str, Any]  # Of Apache Iceberg's table specification.
    config: dict[str, str] = {}
    storage_credentials: list[StorageCredential] = []


class CatalogProblem(Answer):
    message: str
    type: str  # The exception that Iceberg's own clients raise.
    code: int  # The status, once more.


class CatalogError(Answer):
    """The body of every error of the catalogue."""

    error: CatalogProblem


class AccessToken(Answer):
    access_token: str
    token_type: str = "bearer"
    issued_token_type: str = "urn:ietf:params:oauth:token-type:access_token"


class AccessTokenError(Answer):
    """The body of every error of an exchange of tokens."""

    error: str
    error_description: str


class TableEntry(Answer):
    """A published dataset as a table, or why it is none."""

    namespace: str
    name: str
    is_table: bool
    problem: str | None = None  # Why it is not a table, or not yet.
    revision: int | None = None  # That the table shows.
    metadata_location: str | None = None
    updated_at: datetime


class TableEntries(Answer):
    tables: list[TableEntry]
    next: str | None = None  # Pass as after.
