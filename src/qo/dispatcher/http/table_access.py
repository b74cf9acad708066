"""How readers reach the files of a table: the properties that Iceberg's clients know, and credentials on loan."""

from __future__ import annotations

from typing import Any

from qo.api.contract.catalog import StorageCredential, StorageCredentials
from qo.api.contract.credential import CredentialsAnswer
from qo.config.settings import Settings
from qo.core.pipeline.policy import outermost
from qo.core.pipeline.reach import root_prefix
from qo.dispatcher import aws
from qo.dispatcher.auth.table_credentials import require_table_role
from qo.dispatcher.http.app_context import Context
from qo.dispatcher.views import table_places
from qo.dispatcher.views.open_tables import TableRecord
from qo.dispatcher.views.table_documents import locations_of


def access_config(settings: Settings) -> dict[str, str]:
    """Return where the bucket is; empty if the data is in no bucket."""
    if not settings.dispatcher.data_root.startswith("s3://"):
        return {}
    region = settings.s3.region or aws.FALLBACK_REGION
    config = {"client.region": region, "s3.region": region}
    if settings.s3.endpoint is not None:
        config |= {"s3.endpoint": settings.s3.endpoint, "s3.path-style-access": "true"}
    return config


def lend_credentials(
    context: Context, record: TableRecord, location: str, document: dict[str, Any]
) -> StorageCredentials:
    """Return credentials for each prefix of a table. May call STS, after the transaction has ended.

    Raises Refused if none are minted, UsageError for more prefixes than they can be limited to, Unavailable when STS
    does not answer.
    """
    settings = context.settings
    require_table_role(settings)
    with context.state.read() as tx:
        now = tx.now
        reach = table_places.find_table_reach(
            tx, record, locations_of(location, document), settings.dispatcher.data_root
        )
    answer = context.table_credentials.lend(reach, record.dataset_id, settings, now)
    config = _credential_config(answer, record, settings)
    prefixes = outermost(root_prefix(each) for each in answer.read_prefixes)
    return StorageCredentials(
        storage_credentials=[StorageCredential(prefix=str(each), config=config) for each in prefixes]
    )


def _credential_config(answer: CredentialsAnswer, record: TableRecord, settings: Settings) -> dict[str, str]:
    refresh = f"v1/namespaces/{record.dag}/tables/{record.name}/credentials"
    return {
        **access_config(settings),
        "s3.access-key-id": answer.access_key_id,
        "s3.secret-access-key": answer.secret_access_key,
        "s3.session-token": answer.session_token,
        "s3.session-token-expires-at-ms": str(int(answer.expiration.timestamp() * 1000)),
        "client.refresh-credentials-endpoint": refresh,
    }
