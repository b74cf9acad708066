"""The buckets that are committed to an output now, which further rows are merged into."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from pyspark.sql import DataFrame

from qo.agent.operator_run import RunOutput
from qo.api.contract.task import Piece
from qo.spark.io.appending import uris_of
from qo.spark.io.bucketing import by_bucket
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.input_frames import read_files
from qo.spark.operators.operator_context import Context
from qo.spark.operators.standing_footers import StandingFooters


@dataclass(frozen=True, slots=True)
class StandingBuckets:
    context: Context
    output: RunOutput
    revision: int
    pieces: Mapping[int, Sequence[Piece]]
    _read: dict[str, Any] = field(default_factory=dict[str, Any])  # Footers by URI.

    @property
    def rows(self) -> dict[int, int]:
        return {bucket: sum(each.rows or 0 for each in pieces) for bucket, pieces in self.pieces.items()}

    def read(self, buckets: Collection[int]) -> DataFrame | None:
        """Return the rows of these buckets; None if there are none."""
        uris = self._uris(buckets)
        if not uris:
            return None
        struct = struct_of(columns_from_bodies(self.output.details.columns))
        return read_files(self.context.spark, uris, struct, self.context.files, self.context.run.work.job)

    def footers(self, buckets: Collection[int]) -> StandingFooters | None:
        """Return the footers of the files of these buckets; None if they are not quickly read, or one is damaged."""
        uris = self._uris(buckets)
        unread = [each for each in uris if each not in self._read]
        footers = self.context.files.read_footers(unread)
        if footers is None or None in footers:
            return None
        self._read.update(zip(unread, footers, strict=True))
        return StandingFooters([self._read[each] for each in uris])

    def count_files(self, buckets: Collection[int]) -> int:
        return len(self._uris(buckets))

    def _uris(self, buckets: Collection[int]) -> list[str]:
        return uris_of([each for bucket in sorted(buckets) for each in self.pieces.get(bucket, ())])


def standing_buckets(context: Context, index: int) -> StandingBuckets:
    output = context.run.output(index)
    revision, pieces = output.standing()
    return StandingBuckets(context, output, revision, by_bucket(list(pieces)))
