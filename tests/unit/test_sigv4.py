"""Our signatures are those that AWS documents and botocore makes."""

from __future__ import annotations

from datetime import UTC, datetime
from unittest.mock import patch

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotocoreCredentials
from hypothesis import given
from hypothesis import strategies as st

from qo.store.s3.address import bucket_address, query
from qo.store.s3.aws_credentials import Credentials
from qo.store.s3.sign import Signer

pytestmark = pytest.mark.fast

# The account, bucket and moment of the examples in the Amazon S3 API reference.
EXAMPLE = Credentials("AKIAIOSFODNN7EXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
EXAMPLE_HOST = "examplebucket.s3.amazonaws.com"
EXAMPLE_AT = datetime(2013, 5, 24, tzinfo=UTC).timestamp()

keys = st.text(st.characters(codec="utf-8", exclude_characters="\0"), min_size=1, max_size=40)
tokens = st.none() | st.text("abcXYZ0189/+=", min_size=1, max_size=40)
moments = st.datetimes(datetime(2000, 1, 1), datetime(2090, 1, 1))  # noqa: DTZ001


@pytest.mark.parametrize(
    ("asked", "signature"),
    [
        ("lifecycle=", "fea454ca298b7da1c68078a5d1bdbfbbe0d65c699e0f91ac7a200a0136783543"),
        ("max-keys=2&prefix=J", "34b48302e7b5fa45bde8084f4b7868a86f0a534bc59db6670ed5711ef69dc6f7"),
    ],
)
def test_the_documented_examples_are_signed_as_documented(asked: str, signature: str) -> None:
    headers = Signer(EXAMPLE_HOST, "us-east-1").headers(EXAMPLE, "GET", "/", asked, b"", at=EXAMPLE_AT)
    assert headers["Authorization"] == (
        "AWS4-HMAC-SHA256 Credential=AKIAIOSFODNN7EXAMPLE/20130524/us-east-1/s3/aws4_request, "
        f"SignedHeaders=host;x-amz-content-sha256;x-amz-date, Signature={signature}"
    )


def test_the_documented_link_is_signed_as_documented() -> None:
    signer = Signer(EXAMPLE_HOST, "us-east-1")
    link = signer.presigned_query(EXAMPLE, "GET", "/test.txt", expires_s=86400, at=EXAMPLE_AT)
    assert link.endswith("&X-Amz-Signature=aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404")


@given(key=keys, prefix=keys, body=st.binary(max_size=100), token=tokens, moment=moments)
def test_every_request_is_signed_as_botocore_signs_it(
    key: str, prefix: str, body: bytes, token: str | None, moment: datetime
) -> None:
    place = bucket_address("bucket", endpoint="http://127.0.0.1:9000", region="eu-west-1")
    path, asked = place.path(key), query(prefix=prefix, versions="", key_marker=key)
    at = moment.replace(tzinfo=UTC).timestamp()
    ours = Signer(place.host, place.region).headers(
        Credentials("id", "secret", token), "PUT", path, asked, body, at=at
    )

    theirs = AWSRequest("PUT", f"{place.origin}{path}?{asked}", data=body)
    theirs.context["payload_signing_enabled"] = True
    with patch("botocore.auth.get_current_datetime", return_value=moment):
        S3SigV4Auth(BotocoreCredentials("id", "secret", token), "s3", "eu-west-1").add_auth(theirs)
    assert ours["Authorization"] == theirs.headers["Authorization"]


@given(key=keys, token=tokens, moment=moments, expires_s=st.integers(1, 604800))
def test_every_link_is_signed_as_botocore_signs_it(
    key: str, token: str | None, moment: datetime, expires_s: int
) -> None:
    place = bucket_address("bucket", endpoint=None, region="eu-west-1")
    at = moment.replace(tzinfo=UTC).timestamp()
    ours = Signer(place.host, place.region).presigned_query(
        Credentials("id", "secret", token), "GET", place.path(key), expires_s=expires_s, at=at
    )

    theirs = AWSRequest("GET", f"{place.origin}{place.path(key)}")
    held = BotocoreCredentials("id", "secret", token)
    with patch("botocore.auth.get_current_datetime", return_value=moment):
        S3SigV4QueryAuth(held, "s3", "eu-west-1", expires=expires_s).add_auth(theirs)
    assert ours.rpartition("=")[2] == theirs.url.rpartition("=")[2]


def test_a_key_kept_for_the_day_is_not_used_for_other_credentials_or_another_day() -> None:
    warm, other = Signer(EXAMPLE_HOST, "us-east-1"), Credentials("id", "another secret")
    for credentials, at in [(EXAMPLE, EXAMPLE_AT), (other, EXAMPLE_AT), (other, EXAMPLE_AT + 86400)]:
        cold = Signer(EXAMPLE_HOST, "us-east-1")
        arguments = (credentials, "GET", "/key", "", b"")
        assert warm.headers(*arguments, at=at) == cold.headers(*arguments, at=at)
