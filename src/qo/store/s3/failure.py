"""Translate an S3 error reply into qo's error that says what to do about it."""

from __future__ import annotations

from qo.errors import (
    AccessDenied,
    ConcurrentWrite,
    NoSuchBucket,
    PreconditionFailed,
    StoreError,
    Unavailable,
)
from qo.store.s3.address import Address
from qo.store.s3.replies import Refusal

DENIED = {
    "AccessDenied": "These credentials may not do that: grant them {action}.",
    "AllAccessDisabled": "The bucket's owner has disabled all access.",
    "AccountProblem": "The account is not in order: ask its provider.",
    "ExpiredToken": "The session token has expired: sign in again.",
    "InvalidAccessKeyId": "The access key is unknown there: check AWS_ACCESS_KEY_ID, AWS_PROFILE, S3_ENDPOINT.",
    "InvalidToken": "The session token is not valid there: check AWS_SESSION_TOKEN.",
    "RequestTimeTooSkewed": "The clocks of the client and the store disagree: set them.",
    "SignatureDoesNotMatch": "The secret key is wrong: check AWS_SECRET_ACCESS_KEY.",
    "TokenRefreshRequired": "The session token must be renewed: sign in again.",
}
ACTIONS = {  # Where the permission has another name than the operation.
    "DeleteObjects": "s3:DeleteObject",
    "GetObject": "s3:GetObject and s3:ListBucket (without the latter even a missing object is refused)",
    "ListObjectsV2": "s3:ListBucket",
    "ListObjectVersions": "s3:ListBucketVersions",
}
WRONG_REGION = {"PermanentRedirect", "AuthorizationHeaderMalformed", "IllegalLocationConstraintException"}
AGAIN_LATER = {
    "SlowDown",
    "ServiceUnavailable",
    "InternalError",
    "RequestTimeout",
    "Throttling",
    "TooManyRequests",
}
AGAIN_LATER_STATUS = {408, 429, 500, 502, 503, 504}


def failure(status: int, refusal: Refusal, *, operation: str, key: str, place: Address) -> StoreError:
    """Return the error to raise for a reply that is not a success."""
    code, message = refusal.code, refusal.message
    what = f"{operation} of {key!r} in {place}" if key else f"{operation} of {place}"
    reply = " ".join(word for word in (str(status), code, message) if word)
    if code == "NoSuchBucket":
        return NoSuchBucket(f"There is no {place}. Create it (qo doctor --fix does) or correct S3_BUCKET.")
    if status == 412:
        return PreconditionFailed(f"{what}: somebody else wrote first ({reply})")
    if status == 409:
        return ConcurrentWrite(f"{what}: another write came at the same moment ({reply})")
    if status in AGAIN_LATER_STATUS or code in AGAIN_LATER:
        return Unavailable(f"{what} got no proper answer ({reply})")
    if code in WRONG_REGION:
        return StoreError(f"{what}: the bucket is not in region {place.region}; correct S3_REGION ({reply})")
    if code in DENIED or status in (401, 403):
        action = ACTIONS.get(operation, f"s3:{operation}")
        advice = DENIED.get(code, DENIED["AccessDenied"]).format(action=action)
        return AccessDenied(f"{what} was refused ({reply}). {advice}")
    return StoreError(f"{what} failed ({reply})")
