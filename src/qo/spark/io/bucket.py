"""Buckets, from Spark: whether through Hadoop's s3a or through Python workers, and what a session needs for it."""

from __future__ import annotations

import os
from dataclasses import replace

from qo.config.settings import S3Settings, Settings
from qo.config.spark import BucketAccess, SparkSettings
from qo.spark.io.native import LISTING
from qo.store.s3.credentials import find_region

JARS = "hadoop-aws"
_S3A = "spark.hadoop.fs.s3a."
# Keys from the environment, which Spark itself hands to its executors, then the chain of the AWS SDK.
_PROVIDERS = (
    "org.apache.hadoop.fs.s3a.TemporaryAWSCredentialsProvider",
    "org.apache.hadoop.fs.s3a.SimpleAWSCredentialsProvider",
    "software.amazon.awssdk.auth.credentials.DefaultCredentialsProvider",
)


def bucket_access(settings: Settings) -> BucketAccess:
    """How buckets are read and written: as it is set, or as what is there allows."""
    chosen = settings.spark
    if chosen.bucket_access is not BucketAccess.AUTO:
        return chosen.bucket_access
    jars = (*chosen.packages, *(value for key, value in dict(chosen.conf).items() if key.startswith("spark.jars")))
    return BucketAccess.S3A if any(JARS in each for each in jars) else BucketAccess.PYTHON


def bucket_conf(settings: Settings) -> dict[str, str]:
    """What a session needs to read and write data sets, wherever they are. No secrets are in it."""
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
    """Those that an engine is opened with. What somebody has set comes last and wins."""
    return replace(settings.spark, conf=(*bucket_conf(settings).items(), *settings.spark.conf))


def endpoint_of(s3: S3Settings) -> str | None:
    """The server that is not AWS, if there is one: set here, or where every AWS tool looks."""
    return s3.endpoint or os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL") or None
