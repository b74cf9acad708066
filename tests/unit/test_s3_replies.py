"""S3's replies are read as every server writes them."""

from __future__ import annotations

from datetime import UTC, datetime
from urllib.parse import quote_plus
from xml.etree import ElementTree
from xml.sax.saxutils import escape

import pytest
from hypothesis import given
from hypothesis import strategies as st

from qo.errors import (
    AccessDenied,
    ConcurrentWrite,
    ConfigError,
    NoSuchBucket,
    PreconditionFailed,
    StoreError,
    Unavailable,
)
from qo.store.port import Deletion, Entry
from qo.store.s3 import replies
from qo.store.s3.address import bucket_address
from qo.store.s3.failure import failure

pytestmark = pytest.mark.fast

XMLNS = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'
PLACE = bucket_address("bucket", endpoint="http://127.0.0.1:9000", region="us-east-1")
keys = st.text(st.characters(codec="utf-8"), min_size=1, max_size=30)
xml_keys = st.text(st.characters(codec="utf-8", min_codepoint=0x20, exclude_characters="\ufffe\uffff"), min_size=1)


def listing(*contents: str, head: str = "", tail: str = "") -> bytes:
    inner = "".join(f"<Contents>{content}</Contents>" for content in contents)
    return f'<?xml version="1.0"?>\n<ListBucketResult {XMLNS}>{head}{inner}{tail}</ListBucketResult>'.encode()


@given(st.lists(keys, max_size=5), st.booleans())
def test_any_key_survives_a_url_encoded_listing(names: list[str], marks_at_the_end: bool) -> None:
    marks = "<IsTruncated>true</IsTruncated><EncodingType>url</EncodingType>"
    contents = [
        f"<Key>base/{quote_plus(name, safe='/')}</Key><LastModified>2026-11-15T09:24:19.000Z</LastModified>"
        f"<ETag>&quot;e{number}&quot;</ETag><Size>{number}</Size>"
        for number, name in enumerate(names)
    ]
    body = listing(*contents, **{"tail" if marks_at_the_end else "head": marks})
    page = replies.list_page(body, prefix="base/")
    moment = datetime(2026, 11, 15, 9, 24, 19, tzinfo=UTC)
    assert page.truncated
    assert page.entries == [Entry(name, f'"e{number}"', number, moment) for number, name in enumerate(names)]


@given(xml_keys)
def test_a_server_that_does_not_encode_keys_is_understood(key: str) -> None:
    content = (
        f"<ETag>&#34;e&#34;</ETag><Size>7</Size><Owner><ID>me</ID></Owner><Key>{escape(key)}</Key>"
        "<LastModified>2026-11-15T09:24:19Z</LastModified>"
    )
    page = replies.list_page(listing(content, tail="<IsTruncated>false</IsTruncated>"), prefix="")
    assert [(entry.key, entry.etag, entry.size) for entry in page.entries] == [(key, '"e"', 7)]
    assert not page.truncated


def test_an_empty_listing_has_no_entries() -> None:
    assert replies.list_page(listing(head="<IsTruncated>false</IsTruncated>"), prefix="") == ([], False)


@pytest.mark.parametrize("read", [lambda body: replies.list_page(body, prefix=""), replies.versions_page])
def test_what_is_no_s3_reply_is_not_taken_for_an_empty_one(read) -> None:
    with pytest.raises(StoreError, match="is the endpoint right"):
        read(b"<html><p>Welcome to the hotel's network")


def test_versions_and_delete_markers_keep_their_order_and_markers() -> None:
    body = f"""<ListVersionsResult {XMLNS}><EncodingType>url</EncodingType><IsTruncated>true</IsTruncated>
    <NextKeyMarker>a+b%2Bc</NextKeyMarker><NextVersionIdMarker>v1</NextVersionIdMarker>
    <DeleteMarker><Key>a+b%2Bc</Key><VersionId>v2</VersionId><IsLatest>true</IsLatest>
      <LastModified>2026-11-15T09:24:20Z</LastModified></DeleteMarker>
    <Version><Key>a+b%2Bc</Key><VersionId>v1</VersionId><IsLatest>false</IsLatest><ETag>bare</ETag><Size>3</Size>
      <LastModified>2026-11-15T09:24:19Z</LastModified></Version></ListVersionsResult>"""
    page = replies.versions_page(body.encode())
    assert [key for key, _ in page.versions] == ["a b+c", "a b+c"]
    marker, version = (version for _, version in page.versions)
    assert (marker.version, marker.latest, marker.deleted, marker.etag, marker.size) == ("v2", True, True, "", 0)
    assert (version.version, version.latest, version.deleted, version.etag) == ("v1", False, False, '"bare"')
    assert (page.truncated, page.next_key, page.next_version) == (True, "a b+c", "v1")


