"""Credentials of a bucket for one attempt: a role's, cut down to the prefixes of the attempt.

The role is assumed with a session policy that allows those prefixes and nothing else, so the credentials can do
what both the role and the policy allow. They end with the task's token: STS grants no less than 15 minutes, so
where the token has less left, the policy denies everything after it. (By aws:CurrentTime, which not every
S3-compatible server knows; there, they stay good for those 15 minutes.) Credentials for an attempt that ends early
stay good until then, for its own prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from qo.api.contract.credential import CredentialsAnswer
from qo.api.contract.task import Fence
from qo.config.settings import Settings
from qo.core.pipeline.policy import Prefix, encode_policy, normalise, session_policy
from qo.dispatcher import aws
from qo.dispatcher.auth import scopes
from qo.dispatcher.auth.capability import Capability, Scope, bind, still_valid
from qo.dispatcher.state.database import State, Tx
from qo.errors import ConfigError, Refused

DURATION_MIN_S, DURATION_MAX_S = 900, 3600  # STS grants no less; a role that assumes a role gets no more.
LEFT_MIN_S = 30.0  # Credentials that end sooner are not worth the call.


@dataclass(frozen=True, slots=True)
class Order:
    """What STS is to be asked for."""

    role_arn: str
    session_name: str
    policy: str
    duration_s: int
    until: datetime
    scope: Scope


def mint(state: State, fence: Fence, capability: Capability, settings: Settings) -> CredentialsAnswer:
    """Credentials for a running attempt. The state is asked first and let go; then STS is.

    Raises Forbidden for another attempt's fence, LeaseLost for an attempt that is over, Refused where none are
    minted, UsageError for more prefixes than a policy holds, Unavailable when STS does not answer.
    """
    with state.read() as tx:
        order = authorise(tx, fence, capability, settings)
    return assume(order, settings)


def authorise(tx: Tx, fence: Fence, capability: Capability, settings: Settings) -> Order:
    """Whether the attempt may have credentials, and which."""
    bind(capability, fence)
    still_valid(tx, capability, leased=True)
    role_arn = settings.dispatcher.role_arn
    if role_arn is None:
        raise Refused("this dispatcher mints no credentials: set QO_CREDENTIALS_ROLE_ARN to a role it may assume")
    scope = scopes.resolve(tx, capability, settings.dispatcher.data_root).scope
    # Canonical or not, a token's prefixes are looked at again: this is the last place to refuse a wide one.
    read, write = _prefixes(scope.read_prefixes), _prefixes(scope.write_prefixes)
    if not read and not write:
        raise Refused("the task has no data in a bucket, so there are no credentials to mint")
    left_s = (capability.expires_at - tx.now).total_seconds()
    if left_s < LEFT_MIN_S:
        raise Refused("the task's token is about to end: send a heartbeat for a fresh one, then ask again")
    policy = session_policy(read, write, until=capability.expires_at, partition=_partition(role_arn))
    return Order(
        role_arn=role_arn,
        session_name=f"qo-{capability.task_id[:36]}-{capability.attempt}",
        policy=encode_policy(policy),
        duration_s=int(min(max(left_s, DURATION_MIN_S), DURATION_MAX_S)),
        until=capability.expires_at,
        scope=scope,
    )


def assume(order: Order, settings: Settings) -> CredentialsAnswer:
    """Ask STS. Blocks; in no transaction."""
    region = settings.s3.region or aws.FALLBACK_REGION
    client = aws.client("sts", region, settings.dispatcher.sts_endpoint)
    with aws.asking("STS"):
        answer: dict[str, Any] = client.assume_role(
            RoleArn=order.role_arn,
            RoleSessionName=order.session_name,
            DurationSeconds=order.duration_s,
            Policy=order.policy,
        )
    given = answer["Credentials"]
    return CredentialsAnswer(
        access_key_id=given["AccessKeyId"],
        secret_access_key=given["SecretAccessKey"],
        session_token=given["SessionToken"],
        expiration=min(cast("datetime", given["Expiration"]).astimezone(UTC), order.until),
        endpoint=settings.s3.endpoint,
        region=region,
        read_prefixes=list(order.scope.read_prefixes),
        write_prefixes=list(order.scope.write_prefixes),
    )


def _prefixes(texts: tuple[str, ...]) -> list[Prefix]:
    return [normalise(each) for each in texts]


def _partition(role_arn: str) -> str:
    parts = role_arn.split(":")
    if len(parts) < 5 or parts[0] != "arn" or parts[2] != "iam":
        raise ConfigError(
            f"{role_arn!r} is not the ARN of a role, such as arn:aws:iam::123456789012:role/qo-tasks"
        )
    return parts[1]
