"""Credentials of a bucket for one attempt: those of a role, restricted to what the attempt reads and writes.

What that is comes from the state: the pieces that the attempt has pinned, and the prefix that is its own.

The role is assumed with a session policy that allows those prefixes and nothing else, so the credentials can do what
both the role and the policy allow. They expire with the task's token. STS grants no less than 15 minutes: if the token
expires sooner, the policy denies everything from then on (by aws:CurrentTime; with an S3-compatible server that does
not know it, the credentials stay valid for 15 minutes). Credentials of an attempt that ends early stay valid until
then, for its own prefixes.
"""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import Any, cast

from qo.api.contract.credential import CredentialsAnswer
from qo.api.contract.task import Fence
from qo.config.settings import Settings
from qo.core.pipeline.policy import encode_policy
from qo.core.pipeline.reach import FittedReach, fit_reach
from qo.dispatcher import aws
from qo.dispatcher.attempts import pinned_places
from qo.dispatcher.auth.capability import Capability, bind, require_running
from qo.dispatcher.state.database import State, Tx
from qo.errors import ConfigError, Refused

DURATION_MIN_S, DURATION_MAX_S = 900, 3600  # STS grants no less; a role that assumes a role gets no more.
LEFT_MIN_S = 30.0  # Credentials that end sooner are not worth the call.


@dataclass(frozen=True, slots=True)
class AssumeRoleRequest:
    """The request to STS."""

    role_arn: str
    session_name: str
    policy: str
    duration_s: int
    until: datetime
    reach: FittedReach

    @classmethod
    def of(
        cls, role_arn: str, session_name: str, duration_s: int, until: datetime, reach: FittedReach
    ) -> AssumeRoleRequest:
        return cls(role_arn, session_name, encode_policy(reach.policy), duration_s, until, reach)


def mints(settings: Settings) -> bool:
    """Whether attempts get credentials of their own: there is a role, and the data is in a bucket."""
    return settings.dispatcher.role_arn is not None and settings.dispatcher.data_root.startswith("s3://")


def mint(state: State, fence: Fence, capability: Capability, settings: Settings) -> CredentialsAnswer:
    """Mint credentials for a running attempt. STS is called after the transaction has ended.

    Raises Forbidden for another attempt's fence, LeaseLost for an attempt that is over, Refused if none are
    minted, UsageError for more prefixes than a policy holds, Unavailable when STS does not answer.
    """
    with state.read() as tx:
        request = authorise(tx, fence, capability, settings)
    return assume(request, settings)


def authorise(tx: Tx, fence: Fence, capability: Capability, settings: Settings) -> AssumeRoleRequest:
    """Check that the attempt may have credentials, and return the request for them."""
    bind(capability, fence)
    require_running(tx, capability, leased=True)
    role_arn = settings.dispatcher.role_arn
    if role_arn is None:
        raise Refused("this dispatcher mints no credentials: set QO_CREDENTIALS_ROLE_ARN to a role it may assume")
    partition = partition_of_role(role_arn)
    places = pinned_places.find_reach(tx, capability.task_id, settings.dispatcher.data_root)
    if places.is_empty:
        raise Refused("the task has no data in a bucket, so there are no credentials to mint")
    left_s = (capability.expires_at - tx.now).total_seconds()
    if left_s < LEFT_MIN_S:
        raise Refused(
            "the task's token is about to expire: send a heartbeat to get a new one, then repeat the request"
        )
    fitted = fit_reach(places, until=capability.expires_at, partition=partition)
    name = f"qo-{capability.task_id[:36]}-{capability.attempt}"
    duration_s = int(min(max(left_s, DURATION_MIN_S), DURATION_MAX_S))
    return AssumeRoleRequest.of(role_arn, name, duration_s, capability.expires_at, fitted)


def assume(request: AssumeRoleRequest, settings: Settings) -> CredentialsAnswer:
    """Call STS. Blocks, so not to be called in a transaction."""
    region = settings.s3.region or aws.FALLBACK_REGION
    # Servers other than AWS have their STS beside the bucket.
    client = aws.client("sts", region, settings.dispatcher.sts_endpoint or settings.s3.endpoint)
    with aws.asking("STS"):
        answer: dict[str, Any] = client.assume_role(
            RoleArn=request.role_arn,
            RoleSessionName=request.session_name,
            DurationSeconds=request.duration_s,
            Policy=request.policy,
        )
    credentials = answer["Credentials"]
    return CredentialsAnswer(
        access_key_id=credentials["AccessKeyId"],
        secret_access_key=credentials["SecretAccessKey"],
        session_token=credentials["SessionToken"],
        expiration=min(cast("datetime", credentials["Expiration"]).astimezone(UTC), request.until),
        endpoint=settings.s3.endpoint,
        region=region,
        read_prefixes=[str(each) for each in request.reach.read],
        write_prefixes=[str(each) for each in request.reach.write],
    )


def partition_of_role(role_arn: str) -> str:
    """Return the AWS partition of a role. Raises ConfigError for another text than the ARN of a role."""
    parts = role_arn.split(":")
    if len(parts) < 5 or parts[0] != "arn" or parts[2] != "iam":
        raise ConfigError(
            f"{role_arn!r} is not the ARN of a role, such as arn:aws:iam::123456789012:role/qo-tasks"
        )
    return parts[1]
