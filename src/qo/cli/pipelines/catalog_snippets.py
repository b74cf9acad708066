"""How to connect to the catalogue from each client: texts to copy, with everything filled in."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from textwrap import dedent

CATALOG = "qo"  # What clients call it; any other name does as well.
SPARK_RUNTIME = "org.apache.iceberg:iceberg-spark-runtime-4.1_2.13:1.12.0"
SPARK_AWS = "org.apache.iceberg:iceberg-aws-bundle:1.12.0"


class CatalogClient(StrEnum):
    SPARK = "spark"
    TRINO = "trino"
    DUCKDB = "duckdb"
    POLARS = "polars"
    PANDAS = "pandas"
    PYICEBERG = "pyiceberg"
    DAFT = "daft"
    SNOWFLAKE = "snowflake"


LANGUAGES: Mapping[CatalogClient, str] = {
    **dict.fromkeys(CatalogClient, "python"),
    CatalogClient.TRINO: "properties",
    CatalogClient.SNOWFLAKE: "sql",
}


@dataclass(frozen=True, slots=True)
class Bucket:
    """Where the data is, if it is in a bucket, and whose credentials read it."""

    region: str
    endpoint: str | None  # None: AWS.
    lends_credentials: bool  # Otherwise readers have their own.


@dataclass(frozen=True, slots=True)
class Connection:
    uri: str
    token_file: Path | None  # None: the token is in the environment, as QO_TOKEN.
    namespace: str
    table: str
    bucket: Bucket | None  # None: the files are in a directory, which the client must be able to read.

    @property
    def identifier(self) -> str:
        return f"{self.namespace}.{self.table}"

    @property
    def imports(self) -> str:
        return "import os" if self.token_file is None else "from pathlib import Path"

    @property
    def token(self) -> str:
        """The token as an expression of Python."""
        return (
            'os.environ["QO_TOKEN"]'
            if self.token_file is None
            else f'Path("{self.token_file}").read_text().strip()'
        )

    @property
    def lends_credentials(self) -> bool:
        return self.bucket is not None and self.bucket.lends_credentials


def snippet(client: CatalogClient, connection: Connection) -> str:
    """Return the text for a client: a program, a file of settings, or statements, as ``LANGUAGES`` says."""
    return _SNIPPETS[client](connection).strip() + "\n"


def _load_catalog(connection: Connection) -> str:
    return dedent(f"""\
        from pyiceberg.catalog import load_catalog

        catalog = load_catalog(
            "{CATALOG}",
            type="rest",
            uri="{connection.uri}",
            token={connection.token},
        )
        """)


def _pyiceberg(connection: Connection) -> str:
    return (
        f"# pip install 'pyiceberg[pyarrow]'\n{connection.imports}\n\n{_load_catalog(connection)}"
        f'table = catalog.load_table("{connection.identifier}")\n'
        "print(table.scan().to_arrow())\n"
    )


def _pandas(connection: Connection) -> str:
    return (
        f"# pip install 'pyiceberg[pyarrow,pandas]'\n{connection.imports}\n\n{_load_catalog(connection)}"
        f'frame = catalog.load_table("{connection.identifier}").scan().to_pandas()\n'
        "print(frame)\n"
    )


def _polars(connection: Connection) -> str:
    lines = [f'table = catalog.load_table("{connection.identifier}")']
    if connection.bucket is None:
        lines.append("frame = pl.scan_iceberg(table)")
    else:  # Polars reads the files itself, and takes over nothing of how PyIceberg would.
        lines += [
            'access = {key: value for key, value in table.io.properties.items() if key.startswith("s3.")}',
            "frame = pl.scan_iceberg(table, storage_options=access)",
        ]
    return (
        f"# pip install polars 'pyiceberg[pyarrow]'\n{connection.imports}\n\nimport polars as pl\n"
        + _load_catalog(connection)
        + "\n".join([*lines, "print(frame.collect())"])
    )


def _daft(connection: Connection) -> str:
    return (
        f"# pip install 'daft[iceberg]'\n{connection.imports}\n\nimport daft\n{_load_catalog(connection)}"
        f'frame = daft.read_iceberg(catalog.load_table("{connection.identifier}"))\n'
        "frame.show()\n"
    )


def _duckdb(connection: Connection) -> str:
    lines = [
        "# pip install 'duckdb>=1.5.5,<2'",
        connection.imports,
        "",
        "import duckdb",
        "",
        f"token = {connection.token}",
        "db = duckdb.connect()",
        'db.sql("INSTALL iceberg")',
        'db.sql("LOAD iceberg")',
        "db.sql(f\"CREATE SECRET qo_catalog (TYPE iceberg, TOKEN '{token}')\")",
    ]
    mode = "vended_credentials" if connection.lends_credentials else "none"
    if connection.bucket is not None and not connection.bucket.lends_credentials:
        lines.append(_duckdb_secret(connection.bucket))
    lines += [
        f'db.sql("""ATTACH \'{CATALOG}\' AS {CATALOG} (',
        f"    TYPE iceberg, ENDPOINT '{connection.uri}', SECRET qo_catalog,",
        f"    ACCESS_DELEGATION_MODE '{mode}'",
        ')""")',
        f'print(db.sql("SELECT * FROM {CATALOG}.{connection.identifier}"))',
    ]
    return "\n".join(lines)