@given(xml_keys, st.none() | st.just("v<1>"))
def test_a_deletion_names_exactly_what_is_doomed(key: str, version: str | None) -> None:
    root = ElementTree.fromstring(replies.delete_request([Deletion(key, version)], prefix="base/"))
    namespace = {"s3": replies.NAMESPACE}
    assert root.findtext("s3:Object/s3:Key", namespaces=namespace) == f"base/{key}"
    assert root.findtext("s3:Object/s3:VersionId", namespaces=namespace) == version


def test_what_could_not_be_deleted_is_reported() -> None:
    errors = (
        "<Error><Key>j</Key><Code>NoSuchVersion</Code></Error>"
        "<Error><Key>k</Key><Code>AccessDenied</Code><Message>no</Message></Error>"
    )
    refused = replies.failed_deletes(f"<DeleteResult {XMLNS}>{errors}</DeleteResult>".encode())
    assert list(refused) == [("AccessDenied", "no", "k")]


@pytest.mark.parametrize(
    ("status", "code", "expected", "said"),
    [
        (412, "PreconditionFailed", PreconditionFailed, "somebody else wrote first"),
        (409, "ConditionalRequestConflict", ConcurrentWrite, "same moment"),
        (409, "OperationAborted", ConcurrentWrite, "same moment"),
        (404, "NoSuchBucket", NoSuchBucket, "qo doctor --fix"),
        (403, "InvalidAccessKeyId", AccessDenied, "AWS_ACCESS_KEY_ID"),
        (403, "SignatureDoesNotMatch", AccessDenied, "AWS_SECRET_ACCESS_KEY"),
        (403, "AccessDenied", AccessDenied, "grant them s3:PutObject"),
        (403, "", AccessDenied, "grant them s3:PutObject"),
        (400, "ExpiredToken", AccessDenied, "sign in again"),
        (503, "SlowDown", Unavailable, "127.0.0.1:9000"),
        (500, "", Unavailable, "PutObject of 'some/key'"),
        (400, "RequestTimeout", Unavailable, "RequestTimeout"),
        (301, "PermanentRedirect", StoreError, "S3_REGION"),
        (400, "EntityTooLarge", StoreError, "400 EntityTooLarge"),
    ],
)
def test_each_refusal_becomes_the_error_that_says_what_to_do(
    status: int, code: str, expected: type[StoreError], said: str
) -> None:
    error = failure(status, replies.Refusal(code), operation="PutObject", key="some/key", place=PLACE)
    assert type(error) is expected
    assert said in str(error)


def test_a_refusal_without_an_error_document_keeps_its_text() -> None:
    assert replies.refusal(b"Bad gateway") == ("", "Bad gateway", "")
    assert replies.refusal(b"") == ("", "", "")


@pytest.mark.parametrize(
    ("bucket", "endpoint", "origin", "path"),
    [
        ("name", None, "https://name.s3.eu-west-1.amazonaws.com", "/a%20b"),
        ("dotted.name", None, "https://s3.eu-west-1.amazonaws.com", "/dotted.name/a%20b"),
        ("name", "http://localhost:9000/", "http://localhost:9000", "/name/a%20b"),
        ("name", "https://s3.example.com:443/store", "https://s3.example.com", "/store/name/a%20b"),
        ("name", "http://[::1]:9000", "http://[::1]:9000", "/name/a%20b"),
    ],
)
def test_a_bucket_is_addressed_in_the_path_except_on_aws(
    bucket: str, endpoint: str | None, origin: str, path: str
) -> None:
    place = bucket_address(bucket, endpoint=endpoint, region="eu-west-1")
    assert (place.origin, place.path("a b")) == (origin, path)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "ftp://host", "http://", "http://host?x=y"])
def test_an_endpoint_that_is_no_url_is_refused(endpoint: str) -> None:
    with pytest.raises(ConfigError, match="is not a URL"):
        bucket_address("name", endpoint=endpoint, region="us-east-1")
