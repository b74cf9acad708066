"""What errors of Kafka and of Spark's reader for it mean, and what to do."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import pyspark

from qo.errors import ConfigError, QoError, Unavailable, UsageError
from qo.pipeline.operators.kafka_fields import MALFORMED_COLUMN
from qo.spark.engine.error_translation import BadData, from_spark, full_text, short_text
from qo.spark.operators.kafka_rows import REFUSAL
from qo.worker.observe.secrets import redact_secrets

PACKAGE = f"org.apache.spark:spark-sql-kafka-0-10_2.13:{pyspark.__version__}"

_NO_READER = re.compile(
    r"Failed to find (?:the )?data source: `?kafka|DATA_SOURCE_NOT_FOUND|'JavaPackage' object is not callable|"
    r"does not exist in the JVM"
)
_MALFORMED = re.compile(rf"{REFUSAL}(.+? in place of JSON)", re.DOTALL)
# The names of Java's classes, the first that is found decides, and what to say before Spark's own text.
_MEANINGS = (
    (
        r"(?i)some data may have been (?:lost|missed)|OffsetOutOfRangeException|KAFKA_DATA_LOSS",
        UsageError,
        "records are gone that were not read yet; write 'expired: skip' to go on without them, which rebuilds nothing",
    ),
    (
        r"SaslAuthenticationException|SslAuthenticationException|UnsupportedSaslMechanism|LoginException",
        ConfigError,
        "Kafka at {servers} refused the login; correct 'user', the secret or 'mechanism'",
    ),
    (
        r"(?:Topic|Group|Cluster|TransactionalId)AuthorizationException",
        ConfigError,
        "Kafka at {servers} does not allow this user to read; ask for the right to describe and read the topics",
    ),
    (
        r"UnknownTopicOrPartitionException|UnknownTopicIdException",
        Unavailable,
        "a topic or partition of Kafka at {servers} is gone; the next attempt asks again",
    ),
    (
        r"config\.ConfigException(?!: No resolvable)",
        ConfigError,
        "Kafka's client refuses its options; correct 'options'",
    ),
    (
        r"errors\.(?:Timeout|Disconnect|Network|BrokerNotAvailable)\w*Exception|No resolvable bootstrap",
        Unavailable,
        "Kafka at {servers} does not answer; check the address, whether the brokers run, and whether they can be "
        "reached by the addresses that they advertise",
    ),
)


def explain_kafka(config: Mapping[str, Any], error: BaseException) -> Exception | None:
    """Return what to raise for an error of Kafka or its reader; None if it is about something else.

    No secret is in the message.
    """
    if isinstance(error, TypeError) and _NO_READER.search(str(error)):
        return _no_reader()
    if isinstance(error, QoError) or not from_spark(error):
        return None
    whole = full_text(error)
    if _NO_READER.search(whole):
        return _no_reader()
    if refusal := _MALFORMED.search(whole):
        column = f"{config.get('prefix', '')}{MALFORMED_COLUMN}"
        return BadData(
            f"{redact_secrets(refusal[1])}: write 'malformed: keep' to have it as a row with the text in the column "
            f"{column}, which rebuilds nothing"
        )
    for pattern, kind, meaning in _MEANINGS:
        if re.search(pattern, whole):
            return kind(f"{meaning.format(servers=config['servers'])}: {redact_secrets(short_text(error))}")
    return None


def _no_reader() -> ConfigError:
    return ConfigError(
        f"Spark has no reader for Kafka: name its jar with the setting spark.packages (QO_SPARK_PACKAGES={PACKAGE}), "
        "in the version of Spark, or as spark.jars in spark.conf"
    )
