"""Bytes from outside that are not a task, a pipeline or a request to the dispatcher (those have fuzzers of their own):
whatever they are, they are read, or refused with the one error that their reader promises.

``PROVE=1`` tries many more.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

import msgspec
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from qo.core import keys, wire
from qo.core.control import Desired
from qo.core.ownership import Grant, ShardPlan
from qo.core.pipeline import bundle
from qo.core.retention import PurgeCursor
from qo.core.schedule import Schedule
from qo.core.sweep import SweepCursor
from qo.dispatcher.sources import webhooks
from qo.errors import CorruptRecord, StoreError, Unproven, UsageError
from qo.http_server.messages import Malformed, parse_head
from qo.queue.roster import WorkerInfo
from qo.store import queue_manifest
from qo.store.port import Stored
from qo.store.s3 import replies
from qo.ui import documents
from qo.ui.signing import Key, Message, verify

pytestmark = pytest.mark.fast
MANY = settings(deadline=None, max_examples=4000 if os.environ.get("PROVE") else 60)

NOON = datetime(2026, 3, 1, 12, tzinfo=UTC)
values = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)
# The records of a queue, each with a sound one: most of a damaged record is as it should be.
RECORDS: dict[type[msgspec.Struct], msgspec.Struct] = {
    WorkerInfo: msgspec.convert(
        {
            "worker_id": "w",
            "started_at": NOON,
            "last_heartbeat": NOON,
            "hostname": "h",
            "pid": 1,
            "state": "running",
        },
        WorkerInfo,
        strict=False,
    ),
    SweepCursor: SweepCursor(after="tasks/a/x.json", token="t", moved_at=NOON),
    PurgeCursor: PurgeCursor(after="tasks/a/x.json", token="t", started_at=NOON),
    Desired: Desired(),
    ShardPlan: ShardPlan(
        number=1,
        token="t",
        updated_at=NOON,
        ttl_s=30.0,
        wait_s=30.0,
        members=["w"],
        grants=[Grant(worker_id="w", first="0", last="f", since=NOON, number=1)],
    ),
}
XML = st.sampled_from(
    [
        "<", ">", "</", "/>", "<Contents>", "</Contents>", "<Key>", "</Key>", "<ETag>", "</ETag>", "&", "&quot;",
        "&#0;", "&#xD800;", "<ListBucketResult>", "</ListBucketResult>", "<LastModified>", "</LastModified>", "<Size>",
        "</Size>",
        "2026-01-01T00:00:00Z", "9" * 30, "<Error><Code>", "</Code></Error>", "<!DOCTYPE a [<!ENTITY b 'c'>]>", "&b;",
        "<Version>", "</Version>", "<Delete>", "</Delete>", "<Object>", "</Object>", "%ZZ", "\x00", "é", "<?xml",
        "<IsTruncated>true</IsTruncated>", "<EncodingType>url</EncodingType>", "a", "-1",
    ]
)  # fmt: skip
documents_ = st.lists(XML, max_size=14).map("".join).map(str.encode) | st.binary(max_size=40)


@MANY
@given(
    kind=st.sampled_from([*RECORDS, Schedule]),
    body=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()),
)
def test_a_record_of_any_bytes_is_read_or_corrupt(kind: type[msgspec.Struct], body: bytes) -> None:
    with suppress(CorruptRecord):
        assert isinstance(wire.decode(kind, body, "k"), kind)


@MANY
@given(kind=st.sampled_from(list(RECORDS)), value=values, data=st.data())
def test_a_record_with_a_field_of_any_kind_is_read_or_corrupt(
    kind: type[msgspec.Struct], value: Any, data: st.DataObject
) -> None:
    whole = json.loads(wire.encode(RECORDS[kind])) or {"x": 1}
    field = data.draw(st.sampled_from(sorted(whole)))
    with suppress(CorruptRecord):
        assert isinstance(wire.decode(kind, json.dumps({**whole, field: value}).encode(), "k"), kind)


@MANY
@given(body=st.binary(max_size=60) | values.map(lambda value: json.dumps({"format": value}).encode()))
@example(b'{"format": 99}')
def test_a_manifest_of_any_bytes_is_read_or_refused(body: bytes) -> None:
    with suppress(CorruptRecord, Unproven):
        queue_manifest._decode(Stored(body, "e", None))


@MANY
@given(
    body=documents_,
    read=st.sampled_from(
        [
            lambda body: replies.list_page(body, prefix="p/"),
            replies.versions_page,
            replies.versioning_status,
            replies.refusal,
            lambda body: list(replies.failed_deletes(body)),
        ]
    ),
)
@example(b"<ListBucketResult>\xff", lambda body: replies.list_page(body, prefix=""))
@example(
    b"<ListBucketResult><Contents><Key>a</Key><Size>x</Size></Contents></ListBucketResult>",
    lambda body: replies.list_page(body, prefix=""),
)
def test_whatever_a_server_answers_is_read_or_an_error_of_the_store(
    body: bytes, read: Callable[[bytes], object]
) -> None:
    with suppress(StoreError):
        read(body)


@MANY
@given(body=documents_)
def test_whatever_is_asked_to_be_deleted_is_read_or_refused(body: bytes) -> None:
    with suppress(ValueError):
        found, _ = documents.read_deletion(body)
        assert all(each.key for each in found)


heads = st.lists(
    st.sampled_from(
        ["GET", "PUT", " ", "/", "/s3/qo/a", "HTTP/1.1", "HTTP/9", "\r\n", "\n", ":", "Host: a", "Content-Length: -1",
         "Content-Length: 9e9", "Transfer-Encoding: chunked", "\x00", "é", "%", "%zz", "?a=b&a", "\t",
         "Host: a\r\nHost: b"]
    ),
    max_size=12,
).map("".join)  # fmt: skip


@MANY
@given(head=heads.map(str.encode) | st.binary(max_size=60))
def test_whatever_a_browser_sends_is_a_request_or_malformed(head: bytes) -> None:
    with suppress(Malformed):
        parsed, _ = parse_head(head)
        assert parsed.method
        assert all("\r" not in value and "\n" not in value for value in parsed.headers.values())


@MANY
@given(
    authorization=st.text(max_size=60)
    | st.lists(
        st.sampled_from(["AWS4-HMAC-SHA256", " ", "Credential=", "QOKEY/", "20260301", "/us-east-1/s3/aws4_request",
                         ",", "SignedHeaders=", "host", ";", "Signature=", "0" * 64, "="]),
        max_size=14,
    ).map("".join),
    query=st.text(max_size=30),
)  # fmt: skip
def test_nothing_that_is_made_up_passes_for_a_signature(authorization: str, query: str) -> None:
    headers = {"host": "h", "authorization": authorization, "x-amz-date": "20260301T120000Z"}
    message = Message("GET", "/s3/qo/a", query, headers, b"")
    assert verify(message, Key("QOKEY", "a secret that nobody has drawn"), now=NOON) is not None


@MANY
@given(
    body=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()),
    headers=st.dictionaries(
        st.sampled_from(["content-type", "ce-id", "ce-source", "ce-specversion", "ce-type", "ce-subject"]),
        st.sampled_from(["application/json", "application/cloudevents+json", "1.0", "x", "", "\x00", "é"]),
    ),
)
def test_whatever_a_webhook_says_is_read_or_refused(body: bytes, headers: dict[str, str]) -> None:
    with suppress(UsageError):
        webhooks.parse(headers, body)


@MANY
@given(body=st.binary(max_size=60) | values.map(lambda value: json.dumps(value).encode()))
def test_the_manifest_of_a_bundle_is_read_or_refused(body: bytes) -> None:
    with suppress(UsageError):
        bundle.check(bundle.parse(body))


@MANY
@given(path=st.text(alphabet="ab/.\\\0é~: ", max_size=12))
def test_a_path_that_is_accepted_stays_in_its_directory(path: str) -> None:
    try:
        bundle.check_path(path)
    except UsageError:
        return
    parts = path.split("/")
    assert all(part not in ("", ".", "..") for part in parts)
    assert not path.startswith("/")
    assert "\0" not in path


@MANY
@given(
    key=st.text(alphabet="dat/.x-", max_size=20) | st.text(alphabet="/.x", max_size=8).map("data/a/ID/".__add__)
)
def test_only_a_name_right_below_a_task_is_its_data(key: str) -> None:
    if keys.is_data_of("a", "ID", key):
        assert key.startswith("data/a/ID/")
        assert key.count("/") == 3
        assert not key.endswith("/")
