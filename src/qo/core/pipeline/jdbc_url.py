"""URLs of JDBC: the database that they lead to, its driver, and passwords in them, which belong into secrets."""

from __future__ import annotations

import re
from typing import NamedTuple

_SCHEME = re.compile(r"jdbc:([a-z0-9]+):\S*\Z", re.IGNORECASE)
_IN_QUERY = re.compile(r"[?&;](?:password|passwd|pwd|user(?:name)?_?password)=([^&;\s]*)", re.IGNORECASE)
_IN_HOST = re.compile(r"//[^/@\s:]+:([^/@\s]+)@")
_BEFORE_HOST = re.compile(r":[^/@\s:]+/([^/@\s]+)@")  # As Oracle has it.


class Driver(NamedTuple):
    class_name: str
    coordinates: str  # Of its jar at Maven Central.


DRIVERS = {
    "postgresql": Driver("org.postgresql.Driver", "org.postgresql:postgresql:42.7.8"),
    "mysql": Driver("com.mysql.cj.jdbc.Driver", "com.mysql:mysql-connector-j:9.4.0"),
    "mariadb": Driver("org.mariadb.jdbc.Driver", "org.mariadb.jdbc:mariadb-java-client:3.5.6"),
    "sqlserver": Driver(
        "com.microsoft.sqlserver.jdbc.SQLServerDriver", "com.microsoft.sqlserver:mssql-jdbc:13.2.0.jre11"
    ),
    "oracle": Driver("oracle.jdbc.OracleDriver", "com.oracle.database.jdbc:ojdbc11:23.9.0.25.07"),
}


def scheme_of(url: str) -> str | None:
    """Return the kind of database that a URL leads to; None if it is no URL of JDBC."""
    match = _SCHEME.match(url)
    return None if match is None else match[1].lower()


def driver_of(scheme: str) -> Driver | None:
    return DRIVERS.get(scheme)


def find_password(url: str) -> str | None:
    """Return the password in a URL; None if there is none."""
    for form in (_IN_QUERY, _IN_HOST, _BEFORE_HOST):
        if (match := form.search(url)) is not None and match[1]:
            return match[1]
    return None
