"""The buckets that are committed to an output now, which further rows are merged into."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from pyspark.sql import DataFrame

from qo.agent.operator_run import RunOutput
from qo.api.contract.task import Piece
from qo.spark.io.appending import uris_of
from qo.spark.io.bucketing import by_bucket
from qo.spark.io.columns import columns_from_bodies, struct_of
from qo.spark.io.input_frames import read_files
from qo.spark.operators.operator_context import Context


@dataclass(frozen=True, slots=True)
class StandingBuckets:
    context: Context
    output: RunOutput
    pieces: Mapping[int, Sequence[Piece]]

    @property
    def rows(self) -> dict[int, int]:
        return {bucket: sum(each.rows or 0 for each in pieces) for bucket, pieces in self.pieces.items()}

    def read(self, buckets: Collection[int]) -> DataFrame | None:
        """Return the rows of these buckets; None if there are none."""
        pieces = [each for bucket in sorted(buckets) for each in self.pieces.get(bucket, ())]
        uris = uris_of(pieces)
        if not uris:
            return None
        struct = struct_of(columns_from_bodies(self.output.details.columns))
        return read_files(self.context.spark, uris, struct, self.context.files, self.context.run.work.job)


def standing_buckets(context: Context, index: int) -> StandingBuckets:
    output = context.run.output(index)
    _, pieces = output.standing()
    return StandingBuckets(context, output, by_bucket(list(pieces)))
