"""Session policies, judged by a small evaluator of IAM's rules: nothing outside the prefixes is ever allowed."""

from __future__ import annotations

import re
from datetime import timedelta

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from qo.core.pipeline.policy import POLICY_MAX, Prefix, encode_policy, normalise, session_policy
from qo.errors import UsageError
from support.stores.iam import NOW, allowed

pytestmark = pytest.mark.fast

ACTIONS = ("s3:GetObject", "s3:PutObject", "s3:DeleteObject", "s3:ListBucket", "s3:AbortMultipartUpload", "s3:*")


buckets = st.sampled_from(["data-1", "data-2", "data.3"])
segments = st.text(alphabet="ab.-_", min_size=1, max_size=3).filter(lambda text: text not in (".", ".."))
prefixes = st.builds(
    lambda bucket, parts: Prefix(bucket, "/".join(parts) + "/"),
    buckets,
    st.lists(segments, min_size=1, max_size=3),
)
keys = st.lists(st.text(alphabet="ab.-_*?", max_size=3), min_size=1, max_size=5).map("/".join)


def inside(bucket: str, key: str, prefixes: list[Prefix]) -> bool:
    return any(each.bucket == bucket and key.startswith(each.key) for each in prefixes)


@given(
    read=st.lists(prefixes, max_size=3),
    write=st.lists(prefixes, max_size=3),
    bucket=buckets,
    key=keys,
    action=st.sampled_from(ACTIONS),
)
def test_an_object_is_reachable_exactly_below_its_prefixes(
    read: list[Prefix], write: list[Prefix], bucket: str, key: str, action: str
) -> None:
    assume(read or write)
    policy = session_policy(read, write)
    granted = {"s3:GetObject": read, "s3:PutObject": write, "s3:AbortMultipartUpload": write}.get(action, [])
    assert allowed(policy, action, f"{bucket}/{key}") == inside(bucket, key, granted)


@given(
    read=st.lists(prefixes, max_size=3),
    write=st.lists(prefixes, max_size=3),
    bucket=buckets,
    prefix=st.none() | keys,
)
def test_a_bucket_is_listed_only_below_its_prefixes(
    read: list[Prefix], write: list[Prefix], bucket: str, prefix: str | None
) -> None:
    assume(read or write)
    policy = session_policy(read, write)
    assert allowed(policy, "s3:ListBucket", bucket, prefix=prefix) == inside(bucket, prefix or "", [*read, *write])


@given(read=st.lists(prefixes, min_size=1, max_size=3), key=keys)
def test_nothing_is_allowed_once_the_token_has_ended(read: list[Prefix], key: str) -> None:
    policy = session_policy(read, [], until=NOW)
    target = f"{read[0].bucket}/{read[0].key}{key}"
    assert allowed(policy, "s3:GetObject", target, now=NOW)
    assert not allowed(policy, "s3:GetObject", target, now=NOW + timedelta(seconds=1))


@given(text=st.text(max_size=40) | st.text(alphabet="ab/.*?$%\\{}s3:\0 ", max_size=30).map("s3://bucket/".__add__))
def test_what_is_accepted_is_one_plain_directory(text: str) -> None:
    try:
        prefix = normalise(text)
    except UsageError:
        return
    assert normalise(str(prefix)) == prefix
    assert prefix.key.endswith("/")
    assert prefix.key != "/"
    assert not re.search(r"[*?$%\\\x00-\x1f]|//|(^|/)\.{1,2}/", prefix.key)


@given(count=st.integers(1, 60))
def test_a_policy_fits_or_is_refused(count: int) -> None:
    read = [Prefix("data-1", f"datasets/{number:036}/") for number in range(count)]
    try:
        policy = session_policy(read, [])
    except UsageError:
        assert count > 10
        return
    assert len(encode_policy(policy)) <= POLICY_MAX
