"""Rows by key where Spark is a server, and where it reads a bucket by itself: the same rows as anywhere."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from support.servers.s3 import S3Server
from support.spark.s3a_jars import IVY, JARS, were_not_fetched

pytestmark = [pytest.mark.spark, pytest.mark.s3, pytest.mark.long, pytest.mark.timeout(600)]

SAME = ["SAME first", "SAME more", "SAME less"]


def test_changes_are_merged_by_a_client_of_spark_connect(tmp_path: Path, s3_server: S3Server) -> None:
    done = ran(s3_server, "connect", tmp_path, f"file:{tmp_path}/data")
    assert said_of(done) == [*SAME, "READ BY LocalFiles pyspark.sql.connect.session"]


def test_changes_in_a_bucket_are_merged_by_a_client_of_spark_connect(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    done = ran(s3_server, "connect", tmp_path, f"s3://{s3_bucket}/data")
    assert said_of(done) == [*SAME, "READ BY BucketFiles pyspark.sql.connect.session"]


def test_changes_in_a_bucket_are_merged_by_a_spark_that_reads_it_itself(
    tmp_path: Path, s3_server: S3Server, s3_bucket: str
) -> None:
    done = ran(s3_server, "s3a", tmp_path, f"s3://{s3_bucket}/data", JARS, str(IVY))
    if were_not_fetched(done.stderr):
        pytest.skip(f"the jars of s3a are not in {IVY}, and Maven Central cannot be reached to fetch them")
    assert said_of(done) == [*SAME, "READ BY HadoopFiles pyspark.sql.session"]


def ran(server: S3Server, how: str, directory: Path, root: str, *jars: str) -> subprocess.CompletedProcess[str]:
    """In a process of its own: there, Spark is set up in another way."""
    tests = Path(__file__).parents[1]
    access = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key}
    words = [how, str(directory), root, server.endpoint, server.region, *jars]
    return subprocess.run(
        [sys.executable, "-m", "support.spark.keyed_child", *words],
        cwd=directory,
        capture_output=True,
        text=True,
        timeout=550,
        env={**os.environ, "PYTHONPATH": str(tests), **access},
        check=False,
    )


def said_of(done: subprocess.CompletedProcess[str]) -> list[str]:
    assert done.returncode == 0, done.stderr[-3000:]
    return [line for line in done.stdout.splitlines() if line.startswith(("SAME", "READ BY"))]
