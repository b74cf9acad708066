"""Outputs whose partitions are buckets of keys: one write makes several partitions."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from pyspark.sql import DataFrame

from qo.api.contract.task import Piece

BUCKET = "qo_bucket"  # The column of the bucket of a row; files do not have it.


@dataclass(frozen=True, slots=True)
class Bucketed:
    """A frame with the column BUCKET. Each bucket becomes a partition, and replaces what is committed as that."""

    frame: DataFrame
    count: int  # How many buckets there are.
    emptied: Sequence[int] = ()  # Buckets that are replaced although no row of the frame may be in them.
    standing: Mapping[int, int] = field(default_factory=dict[int, int])  # Rows by bucket before the write.
    plain: Sequence[str] = ()  # Columns for which files need no dictionaries.

    @property
    def rows(self) -> DataFrame:
        return self.frame.drop(BUCKET)

    def key(self, bucket: int) -> str:
        return bucket_key(bucket, self.count)


def bucket_key(bucket: int, count: int) -> str:
    """Return the partition key of a bucket, as wide as that of the last one, so that keys sort as numbers do."""
    return f"{bucket:0{len(str(count - 1))}d}"


def bucket_directory(bucket: int) -> str:
    """Return the directory of a bucket below the output's prefix, as Spark names it."""
    return f"{BUCKET}={bucket}"


def by_bucket(pieces: Sequence[Piece]) -> dict[int, list[Piece]]:
    """Return committed pieces by the bucket that they are."""
    buckets: dict[int, list[Piece]] = {}
    for each in pieces:
        if each.partition_key is not None:
            buckets.setdefault(int(each.partition_key), []).append(each)
    return buckets
