"""Prefixes of a bucket and the policies made of them: what is taken, what is refused."""

from __future__ import annotations

from datetime import UTC, datetime

import pytest

from qo.core.pipeline.policy import Prefix, normalise, session_policy
from qo.errors import UsageError

pytestmark = pytest.mark.fast


@pytest.mark.parametrize(
    ("text", "key"),
    [
        ("s3://data/foo", "foo/"),
        ("s3://data/foo/", "foo/"),
        ("s3://data/foo/day=2024-01-01/a.b", "foo/day=2024-01-01/a.b/"),
    ],
)
def test_a_prefix_is_a_directory(text: str, key: str) -> None:
    assert normalise(text) == Prefix("data", key)
    assert str(normalise(text)) == f"s3://data/{key}"


@pytest.mark.parametrize(
    "text",
    [
        "", "data/foo", "https://data/foo", "S3://data/foo", "s3:/data/foo", "file:/data/foo", "s3a://data/foo",
        "s3://", "s3:///foo", "s3://data", "s3://data/", "s3://data//", "s3://data///",
        "s3://d/foo", "s3://da*ta/foo", "s3://da..ta/foo", "s3://-data/foo", "s3://user@data/foo",
        "s3://data/..", "s3://data/../foo", "s3://data/foo/..", "s3://data/foo/../bar", "s3://data/./foo",
        "s3://data/foo/.", "s3://data/foo//bar", "s3://data//foo",
        "s3://data/*", "s3://data/foo*", "s3://data/fo?", "s3://data/foo/${aws:username}",
        "s3://data/foo%2f..%2fbar", "s3://data/%2e%2e/foo", "s3://data/foo\\bar", "s3://data/foo\nbar",
        "s3://data/foo\0", "s3://data/foo\n", "s3://data\n/foo", "s3://data/foo\u202ebar", "s3://data/f\uff0e\uff0e",
        's3://data/foo"', "s3://data/foo#bar", "s3://data/<foo>",
    ],
)  # fmt: skip
def test_what_is_not_plainly_a_directory_is_refused(text: str) -> None:
    with pytest.raises(UsageError):
        normalise(text)


def test_reading_and_writing_are_granted_apart() -> None:
    policy = session_policy([Prefix("data", "in/")], [Prefix("data", "out/")])
    assert policy["Statement"] == [
        {"Effect": "Allow", "Action": "s3:GetObject", "Resource": ["arn:aws:s3:::data/in/*"]},
        {
            "Effect": "Allow",
            "Action": ["s3:PutObject", "s3:AbortMultipartUpload"],
            "Resource": ["arn:aws:s3:::data/out/*"],
        },
        {
            "Effect": "Allow",
            "Action": "s3:ListBucket",
            "Resource": ["arn:aws:s3:::data"],
            "Condition": {"StringLike": {"s3:prefix": ["in/*", "out/*"]}},
        },
    ]


def test_a_prefix_of_one_bucket_opens_no_other() -> None:
    policy = session_policy([Prefix("one", "a/"), Prefix("two", "b/")], [])
    listing = [each for each in policy["Statement"] if each["Action"] == "s3:ListBucket"]
    assert [(each["Resource"], each["Condition"]["StringLike"]["s3:prefix"]) for each in listing] == [
        (["arn:aws:s3:::one"], ["a/*"]),
        (["arn:aws:s3:::two"], ["b/*"]),
    ]


def test_a_prefix_within_another_is_said_once() -> None:
    policy = session_policy([Prefix("data", "a/b/"), Prefix("data", "a/"), Prefix("data", "a-b/")], [])
    assert policy["Statement"][0]["Resource"] == ["arn:aws:s3:::data/a-b/*", "arn:aws:s3:::data/a/*"]


def test_a_policy_of_nothing_is_refused() -> None:
    with pytest.raises(UsageError, match="no prefix"):
        session_policy([], [])


def test_more_prefixes_than_a_policy_holds_are_refused_with_advice() -> None:
    many = [Prefix("data", f"{number:040}/") for number in range(100)]
    with pytest.raises(UsageError, match="fewer datasets"):
        session_policy(many, [])


def test_other_partitions_of_aws_have_their_own_names() -> None:
    policy = session_policy([Prefix("data", "in/")], [], partition="aws-cn")
    assert policy["Statement"][0]["Resource"] == ["arn:aws-cn:s3:::data/in/*"]
    with pytest.raises(UsageError):
        session_policy([Prefix("data", "in/")], [], partition="*")


def test_the_end_is_a_deny() -> None:
    policy = session_policy([Prefix("data", "in/")], [], until=datetime(2030, 1, 2, 3, 4, 5, tzinfo=UTC))
    assert policy["Statement"][-1] == {
        "Effect": "Deny",
        "Action": "*",
        "Resource": "*",
        "Condition": {"DateGreaterThan": {"aws:CurrentTime": "2030-01-02T03:04:05Z"}},
    }
