"""What ``qo catalog connect`` prints for each program, whatever the table, the token and the place of the files are."""

from __future__ import annotations

from pathlib import Path

import pytest

from qo.cli.pipelines.catalog_snippets import LANGUAGES, Bucket, CatalogClient, Connection, snippet

pytestmark = pytest.mark.fast

URI = "https://qo.example.org/iceberg"
TOKEN_FILE = Path("/srv/qo/.qo/secrets/admin.token")
BUCKETS = (
    None,
    Bucket("eu-central-1", None, lends_credentials=True),
    Bucket("us-east-1", "http://127.0.0.1:9000", lends_credentials=False),
)


@pytest.mark.parametrize("client", CatalogClient)
@pytest.mark.parametrize("token_file", [None, TOKEN_FILE])
@pytest.mark.parametrize("bucket", BUCKETS)
def test_every_text_is_complete_for_every_place_of_files_and_token(
    client: CatalogClient, token_file: Path | None, bucket: Bucket | None
) -> None:
    text = snippet(client, Connection(URI, token_file, "shop", "orders", bucket))
    assert URI in text
    assert "orders" in text
    assert "shop" in text
    assert (str(TOKEN_FILE) if token_file else "QO_TOKEN") in text
    if LANGUAGES[client] == "python":
        compile(text, client, "exec")


def test_a_reader_without_credentials_of_the_catalogue_is_told_where_the_bucket_is() -> None:
    connection = Connection(URI, None, "shop", "orders", BUCKETS[2])
    assert "ENDPOINT '127.0.0.1:9000'" in snippet(CatalogClient.DUCKDB, connection)
    assert "USE_SSL false" in snippet(CatalogClient.DUCKDB, connection)
    assert "s3.endpoint=http://127.0.0.1:9000" in snippet(CatalogClient.TRINO, connection)
    assert "iceberg-aws-bundle" in snippet(CatalogClient.SPARK, connection)
    assert "vended" not in snippet(CatalogClient.SPARK, connection)


def test_a_reader_whom_the_catalogue_lends_credentials_asks_for_them() -> None:
    connection = Connection(URI, None, "shop", "orders", BUCKETS[1])
    assert "ACCESS_DELEGATION_MODE 'vended_credentials'" in snippet(CatalogClient.DUCKDB, connection)
    assert '.header.X-Iceberg-Access-Delegation", "vended-credentials"' in snippet(CatalogClient.SPARK, connection)
    assert "vended-credentials-enabled=true" in snippet(CatalogClient.TRINO, connection)
    assert "VENDED_CREDENTIALS" in snippet(CatalogClient.SNOWFLAKE, connection)
