"""The jars with which Spark reads a bucket by itself. Fetched once for all runs of the tests."""

from __future__ import annotations

from pathlib import Path

JARS = "org.apache.hadoop:hadoop-aws:3.5.0"  # Of the Hadoop that this Spark carries.
IVY = Path("~/.cache/qo/ivy").expanduser()  # 680 MB, which no test run should fetch twice.
_NOT_FETCHED = "unresolved dependenc"  # What Spark says where it cannot get at jars.


def were_not_fetched(stderr: str) -> bool:
    """Whether a run ended because there are no jars here, and none could be fetched."""
    return _NOT_FETCHED in stderr.lower() and not (IVY / "jars").exists()
