"""What lets a page into a bucket: pure rules, held to their promises."""

from __future__ import annotations

import json
import re
from typing import Any
from xml.etree import ElementTree

import pytest

from qo.core.pipeline.policy import POLICY_MAX
from qo.errors import UsageError
from qo.ui import bucket_rules
from qo.ui.policy import page_policy

pytestmark = pytest.mark.fast

THEIRS = {
    "Sid": "Theirs",
    "Effect": "Deny",
    "Principal": "*",
    "Action": "s3:*",
    "Resource": "arn:aws:s3:::b/private/*",
}


def actions(policy: str, key: str) -> set[str]:
    """What a policy allows to do with an object."""
    found: set[str] = set()
    for each in json.loads(policy)["Statement"]:
        listed: list[str] = each["Resource"] if isinstance(each["Resource"], list) else [each["Resource"]]
        patterns = [re.escape(one).replace(r"\*", ".*") for one in listed]
        if any(re.fullmatch(one, f"arn:aws:s3:::{key}") for one in patterns):
            found |= {each["Action"]} if isinstance(each["Action"], str) else set(each["Action"])
    return found


READS = {"s3:GetObject", "s3:GetObjectVersion"}


@pytest.mark.parametrize(
    ("key", "viewer", "operator"),
    [
        ("b/team/tasks/0/x.json", READS, READS | {"s3:PutObject"}),
        ("b/team/ready/0/1/x", READS, READS | {"s3:PutObject", "s3:DeleteObject"}),
        ("b/team/queues/spark/leases/0/1/x", READS, READS | {"s3:PutObject", "s3:DeleteObject"}),
        ("b/team/control/desired.json", READS, READS | {"s3:PutObject"}),
        ("b/team/control/board.json", READS, READS | {"s3:PutObject"}),
        ("b/team/queue.json", READS, READS),
        ("b/team/workers/w.json", READS, READS),
        ("b/team/data/0/x/input.json", READS, READS),
        ("b/team/queues/spark/queue.json", READS, READS),
        ("b/team/ui/index.html", set(), set()),
        ("b/team/secrets", set(), set()),
        ("b/tasks/0/x.json", set(), set()),
        ("bb/team/tasks/0/x.json", set(), set()),
    ],
)
def test_who_looks_reads_and_who_acts_writes_what_actions_write(key: str, viewer: set[str], operator: set[str]):
    assert actions(page_policy("b", "team/", operator=False), key) == viewer
    assert actions(page_policy("b", "team/", operator=True), key) == operator


def test_a_policy_always_fits_or_says_that_it_cannot():
    for bucket, prefix in (("b" * 50, ""), ("b" * 63, "p" * 60 + "/"), ("b", "p/" * 50)):
        text = page_policy(bucket, prefix, operator=True)
        assert len(text) <= POLICY_MAX
        assert actions(text, f"{bucket}x/{prefix}tasks/0/x") == set()
        assert actions(text, f"{bucket}/other/tasks/0/x") == set()
        assert len(page_policy("b" * 63, "", operator=False)) <= POLICY_MAX
    with pytest.raises(UsageError, match="shorter prefix"):
        page_policy("b" * 63, "p" * 900 + "/", operator=True)


def test_listing_is_allowed_below_the_prefix_alone():
    (listing,) = [
        each for each in json.loads(page_policy("b", "team/", operator=True))["Statement"] if "Condition" in each
    ]
    patterns: list[str] = listing["Condition"]["StringLike"]["s3:prefix"]
    assert all(each.startswith("team/") and each != "team/*" for each in patterns)
    assert "s3:ListBucketVersions" in listing["Action"]


def parsed(body: bytes | None) -> list[dict[str, list[str]]]:
    assert body is not None
    found: list[dict[str, list[str]]] = []
    for rule in ElementTree.fromstring(body):
        fields: dict[str, list[str]] = {}
        for child in rule:
            fields.setdefault(child.tag.rpartition("}")[2], []).append(child.text or "")
        found.append(fields)
    return found


def test_cors_keeps_what_others_have_and_is_written_once():
    theirs = (
        b'<CORSConfiguration xmlns="http://s3.amazonaws.com/doc/2006-03-01/"><CORSRule><ID>a&amp;b</ID>'
        b"<AllowedOrigin>https://x</AllowedOrigin><AllowedMethod>GET</AllowedMethod></CORSRule></CORSConfiguration>"
    )
    both = bucket_rules.add_cors_rule(theirs, "qo dashboard", ["https://page"])
    first, ours = parsed(both)
    assert first == {"ID": ["a&b"], "AllowedOrigin": ["https://x"], "AllowedMethod": ["GET"]}
    assert ours["AllowedOrigin"] == ["https://page"]
    assert bucket_rules.add_cors_rule(both, "qo dashboard", ["https://page"]) is None
    wider = bucket_rules.add_cors_rule(both, "qo dashboard", ["https://other"])
    assert parsed(wider)[1]["AllowedOrigin"] == ["https://other", "https://page"]
    assert len(parsed(wider)) == 2
    assert len(parsed(bucket_rules.add_cors_rule(None, "qo dashboard", ["https://page"]))) == 1


@pytest.mark.parametrize("theirs", [[THEIRS], THEIRS], ids=["a list", "a single one"])
def test_everybody_may_read_the_page_and_what_others_decided_stands(theirs: Any):
    before = json.dumps({"Version": "2012-10-17", "Statement": theirs}).encode()
    after = bucket_rules.add_read_statement(before, "b", "team/ui/")
    assert after is not None
    kept, ours = json.loads(after)["Statement"]
    assert kept == THEIRS
    assert (ours["Action"], ours["Resource"]) == ("s3:GetObject", "arn:aws:s3:::b/team/ui/*")
    assert bucket_rules.add_read_statement(after, "b", "team/ui/") is None
    returned = {**ours, "Action": [ours["Action"]], "Resource": [ours["Resource"]], "Principal": {"AWS": ["*"]}}
    assert bucket_rules.add_read_statement(json.dumps({"Statement": [returned]}).encode(), "b", "team/ui/") is None
    narrowed = {**ours, "Condition": {"IpAddress": {"aws:SourceIp": "10.0.0.0/8"}}}
    assert (
        bucket_rules.add_read_statement(json.dumps({"Statement": [narrowed]}).encode(), "b", "team/ui/")
        is not None
    )
