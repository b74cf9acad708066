"""The policies of roles by the rules of IAM, where no server here enforces them, and the pages that explain them."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from qo.core.pipeline.policy import normalise
from qo.core.roles import GRANTS, Bucket, Role, partition_of, role_policy
from qo.errors import UsageError
from support.stores.iam import allowed

pytestmark = pytest.mark.fast

GUIDE = Path(__file__).parents[2] / "docs/guides/security.md"
PLACE = Bucket("b", "team/")
LAKE = normalise("s3://lake/root")
MANAGED_MAX = 6144  # Characters of a managed policy, says IAM, spaces not counted.
ARNS = {"roles": ["arn:aws:iam::1:role/r"], "functions": ["arn:aws:lambda:eu-west-1:1:function:f"]}


def every() -> list[dict[str, Any]]:
    of_queue = [role_policy(role, PLACE, data=LAKE, **ARNS) for role in Role]
    runtimes = [role_policy(Role.WORKER, PLACE, runtime=each, data=LAKE) for each in ("python", "spark")]
    return [*of_queue, *runtimes, role_policy(Role.PRODUCER, PLACE, create_only=True)]


def purging() -> list[dict[str, Any]]:
    return [role_policy(role, PLACE, purge=True) for role in (Role.MONITOR, Role.WORKER)]


def test_on_aws_a_producer_can_be_kept_from_writing_over_a_task() -> None:
    policy = role_policy(Role.PRODUCER, PLACE, create_only=True)
    assert allowed(policy, "s3:PutObject", "b/team/tasks/a/t.json", creates=True)
    assert not allowed(policy, "s3:PutObject", "b/team/tasks/a/t.json")
    for role in set(Role) - {Role.PRODUCER}:
        with pytest.raises(UsageError, match="create-only"):
            role_policy(role, PLACE, create_only=True)


def test_no_role_removes_a_task_or_its_history_or_touches_the_bucket_itself() -> None:
    of_bucket = ("s3:PutBucketVersioning", "s3:PutLifecycleConfiguration", "s3:PutBucketPolicy", "s3:DeleteBucket")
    for policy in every():
        for key in ("team/tasks/a/t.json", "team/queues/spark/tasks/a/t.json", "team/data/a/t/input-0.json"):
            for action in ("s3:DeleteObject", "s3:DeleteObjectVersion", "s3:PutObjectAcl", "s3:RestoreObject"):
                assert not allowed(policy, action, f"b/{key}")
        assert not any(allowed(policy, action, "b") for action in of_bucket)
        assert not any("*" in each for one in policy["Statement"] for each in one["Action"])


def test_who_purges_removes_tasks_and_their_data_for_good_and_nothing_else() -> None:
    for policy in purging():
        for key in ("team/tasks/a/t.json", "team/data/a/t/input-0.json"):
            assert allowed(policy, "s3:DeleteObjectVersion", f"b/{key}")
        for key in (
            "team/queue.json",
            "team/schedules/s.json",
            "team/control/desired.json",
            "other/tasks/a/t.json",
        ):
            assert not allowed(policy, "s3:DeleteObject", f"b/{key}")
            assert not allowed(policy, "s3:DeleteObjectVersion", f"b/{key}")
        assert allowed(policy, "s3:PutObject", "b/team/monitor/purge.json")
    for role in set(Role) - {Role.MONITOR, Role.WORKER}:
        with pytest.raises(UsageError, match="never removes tasks"):
            role_policy(role, PLACE, purge=True)


def test_only_who_is_told_of_history_reads_old_versions() -> None:
    for role in Role:
        read = allowed(role_policy(role, PLACE), "s3:GetObjectVersion", "b/team/tasks/a/t.json")
        assert read == (role in (Role.VIEWER, Role.OPERATOR))


def test_data_is_for_workers_of_pipelines_and_only_sparks_remove_any() -> None:
    python, spark = (role_policy(Role.WORKER, PLACE, runtime=each, data=LAKE) for each in ("python", "spark"))
    for action in ("s3:GetObject", "s3:PutObject", "s3:AbortMultipartUpload"):
        assert allowed(python, action, "lake/root/d/part-0")
        assert not allowed(python, action, "lake/rootless/d/part-0")
    assert not allowed(python, "s3:DeleteObject", "lake/root/d/part-0")
    assert allowed(spark, "s3:DeleteObject", "lake/root/d/part-0")
    for role in (Role.PRODUCER, Role.WORKER, Role.MONITOR, Role.VIEWER, Role.OPERATOR):
        assert not allowed(role_policy(role, PLACE, data=LAKE), "s3:GetObject", "lake/root/d/part-0")


def test_a_dispatcher_assumes_and_calls_what_is_named_and_serves_all_queues() -> None:
    named = {each["Sid"]: each["Resource"] for each in role_policy(Role.DISPATCHER, PLACE, **ARNS)["Statement"]}
    assert (named["MintCredentials"], named["RunBundles"]) == (ARNS["roles"], ARNS["functions"])
    with pytest.raises(UsageError, match="all runtimes"):
        role_policy(Role.DISPATCHER, PLACE, runtime="python")


def test_only_a_producer_that_pushes_reads_the_roster() -> None:
    assert not allowed(
        role_policy(Role.PRODUCER, PLACE), "s3:GetObject", f"{PLACE.name}/{PLACE.prefix}workers/w.json"
    )
    pushing = role_policy(Role.PRODUCER, PLACE, push=True)
    assert allowed(pushing, "s3:GetObject", f"{PLACE.name}/{PLACE.prefix}workers/w.json")
    assert not allowed(pushing, "s3:PutObject", f"{PLACE.name}/{PLACE.prefix}workers/w.json")
    with pytest.raises(UsageError, match="--push"):
        role_policy(Role.WORKER, PLACE, push=True)


def test_only_who_dispatches_directly_writes_to_inboxes_without_reading_them() -> None:
    entry = f"{PLACE.name}/{PLACE.prefix}inbox/w/0029538000/t"
    below = f"{PLACE.name}/{PLACE.prefix}queues/python/inbox/w/0029538000/t"
    for role, key in ((Role.PRODUCER, entry), (Role.DISPATCHER, below)):
        assert not allowed(role_policy(role, PLACE), "s3:PutObject", key)
        direct = role_policy(role, PLACE, direct=True)
        assert allowed(direct, "s3:PutObject", key)
        assert allowed(direct, "s3:GetObject", key.partition("inbox/")[0] + "workers/w.json")
        for action in ("s3:GetObject", "s3:DeleteObject"):
            assert not allowed(direct, action, key)
    assert not allowed(role_policy(Role.DISPATCHER, PLACE, direct=True), "s3:PutObject", entry)
    with pytest.raises(UsageError, match="--direct"):
        role_policy(Role.WORKER, PLACE, direct=True)


def test_policies_fit_and_name_each_statement_once() -> None:
    for policy in (*every(), *purging()):
        names = [each["Sid"] for each in policy["Statement"]]
        assert len(names) == len(set(names))
        assert all(re.fullmatch("[A-Za-z0-9]+", name) for name in names)
    long = Bucket("b" * 63, "p" * 60 + "/")
    text = str(role_policy(Role.WORKER, long, runtime="spark", data=normalise(f"s3://{'b' * 63}/{'p' * 60}")))
    assert len(text.replace(" ", "")) <= MANAGED_MAX


def test_the_guide_gives_the_reason_of_every_grant() -> None:
    page = GUIDE.read_text()
    scoped = role_policy(Role.WORKER, Bucket("b"), runtime="python", data=normalise("s3://lake/d"), scoped=True)
    policies = (*every(), *purging(), scoped)
    named = {each["Sid"] for policy in policies for each in policy["Statement"]} - {
        "JoinQueueNames",
        "ReadCodeNames",
    }
    named -= {"KeepManifestsNames", "KeepTablesNames", "HoldDatasetsNames", "ReadLogsNames", "RememberPurgeNames"}
    reasons = page.partition("### Why each is there")[2].partition("\n## ")[0]
    explained = set(re.findall(r"^\| `(\w+)` \|", reasons, re.MULTILINE))
    assert explained == named
    assert set(GRANTS) == set(Role)


@pytest.mark.parametrize(
    ("region", "partition"), [("eu-central-1", "aws"), ("cn-north-1", "aws-cn"), ("us-gov-west-1", "aws-us-gov")]
)
def test_regions_that_are_apart_have_arns_of_their_own(region: str, partition: str) -> None:
    assert partition_of(region) == partition
    policy = role_policy(Role.VIEWER, Bucket("b", "", partition_of(region)))
    assert all(
        each.startswith(f"arn:{partition}:s3:::b") for one in policy["Statement"] for each in one["Resource"]
    )
