"""The fields of a declaration of partitions."""

from __future__ import annotations

from qo.core.pipeline.partitions import PartitionKind
from qo.pipeline.expectation_fields import RANGE_MAX
from qo.pipeline.kinds import Field, Items, Record, Whole, choice
from qo.pipeline.texts import PARTITION, WEEKDAYS, ZONE

PARTITIONS = Record(
    "partitions",
    "What the partitions of a job's outputs are, so that others can be made of them.",
    (
        Field("kind", choice(PartitionKind), "What a key says.", required=True),
        Field("timezone", ZONE, "Of minutes to months: the time zone of their clocks.", default="UTC"),
        Field("start", PARTITION, "The key of the first partition that is expected. Unset: there is no first."),
        Field("range", Whole(1, RANGE_MAX), "integer: how many numbers are in a partition. Unset: one."),
        Field(
            "weekdays",
            WEEKDAYS,
            "minute, hour, day: only those of these days are expected, as in MON-FRI. Unset: all.",
        ),
        Field(
            "without",
            Items(PARTITION, at_least=1, at_most=1_000, unique=True),
            "Keys of partitions that are not expected, such as holidays.",
        ),
    ),
)
