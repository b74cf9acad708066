"""Signatures that another implementation has made are accepted, and nothing else is."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime, timedelta
from urllib.parse import quote, urlsplit

import pytest
from botocore.auth import S3SigV4Auth, S3SigV4QueryAuth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials
from hypothesis import given
from hypothesis import strategies as st

from qo.ui.signing import Denied, Key, Message, verify, verify_head

pytestmark = pytest.mark.fast

KEY = Key("QOKEY", "secret/+=")
HOST = "127.0.0.1:8480"
ODD = [
    "a b",
    "100%",
    "a+b",
    "~x",
    "ümlaut/日本",
    "a%2Fb",
    "a//b",
    "'quoted'(1)!*",
    "q?x=1&y#z",
    "\x01\x7f",
    "a;b,c",
]


def signed(
    method: str,
    path: str,
    *,
    query: str = "",
    body: bytes = b"",
    headers: Mapping[str, str] | None = None,
    key: Key = KEY,
    region: str = "us-east-1",
) -> Message:
    """As botocore signs it, now."""
    url = f"http://{HOST}{path}" + (f"?{query}" if query else "")
    request = AWSRequest(method=method, url=url, data=body, headers=dict(headers or {}))
    S3SigV4Auth(Credentials(key.access_key, key.secret_key), "s3", region).add_auth(request)
    named = {name.lower(): value for name, value in request.headers.items()}
    return Message(method, path, query, {**named, "host": HOST}, body)


def linked(path: str, *, expires_s: int = 60) -> Message:
    request = AWSRequest(method="GET", url=f"http://{HOST}{path}")
    auth = S3SigV4QueryAuth(Credentials(KEY.access_key, KEY.secret_key), "s3", "us-east-1", expires=expires_s)
    auth.add_auth(request)
    parts = urlsplit(request.url)
    return Message("GET", parts.path, parts.query, {"host": HOST}, b"")


def now() -> datetime:
    return datetime.now(UTC)


def code(message: Message, *, at: datetime | None = None, key: Key = KEY) -> str:
    denied = verify(message, key, now=at or now())
    return "accepted" if denied is None else denied.code


@pytest.mark.parametrize("name", ODD)
def test_what_botocore_signs_is_accepted_whatever_the_key_is_made_of(name: str):
    path = f"/s3/qo/{quote(name, safe='/~')}"
    assert code(signed("PUT", path, body=b"x", headers={"If-Match": '"e"'})) == "accepted"
    assert code(signed("GET", "/s3/qo", query=f"list-type=2&prefix={quote(name, safe='')}")) == "accepted"
    assert code(linked(path)) == "accepted"


@given(name=st.text(st.characters(exclude_categories=["Cs"]), min_size=1, max_size=20))
def test_every_key_and_every_prefix_can_be_signed(name: str):
    path = f"/s3/qo/{quote(name, safe='/~')}"
    assert code(signed("GET", path, query=f"prefix={quote(name, safe='')}&versions=")) == "accepted"


def test_a_path_that_a_browser_has_left_half_encoded_means_the_same():
    message = signed("GET", "/s3/qo/%27a%27%28%21%29")
    assert code(replace(message, path="/s3/qo/'a'(!)")) == "accepted"


@pytest.mark.parametrize(
    "changed",
    [
        {"method": "DELETE"},
        {"path": "/s3/qo/b"},
        {"query": "versionId=2"},
        {"body": b"y"},
    ],
    ids=str,
)
def test_a_request_that_was_changed_after_it_was_signed_is_refused(changed: dict[str, object]):
    message = signed("PUT", "/s3/qo/a", query="versionId=1", body=b"x")
    assert code(message) == "accepted"
    assert code(replace(message, **changed)) in ("SignatureDoesNotMatch", "XAmzContentSHA256Mismatch")


@pytest.mark.parametrize("name", ["host", "x-amz-date", "x-amz-content-sha256"])
def test_a_header_that_was_changed_is_noticed(name: str):
    message = signed("GET", "/s3/qo/a")
    other = {"host": "evil.example", "x-amz-date": "20200101T000000Z", "x-amz-content-sha256": "UNSIGNED-PAYLOAD"}
    assert code(replace(message, headers={**message.headers, name: other[name]})) != "accepted"


def test_an_amazon_header_that_nobody_signed_is_refused():
    message = signed("PUT", "/s3/qo/a")
    assert code(replace(message, headers={**message.headers, "x-amz-copy-source": "/qo/b"})) == "AccessDenied"


def test_another_key_and_another_secret_are_told_apart():
    assert code(signed("GET", "/s3/qo/a"), key=Key("OTHER", KEY.secret_key)) == "InvalidAccessKeyId"
    assert code(signed("GET", "/s3/qo/a"), key=Key(KEY.access_key, "other")) == "SignatureDoesNotMatch"


@pytest.mark.parametrize("minutes", [-16, 16])
def test_an_old_signature_is_good_for_a_quarter_of_an_hour(minutes: int):
    message = signed("GET", "/s3/qo/a")
    assert code(message, at=now() + timedelta(minutes=minutes)) == "RequestTimeTooSkewed"
    assert code(message, at=now() + timedelta(minutes=minutes * 14 / 16)) == "accepted"


def test_a_link_ends_when_it_says():
    link = linked("/s3/qo/a", expires_s=1200)
    assert code(link, at=now() + timedelta(minutes=19)) == "accepted"
    assert code(link, at=now() + timedelta(minutes=21)) == "AccessDenied"
    assert code(replace(link, query=link.query.replace("Expires=1200", "Expires=9000"))) == "SignatureDoesNotMatch"


@pytest.mark.parametrize(
    "header",
    ["", "Bearer x", "AWS4-HMAC-SHA256", "AWS4-HMAC-SHA256 Credential=a/b, SignedHeaders=host, Signature=00"],
)
def test_what_is_no_signature_is_refused_and_breaks_nothing(header: str):
    message = Message("GET", "/s3/qo/a", "", {"host": HOST, "authorization": header}, b"")
    assert isinstance(verify(message, KEY, now=now()), Denied)


def test_a_request_without_a_signature_is_refused():
    assert code(Message("GET", "/s3/qo/a", "", {"host": HOST}, b"")) == "AccessDenied"


def test_a_date_that_does_not_exist_is_refused():
    message = signed("GET", "/s3/qo/a")
    assert code(replace(message, headers={**message.headers, "x-amz-date": "20260231T000000Z"})) == "AccessDenied"


@given(given_signature=st.text(st.characters(exclude_categories=["Cs"]), max_size=70))
def test_a_link_with_any_signature_is_refused_and_breaks_nothing(given_signature: str):
    link = linked("/s3/qo/a")
    query, _, _ = link.query.partition("&X-Amz-Signature=")
    for text in (given_signature, "é" * 64, "\u0660" * 64):
        changed = replace(link, query=f"{query}&X-Amz-Signature={quote(text)}")
        assert code(changed) in ("SignatureDoesNotMatch", "AuthorizationQueryParametersError")


def test_before_the_body_is_there_a_request_is_known_by_its_head():
    message = signed("PUT", "/s3/qo/a", body=b"x")
    assert verify_head(replace(message, body=b""), KEY, now=now()) is None
    assert code(replace(message, body=b"")) == "XAmzContentSHA256Mismatch"
    assert isinstance(verify_head(replace(message, path="/s3/qo/b", body=b""), KEY, now=now()), Denied)
