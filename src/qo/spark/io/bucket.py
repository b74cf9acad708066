"""How Spark accesses buckets: through Hadoop's s3a or through Python workers, and the settings for it."""

from __future__ import annotations

import os
from dataclasses import replace

from qo.config.settings import S3Settings, Settings
from qo.config.spark import BucketAccess, SparkSettings
from qo.spark.io.native import LISTING
from qo.store.s3.aws_credentials import find_region

JARS = "hadoop-aws"
_S3A = "spark.hadoop.fs.s3a."
# Keys from the environment, which Spark itself hands to its executors, then the chain of the AWS SDK.
_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)


def bucket_access(settings: Settings) -> BucketAccess:
    """Return how buckets are read and written: as set, else s3a if its jars are named."""
    spark = settings.spark
    if spark.bucket_access is not BucketAccess.AUTO:
        return spark.bucket_access
    jars = (*spark.packages, *(value for key, value in dict(spark.conf).items() if key.startswith("spark.jars")))
    return BucketAccess.S3A if any(JARS in each for each in jars) else BucketAccess.PYTHON


def bucket_conf(settings: Settings) -> dict[str, str]:
    """Return the settings that a session needs to read and write datasets, wherever they are. None is secret."""
    conf = dict(LISTING)
    if bucket_access(settings) is not BucketAccess.S3A:
        return conf
    conf[f"{_S3A}aws.credentials.provider"] = ",".join(_PROVIDERS)
    conf[f"{_S3A}endpoint.region"] = find_region(settings.s3.region)
    if endpoint := endpoint_of(settings.s3):
        conf[f"{_S3A}endpoint"] = endpoint
        conf[f"{_S3A}path.style.access"] = "true"
        conf[f"{_S3A}connection.ssl.enabled"] = str(endpoint.startswith("https:")).lower()
    return conf


def spark_settings(settings: Settings) -> SparkSettings:
    """Return the settings that an engine is opened with. What the user has set comes last and wins."""
    return replace(settings.spark, conf=(*bucket_conf(settings).items(), *settings.spark.conf))


def endpoint_of(s3: S3Settings) -> str | None:
    """Return the server, if it is not AWS: from the settings, or the variables that every AWS tool reads."""
    return s3.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
