"""For how long deletions are remembered, if not for ever.

The distance counts from the newest sequence of a bucket, never from a clock. Two rules belong together:

    a deletion that lies further back is forgotten
    a new row that lies further back, of a key that is not there, is left out: its key may have been deleted

So an older row never undoes a deletion. The price: a key whose very first row comes so late is left out, too.
"""

from __future__ import annotations

from dataclasses import dataclass

from pyspark.sql import Column, DataFrame
from pyspark.sql import functions as F
from pyspark.sql.types import DataType

from qo.spark.io.bucketing import BUCKET
from qo.spark.operators.keyed_rows import KeyRules, column, same_key
from qo.spark.operators.operator_context import Context
from qo.spark.operators.sequences import move_back

_NEWEST = "__qo_newest"


@dataclass(frozen=True, slots=True)
class DeletionMemory:
    context: Context
    rules: KeyRules
    distance: str
    type_: DataType

    @classmethod
    def of(cls, context: Context, rules: KeyRules, rows: DataFrame) -> DeletionMemory | None:
        """Return the memory that the config sets; None: for ever. Raises UsageError as ``move_back``."""
        distance = context.config.get("keep_deletes")
        if distance is None:
            return None
        type_ = rows.schema[rules.sequence_by].dataType
        move_back(rules.sequence, str(distance), type_, rules.sequence_by)
        return cls(context, rules, str(distance), type_)

    def without_late(self, new: DataFrame, committed: DataFrame) -> DataFrame:
        """Return the new rows without those that come too late."""
        newest = F.broadcast(self._newest(committed))
        beyond = new.join(newest, BUCKET).where(self._is_beyond()).drop(_NEWEST)
        late = self.context.keep(
            beyond.join(committed, same_key(beyond, committed, self.rules, nulls=True), "left_anti")
        )
        self.context.details["rows_too_late"] = late.count()
        return new.join(late, same_key(new, late, self.rules, nulls=True), "left_anti")

    def forget_old(self, deletions: DataFrame, merged: DataFrame) -> DataFrame:
        """Return the deletions that are kept. ``merged``: all rows and deletions of their buckets."""
        paired = deletions.join(F.broadcast(self._newest(merged)), BUCKET)
        return paired.where(~self._is_beyond()).drop(_NEWEST)

    def _newest(self, rows: DataFrame) -> DataFrame:
        return (
            rows.groupBy(BUCKET).agg(F.max(self.rules.sequence).alias(_NEWEST)).where(column(_NEWEST).isNotNull())
        )

    def _is_beyond(self) -> Column:
        edge = move_back(column(_NEWEST), self.distance, self.type_, self.rules.sequence_by)
        return self.rules.sequence.isNull() | (self.rules.sequence < edge)
