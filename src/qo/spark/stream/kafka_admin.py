"""Asks the brokers of Kafka which topics there are, and how far they reach, before a stream begins to read.

Spark's reader asks them, too, but only once its query runs, and it says less of what is missing. The client is the one
that Spark's reader brings along, in the driver's JVM.
"""

# Spark's JVM, through py4j, has no types.
# pyright: reportPrivateUsage=false, reportUnknownMemberType=false, reportUnknownVariableType=false
# pyright: reportUnknownArgumentType=false, reportOptionalMemberAccess=false, reportMissingTypeStubs=false

from __future__ import annotations

from collections.abc import Collection, Generator, Iterable, Mapping
from contextlib import contextmanager
from typing import Any

from py4j.protocol import Py4JJavaError
from pyspark.sql import SparkSession

from qo.core.pipeline.kafka_offsets import Offsets
from qo.errors import NotFound, UsageError

_ISOLATION = "isolation.level"
_NAMES_SHOWN = 20

Partition = tuple[str, int]  # Topic and number.


class KafkaAdmin:
    """A connection to the brokers. Each method waits for their answer, or raises Java's error."""

    def __init__(self, spark: SparkSession, properties: Mapping[str, str]) -> None:
        self._jvm: Any = spark._jvm
        java_properties = self._jvm.java.util.Properties()
        for name, value in properties.items():
            java_properties.setProperty(name, value)
        self._admin = self._jvm.org.apache.kafka.clients.admin.Admin.create(java_properties)
        level = properties.get(_ISOLATION, "read_committed").upper()
        isolation = self._jvm.org.apache.kafka.common.IsolationLevel.valueOf(level)
        self._list_options = self._jvm.org.apache.kafka.clients.admin.ListOffsetsOptions(isolation)
        self._specs = self._jvm.org.apache.kafka.clients.admin.OffsetSpec

    def close(self) -> None:
        self._admin.close()

    def match_topics(self, pattern: str) -> list[str]:
        """Return the topics whose whole names match. Raises UsageError for a pattern that is none."""
        try:
            compiled = self._jvm.java.util.regex.Pattern.compile(pattern)
        except Py4JJavaError as error:
            reason = str(error.java_exception.getDescription())
            raise UsageError(f"'pattern' is no regular expression of Java: {reason}; correct it") from None
        # Those that Kafka keeps for itself are left out.
        return sorted(name for name in self._list_topics() if compiled.matcher(name).matches())

    def partitions(self, topics: Collection[str]) -> list[Partition]:
        """Return the partitions of topics. Raises NotFound for topics that do not exist."""
        there = set(self._list_topics(internal=True))
        if missing := sorted(set(topics) - there):
            some = sorted(there)[:_NAMES_SHOWN]
            raise NotFound(
                f"there is no topic {', '.join(map(repr, missing))}: create it, or correct 'topics'; there are "
                f"{', '.join(some) or 'none'}{' and others' if len(there) > len(some) else ''}"
            )
        described = self._admin.describeTopics(list(topics)).allTopicNames().get()
        return sorted(
            (str(name), int(each.partition())) for name in described for each in described[name].partitions()
        )

    def earliest(self, partitions: Iterable[Partition]) -> Offsets:
        return self._list_offsets(partitions, self._specs.earliest())

    def latest(self, partitions: Iterable[Partition]) -> Offsets:
        return self._list_offsets(partitions, self._specs.latest())

    def first_since(self, partitions: Collection[Partition], unix_ms: int) -> Offsets:
        """Return the first records that are not older, and the end of partitions that have none."""
        firsts = self._list_offsets(partitions, self._specs.forTimestamp(unix_ms))
        ends = self.latest(partitions)
        return {
            topic: {n: ends[topic][n] if offset < 0 else offset for n, offset in offsets.items()}
            for topic, offsets in firsts.items()
        }

    def _list_topics(self, *, internal: bool = False) -> list[str]:
        options = self._jvm.org.apache.kafka.clients.admin.ListTopicsOptions().listInternal(internal)
        return [str(name) for name in self._admin.listTopics(options).names().get()]

    def _list_offsets(self, partitions: Iterable[Partition], spec: Any) -> Offsets:
        specs = self._jvm.java.util.HashMap()
        for topic, number in partitions:
            specs.put(self._jvm.org.apache.kafka.common.TopicPartition(topic, number), spec)
        answers = self._admin.listOffsets(specs, self._list_options).all().get()
        offsets: dict[str, dict[str, int]] = {}
        for partition in answers:
            own = offsets.setdefault(str(partition.topic()), {})
            own[str(partition.partition())] = int(answers[partition].offset())
        return offsets


@contextmanager
def open_admin(spark: SparkSession, properties: Mapping[str, str]) -> Generator[KafkaAdmin]:
    admin = KafkaAdmin(spark, properties)
    try:
        yield admin
    finally:
        admin.close()
