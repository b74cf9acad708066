"""Mints short-lived credentials for a page in a bucket, with STS, limited to what the page does.

If a role is configured it is assumed (AssumeRole), otherwise the user is federated (GetFederationToken). Both apply the
policy of ``qo.ui.policy``; GetSessionToken takes no policy, so it is never used. Credentials are tested before they
are returned.
"""

from __future__ import annotations

import asyncio
from datetime import UTC, datetime
from typing import Any, cast

from qo.config.settings import Settings
from qo.core import keys
from qo.core.roles import partition_of
from qo.dispatcher import aws
from qo.errors import AccessDenied, NoSuchBucket, NotFound, Refused, Unavailable
from qo.store.s3 import Credentials, S3Store
from qo.ui.access_links import PageCredentials
from qo.ui.page_deploy import Place, place_of
from qo.ui.policy import page_policy

HOURS_MAX = 12
SESSION = "qo-dashboard"


def mint(settings: Settings, *, read_only: bool, hours: float) -> PageCredentials:
    """Get credentials from STS. Blocks. Raises UsageError if the store is no bucket, Refused if STS gives none."""
    place = place_of(settings)
    role = settings.ui.role_arn
    partition = role.split(":")[1] if role is not None and role.count(":") >= 5 else partition_of(place.region)
    policy = page_policy(place.bucket, place.prefix, operator=not read_only, partition=partition)
    endpoint = settings.dispatcher.sts_endpoint or settings.s3.endpoint
    client = aws.client("sts", place.region, endpoint)
    arguments: dict[str, Any] = {"DurationSeconds": int(hours * 3600), "Policy": policy}
    try:
        with aws.asking("STS"):
            if role is not None:
                answer = client.assume_role(RoleArn=role, RoleSessionName=SESSION, **arguments)
            else:
                answer = client.get_federation_token(Name=SESSION, **arguments)
    except (Refused, NotFound, Unavailable) as error:
        raise Refused(f"STS gives no short-lived credentials: {error}. {_advice(settings)}") from None
    issued = answer["Credentials"]
    minted = PageCredentials(
        access_key_id=issued["AccessKeyId"],
        secret_access_key=issued["SecretAccessKey"],
        session_token=issued["SessionToken"],
        expires_at=cast("datetime", issued["Expiration"]).astimezone(UTC),
        may_act=not read_only,
    )
    try:
        asyncio.run(_verify_access(minted, place, settings))
    except AccessDenied as error:
        raise Refused(f"the bucket refuses the credentials that STS gives: {error} {_advice(settings)}") from None
    return minted


async def _verify_access(minted: PageCredentials, place: Place, settings: Settings) -> None:
    """Read once with the credentials: some servers federate a user without its rights. Raises AccessDenied then."""
    credentials = Credentials(minted.access_key_id, minted.secret_access_key, minted.session_token)
    store = await S3Store.open(
        place.bucket,
        endpoint=settings.s3.endpoint,
        region=place.region,
        prefix=place.prefix,
        credentials=credentials,
    )
    try:
        await store.list(keys.TASKS, limit=1)
    except (NoSuchBucket, Unavailable):
        pass  # This says nothing about the credentials.
    finally:
        await store.close()


def _advice(settings: Settings) -> str:
    if settings.ui.role_arn is None:
        first = "Set QO_UI_ROLE_ARN to a role that these keys may assume and that may use the bucket"
    else:
        first = "Check that these keys may assume the role of QO_UI_ROLE_ARN for that long"
    return (
        f"{first}, and QO_STS_ENDPOINT if STS is not at the store's own endpoint; or run `qo ui`, which needs no "
        "STS: it serves the page on this machine"
    )