def _duckdb_secret(bucket: Bucket) -> str:
    """Return the statement that makes DuckDB use the AWS credentials of the environment."""
    options = [f"REGION '{bucket.region}'"]
    if bucket.endpoint is not None:
        scheme, _, host = bucket.endpoint.partition("://")
        options += [f"ENDPOINT '{host}'", "URL_STYLE 'path'", f"USE_SSL {str(scheme == 'https').lower()}"]
    return (
        "import os\n"
        'key, secret = os.environ["AWS_ACCESS_KEY_ID"], os.environ["AWS_SECRET_ACCESS_KEY"]\n'
        "db.sql(f\"CREATE SECRET qo_files (TYPE s3, KEY_ID '{key}', SECRET '{secret}', "
        f'{", ".join(options)})")'
    )


def _spark(connection: Connection) -> str:
    packages = SPARK_RUNTIME if connection.bucket is None else f"{SPARK_RUNTIME},{SPARK_AWS}"
    catalog = f"spark.sql.catalog.{CATALOG}"
    conf = {
        "spark.jars.packages": f'"{packages}"',
        catalog: '"org.apache.iceberg.spark.SparkCatalog"',
        f"{catalog}.type": '"rest"',
        f"{catalog}.uri": f'"{connection.uri}"',
        f"{catalog}.token": connection.token,
    }
    if connection.lends_credentials:
        conf[f"{catalog}.header.X-Iceberg-Access-Delegation"] = '"vended-credentials"'
    lines = [f'    .config("{key}", {value})' for key, value in conf.items()]
    return "\n".join(
        [
            "# pip install 'pyspark>=4.1,<4.2': Iceberg has no runtime for later versions yet.",
            connection.imports,
            "",
            "from pyspark.sql import SparkSession",
            "",
            "spark = (",
            "    SparkSession.builder",
            *lines,
            "    .getOrCreate()",
            ")",
            f'spark.sql("SELECT * FROM {CATALOG}.{connection.identifier}").show()',
        ]
    )


def _trino(connection: Connection) -> str:
    lines = [
        f"# etc/catalog/{CATALOG}.properties; then SELECT * FROM {CATALOG}.{connection.identifier}",
        "# Trino reads the token from its environment: "
        + ("set QO_TOKEN there." if connection.token_file is None else f"QO_TOKEN=$(cat {connection.token_file})"),
        "connector.name=iceberg",
        "iceberg.catalog.type=rest",
        f"iceberg.rest-catalog.uri={connection.uri}",
        "iceberg.rest-catalog.security=OAUTH2",
        "iceberg.rest-catalog.oauth2.token=${ENV:QO_TOKEN}",
    ]
    if connection.bucket is None:
        return "\n".join([*lines, "fs.hadoop.enabled=true"])
    lines += ["fs.native-s3.enabled=true", f"s3.region={connection.bucket.region}"]
    if connection.bucket.endpoint is not None:
        lines += [f"s3.endpoint={connection.bucket.endpoint}", "s3.path-style-access=true"]
    if connection.bucket.lends_credentials:
        lines.append("iceberg.rest-catalog.vended-credentials-enabled=true")
    return "\n".join(lines)


def _snowflake(connection: Connection) -> str:
    mode = "VENDED_CREDENTIALS" if connection.lends_credentials else "EXTERNAL_VOLUME_CREDENTIALS"
    volume = "" if connection.lends_credentials else "\n  EXTERNAL_VOLUME = 'the volume that has the bucket'"
    token = "the token of QO_TOKEN" if connection.token_file is None else f"the content of {connection.token_file}"
    return dedent(f"""\
        -- Snowflake must reach this address, over https, and the bucket.
        CREATE CATALOG INTEGRATION {CATALOG}
          CATALOG_SOURCE = ICEBERG_REST
          TABLE_FORMAT = ICEBERG
          CATALOG_NAMESPACE = '{connection.namespace}'
          REST_CONFIG = (CATALOG_URI = '{connection.uri}' ACCESS_DELEGATION_MODE = {mode})
          REST_AUTHENTICATION = (TYPE = BEARER BEARER_TOKEN = '{token}')
          ENABLED = TRUE;
        CREATE ICEBERG TABLE {connection.table}
          CATALOG = '{CATALOG}'{volume}
          CATALOG_TABLE_NAME = '{connection.table}';
        SELECT * FROM {connection.table};
        """)


_SNIPPETS: Mapping[CatalogClient, Callable[[Connection], str]] = {
    CatalogClient.SPARK: _spark,
    CatalogClient.TRINO: _trino,
    CatalogClient.DUCKDB: _duckdb,
    CatalogClient.POLARS: _polars,
    CatalogClient.PANDAS: _pandas,
    CatalogClient.PYICEBERG: _pyiceberg,
    CatalogClient.DAFT: _daft,
    CatalogClient.SNOWFLAKE: _snowflake,
}
